#!/usr/bin/env python3
"""fsdpd is killed while the final weights of a resumed job replace those of its earlier end: between the renames, and
between these and the store's commit. A pull has the ones or the others, never damage."""

import os
import signal
import sys
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness

FIRST, LATER = 3, 6  # steps
# Each holds fsdpd at one place, and what has happened by then.
MOMENTS = ("rename */state_dict.safetensors.sums HOLD in=fsdpd",  # nothing
           "rename */state_dict.safetensors HOLD in=fsdpd",  # the sums are the new ones
           "fsync */state/jobs/{job} HOLD in=fsdpd")  # the weights, too; the store does not know
SETTINGS = ("workers=2", "train.evaluate=false", "checkpoint.every_steps=3")


class ReplacedWeights(unittest.TestCase):
    def serve(self, **limits):
        self.faults = harness.own_faults(self.addCleanup)
        self.daemon = harness.Daemon(environment={**self.faults.environment, **limits})
        self.addCleanup(self.daemon.close)

    def begin(self, moment):
        """fsdpd hangs there. Returns the job, and its weights."""
        job = self.daemon.submit(f"train.max_steps={FIRST}", *SETTINGS)
        self.daemon.wait_state(job, "SUCCEEDED")
        first = self.daemon.tensors(job)
        self.faults.set(moment.format(job=job))
        self.assertEqual(self.daemon.ctl("resume", job, "--set", f"train.max_steps={LATER}").returncode, 0)
        self.daemon.wait_for(lambda: self.faults.hits()[0] > 0 and self.is_held(job), harness.PATIENCE, "fsdpd to hang")
        self.daemon.kill(signal.SIGKILL)
        return job, first

    def is_held(self, job):
        return "state_dict.safetensors.tmp.sums" in os.listdir(self.directory(job)) or \
            os.path.exists(os.path.join(self.directory(job), "state_dict.safetensors.previous"))

    def directory(self, job):
        return os.path.join(self.daemon.root, "state/jobs", job)

    def check_files(self, job):
        """Nothing is left of the replacement."""
        self.assertEqual(sorted(name for name in os.listdir(self.directory(job)) if name.startswith("state_dict")),
                         ["state_dict.safetensors", "state_dict.safetensors.sums"])

    def test_no_worker_is_left(self):
        """The weights of the earlier end are pulled and proved, also when the job is cancelled."""
        self.serve(FSDPD_LIMITS_REATTACH_SECONDS="0.5")
        for moment in MOMENTS:
            with self.subTest(moment):
                job, first = self.begin(moment)
                self.faults.clear()
                self.daemon.end_workers()
                self.daemon.workers, self.daemon.expect_workers = 0, 0
                self.daemon.start()
                self.assertEqual(self.daemon.tensors(job), first)
                self.assertEqual(self.daemon.ctl("cancel", job).returncode, 0)
                self.daemon.wait_state(job, "CANCELLED")
                self.assertEqual(self.daemon.tensors(job), first)
                proved = self.daemon.ctl("verify", job)
                self.assertEqual(proved.returncode, 0, proved.stderr)
                self.check_files(job)
                self.daemon.kill(signal.SIGTERM)
                self.daemon.workers, self.daemon.expect_workers = 2, 2
                self.daemon.start()

    def test_workers_deliver_again(self):
        """The job succeeds with the weights of its later end."""
        self.serve()
        plain = self.daemon.submit(f"train.max_steps={LATER}", *SETTINGS)
        self.daemon.wait_state(plain, "SUCCEEDED")
        expected = self.daemon.tensors(plain)
        for moment in MOMENTS:
            with self.subTest(moment):
                job, first = self.begin(moment)
                self.faults.clear()
                self.daemon.start()
                self.daemon.wait_state(job, "SUCCEEDED")
                self.assertEqual(self.daemon.tensors(job), expected)
                self.assertNotEqual(expected, first)
                self.assertEqual(self.daemon.ctl("verify", job).returncode, 0)
                self.check_files(job)


if __name__ == "__main__":
    harness.main()
