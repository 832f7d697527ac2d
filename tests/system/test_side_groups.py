#!/usr/bin/env python3
"""Pulls and checkpoints while their ranks cannot connect to each other: a failure on one rank ends
the call with the reason, wedges nothing, and the next call works at once. Gloo's own waits would
take the peer timeout, ten minutes, which is longer than these tests wait."""

import os
import shutil
import tempfile
import unittest

import harness

# A long job; two ranks with sharded parameters, so that a pull and a checkpoint need a group each.
SETTINGS = ("workers=2", "train.epochs=100000", "train.batch_size=4", "train.evaluate=false",
            "fsdp.wrap.policy=size", "fsdp.wrap.min_num_params=20000")
LIMITS = {"FSDPD_LIMITS_SAVE_SECONDS": "10", "FSDPD_LIMITS_KILL_SECONDS": "5"}


class SharedMemory(unittest.TestCase):
    settings = SETTINGS
    refused = "connect unix:@fsdpd-* ECONNREFUSED times=1"

    def setUp(self):
        self.faults = harness.Faults(self.make_directory())
        self.daemon = harness.Daemon(environment={**self.faults.environment, **LIMITS})
        self.addCleanup(self.daemon.close)
        self.job = self.daemon.submit(*self.settings)
        self.daemon.wait_state(self.job, "RUNNING")
        self.daemon.wait_step(self.job, 3)

    def make_directory(self):
        path = tempfile.mkdtemp(prefix="fsdpd-test-")
        self.addCleanup(shutil.rmtree, path, True)
        return path

    def pull(self, check=True):
        result = self.daemon.ctl("pull", self.job, "-o", os.path.join(self.daemon.root, "pulled"),
                                 timeout=harness.PATIENCE)
        if check:
            self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def fail_one_connect(self):
        self.faults.set(self.refused)

    def check_refused(self, result):
        self.assertEqual(self.faults.hits(), [1])
        self.faults.clear()
        self.assertEqual(result.returncode, harness.CONFLICT, result.stderr)  # not UNREACHABLE
        self.assertRegex(result.stderr, "rank [01] of 2 cannot join group .*Connection refused")

    def test_pull(self):
        for _ in range(3):
            self.fail_one_connect()
            self.check_refused(self.pull(check=False))
            self.pull()

    def test_pause_after_failed_pull(self):
        self.fail_one_connect()
        self.check_refused(self.pull(check=False))
        paused = self.daemon.ctl("pause", self.job, timeout=harness.PATIENCE)
        self.assertEqual(paused.returncode, 0, paused.stderr)
        self.assertEqual(self.daemon.show(self.job)["state"], "PAUSED")

    def test_shutdown_after_failed_pull(self):
        self.fail_one_connect()
        self.check_refused(self.pull(check=False))
        self.assertEqual(self.daemon.kill(15), 0)  # waits for it

    def test_checkpoint(self):
        for _ in range(2):
            self.fail_one_connect()
            self.check_refused(self.daemon.ctl("checkpoint", self.job, timeout=harness.PATIENCE))
        taken = self.daemon.ctl("checkpoint", self.job, timeout=harness.PATIENCE)
        self.assertEqual(taken.returncode, 0, taken.stderr)

    def test_pause(self):
        """A pause whose checkpoint cannot form a group is refused; the job trains on, and can be
        paused."""
        self.fail_one_connect()
        self.check_refused(self.daemon.ctl("pause", self.job, timeout=harness.PATIENCE))
        self.assertEqual(self.daemon.show(self.job)["state"], "RUNNING")
        paused = self.daemon.ctl("pause", self.job, timeout=harness.PATIENCE)
        self.assertEqual(paused.returncode, 0, paused.stderr)

    def test_final_weights(self):
        """The final pull of the weights is retried when a rank cannot connect for it."""
        self.assertEqual(self.daemon.ctl("cancel", self.job).returncode, 0)
        self.daemon.wait_state(self.job, "CANCELLED")
        # The first connect is for the training's group, the next one for the final weights'.
        self.faults.set(self.refused + " skip=1")
        done = self.daemon.submit(*self.settings, "train.max_steps=5", wait=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.faults.hits(), [3])


class Gloo(SharedMemory):
    settings = (*SETTINGS, "fsdp.transport=gloo")
    refused = "connect 127.0.0.1:* ECONNREFUSED times=1"


if __name__ == "__main__":
    harness.main()
