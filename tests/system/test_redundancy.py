#!/usr/bin/env python3
"""Redundancy in memory: when workers of an elastic job die or leave by order, the others continue
from what they keep of each other's state, without the disk, and with the bits of planned changes."""

import os
import signal
import sys

sys.path.insert(0, os.path.dirname(__file__))
import harness
from elastic_jobs import ELASTIC, ENDLESS, STEPS, RedundancyTestCase

BITS_STEPS = 120
BITS = ("train.batch_size=1", "schedule.total_steps=1000")


def states_mapped(pid):
    """How many states of other workers this one has mapped, read-only."""
    with open(f"/proc/{pid}/maps") as maps:
        return sum("memfd:fsdpd-state" in line and " r--s " in line for line in maps)


class Redundancy(RedundancyTestCase):
    def test_curve(self):
        """No step's metrics are lost with the process of rank 0, and the curve is the undisturbed
        one; no checkpoint is on the disk, and no state is copied from one worker to another."""
        job = self.submit(*ELASTIC, *ENDLESS, "elastic.redundancy=mirror", "elastic.max_workers=4")
        ranks = self.wait_world(job, 4, 20)
        self.assertEqual([states_mapped(pid) for pid in ranks.values()], [2] * 4)
        os.kill(ranks[0], signal.SIGKILL)
        self.daemon.wait_for(lambda: self.daemon.show(job)["attempt"] > 1, 60, "the next attempt")
        self.end(job, 4)
        self.expect_curve(job, self.undisturbed(), trains_on=True)
        self.assertIn(" in memory", self.running(job)[1])

    def test_every_steps(self):
        """Renewed less often, a loss costs the steps since, and the curve stays; over TCP the parity
        is sent."""
        job = self.submit(*ELASTIC, "elastic.redundancy=parity", "elastic.every_steps=7",
                          "fsdp.transport=gloo")
        ranks = self.wait_world(job, 4, 24)
        self.assertEqual([states_mapped(pid) for pid in ranks.values()], [0] * 4)
        os.kill(ranks[1], signal.SIGKILL)
        self.succeed(job)
        world, step, memory, lost, text = self.changes(job)[0]
        self.assertEqual((world, step % 7, memory), (3, 0, True), text)
        self.assertLessEqual(lost, 7, text)
        self.expect_curve(job, self.undisturbed())

    def test_same_bits(self):
        """A worker dies, and the job grows again; planned changes at these steps give the same
        bits."""
        job = self.submit(*ELASTIC, *BITS, "elastic.redundancy=mirror",
                          f"train.max_steps={BITS_STEPS}")
        ranks = self.wait_world(job, 4, BITS_STEPS // 3)
        os.kill(ranks[2], signal.SIGKILL)
        self.succeed(job)
        changes = [(world, step) for world, step, *_ in self.changes(job)]
        self.assertEqual([world for world, _ in changes], [3, 4])
        self.assertEqual(self.daemon.tensors(job),
                         self.train_by_plan([(4, 0), *changes], BITS_STEPS, BITS))

    def resize(self, job, world, step):
        """By order, once it has come to that step; waits until it trains."""
        self.daemon.wait_step(job, step)
        result = self.daemon.ctl("resize", job, str(world))
        self.assertEqual(result.returncode, 0, result.stderr)
        return self.wait_world(job, world)

    def queued(self, job):
        return [entry["reason"]["message"] for entry in self.daemon.json("history", job)
                if entry["state"] == "QUEUED" and "; continues from step" in entry["reason"]["message"]]

    def expect_in_memory(self, job, worlds):
        """The job came to these worlds in memory, without losing a step or taking a checkpoint."""
        changes = self.changes(job)
        self.assertEqual([(world, memory, lost) for world, _, memory, lost, _ in changes],
                         [(world, True, 0) for world in worlds])
        self.assertEqual([text.split("; ")[1] for text in self.queued(job)],
                         [f"continues from step {step} in memory" for _, step, *_ in changes])
        self.assertEqual(self.checkpoints(job), set())
        self.assertFalse(os.path.exists(os.path.join(self.daemon.root, "state/jobs", job, "checkpoints")))
        return changes

    def expect_bits_by_order(self, *redundancy):
        """4, 2, 3 and 4 workers by order: the weights are those of the way through checkpoints."""
        pids = sorted(int(worker["pid"]) for worker in self.daemon.worker_list())
        job = self.submit(*ELASTIC, *BITS, *redundancy, f"train.max_steps={BITS_STEPS}")
        self.wait_world(job, 4, 5)
        for number, world in enumerate((2, 3, 4)):
            self.resize(job, world, 10 + 20 * number)
        self.succeed(job)
        changes = self.expect_in_memory(job, (2, 3, 4))
        self.assertEqual(sorted(int(worker["pid"]) for worker in self.daemon.worker_list()), pids)
        self.assertEqual([step for step, _ in self.daemon.losses(job)], list(range(1, BITS_STEPS + 1)))
        worlds = [(4, 0), *((world, step) for world, step, *_ in changes)]
        self.assertEqual(self.daemon.tensors(job), self.train_by_plan(worlds, BITS_STEPS, BITS))

    def test_mirror_by_order(self):
        self.expect_bits_by_order("elastic.redundancy=mirror")

    def test_parity_by_order(self):
        self.expect_bits_by_order("elastic.redundancy=parity", "elastic.parity_group=2",
                                  "elastic.every_steps=7")

    def test_replica_by_order(self):
        self.expect_bits_by_order("elastic.redundancy=replica", "fsdp.strategy=no_shard")

    def test_drained(self):
        """A drained worker leaves what it has to the others."""
        job = self.submit(*ELASTIC, "elastic.redundancy=parity")
        self.wait_world(job, 4, 5)
        first = self.daemon.show(job)["workers"][0]
        self.assertEqual(self.daemon.ctl("drain", "--now", first).returncode, 0)
        self.wait_world(job, 3)
        self.assertNotIn(first, self.daemon.show(job)["workers"])
        self.succeed(job)
        self.expect_in_memory(job, (3,))
        self.expect_curve(job, self.undisturbed())

    def test_disk_instead(self):
        """Three workers to one: each mirror of one that leaves would leave, too."""
        job = self.submit(*ELASTIC, "workers=3", "elastic={min_workers: 1, max_workers: 4}",
                          "elastic.redundancy=mirror")
        self.wait_world(job, 3, 5)
        self.resize(job, 1, 6)
        self.succeed(job)
        world, step, memory, lost, text = self.changes(job)[0]
        self.assertEqual((world, memory, lost), (1, False, 0), text)
        self.assertEqual(self.checkpoints(job), {step})
        self.assertIn(f"continues from step {step} with a checkpoint (no worker that stays has the "
                      "shards of rank 1 of 3 or a copy of them)", self.queued(job)[0])
        self.expect_curve(job, self.undisturbed())

    def test_without_a_directory(self):
        """Workers that share no directory: three to one, one after the other, and to three again."""
        port = harness.free_port()
        address = f"127.0.0.1:{port}"
        with harness.Daemon(workers=0, data=self.data, arguments=["--listen", address, "--insecure-tcp"],
                            expect_workers=0) as self.daemon:
            for i in range(3):
                self.daemon.start_worker(f"host{i}/cpu:0", "--coordinator", address, "--insecure-tcp")
            self.daemon.wait_for(lambda: len(self.daemon.worker_list()) == 3, 30, "the workers")
            job = self.submit(*ELASTIC, "workers=3", "elastic={min_workers: 1, max_workers: 4}",
                              "elastic.redundancy=mirror", "fsdp.transport=gloo")
            self.wait_world(job, 3, 5)
            self.assertIn("checkpoint.directory: is missing", self.daemon.ctl("checkpoint", job).stderr)
            self.resize(job, 1, 6)
            self.resize(job, 3, self.step(job) + 2)
            self.succeed(job)
            self.expect_in_memory(job, (2, 1, 3))
            curve = self.last_losses(job)
        self.assertEqual(sorted(curve), list(range(1, STEPS + 1)))

    def trained(self, job):
        """As running(), which waits for the job's end, so far."""
        return [entry["reason"]["message"] for entry in self.daemon.json("history", job)
                if entry["reason"]["code"] == "RUNNING"]

    def test_a_disk_that_fails(self):
        """The checkpoints' directory cannot be opened: the state is in memory."""
        faults = harness.own_faults(self.addCleanup)
        with harness.Daemon(workers=4, data=self.data, environment=faults.environment) as self.daemon:
            for error in ("EIO", "EACCES", "ENOTDIR"):
                with self.subTest(error):
                    job = self.submit(*ELASTIC, *ENDLESS, "elastic.redundancy=mirror", "checkpoint.every_steps=10")
                    ranks = self.wait_world(job, 4, 20)
                    self.daemon.wait_for(lambda: self.checkpoints(job), 60, "a checkpoint")
                    faults.set(f"open */checkpoints {error}")
                    os.kill(ranks[1], signal.SIGKILL)
                    # It soon has four workers again: what counts is that it has trained with three.
                    self.daemon.wait_for(lambda: len(self.trained(job)) > 1, 60, "the next attempt to train")
                    faults.clear()
                    texts = self.trained(job)
                    self.assertIn(" in memory", texts[1])
                    self.assertIn("what is on the disk cannot be read", texts[1])
                    self.assertEqual(self.daemon.ctl("cancel", job).returncode, 0)
                    self.daemon.wait_for(lambda: len(self.daemon.worker_list()) == 4, 60, "the worker")

    def test_restarted_between(self):
        """fsdpd is killed after the order, before a step ends: the job takes a checkpoint."""
        job = self.submit(*ELASTIC, "elastic.redundancy=mirror")
        ranks = self.wait_world(job, 4, 5)
        os.kill(ranks[1], signal.SIGSTOP)
        self.assertEqual(self.daemon.ctl("resize", job, "3").returncode, 0)
        self.daemon.wait_for(lambda: self.daemon.show(job)["reason"]["code"] == "RESIZING", 20,
                             "the order")
        self.daemon.kill(signal.SIGKILL)
        self.daemon.start(attach=False)
        os.kill(ranks[1], signal.SIGCONT)
        self.wait_world(job, 3)
        self.succeed(job)
        step = self.changes(job)[0][1]
        self.assertEqual(self.checkpoints(job), {step})
        self.assertRegex(self.queued(job)[0], rf"continues from step {step} with a checkpoint "
                         r"\(fsdpd (is away|was restarted)\)")
        self.expect_curve(job, self.undisturbed())


if __name__ == "__main__":
    harness.main()
