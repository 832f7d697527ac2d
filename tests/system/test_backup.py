#!/usr/bin/env python3
"""fsdpd backup and fsdpd restore, with fsdpd running and stopped; stores of other versions."""

import os
import sqlite3
import subprocess
import unittest

import harness


def fsdpd(*arguments):
    return subprocess.run([harness.FSDPD, *arguments], env=dict(os.environ, FSDPD_CONFIG=""),
                          text=True, capture_output=True, timeout=harness.PATIENCE)


def read(path):
    with open(path, "rb") as file:
        return file.read()


class Backup(unittest.TestCase):
    def test_backup_and_restore(self):
        with harness.Daemon() as daemon:
            state = os.path.join(daemon.root, "state")
            copy = os.path.join(daemon.root, "copy.db")
            self.assertEqual(daemon.submit("train.max_steps=3", wait=True).returncode, 0)
            running = daemon.submit("train.epochs=100000")
            daemon.wait_step(running, 3)
            queued = daemon.submit("train.max_steps=2")
            listed = [job["id"] for job in daemon.json("list")]

            # Backs up a running fsdpd; restore refuses to replace the store of one.
            result = fsdpd("backup", copy, "--state-dir", state)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("copy.db", result.stdout)
            self.assertEqual(os.stat(copy).st_mode & 0o777, 0o600)
            result = fsdpd("restore", copy, "--state-dir", state)
            self.assertEqual(result.returncode, 6, result.stderr)
            self.assertIn("stop fsdpd first", result.stderr)

            # The backup lacks jobs submitted after it.
            later = daemon.submit("train.max_steps=2")
            daemon.ctl("cancel", running)
            daemon.wait_state(later, "SUCCEEDED")
            daemon.process.terminate()
            self.assertEqual(daemon.process.wait(harness.PATIENCE), 0)
            result = fsdpd("backup", copy + ".2", "--state-dir", state)
            self.assertEqual(result.returncode, 0, result.stderr)
            result = fsdpd("restore", copy, "--state-dir", state)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("the previous store", result.stdout)
            kept = [line.split(":")[0] for line in result.stdout.splitlines() if ".replaced-" in line]
            self.assertTrue(os.path.exists(kept[0]))
            self.assertFalse(os.path.exists(os.path.join(state, "store.db-wal")))
            daemon.start()
            self.assertEqual([job["id"] for job in daemon.json("list")], listed)
            self.assertEqual(daemon.show(listed[0])["state"], "SUCCEEDED")
            # The job that ran at the time of the backup has lost its workers, and is retried.
            daemon.wait_for(lambda: daemon.show(running)["attempt"] == 2, 60, "the second attempt")
            daemon.ctl("cancel", running)
            daemon.wait_state(queued, "SUCCEEDED")

    def test_refusals(self):
        with harness.Daemon(workers=1) as daemon:
            root, state = daemon.root, os.path.join(daemon.root, "state")
            daemon.process.terminate()
            daemon.process.wait(harness.PATIENCE)
            store = os.path.join(state, "store.db")
            before = read(store)
            text = os.path.join(root, "text")
            with open(text, "w") as file:
                file.write("no store")
            cut = os.path.join(root, "cut")
            self.assertEqual(fsdpd("backup", cut, "--state-dir", state).returncode, 0)
            os.truncate(cut, os.path.getsize(cut) // 2)
            for arguments, code, words in (
                    (["backup"], 2, "expected a file"),
                    (["backup", "a", "b"], 2, "unexpected argument"),
                    (["backup", text + "/x/y", "--state-dir", state], 5, "text"),
                    (["backup", root + "/c", "--state-dir", root + "/none"], 5, "store.db"),
                    (["restore", root + "/none", "--state-dir", state], 5, "none"),
                    (["restore", text, "--state-dir", state], 1, "not a database"),
                    (["restore", cut, "--state-dir", state], 1, "The store was not changed; restore another backup")):
                result = fsdpd(*arguments)
                self.assertEqual(result.returncode, code, (arguments, result.stderr))
                self.assertIn(words, result.stderr)
                self.assertNotIn("Restore a backup", result.stderr)
            self.assertEqual(read(store), before)
            self.assertFalse(os.path.exists(root + "/none"))

            # A store of a newer fsdpd: this version refuses to start, and leaves the store
            # unchanged.
            database = sqlite3.connect(store)
            database.execute("UPDATE schema SET version = 4711")
            database.commit()
            database.close()
            before = read(store)
            result = fsdpd("--workers", "cpu:1", "--runtime-dir", os.path.join(root, "run"),
                           "--state-dir", state)
            self.assertEqual(result.returncode, 6, result.stderr)
            self.assertIn("newer fsdpd: its schema is version 4711", result.stderr)
            self.assertEqual(read(store), before)


if __name__ == "__main__":
    harness.main()
