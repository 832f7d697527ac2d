#!/usr/bin/env python3
"""The memory of a worker's process: the plan's rows for what lies outside of the arenas, against the
measured peak of the resident set."""

import array
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness

GPT2 = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 128, "n_layer": 4,
        "n_head": 4, "n_positions": 1024, "vocab_size": 256, "activation_function": "gelu_new",
        "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
GPT_JOB = """name: gpt
model: {hf: gpt}
data: {format: tokens, path: tokens.bin, encoding: uint16, context: 1024}
train: {max_steps: 3, batch_size: 1, log_interval: 1, evaluate: false}
optimizer: {type: adamw, lr: 1e-4}
workers: 2
"""


def is_sanitized():
    with open(os.path.join(harness.BUILD, "config.log")) as log:
        return "-fsanitize=" in log.read()


class Resident(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="fsdpd-test-")
        self.addCleanup(shutil.rmtree, self.root)

    def run_job(self, path, *settings):
        """The job after its end, what `show` prints, and its report."""
        with harness.Daemon(data=self.root, arguments=["--threads", "1"]) as daemon:
            result = daemon.ctl("submit", path, *(f"--set={s}" for s in settings), "--wait")
            self.assertEqual(result.returncode, 0, result.stderr)
            job = daemon.show(daemon.json("list")[0]["id"])
            shown = daemon.ctl("show", job["id"]).stdout
            page = os.path.join(self.root, "report.html")
            self.assertEqual(daemon.ctl("report", job["id"], "-o", page).returncode, 0)
            with open(page) as file:
                return job, shown, file.read()

    def check(self, job, shown, page, tolerance):
        plan, metrics = job["plan"], job["metrics"]
        planned, measured = int(plan["resident_bytes"]), int(metrics["resident_peak_bytes"])
        rows = {row["name"]: int(row["bytes"]) for row in plan["outside"]}
        self.assertEqual(planned, int(plan["peak_bytes"]) + sum(rows.values()))
        self.assertLessEqual({"code", "libraries", "batches ahead", "shared memory"}, set(rows))
        self.assertGreater(measured, int(metrics["memory_peak_bytes"]))
        self.assertIn("of the whole process", shown)
        for words in ("planned for the process", "measured of the process"):
            self.assertIn(words, page)
        if not is_sanitized():
            self.assertAlmostEqual(measured / planned, 1, delta=tolerance, msg=str(rows))
            self.assertLess(measured / planned, 1.05 if int(plan["peak_bytes"]) > 100e6 else 1.1, rows)

    def test_images(self):
        """The set has as many samples as MNIST: held decoded, it would be 47 MB."""
        harness.draw_digits(self.root, train=60000, test=1000)
        job, shown, page = self.run_job(harness.JOB, f"data.dir={self.root}", "train.epochs=1",
                                        "train.max_steps=30")
        self.check(job, shown, page, 0.2)
        rows = {row["name"]: int(row["bytes"]) for row in job["plan"]["outside"]}
        self.assertEqual(rows["order of samples"], 4 * (60000 + 30000 + 1000 + 500))
        self.assertEqual(rows["batches ahead"], 2 * 4 * 64 * (784 + 1) * 4)

    def check_sixth_job(self, *settings):
        harness.draw_digits(self.root)
        with harness.Daemon(data=self.root, arguments=["--threads", "1"]) as daemon:
            for _ in range(6):
                result = daemon.ctl("submit", harness.JOB, f"--set=data.dir={self.root}", "--set=train.epochs=1",
                                    "--set=train.max_steps=10", *settings, "--wait")
                self.assertEqual(result.returncode, 0, result.stderr)
            job = daemon.show(daemon.json("list")[-1]["id"])
        planned, measured = int(job["plan"]["resident_bytes"]), int(job["metrics"]["resident_peak_bytes"])
        self.assertAlmostEqual(measured / planned, 1, delta=0.2)

    @unittest.skipIf(is_sanitized(), "the sanitizers keep freed memory")
    def test_the_sixth_job_of_a_worker_needs_no_more_than_the_plan(self):
        """What a job's end frees, with its final weights, does not stay in the process."""
        self.check_sixth_job()

    @unittest.skipIf(is_sanitized(), "the sanitizers keep freed memory")
    def test_arenas_that_stay_are_the_next_job_s(self):
        """Jobs that save nothing leave their arenas to the next, which has no others."""
        self.check_sixth_job("--set=save_model=false")

    def test_more_samples_take_no_more_memory(self):
        """Except four bytes for a sample's place in the order: the pixels of the larger set are 45 MB
        more."""
        peaks = []
        for samples in (2000, 60000):
            data = os.path.join(self.root, str(samples))
            os.mkdir(data)
            harness.draw_digits(data, train=samples, test=1000)
            job, _, _ = self.run_job(harness.JOB, f"data.dir={data}", "train.epochs=1",
                                     "train.max_steps=10", "save_model=false")
            peaks.append(int(job["metrics"]["resident_peak_bytes"]))
        self.assertLess(peaks[1] - peaks[0], 5e6)

    def test_tokens(self):
        draw = random.Random(1)
        with open(os.path.join(self.root, "tokens.bin"), "wb") as file:
            array.array("H", (draw.randrange(256) for _ in range(20000))).tofile(file)
        os.mkdir(os.path.join(self.root, "gpt"))
        with open(os.path.join(self.root, "gpt/config.json"), "w") as file:
            json.dump(GPT2, file)
        path = os.path.join(self.root, "job.yaml")
        with open(path, "w") as file:
            file.write(GPT_JOB)
        self.check(*self.run_job(path), 0.1)

    def test_admission_counts_it(self):
        """A job whose arenas fit, but not with the process around them, is refused."""
        harness.draw_digits(self.root)
        profile = os.path.join(self.root, "profile.yaml")
        command = [harness.FSDPD, "plan", harness.JOB, "--data-root", self.root, "--set",
                   f"data.dir={self.root}"]
        plan = json.loads(subprocess.run([*command, "--profile", "cpu", "-o", "json"], check=True,
                                         stdout=subprocess.PIPE).stdout)
        arenas, whole = int(plan["peak_bytes"]), int(plan["resident_bytes"])
        for memory, code in ((whole + 1000, 0), ((arenas + whole) // 2, 10)):
            with open(profile, "w") as file:
                file.write(f"name: small\nlike: cpu\nworld: 2\nmemory: {memory}\n")
            result = subprocess.run([*command, "--profile", profile], text=True,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.assertEqual(result.returncode, code, result.stderr)
        self.assertIn("outside of it", result.stderr)


if __name__ == "__main__":
    harness.main()
