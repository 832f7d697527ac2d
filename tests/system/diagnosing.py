"""What the tests of fsdpctl diagnose share: a job whose ranks are made to hang, and its diagnoses."""

import contextlib
import os
import signal
import sys
import threading
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness

SETTINGS = ("workers=2", "train.epochs=100000", "train.batch_size=4", "train.evaluate=false",
            "fsdp.wrap.policy=size", "fsdp.wrap.min_num_params=20000", "retry.machine_failures=0")
# No deadline comes while a test looks, unless it wants one.
PATIENT = {"FSDPD_LIMITS_HEARTBEAT_SECONDS": "0.2", "FSDPD_LIMITS_SILENCE_SECONDS": "600",
           "FSDPD_LIMITS_PEER_TIMEOUT_SECONDS": "600"}


class Diagnosing(unittest.TestCase):
    def start(self, *settings, workers=2, **limits):
        self.start_daemon(workers, **limits)
        self.job = self.daemon.submit(*SETTINGS, *settings)
        self.daemon.wait_step(self.job, 3)

    def start_daemon(self, workers, **limits):
        self.daemon = harness.Daemon(workers=workers, environment={**PATIENT, **limits})
        self.addCleanup(self.daemon.close)

    def pid_of(self, rank):
        worker = self.daemon.show(self.job)["workers"][rank]
        return next(int(row["pid"]) for row in self.daemon.worker_list() if row["id"] == worker)

    def stop_rank(self, rank):
        """Stops the process of a rank; it continues when the test ends."""
        pid = self.pid_of(rank)
        os.kill(pid, signal.SIGSTOP)
        self.addCleanup(self.let_go, pid)

    def slow_down(self, rank):
        """From now on, the process of a rank runs for a sixth of the time."""
        pid, over = self.pid_of(rank), threading.Event()

        def pulse():
            while not over.wait(0.004):
                os.kill(pid, signal.SIGSTOP)
                over.wait(0.02)
                os.kill(pid, signal.SIGCONT)
        thread = threading.Thread(target=pulse)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(over.set)

    def let_go(self, pid):
        with contextlib.suppress(ProcessLookupError):  # fsdpd has killed it
            os.kill(pid, signal.SIGCONT)

    def diagnose(self, *options):
        return self.daemon.json("diagnose", self.job, *options)

    def wait_verdict(self, cause, rank, words):
        """The first diagnosis with this cause and rank, whose verdict has these words."""
        seen = []

        def judged():
            found = self.diagnose()
            seen[:] = [found["verdict"]]
            right = found["cause"] == cause and found["ranks_to_blame"][:1] == [rank]
            return found if right and words in found["verdict"] else None
        try:
            return self.daemon.wait_for(judged, 30, f"rank {rank} to be blamed for {cause}")
        except AssertionError as error:
            raise AssertionError(f"the last verdict: {seen}") from error
