#!/usr/bin/env python3
"""What happens at three in the morning: killed workers, stopped workers, signals, a second daemon.
"""

import os
import signal
import subprocess
import sys
import time
import unittest
import urllib.request

sys.path.insert(0, os.path.dirname(__file__))
import harness

LONG = ("train.epochs=100000", "retry.machine_failures=0")


class Failures(unittest.TestCase):
    def setUp(self):
        self.daemon = harness.Daemon()
        self.addCleanup(self.daemon.close)

    def worker_of(self, job, rank):
        for worker in self.daemon.worker_list():
            if worker.get("job") == job and int(worker["rank"]) == rank:
                return worker
        return None

    def test_killed_worker(self):
        for rank in (1, 0):
            job = self.daemon.submit(*LONG)
            self.daemon.wait_step(job, 3)
            victim = self.worker_of(job, rank)
            other = self.worker_of(job, 1 - rank)
            killed = time.monotonic()
            os.kill(int(victim["pid"]), signal.SIGKILL)
            shown = self.daemon.wait_state(job, "FAILED", seconds=5)
            print(f"rank {rank} killed, FAILED after {time.monotonic() - killed:.2f} s: "
                  f"{shown['reason']}")
            self.assertIn(f"rank {rank}", shown["reason"]["message"])
            self.assertIn("SIGKILL", shown["reason"]["message"])
            # the survivor is freed, the dead one replaced, the next job runs
            self.daemon.wait_for(
                lambda: [worker["state"] for worker in self.daemon.worker_list()] == ["idle"] * 2,
                10, "two idle workers")
            pids = {worker["id"]: worker["pid"] for worker in self.daemon.worker_list()}
            self.assertNotEqual(pids[victim["id"]], victim["pid"])
            self.assertEqual(pids[other["id"]], other["pid"], "the survivor was restarted too")
            self.assertEqual(self.daemon.submit("train.max_steps=3", wait=True).returncode, 0)

    def test_two_ranks_that_cannot_connect(self):
        """The pair is named, and its link is not the job's error; the job starts when it is there."""
        faults = harness.own_faults(self.addCleanup)
        with harness.Daemon(workers=3, environment=faults.environment) as daemon:
            faults.set("connect 127.0.0.1:* HOLD times=1")
            job = daemon.submit("train.max_steps=3", "workers=3", "fsdp.transport=gloo", "retry.failures=0",
                                "retry.machine_failures=0")

            def ended():
                shown = daemon.show(job)
                return shown if shown["attempt"] > 1 or shown["state"] == "FAILED" else None
            daemon.wait_for(ended, 2 * harness.PATIENCE, "the first attempt's end")
            faults.clear()
            self.assertEqual(daemon.wait_state(job, "SUCCEEDED", "FAILED")["state"], "SUCCEEDED")
            why = [entry["reason"]["message"] for entry in daemon.json("history", job)
                   if entry["reason"]["code"] == "RETRYING"]
            self.assertRegex(why[0], r"rank (\d) cannot reach rank (?!\1)\d")

    def test_stopped_worker(self):
        """fsdpd loses a worker that is alive but silent, too, within a bounded time."""
        job = self.daemon.submit(*LONG)
        self.daemon.wait_step(job, 3)
        os.kill(int(self.worker_of(job, 1)["pid"]), signal.SIGSTOP)
        shown = self.daemon.wait_state(job, "FAILED", seconds=harness.PATIENCE)
        self.assertRegex(shown["reason"]["message"], r"^rank 1 .*was killed by fsdpd \(SIGKILL\): "
                                                     r"it was silent for 1\d\.\d s")
        self.daemon.wait_log("why=\"it was silent for ")
        self.daemon.wait_for(
            lambda: [worker["state"] for worker in self.daemon.worker_list()] == ["idle"] * 2,
            30, "two idle workers")
        self.assertEqual(self.daemon.submit("train.max_steps=3", wait=True).returncode, 0)

    def test_step_that_stands_still(self):
        """The reason names the rank that the others wait for, and disappears when the step
        continues."""
        port = harness.free_port()
        with harness.Daemon(arguments=["--metrics-listen", f"127.0.0.1:{port}"],
                            environment={"FSDPD_LIMITS_SILENCE_SECONDS": "600"}) as daemon:
            job = daemon.submit(*LONG, "train.evaluate=false")
            daemon.wait_step(job, 50)
            victim = [int(worker["pid"]) for worker in daemon.worker_list()
                      if int(worker["rank"]) == 1][0]
            os.kill(victim, signal.SIGSTOP)
            self.addCleanup(lambda: harness.alive(victim) and os.kill(victim, signal.SIGCONT))
            shown = daemon.wait_for(
                lambda: (lambda now: now["reason"]["code"] == "STALLED" and now)(daemon.show(job)),
                harness.PATIENCE, "the report of the stall")
            self.assertRegex(shown["reason"]["message"],
                             r"has not advanced since .*: waits for rank 1 \(.*\), which is silent")
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                age = [line for line in answer.read().decode().splitlines()
                       if line.startswith("fsdpd_step_age_seconds{")]
            self.assertGreater(float(age[0].split()[-1]), 3)
            os.kill(victim, signal.SIGCONT)
            daemon.wait_for(lambda: daemon.show(job)["reason"]["code"] == "RUNNING",
                            harness.PATIENCE, "the job to continue")
            daemon.ctl("cancel", job)

    def test_idle_worker_killed(self):
        victim = self.daemon.worker_list()[0]
        os.kill(int(victim["pid"]), signal.SIGKILL)
        self.daemon.wait_for(
            lambda: len(self.daemon.worker_list()) == 2 and
            victim["pid"] not in [worker["pid"] for worker in self.daemon.worker_list()],
            10, "a new worker")
        self.assertEqual(self.daemon.submit("train.max_steps=3", wait=True).returncode, 0)

    def test_terminate_drains(self):
        job = self.daemon.submit(*LONG)
        self.daemon.wait_step(job, 3)
        workers = harness.children(self.daemon.process.pid)
        self.assertEqual(len(workers), 2)
        self.daemon.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.daemon.process.wait(harness.PATIENCE), 0, self.daemon.text())
        self.assertEqual([pid for pid in workers if harness.alive(pid)], [])
        self.assertFalse(os.path.exists(os.path.join(self.daemon.root, "run/fsdpd.sock")))
        self.daemon.start()
        # The job was queued again with the step that it had reached, and continues.
        shown = self.daemon.wait_state(job, "RUNNING")
        self.assertEqual(shown["attempt"], 2)
        self.daemon.wait_step(job, 3)
        self.daemon.ctl("cancel", job)

    def test_second_signal_leaves_at_once(self):
        job = self.daemon.submit(*LONG)
        self.daemon.wait_step(job, 3)
        workers = harness.children(self.daemon.process.pid)
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)  # so the first signal alone does not end it
        self.daemon.process.send_signal(signal.SIGTERM)
        self.daemon.wait_log("draining")
        self.daemon.process.send_signal(signal.SIGTERM)
        self.daemon.process.wait(harness.PATIENCE)
        until = time.monotonic() + harness.PATIENCE
        while any(harness.alive(pid) for pid in workers) and time.monotonic() < until:
            time.sleep(0.1)
        self.assertEqual([pid for pid in workers if harness.alive(pid)], [])
        self.daemon.start()
        self.assertIn("fsdpd was stopped at once at step ", self.daemon.show(job)["reason"]["message"])

    def test_second_daemon_is_refused(self):
        for runtime in ("run", "other-run"):
            second = subprocess.run(
                [harness.FSDPD, "--workers", "cpu:1",
                 "--runtime-dir", os.path.join(self.daemon.root, runtime),
                 "--state-dir", os.path.join(self.daemon.root, "state"),
                 "--data-root", self.daemon.data],
                timeout=harness.PATIENCE, text=True, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
            self.assertGreater(second.returncode, 0)
            self.assertIn(str(self.daemon.process.pid), second.stderr)
        self.assertEqual(self.daemon.ctl("status").returncode, 0)

    def test_worker_role_by_hand(self):
        worker = self.daemon.start_worker("by-hand", "--device", "cpu")
        self.daemon.wait_for(lambda: len(self.daemon.worker_list()) == 3, 10, "three workers")
        result = self.daemon.submit("workers=3", "train.max_steps=3", wait=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        worker.terminate()
        self.assertEqual(worker.wait(harness.PATIENCE), 0)
        self.daemon.wait_for(lambda: len(self.daemon.worker_list()) == 2, 10, "two workers")


if __name__ == "__main__":
    harness.main()
