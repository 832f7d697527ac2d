#!/usr/bin/env python3
"""The store: what a coordinator that was killed with -9 still knows, and what still runs."""

import os
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness


class Restart(unittest.TestCase):
    def test_kill_and_restart(self):
        with harness.Daemon() as daemon:
            self.assertEqual(daemon.submit("train.epochs=2", wait=True).returncode, 0)
            finished = daemon.json("list")[-1]["id"]
            before = daemon.show(finished)
            events = daemon.ctl("watch", finished, "-o", "json").stdout
            running = daemon.submit("train.epochs=1000")
            daemon.wait_step(running, 3)
            queued = daemon.submit("train.max_steps=3")
            self.assertEqual(daemon.show(queued)["state"], "QUEUED")
            workers = harness.children(daemon.process.pid)

            daemon.kill()
            daemon.start()

            self.assertEqual(daemon.show(finished), before)
            self.assertEqual(daemon.ctl("watch", finished, "-o", "json").stdout, events)
            pulled = daemon.ctl("pull", finished, "-o", os.path.join(daemon.root, "finished"))
            self.assertEqual(pulled.returncode, 0, pulled.stderr)
            shown = daemon.wait_state(running, "FAILED", "RUNNING")
            if shown["state"] == "FAILED":
                self.assertTrue(shown["reason"]["code"])
                self.assertTrue(shown["reason"]["message"])
            else:
                daemon.ctl("cancel", running)
            daemon.wait_state(queued, "SUCCEEDED")
            until = time.monotonic() + 15
            while any(harness.alive(pid) for pid in workers) and time.monotonic() < until:
                time.sleep(0.1)
            if shown["state"] == "FAILED":
                self.assertEqual([pid for pid in workers if harness.alive(pid)], [],
                                 "workers of the killed daemon are left")

    def test_killed_again_and_again(self):
        with harness.Daemon() as daemon:
            accepted = []
            for _ in range(5):
                accepted.append(daemon.submit("train.max_steps=4"))
                daemon.kill()
                daemon.start()
            for job in accepted:
                shown = daemon.wait_state(job, "SUCCEEDED", "FAILED")
                if shown["state"] == "FAILED":
                    self.assertTrue(shown["reason"]["message"])
            self.assertEqual([job["id"] for job in daemon.json("list")], accepted)

    def test_watch_survives_a_restart(self):
        with harness.Daemon() as daemon:
            queued = daemon.submit("workers=5")
            watcher = daemon.spawn("watch", queued)
            time.sleep(0.5)
            daemon.kill()
            daemon.start()
            daemon.ctl("cancel", queued)
            _, errors = watcher.communicate(timeout=30)
            self.assertEqual(watcher.returncode, harness.JOB_CANCELLED, errors)


if __name__ == "__main__":
    harness.main()
