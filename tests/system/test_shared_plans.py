#!/usr/bin/env python3
"""Plans of hostile networks: they end with their clients, and neither another user's plan nor a worker's memory pays for
them. FSDPD_PLANS: the number of plans that are timed meanwhile."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness

PLANS = int(os.environ.get("FSDPD_PLANS", "10"))
USERS = 10
NET = """name: Net
input: [1, 28, 28]
classes: 10
modules: {first: "Linear(784, 16)", many: "Sequential(9000 * Linear(16, 16))", last: "Linear(16, 10)"}
forward: ["x = many(first(flatten(x, 1)))", output = last(x)]
loss: cross_entropy(output, target)
"""


def resident(pid):
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS:")) << 10


@unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), "needs root and setpriv")
class SharedPlans(unittest.TestCase):
    def setUp(self):
        self.daemon = harness.Daemon()
        self.addCleanup(self.daemon.close)
        os.chmod(self.daemon.root, 0o755)
        # Only root may be able to reach the programs.
        self.place = tempfile.mkdtemp(prefix="fsdpd-other-")
        self.addCleanup(shutil.rmtree, self.place, True)
        os.chmod(self.place, 0o755)
        self.program = shutil.copy(harness.FSDPCTL, self.place)
        os.chmod(self.program, os.stat(self.program).st_mode | stat.S_IROTH | stat.S_IXOTH)
        self.job = os.path.join(self.place, "job.yaml")
        for path, text in ((os.path.join(self.place, "net.yaml"), NET),
                           (self.job, f"name: many\nmodel: {{file: net.yaml}}\ndata: {{dir: {self.daemon.data}}}\n"
                                      "fsdp: {wrap: {policy: none}}\nworkers: 2\n")):
            with open(path, "w") as file:
                file.write(text)
        self.workers = [worker["pid"] for worker in self.daemon.json("workers")]

    def hostile(self, user, seconds):
        return subprocess.Popen(
            ["setpriv", f"--reuid={harness.OTHER_UID + user}", f"--regid={os.getegid()}", "--clear-groups", self.program,
             "plan", self.job, "--timeout", str(seconds)], env=dict(os.environ, FSDPD_ADDRESS=self.daemon.address),
            cwd=self.place, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def log(self):
        with open(os.path.join(self.daemon.root, "fsdpd.log")) as file:
            return file.read()

    def plan(self):
        began = time.monotonic()
        result = self.daemon.ctl("plan", harness.JOB, "--set", f"data.dir={self.daemon.data}")
        self.assertEqual(result.returncode, 0, result.stderr)
        return time.monotonic() - began

    def test_clients_that_leave(self):
        """Their plans are cancelled, and count until the worker has stopped; its memory is the system's again."""
        self.plan()
        before = [resident(int(pid)) for pid in self.workers]
        # Three of one user: the third waits for the others, and is dropped with its client.
        left = [self.hostile(0, 0.5) for _ in range(3)] + [self.hostile(user, 0.5) for user in range(1, 8)]
        for process in left:
            _, errors = process.communicate(timeout=harness.PATIENCE)
            self.assertEqual(process.returncode, harness.DEADLINE, errors)
        self.plan()
        self.daemon.wait_log("plan_cancelled")
        self.assertLessEqual(self.log().count("plan_cancelled"), 9)
        self.daemon.wait_for(lambda: all(resident(int(pid)) < then + (16 << 20)
                                         for pid, then in zip(self.workers, before)), harness.PATIENCE, "the memory's return")

    def test_another_user(self):
        """While ten users have such networks planned, the plan of a small one comes at once."""
        running = [self.hostile(user, harness.PATIENCE) for user in range(USERS)]
        times = []
        for _ in range(PLANS):
            for user, process in enumerate(running):
                if process.poll() is not None:
                    process.communicate()
                    running[user] = self.hostile(user, harness.PATIENCE)
            times.append(self.plan())
        self.assertTrue(any(process.poll() is None for process in running), "the networks were planned meanwhile")
        times.sort()
        print(f"{PLANS} plans beside {USERS} users with hostile ones: median {times[len(times) // 2]:.2f} s, "
              f"p99 {times[int(0.99 * (len(times) - 1))]:.2f} s, last {times[-1]:.2f} s")
        for process in running:
            process.terminate()
            process.communicate()
        self.daemon.wait_log("plan_cancelled")


if __name__ == "__main__":
    unittest.main(verbosity=2)
