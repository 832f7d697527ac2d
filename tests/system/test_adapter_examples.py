#!/usr/bin/env python3
"""examples/lora and examples/dpo, run as their READMEs print: adapters for peft, with the configuration and tensors that it
expects, whose training does what the READMEs say. Needs tokenizers."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness

harness.need("numpy", "tokenizers", "jinja2")


class AdapterExamples(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp(prefix="fsdpd-test-")
        cls.addClassCleanup(shutil.rmtree, cls.root, True)
        cls.daemon = harness.Daemon(2, data=cls.root)
        cls.addClassCleanup(cls.daemon.close)

    def run_as_printed(self, name):
        """What the command prints, and the adapter that it pulled."""
        with open(os.path.join(harness.SOURCE, "examples", name, "README.md"), encoding="utf-8") as file:
            command = re.search(r"^    (examples/\S+ DATA_ROOT)", file.read(), re.M).group(1)
        environment = dict(os.environ, PYTHON=sys.executable, FSDPD_ADDRESS=self.daemon.address,
                           PATH=f"{os.path.abspath(harness.BUILD)}:{os.environ['PATH']}", PYTHONDONTWRITEBYTECODE="1")
        result = subprocess.run(command.replace("DATA_ROOT", self.root), shell=True, cwd=harness.SOURCE, env=environment,
                                text=True, capture_output=True)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.job = self.daemon.json("list")[-1]["id"]
        adapter = os.path.join(self.root, self.job + "-adapter")
        with open(os.path.join(adapter, "adapter_config.json"), encoding="utf-8") as file:
            config = json.load(file)
        self.assertEqual((config["peft_type"], config["r"], config["lora_alpha"]), ("LORA", 4, 8))
        tensors, _ = harness.read_safetensors(os.path.join(adapter, "adapter_model.safetensors"))
        self.assertEqual(len(tensors), 2 * 2 * 7)  # A and B, of two layers with seven matrices each
        self.assertIn("base_model.model.model.layers.1.mlp.down_proj.lora_B.weight", tensors)
        return result.stdout

    def rows(self, kind):
        rows = csv.DictReader(self.daemon.ctl("metrics", self.job, "--csv").stdout.splitlines())
        return [row for row in rows if row["kind"] == kind]

    def test_lora(self):
        printed = self.run_as_printed("lora")
        self.assertIn("8192 elements are trained, 7.67 % of the model", printed)
        losses = [float(row["val_loss"]) for row in self.rows("validation")]
        self.assertEqual(len(losses), 3)
        self.assertLess(losses[-1], 0.9 * float(self.rows("step")[0]["loss"]))

    def test_preferences(self):
        printed = self.run_as_printed("dpo")
        rows = self.rows("step")
        self.assertGreater(float(rows[-1]["rewards_margins"]), float(rows[0]["rewards_margins"]) + 1)
        self.assertGreater(float(rows[-1]["rewards_accuracies"]), 0.9)
        self.assertIn("step,loss,rewards_chosen,rewards_rejected,rewards_accuracies,rewards_margins", printed)


if __name__ == "__main__":
    harness.main()
