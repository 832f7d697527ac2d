#!/usr/bin/env python3
"""Workers that share a stub device (stub_device.py) and train through host memory and Gloo."""

import os
import signal
import sys

sys.path.insert(0, os.path.dirname(__file__))
import harness
import stub_device


class SharedDevice(stub_device.StubDevice):
    def test_two_workers_train(self):
        self.start("--share-device")
        self.start("--share-device")
        workers = self.wait_workers(2)
        self.assertEqual(len({worker["id"] for worker in workers}), 2)
        for worker in workers:
            self.assertEqual((worker["device"], worker["shares_device"]), ("cuda:0", True))
            self.assertTrue(worker["id"].endswith(f"/cuda:0@{worker['pid']}"), worker["id"])
        self.assertRegex(self.daemon.ctl("workers").stdout, "cuda:0, shared")

        planned = self.daemon.json("plan", self.job, "--set", f"data.dir={self.daemon.data}",
                                   "--set", "workers=2")
        planned = planned.get("plan", planned)
        self.assertEqual(planned["communicator"], "gloo through host memory")
        lane = (12 << 20) + 64  # for copies to and from the device
        self.assertGreater(int(planned["staging_bytes"]), 4 * lane + (4 << 20))
        alone = self.daemon.json("plan", self.job, "--set", f"data.dir={self.daemon.data}",
                                 "--set", "workers=1")
        alone = alone.get("plan", alone)
        self.assertEqual((alone["communicator"], int(alone["staging_bytes"])), ("", 3 * lane))
        # each has half of the device's free memory
        self.assertEqual(int(planned["device_memory_bytes"]), int(workers[0]["memory_bytes"]) // 2)
        self.assertEqual(int(alone["device_memory_bytes"]), int(workers[0]["memory_bytes"]))

        losses, weights = self.train("workers=2", "device=cuda")
        self.assertEqual([step for step, _ in losses], list(range(1, 13)))
        self.assertLess(losses[-1][1], losses[0][1])
        self.assertIn("through_host_memory=1", self.workers_said())

        # Without NCCL no buffer is registered.
        registered = "fsdp.register_buffers=true"
        plan = self.daemon.ctl("plan", self.job, "--set", f"data.dir={self.daemon.data}", "--set",
                               "workers=2", "--set", registered).stdout
        self.assertIn("fsdp.register_buffers has no effect where workers share a device", plan)
        self.assertEqual(self.train("workers=2", "device=cuda", registered), (losses, weights))

        # CPU workers give the same result, up to rounding.
        for name in ("here/cpu:0", "here/cpu:1"):
            self.daemon.start_worker(name)
        self.wait_workers(4)
        expected, expected_weights = self.train("workers=2", "device=cpu")
        for (step, loss), (_, wanted) in zip(losses, expected, strict=True):
            self.assertAlmostEqual(loss, wanted, delta=1e-4 * (1 + abs(wanted)), msg=f"step {step}")
        self.assertEqual(weights.keys(), expected_weights.keys())
        for name, values in weights.items():
            for value, wanted in zip(values, expected_weights[name], strict=True):
                self.assertAlmostEqual(value, wanted, delta=1e-3, msg=name)

    def test_nccl_by_its_switch(self):
        for _ in range(2):
            self.start("--share-device", FSDPD_CUDA_SHARED="nccl")
        self.wait_workers(2)
        planned = self.daemon.json("plan", self.job, "--set", f"data.dir={self.daemon.data}",
                                   "--set", "workers=2")
        self.assertEqual(planned.get("plan", planned)["communicator"], "nccl")

    def test_a_device_that_is_not_shared(self):
        self.start()
        worker = self.wait_workers(1)[0]
        self.assertTrue(worker["id"].endswith("/cuda:0"), worker["id"])
        self.assertFalse(worker["shares_device"])
        self.start("--share-device")
        self.daemon.wait_for(lambda: "to share a device, start both workers with --share-device" in self.workers_said(),
                             20, "the second one to be refused")
        self.assertEqual(len(self.daemon.worker_list()), 1)

    def test_one_is_killed(self):
        processes = [self.start("--share-device") for _ in range(2)]
        self.wait_workers(2)
        job = self.daemon.submit("workers=2", "train.epochs=100000", job=self.job)
        self.daemon.wait_step(job, 3)
        shown = self.daemon.show(job)
        self.assertIn("on 2 workers that share devices, through host memory",
                      shown["reason"]["message"])
        victim = next(worker for worker in self.daemon.worker_list() if int(worker["rank"]) == 1)
        for process in processes:
            if process.pid == int(victim["pid"]):
                process.send_signal(signal.SIGKILL)
                process.wait()
        shown = self.daemon.wait_state(job, "FAILED", seconds=harness.PATIENCE)
        self.assertIn("rank 1", shown["reason"]["message"])
        # The other is idle again, the device free: the next job runs, alone and with a new peer.
        self.daemon.wait_for(lambda: [w["state"] for w in self.daemon.worker_list()] == ["idle"], 20,
                             "the other one to be idle")
        self.train("workers=1")
        self.start("--share-device")
        self.wait_workers(2)
        self.train("workers=2")


if __name__ == "__main__":
    harness.main()
