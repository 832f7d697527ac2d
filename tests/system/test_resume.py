#!/usr/bin/env python3
"""Failed or paused jobs continue from their newest checkpoint, with other settings too."""

import os
import signal
import sys
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness

STEPS = 150
SETTINGS = ("train.evaluate=false", "train.log_interval=1", "workers=2",
            "retry.machine_failures=0")


class Resume(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.faults = harness.own_faults(cls.addClassCleanup)
        cls.daemon = harness.Daemon(environment=cls.faults.environment)
        cls.addClassCleanup(cls.daemon.close)

    def lose_worker(self, *settings):
        """A job that lost a worker after its checkpoint of step 5, or later."""
        self.faults.hold_checkpoint(2)  # so that it does not end before
        job = self.daemon.submit(*SETTINGS, *settings)
        self.daemon.wait_step(job, 6)
        if any(setting.startswith("checkpoint.") for setting in settings):
            # training continues while it is written
            self.daemon.wait_for(lambda: self.daemon.json("checkpoints", job), harness.PATIENCE,
                                 "the checkpoint")
        worker = next(row for row in self.daemon.worker_list() if row.get("job") == job)
        os.kill(int(worker["pid"]), signal.SIGKILL)
        self.faults.clear()
        self.daemon.wait_state(job, "FAILED")
        self.daemon.wait_for(lambda: len(self.daemon.worker_list()) == 2, harness.PATIENCE,
                             "the worker to be started again")
        return job

    def refuse(self, job, code, words, *settings):
        arguments = [word for setting in settings for word in ("--set", setting)]
        refused = self.daemon.ctl("resume", job, *arguments)
        self.assertEqual(refused.returncode, code, refused.stderr)
        self.assertIn(words, refused.stderr)

    def test_failed(self):
        """The same bits as without the failure, also if fsdpd is killed in between."""
        whole = self.daemon.submit(*SETTINGS, f"train.max_steps={STEPS}")
        self.daemon.wait_state(whole, "SUCCEEDED")
        job = self.lose_worker("checkpoint.every_steps=5", "checkpoint.keep=2", f"train.max_steps={STEPS}")
        newest = int(self.daemon.json("checkpoints", job)[-1]["step"])
        resumed = self.daemon.json("resume", job)
        self.assertIn(resumed["reason"]["code"], ("RESUMED", "STARTING"))
        self.daemon.wait_step(job, newest + 1)
        self.daemon.kill()
        self.daemon.start()
        ended = self.daemon.wait_state(job, "SUCCEEDED", "FAILED")
        self.assertEqual(ended["state"], "SUCCEEDED", ended["reason"])
        self.assertEqual(int(ended["step"]), STEPS)
        self.assertEqual(ended["attempt"], 2)
        self.assertEqual(self.daemon.tensors(job), self.daemon.tensors(whole))
        history = [(entry["state"], entry["reason"]["code"])
                   for entry in self.daemon.json("history", job)]
        self.assertLess(history.index(("FAILED", "WORKER_LOST")), history.index(("QUEUED", "RESUMED")))
        watched = self.daemon.ctl("watch", job)
        self.assertEqual(watched.returncode, 0, watched.stderr)
        self.refuse(job, harness.CONFLICT, "is SUCCEEDED")

    def test_settings(self):
        job = self.lose_worker("checkpoint.every_steps=5", "train.max_steps=100000",
                               "schedule.type=constant")
        end = int(self.daemon.json("checkpoints", job)[-1]["step"]) + 10
        model = os.path.join(os.path.dirname(harness.JOB), "net.yaml")
        for words, setting in (("optimizer.type", "optimizer.type=sgd"),
                               ("train.seed", "train.seed=5"),
                               ("train.shuffle", "train.shuffle=false"),
                               ("data.normalize.mean", "data.normalize.mean=0.5"),
                               ("priority", "priority=7"),
                               ("name", "name=other"),
                               ("checkpoint.directory", f"checkpoint.directory={self.daemon.data}"),
                               ("train.max_steps: expected at least", "train.max_steps=4")):
            self.refuse(job, harness.CONFLICT, words, setting)
        self.refuse(job, harness.USAGE, "model", f"model.file={model}")
        self.refuse(job, harness.USAGE, "train.max_steps", "train.max_steps=some")
        self.refuse(job, harness.NOT_FOUND, "nowhere", "data.dir=nowhere")
        self.assertEqual(self.daemon.show(job)["state"], "FAILED")
        resumed = self.daemon.ctl("resume", job, "--set", "workers=1", "--set", "optimizer.lr=0.5",
                                  "--set", f"train.max_steps={end}", "--set", "checkpoint.keep=0")
        self.assertEqual(resumed.returncode, 0, resumed.stderr)
        ended = self.daemon.wait_state(job, "SUCCEEDED", "FAILED")
        self.assertEqual(ended["state"], "SUCCEEDED", ended["reason"])
        self.assertEqual((int(ended["step"]), ended["spec"]["workers"]), (end, 1))
        self.assertEqual(ended["spec"]["optimizer"]["lr"], 0.5)
        self.assertEqual(len(ended["workers"]), 1)
        rates = [event["metrics"]["learning_rate"] for event in self.daemon.events(job)
                 if "metrics" in event]
        self.assertEqual((rates[0], rates[-1]), (1, 0.5))

    def test_paused(self):
        job = self.daemon.submit(*SETTINGS, "train.max_steps=100000")
        self.daemon.wait_step(job, 3)
        self.assertEqual(self.daemon.ctl("pause", job).returncode, 0)
        step = int(self.daemon.show(job)["step"])
        self.refuse(job, harness.CONFLICT, "train.max_steps", f"train.max_steps={step - 1}")
        resumed = self.daemon.ctl("resume", job, "--set", f"train.max_steps={step + 4}")
        self.assertEqual(resumed.returncode, 0, resumed.stderr)
        ended = self.daemon.wait_state(job, "SUCCEEDED", "FAILED")
        self.assertEqual((ended["state"], int(ended["step"])), ("SUCCEEDED", step + 4))

    def rates(self, job):
        return {int(event["metrics"]["step"]): event["metrics"]["learning_rate"]
                for event in self.daemon.events(job) if "metrics" in event}

    def test_succeeded(self):
        """More steps end with the same bits as if the job had had them at first; until then its result stays."""
        settings = (*SETTINGS, "schedule.type=constant", "checkpoint.every_steps=5")
        whole = self.daemon.submit(*settings, "train.max_steps=20")
        job = self.daemon.submit(*settings, "train.max_steps=10")
        later = self.daemon.submit(*SETTINGS, "train.max_steps=2", f"after={job}")
        for one in (whole, job, later):
            self.daemon.wait_state(one, "SUCCEEDED")
        result = self.daemon.tensors(job)
        self.refuse(job, harness.CONFLICT, "is SUCCEEDED: only")
        for setting in ("train.max_steps=10", "optimizer.lr=0.5"):
            self.refuse(job, harness.CONFLICT, "has trained 10 steps, and would have 10", setting)
        self.assertEqual(self.daemon.show(job)["state"], "SUCCEEDED")

        self.faults.hold_checkpoint()  # of step 15: it trains to step 20 at most
        resumed = self.daemon.ctl("resume", job, "--set", "train.max_steps=20")
        self.assertEqual(resumed.returncode, 0, resumed.stderr)
        self.daemon.wait_step(job, 12)
        worker = next(row for row in self.daemon.worker_list() if row.get("job") == job)
        os.kill(int(worker["pid"]), signal.SIGKILL)
        self.daemon.wait_state(job, "FAILED")
        self.faults.clear()
        self.assertEqual(self.daemon.tensors(job), result)
        self.daemon.kill()
        self.daemon.start()
        self.assertEqual(self.daemon.tensors(job), result)
        resumed = self.daemon.ctl("resume", job)
        self.assertEqual(resumed.returncode, 0, resumed.stderr)
        ended = self.daemon.wait_state(job, "SUCCEEDED", "FAILED")
        self.assertEqual((ended["state"], int(ended["step"])), ("SUCCEEDED", 20), ended["reason"])
        self.assertEqual(self.daemon.tensors(job), self.daemon.tensors(whole))
        self.assertNotEqual(self.daemon.tensors(job), result)
        shown = self.daemon.show(later)
        self.assertEqual((shown["state"], shown["attempt"]), ("SUCCEEDED", 1))

    def test_result_that_is_not_replaced(self):
        """The next result is lost while it is saved: the last one is whole, with its sums."""
        settings = (*SETTINGS, "checkpoint.every_steps=5")
        for rule in ("write */state_dict.safetensors.* ENOSPC", "fsync */state_dict.safetensors.* EIO"):
            with self.subTest(rule=rule):
                job = self.daemon.submit(*settings, "train.max_steps=10")
                self.daemon.wait_state(job, "SUCCEEDED")
                result = self.daemon.tensors(job)
                self.faults.set(rule)
                resumed = self.daemon.ctl("resume", job, "--set", "train.max_steps=20")
                self.assertEqual(resumed.returncode, 0, resumed.stderr)
                self.daemon.wait_for(lambda: self.daemon.show(job)["reason"]["code"] == "SAVING", harness.PATIENCE,
                                     "the saving that fails")
                self.assertEqual(self.daemon.ctl("cancel", job).returncode, 0)
                self.daemon.wait_state(job, "CANCELLED")
                self.faults.clear()
                self.assertEqual(self.daemon.tensors(job), result)
                verified = self.daemon.ctl("verify", job)
                self.assertEqual(verified.returncode, 0, verified.stderr)

    def test_succeeded_schedule(self):
        """A schedule over the whole job is that of the new epochs."""
        settings = (*SETTINGS, "schedule.type=linear", "checkpoint.every_epochs=1")
        whole = self.daemon.submit(*settings, "train.epochs=2")
        job = self.daemon.submit(*settings, "train.epochs=1")
        self.daemon.wait_state(whole, "SUCCEEDED")
        end = int(self.daemon.wait_state(job, "SUCCEEDED")["step"])
        resumed = self.daemon.ctl("resume", job, "--set", "train.epochs=2")
        self.assertEqual(resumed.returncode, 0, resumed.stderr)
        self.daemon.wait_step(job, end + 1)
        self.daemon.wait_state(job, "SUCCEEDED")
        expected, found = self.rates(whole), self.rates(job)
        self.assertEqual(len(found), 2 * end)
        self.assertEqual([found[step] for step in range(end + 1, 2 * end + 1)],
                         [expected[step] for step in range(end + 1, 2 * end + 1)])

    def test_succeeded_without_a_checkpoint(self):
        job = self.daemon.submit(*SETTINGS, "train.max_steps=2")
        self.daemon.wait_state(job, "SUCCEEDED")
        self.refuse(job, harness.CONFLICT, "is SUCCEEDED and has no checkpoint", "train.max_steps=9")

    def test_nothing_to_resume_from(self):
        job = self.lose_worker("train.max_steps=100000")
        self.refuse(job, harness.CONFLICT, "no checkpoint")
        self.refuse("nobody-1", harness.NOT_FOUND, "nobody-1")
        self.assertEqual(self.daemon.show(job)["state"], "FAILED")


if __name__ == "__main__":
    harness.main()
