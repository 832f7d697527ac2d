#!/usr/bin/env python3
"""Workers outlive the coordinator: they attach to the next one, or it finds that they have ended.
"""

import json
import os
import signal
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness


SETTINGS = ("train.max_steps=60", "train.log_interval=1", "train.evaluate=false")


class Own(unittest.TestCase):
    """Workers that one coordinator started and the next one takes over."""

    def test_fewer_workers_than_before(self):
        """Surplus workers leave when they are idle, and fsdpd stops waiting for them."""
        with harness.Daemon() as daemon:
            job = daemon.submit("train.epochs=100000")
            daemon.wait_step(job, 3)
            daemon.kill()
            daemon.workers = daemon.expect_workers = 1
            daemon.start()
            daemon.wait_log("job_resumed job=" + job)
            daemon.ctl("cancel", job)
            daemon.wait_state(job, "CANCELLED")
            daemon.wait_for(lambda: len(daemon.worker_list()) == 1, 30, "one to leave")
            large = daemon.submit("workers=2")
            small = daemon.submit("workers=1", "train.max_steps=3")
            daemon.wait_state(small, "SUCCEEDED")
            self.assertEqual(daemon.show(large)["reason"]["code"], "WAITING_FOR_WORKERS")

    def test_worker_that_dies_without_a_coordinator(self):
        with harness.Daemon() as daemon:
            job = daemon.submit("train.epochs=100000")
            daemon.wait_step(job, 3)
            workers = {worker["rank"]: worker["pid"] for worker in daemon.worker_list()}
            daemon.kill()
            os.kill(int(workers[1]), signal.SIGKILL)
            daemon.start()
            daemon.wait_for(lambda: daemon.show(job)["state"] == "FAILED" or
                            daemon.show(job)["attempt"] > 1, 30, "the attempt to end")
            text = json.dumps(daemon.show(job)) + daemon.ctl("watch", job, "-o", "json").stdout \
                if daemon.show(job)["state"] == "FAILED" else daemon.text()
            self.assertIn("rank 1", text)
            daemon.ctl("cancel", job)

    def test_adopted_worker_that_dies(self):
        """Only its parent learns how a process ended: fsdpd says so, and names no signal."""
        with harness.Daemon() as daemon:
            job = daemon.submit("train.epochs=100000", "retry.machine_failures=0")
            daemon.wait_step(job, 3)
            workers = {worker["rank"]: worker for worker in daemon.worker_list()}
            daemon.kill()
            daemon.start()
            daemon.wait_log("job_resumed job=" + job)
            os.kill(int(workers[1]["pid"]), signal.SIGKILL)
            reason = daemon.wait_state(job, "FAILED", seconds=30)["reason"]
            self.assertEqual(reason["code"], "WORKER_LOST")
            self.assertEqual(reason["message"],
                             f"rank 1 ({workers[1]['id']}) ended; its exit status is unknown, as a previous fsdpd started it")

    def test_worker_that_dies_behind_its_checkpoint(self):
        """While the coordinator is away, the ranks take a checkpoint and the workers are killed:
        the checkpoint has the metrics that they had not reported, and the curve has no gap and no
        duplicates."""
        faults = harness.own_faults(self.addCleanup)
        with harness.Daemon(environment=faults.environment) as daemon:
            faults.hold_checkpoint(2)  # so that it does not end before the coordinator
            job = daemon.submit("train.max_steps=150", *SETTINGS[1:], "checkpoint.every_steps=10")
            folder = os.path.join(daemon.root, "state/jobs", job, "checkpoints")

            def newest():
                names = os.listdir(folder) if os.path.isdir(folder) else []
                return max((int(name[5:17]) for name in names if name.startswith("step-")), default=0)
            workers = [int(worker["pid"]) for worker in daemon.worker_list()]
            # The first one shows that the ranks have met; for that they need the coordinator.
            daemon.wait_for(newest, 60, "a checkpoint")
            daemon.kill()
            first, until = newest(), time.monotonic() + harness.PATIENCE
            faults.hold_checkpoint(5)  # nor before the workers
            while newest() < first + 30 and time.monotonic() < until:
                time.sleep(0.01)
            for worker in workers:
                os.kill(worker, signal.SIGKILL)
            self.assertGreaterEqual(newest(), first + 30)
            faults.clear()
            daemon.start()
            shown = daemon.wait_state(job, "SUCCEEDED", "FAILED")
            self.assertEqual((shown["state"], shown["attempt"]), ("SUCCEEDED", 2), shown["reason"])
            watched = daemon.events(job)
            self.assertEqual(harness.metric_steps(watched), list(range(1, 151)))
            self.assertIn("continuing from step", json.dumps(watched))


class Separate(unittest.TestCase):
    """Separate workers, as systemd's fsdpd-worker@ units are."""

    def start_workers(self, daemon, *arguments):
        workers = [daemon.start_worker(f"here/cpu:{i}", *arguments) for i in range(2)]
        daemon.wait_for(lambda: len(daemon.worker_list()) == 2, 20, "the workers to attach")
        return workers

    def test_stop_and_start(self):
        """systemctl restart fsdpd: jobs on separate workers do not notice."""
        with harness.Daemon(workers=0) as daemon:
            workers = self.start_workers(daemon)
            self.assertEqual(daemon.submit(*SETTINGS, wait=True).returncode, 0)
            undisturbed = daemon.tensors(daemon.json("list")[-1]["id"])
            job = daemon.submit(*SETTINGS)
            watcher = daemon.spawn("watch", job, "-o", "json", "--timeout", str(harness.PATIENCE))
            daemon.wait_step(job, 3)
            daemon.process.terminate()
            self.assertEqual(daemon.process.wait(harness.PATIENCE), 0)
            time.sleep(0.5)
            self.assertEqual([worker.poll() for worker in workers], [None, None])
            daemon.start()
            shown = daemon.wait_state(job, "SUCCEEDED", "FAILED")
            self.assertEqual((shown["state"], shown["attempt"]), ("SUCCEEDED", 1),
                             shown["reason"])
            self.assertEqual(daemon.tensors(job), undisturbed)
            output, errors = watcher.communicate(timeout=harness.PATIENCE)
            self.assertEqual(watcher.returncode, 0, errors)
            self.assertEqual(harness.metric_steps([json.loads(line) for line in output.splitlines()]), list(range(1, 61)))

    def test_cancelled_and_killed(self):
        """An acknowledged cancel takes effect, whichever coordinator carries it out."""
        with harness.Daemon(workers=0) as daemon:
            workers = self.start_workers(daemon)
            job = daemon.submit("train.epochs=100000")
            daemon.wait_step(job, 3)
            for worker in workers:
                worker.send_signal(signal.SIGSTOP)
            self.assertEqual(daemon.ctl("cancel", job).returncode, 0)
            daemon.kill()
            for worker in workers:
                worker.send_signal(signal.SIGCONT)
            daemon.start()
            shown = daemon.wait_state(job, "CANCELLED")
            last = daemon.json("history", job)[-1]
            self.assertEqual((last["state"], last["by"]), ("CANCELLED", shown["owner"]))

    def test_paused_and_killed(self):
        """A pause in progress continues, in the name of the user who requested it."""
        with harness.Daemon(workers=0) as daemon:
            workers = self.start_workers(daemon)
            job = daemon.submit("train.epochs=100000")
            daemon.wait_step(job, 3)
            for worker in workers:
                worker.send_signal(signal.SIGSTOP)
            asker = daemon.spawn("pause", job)
            daemon.wait_for(lambda: daemon.show(job)["reason"]["code"] == "PAUSING",
                            harness.PATIENCE, "the pause to begin")
            daemon.kill()
            asker.communicate(timeout=harness.PATIENCE)
            self.assertEqual(asker.returncode, harness.UNREACHABLE)
            for worker in workers:
                worker.send_signal(signal.SIGCONT)
            daemon.start()
            shown = daemon.wait_state(job, "PAUSED")
            last = daemon.json("history", job)[-1]
            self.assertEqual((last["state"], last["by"]), ("PAUSED", shown["owner"]))

    def test_coordinator_that_does_not_come_back(self):
        """A worker that trains gives up after --away; an idle one waits."""
        with harness.Daemon(workers=0) as daemon:
            workers = self.start_workers(daemon, "--away", "1")
            job = daemon.submit("train.epochs=100000", "workers=1")
            daemon.wait_step(job, 3)
            busy = [int(worker["pid"]) for worker in daemon.worker_list()
                    if worker["state"] == "busy"]
            daemon.kill()
            until = time.monotonic() + harness.PATIENCE
            while all(worker.poll() is None for worker in workers) and time.monotonic() < until:
                time.sleep(0.1)
            self.assertEqual([(worker.pid in busy, worker.poll()) for worker in workers],
                             [(worker.pid in busy, 1 if worker.pid in busy else None)
                              for worker in workers])
            daemon.start()
            shown = daemon.wait_for(lambda: [worker for worker in daemon.worker_list()
                                             if worker["state"] == "idle"], 30, "it to attach")
            self.assertEqual(len(shown), 1)


if __name__ == "__main__":
    harness.main()
