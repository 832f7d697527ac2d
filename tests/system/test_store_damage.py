#!/usr/bin/env python3
"""fsdpd with a damaged store: it names what is missing before it serves anything, a kill is no
damage, one damaged record hides one job, and fsdpd notices that its state directory disappears.
tests/unit/test_store_damage.c flips thousands of bits."""

import os
import random
import shutil
import sqlite3
import subprocess
import unittest

import harness


def read(path):
    with open(path, "rb") as file:
        return file.read()


def write(path, content):
    with open(path, "wb") as file:
        file.write(content)


class StoreDamage(unittest.TestCase):
    def setUp(self):
        self.daemon = harness.Daemon(workers=1)
        self.addCleanup(self.daemon.close)
        self.state = os.path.join(self.daemon.root, "state")
        self.store = os.path.join(self.state, "store.db")

        self.submission = ("submit", harness.JOB, "--set", f"data.dir={self.daemon.data}", "--hold")

    def hold(self, name):
        return self.daemon.json(*self.submission, "--set", f"name={name}")["id"]

    def refused(self):
        """What fsdpd prints instead of serving."""
        result = subprocess.run(
            [harness.FSDPD, "--workers", "none", "--runtime-dir", os.path.join(self.daemon.root, "run"),
             "--state-dir", self.state], env=dict(os.environ, FSDPD_CONFIG=""), text=True,
            capture_output=True, timeout=harness.PATIENCE)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("store.db is damaged (", result.stderr)
        self.assertIn("Nothing was changed. Restore a backup (fsdpd restore FILE)", result.stderr)
        return result.stderr

    def test_what_a_kill_leaves_damaged(self):
        held = [self.hold(f"held{i}") for i in range(3)]
        self.daemon.kill()
        log = read(self.store + "-wal")
        self.assertGreater(len(log), 10000)

        flipped = bytearray(log)
        flipped[random.Random(12).randrange(len(log) // 2)] ^= 4
        write(self.store + "-wal", flipped)
        self.assertIn("store.db-wal", self.refused())
        os.unlink(self.store + "-wal")
        self.assertIn("acknowledged changes are missing", self.refused())
        write(self.store + "-wal", log)
        database = read(self.store)
        write(self.store, b"")
        self.assertIn("it is empty, but there is its log", self.refused())
        os.unlink(self.store)
        self.assertIn("it is missing, but there is its log", self.refused())

        # With the original database fsdpd serves everything as before.
        write(self.store, database)
        self.daemon.start()
        self.assertEqual([job["id"] for job in self.daemon.json("list")], held)

    def test_kills_are_no_damage(self):
        known = set()
        choice = random.Random(5)
        for _ in range(4):
            submits = [self.daemon.spawn(*self.submission, "-o", "json") for _ in range(3)]
            first = submits[choice.randrange(3)]
            first.wait(harness.PATIENCE)
            self.daemon.kill()
            for submit in submits:
                output = submit.communicate(timeout=harness.PATIENCE)[0]
                if submit.returncode == 0:
                    known.add(harness.json.loads(output)["id"])
            self.daemon.start()
            self.assertLessEqual(known, {job["id"] for job in self.daemon.json("list")})
        self.assertGreaterEqual(len(known), 4)

    def test_one_damaged_record(self):
        good, bad, queued = (self.hold(name) for name in ("good", "bad", "queued"))
        self.daemon.process.terminate()
        self.assertEqual(self.daemon.process.wait(harness.PATIENCE), 0)
        database = sqlite3.connect(self.store)
        database.execute("UPDATE jobs SET priority = 77 WHERE id = ?", (bad,))
        database.commit()
        database.close()
        self.daemon.start()
        self.assertIn(f"record_damaged job={bad}", read(self.daemon.log.name).decode())
        listed = {job["id"]: job for job in self.daemon.json("list")}
        self.assertEqual(list(listed), [good, bad, queued])
        self.assertEqual(listed[bad]["reason"]["code"], "DAMAGED")
        self.assertIn(f"the record of job {bad}", listed[bad]["reason"]["message"])
        text = self.daemon.ctl("list")
        self.assertEqual(text.returncode, 0, text.stderr)
        self.assertRegex(text.stdout, f"(?m)^{bad} .* DAMAGED .*is damaged")
        shown = self.daemon.ctl("show", bad)
        self.assertGreater(shown.returncode, 0)
        self.assertIn(f"the record of job {bad}", shown.stderr)
        self.assertEqual(self.daemon.show(good)["state"], "QUEUED")
        self.assertEqual(self.daemon.ctl("forget", bad).returncode, 0)
        self.assertEqual([job["id"] for job in self.daemon.json("list")], [good, queued])

    def test_a_state_directory_that_goes(self):
        held = self.hold("held")
        aside = self.state + ".aside"
        for replaced in (False, True):
            os.rename(self.state, aside)
            if replaced:
                shutil.copytree(aside, self.state)
            self.daemon.wait_log("ERROR store_gone")
            result = self.daemon.ctl(*self.submission)
            self.assertEqual(result.returncode, harness.FAILED, result.stderr)  # it answered
            self.assertIn("store.db was " + ("replaced" if replaced else "removed"), result.stderr)
            if replaced:
                shutil.rmtree(self.state)
            os.rename(aside, self.state)
            self.daemon.wait_log("store_is_back")
            self.assertEqual(self.daemon.ctl(*self.submission).returncode, 0)
            write(self.daemon.log.name, b"")
        self.assertIn(held, [job["id"] for job in self.daemon.json("list")])


if __name__ == "__main__":
    harness.main()
