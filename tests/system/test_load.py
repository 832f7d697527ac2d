#!/usr/bin/env python3
"""Many workers, jobs and watchers at once: no job is lost or runs twice, and every watcher gets
every event. The workers are simulated (bench/load.c); bench/load.sh measures times."""

import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness


class Load(unittest.TestCase):
    def test_nothing_is_lost(self):
        with harness.Daemon(workers=0) as daemon:
            load = subprocess.run(
                [os.path.join(harness.BUILD, "bench/load"), "--address", daemon.address, "--job",
                 harness.JOB, "--workers", "96", "--jobs", "300", "--watchers", "40", "--ranks",
                 "4", "--seconds", "1", "--run-ms", "50", "--interval-ms", "100"],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
            self.assertEqual(load.returncode, 0, load.stdout + daemon.text())
            self.assertIn("all 300 jobs ran once", load.stdout)
            jobs = daemon.json("list")
            self.assertEqual(sorted(job["id"] for job in jobs),
                             sorted(f"load-{number}" for number in range(1, 301)))
            self.assertEqual({(job["state"], job["attempt"]) for job in jobs}, {("SUCCEEDED", 1)})


if __name__ == "__main__":
    harness.main()
