#!/usr/bin/env python3
"""A daemon measures a profile of its idle workers once, keeps it, and plans with it."""

import contextlib
import glob
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness

NOTE = "times are from the profile that was measured on this kind of device"
SHORT = ("--calibrate-after", "0.3", "--calibrate-seconds", "1")
ENDLESS = ("--calibrate-after", "0.3", "--calibrate-seconds", "600")
LONG_JOB = ("train.max_steps=1000000", "train.evaluate=false", "save_model=false")


def kept(daemon):
    return glob.glob(os.path.join(daemon.root, "state/profiles/*.yaml"))


def notes(daemon, *arguments):
    return daemon.json("plan", harness.JOB, "--set", f"data.dir={daemon.data}", *arguments)["notes"]


def calibrating(daemon):
    """The processes that measure: children of the daemon's workers."""
    found = []
    for worker in harness.children(daemon.process.pid):
        for pid in harness.children(worker):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as command:
                    if b"calibrate" in command.read().split(b"\0"):
                        found.append(pid)
            except (FileNotFoundError, ProcessLookupError):
                pass
    return found


def wait_calibrated(daemon, times):
    """The log says so that many times. What measures has the lowest priority and a limit of time: on a busy machine it
    would starve into that, so it gets the usual priority, where this user may give it."""
    def measured():
        for pid in calibrating(daemon):
            with contextlib.suppress(OSError):
                for thread in os.listdir(f"/proc/{pid}/task"):
                    os.setpriority(os.PRIO_PROCESS, int(thread), 0)
        return daemon.text().count("calibrated ") == times
    daemon.wait_for(measured, 60, "a profile")


class Calibration(unittest.TestCase):
    def restart(self, daemon, *arguments):
        daemon.kill(harness.signal.SIGTERM)
        daemon.arguments = list(arguments)
        daemon.start()

    def test_a_profile_is_measured_once_kept_and_used(self):
        with harness.Daemon(workers=2, arguments=SHORT) as daemon:
            wait_calibrated(daemon, 1)
            [profile] = kept(daemon)
            self.assertIn(NOTE, notes(daemon))
            # it is one that `fsdpd plan` takes
            with open(profile) as file:
                text = file.read()
            self.assertIn("# workers: 2\n", text)
            self.assertIn("# kind: cpu\n", text)
            self.assertIn("\ntables:", text)
            offline = harness.subprocess.run(
                [harness.FSDPD, "plan", harness.JOB, "--profile", profile, "--world", "2"],
                stdout=harness.subprocess.PIPE, stderr=harness.subprocess.PIPE, text=True)
            self.assertEqual(offline.returncode, 0, offline.stderr)

            # it survives a restart, without which the second one would not plan with it
            self.restart(daemon, "--calibrate-after", "0")
            self.assertIn(NOTE, notes(daemon))
            self.assertEqual(kept(daemon), [profile])

            # a damaged one is measured again
            with open(profile, "w") as file:
                file.write(text.replace("workers: 2", "workers: 3"))
            self.restart(daemon, *SHORT)
            daemon.wait_log("profile_damaged")
            wait_calibrated(daemon, 2)
            self.assertEqual(kept(daemon), [profile])
            self.assertIn(NOTE, notes(daemon))

            # without a worker, the plan is made for what was measured
            self.restart_without_workers(daemon)
            answer = daemon.json("plan", harness.JOB, "--set", f"data.dir={daemon.data}")
            self.assertTrue(answer["offline"])

    def restart_without_workers(self, daemon):
        daemon.kill(harness.signal.SIGTERM)
        daemon.workers = daemon.expect_workers = 0
        daemon.start()

    def test_a_job_ends_a_calibration_at_once(self):
        with harness.Daemon(workers=2, arguments=ENDLESS) as daemon:
            [process] = daemon.wait_for(lambda: calibrating(daemon), 60, "a calibration")
            daemon.wait_for(lambda: os.getpriority(os.PRIO_PROCESS, process) == 19, 60,
                            "the lowest priority")
            job = daemon.submit("workers=2", *LONG_JOB)
            daemon.wait_state(job, "RUNNING")
            self.assertFalse(harness.alive(process))
            daemon.wait_log("calibration_stopped")
            self.assertEqual(kept(daemon), [])
            # and is begun again when the workers are idle
            self.assertEqual(calibrating(daemon), [])
            self.assertEqual(daemon.ctl("cancel", job).returncode, 0)
            [process] = daemon.wait_for(lambda: calibrating(daemon), 60, "another calibration")
            # it does not outlive its worker
            daemon.kill()
            daemon.end_workers()
            daemon.start(attach=False)
            daemon.wait_for(lambda: not harness.alive(process), 60, "the process to end")

    def test_nothing_is_measured_where_it_is_off(self):
        with harness.Daemon(workers=1, arguments=("--calibrate-after", "0")) as daemon:
            job = daemon.submit("workers=1", "train.max_steps=3", "train.evaluate=false",
                                "save_model=false")
            daemon.wait_state(job, "SUCCEEDED")
            self.assertNotIn(NOTE, notes(daemon))
            self.assertNotIn("calibration_started", daemon.text())


if __name__ == "__main__":
    harness.main()
