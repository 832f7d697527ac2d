#!/usr/bin/env python3
"""fsdpd scrub, by hand and in the background: it finds each flipped bit of what is kept, and no damage where
there is none.

FSDPD_FLIPS flips, drawn from FSDPD_SEED."""

import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

sys.path.insert(0, os.path.dirname(__file__))
import harness
from test_bit_flips import FLIPS, SEED, flip, read

SETTINGS = ("workers=2", "train.max_steps=6", "train.evaluate=false", "checkpoint.every_steps=3", "checkpoint.keep=0",
            "train.log_interval=1")


def scrub(state, *flags, rate=1000000, data=None, code=0):
    roots = ("--data-root", data) if data else ()
    result = subprocess.run([harness.FSDPD, "scrub", "--state-dir", state, "--rate", str(rate), *roots, *flags],
                            env=dict(os.environ, FSDPD_CONFIG=""), capture_output=True, text=True,
                            timeout=10 * harness.PATIENCE)
    if result.returncode != code:
        raise AssertionError(f"fsdpd scrub: {result.returncode}\n{result.stdout}\n{result.stderr}")
    return result.stdout


def table(printed):
    """(read, damaged) by kind."""
    lines = [line.split() for line in printed.splitlines() if not line.startswith("damaged: ")]
    if lines[0] != ["KEPT", "READ", "SIZE", "DAMAGED"]:
        raise AssertionError(printed)
    return {" ".join(words[:-4]): (int(words[-4]), int(words[-1])) for words in lines[1:]}  # a size is two words


def rows(path):
    """All that the store says; None: SQLite cannot read it."""
    try:
        database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        names = [name for name, in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return [database.execute("SELECT * FROM sqlite_master").fetchall(),
                *[database.execute(f"SELECT * FROM {name}").fetchall() for name in sorted(names)]]
    except (sqlite3.DatabaseError, UnicodeDecodeError):  # its message quotes what is no UTF-8
        return None


class Scrub(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = harness.Daemon()
        cls.state = os.path.join(cls.daemon.root, "state")
        cls.jobs = [cls.daemon.submit(*SETTINGS),
                    cls.daemon.submit(*SETTINGS, f"checkpoint.directory={cls.daemon.data}", "save_model=false")]
        for job in cls.jobs:
            cls.daemon.wait_state(job, "SUCCEEDED")

    @classmethod
    def tearDownClass(cls):
        cls.daemon.close()

    def scrub(self, *flags, **options):
        return scrub(self.state, *flags, data=self.daemon.data, **options)

    def whole(self):
        found = table(self.scrub())
        self.assertEqual(found, {"store": (1, 0), "final weights": (1, 0), "checkpoint": (4, 0), "log": (2, 0)})

    def files(self, job):
        """By kind, what a flip in it must name, and the command that must not show it in silence."""
        kept = os.path.join(self.state, "jobs", job)
        log = os.path.join(kept, "log")
        checkpoint = self.daemon.json("checkpoints", job)[-1]
        files = [("log of", os.path.join(log, name), log, ("logs", job)) for name in sorted(os.listdir(log))]
        for name in sorted(os.listdir(checkpoint["path"])):
            path = os.path.join(checkpoint["path"], name)
            files.append((f"checkpoint of {job} of step {checkpoint['step']}", path, path,
                          ("pull", job, "--checkpoint", str(checkpoint["step"]), "-o")))
        if job == self.jobs[0]:
            for name in ("state_dict.safetensors", "state_dict.safetensors.sums"):
                path = os.path.join(kept, name)
                files.append((f"final weights of {job}", path, path, ("pull", job, "-o")))
        return files

    def ask(self, command):
        """What a user gets: None for an error."""
        out = os.path.join(self.directory, "out")
        if os.path.exists(out):
            os.unlink(out)
        asked = self.daemon.ctl(*command, *([out] if command[-1] == "-o" else []))
        if command[0] == "logs":
            self.assertEqual(asked.returncode, 0, asked.stderr)
            return asked.stdout
        self.assertEqual(os.path.exists(out), asked.returncode == 0)
        return read(out) if asked.returncode == 0 else None

    def test_flips(self):
        self.directory = tempfile.mkdtemp(prefix="fsdpd-test-")
        self.addCleanup(shutil.rmtree, self.directory)
        self.whole()
        files = self.files(self.jobs[0]) + self.files(self.jobs[1])
        good = {command: self.ask(command) for _, _, _, command in files}
        dice = random.Random(SEED)
        for number in range(FLIPS):
            kind, path, named, command = files[number % len(files)]
            at, bit = dice.randrange(os.path.getsize(path)), dice.randrange(8)
            if number < len(files) and command[0] == "logs":
                at = os.path.getsize(path) - 1  # the end of the last line, which makes it a line
            with self.subTest(path=path, at=at, bit=bit):
                flip(path, at, bit)
                try:
                    found = [line for line in self.scrub(code=1).splitlines() if line.startswith("damaged: ")]
                    self.assertEqual(len(found), 1, found)
                    self.assertIn(kind, found[0])
                    self.assertIn(named, found[0])
                    shown = self.ask(command)
                    if command[0] == "logs":
                        self.assertNotEqual(shown, good[command])
                        strange = [line for line in shown.splitlines() if line not in good[command].splitlines()]
                        self.assertTrue(strange)
                        self.assertTrue(all("damaged line: " in line for line in strange), strange)
                    elif not path.endswith("reports.pb"):  # which no pull has
                        self.assertIsNone(shown)
                finally:
                    flip(path, at, bit)
        self.whole()

    def test_flips_in_the_store(self):
        """Whatever changes a row is found; the rest changes nothing that is read."""
        directory = tempfile.mkdtemp(prefix="fsdpd-test-")
        self.addCleanup(shutil.rmtree, directory)
        store = os.path.join(directory, "store.db")
        self.assertEqual(subprocess.run([harness.FSDPD, "backup", store, "--state-dir", self.state],
                                        env=dict(os.environ, FSDPD_CONFIG="")).returncode, 0)
        good, dice, found = rows(store), random.Random(SEED), 0
        scrub(directory, code=1)  # the files of its jobs are missing
        for name in os.listdir(self.state):
            if name != "jobs":
                continue
            os.symlink(os.path.join(self.state, name), os.path.join(directory, name))
        whole = scrub(directory, data=self.daemon.data)
        for _ in range(FLIPS):
            at, bit = dice.randrange(os.path.getsize(store)), dice.randrange(8)
            flip(store, at, bit)
            with self.subTest(at=at, bit=bit):
                changed = rows(store) != good
                result = subprocess.run(
                    [harness.FSDPD, "scrub", "--state-dir", directory, "--rate", "1000000", "--data-root",
                     self.daemon.data], env=dict(os.environ, FSDPD_CONFIG=""), capture_output=True, text=True)
                if changed:
                    self.assertEqual(result.returncode, 1, result.stdout)
                    self.assertRegex(result.stdout, "(?m)^damaged: store|^damaged: .*store.db")
                    found += 1
                elif result.returncode == 0:
                    self.assertEqual(result.stdout, whole)
            flip(store, at, bit)
        self.assertGreater(found, 0)

    def test_beside_a_running_job(self):
        """What a job replaces and removes meanwhile is not damage; the rate is bounded."""
        with harness.Daemon() as daemon:
            job = daemon.submit("train.max_steps=100000", "train.evaluate=false", "checkpoint.every_steps=2",
                                "checkpoint.keep=1", "workers=2")
            daemon.wait_for(lambda: daemon.json("checkpoints", job), harness.PATIENCE, "a checkpoint")
            for _ in range(10):
                step = int(daemon.show(job)["step"])
                scrub(os.path.join(daemon.root, "state"))
                daemon.wait_step(job, step + 2)
        sizes = sum(os.path.getsize(path) for _, path, _, _ in self.files(self.jobs[0]) if path.endswith("safetensors"))
        megabytes = 2 * sizes / 1e6 // 2
        began = time.monotonic()
        self.scrub(rate=max(1, int(megabytes / 3)))
        self.assertGreaterEqual(time.monotonic() - began, 2.9)

    def test_what_is_missing(self):
        path = self.daemon.json("checkpoints", self.jobs[0])[0]["path"]
        os.rename(path, path + ".away")
        try:
            self.assertIn(f"damaged: checkpoint of {self.jobs[0]} of step 3: ", self.scrub(code=1))
        finally:
            os.rename(path + ".away", path)
        self.whole()
        scrub(os.path.join(self.state, "none"), code=5)


class Background(unittest.TestCase):
    def test_background(self):
        """At its start, and every scrub.days: named in the log, the job's log, the status, /readyz and metrics."""
        arguments = ("--metrics-listen", "127.0.0.1:0")
        with harness.Daemon(environment={"FSDPD_SCRUB_DAYS": "1"}, arguments=arguments) as daemon:
            job = daemon.submit(*SETTINGS)
            daemon.wait_state(job, "SUCCEEDED")
            path = os.path.join(daemon.root, "state/jobs", job, "state_dict.safetensors")
            record = os.path.join(daemon.root, "state/scrub")

            def get(page):
                port = re.findall(r"metrics_served address=\S+:(\d+)", daemon.text())[-1]
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}") as answer:
                    return answer.read().decode()

            def again(words):
                """The next fsdpd finds that a day has passed."""
                daemon.kill(15)
                if os.path.exists(record):
                    os.utime(record, (0, time.time() - 90000))
                before = daemon.text().count("scrubbed seconds=")
                daemon.start()
                daemon.wait_for(lambda: daemon.text().count("scrubbed seconds=") > before, harness.PATIENCE, "a scrub")
                self.assertIn(words, daemon.text().rsplit("scrubbed seconds=", 1)[1])
            daemon.wait_log("scrubbed seconds=")
            flip(path, os.path.getsize(path) // 2, 3)
            again("damaged=1")
            self.assertIn("the tensor", daemon.text().rsplit(" damage_found ", 1)[1])
            for _ in range(2):
                status = daemon.ctl("status").stdout
                self.assertIn("warning     damage was found", status)
                self.assertIn(f"the final weights of {job}: ", status)
                self.assertIn(f"the final weights of {job}: ", get("readyz"))
                self.assertIn("fsdpd_scrub_damaged 1\n", get("metrics"))
                self.assertIn("fsdpd found damage in the final weights: ", daemon.ctl("logs", job).stdout)
                count = daemon.text().count(" scrub megabytes_per_second=")
                daemon.kill(15)
                daemon.start()
                self.assertEqual(daemon.text().count(" scrub megabytes_per_second="), count)  # not due
            flip(path, os.path.getsize(path) // 2, 3)
            again("damaged=0")
            self.assertNotIn("damage", daemon.ctl("status").stdout)
            self.assertIn("fsdpd_scrub_damaged 0\n", get("metrics"))


if __name__ == "__main__":
    harness.main()
