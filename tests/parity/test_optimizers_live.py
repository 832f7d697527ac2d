#!/usr/bin/env python3
"""tests/parity/muon.txt, adafactor.txt, optimizers.txt and blocks.txt are what the installed torch and
bitsandbytes give (make check-live), and jobs train as these do: Muon, Adafactor and AdamW in 8 bits by their
keys, on the tutorial's network, against one process on the same batches."""

import contextlib
import io
import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../system")]
import bitsandbytes
import harness
import make_adafactor_numbers
import make_block_numbers
import make_muon_numbers
import make_optimizer_numbers
import test_optimizers
import torch

RATE = 2e-4


def muon(model):
    """As the plan's default rule: the weight of fc1, for the head is fc2."""
    matrices = [model.fc1.weight]
    others = [value for value in model.parameters() if value is not model.fc1.weight]
    return Both(torch.optim.Muon(matrices, lr=RATE, weight_decay=0.1),
                torch.optim.AdamW(others, lr=RATE, weight_decay=0.01, eps=1e-3))


class Both:
    """Two optimizers as one."""

    def __init__(self, *each):
        self.each, self.param_groups = each, each[0].param_groups

    def zero_grad(self):
        for optimizer in self.each:
            optimizer.zero_grad()

    def step(self):
        for optimizer in self.each:
            optimizer.step()


# The optimizer, the job's settings; how far losses may be, and parameters after a step: Muon's iterations are
# in bf16 in torch; a gradient that is rounded otherwise may get the next of 256 codes.
CASES = {
    "muon": (muon, ["optimizer={type: muon, lr: %g, others: {lr: %g, eps: 1e-3}}" % (RATE, RATE)], 1e-3, 1e-3),
    "adafactor": (lambda model: torch.optim.Adafactor(model.parameters(), lr=1e-3),
                  ["optimizer={type: adafactor, lr: 1e-3}"], 1e-4, 1e-6),
    "adamw in 8 bits": (lambda model: bitsandbytes.optim.AdamW8bit(model.parameters(), lr=RATE, eps=1e-3,
                                                                   weight_decay=0.1),
                        ["optimizer={type: adamw, lr: %g, eps: 1e-3, weight_decay: 0.1, state_dtype: int8}" % RATE],
                        1e-3, 1e-6),
}


def made(maker):
    """The lines that it prints, but for comments."""
    if hasattr(maker, "numbers"):
        return [line for line in maker.numbers() if not line.startswith("#")]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        maker.main()
    return [line for line in out.getvalue().splitlines() if not line.startswith("#")]


class Numbers(unittest.TestCase):
    def compare(self, maker, name, bound, numbers=""):
        """Lines that begin with `numbers` hold numbers, within the bound; others are equal."""
        with open(os.path.join(HERE, name), encoding="utf-8") as file:
            kept = [line for line in file.read().splitlines() if not line.startswith("#")]
        found = made(maker)
        self.assertEqual(len(kept), len(found))
        for a, b in zip(kept, found):
            if not a.startswith(numbers):
                self.assertEqual(a, b)
                continue
            self.assertEqual(a.split()[0], b.split()[0])
            pairs = [(float(x), float(y)) for x, y in zip(a.split()[1:], b.split()[1:]) if x != y and x[-1].isdigit()]
            apart = sum((x - y) ** 2 for x, y in pairs)
            size = sum(float(x) ** 2 for x in a.split()[1:] if x[-1].isdigit())
            self.assertLessEqual(apart, bound ** 2 * size, a[:40])

    def test_blocks(self):
        """Codes and maps are equal; values are as near as another processor's rounding of sums lets them be."""
        self.compare(make_block_numbers, "blocks.txt", 1e-6, "value")

    def test_others(self):
        """Another processor rounds sums otherwise, which training moves apart as tests/engine/test_muon.c says."""
        self.compare(make_muon_numbers, "muon.txt", 5e-2)
        self.compare(make_adafactor_numbers, "adafactor.txt", 1e-4)
        self.compare(make_optimizer_numbers, "optimizers.txt", 1e-2)


class Jobs(test_optimizers.Optimizers):
    def daemon_of(self, case):
        return self.whole

    def test_cases(self):
        torch.set_num_threads(1)
        self.daemon = self.whole
        for case, (make_optimizer, settings, loss_bound, bound) in CASES.items():
            with self.subTest(case):
                test_optimizers.CASES[case] = make_optimizer, None, 1, None, settings
                expected = test_optimizers.train(None, self.daemon.data, case)
                rows, _ = self.run_job(test_optimizers.STEPS, settings)
                curve = test_optimizers.worst([rows[step + 1]["loss"] for step in range(test_optimizers.STEPS)],
                                              expected["losses"])
                _, first = self.run_job(1, settings)
                apart = max(((first[name] - value).norm() / value.norm()).item()
                            for name, value in expected["first"].items())
                print(f"{case}: losses within {curve:.1e}, parameters after a step within {apart:.1e}")
                self.assertLessEqual(curve, loss_bound)
                self.assertLessEqual(apart, bound)


if __name__ == "__main__":
    harness.main()
