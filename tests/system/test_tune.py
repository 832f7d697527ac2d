#!/usr/bin/env python3
"""fsdp.tune: a job tries other units in its first steps, keeps the fastest, and computes the same."""

import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness

STEPS = 400  # of which 5 % are 20: two trials of 10 steps, or three of 6
SETTINGS = (f"train.max_steps={STEPS}", "train.log_interval=1", "train.batch_size=8",
            "train.evaluate=false", "optimizer.type=sgd", "optimizer.lr=0.01")


class Tune(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = harness.Daemon(workers=2)

    @classmethod
    def tearDownClass(cls):
        cls.daemon.close()

    def train(self, *settings):
        """Trains to the end: the job, its losses and its weights."""
        submitted = self.daemon.submit(*SETTINGS, *settings, wait=True)
        self.assertEqual(submitted.returncode, 0, submitted.stderr)
        job = self.daemon.json("list")[-1]["id"]
        path = os.path.join(self.daemon.root, "weights")
        pulled = self.daemon.ctl("pull", job, "-o", path)
        self.assertEqual(pulled.returncode, 0, pulled.stderr)
        tensors, _ = harness.read_safetensors(path)
        weights = {name: tensor[2] for name, tensor in tensors.items()}
        return self.daemon.show(job), dict(self.daemon.losses(job)), weights

    def end_of_tuning(self, job):
        [change] = [event["wrap"] for event in self.daemon.events(job["id"]) if "wrap" in event]
        return change

    def test_the_fastest_stays_and_no_value_changes(self):
        _, losses, weights = self.train()
        job, tuned_losses, tuned_weights = self.train("fsdp.tune=true")
        self.assertEqual(tuned_losses, losses)  # the same bits
        self.assertEqual(tuned_weights, weights)

        change = self.end_of_tuning(job)
        trials = change["trials"]
        self.assertGreaterEqual(len(trials), 2)
        self.assertEqual(trials[0]["description"], "the job's own units")
        self.assertLessEqual(change["step"], STEPS * 5 // 100)
        self.assertEqual(change["stopped"], "")
        measured = [trial for trial in trials if trial["measured_seconds"] > 0]
        self.assertGreaterEqual(len(measured), 2)
        [kept] = [trial for trial in trials if trial["kept"]]
        self.assertEqual(kept["measured_seconds"],
                         min(trial["measured_seconds"] for trial in measured))
        for trial in trials:
            self.assertGreater(trial["expected_seconds"], 0)

        # from now on the job has what it kept
        self.assertTrue(job["chosen"]["tuned"])
        self.assertTrue(job["spec"]["fsdp"]["tune"])  # as it was asked for
        self.assertEqual(harness.wrap_of(job), change["wrap"])
        if not trials[0]["kept"]:
            self.assertEqual((job["chosen"]["by"], job["chosen"]["description"]), ("TUNE", kept["description"]))
        self.assertEqual([unit["name"] for unit in job["plan"]["units"]],
                         [unit["name"] for unit in change["units"]])
        watched = self.daemon.ctl("watch", job["id"]).stdout
        self.assertIn("units tried: the job's own units ", watched)
        self.assertIn(", kept", watched)
        sets = [word for setting in (*SETTINGS, "fsdp.tune=true", f"data.dir={self.daemon.data}")
                for word in ("--set", setting)]
        again = self.daemon.ctl("submit", harness.JOB, "--id", job["id"], *sets)
        self.assertEqual(again.returncode, 0, again.stderr)  # the same job

    def test_a_short_run_tries_nothing(self):
        job, losses, _ = self.train("fsdp.tune=true", "train.max_steps=40")
        self.assertEqual(len(losses), 40)
        change = self.end_of_tuning(job)
        self.assertEqual(change["stopped"], "the run is too short to try other units")
        self.assertEqual([trial["measured_seconds"] for trial in change["trials"]],
                         [0] * len(change["trials"]))
        self.assertIn("a run of 40 steps is too short", " ".join(job["plan"]["notes"]))

    def test_one_worker_tries_nothing(self):
        job, _, _ = self.train("fsdp.tune=true", "workers=1", "train.max_steps=10")
        self.assertIn("fsdp.tune has no effect with one worker", job["plan"]["notes"])
        self.assertEqual([event for event in self.daemon.events(job["id"]) if "wrap" in event], [])

    def test_units_set_by_hand_end_the_trials(self):
        job = self.daemon.submit(*SETTINGS, "fsdp.tune=true", "train.max_steps=100000")
        self.daemon.wait_step(job, 1)
        changed = self.daemon.ctl("wrap", "set", job, "--policy", "none")
        self.assertEqual(changed.returncode, 0, changed.stderr)

        self.daemon.wait_for(lambda: self.daemon.show(job)["chosen"]["tuned"], 60, "the end of the trials")
        self.assertEqual(harness.wrap_of(self.daemon.show(job))["policy"], "none")
        self.daemon.ctl("cancel", job)
        self.daemon.wait_state(job, "CANCELLED")


if __name__ == "__main__":
    harness.main()
