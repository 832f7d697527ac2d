#!/usr/bin/env python3
"""A job with fsdp.auto is planned with chosen settings, trains with them, and keeps them."""

import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness

SETTINGS = ("fsdp.auto=true", "train.max_steps=4", "train.batch_size=32",
            "train.accumulation_steps=2", "train.evaluate=false", "save_model=false")

# 10^12 parameters
VAST = """name: Vast
input: [1, 28, 28]
classes: 10
modules:
  up: Linear(784, 1000000)
  on: Linear(1000000, 1000000)
  down: Linear(1000000, 10)
forward:
  - x = up(flatten(x, 1))
  - x = relu(on(x))
  - output = log_softmax(down(x), dim=1)
loss: nll_loss(output, target)
"""


def submit(daemon, *arguments, settings=SETTINGS):
    sets = [word for setting in (f"data.dir={daemon.data}", *settings)
            for word in ("--set", setting)]
    return daemon.ctl("submit", harness.JOB, *sets, *arguments)


class Auto(unittest.TestCase):
    def check_chosen(self, job):
        chosen, choice = job["chosen"], job["plan"]["choices"][0]
        self.assertEqual(chosen, choice)
        self.assertEqual((chosen["by"], chosen["profile"]), ("PLANNER", job["plan"]["device"]))
        self.assertGreater(chosen["step_seconds"], 0)
        self.assertTrue(job["spec"]["fsdp"]["choose"])  # as it was asked for
        # the samples of a step are what the file says, however they are divided
        settings = chosen["settings"]
        self.assertEqual(settings["batch_size"] * settings["accumulation_steps"], 64)
        self.assertIn("settings were chosen", " ".join(job["plan"]["notes"]))

    def test_a_job_keeps_what_was_chosen(self):
        with harness.Daemon(workers=2) as daemon:
            result = submit(daemon, "--id", "chosen", "--wait")
            self.assertEqual(result.returncode, 0, result.stderr)
            job = daemon.show("chosen")
            self.check_chosen(job)
            shown = daemon.ctl("show", "chosen").stdout
            self.assertIn("auto: true", shown)
            self.assertRegex(shown, r"\nchosen instead, by the planner, for cpu, [0-9.]+ .?s a step expected:\n\n"
                                    r"(.*\n)*fsdp.auto: false\n")
            # a repeated submission is the same job; one that says something else is not
            again = submit(daemon, "--id", "chosen")
            self.assertEqual(again.returncode, 0, again.stderr)
            other = submit(daemon, "--id", "chosen", settings=(*SETTINGS, "optimizer.lr=0.5"))
            self.assertEqual(other.returncode, harness.CONFLICT, other.stderr)
            self.assertIn("different spec", other.stderr)
            daemon.kill()
            daemon.start()
            self.assertEqual((daemon.show("chosen")["spec"], daemon.show("chosen")["chosen"]),
                             (job["spec"], job["chosen"]))

    def test_less_memory_changes_the_choice(self):
        with harness.Daemon(workers=2) as daemon:
            ask = ("plan", harness.JOB, "--auto", "--set", f"data.dir={daemon.data}")
            # with what the process needs beside its plan
            most = int(daemon.json(*ask)["resident_bytes"])
            less = int(daemon.json(*ask, "--memory", str(most - 1))["resident_bytes"])
            self.assertLess(less, most)
            refused = daemon.ctl(*ask, "--memory", "1kB")
            self.assertEqual(refused.returncode, harness.DOES_NOT_FIT, refused.stderr)
            self.assertIn("no settings fit in 1.00 kB", refused.stderr)
            self.assertIn("the process itself needs another", refused.stderr)
            nothing = daemon.ctl(*ask, "--memory", "0")
            self.assertEqual(nothing.returncode, harness.USAGE, nothing.stderr)

    def test_a_choice_that_cannot_fit_is_refused(self):
        with harness.Daemon(workers=1) as daemon:
            model = os.path.join(daemon.root, "vast.yaml")
            with open(model, "w") as file:
                file.write(VAST)
            result = submit(daemon, settings=(*SETTINGS, "workers=1", f"model.file={model}"))
            self.assertEqual(result.returncode, harness.DOES_NOT_FIT, result.stderr)
            self.assertIn("no settings fit in", result.stderr)
            self.assertIn("TB", result.stderr)
            self.assertEqual(daemon.json("list"), [])


if __name__ == "__main__":
    harness.main()
