#!/usr/bin/env python3
"""Rank 0 dies after the rename that completes a checkpoint, before it can report that: the call that
waits for it ends, and the next attempt lists the checkpoint, and no more what was removed for it."""

import os
import shutil
import signal
import sys
import tempfile

sys.path.insert(0, os.path.dirname(__file__))
import harness
from elastic_jobs import ELASTIC, ElasticTestCase

HELD_MS = 600000
# Where rank 0 is held: in the sync that follows the rename, and in the removal of an older one, whose
# name is gone by then.
AFTER_RENAME = f"fsync */checkpoints {HELD_MS}"
IN_REMOVAL = f"open */.removing-step-* {HELD_MS}"


class UnlistedCheckpoint(ElasticTestCase):
    def setUp(self):
        root = tempfile.mkdtemp(prefix="fsdpd-test-")
        self.addCleanup(shutil.rmtree, root, ignore_errors=True)
        self.faults = harness.Faults(root)
        self.daemon = harness.Daemon(workers=4, data=self.data, root=root,
                                     environment=self.faults.environment)
        self.addCleanup(self.daemon.close)

    def on_disk(self, job):
        directory = os.path.join(self.daemon.root, "state/jobs", job, "checkpoints")
        return sorted(os.path.join(directory, name) for name in os.listdir(directory)
                      if name.startswith("step-"))

    def listed(self, job):
        return sorted(one["path"] for one in self.daemon.json("checkpoints", job))

    def lose_rank_0_at(self, job, place):
        """Takes a checkpoint, and kills rank 0 when it is held there. Returns what is on the disk."""
        ranks = self.wait_world(job, 4, self.step(job) + 2)
        before = set(self.on_disk(job))
        self.faults.set(place)
        call = self.daemon.spawn("checkpoint", job)
        self.daemon.wait_for(lambda: self.faults.hits()[0] > 0 and set(self.on_disk(job)) - before,
                             60, "a complete checkpoint")
        left = self.on_disk(job)
        self.assertEqual(set(self.listed(job)), before)
        os.kill(ranks[0], signal.SIGKILL)
        self.faults.clear()
        _, error = call.communicate(timeout=harness.PATIENCE)
        self.assertEqual(call.returncode, harness.FAILED, error)
        self.assertIn("lost a worker and starts again", error)
        self.wait_world(job, 4, self.step(job) + 2)
        return left

    def take(self, job):
        taken = self.daemon.ctl("checkpoint", job)
        self.assertEqual(taken.returncode, 0, taken.stderr)

    def test_a_complete_checkpoint_is_listed(self):
        job = self.submit(*ELASTIC, "elastic.redundancy=mirror", "checkpoint.keep=3",
                          "train.max_steps=1000000", "schedule.total_steps=1000000")
        self.wait_world(job, 4, 5)
        self.take(job)
        left = self.lose_rank_0_at(job, AFTER_RENAME)
        self.assertEqual(len(left), 2)
        self.assertLessEqual(set(left), set(self.listed(job)))
        self.assertEqual(self.listed(job), self.on_disk(job))
        attempts = [one["attempt"] for one in self.daemon.json("checkpoints", job)]
        self.assertEqual(attempts[:2], [1, 1])  # not that of the attempt which found it
        for _ in range(3):  # as many as are kept
            self.take(job)
            self.daemon.wait_step(job, self.step(job) + 1)
        self.faults.set("open */.removing-step-* EMFILE")  # the name of an older one goes, its files stay
        self.take(job)
        self.assertGreater(self.faults.hits()[0], 0)
        self.faults.clear()
        self.assertEqual(self.listed(job), self.on_disk(job))
        self.daemon.wait_step(job, self.step(job) + 1)
        left = self.lose_rank_0_at(job, IN_REMOVAL)
        self.assertEqual(len(left), 3)
        self.assertIn(left[-1], self.listed(job))
        self.assertEqual(self.listed(job), self.on_disk(job))
        self.assertEqual(self.daemon.ctl("cancel", job).returncode, 0)
        self.daemon.wait_state(job, "CANCELLED")


if __name__ == "__main__":
    harness.main()
