"""Workers of a fake CUDA device: the module's own sources over a stub of the CUDA runtime with
emulated kernels (tests/emulation/fsdpd-cuda.so). For the system tests of devices."""

import os
import struct
import subprocess
import unittest

import harness

MODULE = os.path.join(os.path.abspath(harness.BUILD), "tests/emulation/fsdpd-cuda.so")

MODEL = """\
name: Small
input: [1, 28, 28]
classes: 10
modules:
  first: Linear(784, 12)
  second: Linear(12, 10)
forward:
  - x = relu(first(flatten(x, 1)))
  - output = log_softmax(second(x), 1)
loss: nll_loss(output, target, reduction='sum')
"""

JOB = """\
name: small
model: {file: small.yaml}
data: {format: idx, dir: data, normalize: {mean: 0.1307, std: 0.3081}}
train: {epochs: 1, batch_size: 8, test_batch_size: 20, seed: 1, log_interval: 1}
optimizer: {type: adadelta, lr: 1.0}
schedule: {type: step, step_size: 1, gamma: 0.7}
fsdp: {strategy: full_shard, wrap: {policy: size, min_num_params: 1000}}
retry: {machine_failures: 0}
save_model: true
"""


class StubDevice(unittest.TestCase):
    def setUp(self):
        if not os.path.exists(MODULE):
            self.skipTest("the CUDA backend was not built: nvcc or NCCL was not found, or was not wanted")
        self.daemon = harness.Daemon(workers=0)
        self.addCleanup(self.daemon.close)
        self.job = self.write("job.yaml", JOB)
        self.write("small.yaml", MODEL)

    def write(self, name, text):
        path = os.path.join(self.daemon.root, name)
        with open(path, "w") as file:
            file.write(text)
        return path

    def start(self, *arguments, device="cuda:0", **environment):
        """Starts a worker of a stub device under its default name."""
        with open(os.path.join(self.daemon.root, "workers.log"), "ab") as log:
            worker = subprocess.Popen(
                [harness.FSDPD, "worker", "--device", device, "--coordinator", self.daemon.address,
                 "--data-root", self.daemon.data, *arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=dict(os.environ, FSDPD_CONFIG="", FSDPD_BACKEND_DIR=os.path.dirname(MODULE),
                         **environment))
        self.daemon.spawned.append(worker)
        return worker

    def wait_workers(self, count):
        return self.daemon.wait_for(
            lambda: len(self.daemon.worker_list()) == count and self.daemon.worker_list(), 30,
            f"{count} workers\n{self.workers_said()}")

    def workers_said(self):
        with open(os.path.join(self.daemon.root, "workers.log"), errors="replace") as log:
            return log.read()[-4000:]

    def train(self, *settings):
        """The job's losses and final weights."""
        job = self.daemon.submit("train.max_steps=12", *settings, job=self.job)
        shown = self.daemon.wait_state(job, "SUCCEEDED", "FAILED")
        self.assertEqual(shown["state"], "SUCCEEDED", f"{shown['reason']}\n{self.workers_said()}")
        weights = {name: struct.unpack(f"<{len(raw) // 4}f", raw)
                   for name, (_, _, raw) in self.daemon.tensors(job).items()}
        return self.daemon.losses(job), weights
