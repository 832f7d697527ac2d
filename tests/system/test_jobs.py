#!/usr/bin/env python3
"""The life of jobs: submit, list, show, watch, cancel; queueing; several at once; the output."""

import os
import re
import sys
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness

LONG = "train.epochs=100000"


class Jobs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = harness.Daemon(workers=3)

    @classmethod
    def tearDownClass(cls):
        cls.daemon.close()

    def test_train_to_the_end(self):
        result = self.daemon.submit("train.epochs=3", wait=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("FullyShardedDataParallel(", result.stderr)
        self.assertIn("Linear(in_features=9216, out_features=128, bias=True)", result.stderr)
        self.assertNotIn("FullyShardedDataParallel(", result.stdout)
        job = self.daemon.json("list")[-1]
        self.assertEqual(job["state"], "SUCCEEDED")
        shown = self.daemon.show(job["id"])
        for key in ("id", "state", "reason", "attempt", "step", "steps", "metrics", "units", "plan"):
            self.assertIn(key, shown)
        self.assertEqual(int(shown["step"]), 3 * 16)  # ceil(ceil(2000 / 2) / 64) per epoch
        self.assertEqual(int(shown["steps"]), 3 * 16)
        self.assertEqual([unit["name"] for unit in shown["units"]], ["fc1", "(root)"])
        self.assertEqual(int(shown["units"][0]["parameters"]), 1179776)
        self.assertGreater(shown["metrics"]["accuracy"], 0.5)
        self.assertEqual(int(shown["metrics"]["memory_peak_bytes"]),
                         int(shown["plan"]["peak_bytes"]))
        tree = self.daemon.ctl("wrap", "show", job["id"])
        self.assertEqual(tree.returncode, 0, tree.stderr)
        self.assertIn("(fc1): FullyShardedDataParallel(", tree.stdout)

    def test_same_seed_same_bits(self):
        losses = []
        for _ in range(2):
            result = self.daemon.submit("train.epochs=1", "train.log_interval=1",
                                        "train.evaluate=false", wait=True)
            self.assertEqual(result.returncode, 0, result.stderr)
            job = self.daemon.json("list")[-1]["id"]
            losses.append(self.daemon.losses(job))
        self.assertEqual(len(losses[0]), 16)
        self.assertEqual(losses[0], losses[1])

    def test_cancel(self):
        job = self.daemon.submit(LONG)
        self.daemon.wait_step(job, 3)
        watcher = self.daemon.spawn("watch", job)
        cancelled = self.daemon.ctl("cancel", job)
        self.assertEqual(cancelled.returncode, 0, cancelled.stderr)
        shown = self.daemon.wait_state(job, "CANCELLED")
        self.assertTrue(shown["reason"]["message"])
        ends = [entry["by"] for entry in self.daemon.json("history", job)
                if entry["reason"]["code"] in ("CANCELLING", "CANCELLED")]
        self.assertEqual(ends, [shown["owner"]] * 2)
        last = self.daemon.ctl("history", job).stdout.splitlines()[-1]
        self.assertRegex(last, rf"CANCELLED .*\b{re.escape(shown['owner'])}\b.* cancelled by ")
        watcher.communicate(timeout=harness.PATIENCE)
        self.assertEqual(watcher.returncode, harness.JOB_CANCELLED)
        again = self.daemon.ctl("cancel", job)
        self.assertEqual(again.returncode, harness.CONFLICT)
        self.assertIn(job, again.stderr)
        # the workers are free again
        self.assertEqual(self.daemon.submit("train.max_steps=2", wait=True).returncode, 0)

    def test_queue(self):
        too_large = self.daemon.submit("workers=7", "train.max_steps=2")
        shown = self.daemon.show(too_large)
        self.assertEqual(shown["state"], "QUEUED")
        self.assertIn("7", shown["reason"]["message"])
        self.assertIn("3", shown["reason"]["message"])
        first = self.daemon.submit(LONG, "workers=2")
        beside = self.daemon.submit(LONG, "workers=1")
        waiting = self.daemon.submit("workers=2", "train.max_steps=2")
        self.daemon.wait_state(first, "RUNNING")
        self.daemon.wait_state(beside, "RUNNING")
        self.assertEqual(self.daemon.show(waiting)["state"], "QUEUED")
        busy = [worker for worker in self.daemon.worker_list() if worker["state"] == "busy"]
        self.assertEqual(len(busy), 3)
        for job in (beside, first, too_large):
            self.assertEqual(self.daemon.ctl("cancel", job).returncode, 0)
        self.daemon.wait_state(waiting, "SUCCEEDED")

    def test_repeated_submission(self):
        settings = ("--set", f"data.dir={self.daemon.data}", "--set", "train.max_steps=2",
                    "--id", "chosen-by-me")
        first = self.daemon.json("submit", harness.JOB, *settings)
        second = self.daemon.json("submit", harness.JOB, *settings)
        self.assertEqual(first["id"], second["id"])
        other = self.daemon.ctl("submit", harness.JOB, *settings, "--set", "train.seed=2")
        self.assertEqual(other.returncode, harness.CONFLICT, other.stderr)
        self.daemon.wait_state("chosen-by-me", "SUCCEEDED")

    def test_watch_detaches(self):
        job = self.daemon.submit(LONG)
        self.daemon.wait_step(job, 2)
        watcher = self.daemon.spawn("watch", job)
        self.assertIn(job, watcher.stdout.readline())  # it is connected
        watcher.send_signal(2)
        _, errors = watcher.communicate(timeout=harness.PATIENCE)
        self.assertIn(job, errors)
        self.assertEqual(self.daemon.show(job)["state"], "RUNNING")
        self.daemon.ctl("cancel", job)
        self.daemon.wait_state(job, "CANCELLED")

    def test_memory_falls_as_sharding_rises(self):
        peaks = []
        for settings in (["fsdp.strategy=no_shard", "fsdp.wrap.policy=none"],
                         ["fsdp.strategy=full_shard", "fsdp.wrap.policy=none"],
                         ["fsdp.strategy=full_shard", "fsdp.wrap.policy=size",
                          "fsdp.wrap.min_num_params=20000"]):
            result = self.daemon.submit("train.max_steps=2", *settings, wait=True)
            self.assertEqual(result.returncode, 0, result.stderr)
            job = self.daemon.show(self.daemon.json("list")[-1]["id"])
            self.assertEqual(int(job["metrics"]["memory_peak_bytes"]),
                             int(job["plan"]["peak_bytes"]))
            peaks.append(int(job["plan"]["peak_bytes"]))
        self.assertGreater(peaks[0], peaks[1])
        self.assertGreater(peaks[1], peaks[2])

    def test_plain_output(self):
        for arguments in (["list"], ["workers"], ["status"], ["version"], ["--help"]):
            result = self.daemon.ctl(*arguments)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertNotIn("\x1b", result.stdout)
            self.assertTrue(result.stdout.strip())


if __name__ == "__main__":
    harness.main()
