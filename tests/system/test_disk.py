#!/usr/bin/env python3
"""A disk that fills up, and directories that cannot be written: named, and survived."""

import json
import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness


def mount(path):
    """A small disk of its own, if this process may have one."""
    os.makedirs(path, exist_ok=True)
    result = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "fsdpd-test", path],
                            capture_output=True, text=True)
    return result.returncode == 0


class Disk(unittest.TestCase):
    def test_full(self):
        root = harness.tempfile.mkdtemp(prefix="fsdpd-test-")
        self.addCleanup(harness.shutil.rmtree, root, True)
        state = os.path.join(root, "state")
        if os.geteuid() != 0 or not mount(state):
            self.skipTest("no permission to mount a small disk")
        self.addCleanup(subprocess.run, ["umount", "-l", state])
        harness.draw_digits(os.path.join(root, "data"))
        with harness.Daemon(root=root, data=os.path.join(root, "data")) as daemon:
            job = daemon.submit("train.max_steps=120", "train.log_interval=1",
                                "train.evaluate=false", "save_model=false")
            daemon.wait_step(job, 3)
            full = os.path.join(state, "something-else")
            with open(full, "wb", buffering=0) as file:
                try:
                    while True:
                        file.write(b"x" * 4096)
                except OSError:
                    pass
            # What cannot be kept is not accepted, and the message says where there is no room.
            refused = None
            for _ in range(200):
                refused = daemon.ctl("submit", harness.JOB, "--set", f"data.dir={daemon.data}",
                                     "--set", "train.max_steps=2")
                if refused.returncode != 0:
                    break
            self.assertEqual(refused.returncode, harness.DOES_NOT_FIT, refused.stderr)
            self.assertIn("store.db", refused.stderr)
            self.assertIn("full", refused.stderr)
            # What runs goes on, and what it reports is kept when there is room again.
            step = int(daemon.show(job)["step"])
            daemon.wait_step(job, min(step + 5, 120))
            self.assertEqual(daemon.ctl("status").returncode, 0)
            os.unlink(full)
            daemon.wait_state(job, "SUCCEEDED")
            output = daemon.ctl("watch", job, "-o", "json").stdout
            watched = [json.loads(line) for line in output.splitlines()]
            self.assertEqual([event["metrics"]["step"] for event in watched if "metrics" in event],
                             list(range(1, 121)))
            self.assertEqual(daemon.submit("train.max_steps=2", "save_model=false",
                                           wait=True).returncode, 0)

    def test_unwritable(self):
        """Without permission nothing starts, and the message names the directory."""
        root = harness.tempfile.mkdtemp(prefix="fsdpd-test-")
        self.addCleanup(harness.shutil.rmtree, root, True)
        for name in ("run", "state"):
            with self.subTest(directory=name):
                file = os.path.join(root, name + "-file")
                with open(file, "w"):
                    pass
                arguments = {"run": os.path.join(root, "run"), "state": os.path.join(root, "state")}
                arguments[name] = file  # not even root makes a directory of a file
                result = subprocess.run(
                    [harness.FSDPD, "--workers", "cpu:1", "--runtime-dir", arguments["run"],
                     "--state-dir", arguments["state"]], env=dict(os.environ, FSDPD_CONFIG=""),
                    capture_output=True, text=True, timeout=harness.PATIENCE)
                self.assertNotEqual(result.returncode, 0)
                self.assertIn(file, result.stderr)


if __name__ == "__main__":
    harness.main()
