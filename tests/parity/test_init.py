#!/usr/bin/python3
"""Every initial parameter of the MNIST example, against PyTorch's, bit for bit."""
import os
import subprocess
import sys

try:
    import numpy
    import torch
except ImportError as missing:
    print("SKIP: python3-torch is not installed:", missing)
    sys.exit(77)

SEEDS = (0, 1, 2, 1234567, 2**31, 2**32 + 1, 2**40 + 5)


class Net(torch.nn.Module):
    """The network of PyTorch's FSDP tutorial."""

    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 32, 3, 1)
        self.conv2 = torch.nn.Conv2d(32, 64, 3, 1)
        self.dropout1 = torch.nn.Dropout(0.25)
        self.dropout2 = torch.nn.Dropout(0.5)
        self.fc1 = torch.nn.Linear(9216, 128)
        self.fc2 = torch.nn.Linear(128, 10)


def main():
    source, build = os.environ.get("srcdir", "."), os.environ.get("builddir", ".")
    model = os.path.join(source, "examples/mnist/net.yaml")
    program = os.path.join(build, "tests/parity/dump_init")
    failures = 0
    for seed in SEEDS:
        torch.manual_seed(seed)
        expected = torch.cat([v.ravel() for v in Net().state_dict().values()]).numpy()
        output = subprocess.run([program, model, str(seed)], stdout=subprocess.PIPE, check=True)
        found = numpy.frombuffer(output.stdout, dtype=numpy.float32)
        if found.shape != expected.shape:
            print("seed %d: %d values, expected %d" % (seed, found.size, expected.size))
            failures += 1
            continue
        different = numpy.flatnonzero(found.view(numpy.uint32) != expected.view(numpy.uint32))
        print("seed %d: %d of %d values differ" % (seed, different.size, expected.size))
        if different.size:
            first = different[0]
            print("  the first is number %d: %r, expected %r" % (first, found[first], expected[first]))
            failures += 1
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
