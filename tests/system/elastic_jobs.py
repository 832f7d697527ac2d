"""Elastic jobs for tests: a small GPT with dropout whose curve does not depend on its workers."""

import datetime
import json
import os
import re
import shutil
import signal
import tempfile
import unittest

import harness

STEPS = 200
SETTINGS = (f"train.max_steps={STEPS}", "train.log_interval=1", "train.global_batch=18",
            "train.batch_size=4", "train.evaluate=false", "data.context=32",
            "schedule.warmup_steps=10",
            "optimizer.lr=3.0e-4")  # with a larger one, training itself amplifies rounding
ELASTIC = SETTINGS + ("elastic={min_workers: 2, max_workers: 4}", "workers=4",
                      "retry.machine_failures=0")
# Trains only adapters: the base is in no checkpoint and in no other rank's memory.
ADAPTER = ("model.lora={rank: 4, alpha: 8, targets: [all-linear]}", "optimizer.lr=3.0e-3")
# After the curve it continues, so that it does not end before what it is ordered.
ENDLESS = ("train.max_steps=100000", f"schedule.total_steps={STEPS}")
CHANGE = re.compile(r"training on (\d) workers?(?:, continuing from step (\d+)( in memory)?)?(.*)")
LOST = re.compile(r"; (\d) workers? before, (\d+) steps? lost")


def read_log(path):
    """The lines of a script that has one per seed, or none."""
    if not os.path.exists(path):
        return []
    with open(path) as file:
        return [json.loads(line) for line in file]


class ElasticTestCase(unittest.TestCase):
    expected = None
    width = 128  # of the model

    @classmethod
    def setUpClass(cls):
        cls.data = tempfile.mkdtemp(prefix="fsdpd-test-")
        cls.file = harness.draw_text_job(cls.data, cls.width)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.data)

    def setUp(self):
        self.daemon = harness.Daemon(workers=4, data=self.data)
        self.addCleanup(self.daemon.close)

    def submit(self, *settings, options=()):
        arguments = ["submit", self.file, *options]
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

    def end(self, job, world):
        """Cancels a job that continues after the curve, once it has that many workers and the curve."""
        self.wait_world(job, world, STEPS)
        self.assertEqual(self.daemon.ctl("cancel", job).returncode, 0)
        self.daemon.wait_state(job, "CANCELLED")

    def last_losses(self, job):
        return {int(step): loss for step, loss in self.daemon.losses(job)}

    def undisturbed(self):
        """The losses of a run whose workers never change."""
        if self.expected is None:
            job = self.submit(*SETTINGS, "workers=3")
            self.succeed(job)
            ElasticTestCase.expected = self.last_losses(job)
        return self.expected

    def expect_curve(self, job, expected, trains_on=False):
        """The losses are these; of a job that `trains_on`, those of the first steps."""
        losses = self.last_losses(job)
        if trains_on:
            losses = {step: loss for step, loss in losses.items() if step <= max(expected)}
        self.assertEqual(sorted(losses), sorted(expected))
        worst = max(abs(losses[step] / expected[step] - 1) for step in expected)
        self.assertLessEqual(worst, 1e-5)
        return worst


class RedundancyTestCase(ElasticTestCase):
    def changes(self, job):
        """Of every attempt but the first: its world, the step it continues from, whether in memory,
        the steps that were lost, and what its event says."""
        found = []
        for text in self.running(job)[1:]:
            world, step, memory, rest = CHANGE.match(text).groups()
            lost = LOST.search(rest)
            found.append((int(world), int(step or 0), memory is not None,
                          int(lost.group(2)) if lost else None, text))
        return found

    def seconds_to_step(self, job, killed):
        """From each last kill of a group to the next step that a later attempt finished."""
        steps = [(event["attempt"], datetime.datetime.fromisoformat(event["time"]).timestamp())
                 for event in self.daemon.events(job) if "metrics" in event]
        return [min(when for number, when in steps if number > attempt and when > at) - at
                for attempt, at in killed]

    def pull(self, job):
        """The weights of a running job, and their step."""
        path = os.path.join(self.daemon.root, "final")
        pulled = self.daemon.ctl("pull", job, "-o", path, "--format", "json")
        self.assertEqual(pulled.returncode, 0, pulled.stderr)
        return harness.read_safetensors(path)[0], int(json.loads(pulled.stdout)["step"])

    def saved(self, weights):
        """What a checkpoint has of these weights: of adapters, no base, which is not trained."""
        return {name: values for name, values in weights.items() if ".lora_" in name} or weights

    def checkpoints(self, job):
        return {int(one["step"]) for one in self.daemon.json("checkpoints", job)}

    def on_disk(self, job):
        """The paths of complete checkpoints, by step."""
        directory = os.path.join(self.daemon.root, "state/jobs", job, "checkpoints")
        return {int(name[len("step-"):].split("-")[0]): os.path.join(directory, name)
                for name in os.listdir(directory) if name.startswith("step-")}

    def train_by_plan(self, changes, steps, settings):
        """The weights of that step of a job whose world changes at these steps, by way of
        checkpoints."""
        def until(step):  # with a checkpoint at that step, and time to end it after that
            return f"train.max_steps={100 * step}", f"checkpoint.every_steps={step}"

        def wait_checkpoint(job, world, step):
            ranks = self.wait_world(job, world, step + 1)
            self.daemon.wait_for(lambda: step in self.checkpoints(job) and step in self.on_disk(job),
                                 60, "the checkpoint")
            return ranks

        ends = [step for _, step in changes[1:]] + [steps]
        job = self.submit(*SETTINGS, *settings, *until(ends[0]), f"workers={changes[0][0]}",
                          "retry.machine_failures=0", "checkpoint.keep=1000")
        self.planned_job = job
        for (before, _), (world, step), end in zip(changes, changes[1:], ends[1:]):
            ranks = wait_checkpoint(job, before, step)
            os.kill(ranks[0], signal.SIGKILL)
            self.daemon.wait_state(job, "FAILED")
            for later, path in self.on_disk(job).items():
                if later > step:
                    shutil.rmtree(path)
            self.daemon.wait_for(lambda: len(self.daemon.worker_list()) == self.daemon.workers, 60,
                                 "the worker")
            settings = [word for setting in (f"workers={world}", *until(end))
                        for word in ("--set", setting)]
            resumed = self.daemon.ctl("resume", job, *settings)
            self.assertEqual(resumed.returncode, 0, resumed.stderr)
            self.daemon.wait_state(job, "RUNNING")
            text = [entry["reason"]["message"] for entry in self.daemon.json("history", job)
                    if entry["reason"]["code"] == "RUNNING"][-1]
            self.assertIn(f"training on {world} workers, continuing from step {step}", text)
        wait_checkpoint(job, changes[-1][0], steps)
        self.daemon.ctl("cancel", job)
        self.daemon.wait_state(job, "CANCELLED")
        return self.daemon.tensors(job, "--checkpoint", str(steps))
