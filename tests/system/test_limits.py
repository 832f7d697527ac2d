#!/usr/bin/env python3
"""The limit on open files: fsdpd with too low a one does not start and names the number that it
needs; with that number it serves its workers and 16 clients."""

import contextlib
import os
import re
import resource
import shutil
import subprocess
import tempfile
import unittest

import harness

CLIENTS = 16  # 12 that watch, and commands in turn: an ended one's connection counts for a moment
ENDLESS = ("train.epochs=1000000", "train.batch_size=4", "train.evaluate=false")


def limited(hard, soft=None):
    """Runs in a child before its program."""
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft or hard, hard))


@contextlib.contextmanager
def under(hard, soft):
    """Every fsdpd that the harness starts has this limit."""
    popen = subprocess.Popen
    harness.subprocess.Popen = lambda command, **options: popen(
        command, **options, **({"preexec_fn": limited(hard, soft)} if command[0] == harness.FSDPD else {}))
    try:
        yield
    finally:
        harness.subprocess.Popen = popen


class Limits(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="fsdpd-test-")
        self.addCleanup(shutil.rmtree, self.root, True)

    def refused(self, limit, *arguments):
        """The number in the error of an fsdpd that does not start, and has made nothing."""
        directories = [os.path.join(self.root, name) for name in ("run", "state")]
        ended = subprocess.run(
            [harness.FSDPD, *arguments, *(() if "worker" in arguments else
             ("--runtime-dir", directories[0], "--state-dir", directories[1]))],
            env=dict(os.environ, FSDPD_CONFIG=""), preexec_fn=limited(limit), timeout=harness.PATIENCE,
            stdin=subprocess.DEVNULL, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual((ended.returncode, len(ended.stderr.splitlines())), (harness.CONFLICT, 1), ended.stderr)
        needed = re.fullmatch(rf"fsdpd: the limit on open files is {limit}, and a .* needs (\d+): raise it "
                              r"\(ulimit -Hn \1, LimitNOFILE= in a systemd unit\)\n", ended.stderr)
        self.assertTrue(needed, ended.stderr)
        self.assertFalse(any(map(os.path.exists, directories)))
        return int(needed[1])

    def test_a_coordinator_names_what_it_needs(self):
        for workers, expected in ((0, 128), (2, 128), (8, 128), (9, 132), (64, 352), (128, 682)):
            for limit in (8, 20, 64, 100, expected - 1):
                needed = self.refused(limit, "--workers", f"cpu:{workers}" if workers else "none")
                self.assertEqual(needed, expected, workers)
        self.assertEqual(self.refused(127, "coordinator"), 128)

    def test_a_worker_names_what_it_needs(self):
        for limit in (8, 16, 24, 63):
            self.assertEqual(self.refused(limit, "worker", "--coordinator", "unix:/none"), 64)

    def train(self, daemon, workers, watchers=1):
        """A job trains, writes and is read while clients watch it."""
        job = daemon.submit(f"workers={workers}", *ENDLESS)
        spawned = [daemon.spawn("watch", job, "-o", "json") for _ in range(watchers)]
        for watcher in spawned:
            self.assertTrue(watcher.stdout.readline())
        daemon.wait_step(job, 3)
        self.assertEqual(daemon.ctl("checkpoint", job).returncode, harness.DONE)
        self.assertTrue(daemon.tensors(job))
        self.assertEqual([watcher.poll() for watcher in spawned], [None] * watchers)

    def serve(self, hard, soft, workers):
        with under(hard, soft):
            daemon = harness.Daemon(workers=workers)
        self.addCleanup(daemon.close)
        self.assertEqual(resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE), (hard, hard))
        self.train(daemon, workers, CLIENTS - 4)

    def test_it_serves_with_that_number(self):
        self.serve(128, 128, workers=2)

    def test_the_soft_limit_is_raised(self):
        self.serve(128, 16, workers=8)

    def test_workers_train_with_that_number(self):
        daemon = harness.Daemon(workers=0)
        self.addCleanup(daemon.close)
        with under(64, 20):
            started = [daemon.start_worker(f"limited/{n}") for n in range(2)]
        daemon.wait_for(lambda: len(daemon.worker_list()) == 2, 60, "the workers to attach")
        for worker in started:
            self.assertEqual(resource.prlimit(worker.pid, resource.RLIMIT_NOFILE), (64, 64))
        self.train(daemon, 2)


if __name__ == "__main__":
    unittest.main()
