#!/usr/bin/env python3
"""Layers with windows against PyTorch's, with both libraries of kernels: Conv2d with every
combination of some kernels, strides, paddings, dilations and groups, MaxPool2d, AvgPool2d and
AdaptiveAvgPool2d, on images with odd sides. A network has many of them side by side behind one
convolution, so outputs and all gradients are compared, also those of the layers' inputs.

In bf16, what is exact is the same network in f64 with bf16's parameters and images. The error may be
twice that of PyTorch in bf16, or that of rounding twice where PyTorch's is smaller."""

import itertools
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(__file__))

try:
    import numpy
    import torch
    from torch import nn
    from torch.nn import functional as F
except ImportError as missing:
    print("SKIP: python3-torch is not installed:", missing)
    sys.exit(77)

from test_transformers import largest, run, write_safetensors

BATCH, SIDES, WIDTH, CLASSES = 3, (13, 15), 6, 5
BOUND = 1e-5 # of the largest element
ROUNDING = 2 ** -8 # the largest relative error of rounding to bf16, of the largest element
STRIDES, PADDINGS, DILATIONS, GROUPS = (1, 2, (3, 1)), (0, 1, (2, 3)), (1, 2, (1, 3)), (1, 2, WIDTH)


def convolutions(kernel, stride):
    return [f"Conv2d({WIDTH}, {2 * WIDTH}, {kernel}, {stride}, {padding}, {dilation}, {groups}, "
            f"bias={groups != 2})"
            for padding, dilation, groups in itertools.product(PADDINGS, DILATIONS, GROUPS)]


def averages():
    windows = [f"AvgPool2d({kernel}, {stride}, {padding}, count_include_pad={counted})"
               for (kernel, padding), stride, counted in itertools.product(
                   ((1, 0), (2, 1), (3, 1), ((4, 3), (2, 1)), ((5, 2), (0, 1))),
                   (None, 1, 2, (3, 2)), (True, False))]
    return windows + [f"AdaptiveAvgPool2d({size})" for size in (1, 2, 7, 13, (3, 11), (20, 5))]


CASES = {f"conv_{kernel}_by_{stride}": convolutions(kernel, stride)
         for kernel in (1, 3, (2, 5)) for stride in STRIDES}
CASES["averages"] = averages()
CASES["maxima"] = [f"MaxPool2d({kernel}, {stride}, {padding})"
                   for (kernel, padding), stride in itertools.product(
                       ((1, 0), (2, 1), (3, 1), ((4, 3), (2, 1)), ((5, 2), (0, 1))), (None, 1, 2, (3, 2)))]


def pytorch(layer):
    """The same line, which is Python."""
    return eval(layer, vars(nn).copy())


class Side(nn.Module):
    """All layers on the same input, each with a head of its own; the sum of the heads."""

    def __init__(self, layers):
        super().__init__()
        self.stem = nn.Conv2d(2, WIDTH, 1)
        self.lines = list(layers)
        for number, layer in enumerate(layers):
            made = pytorch(layer)
            size = made(torch.zeros(1, WIDTH, *SIDES)).numel()
            setattr(self, f"w{number}", made)
            setattr(self, f"h{number}", nn.Linear(size, CLASSES))

    def text(self):
        lines = ["name: Side", f"input: [2, {SIDES[0]}, {SIDES[1]}]", f"classes: {CLASSES}",
                 "modules:", f"  stem: Conv2d(2, {WIDTH}, 1)"]
        forward = ["forward:", "  - z = stem(x)"]
        for number, layer in enumerate(self.lines):
            size = getattr(self, f"h{number}").in_features
            lines += [f'  w{number}: "{layer}"', f"  h{number}: Linear({size}, {CLASSES})"]
            before = "y + " if number > 0 else ""
            forward.append(f"  - y = {before}h{number}(flatten(w{number}(z), 1))")
        return "\n".join(lines + forward + ["  - output = y", "loss: cross_entropy(output, target)",
                                            ""])

    def forward(self, x):
        z = self.stem(x)
        return sum(getattr(self, f"h{number}")(getattr(self, f"w{number}")(z).flatten(1))
                   for number in range(len(self.lines)))


def results(model, x, targets):
    """(name, values) of the output, the loss and all gradients."""
    model.zero_grad()
    output = model(x)
    loss = F.cross_entropy(output.double(), targets)
    loss.backward()
    return [("output", output.detach()), ("loss", loss.detach())] + [
        (f"d({path})", parameter.grad.clone()) for path, parameter in model.named_parameters()]


def pairs(model, text, expected):
    """(name, layer, found, expected) of all that the program printed."""
    found, at = torch.from_numpy(numpy.frombuffer(text, dtype="<f4").astype("f8")), 0
    for what, values in expected:
        number = what[3:].partition(".")[0]
        yield (what, model.lines[int(number)] if number.isdigit() else "",
               found[at:at + values.numel()].view_as(values), values)
        at += values.numel()
    assert at == found.numel(), (at, found.numel())


class Windows(unittest.TestCase):
    def compare(self, what, found, expected):
        self.assertLessEqual(largest(found - expected), BOUND * largest(expected), what)
        self.worst = max(self.worst, largest(found - expected) / largest(expected))

    def check(self, name):
        torch.manual_seed(4)
        model = Side(CASES[name])
        x, targets = torch.randn(BATCH, 2, *SIDES), torch.randint(0, CLASSES, (BATCH,))
        printed = self.run_both(model, x, targets, "")
        expected = results(model.double(), x.double(), targets) # keeps f32 rounding out of the comparison
        self.worst = 0.0
        for text in printed:
            for what, layer, found, values in pairs(model, text, expected):
                self.compare(f"{what} {layer}", found, values)
        print(f"{name}: {len(model.lines)} layers within {self.worst:.1e}")

    def check_bf16(self, name):
        torch.manual_seed(4)
        model = Side(CASES[name]).bfloat16()
        x, targets = torch.randn(BATCH, 2, *SIDES).bfloat16(), torch.randint(0, CLASSES, (BATCH,))
        theirs = results(model, x, targets)
        printed = self.run_both(model.float(), x.float(), targets, "-bf16")
        exact = results(model.double(), x.double(), targets)
        errors = {what: largest(values.double() - values64) / largest(values64)
                  for (what, values), (_, values64) in zip(theirs, exact)}
        worst = 0.0
        for text in printed:
            for what, layer, found, values in pairs(model, text, exact):
                error, allowed = largest(found - values) / largest(values), 2 * max(errors[what], ROUNDING)
                self.assertLessEqual(error, allowed, f"{what} {layer}: PyTorch's error is {errors[what]:.1e}")
                worst = max(worst, error / allowed)
        print(f"{name} in bf16: {len(model.lines)} layers at most {worst:.2f} of what is allowed, "
              f"PyTorch's errors up to {max(errors.values()):.1e}")

    def run_both(self, model, x, targets, suffix):
        """What the program prints with each library of kernels."""
        with tempfile.TemporaryDirectory() as directory:
            model_file, weights, batch = (os.path.join(directory, part)
                                          for part in ("model.yaml", "weights", "batch"))
            with open(model_file, "w", encoding="utf-8") as file:
                file.write(model.text())
            write_safetensors(model, weights)
            with open(batch, "wb") as file:
                file.write(x.numpy().tobytes() + targets.numpy().astype("<i4").tobytes())
            return [run("dump_transformer", model_file, weights, batch, BATCH, 0, library + suffix)
                    for library in ("reference", "cpu")]


for case in CASES:
    setattr(Windows, f"test_{case}", lambda self, case=case: self.check(case))
    if case != "maxima": # rounding changes which element is the largest, and with it a gradient's place
        setattr(Windows, f"test_{case}_bf16", lambda self, case=case: self.check_bf16(case))

if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
