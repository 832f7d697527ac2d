#!/usr/bin/env python3
"""Another wrap policy for a running job: three in one run under load, and every reason for a
refusal."""

import array
import json
import os
import shutil
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness

STEPS = 150
POLICIES = (
    (["--policy", "none"], ["(root)"]),
    (["--policy", "units", "--units", "[[conv1, fc2], fc1]"], ["conv1", "fc1", "(root)"]),
    (["--policy", "match", "--modules", "conv*,fc1"], ["conv1", "conv2", "fc1", "(root)"]),
)


class Wrap(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = harness.Daemon()

    @classmethod
    def tearDownClass(cls):
        cls.daemon.close()

    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="fsdpd-test-")
        self.addCleanup(shutil.rmtree, self.directory)

    def path(self, name):
        return os.path.join(self.directory, name)

    def pull(self, job, name):
        pulled = self.daemon.ctl("pull", job, "-o", self.path(name), "--format", "json")
        self.assertEqual(pulled.returncode, 0, pulled.stderr)
        return harness.read_safetensors(self.path(name))[0], int(json.loads(pulled.stdout)["step"])

    def units(self, job):
        return [unit["name"] for unit in self.daemon.json("wrap", "show", job)["units"]]

    def undisturbed(self, *settings):
        result = self.daemon.submit(*settings, wait=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        job = self.daemon.json("list")[-1]["id"]
        return dict(self.daemon.losses(job)), self.pull(job, "plain")[0]

    def test_three_changes(self):
        for strategy, optimizer in (("full_shard", "adadelta"), ("no_shard", "sgd")):
            with self.subTest(strategy=strategy, optimizer=optimizer):
                self.change_three_times(
                    f"train.max_steps={STEPS}", "train.log_interval=1",
                    f"fsdp.strategy={strategy}", f"optimizer.type={optimizer}",
                    *([] if optimizer == "adadelta" else ["optimizer.momentum=0.9",
                                                          "optimizer.lr=0.0001"]))

    def change_three_times(self, *settings):
        plain, expected = self.undisturbed(*settings)
        job = self.daemon.submit(*settings)
        self.daemon.wait_step(job, 3)
        over = threading.Event()
        pulls, failures = [], []

        def pull_always():  # the load, and the calls that must not be lost
            while not over.is_set():
                pulled = self.daemon.ctl("pull", job, "-o", self.path("loading"))
                if pulled.returncode == 0:
                    pulls.append(len(harness.read_safetensors(self.path("loading"))[0]))
                elif not over.is_set():
                    failures.append(pulled.stderr)

        loader = threading.Thread(target=pull_always)
        loader.start()
        try:
            for i, (policy, units) in enumerate(POLICIES):
                changed = self.daemon.ctl("wrap", "set", job, *policy)
                self.assertEqual(changed.returncode, 0, changed.stderr)
                self.assertEqual(self.units(job), units)
                shown = self.daemon.show(job)
                self.assertEqual(shown["state"], "RUNNING")
                self.assertEqual(harness.wrap_of(shown)["policy"], policy[1])
                tensors, step = self.pull(job, "between")
                self.assertEqual(set(tensors), set(expected))
                self.daemon.wait_step(job, min(step + 5, STEPS - 1))
        finally:
            over.set()
            loader.join()
        ended = self.daemon.wait_state(job, "SUCCEEDED", "FAILED", "CANCELLED", seconds=300)
        self.assertEqual(ended["state"], "SUCCEEDED", ended["reason"])
        self.assertEqual(failures, [])
        self.assertGreater(len(pulls), 3)

        losses = dict(self.daemon.losses(job))
        self.assertEqual(sorted(losses), list(range(1, STEPS + 1)))
        self.assertEqual(losses, plain)  # the same bits
        final, step = self.pull(job, "final")
        self.assertEqual(step, STEPS)
        for name, (_, _, raw) in final.items():
            self.assertEqual(raw, expected[name][2], f"{name} differs")

        changes = [event["wrap"] for event in self.daemon.events(job) if "wrap" in event]
        self.assertEqual([change["wrap"]["policy"] for change in changes],
                         [policy[1] for policy, _ in POLICIES])
        steps = [int(change["step"]) for change in changes]
        self.assertEqual(steps, sorted(steps))
        self.assertEqual([unit["name"] for unit in changes[-1]["units"]], POLICIES[-1][1])
        # The change's peak is the measured one, which the record holds in the end.
        peak = max(int(change["peak_bytes"]) for change in changes)
        self.assertGreaterEqual(int(ended["metrics"]["memory_peak_bytes"]), peak)
        self.assertGreater(peak, 0)
        # The final memory is that of the last plan, as without a change.
        self.assertEqual(int(ended["metrics"]["memory_bytes"]), int(ended["plan"]["peak_bytes"]))
        plain_text = self.daemon.ctl("watch", job).stdout
        self.assertIn("wrap policy match, 4 units", plain_text)

    def expect_close(self, losses, expected, tensors, others):
        """Other groups add in another order: the same numbers except for the last bits."""
        self.assertEqual(sorted(losses), sorted(expected))
        for step, loss in losses.items():
            self.assertLess(abs(loss / expected[step] - 1), 1e-4, f"step {step}")
        self.assertEqual(sorted(tensors), sorted(others))
        for name, (dtype, shape, raw) in tensors.items():
            self.assertEqual((dtype, shape), others[name][:2])
            values, same = (array.array("f", data) for data in (raw, others[name][2]))
            size = sum(value * value for value in same) ** 0.5
            apart = sum((a - b) ** 2 for a, b in zip(values, same)) ** 0.5
            self.assertLess(apart, 1e-4 * size, name)

    def test_four_workers_in_groups(self):
        """hybrid_shard over four real workers, and units that get groups of their own while the job
        runs."""
        outer, self.__class__.daemon = self.daemon, harness.Daemon(workers=4)
        self.addCleanup(setattr, self.__class__, "daemon", outer)
        self.addCleanup(self.daemon.close)
        settings = ("workers=4", "train.max_steps=40", "train.log_interval=1",
                    "train.batch_size=8", "optimizer.type=sgd", "optimizer.lr=0.0001",
                    "optimizer.momentum=0.9")
        plain, expected = self.undisturbed(*settings)
        losses, tensors = self.undisturbed(*settings, "fsdp.strategy=hybrid_shard",
                                           "fsdp.shard_size=2")
        self.expect_close(losses, plain, tensors, expected)
        shown = self.daemon.show(self.daemon.json("list")[-1]["id"])
        self.assertEqual(int(shown["metrics"]["memory_peak_bytes"]),
                         int(shown["plan"]["peak_bytes"]))
        self.assertEqual({entry["kind"]: int(entry["count"])
                          for entry in shown["plan"]["collectives"]},
                         {"all_gather": 2, "reduce_stats": 1, "reduce_scatter": 2, "all_reduce": 2})

        job = self.daemon.submit(*settings, "train.max_steps=100000")  # it does not end before
        self.daemon.wait_step(job, 3)
        self.refuse(1, "expected a divisor of workers (4), found 3 ranks", job, "--policy", "units",
                    "--units", "[{modules: conv2, reshard_after_forward: 3}]")
        self.refuse(1, "expected a divisor of workers (4), found 3", job, "--policy", "units",
                    "--units", "[{modules: fc1, strategy: hybrid_shard, shard_size: 3}]")
        changed = self.daemon.ctl(
            "wrap", "set", job, "--policy", "units", "--units",
            "[{modules: fc1, strategy: hybrid_shard, shard_size: 2}, "
            "{modules: conv2, reshard_after_forward: 2, cpu_offload: true}, conv1]")
        self.assertEqual(changed.returncode, 0, changed.stderr)
        between, _ = self.pull(job, "between")
        self.assertEqual(sorted(between), sorted(expected))
        tree = self.daemon.ctl("wrap", "show", job).stdout
        self.assertIn("# 1,179,776 parameters, sharded over 2 ranks, resharded after forward", tree)
        self.assertIn("# 18,496 parameters, resharded to 2 ranks after forward, offloaded", tree)
        self.daemon.wait_step(job, max(plain))
        self.assertEqual(self.daemon.ctl("cancel", job).returncode, 0)
        self.daemon.wait_state(job, "CANCELLED")
        losses = dict(self.daemon.losses(job))
        self.assertEqual(sorted(losses), list(range(1, len(losses) + 1)))
        for step, loss in plain.items():
            self.assertLess(abs(losses[step] / loss - 1), 1e-4, f"step {step}")

    def refuse(self, code, text, *arguments):
        refused = self.daemon.ctl("wrap", "set", *arguments)
        self.assertEqual(refused.returncode, code, refused.stdout + refused.stderr)
        self.assertIn(text, refused.stderr)

    def test_refusals_leave_the_job_running(self):
        job = self.daemon.submit("train.epochs=100000")
        self.daemon.wait_step(job, 2)
        before = self.units(job)
        self.refuse(1, "did you mean 'fc1'?", job, "--policy", "units", "--units", "[fcl]")
        self.refuse(1, "did you mean 'Linear'?", job, "--policy", "type", "--types", "Lineer")
        self.refuse(1, "matches no module", job, "--policy", "match", "--modules", "layers.*")
        self.refuse(1, "no module reaches it", job, "--policy", "size", "--min-num-params", "1e9")
        self.refuse(harness.USAGE, "--policy", job)
        self.refuse(harness.USAGE, "did you mean", job, "--polcy", "none")
        self.refuse(harness.USAGE, "expected auto, none, size, type, match or units", job, "--policy", "x")
        self.refuse(harness.USAGE, "fsdp.wrap.types: is missing", job, "--policy", "type")
        self.refuse(harness.USAGE, "belongs to", job, "--policy", "none", "--types", "Linear")
        self.refuse(harness.NOT_FOUND, "no-such-job", "no-such-job", "--policy", "none")
        queued = self.daemon.submit("workers=9")
        self.refuse(harness.CONFLICT, "QUEUED", queued, "--policy", "none")
        self.daemon.ctl("cancel", queued)
        self.daemon.wait_state(queued, "CANCELLED")
        self.refuse(harness.CONFLICT, "is over", queued, "--policy", "none")
        self.assertEqual(self.units(job), before)
        step = int(self.daemon.show(job)["step"])
        self.daemon.wait_step(job, step + 3)
        self.assertEqual(self.daemon.show(job)["state"], "RUNNING")
        self.assertFalse([event for event in self.daemon.json("list") if event["id"] != job
                          and event["state"] == "RUNNING"])

        # The policy is the current one: success, without a change.
        again = self.daemon.ctl("wrap", "set", job, "--policy", "size", "--min-num-params", "20000")
        self.assertEqual(again.returncode, 0, again.stderr)
        # Many at once: fsdpd performs one at a time and refuses the others with a message.
        calls = [self.daemon.spawn("wrap", "set", job, "--policy", "size", "--min-num-params",
                                   str(100 + i)) for i in range(4)]
        codes = []
        for call in calls:
            _, errors = call.communicate(timeout=harness.PATIENCE)
            codes.append(call.returncode)
            self.assertIn(call.returncode, (0, harness.CONFLICT), errors)
        self.assertIn(0, codes)
        self.assertEqual(self.daemon.ctl("cancel", job).returncode, 0)
        ended = self.daemon.wait_state(job, "CANCELLED")
        changes = [event for event in self.daemon.events(job) if "wrap" in event]
        self.assertEqual(len(changes), codes.count(0))
        self.assertEqual(harness.wrap_of(ended)["policy"], "size")

    def test_kept_over_a_restart(self):
        """The record has the policy that the job ended with, also after a kill of the daemon."""
        with harness.Daemon() as daemon:
            job = daemon.submit("train.epochs=100000")
            daemon.wait_step(job, 2)
            self.assertEqual(daemon.ctl("wrap", "set", job, "--policy", "none").returncode, 0)
            daemon.kill()
            daemon.start()
            shown = daemon.show(job)
            self.assertEqual(harness.wrap_of(shown)["policy"], "none")
            self.assertEqual([unit["name"] for unit in shown["units"]], ["(root)"])
            # What was submitted is still the same job; `show` has both.
            again = daemon.ctl("submit", harness.JOB, "--id", job, "--set", f"data.dir={daemon.data}", "--set",
                               "train.epochs=100000")
            self.assertEqual((again.returncode, again.stdout), (0, f"{job}\n"), again.stderr)
            text = daemon.ctl("show", job).stdout
            self.assertIn("\nasked for:\n", text)
            self.assertIn("\nchosen instead, last by a user, for cpu:\n\nfsdp.wrap.policy: none\n", text)


if __name__ == "__main__":
    harness.main()
