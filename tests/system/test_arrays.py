#!/usr/bin/env python3
"""Arrays from their users' view: each index runs once although the coordinator is killed, and never more at
once than it says; the same of a sweep's trials; pause, resume, cancel and forget of a whole array. FSDPD_ARRAY is the number of jobs, which then all
run; without it the last ones are cancelled."""

import os
import re
import sys
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness

JOBS = int(os.environ.get("FSDPD_ARRAY", "60"))
RUN = JOBS if "FSDPD_ARRAY" in os.environ else 8
AT_ONCE = 2
SEED = "train.seed=${index}"
SWEEP = """
objectives: [{metric: loss, direction: minimize}]
searchAlgorithm: {random: {seed: 11}}
numTrials: 12
parallelTrials: 2
parameters:
  - {name: lr, searchSpace: {logUniform: {min: 1.0e-3, max: 10}}}
  - {name: place, searchSpace: {categorical: {choices: [/., /., /., /., /missing]}}}
trainJobTemplate: JOB
"""


class Arrays(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = harness.Daemon(workers=3)

    @classmethod
    def tearDownClass(cls):
        cls.daemon.close()

    def submit(self, indices, *settings, options=()):
        arguments = ["submit", harness.JOB, "--array", indices, *options]
        for setting in (f"data.dir={self.daemon.data}", "workers=1", "save_model=false", "train.evaluate=false", *settings):
            arguments += ["--set", setting]
        return self.daemon.json(*arguments)["id"]

    def jobs(self, array):
        return self.daemon.json("list", "--array", array)

    def have_succeeded(self, array, number):
        record = self.daemon.show(array)
        return record["state"] == "SUCCEEDED" or record["array_jobs"]["succeeded"] >= number

    def most_at_once(self, array):
        """From the log, which has every change in its order."""
        running, most = set(), 0
        with open(os.path.join(self.daemon.root, "fsdpd.log")) as log:
            for line in log:
                change = re.search(rf" job_state job=({array}-\d+) state=(\w+) ", line)
                if change is not None:
                    job, state = change.groups()
                    (running.add if state in ("STARTING", "RUNNING") else running.discard)(job)
                    most = max(most, len(running))
        return most

    def assert_ended_once(self, array):
        with open(os.path.join(self.daemon.root, "fsdpd.log")) as log:
            ended = re.findall(rf" job_state job=({array}-\d+) state=SUCCEEDED ", log.read())
        self.assertEqual(len(ended), len(set(ended)))

    def test_a_sweep_has_each_trial_once_under_a_killed_coordinator(self):
        daemon = self.daemon
        path = os.path.join(daemon.root, "sweep.yaml")
        with open(path, "w") as file:
            file.write(SWEEP.replace("JOB", harness.JOB))
        sweep = daemon.json("sweep", path, "--set", f"data.dir={daemon.data}${{place}}", "--set", "name=tune",
                            "--set", "optimizer.lr=${lr}", "--set", "workers=1", "--set", "save_model=false",
                            "--set", "train.evaluate=false", "--set", "train.max_steps=2")["id"]
        daemon.wait_for(lambda: self.have_succeeded(sweep, 3), 60, "3 trials to succeed")
        daemon.kill()
        daemon.start()
        daemon.wait_state(sweep, "FAILED")  # some trials did, which stopped no other
        shown = daemon.json("sweep", sweep)
        trials, jobs = shown["trials"], {job["id"]: job for job in self.jobs(sweep)}
        self.assertEqual(sorted(trial["id"] for trial in trials), sorted(f"{sweep}-{i}" for i in range(1, 13)))
        for trial in trials:
            missing = trial["parameters"]["place"] == "/missing"
            self.assertEqual(trial["state"], "FAILED" if missing else "SUCCEEDED", trial)
            self.assertEqual(jobs[trial["id"]]["spec"]["optimizer"]["lr"], float(trial["parameters"]["lr"]))
        succeeded = [trial for trial in trials if trial["state"] == "SUCCEEDED"]
        self.assertEqual(trials[:len(succeeded)], succeeded)
        self.assertIn(len(succeeded), range(6, 12))
        losses = [trial["metrics"]["loss"] for trial in succeeded]
        self.assertEqual(losses, sorted(losses))
        self.assert_ended_once(sweep)
        self.assertLessEqual(self.most_at_once(sweep), AT_ONCE)
        table = daemon.ctl("sweep", sweep).stdout.splitlines()
        self.assertIn(f"{sweep} FAILED: {12 - len(succeeded)} of 12 jobs failed", table[0])
        self.assertEqual(table[1].split(), ["JOB", "STATE", "lr", "place", "STEP", "loss", "REASON"])
        self.assertEqual(table[2].split()[0], trials[0]["id"])
        compared = {job["id"]: job for job in daemon.json("compare", sweep)}
        for trial in succeeded:  # by the keys of the job file
            self.assertEqual(compared[trial["id"]]["parameters"]["optimizer.lr"], trial["parameters"]["lr"])
            self.assertEqual(compared[trial["id"]]["metrics"]["loss"], trial["metrics"]["loss"])
        self.assertIn("is not a sweep", daemon.ctl("sweep", trials[0]["id"]).stderr)

    def test_each_index_runs_once_under_a_killed_coordinator(self):
        daemon = self.daemon
        array = self.submit(f"1-{JOBS}%{AT_ONCE}", "train.max_steps=1", SEED)
        for over in (0, 3, RUN):  # while jobs are made, and while they run
            daemon.wait_for(lambda: self.have_succeeded(array, over), 60 + over * 2, f"{over} jobs to succeed")
            if over < RUN:
                daemon.kill()
                daemon.start()
        if RUN < JOBS:
            daemon.ctl("cancel", array)
        daemon.wait_state(array, "SUCCEEDED" if RUN == JOBS else "CANCELLED")
        jobs = self.jobs(array)
        self.assertEqual(sorted(job["id"] for job in jobs), sorted(f"{array}-{i}" for i in range(1, JOBS + 1)))
        for job in jobs:
            self.assertEqual(str(job["spec"]["train"]["seed"]), job["id"].rsplit("-", 1)[1])
            self.assertIn((job["state"], job["step"]), (("SUCCEEDED", 1), ("CANCELLED", 0), ("CANCELLED", 1)))
        self.assertGreaterEqual([job["state"] for job in jobs].count("SUCCEEDED"), RUN)
        self.assertLessEqual(self.most_at_once(array), AT_ONCE)
        self.assert_ended_once(array)
        table = daemon.ctl("list").stdout
        self.assertIn(f"{array} ", table)
        self.assertNotIn(f"{array}-1 ", table)  # the array has one line

    def test_an_arrays_jobs_pause_resume_and_go_together(self):
        daemon = self.daemon
        array = self.submit("1-3%2", "train.max_steps=1000000", "name=pair", SEED)
        for job in (1, 2):
            daemon.wait_step(f"{array}-{job}", 1)
        reason = daemon.show(f"{array}-3")["reason"]
        self.assertEqual(reason["code"], "ARRAY_LIMIT", reason["message"])
        top = daemon.ctl("top", "--rounds", "1").stdout
        self.assertIn(f" {array}-1 RUNNING", top)
        self.assertIn(f" {array} QUEUED 3 jobs: 1 queued, 2 running", top)
        self.assertNotIn(f" {array}-3 ", top)  # the array has its line
        daemon.ctl("hold", f"{array}-3")
        paused = daemon.ctl("pause", array)
        self.assertEqual(paused.returncode, 0, paused.stderr)
        self.assertEqual({job["state"] for job in self.jobs(array) if job["id"] != f"{array}-3"}, {"PAUSED"})
        resumed = daemon.ctl("resume", f"{array}-1", "--set", "train.log_interval=5")
        self.assertEqual(resumed.returncode, 0, resumed.stderr)
        daemon.wait_state(f"{array}-1", "RUNNING")
        self.assertEqual(daemon.show(f"{array}-1")["spec"]["of_array"]["array"], array)
        self.assertEqual(daemon.ctl("resume", array).returncode, 0)  # the other one
        daemon.wait_state(f"{array}-2", "RUNNING")
        self.assertEqual(daemon.ctl("forget", array).returncode, 6)
        daemon.ctl("cancel", array)
        daemon.wait_state(array, "CANCELLED")
        forgotten = daemon.ctl("forget", array)
        self.assertEqual(forgotten.returncode, 0, forgotten.stderr)
        self.assertEqual(self.jobs(array), [])
        self.assertEqual(daemon.ctl("show", array).returncode, 5)


if __name__ == "__main__":
    harness.main()
