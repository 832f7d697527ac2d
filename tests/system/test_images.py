#!/usr/bin/env python3
"""Images of CIFAR-10's shape: every form of the same data gives the same curve, augmentation does not
depend on the number of workers, and a small network learns them. With MNIST's files gzipped or not,
the curve is the same."""

import gzip
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness

EXAMPLE = os.path.join(harness.SOURCE, "examples/cifar")
JOB = os.path.join(EXAMPLE, "job.yaml")


class Images(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp(prefix="fsdpd-test-")
        cls.addClassCleanup(shutil.rmtree, cls.root)
        subprocess.run([sys.executable, os.path.join(EXAMPLE, "draw.py"),
                        os.path.join(cls.root, "cifar"), "--npy", os.path.join(cls.root, "arrays")],
                       check=True)

    def setUp(self):
        self.daemon = harness.Daemon(data=self.root, arguments=["--threads", "1"])
        self.addCleanup(self.daemon.close)

    def train(self, *settings, job=JOB):
        """(step, loss) of all reports, and the job."""
        result = self.daemon.ctl("submit", job, *(f"--set={s}" for s in settings), "--wait",
                                 timeout=300)
        self.assertEqual(result.returncode, 0, result.stderr)
        identity = self.daemon.json("list")[-1]["id"]
        return self.daemon.losses(identity), self.daemon.show(identity)

    def test_forms_and_worlds(self):
        short = ("train.epochs=2", "train.log_interval=1", "train.max_steps=40", "save_model=false",
                 "optimizer.type=sgd", "optimizer.lr=0.05")
        binary, _ = self.train(*short)
        arrays, _ = self.train(*short, "data.dir=arrays")
        self.assertEqual(len(binary), 40)
        self.assertEqual(binary, arrays)
        one, _ = self.train(*short, "workers=1", "train.batch_size=64")
        for (step, a), (_, b) in zip(binary, one):
            self.assertAlmostEqual(a, b, delta=1e-5 * abs(b), msg=f"step {step}")
        plain, _ = self.train(*short, "data.augment.flip=false", "data.augment.crop_padding=0")
        self.assertNotEqual(binary[0], plain[0])

    def test_learns(self):
        losses, job = self.train()
        self.assertLess(losses[-1][1], losses[0][1] / 3)
        self.assertGreater(float(job["metrics"]["accuracy"]), 0.8)

    def test_gzip(self):
        digits = os.path.join(self.root, "digits")
        packed = os.path.join(self.root, "packed")
        harness.draw_digits(digits, train=500, test=100)
        os.mkdir(packed)
        for name in os.listdir(digits):
            with open(os.path.join(digits, name), "rb") as file, \
                    gzip.open(os.path.join(packed, name + ".gz"), "wb") as out:
                out.write(file.read())
        short = ("train.epochs=1", "train.log_interval=1", "save_model=false")
        whole, _ = self.train(*short, f"data.dir={digits}", job=harness.JOB)
        self.assertEqual(whole, self.train(*short, f"data.dir={packed}", job=harness.JOB)[0])


if __name__ == "__main__":
    harness.main()
