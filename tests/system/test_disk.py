#!/usr/bin/env python3
"""A disk that fills up, and directories that are not writable: fsdpd names them, and survives."""

import json
import os
import resource
import subprocess
import sys
import unittest
import urllib.error
import urllib.request

sys.path.insert(0, os.path.dirname(__file__))
import harness


def mount(path, size="16m"):
    """Mounts a small disk, if this process has the permission."""
    os.makedirs(path, exist_ok=True)
    result = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "fsdpd-test", path],
                            capture_output=True, text=True)
    return result.returncode == 0


def fill(path):
    """Fills the disk with one file."""
    with open(path, "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass


class Disk(unittest.TestCase):
    def small_disk(self, **size):
        """A root whose state directory is a disk of its own."""
        root = harness.tempfile.mkdtemp(prefix="fsdpd-test-")
        self.addCleanup(harness.shutil.rmtree, root, True)
        state = os.path.join(root, "state")
        if os.geteuid() != 0 or not mount(state, **size):
            self.skipTest("no permission to mount a small disk")
        self.addCleanup(subprocess.run, ["umount", "-l", state])
        harness.draw_digits(os.path.join(root, "data"))
        return root, state

    def submit(self, daemon, *settings):
        arguments = ["submit", harness.JOB]
        for setting in (f"data.dir={daemon.data}", "train.max_steps=6", "train.evaluate=false", *settings):
            arguments += ["--set", setting]
        return daemon.ctl(*arguments, "--hold", "-o", "json")

    def test_room(self):
        """fsdpd accepts a job if its files fit beside those that earlier jobs will write."""
        root, state = self.small_disk(size="64m")
        with harness.Daemon(root=root, data=os.path.join(root, "data")) as daemon:
            checkpoints = ("checkpoint.every_steps=1",)
            refused = self.submit(daemon, *checkpoints, "checkpoint.keep=4")
            self.assertEqual(refused.returncode, harness.DOES_NOT_FIT, refused.stderr)
            disk = os.statvfs(state)
            self.assertRegex(refused.stderr, f"{state}.* has no room for the job: it will write [0-9]+ bytes")
            free = int(refused.stderr.split(" bytes are free")[0].rsplit(" ", 1)[1])
            self.assertLess(abs(free - disk.f_bavail * disk.f_frsize), 1 << 20)
            needed = int(refused.stderr.split("it will write ")[1].split()[0])
            model = 1199882 * 4  # MNIST's example, whose optimizer keeps two values per parameter
            self.assertGreater(needed, 5 * 3 * model + model)
            self.assertLess(needed, 5 * 3 * model + model + (2 << 20))
            # Adagrad keeps one value per parameter.
            refused = self.submit(daemon, *checkpoints, "checkpoint.keep=8", "optimizer.type=adagrad")
            self.assertEqual(refused.returncode, harness.DOES_NOT_FIT, refused.stderr)
            needed = int(refused.stderr.split("it will write ")[1].split()[0])
            self.assertLess(abs(needed - (6 * 2 * model + model)), 2 << 20)
            # The others keep what their plans say: of the weights' bytes, beside 64 KiB a file and 1 MiB.
            for settings, kept in (("{type: muon}", 2 - 9216 * 128 / 1199882), ("{type: adafactor}", 0.018),
                                   ("{type: adamw, state_dtype: int8}", 2 * 260 / 256 / 4),
                                   ("{type: adamw, state_dtype: bf16}", 1)):
                refused = self.submit(daemon, *checkpoints, "checkpoint.keep=0", "train.max_steps=60",
                                      f"optimizer={settings}")
                self.assertEqual(refused.returncode, harness.DOES_NOT_FIT, refused.stderr)
                needed = int(refused.stderr.split("it will write ")[1].split()[0])
                expected = 60 * ((1 + kept) * model + (64 << 10)) + model + (1 << 20)
                self.assertLess(abs(needed / expected - 1), 0.01, settings)
            # All are kept; the last step's is counted once.
            refused = self.submit(daemon, *checkpoints, "checkpoint.keep=0")
            self.assertEqual(refused.returncode, harness.DOES_NOT_FIT, refused.stderr)
            self.assertIn(", 6 checkpoints ", refused.stderr)
            taken = self.submit(daemon, *checkpoints, "checkpoint.keep=1")
            self.assertEqual(taken.returncode, 0, taken.stderr)
            first = json.loads(taken.stdout)["id"]
            refused = self.submit(daemon, *checkpoints, "checkpoint.keep=1")
            self.assertEqual(refused.returncode, harness.DOES_NOT_FIT, refused.stderr)
            self.assertIn("jobs accepted before it", refused.stderr)
            # Without checkpoints there is room, and once that job has ended, for one of the same
            # size.
            small = self.submit(daemon)
            self.assertEqual(small.returncode, 0, small.stderr)
            self.assertEqual(daemon.ctl("cancel", first).returncode, 0)
            again = self.submit(daemon, *checkpoints, "checkpoint.keep=1")
            self.assertEqual(again.returncode, 0, again.stderr)
            # The promise holds.
            job = json.loads(again.stdout)["id"]
            self.assertEqual(daemon.ctl("cancel", json.loads(small.stdout)["id"]).returncode, 0)
            self.assertEqual(daemon.ctl("release", job).returncode, 0)
            daemon.wait_state(job, "SUCCEEDED")
            self.assertNotIn("No space", daemon.text())

    def test_reserve(self):
        """On a full disk fsdpd records how a job ends, and the record survives a crash; fsdpd
        refuses new jobs until there is room again."""
        root, state = self.small_disk()
        full, port = os.path.join(state, "something-else"), harness.free_port()
        arguments = ["--metrics-listen", f"127.0.0.1:{port}"]
        with harness.Daemon(root=root, data=os.path.join(root, "data"), arguments=arguments) as daemon:
            reserve = os.stat(os.path.join(state, "store.reserve"))
            self.assertEqual(reserve.st_size, 4 << 20)
            self.assertGreaterEqual(reserve.st_blocks * 512, reserve.st_size)
            job = daemon.submit("train.max_steps=60", "train.log_interval=1", "train.evaluate=false",
                                "save_model=false")
            daemon.wait_step(job, 1)
            fill(full)
            self.assertIn("no new jobs are accepted", daemon.ctl("status").stdout)
            with self.assertRaises(urllib.error.HTTPError) as unready:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz")
            self.assertRegex(unready.exception.read(), b"no new jobs are accepted|the store refuses changes")
            unready.exception.close()
            daemon.wait_state(job, "SUCCEEDED")
            daemon.wait_log("store_reserve_used")
            refused = self.submit(daemon, "save_model=false")
            self.assertEqual(refused.returncode, harness.DOES_NOT_FIT, refused.stderr)
            self.assertIn(state, refused.stderr)
            daemon.kill()
            daemon.start()
            shown = daemon.show(job)
            self.assertEqual((shown["state"], shown["attempt"]), ("SUCCEEDED", 1))
            self.assertEqual(harness.metric_steps(daemon.events(job))[-1], 60)
            self.assertIn("no new jobs are accepted", daemon.ctl("status").stdout)
            os.unlink(full)
            daemon.wait_log("store_reserve_whole")
            self.assertNotIn("no new jobs are accepted", daemon.ctl("status").stdout)
            self.assertEqual(daemon.submit("train.max_steps=2", "save_model=false", wait=True).returncode, 0)

    def test_full(self):
        root, state = self.small_disk()
        with harness.Daemon(root=root, data=os.path.join(root, "data")) as daemon:
            job = daemon.submit("train.max_steps=120", "train.log_interval=1",
                                "train.evaluate=false", "save_model=false")
            daemon.wait_step(job, 3)
            full = os.path.join(state, "something-else")
            fill(full)
            # fsdpd accepts nothing that it cannot keep, and the message names the full disk.
            refused = self.submit(daemon)
            self.assertEqual(refused.returncode, harness.DOES_NOT_FIT, refused.stderr)
            self.assertIn(f"the disk of {state} is full", refused.stderr)
            # The running job continues, and fsdpd keeps its reports when there is room again.
            step = int(daemon.show(job)["step"])
            daemon.wait_step(job, min(step + 5, 120))
            self.assertEqual(daemon.ctl("status").returncode, 0)
            os.unlink(full)
            daemon.wait_state(job, "SUCCEEDED")
            output = daemon.ctl("watch", job, "-o", "json").stdout
            watched = [json.loads(line) for line in output.splitlines()]
            self.assertEqual([event["metrics"]["step"] for event in watched if "metrics" in event],
                             list(range(1, 121)))
            self.assertEqual(daemon.submit("train.max_steps=2", "save_model=false",
                                           wait=True).returncode, 0)

    def test_file_size_limit(self):
        """A file at `ulimit -f` is as one on a full disk: nothing ends, and the job waits in SAVING."""
        with harness.Daemon() as daemon:
            process = daemon.process.pid
            usual = resource.prlimit(process, resource.RLIMIT_FSIZE)
            resource.prlimit(process, resource.RLIMIT_FSIZE, (3 << 20, usual[1]))  # the model: 4.8 MB
            job = daemon.submit("train.max_steps=2", "train.evaluate=false")
            daemon.wait_for(lambda: daemon.show(job)["reason"]["code"] == "SAVING", harness.PATIENCE,
                            f"{job} to be SAVING")
            resource.prlimit(process, resource.RLIMIT_FSIZE, usual)
            daemon.wait_state(job, "SUCCEEDED")
            self.assertEqual(daemon.show(job)["attempt"], 1)
            target = os.path.join(daemon.root, "pulled.safetensors")
            pull = [harness.FSDPCTL, "--address", daemon.address, "pull", job, "-o", target]
            result = subprocess.run(
                pull, capture_output=True, text=True, timeout=harness.PATIENCE,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, usual[1])))
            self.assertGreater(result.returncode, 0, result.stderr)  # not by a signal
            self.assertIn("File too large", result.stderr)

    def test_unwritable(self):
        """Without permission fsdpd does not start, and the message names the directory."""
        root = harness.tempfile.mkdtemp(prefix="fsdpd-test-")
        self.addCleanup(harness.shutil.rmtree, root, True)
        for name in ("run", "state"):
            with self.subTest(directory=name):
                file = os.path.join(root, name + "-file")
                with open(file, "w"):
                    pass
                arguments = {"run": os.path.join(root, "run"), "state": os.path.join(root, "state")}
                arguments[name] = file  # not even root makes a directory of a file
                result = subprocess.run(
                    [harness.FSDPD, "--workers", "cpu:1", "--runtime-dir", arguments["run"],
                     "--state-dir", arguments["state"]], env=dict(os.environ, FSDPD_CONFIG=""),
                    capture_output=True, text=True, timeout=harness.PATIENCE)
                self.assertGreater(result.returncode, 0)
                self.assertIn(file, result.stderr)


if __name__ == "__main__":
    harness.main()
