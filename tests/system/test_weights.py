#!/usr/bin/env python3
"""model.weights: a job that begins with another job's weights, and files that are refused."""

import json
import os
import struct
import sys
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness

# Nothing changes: a pull returns the weights that were read.
KEEP = ("optimizer.type=sgd", "optimizer.lr=0", "train.max_steps=1")


def as_bf16(raw):
    """Rounded to nearest, ties to even, as a float again."""
    words = struct.unpack(f"<{len(raw) // 4}I", raw)
    return struct.pack(f"<{len(words)}I", *((word + 0x7fff + (word >> 16 & 1)) & 0xffff0000
                                            for word in words))


class Weights(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.faults = harness.own_faults(cls.addClassCleanup)
        cls.daemon = harness.Daemon(environment=cls.faults.environment)
        cls.addClassCleanup(cls.daemon.close)

    def path(self, name):
        return os.path.join(self.daemon.data, f"{self.id().rsplit('.', 1)[1]}-{name}")

    def run_job(self, *settings):
        result = self.daemon.submit(*settings, wait=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        return self.daemon.json("list")[-1]["id"]

    def pull(self, job, name, *arguments):
        pulled = self.daemon.ctl("pull", job, "-o", self.path(name), *arguments)
        self.assertEqual(pulled.returncode, 0, pulled.stderr)
        return self.path(name)

    def refuse(self, code, words, path, *settings):
        before = len(self.daemon.json("list"))
        refused = self.daemon.ctl("submit", harness.JOB, "--set", f"data.dir={self.daemon.data}",
                                  "--set", f"model.weights={path}")
        self.assertEqual(refused.returncode, code, refused.stderr)
        for word in words:
            self.assertIn(word, refused.stderr)
        self.assertEqual(len(self.daemon.json("list")), before)

    def test_from_a_checkpoint(self):
        """Another job's weights at a step, bit for bit, whatever the layout of either job."""
        first = self.run_job("train.max_steps=6", "checkpoint.every_steps=3", "checkpoint.keep=0")
        plain = self.pull(first, "3", "--checkpoint", "3")
        tensors, _ = harness.read_safetensors(plain)
        self.assertNotEqual(tensors, self.daemon.tensors(first))
        for settings in (("fsdp.strategy=no_shard",), ("fsdp.wrap.policy=none",),
                         ("workers=1", "train.seed=5")):
            job = self.run_job(f"model.weights={plain}", *KEEP, *settings)
            self.assertEqual(self.daemon.tensors(job), tensors)
        # By a path below the data root, too; the record names the source of the initial weights.
        job = self.run_job(f"model.weights={os.path.basename(plain)}", *KEEP)
        self.assertEqual(self.daemon.tensors(job), tensors)
        self.assertEqual(self.daemon.show(job)["spec"]["model"]["weights"], os.path.basename(plain))
        # Step 0, a fresh optimizer, its own settings: the loss continues from its last value.
        final = self.pull(first, "final")
        tuned = self.run_job(f"model.weights={final}", "train.max_steps=3", "train.log_interval=1")
        drawn = self.run_job("train.max_steps=3", "train.log_interval=1")
        self.assertEqual([step for step, _ in self.daemon.losses(tuned)], [1, 2, 3])
        self.assertLess(self.daemon.losses(tuned)[0][1], self.daemon.losses(drawn)[0][1])

    def test_rounded(self):
        first = self.run_job("train.max_steps=2")
        job = self.run_job(f"model.weights={self.pull(first, 'bf16', '--dtype', 'bf16')}", *KEEP)
        self.assertEqual(self.daemon.tensors(job),
                         {name: (dtype, shape, as_bf16(raw))
                          for name, (dtype, shape, raw) in self.daemon.tensors(first).items()})

    def test_refused(self):
        plain = self.pull(self.run_job("train.max_steps=1"), "plain")
        self.refuse(harness.NOT_FOUND, ["model.weights", "nowhere"], self.path("nowhere"))
        self.refuse(harness.NOT_PERMITTED, ["model.weights", "outside the root"], "/etc/passwd")
        with open(plain, "rb") as file:
            whole = file.read()
        for name, content, words in (
                ("cut", whole[:-4], ["cut", "safetensors:"]),
                ("empty", b"", ["empty", "safetensors:"]),
                ("text", b"x" * 100, ["text", "safetensors:"]),
                ("renamed", whole.replace(b'"fc1.bias"', b'"fc9.bias"'),
                 ["renamed", "1 missing (fc1.bias)", "the model does not have (fc9.bias)"])):
            with open(self.path(name), "wb") as file:
                file.write(content)
            self.refuse(harness.FAILED, words, self.path(name))
        os.mkdir(self.path("directory"))
        self.refuse(harness.FAILED, ["is not a regular file"], self.path("directory"))
        os.symlink("/etc/passwd", self.path("link"))
        self.refuse(harness.NOT_PERMITTED, ["outside the root"], self.path("link"))

    def test_not_finite(self):
        """Whichever worker reads it, the job ends before its first step, and names the tensor."""
        with open(self.pull(self.run_job("train.max_steps=1"), "whole"), "rb") as file:
            whole = file.read()
        header = json.loads(whole[8:8 + struct.unpack("<Q", whole[:8])[0]])
        for name, bits, words in (("conv1.weight", 0x7fc00000, "NaN"), ("fc2.weight", 0xff800000, "infinite")):
            last = len(whole) - max(end for _, end in (tensor["data_offsets"] for key, tensor in header.items()
                                                       if key != "__metadata__")) + header[name]["data_offsets"][1] - 4
            with open(self.path("broken"), "wb") as file:
                file.write(whole[:last] + struct.pack("<I", bits) + whole[last + 4:])
            job = self.daemon.submit(f"model.weights={self.path('broken')}", *KEEP)
            shown = self.daemon.wait_state(job, "SUCCEEDED", "FAILED")
            self.assertEqual((shown["state"], shown["step"]), ("FAILED", 0), shown["reason"])
            self.assertRegex(shown["reason"]["message"], rf"broken: element \d+ of tensor {name} is {words}: ")

    def test_gone_before_it_starts(self):
        plain = self.pull(self.run_job("train.max_steps=1"), "plain")
        held = self.daemon.ctl("submit", harness.JOB, "--hold", "--set", f"data.dir={self.daemon.data}",
                               "--set", f"model.weights={plain}")
        self.assertEqual(held.returncode, 0, held.stderr)
        job = held.stdout.strip()
        os.unlink(plain)
        self.assertEqual(self.daemon.ctl("release", job).returncode, 0)
        shown = self.daemon.wait_state(job, "FAILED")
        self.assertIn(plain, shown["reason"]["message"])
        self.assertIn("model.weights", shown["reason"]["message"])

    def test_resumed(self):
        """A checkpoint of its own overrides the file, which is no longer needed."""
        plain = self.pull(self.run_job("train.max_steps=1"), "plain")
        settings = (f"model.weights={plain}", "train.max_steps=40", "checkpoint.every_steps=5")
        whole = self.run_job(*settings)
        self.faults.hold_checkpoint()  # so that it does not end before
        job = self.daemon.submit(*settings)
        self.daemon.wait_step(job, 2)
        pause = self.daemon.spawn("pause", job)
        self.daemon.wait_for(lambda: self.daemon.show(job)["reason"]["code"] == "PAUSING", 60, "the order")
        self.faults.clear()
        _, errors = pause.communicate(timeout=harness.PATIENCE)
        self.assertEqual(pause.returncode, 0, errors)
        os.unlink(plain)
        self.assertEqual(self.daemon.ctl("resume", job).returncode, 0)
        shown = self.daemon.wait_state(job, "SUCCEEDED", "FAILED")
        self.assertEqual(shown["state"], "SUCCEEDED", shown["reason"])
        self.assertEqual(self.daemon.tensors(job), self.daemon.tensors(whole))


if __name__ == "__main__":
    harness.main()
