#!/usr/bin/env python3
"""The store: what a coordinator that was killed with -9 still knows, and what still runs."""

import json
import os
import signal
import sys
import time
import unittest
from random import Random

sys.path.insert(0, os.path.dirname(__file__))
import harness


SETTINGS = ("train.max_steps=60", "train.log_interval=1", "train.evaluate=false")


def events(output):
    return [json.loads(line) for line in output.splitlines()]


def metric_steps(watched):
    return [event["metrics"]["step"] for event in watched if "metrics" in event]


class Restart(unittest.TestCase):
    def check_record(self, watched):
        """Every event once, in order, with every step's metrics."""
        self.assertEqual([event["sequence"] for event in watched],
                         list(range(1, len(watched) + 1)))
        self.assertEqual(metric_steps(watched), list(range(1, 61)))

    def test_kill_and_restart(self):
        """What is over, what runs and what waits; the workers that train are the same ones after."""
        with harness.Daemon() as daemon:
            self.assertEqual(daemon.submit(*SETTINGS, wait=True).returncode, 0)
            finished = daemon.json("list")[-1]["id"]
            before = daemon.show(finished)
            undisturbed = daemon.tensors(finished)
            told = daemon.ctl("watch", finished, "-o", "json").stdout
            self.check_record(events(told))
            running = daemon.submit(*SETTINGS)
            daemon.wait_step(running, 3)
            queued = daemon.submit("train.max_steps=3")
            self.assertEqual(daemon.show(queued)["state"], "QUEUED")
            workers = {worker["id"]: worker["pid"] for worker in daemon.worker_list()}

            daemon.kill()
            daemon.start()

            self.assertEqual(daemon.show(finished), before)
            self.assertEqual(daemon.ctl("watch", finished, "-o", "json").stdout, told)
            daemon.wait_log("job_resumed job=" + running)
            self.assertEqual({worker["id"]: worker["pid"] for worker in daemon.worker_list()},
                             workers)
            self.assertEqual(daemon.wait_state(running, "SUCCEEDED")["attempt"], 1)
            self.assertEqual(daemon.tensors(running), undisturbed)
            self.check_record(daemon.events(running))
            daemon.wait_state(queued, "SUCCEEDED")
            self.assertEqual({worker["id"]: worker["pid"] for worker in daemon.worker_list()},
                             workers)
            for pid in workers.values():
                self.assertTrue(harness.alive(int(pid)))
            daemon.process.terminate()
            self.assertEqual(daemon.process.wait(harness.PATIENCE), 0)
            for pid in workers.values():
                self.assertFalse(harness.alive(int(pid)), "an adopted worker outlived fsdpd")

    def test_killed_at_random_moments(self):
        """Watched from the beginning to the end, pulled in between, and the same bits after all."""
        random = Random(20)
        with harness.Daemon() as daemon:
            self.assertEqual(daemon.submit(*SETTINGS, wait=True).returncode, 0)
            undisturbed = daemon.tensors(daemon.json("list")[-1]["id"])
            job = daemon.submit(*SETTINGS)
            watcher = daemon.spawn("watch", job, "-o", "json", "--timeout", "60")
            for _ in range(4):
                time.sleep(random.uniform(0, 0.6))
                daemon.kill()
                time.sleep(random.uniform(0, 0.4))
                daemon.start()
            state = daemon.wait_for(lambda: daemon.show(job)["reason"]["code"] != "REATTACHING" and
                                    daemon.show(job)["state"], 30, "the workers to be back")
            if state == "RUNNING":
                pulled = daemon.ctl("pull", job, "-o", os.path.join(daemon.root, "half"))
                self.assertIn(pulled.returncode, (0, harness.FAILED), pulled.stderr)
            shown = daemon.wait_state(job, "SUCCEEDED", "FAILED")
            self.assertEqual((shown["state"], shown["attempt"]), ("SUCCEEDED", 1),
                             shown["reason"])
            self.assertEqual(daemon.tensors(job), undisturbed)
            output, errors = watcher.communicate(timeout=harness.PATIENCE)
            self.assertEqual(watcher.returncode, 0, errors)
            self.check_record(events(output))
            self.assertEqual(daemon.events(job),
                             events(output))

    def test_stop_and_start(self):
        """systemctl restart fsdpd with jobs on its own workers: they go on from a checkpoint."""
        with harness.Daemon() as daemon:
            self.assertEqual(daemon.submit(*SETTINGS, wait=True).returncode, 0)
            undisturbed = daemon.tensors(daemon.json("list")[-1]["id"])
            job = daemon.submit(*SETTINGS)
            daemon.wait_step(job, 5)
            daemon.process.terminate()
            self.assertEqual(daemon.process.wait(harness.PATIENCE), 0)
            daemon.start()
            shown = daemon.wait_state(job, "SUCCEEDED", "FAILED")
            self.assertEqual((shown["state"], shown["attempt"]), ("SUCCEEDED", 2),
                             shown["reason"])
            self.assertEqual(daemon.tensors(job), undisturbed)
            watched = daemon.events(job)
            self.assertEqual(metric_steps(watched), list(range(1, 61)))
            codes = [event["state"]["reason"]["code"] for event in watched if "state" in event]
            self.assertIn("SHUTDOWN", codes)

    def test_killed_while_it_stops(self):
        """What was ordered for its end is no user's pause: the job goes on when fsdpd is back."""
        with harness.Daemon() as daemon:
            job = daemon.submit(*SETTINGS)
            daemon.wait_step(job, 3)
            workers = [int(worker["pid"]) for worker in daemon.worker_list()]
            for worker in workers:
                os.kill(worker, signal.SIGSTOP)
            daemon.process.terminate()
            daemon.wait_for(lambda: daemon.show(job)["reason"]["code"] == "STOPPING", 20,
                            "the order to end")
            daemon.kill()
            for worker in workers:
                os.kill(worker, signal.SIGCONT)
            daemon.start()
            shown = daemon.wait_state(job, "SUCCEEDED", "FAILED", "PAUSED")
            self.assertEqual((shown["state"], shown["attempt"]), ("SUCCEEDED", 2), shown["reason"])

    def test_fewer_workers_than_before(self):
        """Those that are too many leave when they are idle, and nobody waits for them any more."""
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

    def test_worker_that_dies_while_nobody_looks(self):
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
        """Only who started a process learns how it ended: fsdpd says that, and no signal."""
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
                             f"rank 1 ({workers[1]['id']}) ended; how is not known, as an earlier "
                             "fsdpd started it")

    def test_worker_that_dies_behind_its_checkpoint(self):
        """The coordinator is away, a checkpoint is taken, the workers are killed: what they had not
        told anybody is in the checkpoint, and the curve has no gap and nothing twice."""
        with harness.Daemon() as daemon:
            job = daemon.submit("train.max_steps=150", *SETTINGS[1:], "checkpoint.every_steps=10")
            folder = os.path.join(daemon.root, "state/jobs", job, "checkpoints")

            def newest():
                names = os.listdir(folder) if os.path.isdir(folder) else []
                return max((int(name[5:17]) for name in names if name.startswith("step-")), default=0)
            workers = [int(worker["pid"]) for worker in daemon.worker_list()]
            # With the first one the ranks have met; for that they need the coordinator.
            daemon.wait_for(newest, 60, "a checkpoint")
            daemon.kill()
            first, until = newest(), time.monotonic() + harness.PATIENCE
            while newest() < first + 30 and time.monotonic() < until:
                time.sleep(0.01)
            for worker in workers:
                os.kill(worker, signal.SIGKILL)
            self.assertGreaterEqual(newest(), first + 30)
            daemon.start()
            shown = daemon.wait_state(job, "SUCCEEDED", "FAILED")
            self.assertEqual((shown["state"], shown["attempt"]), ("SUCCEEDED", 2), shown["reason"])
            watched = daemon.events(job)
            self.assertEqual(metric_steps(watched), list(range(1, 151)))
            self.assertIn("on from step", json.dumps(watched))

    def test_killed_again_and_again(self):
        with harness.Daemon() as daemon:
            accepted = []
            for _ in range(5):
                accepted.append(daemon.submit("train.max_steps=4"))
                daemon.kill()
                daemon.start()
            for job in accepted:
                daemon.wait_state(job, "SUCCEEDED")
            self.assertEqual([job["id"] for job in daemon.json("list")], accepted)

    def test_watch_survives_a_restart(self):
        with harness.Daemon() as daemon:
            queued = daemon.submit("workers=5")
            watcher = daemon.spawn("watch", queued)
            self.assertIn("QUEUED", watcher.stdout.readline())  # it is connected
            daemon.kill()
            daemon.start()
            daemon.ctl("cancel", queued)
            _, errors = watcher.communicate(timeout=harness.PATIENCE)
            self.assertEqual(watcher.returncode, harness.JOB_CANCELLED, errors)


class Separate(unittest.TestCase):
    """Workers of their own, as systemd's fsdpd-worker@ units are."""

    def start_workers(self, daemon, *arguments):
        workers = [daemon.start_worker(f"here/cpu:{i}", *arguments) for i in range(2)]
        daemon.wait_for(lambda: len(daemon.worker_list()) == 2, 20, "the workers to attach")
        return workers

    def test_stop_and_start(self):
        """systemctl restart fsdpd: jobs on workers of their own do not notice."""
        with harness.Daemon(workers=0) as daemon:
            workers = self.start_workers(daemon)
            self.assertEqual(daemon.submit(*SETTINGS, wait=True).returncode, 0)
            undisturbed = daemon.tensors(daemon.json("list")[-1]["id"])
            job = daemon.submit(*SETTINGS)
            watcher = daemon.spawn("watch", job, "-o", "json", "--timeout", "60")
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
            self.assertEqual(metric_steps(events(output)), list(range(1, 61)))

    def test_cancelled_and_killed(self):
        """What a user was told is done, whoever does it."""
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
        """A pause that was begun goes on, in the name of who asked for it."""
        with harness.Daemon(workers=0) as daemon:
            workers = self.start_workers(daemon)
            job = daemon.submit("train.epochs=100000")
            daemon.wait_step(job, 3)
            for worker in workers:
                worker.send_signal(signal.SIGSTOP)
            asker = daemon.spawn("pause", job)
            daemon.wait_for(lambda: daemon.show(job)["reason"]["code"] == "PAUSING", 20,
                            "the pause to begin")
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
        """Who trains gives up after --away; who has nothing to do waits."""
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
