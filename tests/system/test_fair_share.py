#!/usr/bin/env python3
"""With queue.fair_share, users of one priority get equal parts of the workers while all have waiting jobs: one
submits jobs of one worker, one longer jobs, one jobs of two workers. FSDPD_SHARE_JOBS is the number of jobs."""

import datetime
import os
import re
import shutil
import sys
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness

JOBS = int(os.environ.get("FSDPD_SHARE_JOBS", "24"))
WORKERS = 2
# Of each user: the jobs' workers, steps, and number.
USERS = {1001: (1, 20, JOBS // 2), 1002: (1, 60, JOBS // 4), 1003: (2, 20, JOBS // 4)}


@unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), "needs root and setpriv")
class FairShare(unittest.TestCase):
    def setUp(self):
        self.daemon = harness.Daemon(workers=WORKERS, environment={"FSDPD_QUEUE_FAIR_SHARE_HALF_LIFE": "1d"})
        self.addCleanup(self.daemon.close)
        self.others = harness.OtherUsers(self.daemon, self.addCleanup)

    def submit(self, uid):
        """Submits an array as this user."""
        workers, steps, number = USERS[uid]
        job = shutil.copy(harness.JOB, self.others.place)
        shutil.copy(os.path.join(os.path.dirname(harness.JOB), "net.yaml"), self.others.place)
        arguments = ["submit", job, "--array", f"1-{number}", "-o", "json"]
        for setting in (f"data.dir={self.daemon.data}", f"workers={workers}", f"train.max_steps={steps}",
                        f"name=of-{uid}", "train.evaluate=false", "save_model=false", "train.batch_size=16"):
            arguments += ["--set", setting]
        code, _, errors = self.others.answer(self.others.spawn(*arguments, uid=uid))
        self.assertEqual(code, 0, errors)

    def spans(self):
        """Of each job that has begun: its user, workers, and seconds of its begin and its end, from the log."""
        found = {}
        for line in self.daemon.text().splitlines():
            change = re.match(r"(\S+) .* job_state job=of-(\d+)-\d+-(\d+) state=(\w+) ", line)
            if change is None or change[4] == "QUEUED":
                continue
            user, seconds = int(change[2]), datetime.datetime.fromisoformat(change[1]).timestamp()
            span = found.setdefault((user, change[3]), [seconds, None])
            if change[4] in ("SUCCEEDED", "FAILED", "CANCELLED"):
                self.assertEqual(change[4], "SUCCEEDED", line)
                span[1] = seconds
        return found

    def test_equal_parts(self):
        blocker = self.daemon.submit("workers=2", "train.epochs=100000", "train.evaluate=false")
        self.daemon.wait_state(blocker, "RUNNING")
        for uid in USERS:
            self.submit(uid)
        self.daemon.ctl("cancel", blocker)

        def first_is_through():
            spans = self.spans()
            return any(len([1 for user, _ in spans if user == uid]) == USERS[uid][2] for uid in USERS)
        self.daemon.wait_for(first_is_through, 60 + 2 * JOBS, "a user to have no job that waits")
        spans = self.spans()
        until = max(begin for begin, _ in spans.values())
        used, longest = dict.fromkeys(USERS, 0), 0
        for (user, _), (begin, end) in spans.items():
            seconds = USERS[user][0] * ((end or until) - begin)
            used[user] += seconds
            longest = max(longest, seconds)
        part = sum(used.values()) / len(USERS)
        print({user: round(seconds / sum(used.values()), 3) for user, seconds in used.items()}, file=sys.stderr)
        for user, seconds in used.items():
            # Each is behind by less than a job, and ahead by less than a job of its own.
            self.assertLess(abs(seconds - part), longest, used)
            if JOBS >= 300:
                self.assertLess(abs(seconds / part - 1), 0.05, used)


if __name__ == "__main__":
    harness.main()
