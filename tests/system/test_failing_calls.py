#!/usr/bin/env python3
"""Some of the trials of failing_calls.py: each of these calls failed a job, or gave a wrong answer, once; and a
sample of the others. FSDPD_FAILING_CALLS is how many more are drawn."""

import io
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import failing_calls
import harness

MORE = int(os.environ.get("FSDPD_FAILING_CALLS", "0"))
# scenario, role, call, object, error, calls before it, whether it lasts, and how fsdpd ended before a start
FOUND = (
    ("logs", "fsdpd", "readdir", "logs", "EIO", 1, False),
    ("resume", "worker", "mmap", "anonymous", "ENOMEM", 1, False),
    ("resume", "worker", "thread", "", "EAGAIN", 6, False),
    ("start", "fsdpd", "epoll", "", "EMFILE", 0, False, "SIGKILL"),
    ("start", "fsdpd", "fsync", "store", "EIO", 1, False),
    ("start", "fsdpd", "open", "store", "EMFILE", 1, False),
    ("train", "fsdpd", "stat", "store", "EIO", 0, True),
)
SAMPLE = (
    ("train", "worker", "write", "checkpoints", "ENOSPC", 3, True),
    ("train", "fsdpd", "fsync", "weights", "EIO", 0, False),
    ("train", "fsdpd", "write", "store", "ENOSPC", 9, False),
    ("train", "worker", "memfd", "", "EMFILE", 0, False),
    ("train", "worker", "recv", "group", "ECONNRESET", 0, False),
    ("resume", "worker", "readdir", "checkpoints", "EIO", 0, False),
    ("resume", "worker", "read", "checkpoints", "EIO", 2, False),
    ("resume", "worker", "open", "checkpoints", "EACCES", 5, True),
    ("kept file", "fsdpd", "read", "weights", "EIO", 4, True),
    ("checkpoint's", "fsdpd", "read", "checkpoints", "EIO", 1, True),
    ("verify", "fsdpd", "open", "checkpoints", "EMFILE", 2, False),
    ("from workers", "worker", "send", "link", "ECONNRESET", 3, False),
)


class FailingCalls(unittest.TestCase):
    def attempt(self, cases):
        self.trials = failing_calls.Trials()
        self.addCleanup(lambda: self.trials.close())
        for scenario, role, call, name, error, skip, lasting, *stop in cases:
            with self.subTest(scenario, role=role, call=call, object=name, error=error, skip=skip):
                drawn = {"scenario": scenario, "role": role, "call": call, "object": name, "error": error,
                         "skip": skip, "lasting": lasting, "stop": (*stop, "SIGTERM")[0]}
                try:
                    self.assertTrue(self.trials.attempt(drawn)["reached"])
                except (failing_calls.Wrong, EOFError, AssertionError) as wrong:
                    self.trials.close()
                    self.trials = failing_calls.Trials()
                    self.fail(wrong)

    def test_found(self):
        self.attempt(FOUND)

    def test_sample(self):
        self.attempt(SAMPLE)

    def test_no_start_without_the_list_of_workers(self):
        """It would start others beside those that still run."""
        trials = failing_calls.Trials()
        self.addCleanup(trials.close)
        result = trials.attempt({"scenario": "start", "role": "fsdpd", "call": "read", "object": "run", "error": "EIO",
                                 "skip": 0, "lasting": False, "stop": "SIGKILL"})
        self.assertEqual(result["outcome"], "refused")
        self.assertIn("which local workers still run: cannot read", result["said"])

    @unittest.skipUnless(MORE, "FSDPD_FAILING_CALLS is not set")
    def test_more(self):
        wrong = failing_calls.run_trials(None, 1, MORE, failing_calls.SCENARIOS, io.StringIO())
        self.assertEqual(wrong, [])


if __name__ == "__main__":
    harness.main()
