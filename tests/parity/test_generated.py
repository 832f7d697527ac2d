#!/usr/bin/env python3
"""Sequences that are continued greedily, with a cache of keys and values, against transformers'
generate (make_generated_numbers.py): 64 tokens after prompts of unequal length, for families with
learned and rotary positions, scaled, partial and interleaved ones, ALiBi, grouped heads, soft caps
and windows. Needs numpy."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path[:0] = [os.path.dirname(__file__), os.path.join(os.path.dirname(__file__), "../system")]
import harness
import numpy
import family_numbers as numbers
import generated_cases as cases

BOUND = 1e-4  # of logits
GENERATE = os.path.join(harness.BUILD, "tests/parity/generate")
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "generated.json"), encoding="utf-8") as numbers_file:
    RECORDS = json.load(numbers_file)


class Generated(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="fsdpd-test-")
        self.addCleanup(shutil.rmtree, self.root, True)

    def generate(self, record, world):
        """The tokens and logits of all prompts."""
        directory = os.path.realpath(os.path.join(self.root, "model"))
        numbers.write_checkpoint(directory, record)
        prompts = ";".join(",".join(map(str, prompt)) for prompt in cases.PROMPTS)
        result = subprocess.run([GENERATE, directory, prompts, str(cases.TOKENS), str(cases.CONTEXT), str(world)],
                                capture_output=True)
        self.assertEqual(result.returncode, 0, result.stderr.decode())
        words = len(cases.PROMPTS) * cases.TOKENS
        tokens = numpy.frombuffer(result.stdout[:4 * words], "<i4").reshape(-1, cases.TOKENS)
        return tokens, numpy.frombuffer(result.stdout[4 * words:], "<f4").reshape(*tokens.shape, -1)

    def test_there_are_numbers_of_each_case(self):
        self.assertEqual(sorted(RECORDS), sorted([*cases.NAMES, "versions"]))

    def test_tokens_and_logits(self):
        reached = 0
        for index, name in enumerate(cases.NAMES):
            record, worst = RECORDS[name], 0
            tokens, logits = self.generate(record, 1 + index % 2)
            with self.subTest(name):
                for own, values, expected in zip(tokens, logits, record["continued"]):
                    close = expected["close"]
                    self.assertEqual(own[:close].tolist(), expected["tokens"][:close])
                    if own.tolist() == expected["tokens"]:
                        reached += 1
                        worst = max(worst, numbers.distance("logits", values, expected["logits"]))
                print(f"{name}: logits within {worst:.1e}")
                self.assertLessEqual(worst, BOUND)
        print(f"{reached} of {len(cases.NAMES) * len(cases.PROMPTS)} reach {cases.TOKENS} tokens")
        self.assertGreaterEqual(reached, 0.9 * len(cases.NAMES) * len(cases.PROMPTS))


if __name__ == "__main__":
    unittest.main(verbosity=2)
