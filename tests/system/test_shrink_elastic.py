#!/usr/bin/env python3
"""queue.shrink_elastic: a running elastic job gives workers to a waiting job of higher priority, both
train, and it grows again afterwards. queue.preempt: a job of fixed size gives all of them."""

import os
import signal
import sys

sys.path.insert(0, os.path.dirname(__file__))
import harness
from elastic_jobs import ELASTIC, SETTINGS, STEPS, RedundancyTestCase

BITS = ("train.batch_size=1", "schedule.total_steps=100000")
ENDLESS = "train.max_steps=100000"


class ShrinkElastic(RedundancyTestCase):
    def setUp(self):
        self.daemon = harness.Daemon(workers=4, data=self.data, arguments=["--shrink-elastic", "--preempt"])
        self.addCleanup(self.daemon.close)

    def train_beside_another(self, job, meanwhile=lambda job, other: None):
        """A job of higher priority has two of four workers, then ends; the elastic job trains on."""
        self.wait_world(job, 4, 5)
        other = self.submit(*SETTINGS, "workers=2", "priority=5", ENDLESS)
        self.wait_world(other, 2, 1)
        self.daemon.wait_step(job, self.step(job) + 2)
        self.wait_world(job, 2)
        said = [entry["reason"]["message"].split(";")[0] for entry in self.daemon.json("history", job)
                if entry["reason"]["code"] == "RESIZING"]
        self.assertIn(f"shrunk from 4 to 2 workers for {other}, which has a higher priority", said)
        meanwhile(job, other)
        self.daemon.ctl("cancel", other)
        self.wait_world(job, 4, self.step(job) + 2)

    def end(self, job):
        """Ends the elastic job, which has done every step once. Returns its changes of workers."""
        self.assertEqual(self.daemon.ctl("cancel", job).returncode, 0)
        self.daemon.wait_state(job, "CANCELLED")
        steps = [step for step, _ in self.daemon.losses(job)]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))
        changes = list(dict.fromkeys(self.changes(job)))  # after a restart an event may repeat
        self.assertEqual([world for world, *_ in changes], [2, 4])
        return changes

    def test_bits(self):
        """No step is lost, no process ends, and the weights have the bits of a run whose user orders
        these worlds at these steps."""
        pids = sorted(int(worker["pid"]) for worker in self.daemon.worker_list())
        job = self.submit(*ELASTIC, *BITS, ENDLESS)
        self.train_beside_another(job)
        weights, step = self.pull(job)
        changes = self.end(job)
        self.assertEqual([lost for _, _, _, lost, _ in changes], [0, 0])
        self.assertEqual(sorted(int(worker["pid"]) for worker in self.daemon.worker_list()), pids)
        worlds = [(4, 0), *((world, step) for world, step, *_ in changes)]
        self.assertEqual(weights, self.train_by_plan(worlds, step, BITS))
        print(*(text for *_, text in changes), "the same bits as by order", sep="\n", file=sys.stderr)

    def test_curve_with_a_restart(self):
        """fsdpd is killed while both train: both continue, the elastic job grows afterwards, and its
        curve is the undisturbed one."""
        def restart(job, other):
            ranks = self.ranks(job), self.ranks(other)
            self.daemon.kill(signal.SIGKILL)
            self.daemon.start()
            self.assertEqual((self.wait_world(job, 2), self.wait_world(other, 2)), ranks)

        job = self.submit(*ELASTIC, ENDLESS, f"schedule.total_steps={STEPS}")
        self.train_beside_another(job, restart)
        self.daemon.wait_step(job, STEPS)
        self.end(job)
        self.expect_curve(job, self.undisturbed(), trains_on=True)

    def test_preempted(self):
        """A preempted job waits, continues, and ends with the bits of a run that was left alone."""
        settings = (*SETTINGS, "workers=4", "train.max_steps=40")
        alone = self.submit(*settings)
        self.succeed(alone)
        job = self.submit(*settings, "checkpoint.every_steps=100000")
        self.wait_world(job, 4, 3)
        urgent = self.submit(*SETTINGS, "workers=2", "priority=5", "train.max_steps=2")
        self.succeed(urgent)
        self.succeed(job)
        preempted, = [entry for entry in self.daemon.json("history", job)
                      if entry["reason"]["code"] == "PREEMPTED"]
        self.assertIn(f"preempted for {urgent}, which has a higher priority; continues from step ",
                      preempted["reason"]["message"])
        self.assertEqual([step for step, _ in self.daemon.losses(job)], list(range(1, 41)))
        self.assertEqual(self.pull(job)[0], self.pull(alone)[0])


if __name__ == "__main__":
    harness.main()
