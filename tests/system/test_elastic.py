#!/usr/bin/env python3
"""Elastic jobs: their number of workers changes while they train, by order or because workers die
or come back; processes that live stay, and the curve is that of an undisturbed run."""

import os
import random
import shutil
import signal
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness

STEPS = 120
SETTINGS = (f"train.max_steps={STEPS}", "train.log_interval=1", "train.global_batch=18",
            "train.batch_size=4", "train.evaluate=false", "data.context=32",
            "schedule.warmup_steps=10")
ELASTIC = SETTINGS + ("elastic={min_workers: 2, max_workers: 4}", "workers=4",
                      "retry.machine_failures=0")
KILLS = int(os.environ.get("FSDPD_ELASTIC_KILLS", "3"))
SEED = int(os.environ.get("FSDPD_ELASTIC_SEED", "1"))


class Elastic(unittest.TestCase):
    expected = None

    @classmethod
    def setUpClass(cls):
        """The example's GPT, with dropout: smooth, so that rounding stays rounding."""
        cls.data = tempfile.mkdtemp(prefix="fsdpd-test-")
        example = os.path.join(harness.SOURCE, "examples/shakespeare")
        shutil.copy(os.path.join(example, "job.yaml"), cls.data)
        with open(os.path.join(example, "model.yaml")) as file:
            model = file.read().replace("is_causal=True", "is_causal=True, dropout_p=0.1")
        with open(os.path.join(cls.data, "model.yaml"), "w") as file:
            file.write(model)
        with open(os.path.join(cls.data, "text.txt"), "w") as file:
            file.write("".join(f"{n} squared is {n * n}. " for n in range(3000)))

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.data)

    def setUp(self):
        self.daemon = harness.Daemon(workers=4, data=self.data)
        self.addCleanup(self.daemon.close)

    def submit(self, *settings):
        arguments = ["submit", os.path.join(self.data, "job.yaml")]
        for setting in ("data.path=" + os.path.join(self.data, "text.txt"), *settings):
            arguments += ["--set", setting]
        return self.daemon.json(*arguments)["id"]

    def ranks(self, job):
        return {int(worker["rank"]): int(worker["pid"]) for worker in self.daemon.worker_list()
                if worker.get("job") == job}

    def wait_world(self, job, world, step=0):
        """The job trains with that many workers, and has come to a step."""
        def reached():
            shown = self.daemon.show(job)
            self.assertIn(shown["state"], ("QUEUED", "STARTING", "RUNNING"), shown["reason"])
            ranks = self.ranks(job)
            return (shown["state"] == "RUNNING" and len(ranks) == world
                    and len(shown["workers"]) == world and int(shown["step"]) >= step and ranks)
        return self.daemon.wait_for(reached, 60, f"{world} workers at step {step}")

    def step(self, job):
        return int(self.daemon.show(job)["step"])

    def running(self, job):
        return [event["state"]["reason"]["message"] for event in self.daemon.events(job)
                if "state" in event and event["state"]["state"] == "RUNNING"
                and event["state"]["reason"]["code"] == "RUNNING"]

    def succeed(self, job):
        shown = self.daemon.wait_state(job, "SUCCEEDED", "FAILED", "CANCELLED", seconds=120)
        self.assertEqual(shown["state"], "SUCCEEDED", shown["reason"])

    def last_losses(self, job):
        return {int(step): loss for step, loss in self.daemon.losses(job)}

    def undisturbed(self):
        """The losses of a run whose workers never change."""
        if self.expected is None:
            job = self.submit(*SETTINGS, "workers=3")
            self.succeed(job)
            self.__class__.expected = self.last_losses(job)
        return self.expected

    def expect_curve(self, job, expected):
        losses = self.last_losses(job)
        self.assertEqual(sorted(losses), sorted(expected))
        worst = max(abs(losses[step] / expected[step] - 1) for step in expected)
        self.assertLessEqual(worst, 1e-5)

    def test_resize(self):
        """4, 3, 2 and 4 workers by order: no step is lost, no process ends, the same curve."""
        expected = self.undisturbed()
        pids = sorted(int(worker["pid"]) for worker in self.daemon.worker_list())
        job = self.submit(*ELASTIC)
        self.wait_world(job, 4, 5)
        for world in (3, 2, 4):
            result = self.daemon.ctl("resize", job, str(world))
            self.assertEqual(result.returncode, 0, result.stderr)
            self.wait_world(job, world)
            self.daemon.wait_step(job, self.step(job) + 3)
        self.succeed(job)
        self.assertEqual(sorted(int(worker["pid"]) for worker in self.daemon.worker_list()), pids)
        running = self.running(job)
        self.assertEqual(len(running), 4)
        for message, (before, world) in zip(running[1:], ((4, 3), (3, 2), (2, 4))):
            self.assertIn(f"training on {world} workers, continuing from step", message)
            self.assertIn(f"; {before} workers before, 0 steps lost, ", message)
        self.assertEqual([step for step, _ in self.daemon.losses(job)], list(range(1, STEPS + 1)))
        self.expect_curve(job, expected)
        asked = [(entry["reason"]["message"], entry["by"])
                 for entry in self.daemon.json("history", job)
                 if entry["reason"]["code"] == "RESIZE"]
        self.assertEqual(asked[0], ("3 workers wanted, 4 before", self.daemon.show(job)["owner"]))

    def test_killed_workers(self):
        """Ranks die at moments drawn from a seed. Those left continue in their processes, and the
        job grows again with the new worker."""
        expected = self.undisturbed()
        chance = random.Random(SEED)
        job = self.submit(*ELASTIC, "checkpoint.every_steps=4")
        for kill in range(KILLS):
            ranks = self.wait_world(job, 4, 5 + 60 * kill // KILLS)
            victim = chance.choice(sorted(ranks))
            os.kill(ranks[victim], signal.SIGKILL)
            attempt = self.daemon.show(job)["attempt"]
            self.daemon.wait_for(lambda: self.daemon.show(job)["attempt"] > attempt, 60,
                                 "another attempt")
            left = {pid for rank, pid in ranks.items() if rank != victim}
            alive = {int(worker["pid"]) for worker in self.daemon.worker_list()}
            self.assertLessEqual(left, alive, f"seed {SEED}, kill {kill} of rank {victim}")
        self.succeed(job)
        self.expect_curve(job, expected)
        resizing = [event["state"]["reason"]["message"] for event in self.daemon.events(job)
                    if "state" in event and event["state"]["state"] == "QUEUED"
                    and "the workers that are left" in event["state"]["reason"]["message"]]
        self.assertEqual(len(resizing), KILLS)
        self.assertIn("SIGKILL", resizing[0])

    def test_restarted_coordinator(self):
        """A job with fewer workers than it wants outlives the coordinator, and so does the number
        that it wants; it grows afterwards."""
        job = self.submit(*ELASTIC, "workers=3")
        self.wait_world(job, 3, 4)
        self.assertEqual(self.daemon.ctl("resize", job, "2").returncode, 0)
        ranks = self.wait_world(job, 2)
        self.daemon.kill(signal.SIGKILL)
        self.daemon.start()
        self.assertEqual(self.wait_world(job, 2), ranks)
        self.assertEqual(self.daemon.show(job)["attempt"], 2)
        self.assertEqual(self.daemon.ctl("resize", job, "4").returncode, 0)
        self.wait_world(job, 4)
        self.succeed(job)
        self.expect_curve(job, self.undisturbed())

    def test_too_few_are_left(self):
        """A job never has fewer workers than its least number: it waits."""
        job = self.submit(*ELASTIC, "checkpoint.every_steps=4",
                          "elastic={min_workers: 4, max_workers: 4}", "train.max_steps=40")
        ranks = self.wait_world(job, 4, 6)
        os.kill(ranks[2], signal.SIGKILL)
        self.daemon.wait_for(lambda: self.daemon.show(job)["attempt"] == 2, 60, "the next attempt")
        self.succeed(job)
        self.assertTrue(all("training on 4 workers" in text for text in self.running(job)))

    def test_refusals(self):
        plain = self.submit(*SETTINGS, "workers=2", "train.max_steps=100000")
        result = self.daemon.ctl("resize", plain, "3")
        self.assertEqual(result.returncode, harness.CONFLICT)
        self.assertIn("is not elastic: its job file has no elastic.max_workers", result.stderr)
        self.daemon.ctl("cancel", plain)
        job = self.submit(*ELASTIC, "fsdp.strategy=hybrid_shard", "fsdp.shard_size=2",
                          "train.max_steps=60")
        result = self.daemon.ctl("resize", job, "5")
        self.assertEqual(result.returncode, 1)
        self.assertIn("workers: expected 2 to 4, found 5", result.stderr)
        result = self.daemon.ctl("resize", job, "3")  # never entered
        self.assertEqual(result.returncode, 1)
        self.assertIn("workers: 3: fsdp.shard_size: expected a divisor of workers (3), found 2",
                      result.stderr)
        ranks = self.wait_world(job, 4, 3)
        os.kill(ranks[1], signal.SIGKILL)
        self.succeed(job)
        for text in self.running(job):
            self.assertNotIn("training on 3 workers", text)


if __name__ == "__main__":
    harness.main()
