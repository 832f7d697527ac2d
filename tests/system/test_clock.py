#!/usr/bin/env python3
"""The host's clock changes while fsdpd works, by Debian's libfaketime under the coordinator: jobs
continue, durations stay correct, and fsdpd forgets nothing for an age that may be wrong."""

import glob
import os
import signal
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness

FAKETIME = glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")
DAY = 86400
ENDLESS = ("train.epochs=100000", "train.batch_size=16", "train.log_interval=1")


@unittest.skipUnless(FAKETIME, "libfaketime is not installed")
class Clock(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory(prefix="fsdpd-clock-")
        self.addCleanup(self.directory.cleanup)
        self.config = os.path.join(self.directory.name, "fsdpd.yaml")
        self.offset = os.path.join(self.directory.name, "offset")
        self.set_days(0)
        self.write("retention: {days: 10}\n")
        self.daemon = harness.Daemon(
            workers=0, arguments=["--config", self.config],
            environment={"LD_PRELOAD": FAKETIME[0], "FAKETIME_TIMESTAMP_FILE": self.offset,
                         "FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"})
        self.addCleanup(self.daemon.close)
        # Not under libfaketime, with which waits for a deadline on the monotonic clock end at once.
        for i in range(2):
            self.daemon.start_worker(f"here/cpu:{i}")
        self.daemon.wait_for(lambda: len(self.daemon.worker_list()) == 2, 20, "the workers")

    def write(self, text):
        with open(self.config, "w") as file:
            file.write(text)

    def set_days(self, days):
        """Sets fsdpd's clock ahead by this number of days."""
        with open(self.offset + ".new", "w") as file:
            file.write(f"{days * DAY:+}s\n")
        os.rename(self.offset + ".new", self.offset)

    def goes_on(self, job, steps=20):
        self.daemon.wait_step(job, int(self.daemon.show(job)["step"]) + steps)

    def seen_days(self):
        """By how many days fsdpd's clock differs, as a new job's submission time shows."""
        job = self.daemon.submit("workers=3")  # stays queued
        seconds = harness.seconds(self.daemon.show(job)["submit_time"]) - time.time()
        self.assertEqual(self.daemon.ctl("cancel", job).returncode, 0)
        return round(seconds / DAY)

    def test_running_job(self):
        job = self.daemon.submit(*ENDLESS, "deadline.finish=2h", "checkpoint.every_steps=50")
        self.goes_on(job)
        for days in (30, -30, 0):
            self.set_days(days)
            self.assertEqual(self.seen_days(), days)
            self.goes_on(job, 60)
        shown = self.daemon.show(job)
        self.assertEqual((shown["state"], shown["attempt"]), ("RUNNING", 1))
        self.assertTrue(self.daemon.tensors(job))
        self.assertEqual([worker.poll() for worker in self.daemon.spawned], [None, None])
        self.assertEqual(self.daemon.ctl("cancel", job).returncode, 0)
        self.daemon.wait_state(job, "CANCELLED")
        steps = [step for step, _ in self.daemon.losses(job)]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))

    def test_retention(self):
        done = self.daemon.submit("train.max_steps=5", wait=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        old = self.daemon.json("list")[-1]["id"]
        self.reload_with("retention: {days: 11}\n")  # makes it check its clock
        self.set_days(30)
        self.assertEqual(self.seen_days(), 30)
        self.daemon.wait_log("clock_jumped")  # the end of this job makes it check
        self.assertEqual(self.daemon.show(old)["state"], "SUCCEEDED")

    def reload_with(self, text):
        self.write(text)
        self.daemon.process.send_signal(signal.SIGHUP)
        self.daemon.wait_log("reloaded")


if __name__ == "__main__":
    unittest.main(verbosity=2)
