#!/usr/bin/env python3
"""Ways in which a rank of three fails or hangs, a rank drawn from a seed (FSDPD_DIAGNOSE_SEED): the
diagnosis names it and the cause. Each case prints how long that took."""

import os
import random
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(__file__))
import diagnosing
import harness
import holding

SEED = int(os.environ.get("FSDPD_DIAGNOSE_SEED", "1"))
WORLD = 3
CHECKPOINTS = "checkpoint.every_steps=10"


class Cases(diagnosing.Diagnosing):
    def train(self, *settings, **limits):
        """A GPT of three ranks; the rank that will fail."""
        self.start_daemon(WORLD, **limits)
        file = harness.draw_text_job(self.daemon.data)
        arguments = ["submit", file]
        for setting in ("data.path=" + os.path.join(self.daemon.data, "text.txt"), "workers=3",
                        "train.max_steps=1000000", "train.evaluate=false", "train.batch_size=4",
                        "retry.machine_failures=0", *settings):
            arguments += ["--set", setting]
        self.job = self.daemon.json(*arguments)["id"]
        self.daemon.wait_step(self.job, 3)
        return random.Random(f"{SEED} {self.id()}").randrange(WORLD)

    def hold(self, rank, *where):
        """Holds a thread of the rank as long as the test runs."""
        if not holding.is_permitted():
            self.skipTest("SKIP: this user may not hold threads of other processes (ptrace)")
        thread = holding.hold(self.pid_of(rank), *where)
        self.addCleanup(holding.let_go, thread)
        return thread

    def hold_in_kernel(self, rank):
        """Holds the thread of the compute lane in an instruction, not between two of them."""
        while True:
            thread = self.hold(rank, "lane-compute")
            lanes = self.diagnose("--no-stacks")["ranks"][rank]["lanes"]
            if any(lane["lane"] == "compute" and lane["kind"] and not lane["awaits"] for lane in lanes):
                return
            holding.let_go(thread)
            self.daemon.wait_step(self.job, int(self.daemon.show(self.job)["step"]) + 1)

    def hold_waiting(self, rank, name):
        """Holds the thread while it waits for others. Elsewhere it may hold a mutex that the worker's
        answer needs, or be in a call on a file, which is then named as the cause."""
        while True:
            thread = self.hold(rank, name)
            if holding.awaits_condition(self.pid_of(rank), thread):
                return
            holding.let_go(thread)
            time.sleep(0.001)

    def expect(self, cause, rank, *words):
        began = time.monotonic()
        found = self.wait_verdict(cause, rank, words[0])
        print(f"{time.monotonic() - began:.1f} s: {found['verdict']}")
        for text in words:
            self.assertIn(text, found["verdict"])
        return found

    def test_stopped(self):
        rank = self.train()
        self.stop_rank(rank)
        self.expect("STOPPED", rank, "its process is stopped")

    def test_two_stopped(self):
        rank = self.train()
        other = (rank + 1) % WORLD
        self.stop_rank(rank)
        self.stop_rank(other)
        first, second = sorted((rank, other))
        found = self.expect("STOPPED", first, f"; likewise rank {second}")
        self.assertEqual(found["ranks_to_blame"], [first, second])

    def test_blocked_read(self):
        """The disk of the data does not answer."""
        rank = self.train()
        self.hold(rank, "loader", "pread", "text.txt")
        found = self.expect("FILE", rank, "its thread loader is in pread() of ", "text.txt",
                            "has not entered")
        self.assertEqual(found["ranks_to_blame"], [rank])

    def test_blocked_checkpoint(self):
        """The disk of the checkpoints does not answer: training continues until the next one is due."""
        rank = self.train(CHECKPOINTS)
        self.hold(rank, "checkpoint", "write", "/checkpoints/")
        self.expect("FILE", rank, "its thread checkpoint is in write() of ", "/checkpoints/")

    def test_hanging_kernel(self):
        rank = self.train()
        self.hold_in_kernel(rank)
        found = self.expect("BUSY", rank, "its compute lane is in ", "has not entered")
        self.assertEqual(found["ranks_to_blame"], [rank])

    def test_hanging_training_thread(self):
        rank = self.train()
        self.hold_waiting(rank, "train")
        found = self.expect("BUSY", rank, "has not entered")
        self.assertEqual(found["ranks_to_blame"], [rank])

    def test_killed(self):
        rank = self.train()
        os.kill(self.pid_of(rank), signal.SIGKILL)
        job = self.daemon.wait_state(self.job, "FAILED")
        self.assertIn(f"rank {rank} ", job["reason"]["message"])
        self.assertIn("SIGKILL", job["reason"]["message"])


if __name__ == "__main__":
    harness.main()
