#!/usr/bin/env python3
"""The limit on what another user's pulls and traces cost a job, however many they are."""

import os
import re
import shutil
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness

PULLS = 10


@unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), "needs root and setpriv")
class Shares(unittest.TestCase):
    def setUp(self):
        self.daemon = harness.Daemon(environment={"FSDPD_LIMITS_PULLS_PER_JOB": "4"})
        self.addCleanup(self.daemon.close)
        self.others = harness.OtherUsers(self.daemon, self.addCleanup)
        self.place, self.as_other, self.answer = self.others.place, self.others.spawn, self.others.answer
        self.job = self.daemon.submit("train.epochs=100000", "train.evaluate=false")
        self.daemon.wait_step(self.job, 20)

    def busy(self):
        """Milliseconds that the other user's pulls have occupied the ranks, in their order."""
        with open(os.path.join(self.daemon.root, "fsdpd.log"), errors="replace") as log:
            return [int(found) for found in
                    re.findall(rf"pull_over .* by={harness.OTHER_USER} .*busy_ms=(\d+)", log.read())]

    def test_loop_of_pulls(self):
        """Pulls occupy the ranks for a tenth of the time, and the owner does not wait."""
        loops = [None, None]

        def pulled():
            for i, process in enumerate(loops):
                if process is None or process.poll() is not None:
                    if process is not None:
                        self.answer(process)
                    path = os.path.join(self.place, f"pulled-{i}")
                    loops[i] = self.as_other("pull", self.job, "-o", path)
            return len(self.busy()) >= PULLS
        began = time.monotonic()
        self.daemon.wait_for(pulled, 60, "pulls by another user")
        own = self.daemon.ctl("pull", self.job, "-o", os.path.join(self.daemon.root, "own"))
        self.assertEqual(own.returncode, 0, own.stderr)
        for process in loops:
            self.assertEqual(self.answer(process)[0], 0)
        busy = self.busy()
        # Nine times its duration passed after each of them, except the last.
        self.assertLess(10 * sum(busy[:-1]), 1000 * (time.monotonic() - began), busy)

    def test_traces_and_slots(self):
        # Nine times as long as this takes, there is no other.
        code, _, errors = self.answer(self.as_other("trace", self.job, "--steps", "20", "-o", "first"))
        self.assertEqual(code, 0, errors)
        code, _, errors = self.answer(self.as_other("trace", self.job, "--steps", "2", "-o", "second"))
        self.assertNotEqual(code, 0)
        self.assertIn("others may pull and trace it for a tenth of the time, again in ", errors)
        for name in ("own", "again"):  # its owner is not limited
            traced = self.daemon.ctl("trace", self.job, "--steps", "2", "-o",
                                     os.path.join(self.daemon.root, name))
            self.assertEqual(traced.returncode, 0, traced.stderr)
        # Of four places of waiting pulls two stay free for the owner.
        pulls = [self.as_other("pull", self.job, "-o", f"pulled-{i}", "--timeout", str(harness.PATIENCE))
                 for i in range(6)]
        answers = [self.answer(process) for process in pulls]
        refused = [errors for code, _, errors in answers if code != 0]
        for errors in refused:
            self.assertIn("2 pulls of job", errors)
        self.assertGreater(len(answers) - len(refused), 1)


if __name__ == "__main__":
    harness.main()
