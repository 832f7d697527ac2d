#!/usr/bin/env python3
"""A short chaos with a fixed seed; run chaos.py for a longer one."""

import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import chaos
import harness


class Chaos(unittest.TestCase):
    def test_seed(self):
        self.assertEqual(chaos.chaos(20, 6), [])


if __name__ == "__main__":
    harness.main()
