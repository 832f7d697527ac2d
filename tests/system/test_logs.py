#!/usr/bin/env python3
"""fsdpctl logs and metrics: the records of ranks and attempts, while a job runs, after its end, and
after a restart."""

import csv
import io
import json
import os
import re
import signal
import unittest

import harness
from harness import DONE, NOT_FOUND, USAGE, Daemon, main

LINE = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z) (\d+)/(\d+|fsdpd) "
                  r"(DEBUG|INFO|WARNING|ERROR) ([a-z_]+)( .*)?")


def parse(text):
    """[(time, attempt, rank, level, event, fields)]"""
    lines = [LINE.fullmatch(line) for line in text.splitlines()]
    assert all(lines), text
    return [line.groups() for line in lines]


class LogsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(workers=2)
        cls.done = cls.daemon.submit("train.epochs=2", "train.batch_size=32", "train.log_interval=5")
        cls.daemon.wait_state(cls.done, "SUCCEEDED", seconds=180)

    @classmethod
    def tearDownClass(cls):
        cls.daemon.close()

    def logs(self, job, *arguments):
        result = self.daemon.ctl("logs", job, *arguments)
        self.assertEqual(result.returncode, DONE, result.stderr)
        return parse(result.stdout)

    def test_all_ranks(self):
        lines = self.logs(self.done)
        for rank in ("0", "1"):
            events = [line[4] for line in lines if line[2] == rank]
            for event in ("attempt_started", "planned", "group_joined", "training_started",
                          "attempt_ended"):
                self.assertEqual(events.count(event), 1, (rank, events))
            self.assertLess(events.index("attempt_started"), events.index("training_started"))
            self.assertEqual(events[-1], "attempt_ended")
        joined = [line[5].strip() for line in lines if line[4] == "group_joined"]
        self.assertEqual(joined, ['world=2 transport="shared memory" through_host_memory=0'] * 2)
        states = [line[5].split()[0] for line in lines
                  if line[2] == "fsdpd" and line[4] == "job_state"]
        self.assertEqual(states[-3:], ["state=STARTING", "state=RUNNING", "state=SUCCEEDED"])
        epochs = [line for line in lines if line[4] == "epoch_ended"]
        self.assertEqual([line[2] for line in epochs], ["0", "0"])

    def test_filters(self):
        everything = self.logs(self.done)
        for rank in ("0", "1", "fsdpd"):
            self.assertEqual(self.logs(self.done, "--rank", rank),
                             [line for line in everything if line[2] == rank])
        self.assertEqual(self.logs(self.done, "--attempt", "1"),
                         [line for line in everything if line[1] == "1"])
        for verb, part, message in (
                ("logs", ("--attempt", "2"), f"attempt 2: {self.done} has had 1"),
                ("logs", ("--rank", "7"), f"rank 7: {self.done} has 2, from 0 on"),
                ("logs", ("--rank", "2", "--follow"), f"rank 2: {self.done} has 2, from 0 on"),
                ("metrics", ("--attempt", "5"), f"attempt 5: {self.done} has had 1"),
                ("metrics", ("--attempt", "5", "--csv"), f"attempt 5: {self.done} has had 1")):
            result = self.daemon.ctl(verb, self.done, *part)
            self.assertEqual((result.returncode, result.stdout, result.stderr),
                             (NOT_FOUND, "", f"fsdpctl: {message}\n"))
        self.assertEqual(self.logs(self.done, "-n", "3"), everything[-3:])
        self.assertEqual(self.logs(self.done, "--rank", "1", "--tail", "1"),
                         [line for line in everything if line[2] == "1"][-1:])
        self.assertEqual(self.logs(self.done, "--since", "1h"), everything)
        since = everything[len(everything) // 2][0]
        self.assertEqual(self.logs(self.done, "--since", since),
                         [line for line in everything if line[0] >= since])
        result = self.daemon.ctl("logs", self.done, "-o", "json")
        objects = [json.loads(line) for line in result.stdout.splitlines()]
        self.assertEqual(len(objects), len(everything))
        self.assertEqual({one["rank"] for one in objects}, {-1, 0, 1})
        positions = [one["position"] for one in objects]
        self.assertEqual(positions, sorted(set(positions)))

    def test_files(self):
        directory = os.path.join(self.daemon.root, "state/jobs", self.done, "log")
        with open(os.path.join(directory, "00000001.log")) as file:
            self.assertEqual(len(file.read().splitlines()), len(self.logs(self.done)))

    def test_refusals(self):
        cases = [
            (("logs", "no-such-job"), NOT_FOUND, "no-such-job"),
            (("metrics", "no-such-job", "--csv"), NOT_FOUND, "no-such-job"),
            (("logs", self.done, "--rank", "-1"), USAGE, "--rank: expected 0 to"),
            (("logs", self.done, "--rank", "x"), USAGE, "--rank: expected 0 to"),
            (("logs", self.done, "--attempt", "0"), USAGE, "--attempt: expected 1 to"),
            (("logs", self.done, "--since", "soon"), USAGE, "--since: expected a duration"),
            (("logs", self.done, "-n", "0"), USAGE, "-n: expected 1 to"),
            (("metrics", self.done, "--every", "0"), USAGE, "--every: expected 1 to"),
            (("metrics", self.done, "--csv", "-o", "json"), USAGE, "either --csv or -o json"),
        ]
        for arguments, code, message in cases:
            result = self.daemon.ctl(*arguments)
            self.assertEqual(result.returncode, code, (arguments, result.stderr))
            self.assertIn(message, result.stderr)
            self.assertEqual(result.stdout, "", arguments)

    def test_metrics(self):
        result = self.daemon.ctl("metrics", self.done, "--csv")
        self.assertEqual(result.returncode, DONE, result.stderr)
        self.assertEqual(result.stderr, "")
        rows = list(csv.DictReader(io.StringIO(result.stdout)))
        self.assertTrue(all(None not in row and None not in row.values() for row in rows))
        steps = [row for row in rows if row["kind"] == "step"]
        shown = self.daemon.show(self.done)
        numbers = [int(row["step"]) for row in steps]
        self.assertEqual(numbers, sorted(set(numbers)))
        self.assertEqual(set(numbers) - {shown["steps"]},
                         set(number for number in range(5, shown["steps"] + 1, 5)
                             if number in numbers))
        self.assertGreaterEqual(len(steps), shown["steps"] // 5)
        self.assertEqual(float(steps[-1]["loss"]), shown["metrics"]["loss"])
        self.assertEqual(int(steps[-1]["memory_peak_bytes"]), shown["plan"]["peak_bytes"])
        self.assertTrue(all(float(row["step_seconds"]) > 0 for row in steps))
        epochs = [row for row in rows if row["kind"] == "epoch"]
        self.assertEqual([float(row["epoch"]) for row in epochs], [1, 2])
        # an epoch has 32 steps, and every fifth is recorded
        ends = [shown["steps"] // 2, shown["steps"]]
        self.assertNotEqual(ends[0] % 5, 0)
        self.assertEqual([int(row["step"]) for row in epochs], ends)
        self.assertEqual(float(epochs[-1]["accuracy"]), shown["metrics"]["accuracy"])
        self.assertEqual(epochs[0]["loss"], "")

        # the same as JSON, thinned, and as a table
        result = self.daemon.ctl("metrics", self.done, "-o", "json")
        objects = [json.loads(line) for line in result.stdout.splitlines()]
        self.assertEqual([one["event"]["metrics"]["loss"] for one in objects
                          if "metrics" in one["event"]], [float(row["loss"]) for row in steps])
        result = self.daemon.ctl("metrics", self.done, "--csv", "--every", "3")
        thinned = list(csv.DictReader(io.StringIO(result.stdout)))
        self.assertEqual([row["step"] for row in thinned if row["kind"] == "step"],
                         [row["step"] for row in steps][::3])
        self.assertEqual([int(row["step"]) for row in thinned if row["kind"] == "epoch"], ends)
        result = self.daemon.ctl("metrics", self.done, "--attempt", "1", "--csv")
        self.assertEqual(len(result.stdout.splitlines()), len(rows) + 1)
        table = self.daemon.ctl("metrics", self.done).stdout.splitlines()
        self.assertEqual(len(table), len(rows) + 1)
        self.assertIn("end of epoch: test loss", table[-1])

    def test_metrics_of_half_an_epoch(self):
        job = self.daemon.submit("train.max_steps=8", "train.batch_size=32", "train.log_interval=3")
        self.daemon.wait_state(job, "SUCCEEDED")
        result = self.daemon.ctl("metrics", job, "--csv")
        rows = list(csv.DictReader(io.StringIO(result.stdout)))
        self.assertEqual([(row["kind"], row["step"], float(row["epoch"])) for row in rows[-2:]],
                         [("step", "8", 0.25), ("epoch", "8", 0.25)])

    def test_follow(self):
        job = self.daemon.submit("train.epochs=100000", "train.batch_size=16")
        follow = self.daemon.spawn("logs", job, "-f")
        self.daemon.wait_step(job, 1)
        self.daemon.ctl("cancel", job)
        output, errors = follow.communicate(timeout=harness.PATIENCE)
        self.assertEqual(follow.returncode, DONE, errors)
        lines = parse(output)
        self.assertEqual(lines[-1][2:5], ("fsdpd", "INFO", "job_state"))
        self.assertIn("state=CANCELLED", lines[-1][5])
        self.assertEqual(lines, self.logs(job))

    def test_interrupt(self):
        job = self.daemon.submit("train.epochs=100000", "train.batch_size=16")
        follow = self.daemon.spawn("logs", job, "-f")
        first = follow.stdout.readline()
        self.assertRegex(first, LINE)
        follow.send_signal(signal.SIGINT)
        follow.communicate(timeout=harness.PATIENCE)
        self.assertEqual(follow.returncode, 130)
        self.assertNotIn(self.daemon.show(job)["state"], ("CANCELLED", "FAILED"))
        self.daemon.ctl("cancel", job)
        self.daemon.wait_state(job, "CANCELLED")


class RestartTest(unittest.TestCase):
    def test_restart(self):
        with Daemon(workers=1) as daemon:
            job = daemon.submit("train.max_steps=20", "workers=1", "train.log_interval=1")
            daemon.wait_state(job, "SUCCEEDED", seconds=180)
            before = daemon.ctl("logs", job).stdout, daemon.ctl("metrics", job, "--csv").stdout
            self.assertGreater(len(before[0].splitlines()), 5)
            queued = daemon.submit("workers=2", "train.epochs=1")  # has no workers: waits
            follow = daemon.spawn("logs", queued, "-f", "--timeout", str(harness.PATIENCE))
            self.assertRegex(follow.stdout.readline(), LINE)
            daemon.kill()
            daemon.start()
            after = daemon.ctl("logs", job).stdout, daemon.ctl("metrics", job, "--csv").stdout
            self.assertEqual(before, after)
            # a follower continues where it was
            daemon.ctl("cancel", queued)
            output, errors = follow.communicate(timeout=harness.PATIENCE)
            self.assertEqual(follow.returncode, DONE, errors)
            self.assertIn("waiting for it", errors)
            self.assertEqual(output.count("state=CANCELLED"), 1)


class AttemptsTest(unittest.TestCase):
    def test_attempts(self):
        """A retry preserves the logs and records of earlier attempts."""
        faults = harness.own_faults(self.addCleanup)
        with Daemon(workers=2, environment=faults.environment) as daemon:
            faults.hold_checkpoint(2)  # so that it does not end before
            job = daemon.submit("train.max_steps=60", "train.log_interval=1",
                                "checkpoint.every_steps=10")
            daemon.wait_step(job, 15)
            victim = next(one for one in daemon.worker_list() if int(one["rank"]) == 1)
            os.kill(int(victim["pid"]), signal.SIGKILL)
            faults.clear()
            shown = daemon.wait_state(job, "SUCCEEDED", "FAILED", seconds=180)
            self.assertEqual((shown["state"], shown["attempt"]), ("SUCCEEDED", 2), shown["reason"])
            for attempt in ("1", "2"):
                lines = parse(daemon.ctl("logs", job, "--attempt", attempt).stdout)
                self.assertEqual({line[1] for line in lines}, {attempt})
                for rank in ("0", "1"):
                    self.assertIn("training_started",
                                  [line[4] for line in lines if line[2] == rank])
                result = daemon.ctl("metrics", job, "--csv", "--attempt", attempt)
                rows = [row for row in csv.DictReader(io.StringIO(result.stdout))
                        if row["kind"] == "step"]
                self.assertEqual({row["attempt"] for row in rows}, {attempt})
                steps = [int(row["step"]) for row in rows]
                self.assertEqual(steps, list(range(steps[0], steps[-1] + 1)))
                if attempt == "1":
                    self.assertEqual(steps[0], 1)
            self.assertEqual(steps[-1], 60)


class LimitTest(unittest.TestCase):
    def test_limits(self):
        """fsdpd keeps the latest lines of a job that logs much, and notes the loss."""
        config = "limits:\n  metrics_kept: 16\n"
        with Daemon(workers=1) as daemon:
            path = os.path.join(daemon.root, "fsdpd.yaml")
            with open(path, "w") as file:
                file.write(config)
            daemon.arguments = ["--config", path]
            daemon.kill(signal.SIGTERM)
            daemon.start()
            job = daemon.submit("train.max_steps=60", "workers=1", "train.log_interval=1",
                                "train.batch_size=16")
            shown = daemon.wait_state(job, "SUCCEEDED", seconds=180)
            result = daemon.ctl("metrics", job, "--csv")
            rows = [row for row in csv.DictReader(io.StringIO(result.stdout))
                    if row["kind"] == "step"]
            self.assertLess(len(rows), 20)
            self.assertEqual(int(rows[0]["step"]), 1)
            self.assertEqual(int(rows[-1]["step"]), shown["steps"])
            gone = int(re.search(r"(\d+) recorded steps are no longer kept", result.stderr).group(1))
            self.assertEqual(gone + len(rows), shown["steps"])


if __name__ == "__main__":
    main()
