#!/usr/bin/env python3
"""Checkpoints of a running job: by hand, by its settings, kept, listed, on a full disk,
interrupted."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness


def entries(folder):
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def blocks_sha256(path):
    """The size and the checksum of a checkpoint's file: the SHA-256 over its blocks' SHA-256."""
    size, blocks = 0, hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            size += len(block)
            blocks.update(hashlib.sha256(block).digest())
    return size, blocks.hexdigest()


class Checkpoint(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = harness.Daemon()

    @classmethod
    def tearDownClass(cls):
        cls.daemon.close()

    def folder(self, job):
        return os.path.realpath(os.path.join(self.daemon.root, "state/jobs", job, "checkpoints"))

    def test_by_hand(self):
        job = self.daemon.submit("train.epochs=100000", "checkpoint.keep=2")
        self.daemon.wait_step(job, 3)
        self.assertEqual(self.daemon.json("checkpoints", job), [])
        steps = []
        for _ in range(3):
            taken = self.daemon.json("checkpoint", job)
            steps.append(int(taken["step"]))
            self.assertEqual(taken["world"], 2)
            self.assertEqual(os.path.dirname(taken["path"]), self.folder(job))
            # Unacknowledged metrics may be there, too.
            files = [name for name in entries(taken["path"]) if name != "reports.pb"]
            self.assertEqual(files, ["manifest.json", "rank-00000.safetensors",
                                     "rank-00001.safetensors"])
            sizes = [os.path.getsize(os.path.join(taken["path"], name)) for name in files[1:]]
            self.assertEqual(int(taken["bytes"]), sum(sizes))
            self.daemon.wait_step(job, steps[-1] + 1)
        self.assertEqual(steps, sorted(set(steps)))
        listed = self.daemon.json("checkpoints", job)
        self.assertEqual([int(entry["step"]) for entry in listed], steps[1:])  # keep: 2
        self.assertEqual(entries(self.folder(job)), [f"step-{step:012}" for step in steps[1:]])
        text = self.daemon.ctl("checkpoints", job).stdout
        self.assertIn(listed[0]["path"], text)
        plain = self.daemon.ctl("checkpoint", job)
        self.assertEqual(plain.returncode, 0, plain.stderr)
        self.assertIn("checkpoint of step", plain.stdout)

        # The manifest lists every file.
        newest = self.daemon.json("checkpoints", job)[-1]
        with open(os.path.join(newest["path"], "manifest.json")) as file:
            manifest = json.load(file)
        self.assertEqual(manifest["progress"]["step"], int(newest["step"]))
        # It has the checksums of all files, and of its own text up to the last member.
        with open(os.path.join(newest["path"], "manifest.json"), "rb") as file:
            text = file.read()
        self.assertEqual(list(manifest)[-1], "sha256")
        self.assertEqual(manifest["sha256"],
                         hashlib.sha256(text[:text.rindex(b',\n "sha256"')]).hexdigest())
        for entry in manifest["files"] + [manifest[key] for key in manifest if key == "reports"]:
            self.assertEqual(blocks_sha256(os.path.join(newest["path"], entry["name"])),
                             (entry["bytes"], entry["blocks_sha256"]))
        found = {}
        for number, unit in enumerate(manifest["units"]):
            ranks = [harness.read_safetensors(os.path.join(
                newest["path"], f"rank-{rank:05}.safetensors"))[0]
                for rank in range(unit["first_rank"], unit["first_rank"] + unit["shard_world"])]
            flat = b"".join(rank[f"unit.{number}.parameters"][2] for rank in ranks)
            self.assertEqual(len(flat), 4 * unit["shard"] * unit["shard_world"])
            for parameter in unit["parameters"]:
                begin = 4 * parameter["offset"]
                found[parameter["name"]] = flat[begin:begin + 4 * parameter["elements"]]
        self.daemon.ctl("cancel", job)
        self.daemon.wait_state(job, "CANCELLED")
        listed = [event["checkpoint"] for event in self.daemon.events(job) if "checkpoint" in event]
        self.assertEqual(len(listed), 4)
        self.assertEqual(set(found), {
            "conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias", "fc1.weight", "fc1.bias",
            "fc2.weight", "fc2.bias"})

    def test_by_settings(self):
        result = self.daemon.submit("train.max_steps=20", "checkpoint.every_steps=6",
                                    "checkpoint.every_epochs=1", "checkpoint.keep=0", wait=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("checkpoint of step 12", result.stdout)
        job = self.daemon.json("list")[-1]["id"]
        steps = [int(entry["step"]) for entry in self.daemon.json("checkpoints", job)]
        # 2,000 digits, two ranks, 64 at a time: 16 steps per epoch
        self.assertEqual(steps, [6, 12, 16, 18, 20])
        self.assertEqual(entries(self.folder(job)), [f"step-{step:012}" for step in steps])
        refused = self.daemon.ctl("checkpoint", job)
        self.assertEqual(refused.returncode, harness.CONFLICT)
        self.assertIn("is over", refused.stderr)

    def test_directory(self):
        shared = os.path.join(self.daemon.data, "shared")
        os.mkdir(shared)
        result = self.daemon.submit("train.max_steps=4", "checkpoint.every_steps=4",
                                    f"checkpoint.directory={shared}", wait=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        job = self.daemon.json("list")[-1]["id"]
        path = self.daemon.json("checkpoints", job)[0]["path"]
        submitted = harness.seconds(self.daemon.json("show", job)["submit_time"])
        run = f"{job}@{round(submitted * 1000)}"
        self.assertEqual(path, os.path.join(os.path.realpath(shared), run, "step-000000000004"))
        forgotten = self.daemon.ctl("forget", job)
        self.assertEqual(forgotten.returncode, 0, forgotten.stderr)
        self.daemon.wait_for(lambda: os.listdir(shared) == [], 20, "the checkpoints are gone")
        for directory, words in ((self.daemon.root, "outside"), ("shared/../..", "outside"),
                                 ("missing", "cannot resolve")):
            refused = self.daemon.ctl(
                "submit", harness.JOB, "--set", f"data.dir={self.daemon.data}",
                "--set", f"checkpoint.directory={directory}")
            self.assertGreater(refused.returncode, 0)
            self.assertIn("checkpoint.directory", refused.stderr)
            self.assertIn(words, refused.stderr)

    def test_refused(self):
        missing = self.daemon.ctl("checkpoint", "nobody-1")
        self.assertEqual(missing.returncode, harness.NOT_FOUND)
        self.assertEqual(self.daemon.ctl("checkpoints", "nobody-1").returncode, harness.NOT_FOUND)
        queued = self.daemon.submit("workers=5")
        refused = self.daemon.ctl("checkpoint", queued)
        self.assertEqual(refused.returncode, harness.CONFLICT)
        self.assertIn("QUEUED", refused.stderr)
        self.daemon.ctl("cancel", queued)


class FullDisk(unittest.TestCase):
    """A directory of a few hundred kilobytes, where the machine permits the mount."""

    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="fsdpd-test-")
        self.addCleanup(shutil.rmtree, self.root, True)
        self.disk = os.path.join(self.root, "data/disk")
        harness.draw_digits(os.path.join(self.root, "data"))
        os.mkdir(self.disk)
        if shutil.which("mount") is None:
            self.skipTest("mount is missing")
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "none", self.disk],
                                 stderr=subprocess.PIPE, text=True)
        if mounted.returncode != 0:
            self.skipTest("this needs a small file system: " + mounted.stderr.strip())
        self.addCleanup(subprocess.run, ["umount", self.disk], check=True)

    def test_full_disk(self):
        with harness.Daemon(data=os.path.join(self.root, "data")) as daemon:
            job = daemon.submit("train.epochs=100000", f"checkpoint.directory={self.disk}",
                                "checkpoint.keep=1")
            daemon.wait_step(job, 2)
            first = daemon.json("checkpoint", job)
            filler = os.path.join(self.disk, "filler")
            with open(filler, "wb") as file:
                try:
                    while True:
                        file.write(b"x" * (1 << 16))
                        file.flush()
                except OSError:
                    pass
            refused = daemon.ctl("checkpoint", job)
            self.assertEqual(refused.returncode, harness.DOES_NOT_FIT, refused.stderr)
            self.assertIn("No space left", refused.stderr)
            self.assertEqual([entry["step"] for entry in daemon.json("checkpoints", job)],
                             [first["step"]])
            self.assertEqual(entries(os.path.dirname(first["path"])),
                             [os.path.basename(first["path"])])
            refused = daemon.ctl("pause", job)
            self.assertEqual(refused.returncode, harness.DOES_NOT_FIT, refused.stderr)
            step = int(daemon.show(job)["step"])
            daemon.wait_step(job, step + 3)
            self.assertEqual(daemon.show(job)["state"], "RUNNING")
            os.unlink(filler)
            again = daemon.json("checkpoint", job)
            self.assertGreater(int(again["step"]), int(first["step"]))
            daemon.ctl("cancel", job)
            daemon.wait_state(job, "CANCELLED")


if __name__ == "__main__":
    harness.main()
