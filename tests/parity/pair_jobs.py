"""What the tests of jobs that learn from pairs share: a daemon with three workers, the pairs of dpo_cases.py, models, and one
job file; and what its jobs say."""

import os
import shutil
import sys
import tempfile
import unittest

sys.path[:0] = [os.path.dirname(__file__), os.path.join(os.path.dirname(__file__), "../system")]
import harness
import dpo_cases
import family_numbers as numbers

BOUND, SAME = 1e-4, 1e-6  # to trl's numbers; among splits of the same pairs


class PairJobs(unittest.TestCase):
    job = records = models = None  # the job file; the numbers by case, and the names of those with a model

    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp(prefix="fsdpd-test-")
        cls.addClassCleanup(shutil.rmtree, cls.root, True)
        cls.data = os.path.join(cls.root, "data")
        os.mkdir(cls.data)
        dpo_cases.write_pairs(os.path.join(cls.data, "pairs"), dpo_cases.draw_pairs(), ("train", "validation"))
        for name in sorted(cls.models):
            numbers.write_checkpoint(os.path.join(cls.data, name), cls.records[name]["record"])
        with open(os.path.join(cls.root, "job.yaml"), "w", encoding="utf-8") as file:
            file.write(cls.job)
        cls.daemon = harness.Daemon(3, data=cls.data)
        cls.addClassCleanup(cls.daemon.close)

    def set(self, words):
        return [os.path.join(self.root, "job.yaml"), *(word for one in words for word in ("--set", one))]

    def rows(self, arguments):
        """The metrics of every step."""
        result = self.daemon.ctl("submit", *arguments, "--wait", timeout=300)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.job_id = self.daemon.json("list")[-1]["id"]
        return [event["metrics"] for event in self.daemon.events(self.job_id) if "metrics" in event]

    def assert_within(self, bound, found, expected, name):
        worst = max(abs(a - b) / max(1, abs(b)) for key in found for a, b in zip(found[key], expected[key], strict=True))
        print(f"{name}: within {worst:.1e}")
        self.assertLessEqual(worst, bound)
