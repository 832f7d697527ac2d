#!/usr/bin/env python3
"""The end of fsdpd, a pause and a drain, whatever hangs. A daemon that ends by itself in time exits
with 0; one that still exists save_seconds + kill_seconds + 5 after SIGTERM exits with 1."""

import ctypes
import os
import shutil
import signal
import tempfile
import unittest

import harness

SETTINGS = ("workers=2", "train.epochs=100000", "train.batch_size=4", "train.evaluate=false",
            "fsdp.wrap.policy=size", "fsdp.wrap.min_num_params=20000", "retry.machine_failures=3")
LIMITS = {"FSDPD_LIMITS_SAVE_SECONDS": "2", "FSDPD_LIMITS_KILL_SECONDS": "1"}
NEVER_MS = 10 * 60 * 1000  # longer than any of these tests waits

PTRACE_CONT, PTRACE_SEIZE, PTRACE_DETACH, PTRACE_O_TRACEEXIT = 7, 0x4206, 17, 0x40


class Undying:
    """A process that survives SIGKILL until it is released, as if it slept in the kernel: its first
    thread is traced, and stopped on its way out."""

    def __init__(self, pid):
        self.pid, self.libc = pid, ctypes.CDLL(None, use_errno=True)
        self.libc.ptrace.restype = ctypes.c_long
        if self.call(PTRACE_SEIZE, PTRACE_O_TRACEEXIT) != 0:
            raise unittest.SkipTest(f"ptrace: {os.strerror(ctypes.get_errno())}")

    def call(self, request, data):
        return self.libc.ptrace(ctypes.c_long(request), ctypes.c_long(self.pid), ctypes.c_void_p(0),
                                ctypes.c_void_p(data))

    def let_go(self):
        os.waitpid(self.pid, 0x40000000)  # __WALL; it has stopped
        self.call(PTRACE_CONT, 0)
        os.waitpid(self.pid, 0x40000000)  # its parent can reap it again


class Stopping(unittest.TestCase):
    def start(self, **limits):
        directory = tempfile.mkdtemp(prefix="fsdpd-test-")
        self.addCleanup(shutil.rmtree, directory, True)
        self.faults = harness.Faults(directory)
        self.daemon = harness.Daemon(environment={**self.faults.environment, **LIMITS, **limits})
        self.addCleanup(self.daemon.close)
        self.job = self.daemon.submit(*SETTINGS)
        self.daemon.wait_state(self.job, "RUNNING")
        self.daemon.wait_step(self.job, 3)

    def hang_checkpoints(self):
        self.faults.set(f"fsync */checkpoints/* {NEVER_MS}")

    def worker_pids(self):
        return [int(worker["pid"]) for worker in self.daemon.worker_list()]

    def restart(self):
        self.faults.clear()
        self.daemon.start(attach=False)

    def test_shutdown_with_a_hanging_checkpoint(self):
        self.start()
        self.hang_checkpoints()
        self.assertEqual(self.daemon.kill(signal.SIGTERM), 0, self.daemon.text())
        self.restart()
        self.daemon.wait_state(self.job, "RUNNING")

    def test_shutdown_while_a_pause_hangs(self):
        self.start()
        self.hang_checkpoints()
        self.daemon.spawn("pause", self.job)
        self.daemon.wait_for(lambda: self.daemon.show(self.job)["reason"]["code"] == "PAUSING", 20,
                             "the pause to begin")
        self.assertEqual(self.daemon.kill(signal.SIGTERM), 0, self.daemon.text())

    def test_shutdown_with_a_stopped_worker(self):
        self.start()
        os.kill(self.worker_pids()[1], signal.SIGSTOP)
        self.assertEqual(self.daemon.kill(signal.SIGTERM), 0, self.daemon.text())

    def test_shutdown_with_a_worker_that_does_not_die(self):
        self.start()
        self.hang_checkpoints()
        undying = Undying(self.worker_pids()[1])
        try:
            self.assertEqual(self.daemon.kill(signal.SIGTERM), 0, self.daemon.text())
            self.assertIn("worker_left_behind", self.daemon.text())
            self.assertIn(f"pid={undying.pid} how=\"was left behind", self.daemon.text())
            self.assertTrue(harness.alive(undying.pid))
            with open(os.path.join(self.daemon.root, "run/workers")) as records:
                self.assertIn(f"{undying.pid} ", records.read())
        finally:
            undying.let_go()
        self.restart()
        self.daemon.wait_state(self.job, "RUNNING")

    def test_cancel_with_a_worker_that_does_not_die(self):
        self.start()
        self.hang_checkpoints()
        undying = Undying(self.worker_pids()[1])
        try:
            self.daemon.spawn("checkpoint", self.job)
            self.daemon.wait_for(lambda: sum(self.faults.hits()) > 0, 20, "the checkpoint to hang")
            self.assertEqual(self.daemon.ctl("cancel", self.job, "--timeout", "100").returncode, 0)
            self.daemon.wait_state(self.job, "CANCELLED")
            self.daemon.wait_log("worker_left_behind")
            self.assertTrue(harness.alive(undying.pid))
        finally:
            undying.let_go()
        self.faults.clear()
        self.daemon.wait_for(lambda: len(self.daemon.worker_list()) == 2, 60, "another worker")

    def test_pause_with_a_hanging_checkpoint(self):
        self.start()
        taken = self.daemon.ctl("checkpoint", self.job)
        self.assertEqual(taken.returncode, 0, taken.stderr)
        self.hang_checkpoints()
        paused = self.daemon.ctl("pause", self.job, "--timeout", "100")
        self.assertEqual(paused.returncode, 0, paused.stderr)
        shown = self.daemon.show(self.job)
        self.assertEqual(shown["state"], "PAUSED")
        self.assertIn("without a checkpoint", shown["reason"]["message"])
        self.assertIn("continues from the last one", shown["reason"]["message"])
        self.faults.clear()
        self.assertEqual(self.daemon.ctl("resume", self.job).returncode, 0)
        self.daemon.wait_state(self.job, "RUNNING")

    def test_drain_with_a_hanging_checkpoint(self):
        self.start()
        self.hang_checkpoints()
        self.daemon.ctl("drain", self.daemon.worker_list()[0]["id"], "--now")
        self.daemon.wait_state(self.job, "QUEUED")

    def test_disk_of_the_store_hangs(self):
        self.start()
        self.faults.set(f"fsync */store.db* {NEVER_MS}")
        self.assertEqual(self.daemon.kill(signal.SIGTERM), 1, self.daemon.text())
        self.assertIn("stuck_while_stopping", self.daemon.text())


if __name__ == "__main__":
    harness.main()
