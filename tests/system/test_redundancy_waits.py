#!/usr/bin/env python3
"""A worker of a job with redundancy in memory is killed, all others live, and something else is under way: a checkpoint
whose fsync takes long, a survivor that is stopped, a coordinator that is killed, too, and stays away, a change to
fewer workers, a job of higher priority that takes workers, another worker that is drained. The job waits for all
that have a part of its state, continues from memory with at most one step done again, and then does what was asked.

FSDPD_REDUNDANCY_TRIES is the number of tries of each trouble, FSDPD_REDUNDANCY_SEED draws the moments."""

import os
import random
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(__file__))
import harness
from elastic_jobs import CHANGE, ELASTIC, LOST, SETTINGS, RedundancyTestCase

TRIES = int(os.environ.get("FSDPD_REDUNDANCY_TRIES", "1"))
SEED = int(os.environ.get("FSDPD_REDUNDANCY_SEED", "1"))
ENDLESS = ("retry.machine_failures=1000", "schedule.total_steps=100000", "train.max_steps=1000000")


class RedundancyWaits(RedundancyTestCase):
    def setUp(self):
        self.faults = harness.Faults(self.data)
        self.daemon = harness.Daemon(workers=4, data=self.data, arguments=["--shrink-elastic"],
                                     environment=self.faults.environment)
        self.addCleanup(self.daemon.close)

    def begin(self, redundancy, *settings):
        job = self.submit(*ELASTIC, *ENDLESS, *settings, f"elastic.redundancy={redundancy}")
        return job, self.wait_world(job, 4, 20)

    def kill(self, ranks, chance):
        """Kills one rank at a moment of a step. Returns the others."""
        ranks = dict(ranks)
        time.sleep(chance.random() * 0.1)
        os.kill(ranks.pop(chance.choice(sorted(ranks))), signal.SIGKILL)
        return ranks

    def expect_memory(self, job, attempt, ranks):
        """The next attempt continues from memory, with all of these workers."""
        def changed():
            shown = self.daemon.show(job)
            self.assertIn(shown["state"], ("QUEUED", "STARTING", "RUNNING"), shown["reason"])
            return shown["attempt"] > attempt and shown["state"] == "RUNNING"
        self.daemon.wait_for(changed, 60, "the next attempt")
        text = [entry["reason"]["message"] for entry in self.daemon.json("history", job)
                if entry["state"] == "RUNNING" and entry["reason"]["code"] == "RUNNING"][-1]
        world, _, memory, rest = CHANGE.match(text).groups()
        lost = LOST.search(rest)  # not known if fsdpd was restarted
        again = int(lost.group(2)) if lost else 1
        # A change that had been ordered may have taken a checkpoint before the kill.
        self.assertTrue(memory or again == 0, text)
        self.assertLessEqual(again, 1, text)
        self.assertGreaterEqual(int(world), len(ranks), text)
        # If fsdpd was killed after that attempt began, its ranks attach again.
        self.daemon.wait_for(lambda: set(ranks.values()) <= {int(worker["pid"]) for worker in self.daemon.worker_list()},
                             60, "the other workers")
        return self.daemon.show(job)["attempt"]

    def wait_for_parts(self, job):
        """The job waits for workers that have a part of its state."""
        def waits():
            message = self.daemon.show(job)["reason"]["message"]
            return "have a part" in message or "in memory" in message
        self.daemon.wait_for(waits, 60, "the wait")

    def end(self, job):
        self.daemon.ctl("cancel", job)
        self.daemon.wait_state(job, "CANCELLED")

    def try_trouble(self, trouble, *settings):
        for number in range(TRIES):
            for redundancy in ("mirror", "parity"):
                chance = random.Random(f"{SEED} {trouble.__name__} {redundancy} {number}")
                with self.subTest(redundancy=redundancy, number=number):
                    job, ranks = self.begin(redundancy, *settings)
                    attempt = self.daemon.show(job)["attempt"]
                    after = trouble(job, ranks, chance)
                    self.expect_memory(job, attempt, after)
                    yield job
                    self.end(job)
                    self.daemon.wait_for(lambda: len(self.daemon.worker_list()) == 4, 60, "the worker")

    def test_slow_checkpoint(self):
        """The writing of a checkpoint holds the survivors beyond the time of a verdict."""
        def slow(job, ranks, chance):
            self.faults.set("fsync */checkpoints/* HOLD")
            verb = self.daemon.spawn("checkpoint", job)
            self.daemon.wait_for(lambda: sum(self.faults.hits()) > 0, 60, "an fsync")
            left = self.kill(ranks, chance)
            self.wait_for_parts(job)
            self.faults.clear()
            verb.communicate(timeout=harness.PATIENCE)
            return left
        for _ in self.try_trouble(slow):
            pass

    def test_standing_survivor(self):
        def stand(job, ranks, chance):
            pid = ranks[chance.choice(sorted(ranks))]
            os.kill(pid, signal.SIGSTOP)
            others = {rank: other for rank, other in ranks.items() if other != pid}
            left = self.kill(others, chance)
            self.wait_for_parts(job)
            os.kill(pid, signal.SIGCONT)
            return {**left, -1: pid}
        for _ in self.try_trouble(stand):
            pass

    def test_coordinator_away(self):
        """fsdpd is killed before or after the worker, and away for three seconds."""
        def away(job, ranks, chance):
            first = chance.random() < 0.5
            if first:
                self.daemon.kill()
            left = self.kill(ranks, chance)
            if not first:
                time.sleep(chance.random() * 0.25)
                self.daemon.kill()
            time.sleep(3)
            self.daemon.start(attach=False)
            return left
        for _ in self.try_trouble(away):
            pass

    def test_coordinator_away_between_attempts(self):
        """fsdpd is killed when the lost attempt has ended and the next one cannot begin yet, for want of a worker."""
        def away(job, ranks, chance):
            name = next(worker["id"] for worker in self.daemon.worker_list()
                        if int(worker["pid"]) == ranks[3])
            self.assertEqual(self.daemon.ctl("drain", name).returncode, 0)  # it ends no job that cannot do without
            os.kill(ranks.pop(3), signal.SIGKILL)
            self.daemon.wait_state(job, "QUEUED")
            self.daemon.kill()
            self.daemon.start(attach=False)
            self.assertEqual(self.daemon.ctl("undrain", name).returncode, 0)
            return ranks
        for _ in self.try_trouble(away, "elastic={min_workers: 4, max_workers: 4}"):
            pass

    def test_coordinator_away_after_a_worker_left(self):
        """A worker has left by order. Before the next attempt has begun, one that stays is killed, and fsdpd, too. What
        the killed one had is with the one that left, which attaches last."""
        def away(job, ranks, chance):
            self.faults.set("connect unix:@* HOLD")  # the next attempt's ranks do not meet
            self.assertEqual(self.daemon.ctl("resize", job, "3").returncode, 0)
            self.daemon.wait_for(lambda: self.daemon.show(job)["attempt"] == 2, 60, "the next attempt")
            os.kill(ranks[2], signal.SIGKILL)
            self.daemon.kill()
            os.kill(ranks[3], signal.SIGSTOP)
            self.faults.clear()
            self.daemon.start(attach=False)

            def waits():
                shown = self.daemon.show(job)
                return "a worker that had left" in shown["reason"]["message"] or shown["attempt"] > 2
            try:
                self.daemon.wait_for(waits, 60, "the wait")
            finally:
                os.kill(ranks[3], signal.SIGCONT)
            return {rank: ranks[rank] for rank in (0, 1)}
        for _ in self.try_trouble(away):
            pass

    def test_resize_under_way(self):
        def resize(job, ranks, chance):
            verb = self.daemon.spawn("resize", job, "2")
            left = self.kill(ranks, chance)
            verb.communicate(timeout=harness.PATIENCE)
            return {rank: pid for rank, pid in left.items() if rank < 2}
        for job in self.try_trouble(resize):
            self.wait_world(job, 2)

    def test_drain_under_way(self):
        def drain(job, ranks, chance):
            name = next(worker["id"] for worker in self.daemon.worker_list()
                        if int(worker["pid"]) == ranks[3])
            self.drained = name
            verb = self.daemon.spawn("drain", name, "--now")
            left = self.kill({rank: pid for rank, pid in ranks.items() if rank != 3}, chance)
            verb.communicate(timeout=harness.PATIENCE)
            return left
        for job in self.try_trouble(drain):
            # It may have to take part once more.
            self.daemon.wait_for(lambda: self.drained not in self.daemon.show(job)["workers"], 60, "the drain")
            self.wait_world(job, 3)
            self.assertEqual(self.daemon.ctl("undrain", self.drained).returncode, 0)

    def test_drain_at_the_least(self):
        """A drained worker of a job with its least number of workers is replaced by an idle one, by one change,
        although it has a part of the state; without an idle one it stays."""
        for redundancy in ("mirror", "parity"):
            with self.subTest(redundancy=redundancy):
                job, _ = self.begin(redundancy)
                self.assertEqual(self.daemon.ctl("resize", job, "2").returncode, 0)
                self.wait_world(job, 2)
                shown = self.daemon.show(job)
                first, attempt = shown["workers"][0], shown["attempt"]
                self.assertEqual(self.daemon.ctl("drain", first).returncode, 0)
                self.daemon.wait_for(lambda: first not in self.daemon.show(job)["workers"], 60, "the drain")
                self.wait_world(job, 2)
                shown = self.daemon.show(job)
                self.assertLessEqual(shown["attempt"], attempt + 1)
                for name in [row["id"] for row in self.daemon.worker_list() if row["id"] not in shown["workers"]]:
                    self.assertEqual(self.daemon.ctl("drain", name).returncode, 0)
                self.assertEqual(self.daemon.ctl("drain", shown["workers"][1]).returncode, 0)
                self.wait_world(job, 2, int(shown["step"]) + 20)
                self.assertEqual(self.daemon.show(job)["attempt"], shown["attempt"])
                self.end(job)
                for name in [row["id"] for row in self.daemon.worker_list()]:
                    self.daemon.ctl("undrain", name)

    def test_job_of_higher_priority(self):
        def take(job, ranks, chance):
            self.other = self.submit(*SETTINGS, "workers=2", "priority=5", "train.max_steps=100000")
            left = self.kill(ranks, chance)
            return {rank: pid for rank, pid in left.items() if rank < 2}
        for job in self.try_trouble(take):
            self.wait_world(self.other, 2, 1)
            self.wait_world(job, 2)
            self.end(self.other)


if __name__ == "__main__":
    harness.main()
