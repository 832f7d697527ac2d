#!/usr/bin/env python3
"""A worker that lost its device, by an error after which CUDA wants another process, on a stub device
(stub_device.py): it reports the job, leaves, and the next process trains."""

import os
import sys

sys.path.insert(0, os.path.dirname(__file__))
import harness
import stub_device

ILLEGAL_ADDRESS = 700


class LostDevice(stub_device.StubDevice):
    def test_next_process_trains(self):
        failure = self.write("failure", f"cudaGraphLaunch 2 {ILLEGAL_ADDRESS}")
        worker = self.start(FSDPD_STUB_FAIL=failure)
        self.wait_workers(1)
        job = self.daemon.submit("train.max_steps=12", "retry.machine_failures=1", job=self.job)
        self.daemon.wait_for(lambda: worker.poll() is not None, 60,
                             f"the worker to end\n{self.workers_said()}")
        self.assertEqual(worker.returncode, 1, self.workers_said())
        self.assertIn("an illegal memory access was encountered", self.workers_said())
        self.assertFalse(os.path.exists(failure))
        self.start()
        shown = self.daemon.wait_state(job, "SUCCEEDED", "FAILED")
        self.assertEqual((shown["state"], int(shown["attempt"])), ("SUCCEEDED", 2),
                         f"{shown['reason']}\n{self.workers_said()}")
        retried = [event["state"]["reason"]["message"] for event in self.daemon.events(job)
                   if "state" in event and event["state"]["reason"]["code"] == "RETRYING"]
        self.assertRegex(retried[0], "this process has lost its device.* of machines")


if __name__ == "__main__":
    harness.main()
