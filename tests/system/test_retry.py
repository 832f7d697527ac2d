#!/usr/bin/env python3
"""A job survives the death of a worker: the next attempt continues from the last checkpoint, and
the result has the bits of an undisturbed run."""

import os
import re
import signal
import sys
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness

STEPS = 120
SETTINGS = (f"train.max_steps={STEPS}", "train.log_interval=1")


class Retry(unittest.TestCase):
    def setUp(self):
        self.faults = harness.own_faults(self.addCleanup)
        self.daemon = harness.Daemon(environment=self.faults.environment)
        self.addCleanup(self.daemon.close)

    def kill_rank(self, job, rank):
        def find():
            return [worker for worker in self.daemon.worker_list()
                    if worker.get("job") == job and int(worker["rank"]) == rank]
        victim = self.daemon.wait_for(find, 20, f"rank {rank} of {job}")[0]
        os.kill(int(victim["pid"]), signal.SIGKILL)

    def test_killed_worker(self):
        result = self.daemon.submit(*SETTINGS, wait=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        plain = self.daemon.json("list")[-1]["id"]
        expected = {int(event["metrics"]["step"]): event["metrics"]["loss"]
                    for event in self.daemon.events(plain) if "metrics" in event}

        self.faults.hold_checkpoint(3)  # the job does not end before its workers are lost
        job = self.daemon.submit(*SETTINGS, "checkpoint.every_steps=5")
        for attempt, rank in ((1, 1), (2, 0)):
            self.daemon.wait_for(
                lambda: self.daemon.show(job)["attempt"] == attempt and
                any(int(entry["step"]) >= 10 * attempt
                    for entry in self.daemon.json("checkpoints", job)),
                30, f"checkpoints of attempt {attempt}")
            self.kill_rank(job, rank)
            if attempt == 1:
                self.faults.hold_checkpoint(4)
            else:
                self.faults.clear()
            self.daemon.wait_for(lambda: self.daemon.show(job)["attempt"] == attempt + 1, 30,
                                 f"attempt {attempt + 1}")
        shown = self.daemon.wait_state(job, "SUCCEEDED", "FAILED", "CANCELLED")
        self.assertEqual(shown["state"], "SUCCEEDED", shown["reason"])
        self.assertEqual(shown["attempt"], 3)
        self.assertEqual(self.daemon.tensors(job), self.daemon.tensors(plain))

        events = self.daemon.events(job)
        last = {}
        for event in events:
            if "metrics" in event:
                last[int(event["metrics"]["step"])] = event["metrics"]["loss"]
        self.assertEqual(last, expected)  # a repeated step has the same loss
        attempts = [int(event["attempt"]) for event in events if "metrics" in event]
        self.assertEqual(attempts, sorted(attempts))
        self.assertEqual(set(attempts), {1, 2, 3})
        retried = [event["state"] for event in events if "state" in event and
                   event["state"]["reason"]["code"] == "RETRYING"]
        self.assertEqual(len(retried), 2)
        self.assertIn("rank 1", retried[0]["reason"]["message"])
        self.assertIn("SIGKILL", retried[0]["reason"]["message"])
        running = [event["state"]["reason"]["message"] for event in events if "state" in event and
                   event["state"]["state"] == "RUNNING"]
        self.assertEqual(["continuing from step" in message for message in running], [False, True, True])

    def test_damaged_checkpoint(self):
        job = self.daemon.submit(*SETTINGS, "checkpoint.every_steps=10")
        self.daemon.wait_for(lambda: len(self.daemon.json("checkpoints", job)) >= 2, 30,
                             "two checkpoints")
        paused = self.daemon.json("pause", job)
        listed = self.daemon.json("checkpoints", job)
        newest = listed[-1]
        self.assertEqual(newest["step"], paused["step"])
        path = os.path.join(newest["path"], "rank-00001.safetensors")
        os.truncate(path, os.path.getsize(path) - 4)
        self.assertEqual(self.daemon.ctl("resume", job).returncode, 0)
        shown = self.daemon.wait_state(job, "SUCCEEDED", "FAILED")
        self.assertEqual(shown["state"], "SUCCEEDED", shown["reason"])
        messages = [event["state"]["reason"]["message"] for event in self.daemon.events(job)
                    if "state" in event and event["state"]["state"] == "RUNNING"]
        self.assertIn(f"continuing from step {listed[-2]['step']}", messages[-1])
        self.assertIn("rank-00001.safetensors", messages[-1])

    def test_nothing_left_to_read(self):
        job = self.daemon.submit(*SETTINGS)
        self.daemon.wait_step(job, 2)
        self.daemon.json("pause", job)
        path = self.daemon.json("checkpoints", job)[0]["path"]
        os.unlink(os.path.join(path, "manifest.json"))
        self.assertEqual(self.daemon.ctl("resume", job).returncode, 0)
        shown = self.daemon.wait_state(job, "SUCCEEDED", "FAILED")
        self.assertEqual((shown["state"], shown["reason"]["code"]), ("FAILED", "DATA_LOSS"))

    def test_budget(self):
        job = self.daemon.submit("train.epochs=100000", "retry.machine_failures=1")
        for attempt in (1, 2):
            self.daemon.wait_for(lambda: self.daemon.show(job)["attempt"] == attempt and
                                 self.daemon.show(job)["state"] == "RUNNING", 30,
                                 f"attempt {attempt} to run")
            self.kill_rank(job, 0)
        shown = self.daemon.wait_state(job, "FAILED", seconds=30)
        self.assertEqual(shown["reason"]["code"], "WORKER_LOST")
        self.assertIn("attempt 2", shown["reason"]["message"])

    def test_own_failure(self):
        """A loss that is not finite is the job's own failure, not a machine's."""
        settings = ("optimizer.type=sgd", "optimizer.lr=1000000", "train.max_steps=50")
        result = self.daemon.submit(*settings, wait=True)
        self.assertEqual(result.returncode, harness.JOB_FAILED)
        self.assertEqual(self.daemon.json("list")[-1]["attempt"], 1)
        result = self.daemon.submit(*settings, "retry.failures=1", wait=True)
        self.assertEqual(result.returncode, harness.JOB_FAILED)
        self.assertEqual(self.daemon.json("list")[-1]["attempt"], 2)

    def test_pauses(self):
        """They double up to the longest, as the options say."""
        options = {"FSDPD_LIMITS_RETRY_SECONDS": "0.1", "FSDPD_LIMITS_RETRY_MAX_SECONDS": "0.3"}
        with harness.Daemon(workers=1, environment=options) as daemon:
            job = daemon.submit("workers=1", "optimizer.type=sgd", "optimizer.lr=1000000",
                                "train.max_steps=50", "retry.failures=3")
            daemon.wait_state(job, "FAILED")
            messages = [event["state"]["reason"]["message"] for event in daemon.events(job)
                        if "state" in event and event["state"]["reason"]["code"] == "RETRYING"]
        self.assertEqual([re.search("retries in (.*?) s,", message)[1] for message in messages],
                         ["0.1", "0.2", "0.3"])


if __name__ == "__main__":
    harness.main()
