#!/usr/bin/env python3
"""scripts/pictures.py reproduces the pictures of docs/ from the tables and from a plan."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

sys.path.insert(0, os.path.dirname(__file__))
import harness

NAMES = ("architecture.svg", "step.svg")


class Pictures(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.mkdtemp(prefix="fsdpd-test-")
        cls.addClassCleanup(shutil.rmtree, cls.directory)
        subprocess.run([sys.executable, os.path.join(harness.SOURCE, "scripts/pictures.py"), harness.FSDPD,
                        cls.directory], check=True, timeout=harness.PATIENCE)

    def test_the_committed_pictures_are_current(self):
        for name in NAMES:
            with open(os.path.join(self.directory, name), encoding="utf-8") as file:
                made = file.read()
            with open(os.path.join(harness.SOURCE, "docs", name), encoding="utf-8") as file:
                self.assertEqual(file.read(), made, f"docs/{name} is out of date; run scripts/pictures.py build/fsdpd")

    def test_every_text_lies_inside_its_picture(self):
        for name in NAMES:
            root = xml.etree.ElementTree.parse(os.path.join(self.directory, name)).getroot()
            width, height = float(root.get("width")), float(root.get("height"))
            texts = [text for text in root.iter("{http://www.w3.org/2000/svg}text")]
            self.assertGreater(len(texts), 20)
            for text in texts:
                x, y, length = float(text.get("x")), float(text.get("y")), 5.5 * len(text.text)
                left = x - {"start": 0, "middle": length / 2, "end": length}[text.get("text-anchor")]
                self.assertTrue(0 < left and left + length < width and 0 < y < height, f"{name}: {text.text}")


if __name__ == "__main__":
    harness.main()
