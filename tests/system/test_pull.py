#!/usr/bin/env python3
"""Full state_dicts over RPC: from a running job, from a finished one, interrupted, several at once."""

import json
import os
import shutil
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness

SHAPES = {
    "conv1.weight": [32, 1, 3, 3], "conv1.bias": [32],
    "conv2.weight": [64, 32, 3, 3], "conv2.bias": [64],
    "fc1.weight": [128, 9216], "fc1.bias": [128],
    "fc2.weight": [10, 128], "fc2.bias": [10],
}


class Pull(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = harness.Daemon()

    @classmethod
    def tearDownClass(cls):
        cls.daemon.close()

    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="fsdpd-test-")
        self.addCleanup(shutil.rmtree, self.directory)

    def path(self, name="state.safetensors"):
        return os.path.join(self.directory, name)

    def check(self, path):
        tensors, metadata = harness.read_safetensors(path)
        self.assertEqual({name: shape for name, (_, shape, _) in tensors.items()}, SHAPES)
        self.assertEqual({dtype for dtype, _, _ in tensors.values()}, {"F32"})
        self.assertEqual(metadata, {"format": "pt"})
        return tensors

    def pull(self, job):
        """The step and the tensors."""
        pulled = self.daemon.ctl("pull", job, "-o", self.path(), "--format", "json")
        self.assertEqual(pulled.returncode, 0, pulled.stderr)
        return int(json.loads(pulled.stdout)["step"]), self.check(self.path())

    def test_running_and_finished(self):
        for strategy in ("full_shard", "no_shard"):
            job = self.daemon.submit("train.epochs=100000", f"fsdp.strategy={strategy}")
            self.daemon.wait_step(job, 3)
            steps = []
            for _ in range(3):
                steps.append(self.pull(job)[0])
                self.assertEqual(self.daemon.show(job)["state"], "RUNNING")
            self.assertGreaterEqual(steps[0], 3)
            self.assertEqual(steps, sorted(steps))
            pulls = [self.daemon.spawn("pull", job, "-o", self.path(f"{i}.safetensors"))
                     for i in range(4)]
            for i, pull in enumerate(pulls):
                _, errors = pull.communicate(timeout=harness.PATIENCE)
                self.assertEqual(pull.returncode, 0, errors)
                self.check(self.path(f"{i}.safetensors"))
            self.assertEqual(self.daemon.ctl("cancel", job).returncode, 0)
            self.daemon.wait_state(job, "CANCELLED")
            refused = self.daemon.ctl("pull", job, "-o", self.path("none"))
            self.assertEqual(refused.returncode, harness.CONFLICT, refused.stderr)
            self.assertFalse(os.path.exists(self.path("none")))

    def test_same_step_same_bytes(self):
        """A pull at a step gives the same bytes as training to that step, whatever the strategy."""
        files = []
        for strategy in ("full_shard", "full_shard", "no_shard"):
            result = self.daemon.submit("train.max_steps=5", f"fsdp.strategy={strategy}", wait=True)
            self.assertEqual(result.returncode, 0, result.stderr)
            job = self.daemon.json("list")[-1]["id"]
            self.assertEqual(self.pull(job)[0], 5)
            with open(self.path(), "rb") as file:
                files.append(file.read())
        self.assertEqual(files[0], files[1])
        self.assertEqual(files[0], files[2])

    def test_interrupted_leaves_nothing(self):
        job = self.daemon.submit("train.epochs=100000")
        self.daemon.wait_step(job, 2)
        for delay in (0.0, 0.02, 0.05, 0.1):
            pull = self.daemon.spawn("pull", job, "-o", self.path("half"))
            time.sleep(delay)
            pull.send_signal(15)
            pull.communicate(timeout=harness.PATIENCE)
            if pull.returncode != 0:
                self.assertEqual(os.listdir(self.directory), [])
            else:
                os.unlink(self.path("half"))
        pulled = self.daemon.ctl("pull", job, "-o", self.path())
        self.assertEqual(pulled.returncode, 0, pulled.stderr)
        self.check(self.path())
        self.daemon.ctl("cancel", job)
        self.daemon.wait_state(job, "CANCELLED")

    def test_job_ends_during_a_pull(self):
        pulls, steps = 0, 20
        while pulls == 0 and steps < 10000:  # so that there is time for one, however fast it trains
            steps *= 2
            result = self.daemon.submit(f"train.max_steps={steps}")
            while self.daemon.show(result)["state"] not in ("SUCCEEDED", "FAILED"):
                pulled = self.daemon.ctl("pull", result, "-o", self.path())
                if pulled.returncode == 0:
                    self.check(self.path())
                    pulls += 1
        self.assertEqual(self.daemon.show(result)["state"], "SUCCEEDED")
        self.assertEqual(self.pull(result)[0], steps)
        self.assertGreater(pulls, 0)

    def test_refusals(self):
        missing = self.daemon.ctl("pull", "no-such-job", "-o", self.path())
        self.assertEqual(missing.returncode, harness.NOT_FOUND)
        queued = self.daemon.submit("workers=9")
        refused = self.daemon.ctl("pull", queued, "-o", self.path())
        self.assertEqual(refused.returncode, harness.CONFLICT, refused.stderr)
        self.daemon.ctl("cancel", queued)
        result = self.daemon.submit("train.max_steps=1", "save_model=false", wait=True)
        self.assertEqual(result.returncode, 0)
        job = self.daemon.json("list")[-1]["id"]
        refused = self.daemon.ctl("pull", job, "-o", self.path())
        self.assertEqual(refused.returncode, harness.CONFLICT, refused.stderr)
        self.assertEqual(os.listdir(self.directory), [])
        unwritable = self.daemon.ctl("pull", job, "-o", "/nonexistent/directory/file")
        self.assertEqual(unwritable.returncode, harness.NOT_FOUND, unwritable.stderr)


if __name__ == "__main__":
    harness.main()
