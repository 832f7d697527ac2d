#!/usr/bin/env python3
"""Only fsdpd's user and group can access the state directory, whatever fsdpd's umask is."""

import os
import stat
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness
from harness import Daemon


class Test(unittest.TestCase):
    def check(self, mask):
        root = tempfile.mkdtemp(prefix="fsdpd-test-")
        self.addCleanup(harness.shutil.rmtree, root, True)
        before = os.umask(mask)
        try:
            daemon = Daemon(root=root)
        finally:
            os.umask(before)
        self.addCleanup(daemon.close)
        job = daemon.submit("train.max_steps=6", "train.log_interval=1", "train.evaluate=false",
                            "checkpoint.every_steps=2", "tensorboard=true")
        daemon.wait_state(job, "SUCCEEDED")
        state, seen = os.path.join(root, "state"), set()
        for directory, _, files in os.walk(state):
            self.assertEqual(stat.S_IMODE(os.stat(directory).st_mode), 0o750, directory)
            for name in files:
                path = os.path.join(directory, name)
                self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o640, path)
                seen.add(name)
        for name in ("store.db", "store.db-wal", "store.lock", "state_dict.safetensors", "manifest.json"):
            self.assertIn(name, seen)
        self.assertEqual(stat.S_IMODE(os.stat(os.path.join(root, "run")).st_mode), 0o755)
        backup = os.path.join(root, "backup.db")
        self.assertEqual(harness.subprocess.run([harness.FSDPD, "backup", backup, "--state-dir", state, "--config="],
                                                stdout=harness.subprocess.DEVNULL).returncode, 0)
        self.assertEqual(stat.S_IMODE(os.stat(backup).st_mode), 0o600)
        daemon.close()
        self.assertEqual(harness.subprocess.run([harness.FSDPD, "restore", backup, "--state-dir", state, "--config="],
                                                stdout=harness.subprocess.DEVNULL).returncode, 0)
        daemon.start()
        self.assertEqual(stat.S_IMODE(os.stat(os.path.join(state, "store.db")).st_mode), 0o640)

    def test_open(self):
        self.check(0o000)

    def test_usual(self):
        self.check(0o022)

    def test_closed(self):
        self.check(0o077)


if __name__ == "__main__":
    harness.main()
