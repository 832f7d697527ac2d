#!/usr/bin/env python3
"""Pause and resume: the workers are free, a restart changes nothing, and the result has the same
bits."""

import json
import os
import signal
import sys
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness

STEPS = 80
SETTINGS = (f"train.max_steps={STEPS}", "train.log_interval=1")
HELD = ("checkpoint.every_steps=20",)  # a held checkpoint stops it 20 steps later


class Pause(unittest.TestCase):
    def setUp(self):
        self.faults = harness.own_faults(self.addCleanup)
        self.daemon = harness.Daemon(environment=self.faults.environment)
        self.addCleanup(self.daemon.close)

    def pause_held(self, job):
        """Pauses a job that waits for a held checkpoint, so that it cannot end before. Returns the answer."""
        asker = self.daemon.spawn("pause", job, "-o", "json")
        self.daemon.wait_for(lambda: self.daemon.show(job)["reason"]["code"] == "PAUSING", 60, "the pause to begin")
        self.faults.clear()
        output, errors = asker.communicate(timeout=harness.PATIENCE)
        self.assertEqual(asker.returncode, 0, errors)
        return json.loads(output)

    def test_pause_and_resume(self):
        result = self.daemon.submit(*SETTINGS, wait=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        plain = self.daemon.json("list")[-1]["id"]

        self.faults.hold_checkpoint()
        job = self.daemon.submit(*SETTINGS, *HELD)
        self.daemon.wait_step(job, 40)
        paused = self.pause_held(job)
        self.assertEqual((paused["state"], paused["reason"]["code"]), ("PAUSED", "PAUSED"))
        step = int(paused["step"])
        self.assertEqual(int(self.daemon.json("checkpoints", job)[-1]["step"]), step)
        self.daemon.wait_for(
            lambda: [worker["state"] for worker in self.daemon.worker_list()] == ["idle"] * 2,
            10, "two idle workers")
        again = self.daemon.ctl("pause", job)
        self.assertEqual(again.returncode, harness.CONFLICT)
        self.assertIn("PAUSED already", again.stderr)
        pulled = self.daemon.ctl("pull", job, "-o", os.path.join(self.daemon.root, "x"))
        self.assertEqual(pulled.returncode, 0, pulled.stderr)
        self.assertIn(f"checkpoint of step {step}", pulled.stderr)

        # Another job takes the workers; the daemon dies; the job stays paused at its step.
        self.assertEqual(self.daemon.submit("train.max_steps=3", wait=True).returncode, 0)
        self.daemon.kill(signal.SIGKILL)
        self.daemon.start()
        shown = self.daemon.show(job)
        self.assertEqual((shown["state"], int(shown["step"])), ("PAUSED", step))

        entries = self.daemon.json("history", job)
        asked = [(entry["reason"]["code"], entry["by"]) for entry in entries
                 if entry["reason"]["code"] in ("PAUSING", "PAUSED")]
        self.assertEqual(asked, [("PAUSING", shown["owner"]), ("PAUSED", shown["owner"])])

        watcher = self.daemon.spawn("watch", job)
        resumed = self.daemon.ctl("resume", job)
        self.assertEqual(resumed.returncode, 0, resumed.stderr)
        output, errors = watcher.communicate(timeout=harness.PATIENCE)
        self.assertEqual(watcher.returncode, 0, errors)
        self.assertIn(f"continuing from step {step}", output)
        self.assertEqual(self.daemon.show(job)["attempt"], 2)
        # each step once, the same bits
        self.assertEqual(self.daemon.losses(job), self.daemon.losses(plain))
        self.assertEqual(self.daemon.tensors(job), self.daemon.tensors(plain))
        over = self.daemon.ctl("resume", job)
        self.assertEqual(over.returncode, harness.CONFLICT)

    def test_again_and_again(self):
        self.faults.hold_checkpoint()
        job = self.daemon.submit(f"train.max_steps={2 * STEPS}", *SETTINGS[1:], *HELD)
        steps = []
        for _ in range(3):
            self.daemon.wait_step(job, (steps[-1] if steps else 0) + 20)
            steps.append(int(self.pause_held(job)["step"]))
            self.faults.hold_checkpoint()
            self.assertEqual(self.daemon.ctl("resume", job).returncode, 0)
        self.faults.clear()
        self.assertEqual(steps, sorted(set(steps)))
        self.daemon.wait_state(job, "SUCCEEDED")
        self.assertEqual([step for step, _ in self.daemon.losses(job)], list(range(1, 2 * STEPS + 1)))

    def test_refused_and_cancelled(self):
        queued = self.daemon.submit("workers=5")
        refused = self.daemon.ctl("pause", queued)
        self.assertEqual(refused.returncode, harness.CONFLICT)
        self.assertIn("hold", refused.stderr)
        self.assertEqual(self.daemon.ctl("resume", queued).returncode, harness.CONFLICT)
        self.daemon.ctl("cancel", queued)
        job = self.daemon.submit("train.epochs=100000")
        paused = self.daemon.ctl("pause", job)  # also a job that has only just begun
        if paused.returncode == harness.CONFLICT:  # it was not placed yet
            self.daemon.wait_step(job, 1)
            paused = self.daemon.ctl("pause", job)
        self.assertEqual(paused.returncode, 0, paused.stderr)
        self.assertEqual(self.daemon.ctl("cancel", job).returncode, 0)
        self.assertEqual(self.daemon.show(job)["state"], "CANCELLED")


if __name__ == "__main__":
    harness.main()
