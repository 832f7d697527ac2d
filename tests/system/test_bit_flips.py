#!/usr/bin/env python3
"""One flipped bit in a checkpoint: a pull and a resumed job name the file; neither takes other
weights.

FSDPD_FLIPS flips for pulls, drawn from FSDPD_SEED; tests/engine/test_bit_flips.c flips more of
them, faster, without an fsdpd."""

import os
import random
import re
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness

FLIPS = int(os.environ.get("FSDPD_FLIPS", 60))
SEED = int(os.environ.get("FSDPD_SEED", 1))
SETTINGS = ("train.max_steps=120", "checkpoint.every_steps=5", "checkpoint.keep=0")


def read(path):
    with open(path, "rb") as file:
        return file.read()


def flip(path, at, bit):
    """Flips one bit; a second call restores it."""
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))


class BitFlips(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = harness.Daemon()

    @classmethod
    def tearDownClass(cls):
        cls.daemon.close()

    def pause(self):
        """Pauses the job with at least two checkpoints."""
        job = self.daemon.submit(*SETTINGS)
        self.daemon.wait_step(job, 6)
        self.daemon.json("pause", job)
        self.assertGreaterEqual(len(self.daemon.json("checkpoints", job)), 2)
        return job

    def test_pulls(self):
        directory = tempfile.mkdtemp(prefix="fsdpd-test-")
        self.addCleanup(shutil.rmtree, directory)
        job = self.pause()
        newest = self.daemon.json("checkpoints", job)[-1]
        files = [os.path.join(newest["path"], name) for name in sorted(os.listdir(newest["path"]))
                 if name != "reports.pb"]  # which a pull does not read
        self.assertEqual(len(files), 3)

        def pull(name):
            out = os.path.join(directory, name)
            return out, self.daemon.ctl("pull", job, "--checkpoint", str(newest["step"]), "-o", out)
        good, pulled = pull("good")
        self.assertEqual(pulled.returncode, 0, pulled.stderr)
        dice = random.Random(SEED)
        for number in range(FLIPS):
            file = files[number % len(files)]
            at, bit = dice.randrange(os.path.getsize(file)), dice.randrange(8)
            flip(file, at, bit)
            out, pulled = pull("bad")
            self.assertEqual(pulled.returncode, harness.FAILED, (file, at, bit, pulled.stderr))
            self.assertIn(file, pulled.stderr)
            self.assertFalse(os.path.exists(out))
            flip(file, at, bit)
        again, pulled = pull("again")
        self.assertEqual(pulled.returncode, 0, pulled.stderr)
        self.assertEqual(read(again), read(good))
        self.daemon.ctl("cancel", job)

    def test_jobs(self):
        """Changes a digit of the step, of the updates, of the epochs; a number of a parameter."""
        plain = self.daemon.submit("train.max_steps=120", wait=True)
        self.assertEqual(plain.returncode, 0, plain.stderr)
        expected = self.daemon.tensors(self.daemon.json("list")[-1]["id"])
        job = self.pause()
        for name, pattern in (("manifest.json", rb'"step": \d*(\d),'),
                              ("manifest.json", rb'"updates": \d*(\d),'),
                              ("manifest.json", rb'"epochs": \d*(\d),'),
                              ("rank-00001.safetensors", rb"(.)\Z")):
            listed = self.daemon.json("checkpoints", job)
            path = os.path.join(listed[-1]["path"], name)
            at = re.search(pattern, read(path), re.DOTALL).start(1)
            flip(path, at, 0)
            self.assertEqual(self.daemon.ctl("resume", job).returncode, 0)
            said = self.daemon.wait_state(job, "RUNNING", "FAILED")["reason"]["message"]
            self.assertIn(f"continuing from step {listed[-2]['step']};", said)
            self.assertIn(path, said)
            self.daemon.json("pause", job)
            if os.path.exists(path):  # the job has taken a later one, and needs one to fall back to
                flip(path, at, 0)
        self.assertEqual(self.daemon.ctl("resume", job).returncode, 0)
        shown = self.daemon.wait_state(job, "SUCCEEDED", "FAILED")
        self.assertEqual(shown["state"], "SUCCEEDED", shown["reason"])
        self.assertEqual(self.daemon.tensors(job), expected)


if __name__ == "__main__":
    harness.main()
