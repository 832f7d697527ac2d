#!/usr/bin/env python3
"""Jobs whose units are offloaded to the host, on a device of the stub (stub_device.py): the same losses and
weights as without, of what fits the device and of what does not, and units that come and go."""

import os
import sys

sys.path.insert(0, os.path.dirname(__file__))
import harness
import stub_device

OFFLOADED = "fsdp.cpu_offload=true"


class Offload(stub_device.StubDevice):
    def plan(self, *settings):
        arguments = ["--set", f"data.dir={self.daemon.data}"]
        for setting in settings:
            arguments += ["--set", setting]
        planned = self.daemon.json("plan", self.job, *arguments)
        return planned.get("plan", planned)

    def test_what_does_not_fit(self):
        worker = self.start()
        self.wait_workers(1)
        whole, offloaded = self.plan("workers=1"), self.plan("workers=1", OFFLOADED)
        peaks = [int(plan["peak_bytes"]) for plan in (whole, offloaded)]
        self.assertLess(peaks[1], peaks[0])
        self.assertEqual(int(whole["host_bytes"]), 0)
        # values, gradients and Adadelta's two of 9,550 parameters
        self.assertGreaterEqual(int(offloaded["host_bytes"]), 16 * 9550)
        expected = self.train("workers=1")
        self.assertEqual(self.train("workers=1", OFFLOADED), expected)
        worker.terminate()
        worker.wait()
        self.daemon.wait_for(lambda: not self.daemon.worker_list(), 30, "the worker to leave")

        self.start(FSDPD_CUDA_MEMORY=str(sum(peaks) // 2))
        self.wait_workers(1)
        refused = self.daemon.ctl("submit", self.job, "--set", f"data.dir={self.daemon.data}",
                                  "--set", "workers=1")
        self.assertEqual(refused.returncode, harness.DOES_NOT_FIT, refused.stderr)
        self.assertIn("fsdp.cpu_offload=true", refused.stderr)
        self.assertEqual(self.train("workers=1", OFFLOADED), expected)
        text = self.daemon.ctl("plan", self.job, "--set", f"data.dir={self.daemon.data}",
                               "--set", "workers=1", "--set", OFFLOADED, "--dump").stdout
        self.assertIn("of pinned host memory per rank", text)
        self.assertRegex(text, r"host +optimizer")

    def test_units_come_and_go(self):
        """A running job's units are offloaded and brought back: the steps go on as if nothing had been."""
        self.start("--share-device")
        self.start("--share-device")
        self.wait_workers(2)
        steps = ("workers=2", "train.max_steps=120")
        plain = self.daemon.submit(*steps, job=self.job)
        shown = self.daemon.wait_state(plain, "SUCCEEDED", "FAILED")
        self.assertEqual(shown["state"], "SUCCEEDED", f"{shown['reason']}\n{self.workers_said()}")
        changed = self.daemon.submit(*steps, job=self.job)
        self.daemon.wait_step(changed, 1)
        for offload in ("true", "false"):
            change = self.daemon.ctl("wrap", "set", changed, "--policy", "units", "--units",
                                     f"[{{modules: first, cpu_offload: {offload}}}]")
            self.assertEqual(change.returncode, 0, change.stderr)
        shown = self.daemon.wait_state(changed, "SUCCEEDED", "FAILED")
        self.assertEqual(shown["state"], "SUCCEEDED", f"{shown['reason']}\n{self.workers_said()}")
        self.assertEqual(self.daemon.losses(changed), self.daemon.losses(plain))
        self.assertEqual(self.daemon.tensors(changed), self.daemon.tensors(plain))

    def test_a_limit_that_is_none(self):
        worker = self.start(FSDPD_CUDA_MEMORY="much")
        self.assertNotEqual(worker.wait(30), 0)
        self.assertIn("FSDPD_CUDA_MEMORY=much: expected a number of bytes", self.workers_said())


if __name__ == "__main__":
    harness.main()
