#!/usr/bin/env python3
"""The README's first command, without its build, on the real MNIST, or on drawn digits where it is missing: one epoch
on two CPU workers reaches 98.0 %, and PyTorch, which loads the pulled file as the README does, gets the same
accuracy."""

import os
import re
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock

sys.path[:0] = [os.path.dirname(__file__), os.path.join(os.path.dirname(__file__), "../parity")]
import harness
import printed

if os.environ.get("FSDPD_QUICK"):
    print("slow: left out of the quick run")
    sys.exit(77)
MNIST = harness.find_mnist()
try:
    import reference
except ImportError as error:
    print(f"PyTorch is missing: {error}")
    sys.exit(77)


class Quickstart(unittest.TestCase):
    def test_one_epoch(self):
        with tempfile.TemporaryDirectory() as directory:
            data = MNIST or os.path.join(self.enterContext(tempfile.TemporaryDirectory()), "digits")
            if MNIST is None:
                harness.draw_digits(data, train=60000, test=10000)
            result = subprocess.run(
                [os.path.join(harness.SOURCE, "scripts/quickstart.sh"), "--data", data,
                 "--build", os.path.abspath(harness.BUILD), "--no-install"],
                cwd=directory, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, timeout=1800,
                env={**os.environ, "TMPDIR": directory})
            print(result.stdout)
            self.assertEqual(result.returncode, 0)
            found = re.findall(r"Accuracy: (\d+)/(\d+)", result.stdout)
            self.assertTrue(found, "no accuracy was printed")
            correct, total = map(int, found[-1])
            self.assertEqual(total, 10000)
            self.assertGreaterEqual(correct / total, 0.98)
            self.assertIn("FullyShardedDataParallel", result.stdout)

            weights = os.path.join(directory, "mnist_cnn.safetensors")
            self.assertEqual(harness.load_state_dict(weights)[1], {"format": "pt"})
            model = reference.Net()
            program = printed.block("README.md", "Try it", 1)
            stand_in = types.SimpleNamespace(  # this PyTorch's Python may lack safetensors
                load_file=lambda name: harness.load_state_dict(os.path.join(directory, name))[0])
            with unittest.mock.patch.dict(sys.modules, {"safetensors": stand_in, "safetensors.torch": stand_in}):
                exec("\n".join(program.lines), {"model": model})
            accuracy, loss = reference.accuracy(model, data)
            print(f"fsdpd {correct / total:.4f}, PyTorch with the pulled file {accuracy:.4f} "
                  f"(loss {loss:.4f})")
            self.assertLessEqual(abs(accuracy - correct / total), 0.0002)
            left = [name for name in os.listdir(directory) if name != "mnist_cnn.safetensors"]
            self.assertEqual(left, [], "quickstart left something behind")


if __name__ == "__main__":
    harness.main()
