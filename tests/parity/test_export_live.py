#!/usr/bin/env python3
"""python -m fsdpd.export with torch.export at work (make check-live): the graphs of export.json again, and the command: what it
writes, what it refuses, and its own check against a running fsdpd."""

import os
import subprocess
import sys
import tempfile
import unittest

sys.path[:0] = [
    os.path.dirname(os.path.abspath(__file__)),
    os.path.join(os.path.dirname(os.path.abspath(__file__)), "../system"),
]
import harness

import torch

import make_export_graphs

NETWORKS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "export_networks.py")
ENVIRONMENT = dict(os.environ, PYTHONPATH=os.path.join(harness.SOURCE, "clients/python"), PYTHONDONTWRITEBYTECODE="1")


class Live(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name

    def export(self, *arguments, address=""):
        return subprocess.run(
            [sys.executable, "-m", "fsdpd.export", *arguments],
            cwd=self.directory,
            text=True,
            capture_output=True,
            env=dict(ENVIRONMENT, FSDPD_ADDRESS=address),
        )

    def test_graphs_are_those_of_the_file(self):
        sys.argv[1:] = ["--compare"]
        self.assertEqual(make_export_graphs.main(), 0)

    def test_checks_itself(self):
        daemon = harness.Daemon(workers=1, data=self.directory)
        self.addCleanup(daemon.close)
        for name, shape in (("MobileNet", "3,16,16"), ("TabularTransformer", "7")):
            with self.subTest(name):
                made = self.export(
                    f"{NETWORKS}:{name}",
                    "--input",
                    shape,
                    "-o",
                    name,
                    "--check",
                    "--fsdpctl",
                    harness.FSDPCTL,
                    address=daemon.address,
                )
                self.assertEqual(made.returncode, 0, made.stderr)
                self.assertRegex(made.stdout, r"checked: loss [\d.]+, PyTorch's [\d.]+\n")
                self.assertEqual(
                    sorted(file for file in os.listdir(self.directory) if file.startswith(name)),
                    [name + ".safetensors", name + ".yaml"],
                )

    def test_nothing_is_written_of_what_is_refused(self):
        made = self.export(f"{NETWORKS}:CLIP", "--input", "24")
        self.assertEqual(made.returncode, 1)
        self.assertRegex(
            made.stderr,
            r"export_networks.py:\d+: forward takes 2 tensors \(image, text\); "
            r"of several each has an --input NAME=SIZES, or NAME=tokens,LENGTH\n$",
        )
        self.assertEqual(os.listdir(self.directory), [])

    def test_several_inputs(self):
        inputs = ["--input", "image=24", "--input", "text=tokens,6"]
        made = self.export(f"{NETWORKS}:CLIP", *inputs)
        self.assertIn("--vocabulary is missing", made.stderr)
        made = self.export(f"{NETWORKS}:CLIP", *inputs, "--vocabulary", "40", "-o", "clip")
        self.assertEqual(made.returncode, 0, made.stderr)
        with open(os.path.join(self.directory, "clip.yaml"), encoding="utf-8") as file:
            self.assertIn("\nloss: clip_loss(output, y, exp(logit_scale))\n", file.read())


if __name__ == "__main__":
    unittest.main()
