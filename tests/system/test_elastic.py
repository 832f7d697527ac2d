#!/usr/bin/env python3
"""Elastic jobs: their number of workers changes while they train, by order or because workers die
or come back; processes that live stay, and the curve is that of an undisturbed run."""

import os
import random
import re
import signal
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(__file__))
import harness
from elastic_jobs import ADAPTER, ELASTIC, ENDLESS, SETTINGS, STEPS, ElasticTestCase

KILLS_PER_JOB = 3
KILLS = int(os.environ.get("FSDPD_ELASTIC_KILLS", "3"))
SEED = int(os.environ.get("FSDPD_ELASTIC_SEED", "1"))


class Elastic(ElasticTestCase):
    def test_resize(self):
        """4, 3, 2 and 4 workers by order: no step is lost, no process ends, the same curve."""
        expected = self.undisturbed()
        pids = sorted(int(worker["pid"]) for worker in self.daemon.worker_list())
        job = self.submit(*ELASTIC, *ENDLESS)
        self.wait_world(job, 4, 5)
        for world in (3, 2, 4):
            result = self.daemon.ctl("resize", job, str(world))
            self.assertEqual(result.returncode, 0, result.stderr)
            self.wait_world(job, world)
            self.daemon.wait_step(job, self.step(job) + 3)
            shown = self.daemon.show(job)
            self.assertEqual((shown["spec"]["workers"], shown["chosen"]["workers"]), (4, world))
        self.assertEqual(self.submit(*ELASTIC, *ENDLESS, options=("--id", job)), job)  # still the same
        self.end(job, 4)
        self.assertEqual(sorted(int(worker["pid"]) for worker in self.daemon.worker_list()), pids)
        running = self.running(job)
        self.assertEqual(len(running), 4)
        for message, (before, world) in zip(running[1:], ((4, 3), (3, 2), (2, 4))):
            self.assertIn(f"training on {world} workers, continuing from step", message)
            self.assertIn(f"; {before} workers before, 0 steps lost, ", message)
        steps = [step for step, _ in self.daemon.losses(job)]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))
        print(f"4, 3, 2 and 4 workers against 3 all through: {STEPS} losses differ by at most "
              f"{self.expect_curve(job, expected, trains_on=True):.1e}")
        asked = [(entry["reason"]["message"], entry["by"])
                 for entry in self.daemon.json("history", job)
                 if entry["reason"]["code"] == "RESIZE"]
        self.assertEqual(asked[0], ("3 workers wanted, 4 before", self.daemon.show(job)["owner"]))

    def test_adapter(self):
        """Of adapters: a worker dies, the others continue from a checkpoint, which has no base, and
        the job shrinks by order; the same curve."""
        curve = (*ADAPTER, "schedule.total_steps=60", "checkpoint.every_steps=4")
        alone = self.submit(*SETTINGS, *curve, "train.max_steps=60", "workers=3")
        self.succeed(alone)
        job = self.submit(*ELASTIC, *ENDLESS, *curve)
        ranks = self.wait_world(job, 4, 6)
        os.kill(ranks[1], signal.SIGKILL)
        self.daemon.wait_for(lambda: self.daemon.show(job)["attempt"] > 1, 60, "the next attempt")
        self.wait_world(job, 4)
        self.assertEqual(self.daemon.ctl("resize", job, "2").returncode, 0)
        self.wait_world(job, 2, 60)
        self.assertEqual(self.daemon.ctl("cancel", job).returncode, 0)
        self.daemon.wait_state(job, "CANCELLED")
        self.expect_curve(job, self.last_losses(alone), trains_on=True)
        for taken in self.daemon.json("checkpoints", job):  # AdamW's would have 12 bytes of each
            self.assertLess(int(taken["bytes"]), int(self.daemon.show(job)["plan"]["parameters"]))

    def test_killed_workers(self):
        """Ranks die at moments drawn from a seed. Those left continue in their processes, and the
        job grows again with the new worker."""
        expected, log = self.undisturbed(), []
        chance = random.Random(SEED)
        for first in range(0, KILLS, KILLS_PER_JOB):
            log += self.kill_ranks(min(KILLS_PER_JOB, KILLS - first), chance, expected)
        seconds = [float(re.search(r"([0-9.e-]+) s without training", line).group(1)) for line in log]
        again = [int(re.search(r"(\d+) steps? lost", line).group(1)) for line in log]
        print(*log, f"{len(log)} kills with seed {SEED}: at most {max(again)} steps done again, "
              f"{statistics.median(seconds):.2f} s without training in the median", sep="\n")
        self.assertEqual(len(log), KILLS)

    def kill_ranks(self, kills, chance, expected):
        """Kills ranks of one job, one after another. Returns what the job's events say of each."""
        job = self.submit(*ELASTIC, *ENDLESS, "checkpoint.every_steps=4")
        for kill in range(kills):
            ranks = self.wait_world(job, 4, 5 + (STEPS - 80) * kill // kills)
            victim = chance.choice(sorted(ranks))
            time.sleep(chance.uniform(0, 0.2))
            attempt = self.daemon.show(job)["attempt"]
            os.kill(ranks[victim], signal.SIGKILL)
            self.daemon.wait_for(lambda: self.daemon.show(job)["attempt"] > attempt, 60,
                                 "another attempt")
            left = {pid for rank, pid in ranks.items() if rank != victim}
            alive = {int(worker["pid"]) for worker in self.daemon.worker_list()}
            self.assertLessEqual(left, alive, f"seed {SEED}, kill {kill} of rank {victim}")
        self.end(job, 4)
        self.expect_curve(job, expected, trains_on=True)
        resizing = [event["state"]["reason"]["message"] for event in self.daemon.events(job)
                    if "state" in event and event["state"]["state"] == "QUEUED"
                    and "the workers that are left" in event["state"]["reason"]["message"]]
        self.assertEqual(len(resizing), kills)
        self.assertIn("SIGKILL", resizing[0])
        changes = [text for text in self.running(job) if "; 4 workers before, " in text]
        self.assertEqual(len(changes), kills)
        return changes

    def test_restarted_coordinator(self):
        """A job with fewer workers than it wants outlives the coordinator, and so does the number
        that it wants; it grows afterwards."""
        job = self.submit(*ELASTIC, *ENDLESS, "workers=3")
        self.wait_world(job, 3, 4)
        self.assertEqual(self.daemon.ctl("resize", job, "2").returncode, 0)
        ranks = self.wait_world(job, 2)
        self.daemon.kill(signal.SIGKILL)
        self.daemon.start()
        self.assertEqual(self.wait_world(job, 2), ranks)
        self.assertEqual(self.daemon.show(job)["attempt"], 2)
        self.assertEqual(self.daemon.ctl("resize", job, "4").returncode, 0)
        self.end(job, 4)
        self.expect_curve(job, self.undisturbed(), trains_on=True)

    def train_again(self, job):
        """Waits until a second attempt trains with all workers, and cancels it."""
        self.daemon.wait_for(lambda: self.daemon.show(job)["attempt"] == 2, 60, "the next attempt")
        self.wait_world(job, 4)
        self.assertEqual(self.daemon.ctl("cancel", job).returncode, 0)
        self.daemon.wait_state(job, "CANCELLED")

    def test_too_few_are_left(self):
        """A job never has fewer workers than its least number: it waits."""
        job = self.submit(*ELASTIC, *ENDLESS, "checkpoint.every_steps=4",
                          "elastic={min_workers: 4, max_workers: 4}")
        ranks = self.wait_world(job, 4, 6)
        os.kill(ranks[2], signal.SIGKILL)
        self.train_again(job)
        self.assertTrue(all("training on 4 workers" in text for text in self.running(job)))

    def test_refusals(self):
        plain = self.submit(*SETTINGS, "workers=2", "train.max_steps=100000")
        result = self.daemon.ctl("resize", plain, "3")
        self.assertEqual(result.returncode, harness.CONFLICT)
        self.assertIn("is not elastic: its job file has no elastic.max_workers", result.stderr)
        self.daemon.ctl("cancel", plain)
        job = self.submit(*ELASTIC, *ENDLESS, "fsdp.strategy=hybrid_shard", "fsdp.shard_size=2")
        result = self.daemon.ctl("resize", job, "5")
        self.assertEqual(result.returncode, 1)
        self.assertIn("workers: expected 2 to 4, found 5", result.stderr)
        result = self.daemon.ctl("resize", job, "3")  # never entered
        self.assertEqual(result.returncode, 1)
        self.assertIn("workers: 3: fsdp.shard_size: expected a divisor of workers (3), found 2",
                      result.stderr)
        ranks = self.wait_world(job, 4, 3)
        os.kill(ranks[1], signal.SIGKILL)
        self.train_again(job)
        for text in self.running(job):
            self.assertNotIn("training on 3 workers", text)


if __name__ == "__main__":
    harness.main()
