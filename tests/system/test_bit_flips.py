#!/usr/bin/env python3
"""One flipped bit in a checkpoint, or in the final weights: a pull and a resumed job name the file;
neither takes other weights.

FSDPD_FLIPS flips for pulls of each kind, drawn from FSDPD_SEED; tests/engine/test_bit_flips.c flips
more of them, faster, without an fsdpd."""

import json
import os
import random
import re
import shutil
import struct
import subprocess
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


def tensor_at(content, at):
    """The tensor that has this byte of a state_dict; None: the header."""
    size = 8 + struct.unpack("<Q", content[:8])[0]
    for name, entry in json.loads(content[8:size]).items():
        if name != "__metadata__" and size + entry["data_offsets"][0] <= at < size + entry["data_offsets"][1]:
            return name
    return None


def flipped(dice, kind, weights, sums):
    """A damaged copy of the weights and of their sums, and what the error must name."""
    header = 8 + struct.unpack("<Q", weights[:8])[0]
    weights, sums, good = bytearray(weights), bytearray(sums), weights
    if kind == "length":
        at = dice.randrange(len(weights))
        weights = weights[:at] if dice.randrange(2) else weights + bytes(1 + at % 4096)
        return weights, sums, str(len(good)) if weights else "is empty"
    if kind == "sums length":
        at = dice.randrange(len(sums))
        sums = sums[:at] if dice.randrange(2) else sums + bytes([at % 256])
        return weights, sums, ".sums is damaged"
    where = {"header": (weights, 0, header), "data": (weights, header, len(weights)),
             "sums": (sums, 0, len(sums))}
    changed, begin, end = where[kind]
    at = dice.randrange(begin, end)
    changed[at] ^= 1 << dice.randrange(8)
    if kind == "sums":
        return weights, sums, ".sums is damaged"
    return weights, sums, f'the tensor "{tensor_at(good, at)}"' if kind == "data" else "its header"


def put(path, content):
    with open(path, "wb") as file:
        file.write(content)


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

    def finish(self):
        """A job that ended with two checkpoints, and the path of its weights."""
        submitted = self.daemon.submit("train.max_steps=12", "checkpoint.every_steps=5", "checkpoint.keep=0",
                                       wait=True)
        self.assertEqual(submitted.returncode, 0, submitted.stderr)
        job = self.daemon.json("list")[-1]["id"]
        return job, os.path.join(self.daemon.root, "state/jobs", job, "state_dict.safetensors")

    def test_final_weights(self):
        job, path = self.finish()
        out = os.path.join(self.daemon.root, "final")
        weights, sums = read(path), read(path + ".sums")
        dice = random.Random(SEED)
        for number in range(FLIPS):
            kind = ("header", "data", "length", "sums", "data", "sums length")[number % 6]
            *damaged, named = flipped(dice, kind, weights, sums)
            put(path, damaged[0])
            put(path + ".sums", damaged[1])
            pulled = self.daemon.ctl("pull", job, "-o", out)
            what = (SEED, number, kind, pulled.stderr)
            self.assertEqual(pulled.returncode, harness.FAILED, what)
            self.assertIn(path, pulled.stderr, what)
            self.assertIn(named, pulled.stderr, what)
            self.assertFalse(os.path.exists(out), what)
        put(path, weights)
        os.unlink(path + ".sums")
        pulled = self.daemon.ctl("pull", job, "-o", out)
        self.assertEqual(pulled.returncode, harness.FAILED)
        self.assertIn(".sums is missing", pulled.stderr)
        put(path + ".sums", sums)
        pulled = self.daemon.ctl("pull", job, "-o", out)
        self.assertEqual(pulled.returncode, 0, pulled.stderr)
        self.assertEqual(read(out), weights)
        self.assert_common_tools(path)

    def assert_common_tools(self, path):
        """The loop that docs/durability.md shows proves the file, too, and names what it finds."""
        with open(os.path.join(os.path.dirname(__file__), "../../docs/durability.md"), encoding="utf-8") as file:
            loop = re.search(r"    (exec 3<.*?[.]sums)\n", file.read(), re.DOTALL).group(1)
        def run():
            shown = subprocess.run(["bash", "-c", loop], cwd=os.path.dirname(path), text=True, check=True,
                                   stdout=subprocess.PIPE)
            return shown.stdout
        self.assertEqual(run(), "")
        flip(path, os.path.getsize(path) - 1, 0)
        self.assertEqual(run(), "damaged: fc2.bias\n")
        flip(path, os.path.getsize(path) - 1, 0)

    def test_offers(self):
        """The error names the newest checkpoint that is whole, whatever became of later ones."""
        job, path = self.finish()
        listed = self.daemon.json("checkpoints", job)
        flip(path, os.path.getsize(path) - 1, 0)
        def pull(*options):
            return self.daemon.ctl("pull", job, "-o", os.path.join(self.daemon.root, "offer"), *options)
        for checkpoint in reversed(listed):
            step = str(checkpoint["step"])
            self.assertIn(f"its checkpoint of step {step} is whole: fsdpctl pull {job} --checkpoint {step}\n",
                          pull().stderr)
            self.assertEqual(pull("--checkpoint", step).returncode, 0)
            flip(os.path.join(checkpoint["path"], "rank-00000.safetensors"), 99, 0)
        self.assertIn("has no whole checkpoint either", pull().stderr)

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
