#!/usr/bin/env python3
"""Limits of the host. On open files: fsdpd with too low a one does not start and names the number
that it needs; with that number it serves its workers and 16 clients. Those of control groups on
memory and processors count when jobs are planned and begin, and may change meanwhile."""

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


class OpenFiles(unittest.TestCase):
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
            self.assertTrue(watcher.stdout.readline(), daemon.tail())
        daemon.wait_step(job, 3)
        taken = daemon.ctl("checkpoint", job)
        self.assertEqual(taken.returncode, harness.DONE, taken.stderr + daemon.tail())
        self.assertTrue(daemon.tensors(job))
        self.assertEqual([watcher.stderr.read() for watcher in spawned if watcher.poll() is not None], [], daemon.tail())

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


class ControlGroups(unittest.TestCase):
    """Their files are the test's: FSDPD_HOST_ROOT."""

    def write(self, name, text):
        path = os.path.join(self.root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path + ".new", "w") as file:
            file.write(text + "\n")
        os.rename(path + ".new", path)

    def limit(self, **values):
        for name, text in values.items():
            self.write("sys/fs/cgroup/outer/" + name.replace("_", "."), text)

    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="fsdpd-test-")
        self.addCleanup(shutil.rmtree, self.root, True)
        self.write("proc/meminfo", "MemTotal: 8000000 kB\nMemAvailable: 4000000 kB")
        self.write("proc/self/cgroup", "0::/outer/inner")
        self.write("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw")
        self.write("sys/fs/cgroup/outer/inner/memory.max", "max")
        self.limit(memory_max="2000000000", memory_current="0", cpu_max="100000 100000")
        self.daemon = harness.Daemon(workers=1, environment={"FSDPD_HOST_ROOT": self.root})
        self.addCleanup(self.daemon.close)

    def threads(self, job):
        return self.daemon.wait_log(f" job={job} attempt=1 rank=0 world=1 ").split("threads=")[1].split()[0]

    def test_a_plan_and_an_attempt_count_them_as_they_are_then(self):
        daemon, settings = self.daemon, ("workers=1", "train.max_steps=2")
        planned = ("plan", harness.JOB, "--set", f"data.dir={daemon.data}", "--set", "workers=1")
        self.assertEqual(int(daemon.worker_list()[0]["memory_bytes"]), 2000000000)
        first = daemon.submit(*settings)
        daemon.wait_state(first, "SUCCEEDED")
        self.assertEqual(self.threads(first), "1")

        self.limit(memory_max="3000000")
        refused = daemon.ctl(*planned)
        self.assertEqual(refused.returncode, harness.DOES_NOT_FIT, refused.stderr)
        self.assertIn("3.00 MB", refused.stdout + refused.stderr)

        self.limit(memory_max="2000000000", cpu_max="max 100000")
        self.assertEqual(daemon.ctl(*planned).returncode, harness.DONE)
        second = daemon.submit(*settings)
        daemon.wait_state(second, "SUCCEEDED")
        self.assertEqual(self.threads(second), str(len(os.sched_getaffinity(0))))

    def test_an_attempt_that_no_longer_fits_does_not_begin(self):
        job = self.daemon.json("submit", harness.JOB, "--hold", "--set", f"data.dir={self.daemon.data}",
                               "--set", "workers=1")["id"]
        self.limit(memory_max="3000000")
        self.assertEqual(self.daemon.ctl("release", job).returncode, harness.DONE)
        reason = self.daemon.wait_state(job, "FAILED")["reason"]["message"]
        self.assertIn("3.00 MB", reason)


if __name__ == "__main__":
    unittest.main()
