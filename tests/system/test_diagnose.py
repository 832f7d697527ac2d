#!/usr/bin/env python3
"""fsdpctl diagnose: names the rank that the others wait for and what it does, while ranks hang, and
before the deadline ends the attempt, whose history then has the same."""

import os
import sys

sys.path.insert(0, os.path.dirname(__file__))
import diagnosing
import harness


class Diagnose(diagnosing.Diagnosing):
    def test_progress(self):
        self.start()
        found = self.diagnose()
        self.assertEqual([rank["answered"] for rank in found["ranks"]], [True, True])
        self.assertEqual([rank["link"] for rank in found["ranks"]], ["attached", "attached"])
        for rank in found["ranks"]:
            names = {thread["name"]: thread for thread in rank["threads"]}
            self.assertIn("lane-compute", names)
            frames = " ".join(names["train"]["frames"])
            self.assertIn("attempt_thread+", frames)
        found = self.diagnose("--no-stacks")
        self.assertFalse(any(thread["frames"] for rank in found["ranks"] for thread in rank["threads"]))
        table = self.daemon.ctl("diagnose", self.job)
        self.assertEqual(table.returncode, 0, table.stderr)
        self.assertIn("RANK  WORKER", table.stdout)

    def test_stopped_process(self):
        self.start()
        self.stop_rank(1)
        found = self.wait_verdict("STOPPED", 1, "its process is stopped; rank 0 has waited")
        self.assertRegex(found["verdict"], r"in \w+( \S+)? of step \d+")
        one, other = found["ranks"]
        self.assertTrue(one["answered"] and one["waits"])
        self.assertFalse(other["answered"])
        self.assertEqual(other["process"], "stopped")
        lanes = {lane["lane"]: lane for lane in one["lanes"]}
        self.assertIn(lanes["comm"]["kind"],
                      ("all_gather", "reduce_scatter", "all_reduce", "reduce_stats"))
        table = self.daemon.ctl("diagnose", self.job).stdout
        self.assertIn("rank 1, thread", table)
        self.assertNotIn("rank 0, thread", table)

    def test_deadline(self):
        """The diagnosis comes before the deadline, and the history keeps it."""
        self.start(FSDPD_LIMITS_PEER_TIMEOUT_SECONDS="6", FSDPD_LIMITS_KILL_SECONDS="1")
        self.stop_rank(0)
        job = self.daemon.wait_state(self.job, "FAILED")
        self.assertIn("; diagnosis: rank 0 ", job["reason"]["message"])
        last = self.daemon.json("history", self.job)[-1]
        self.assertEqual(last["diagnosis"]["cause"], "STOPPED")
        self.assertIn(last["diagnosis"]["verdict"], last["reason"]["message"])
        self.assertEqual(last["diagnosis"]["ranks_to_blame"], [0])
        shown = self.daemon.ctl("show", self.job).stdout
        self.assertIn("diagnosis:", " ".join(shown.split()))
        refused = self.daemon.ctl("diagnose", self.job)
        self.assertEqual(refused.returncode, harness.CONFLICT)
        self.assertIn("fsdpctl history", refused.stderr)

    def test_slow_rank(self):
        """A process that mostly is stopped, but never for long: slow, in show and in the verdict."""
        self.start()
        self.slow_down(1)

        def slow():
            ranks = [row["rank"] for row in self.daemon.show(self.job)["slow_ranks"]]
            return 1 in ranks
        self.daemon.wait_for(slow, 60, "rank 1 to be slow")
        self.wait_verdict("SLOW", 1, "times slower than the median rank")
        entries = [entry["reason"] for entry in self.daemon.json("history", self.job)]
        self.assertTrue([reason for reason in entries if reason["code"] == "SLOW_RANK" and
                         reason["message"].startswith("rank 1 ")], entries)

    def test_unknown_job(self):
        self.start()
        self.assertEqual(self.daemon.ctl("diagnose", "none-1").returncode, harness.NOT_FOUND)


if __name__ == "__main__":
    harness.main()
