#!/usr/bin/env python3
"""The store: what fsdpd still knows after kill -9 of the coordinator, and what still runs."""

import json
import os
import shutil
import signal
import sys
import time
import unittest
from random import Random

sys.path.insert(0, os.path.dirname(__file__))
import harness


SETTINGS = ("train.max_steps=60", "train.log_interval=1", "train.evaluate=false")
HELD = (*SETTINGS, "checkpoint.every_steps=20")  # a held checkpoint stops it at step 40


def events(output):
    return [json.loads(line) for line in output.splitlines()]


class Restart(unittest.TestCase):
    def setUp(self):
        self.faults = harness.own_faults(self.addCleanup)

    def submit_held(self, daemon):
        """Starts a job that does not end until the faults are cleared."""
        self.faults.hold_checkpoint()
        job = daemon.submit(*HELD)
        daemon.wait_step(job, 3)
        return job

    def check_record(self, watched):
        """Checks that every event is there once, in order, with every step's metrics."""
        self.assertEqual([event["sequence"] for event in watched],
                         list(range(1, len(watched) + 1)))
        self.assertEqual(harness.metric_steps(watched), list(range(1, 61)))

    def test_kill_and_restart(self):
        """Ended, running and waiting jobs survive; the same workers train on."""
        with harness.Daemon(environment=self.faults.environment) as daemon:
            self.assertEqual(daemon.submit(*SETTINGS, wait=True).returncode, 0)
            finished = daemon.json("list")[-1]["id"]
            before = daemon.show(finished)
            undisturbed = daemon.tensors(finished)
            watched = daemon.ctl("watch", finished, "-o", "json").stdout
            self.check_record(events(watched))
            running = self.submit_held(daemon)
            queued = daemon.submit("train.max_steps=3")
            self.assertEqual(daemon.show(queued)["state"], "QUEUED")
            workers = {worker["id"]: worker["pid"] for worker in daemon.worker_list()}

            daemon.kill()
            daemon.start()

            self.assertEqual(daemon.show(finished), before)
            self.assertEqual(daemon.ctl("watch", finished, "-o", "json").stdout, watched)
            daemon.wait_log("job_resumed job=" + running)
            self.assertEqual({worker["id"]: worker["pid"] for worker in daemon.worker_list()},
                             workers)
            self.faults.clear()
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
        """Watched from start to end, pulled in between, and still the same bits."""
        random = Random(20)
        with harness.Daemon() as daemon:
            self.assertEqual(daemon.submit(*SETTINGS, wait=True).returncode, 0)
            undisturbed = daemon.tensors(daemon.json("list")[-1]["id"])
            job = daemon.submit(*SETTINGS)
            watcher = daemon.spawn("watch", job, "-o", "json", "--timeout", str(harness.PATIENCE))
            for _ in range(4):
                time.sleep(random.uniform(0, 0.6))
                daemon.kill()
                time.sleep(random.uniform(0, 0.4))
                daemon.start(attach=False)
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
        """systemctl restart fsdpd with supervised workers: jobs continue from a checkpoint."""
        with harness.Daemon(environment=self.faults.environment) as daemon:
            self.assertEqual(daemon.submit(*SETTINGS, wait=True).returncode, 0)
            undisturbed = daemon.tensors(daemon.json("list")[-1]["id"])
            job = self.submit_held(daemon)
            daemon.process.terminate()
            daemon.wait_for(lambda: daemon.show(job)["reason"]["code"] == "STOPPING", 20, "the order to end")
            self.faults.clear()
            self.assertEqual(daemon.process.wait(harness.PATIENCE), 0)
            daemon.start()
            shown = daemon.wait_state(job, "SUCCEEDED", "FAILED")
            self.assertEqual((shown["state"], shown["attempt"]), ("SUCCEEDED", 2),
                             shown["reason"])
            self.assertEqual(daemon.tensors(job), undisturbed)
            watched = daemon.events(job)
            self.assertEqual(harness.metric_steps(watched), list(range(1, 61)))
            codes = [event["state"]["reason"]["code"] for event in watched if "state" in event]
            self.assertIn("SHUTDOWN", codes)

    def test_host_reboots(self):
        """All processes end at once, and the runtime directory, a tmpfs, is empty afterwards."""
        with harness.Daemon(environment=self.faults.environment) as daemon:
            self.assertEqual(daemon.submit(*SETTINGS, wait=True).returncode, 0)
            undisturbed = daemon.tensors(daemon.json("list")[-1]["id"])
            self.faults.hold_checkpoint(2)  # so that it does not end before the host
            job = daemon.submit(*SETTINGS, "checkpoint.every_steps=2", "retry.machine_failures=1")
            daemon.wait_for(lambda: daemon.json("checkpoints", job), harness.PATIENCE, "a checkpoint")
            workers = [int(worker["pid"]) for worker in daemon.worker_list()]
            daemon.kill()
            for worker in workers:
                os.kill(worker, signal.SIGKILL)
            self.faults.clear()
            shutil.rmtree(os.path.join(daemon.root, "run"))
            unfinished = os.path.join(daemon.root, "state/.writing-store.db-mark-abcdef")
            with open(unfinished, "w") as file:
                file.write("cut off\n")
            daemon.start()
            self.assertFalse(os.path.exists(unfinished))
            shown = daemon.wait_state(job, "SUCCEEDED", "FAILED")
            self.assertEqual((shown["state"], shown["attempt"]), ("SUCCEEDED", 2), shown["reason"])
            self.assertEqual(daemon.tensors(job), undisturbed)
            steps = harness.metric_steps(daemon.events(job))  # some steps ran twice
            self.assertEqual(sorted(set(steps)), list(range(1, 61)))

    def test_killed_while_it_stops(self):
        """A pause for fsdpd's own end is not a user's: the job continues when fsdpd is back."""
        with harness.Daemon(environment=self.faults.environment) as daemon:
            job = self.submit_held(daemon)
            workers = [int(worker["pid"]) for worker in daemon.worker_list()]
            for worker in workers:
                os.kill(worker, signal.SIGSTOP)
            daemon.process.terminate()
            daemon.wait_for(lambda: daemon.show(job)["reason"]["code"] == "STOPPING", 20,
                            "the order to end")
            daemon.kill()
            self.faults.clear()
            for worker in workers:
                os.kill(worker, signal.SIGCONT)
            daemon.start()
            shown = daemon.wait_state(job, "SUCCEEDED", "FAILED", "PAUSED")
            self.assertEqual((shown["state"], shown["attempt"]), ("SUCCEEDED", 2), shown["reason"])

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


if __name__ == "__main__":
    harness.main()
