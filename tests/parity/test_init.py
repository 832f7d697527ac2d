#!/usr/bin/python3
"""Every initial parameter of the MNIST example, and of layers that are drawn from normal
distributions, against PyTorch's, bit for bit."""
import os
import subprocess
import sys
import tempfile

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


class Conv1D(torch.nn.Module):
    """As in transformers."""

    def __init__(self, nf, nx):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(nx, nf))
        self.bias = torch.nn.Parameter(torch.zeros(nf))
        torch.nn.init.normal_(self.weight, std=0.02)


# Sizes below 16, which leave a value for the next normal draw or find one; multiples of 16; others.
LAYERS = (("Embedding", 5, 3), ("Linear", 3, 7), ("Embedding", 7, 3), ("Embedding", 3, 1),
          ("Embedding", 16, 8), ("Conv1D", 3, 3), ("LayerNorm", 7), ("Conv1D", 31, 33),
          ("Embedding", 1, 1), ("Embedding", 129, 5, 2), ("Linear", 17, 3), ("Embedding", 97, 101),
          ("Conv1d", 3, 4, 5), ("ConvTranspose2d", 6, 4, 3, 2, 1, 1, 2), ("LSTM", 5, 7, 2, True, True, 0.0, True), ("GRU", 3, 4, 1, False, True))


class Normal(torch.nn.Module):
    """The layers of LAYERS, and a head, which completes the model file."""

    def __init__(self):
        super().__init__()
        for i, (kind, *sizes) in enumerate(LAYERS):
            constructor = Conv1D if kind == "Conv1D" else getattr(torch.nn, kind)
            self.add_module("m%d" % i, constructor(*sizes))
        self.head = torch.nn.Linear(3, 5, bias=False)


def normal_file(rules=""):
    lines = ["name: Normal", "input: tokens", "vocabulary: 5", "context: 4", "modules:"]
    for i, (kind, *sizes) in enumerate(LAYERS):
        lines.append("  m%d: %s(%s)" % (i, kind, ", ".join(map(str, sizes))))
    lines += ["  head: Linear(3, 5, bias=False)", "forward: ['output = head(m0(x))']",
              "loss: cross_entropy(output, target)", rules]
    return "\n".join(lines)


class Ruled(Normal):
    """As with RULES: each parameter is drawn once, in order."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(self.seed)
        with torch.no_grad():
            for name, value in self.named_parameters():
                if name == "head.weight":
                    value.uniform_(-0.3, 0.3)
                elif name.endswith("bias"):
                    value.zero_()
                elif name == "m6.weight":
                    value.fill_(1)
                else:
                    value.normal_(0, 0.02)
            self.m9.weight[2] = 0


class Attended(torch.nn.Module):
    """Attention draws its last parameters first."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.MultiheadAttention(8, 2)
        self.second = torch.nn.MultiheadAttention(12, 3, bias=False)
        self.head = torch.nn.Linear(8, 5)


ATTENDED = """name: Attended
input: [4, 8]
classes: 5
modules:
  first: MultiheadAttention(8, 2, batch_first=True)
  second: MultiheadAttention(12, 3, bias=False, batch_first=True)
  head: Linear(8, 5)
forward: ['output = head(first(x, x, x)[:, 0])']
loss: cross_entropy(output, target)
"""

RULES = """init:
  - {match: head.*, uniform: 0.3}
  - {match: "*.bias", zeros}
  - {match: m6.weight, ones: true}
  - {match: "*", normal: 0.02}
"""


def compare(what, program, path, seed, model):
    expected = torch.cat([v.ravel() for v in model.state_dict().values()]).numpy()
    output = subprocess.run([program, path, str(seed)], stdout=subprocess.PIPE, check=True)
    found = numpy.frombuffer(output.stdout, dtype=numpy.float32)
    if found.shape != expected.shape:
        print("%s, seed %d: %d values, expected %d" % (what, seed, found.size, expected.size))
        return 1
    different = numpy.flatnonzero(found.view(numpy.uint32) != expected.view(numpy.uint32))
    print("%s, seed %d: %d of %d values differ" % (what, seed, different.size, expected.size))
    if different.size == 0:
        return 0
    first = different[0]
    print("  the first is number %d: %r, expected %r" % (first, found[first], expected[first]))
    return 1


def main():
    source, build = os.environ.get("srcdir", "."), os.environ.get("builddir", ".")
    program = os.path.join(build, "tests/parity/dump_init")
    mnist = os.path.join(source, "examples/mnist/net.yaml")
    failures = 0
    with tempfile.TemporaryDirectory() as directory:
        names = ("normal.yaml", "ruled.yaml", "attended.yaml")
        normal, ruled, attended = (os.path.join(directory, name) for name in names)
        for path, text in ((normal, normal_file()), (ruled, normal_file(RULES)), (attended, ATTENDED)):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        for seed in SEEDS:
            torch.manual_seed(seed)
            failures += compare("mnist", program, mnist, seed, Net())
            torch.manual_seed(seed)
            failures += compare("normal", program, normal, seed, Normal())
            torch.manual_seed(seed)
            failures += compare("attended", program, attended, seed, Attended())
            Ruled.seed = seed
            failures += compare("rules", program, ruled, seed, Ruled())
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
