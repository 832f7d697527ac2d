#!/usr/bin/env python3
"""Orders of all kinds to one job, interleaved, for 20 seconds; run orders.py by hand for longer."""

import unittest

import harness
import orders


class Orders(unittest.TestCase):
    def test_interleaved(self):
        self.assertEqual(orders.interleave(10, 12), [])

    def test_with_refused_connections(self):
        self.assertEqual(orders.interleave(10, 7, faults=True), [])


if __name__ == "__main__":
    harness.main()
