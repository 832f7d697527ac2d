#!/usr/bin/env python3
"""tests/parity/schedules.txt is what the installed torch and transformers give (make check-live)."""

import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import make_schedule_numbers


def read(line):
    words, factors = line.split("\t")
    return words, [float(factor) for factor in factors.split()]


class Schedules(unittest.TestCase):
    def test_curves(self):
        with open(os.path.join(HERE, "schedules.txt"), encoding="utf-8") as file:
            kept = [read(line) for line in file if not line.startswith("#")]
        made = [read(line) for line in make_schedule_numbers.numbers() if not line.startswith("#")]
        self.assertEqual([words for words, _ in kept], [words for words, _ in made])
        for (words, expected), (_, found) in zip(kept, made):
            self.assertEqual(len(expected), len(found), words)
            for step, (a, b) in enumerate(zip(expected, found)):
                self.assertAlmostEqual(a, b, delta=1e-10 * abs(a) + 1e-12, msg=f"{words}: step {step}")


if __name__ == "__main__":
    unittest.main()
