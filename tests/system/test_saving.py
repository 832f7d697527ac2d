#!/usr/bin/env python3
"""The last write of a job must not cost its weights: no room, no descriptor, and the users'
reactions."""

import os
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness

SHORT = ("train.max_steps=3", "train.evaluate=false", "workers=2")
WEIGHTS = 4800000  # bytes; slightly less than the example's weights


class Disk:
    """A small disk mounted under a directory; `fill` leaves no room for weights."""

    def __init__(self, test, path, size="24m"):
        os.makedirs(path, exist_ok=True)
        mounted = os.geteuid() == 0 and subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "fsdpd-test", path],
            capture_output=True).returncode == 0
        if not mounted:
            test.skipTest("no permission to mount a small disk")
        test.addCleanup(subprocess.run, ["umount", "-l", path])
        self.path, self.filler = path, os.path.join(path, "something-else")

    def fill(self, leave=WEIGHTS // 2):
        disk = os.statvfs(self.path)
        with open(self.filler, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, disk.f_bavail * disk.f_frsize - leave)

    def free(self):
        os.unlink(self.filler)


class Saving(unittest.TestCase):
    def start(self, size="24m", **options):
        root = harness.tempfile.mkdtemp(prefix="fsdpd-test-")
        self.addCleanup(harness.shutil.rmtree, root, True)
        disk = Disk(self, os.path.join(root, "state"), size)
        harness.draw_digits(os.path.join(root, "data"))
        daemon = harness.Daemon(root=root, data=os.path.join(root, "data"), **options)
        self.addCleanup(daemon.close)
        return daemon, disk

    def submit_and_fill(self, daemon, disk):
        """Submits a job that starts once the disk is full: with a full disk fsdpd accepts none."""
        settings = [word for setting in (f"data.dir={daemon.data}", *SHORT) for word in ("--set", setting)]
        job = daemon.json("submit", harness.JOB, *settings, "--hold")["id"]
        disk.fill()
        self.assertEqual(daemon.ctl("release", job).returncode, 0)
        return job

    def wait_saving(self, daemon, job):
        def saving():
            shown = daemon.show(job)
            self.assertIn(shown["state"], ("QUEUED", "STARTING", "RUNNING"), shown["reason"])
            return shown if shown["reason"]["code"] == "SAVING" else None
        return daemon.wait_for(saving, harness.PATIENCE, f"{job} to be SAVING")

    def undisturbed(self, daemon, *settings):
        """The weights of the same job on a disk with room."""
        job = daemon.submit(*SHORT, *settings)
        daemon.wait_state(job, "SUCCEEDED")
        tensors = daemon.tensors(job)
        self.assertEqual(daemon.ctl("forget", job).returncode, 0)
        return tensors

    def test_full_disk(self):
        """Nothing is lost, and the job succeeds when there is room again."""
        daemon, disk = self.start()
        expected = self.undisturbed(daemon)
        job = self.submit_and_fill(daemon, disk)
        shown = self.wait_saving(daemon, job)
        self.assertTrue(shown["reason"]["message"].startswith("SAVING: no space left on "),
                        shown["reason"])
        self.assertIn(f"fsdpctl pull {job}", shown["reason"]["message"])
        # A live pull has the weights of the last step, and the job keeps retrying.
        self.assertEqual(daemon.tensors(job), expected)
        self.assertEqual(daemon.tensors(job), expected)
        for verb in ("checkpoint", "pause"):
            refused = daemon.ctl(verb, job)
            self.assertEqual(refused.returncode, harness.CONFLICT, refused.stderr)
            self.assertIn("SAVING", refused.stderr)
        self.assertEqual(daemon.show(job)["reason"]["code"], "SAVING")
        disk.free()
        daemon.wait_state(job, "SUCCEEDED")
        self.assertEqual(daemon.tensors(job), expected)
        self.assertEqual(daemon.show(job)["attempt"], 1)

    def test_cancel(self):
        """The job ends at once, though the disk stays full."""
        daemon, disk = self.start()
        job = self.submit_and_fill(daemon, disk)
        self.wait_saving(daemon, job)
        cancelled = daemon.ctl("cancel", job)
        self.assertEqual(cancelled.returncode, 0, cancelled.stderr)
        daemon.wait_state(job, "CANCELLED")
        leftover = [name for name in os.listdir(os.path.join(daemon.root, "state/jobs", job))
                    if name.startswith("state_dict")]
        self.assertEqual(leftover, [])
        # Its workers are free for another job.
        disk.free()
        self.assertEqual(daemon.submit(*SHORT, wait=True).returncode, 0)

    def test_cancel_that_is_not_kept(self):
        """The store cannot keep that the job was cancelled, and fsdpd is killed: the next one finds
        out from the workers why the job has ended."""
        root = harness.tempfile.mkdtemp(prefix="fsdpd-test-")
        self.addCleanup(harness.shutil.rmtree, root, True)
        faults = harness.Faults(root)
        with harness.Daemon(root=root, environment=faults.environment) as daemon:
            job = daemon.submit(*SHORT, "train.max_steps=150", "retry.machine_failures=0")
            daemon.wait_step(job, 1)
            faults.set("write */state/* ENOSPC", "mkdir */state/* ENOSPC")
            self.wait_saving(daemon, job)
            cancelled = daemon.ctl("cancel", job)
            self.assertEqual(cancelled.returncode, harness.FAILED, cancelled.stderr)
            self.assertIn("the store could not be written", cancelled.stderr)
            daemon.wait_state(job, "CANCELLED")
            daemon.kill(signal.SIGKILL)
            faults.clear()
            daemon.start()
            reason = daemon.wait_state(job, "FAILED")["reason"]
            self.assertEqual(reason["code"], "ABORTED")
            self.assertIn("cancelled by ", reason["message"])

    def test_coordinator_killed(self):
        """The next coordinator gets the weights from the workers."""
        daemon, disk = self.start()
        expected = self.undisturbed(daemon)
        job = self.submit_and_fill(daemon, disk)
        self.wait_saving(daemon, job)
        daemon.kill(signal.SIGKILL)
        daemon.start()
        self.wait_saving(daemon, job)
        disk.free()
        daemon.wait_state(job, "SUCCEEDED")
        self.assertEqual(daemon.tensors(job), expected)
        self.assertEqual(daemon.show(job)["attempt"], 1)

    def test_last_step(self):
        """If the job takes checkpoints, its final weights are in one."""
        with harness.Daemon() as daemon:
            for settings, expected in ((("checkpoint.every_steps=3",), [3, 6, 7]),
                                       (("checkpoint.every_steps=7",), [7]),
                                       (("checkpoint.every_epochs=5",), [7]),
                                       ((f"checkpoint.directory={daemon.data}",), [7]),
                                       ((), [])):
                with self.subTest(settings=settings):
                    job = daemon.submit("train.max_steps=7", "train.evaluate=false", "workers=2",
                                        *settings)
                    daemon.wait_state(job, "SUCCEEDED")
                    steps = [int(entry["step"]) for entry in daemon.json("checkpoints", job)]
                    self.assertEqual(steps, expected)

    def test_last_checkpoint(self):
        """Without room for its last checkpoint the job waits, with and without saved weights."""
        root = harness.tempfile.mkdtemp(prefix="fsdpd-test-")
        self.addCleanup(harness.shutil.rmtree, root, True)
        harness.draw_digits(os.path.join(root, "data"))
        disk = Disk(self, os.path.join(root, "data/disk"), "64m")
        with harness.Daemon(root=root, data=os.path.join(root, "data")) as daemon:
            expected = self.undisturbed(daemon)
            for settings in (("save_model=false",), ()):
                with self.subTest(settings=settings):
                    disk.fill()
                    job = daemon.submit(*SHORT, f"checkpoint.directory={disk.path}", *settings)
                    shown = self.wait_saving(daemon, job)
                    self.assertIn("No space left on", shown["reason"]["message"])
                    self.assertEqual(daemon.tensors(job), expected)
                    disk.free()
                    daemon.wait_state(job, "SUCCEEDED")
                    steps = [int(entry["step"]) for entry in daemon.json("checkpoints", job)]
                    self.assertEqual(steps, [3])
                    self.assertEqual(daemon.tensors(job), expected)
            disk.fill()
            job = daemon.submit(*SHORT, f"checkpoint.directory={disk.path}")
            self.wait_saving(daemon, job)
            daemon.kill(signal.SIGKILL)
            daemon.start()
            self.wait_saving(daemon, job)
            self.assertEqual(daemon.ctl("cancel", job).returncode, 0)
            daemon.wait_state(job, "CANCELLED")
            listed = [event["checkpoint"] for event in daemon.events(job) if "checkpoint" in event]
            self.assertLessEqual(len(listed), 2)  # each coordinator records only the first failure

    def test_end_not_recorded(self):
        """The store rejects the job's end: the next coordinator receives that end again."""
        root = harness.tempfile.mkdtemp(prefix="fsdpd-test-")
        self.addCleanup(harness.shutil.rmtree, root, True)
        faults = harness.Faults(root)
        with harness.Daemon(root=root, environment=faults.environment) as daemon:
            for settings in ((), ("checkpoint.every_steps=50",)):
                with self.subTest(settings=settings):
                    job = daemon.submit("train.max_steps=60", "train.evaluate=false", "workers=2",
                                        "save_model=false", "retry.machine_failures=0", *settings)
                    daemon.wait_step(job, 1)
                    faults.set("write */store.db-wal ENOSPC")
                    daemon.wait_state(job, "SUCCEEDED")
                    daemon.kill()
                    faults.clear()
                    daemon.start()
                    ended = daemon.wait_state(job, "SUCCEEDED", "FAILED")
                    self.assertEqual((ended["state"], ended["attempt"], int(ended["step"])),
                                     ("SUCCEEDED", 1, 60), ended["reason"])

    def test_no_descriptor_for_a_rank(self):
        """An attempt whose rank cannot read its data is retried without using its budget, until it can."""
        root = harness.tempfile.mkdtemp(prefix="fsdpd-test-")
        self.addCleanup(harness.shutil.rmtree, root, True)
        faults = harness.Faults(root)
        with harness.Daemon(root=root, environment=faults.environment) as daemon:
            job = daemon.ctl("submit", harness.JOB, "--hold", *[
                word for setting in (f"data.dir={daemon.data}", "retry.machine_failures=0", *SHORT)
                for word in ("--set", setting)]).stdout.strip()
            faults.set("read *train-images* EMFILE")
            self.assertEqual(daemon.ctl("release", job).returncode, 0)
            shown = daemon.wait_for(
                lambda: [seen for seen in [daemon.show(job)]
                         if seen["state"] == "FAILED" or
                         seen["attempt"] > 1 and seen["reason"]["code"] == "RETRYING"],
                harness.PATIENCE, "a second attempt")[0]
            self.assertEqual(shown["state"], "QUEUED", shown["reason"])
            self.assertIn("Too many open files", shown["reason"]["message"])
            faults.clear()
            ended = daemon.wait_state(job, "SUCCEEDED", "FAILED")
            self.assertEqual(ended["state"], "SUCCEEDED", ended["reason"])

    def test_a_disk_that_fails_at_a_retry(self):
        """A job whose checkpoints cannot be read now is retried without using its budget, until they
        can, and starts from none but the newest."""
        root = harness.tempfile.mkdtemp(prefix="fsdpd-test-")
        self.addCleanup(harness.shutil.rmtree, root, True)
        faults = harness.Faults(root)
        with harness.Daemon(root=root, environment=faults.environment) as daemon:
            for rule in ("open */checkpoints EIO", "open */checkpoints EACCES", "open */checkpoints ENOTDIR",
                         "read *.safetensors EIO", "open */checkpoints/step-* EACCES"):
                with self.subTest(rule):
                    job = daemon.submit("workers=2", "train.evaluate=false", "train.max_steps=100000",
                                        "checkpoint.every_steps=5", "retry.failures=0",
                                        "retry.machine_failures=1")
                    daemon.wait_for(lambda: daemon.json("checkpoints", job), harness.PATIENCE, "a checkpoint")
                    faults.set(rule)
                    pid = [row["pid"] for row in daemon.worker_list() if row.get("job") == job][0]
                    os.kill(int(pid), signal.SIGKILL)
                    shown = daemon.wait_for(
                        lambda: [seen for seen in [daemon.show(job)]
                                 if seen["state"] == "FAILED" or
                                 seen["attempt"] > 2 and seen["reason"]["code"] == "RETRYING"],
                        harness.PATIENCE, "a third attempt")[0]
                    self.assertEqual(shown["state"], "QUEUED", shown["reason"])
                    self.assertIn("because of its host", shown["reason"]["message"])
                    faults.clear()
                    daemon.wait_for(lambda: daemon.show(job)["state"] == "RUNNING", harness.PATIENCE, "the job")
                    text = daemon.show(job)["reason"]["message"]
                    self.assertIn("continuing from step", text)
                    self.assertNotIn("cannot be read", text)
                    self.assertEqual(daemon.ctl("cancel", job).returncode, 0)
                    daemon.wait_state(job, "CANCELLED")
                    daemon.wait_for(lambda: len(daemon.worker_list()) == 2, harness.PATIENCE, "the workers")

    def test_no_memory_for_a_socket(self):
        """As no descriptor: the job's budget is not used, and it starts when there is memory."""
        root = harness.tempfile.mkdtemp(prefix="fsdpd-test-")
        self.addCleanup(harness.shutil.rmtree, root, True)
        faults = harness.Faults(root)
        with harness.Daemon(root=root, environment=faults.environment) as daemon:
            job = daemon.ctl("submit", harness.JOB, "--hold", *[
                word for setting in (f"data.dir={daemon.data}", "retry.machine_failures=0", *SHORT)
                for word in ("--set", setting)]).stdout.strip()
            faults.set("socket unix ENOMEM skip=1 times=1")
            self.assertEqual(daemon.ctl("release", job).returncode, 0)
            daemon.wait_for(lambda: faults.hits()[0] >= 2, harness.PATIENCE, "the error")
            ended = daemon.wait_state(job, "SUCCEEDED", "FAILED")
            self.assertEqual(ended["state"], "SUCCEEDED", ended["reason"])

    def test_no_memory(self):
        """A rank without memory for the last write is named, and the job waits until it has some. It
        lacks what rank 0 gathers of the weights, or what a checkpoint takes. Of its own weights it makes
        no copy: without memory for one, the job ends as any other."""
        root = harness.tempfile.mkdtemp(prefix="fsdpd-test-")
        self.addCleanup(harness.shutil.rmtree, root, True)
        faults = harness.Faults(root)
        with harness.Daemon(root=root, environment=faults.environment) as daemon:
            for world, rank, settings, rule, what in (
                    (2, 0, (), "malloc {pid}:pull ENOMEM", "no memory to gather "),
                    (2, 1, ("checkpoint.every_steps=5000",), "malloc {pid}:checkpoint ENOMEM",
                     "no memory for a piece of a checkpoint"),
                    (2, 1, ("checkpoint.every_steps=5000",), "write */rank-00001.safetensors ENOMEM",
                     "Cannot allocate memory"),
                    (1, 0, ("checkpoint.every_steps=5000",), "open */rank-00000.safetensors ENOMEM",
                     "Cannot allocate memory")):
                with self.subTest(rule=rule, world=world):
                    job = daemon.submit(f"workers={world}", "train.evaluate=false", "train.max_steps=60",
                                        "train.log_interval=1", "retry.failures=0", *settings)
                    daemon.wait_step(job, 1)
                    pid = [row["pid"] for row in daemon.worker_list()
                           if row.get("job") == job and row.get("rank", 0) == rank][0]
                    faults.set(rule.format(pid=pid))
                    shown = self.wait_saving(daemon, job)["reason"]["message"]
                    self.assertIn(f"rank {rank}: ", shown)
                    self.assertIn(what, shown)
                    self.assertNotIn("until there is room", shown)
                    refused = daemon.ctl("checkpoint", job)
                    self.assertEqual(refused.returncode, harness.CONFLICT, refused.stderr)
                    before = faults.hits()[0]
                    daemon.wait_for(lambda: faults.hits()[0] > before, harness.PATIENCE, "another try")
                    faults.clear()
                    ended = daemon.wait_state(job, "SUCCEEDED")
                    self.assertEqual(ended["attempt"], 1)
                    self.assertGreater(len(daemon.tensors(job)), 0)

    def test_failed_calls(self):
        """No call that fails on fsdpd's own host fails the job."""
        root = harness.tempfile.mkdtemp(prefix="fsdpd-test-")
        self.addCleanup(harness.shutil.rmtree, root, True)
        faults = harness.Faults(root)
        with harness.Daemon(root=root, environment=faults.environment) as daemon:
            # The last two would fail a submission, too: they begin while the job runs.
            for rule, early in (("open */state_dict.safetensors.tmp EMFILE", True),
                                ("write */state_dict.safetensors.tmp EDQUOT skip=2", True),
                                ("fsync */state_dict.safetensors.tmp EIO", True),
                                ("rename */state_dict.safetensors ENOSPC", True),
                                ("open */jobs/mnist-* ENFILE", False),
                                ("write */store.db-wal ENOSPC", False)):
                with self.subTest(rule=rule):
                    if early:
                        faults.set(rule)
                    job = daemon.submit(*SHORT, f"train.max_steps={3 if early else 60}",
                                        "train.log_interval=1")
                    if not early:
                        daemon.wait_step(job, 1)
                        faults.set(rule)
                    self.wait_saving(daemon, job)
                    live = daemon.tensors(job)
                    self.assertGreater(faults.hits()[0], 0)
                    faults.clear()
                    daemon.wait_state(job, "SUCCEEDED")
                    self.assertEqual(daemon.tensors(job), live)


if __name__ == "__main__":
    harness.main()
