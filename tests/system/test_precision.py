#!/usr/bin/env python3
"""bf16 and activation checkpointing end to end: the job learns the same digits, a pull gives f32,
checkpointing changes no bit, fsdpd accepts and reports CPU offload, and it refuses bad values."""

import os
import re
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness


class Precision(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = harness.Daemon()

    @classmethod
    def tearDownClass(cls):
        cls.daemon.close()

    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="fsdpd-test-")
        self.addCleanup(shutil.rmtree, self.directory)

    def train(self, *settings, epochs=1):
        """Trains: the output, the accuracy, and the tensors that a pull gives."""
        result = self.daemon.submit(f"train.epochs={epochs}", *settings, wait=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        job = self.daemon.json("list")[-1]["id"]
        correct, total = map(int, re.findall(r"Accuracy: (\d+)/(\d+)", result.stdout)[-1])
        path = os.path.join(self.directory, job + ".safetensors")
        pulled = self.daemon.ctl("pull", job, "-o", path)
        self.assertEqual(pulled.returncode, 0, pulled.stderr)
        tensors, _ = harness.read_safetensors(path)
        self.assertEqual({dtype for dtype, _, _ in tensors.values()}, {"F32"})
        return result.stdout + result.stderr, correct / total, tensors

    def test_bf16(self):
        _, full, _ = self.train(epochs=5)
        text, low, tensors = self.train("precision.param_dtype=bf16",
                                        "precision.reduce_dtype=bf16", epochs=5)
        print(f"accuracy {full} in f32, {low} in bf16")
        self.assertIn("bf16", text)
        self.assertLessEqual(abs(full - low), 0.05)
        # master weights, not rounded ones: bf16 has zeros in these bits
        raw = tensors["fc1.weight"][2]
        low_bytes = set(raw[0::4]) | set(raw[1::4])
        self.assertGreater(len(low_bytes), 200)

    def test_checkpointing(self):
        _, _, plain = self.train("fsdp.cpu_offload=true")
        text, _, checkpointed = self.train("fsdp.activation_checkpointing=[conv*, fc1]",
                                           "fsdp.cpu_offload=true")
        self.assertEqual(plain, checkpointed)
        self.assertIn("fsdp.cpu_offload has no effect on a CPU", text)

    def test_a_unit_in_f32(self):
        """One unit keeps computing in f32, and the plan shows it; fsdpd accepts its offload, and
        shows it."""
        settings = ("precision.param_dtype=bf16", "precision.reduce_dtype=bf16",
                    "fsdp.wrap.policy=units")
        _, low, _ = self.train(*settings, "fsdp.wrap.units=[[conv1, conv2], fc1]", epochs=3)
        text, mixed, tensors = self.train(
            *settings, "fsdp.wrap.units=[[conv1, conv2], {modules: fc1, param_dtype: f32, "
            "reduce_dtype: f32, cpu_offload: true}]", epochs=3)
        print(f"accuracy {low} in bf16, {mixed} with fc1 in f32")
        self.assertIn("1,179,776 parameters, in f32, reduced in f32, offloaded to the CPU", text)
        self.assertIn("cpu_offload of a unit has no effect on a CPU", text)
        self.assertLessEqual(abs(low - mixed), 0.05)
        self.assertIn("fc1.weight", tensors)

    def test_plans(self):
        def sent(*settings):
            arguments = ["plan", harness.JOB, "--set", f"data.dir={self.daemon.data}"]
            for setting in settings:
                arguments += ["--set", setting]
            plan = self.daemon.json(*arguments)
            return sum(int(entry["bytes"]) for entry in plan["collectives"]
                       if entry["kind"] != "reduce_stats")
        full = sent()
        both = sent("precision.param_dtype=bf16", "precision.reduce_dtype=bf16")
        gathers = sent("precision.param_dtype=bf16")
        self.assertEqual(2 * both, full)
        self.assertTrue(both < gathers < full)

    def test_refusals(self):
        for setting, word in (("precision.param_dtype=f16", "f32 or bf16"),
                              ("precision.param_type=bf16", "precision.param_dtype"),
                              ("precision.reduce_dtype=[bf16]", "a list"),
                              ("fsdp.cpu_offload=maybe", "true or false"),
                              ("fsdp.reshard_after_forward=3", "a divisor of workers (2)"),
                              ("fsdp.reshard_after_forward=half", "a number of ranks"),
                              ("fsdp.wrap={policy: units, units: [{modules: fc1, "
                               "param_dtype: f64}]}", "f32 or bf16")):
            result = self.daemon.ctl("submit", harness.JOB, "--set",
                                     f"data.dir={self.daemon.data}", "--set", setting)
            self.assertEqual(result.returncode, harness.USAGE, result.stderr)
            self.assertIn(word, result.stderr)


if __name__ == "__main__":
    harness.main()
