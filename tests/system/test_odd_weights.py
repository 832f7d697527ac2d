#!/usr/bin/env python3
"""Damaged and odd directories of weights (tests/parity/odd_weights.py) are read as transformers reads them, or refused by name:
the losses are those in tests/parity/odd_weights.json, which tests/parity/test_weights_live.py writes."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path[:0] = [os.path.join(os.path.dirname(__file__), "../parity"), os.path.dirname(__file__)]
import harness
import numpy
import family_cases as cases
import family_numbers as numbers
import odd_weights

BOUND = 1e-5  # of a loss
DUMP = os.path.join(harness.BUILD, "tests/parity/dump_transformer")
with open(os.path.join(os.path.dirname(os.path.abspath(odd_weights.__file__)), "odd_weights.json"), encoding="utf-8") as stream:
    NUMBERS = json.load(stream)["losses"]


class OddWeights(unittest.TestCase):
    COUNT = odd_weights.SAMPLE

    @classmethod
    def setUpClass(cls):
        cls.root = os.path.realpath(tempfile.mkdtemp(prefix="fsdpd-test-"))
        cls.addClassCleanup(shutil.rmtree, cls.root, True)
        cls.records = {model: numbers.load(cases.family_of(model.partition("/")[2]))[model] for model in odd_weights.MODELS}
        cls.batches = {}
        for model in odd_weights.MODELS:
            kind, _, name = model.partition("/")
            if kind == "head":
                batch = cases.batch_bytes(*cases.draw_documents(name, cases.HEAD_BATCH, 1)[:2])
            else:
                batch = cases.batch_bytes(*cases.draw_inputs(name))
            cls.batches[model] = os.path.join(cls.root, f"batch-{len(cls.batches)}")
            with open(cls.batches[model], "wb") as file:
                file.write(batch)

    def found(self, directory, path):
        """The loss and what is noted; None and the message of a refusal."""
        kind, _, name = directory.model.partition("/")
        rows = cases.HEAD_BATCH if kind == "head" else cases.BATCH
        result = subprocess.run([DUMP, path, "-", self.batches[directory.model], str(rows),
                                 "0" if cases.is_picture(name) else str(cases.CONTEXT), "cpu"], capture_output=True)
        said = result.stderr.decode(errors="replace")
        self.assertIn(result.returncode, (0, 1), said)
        if result.returncode:
            return None, said[said.index("dump_transformer: "):]
        logits = numpy.prod(directory.record["logits"]["shape"])
        return float(numpy.frombuffer(result.stdout, "<f4")[logits]), "".join(
            line for line in said.splitlines(True) if line.startswith("note: "))

    def compare(self, number, directory, path, loss, said):
        expected = NUMBERS[number]
        self.assertEqual(loss is None, expected is None, said)
        if loss is not None:
            self.assertLessEqual(abs(loss - expected), BOUND * abs(expected), said)

    def test_odd_weights(self):
        refused = 0
        for number in range(self.COUNT):
            directory = odd_weights.Directory(number, self.records)
            path = os.path.join(self.root, f"odd-{number}")
            directory.write(path)
            with self.subTest(number=number, model=directory.model, changes=directory.done):
                loss, said = self.found(directory, path)
                refused += loss is None
                if loss is None:
                    self.assertTrue(any(word in said for word in directory.about if word),
                                    f"{said}names none of {directory.about}")
                self.compare(number, directory, path, loss, said)
        print(f"{self.COUNT} odd directories of weights, of which {refused} are refused by name")


if __name__ == "__main__":
    harness.main()
