#!/usr/bin/env python3
"""An attempt that ends before any rank began to train costs a job nothing, whatever its budget."""

import os
import random
import signal
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness

KILLS = 20
SETTINGS = ("train.max_steps=2", "retry.machine_failures=0", "retry.failures=0")


class NotBegun(unittest.TestCase):
    def setUp(self):
        self.daemon = harness.Daemon()
        self.addCleanup(self.daemon.close)

    def restart_worker(self):
        """Kills a worker, and returns the process that fsdpd starts in its place."""
        before = [worker["pid"] for worker in self.daemon.worker_list()]
        os.kill(int(before[0]), signal.SIGKILL)

        def attached():
            now = [worker["pid"] for worker in self.daemon.worker_list()]
            started = [pid for pid in now if pid not in before]
            return started if len(now) == len(before) else None
        return int(self.daemon.wait_for(attached, 20, "the worker to attach again")[0])

    def test_kill_within_100_ms_of_a_submission(self):
        """Kills after a delay from the start of fsdpctl: the job is planned, stored, assigned or
        begun."""
        started = time.monotonic()
        self.daemon.submit(*SETTINGS, wait=True)
        longest = max(0.1, time.monotonic() - started)  # covers a slow submission, too
        delays = random.Random(12)
        seen = len(self.daemon.json("list"))
        first = seen
        for _ in range(KILLS):
            delay = delays.uniform(0, longest)
            submission = self.daemon.spawn(
                "submit", harness.JOB, "--timeout", "1",
                *(part for setting in (f"data.dir={self.daemon.data}", *SETTINGS)
                  for part in ("--set", setting)))
            time.sleep(delay)  # the moment under test, not a wait for an event
            self.daemon.kill()
            submission.communicate(timeout=harness.PATIENCE)
            self.daemon.start(attach=False)
            jobs = self.daemon.json("list")
            for job in jobs[seen:]:
                shown = self.daemon.wait_state(job["id"], "SUCCEEDED", "FAILED", "CANCELLED")
                self.assertEqual(shown["state"], "SUCCEEDED", (delay, shown["reason"]))
            seen = len(jobs)
        self.assertGreater(seen, first)

    def test_worker_that_never_read_its_assignment(self):
        stopped = self.restart_worker()  # the other one, which attached before it, plans the job
        os.kill(stopped, signal.SIGSTOP)
        job = self.daemon.submit(*SETTINGS)
        self.assertEqual(self.daemon.show(job)["state"], "STARTING")
        self.daemon.kill()
        os.kill(stopped, signal.SIGKILL)
        self.daemon.start(attach=False)
        shown = self.daemon.wait_state(job, "SUCCEEDED", "FAILED", "CANCELLED")
        self.assertEqual(shown["state"], "SUCCEEDED", shown["reason"])
        self.assertEqual(shown["attempt"], 2)
        reasons = [event["state"]["reason"] for event in self.daemon.events(job) if "state" in event]
        again = [reason for reason in reasons if reason["code"] == "RETRYING"]
        self.assertEqual(len(again), 1, reasons)
        self.assertIn("before any rank began to train", again[0]["message"])


if __name__ == "__main__":
    harness.main()
