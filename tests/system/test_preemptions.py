#!/usr/bin/env python3
"""Jobs of different priorities that are submitted, preempted, drained and killed in a drawn order. FSDPD_PREEMPTIONS
is the number of orders; preemptions.py has a log."""

import os
import unittest

import harness
import preemptions

SEEDS = (3,)  # of five jobs, one of them elastic, with a killed coordinator
CALLED = (3,)  # workers of a job that is called


class Preempting(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        preemptions.Preemptions.setUpClass()

    @classmethod
    def tearDownClass(cls):
        preemptions.Preemptions.tearDownClass()

    def test_orders(self):
        number = int(os.environ.get("FSDPD_PREEMPTIONS", "0"))
        lines = [preemptions.run_seed(seed, called=range(1, 5) if number else CALLED)
                 for seed in (range(1, number + 1) if number else SEEDS)]
        preemptions.summarize(lines)


if __name__ == "__main__":
    harness.main()
