#!/usr/bin/env python3
"""fsdpd-prepare makes of odd records (tests/parity/odd_records.py) what transformers and datasets make of them, or says that
it does not: the arrays of each have the digest in tests/parity/prepare.json (tests/parity/test_prepare_live.py)."""

import contextlib
import hashlib
import io
import json
import os
import random
import shutil
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../parity"))
sys.path.insert(0, os.path.dirname(__file__))
import harness
import odd_records

harness.need("pyarrow", "PIL")
from test_prepare import NAMED, NUMBERS, Prepare
import numpy
from test_published_templates import FAMILIES

from fsdpd_prepare.main import main

TEMPLATES = {**{name: template for name, (template, *_) in FAMILIES.items()}, **odd_records.ODD}
for file_name in sorted(os.listdir(NAMED)):
    with open(os.path.join(NAMED, file_name), encoding="utf-8") as template_file:
        TEMPLATES[file_name] = template_file.read()


def digest(arrays):
    return hashlib.sha256(json.dumps(arrays, sort_keys=True).encode()).hexdigest()[:16]


class Odd(Prepare):
    COUNT, MORE = odd_records.SAMPLE, odd_records.MORE_SAMPLE

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        with open(os.path.join(cls.tokenizer, "tokenizer_config.json"), "w", encoding="utf-8") as file:
            json.dump({"bos_token": "<s>", "eos_token": "</s>", "pad_token": "[INST]"}, file)

    def found(self, kind, path, arguments, template):
        """The arrays of all records; None if one of them is refused or malformed, and why."""
        if kind in ("chat", "preference"):
            arguments = [*arguments, "--template", odd_records.write(self.root, "odd.jinja", template)]
        output, said = self.path("odd"), io.StringIO()
        shutil.rmtree(output, ignore_errors=True)
        shutil.rmtree(output + ".partial", ignore_errors=True)
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            code = main([kind, *([path] if isinstance(path, str) else path), "-o", output, "--validation", "0", "--processes", "1",
                         "--strict", *([] if kind == "images" else ["--tokenizer", self.tokenizer]), *(["--field", "anchor,positive"] if kind == "pairs" else []), *arguments])
        if code:
            return None, said.getvalue()
        with open(os.path.join(output, "dataset.json"), encoding="utf-8") as file:
            root = json.load(file)
        arrays = {name: numpy.load(os.path.join(output, entry["file"])).tolist()
                  for name, entry in root["splits"]["train"].items()}
        return {**arrays, "names": root["origin"].get("names"), "classes": root.get("classes")}, ""

    def compare(self, number, found, wrong, *case):
        expected = NUMBERS["odd"][number] if number < odd_records.COUNT else NUMBERS["more"][number - odd_records.COUNT]
        self.assertEqual(found and digest(found), expected, wrong)

    def test_odd_records(self):
        refused = 0
        for number in range(self.COUNT):
            kind, name, text, arguments = odd_records.case(number)
            template = TEMPLATES[random.Random(number).choice(sorted(TEMPLATES))]
            path = odd_records.write(self.root, name, text)
            found, wrong = self.found(kind, path, arguments, template)
            refused += found is None
            with self.subTest(number=number, kind=kind, arguments=arguments, text=text):
                self.compare(number, found, wrong, kind, path, arguments, template)
        print(f"{self.COUNT} odd records, of which {refused} are refused by name")

    def test_odd_files(self):
        """Pictures, Parquet and Arrow, and several files."""
        refused = 0
        for number in range(odd_records.COUNT, odd_records.COUNT + self.MORE):
            kind, sources, arguments = odd_records.more_case(number, self.path(f"odd-{number}"))
            with self.subTest(number=number, kind=kind, sources=sources, arguments=arguments):
                found, wrong = self.found(kind, sources, arguments, None)
                refused += found is None
                self.compare(number, found, wrong, kind, sources, arguments, None)
        print(f"{self.MORE} odd files, of which {refused} are refused by name")


if __name__ == "__main__":
    harness.main()
