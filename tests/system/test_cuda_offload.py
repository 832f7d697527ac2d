#!/usr/bin/env python3
"""Jobs whose units are offloaded to the host, on a stub device (stub_device.py): the same losses
and weights as without, for models that fit the device and models that do not, and units that move
while the job runs."""

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
        self.stop(worker)

        self.start(FSDPD_CUDA_MEMORY=str(sum(peaks) // 2))
        self.wait_workers(1)
        self.assertIn("fsdp.cpu_offload=true", self.refused("workers=1"))
        self.assertEqual(self.train("workers=1", OFFLOADED), expected)
        text = self.daemon.ctl("plan", self.job, "--set", f"data.dir={self.daemon.data}",
                               "--set", "workers=1", "--set", OFFLOADED, "--dump").stdout
        self.assertIn("of pinned host memory per rank", text)
        self.assertRegex(text, r"host +optimizer")

    def stop(self, *workers):
        for worker in workers:
            worker.terminate()
            worker.wait()
        self.daemon.wait_for(lambda: not self.daemon.worker_list(), 30, "the workers to leave")

    def refused(self, *settings):
        arguments = [word for setting in settings for word in ("--set", setting)]
        refused = self.daemon.ctl("submit", self.job, "--set", f"data.dir={self.daemon.data}", *arguments)
        self.assertEqual(refused.returncode, harness.DOES_NOT_FIT, refused.stderr)
        return refused.stderr

    def test_devices_of_a_host(self):
        """Ranks on two devices of a host divide its memory: the submitter learns that it is too
        little."""
        devices = [self.start(device=device, FSDPD_STUB_DEVICES="2") for device in ("cuda:0", "cuda:1")]
        self.wait_workers(2)
        plan = self.plan("workers=2", OFFLOADED)
        self.assertEqual((plan["communicator"], int(plan["host_ranks"])), ("nccl", 2))
        rank = int(plan["host_bytes"]) + int(plan["staging_bytes"])
        self.assertGreater(int(plan["host_memory_bytes"]), 2 * rank)
        alone = self.plan("workers=1", OFFLOADED)
        self.assertEqual(int(alone["host_ranks"]), 1)
        self.stop(*devices)

        for missing in (1, 0):
            devices = [self.start(device=device, FSDPD_STUB_DEVICES="2",
                                  FSDPD_CUDA_HOST_MEMORY=str(2 * rank - missing))
                       for device in ("cuda:0", "cuda:1")]
            self.wait_workers(2)
            if missing:
                self.assertRegex(self.refused("workers=2", OFFLOADED),
                                 "offloaded units need [0-9.]+ kB of host memory per rank, and copies "
                                 "62.9 MB, [0-9]+ MB for the 2 ranks of a host, but [0-9]+ MB are available")
                self.train("workers=1", OFFLOADED)
            else:
                self.assertEqual(int(self.plan("workers=2", OFFLOADED)["host_memory_bytes"]), 2 * rank)
                text = self.daemon.ctl("plan", self.job, "--set", f"data.dir={self.daemon.data}",
                                       "--set", "workers=2", "--set", OFFLOADED).stdout
                self.assertRegex(text, "Offloaded: [0-9.]+ kB of host memory per rank; with copies, 2 ranks "
                                       "on a host would have 100% of 126 MB")
            self.stop(*devices)

        # The log shows the copies of the job without offload, too.
        self.start(FSDPD_CUDA_HOST_MEMORY="1000000")
        self.wait_workers(1)
        self.assertIn("copies need 37.7 MB of host memory per rank, but 1.00 MB are available there",
                      self.refused("workers=1"))

    def test_a_rank_looks_again(self):
        """The memory of the plan may be taken when the job begins: no rank allocates anything."""
        self.start("--share-device")
        self.wait_workers(1)  # it plans, as the first
        self.start("--share-device", FSDPD_CUDA_HOST_MEMORY=str(100 << 20))
        self.wait_workers(2)
        job = self.daemon.submit("workers=2", OFFLOADED, job=self.job)
        shown = self.daemon.wait_state(job, "FAILED", seconds=harness.PATIENCE)
        self.assertIn("offloaded units need ", shown["reason"]["message"])
        self.assertIn("for the 2 ranks of a host, but 105 MB are available", shown["reason"]["message"])

    def test_units_come_and_go(self):
        """A running job's units are offloaded and brought back: the steps continue unchanged."""
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
        worker = self.start(FSDPD_CUDA_HOST_MEMORY="-1")
        self.assertNotEqual(worker.wait(30), 0)
        self.assertIn("FSDPD_CUDA_HOST_MEMORY=-1: expected a number of bytes", self.workers_said())


if __name__ == "__main__":
    harness.main()
