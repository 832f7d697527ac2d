#!/usr/bin/env python3
"""Weights of jobs that no worker holds: a checkpoint gives the same bits as a live pull at its
step."""

import json
import os
import shutil
import signal
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness

# Long enough to be interrupted, and short enough that the disk has room for all checkpoints.
EVERY_STEP = ("train.epochs=100000", "train.max_steps=300", "checkpoint.every_steps=1", "checkpoint.keep=0")
TEXT_JOB = """
name: tiny
model: {hf: gpt2}
data: {format: text, path: text.txt, context: 16}
train: {max_steps: 4, batch_size: 2, seed: 3, evaluate: false}
optimizer: {type: adamw, lr: 0.01, weight_decay: 0}
fsdp: {wrap: {policy: type, types: [GPT2Block]}}
checkpoint: {every_steps: 1, keep: 0}
workers: 2
"""
# 126 MB, of which a pull must never hold more than a few chunks.
WIDE = """
name: Wide
input: [1, 28, 28]
classes: 10
modules:
  fc1: Linear(784, 40000)
  fc2: Linear(40000, 10)
forward:
  - x = flatten(x, 1)
  - x = relu(fc1(x))
  - output = fc2(x)
loss: cross_entropy(output, target)
"""
GPT2 = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 24, "n_layer": 2,
        "n_head": 3, "n_positions": 32, "vocab_size": 257, "layer_norm_epsilon": 1e-05}


def read(path):
    with open(path, "rb") as file:
        return file.read()


class PullCheckpoint(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = harness.Daemon()

    @classmethod
    def tearDownClass(cls):
        cls.daemon.close()

    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="fsdpd-test-")
        self.addCleanup(shutil.rmtree, self.directory)

    def path(self, name="state.safetensors"):
        return os.path.join(self.directory, name)

    def pull(self, job, name, *arguments):
        """The result in JSON, and the standard error."""
        pulled = self.daemon.ctl("pull", job, "-o", self.path(name), "--format", "json", *arguments)
        self.assertEqual(pulled.returncode, 0, pulled.stderr)
        return json.loads(pulled.stdout), pulled.stderr

    def wait_checkpoint(self, job, step):
        """Waits until the checkpoint of this step is on the disk and fsdpd lists it."""
        self.daemon.wait_for(
            lambda: step in [int(entry["step"]) for entry in self.daemon.json("checkpoints", job)], 60,
            f"the checkpoint of step {step}")

    def refuse(self, code, words, job, *arguments):
        refused = self.daemon.ctl("pull", job, "-o", self.path("none"), *arguments)
        self.assertEqual(refused.returncode, code, refused.stdout + refused.stderr)
        for word in words:
            self.assertIn(word, refused.stderr)
        self.assertNotIn("none", "".join(os.listdir(self.directory)))

    def test_same_bytes_as_live(self):
        for strategy in ("full_shard", "no_shard"):
            job = self.daemon.submit(*EVERY_STEP, f"fsdp.strategy={strategy}")
            self.daemon.wait_step(job, 2)
            live, said = self.pull(job, "live")
            self.assertFalse(live["checkpoint"])
            self.assertEqual(said, "")
            step = int(live["step"])
            self.wait_checkpoint(job, step)
            # While the job runs, when it is paused, when it has been cancelled.
            running, _ = self.pull(job, "running", "--checkpoint", str(step))
            self.assertEqual((int(running["step"]), running["checkpoint"]), (step, True))
            paused = int(self.daemon.json("pause", job)["step"])
            newest, said = self.pull(job, "newest")
            self.assertEqual((int(newest["step"]), newest["checkpoint"]), (paused, True))
            self.assertIn(f"checkpoint of step {paused}", said)
            self.assertEqual(int(self.pull(job, "latest", "--checkpoint", "latest")[0]["step"]), paused)
            self.pull(job, "paused", "--checkpoint", str(step))
            self.daemon.ctl("cancel", job)
            self.daemon.wait_state(job, "CANCELLED")
            self.pull(job, "cancelled", "--checkpoint", str(step))
            for name in ("running", "paused", "cancelled"):
                self.assertEqual(read(self.path(name)), read(self.path("live")), name)
            self.assertEqual(read(self.path("latest")), read(self.path("newest")))
            self.assertEqual(self.pull(job, "over")[0]["step"], newest["step"])
            # None of this has changed the checkpoint: a job that continues from it gives the same
            # weights.
            result = self.daemon.submit(f"train.max_steps={paused}", f"fsdp.strategy={strategy}",
                                        wait=True)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.pull(self.daemon.json("list")[-1]["id"], "plain")
            self.assertEqual(read(self.path("plain")), read(self.path("newest")))

    def test_failed(self):
        """The budget is used up; the checkpoints remain, also if fsdpd was killed meanwhile."""
        job = self.daemon.submit(*EVERY_STEP, "retry.machine_failures=0")
        self.daemon.wait_for(lambda: self.daemon.json("checkpoints", job), 30, "a checkpoint")
        workers = [w for w in self.daemon.worker_list() if w.get("job") == job]
        os.kill(int(workers[0]["pid"]), signal.SIGKILL)
        self.daemon.wait_state(job, "FAILED")
        self.daemon.kill()
        self.daemon.log.close()
        self.daemon.start()
        # The disk may have one checkpoint more than the worker could report.
        known = int(self.daemon.json("checkpoints", job)[-1]["step"])
        result, said = self.pull(job, "failed")
        last = int(result["step"])
        self.assertGreaterEqual(last, known)
        self.assertIn(f"checkpoint of step {last}", said)
        plain = self.daemon.submit(f"train.max_steps={last}", wait=True)
        self.assertEqual(plain.returncode, 0, plain.stderr)
        self.assertEqual(harness.read_safetensors(self.path("failed"))[0],
                         self.daemon.tensors(self.daemon.json("list")[-1]["id"]))

    def test_damage(self):
        job = self.daemon.submit(*EVERY_STEP)
        self.wait_checkpoint(job, 2)
        self.daemon.json("pause", job)
        listed = self.daemon.json("checkpoints", job)
        newest, before = listed[-1], listed[-2]
        earlier_step = str(before["step"])
        self.refuse(harness.NOT_FOUND, ["no checkpoint of step 1000000", earlier_step], job,
                    "--checkpoint", "1000000")
        file = os.path.join(newest["path"], "rank-00001.safetensors")
        whole = read(file)
        cut, flipped = whole[:-4], whole[:-1] + bytes([whole[-1] ^ 1])
        for damaged, words in ((cut, "bytes, not the"), (flipped, "is damaged"), (None, "No such file")):
            if damaged is None:
                os.unlink(file)
            else:
                with open(file, "wb") as shard:
                    shard.write(damaged)
            self.refuse(harness.FAILED, [file, words], job)
            self.refuse(harness.FAILED, [file, words], job, "--dtype", "bf16")
            earlier, _ = self.pull(job, "earlier", "--checkpoint", earlier_step)
            self.assertEqual(str(earlier["step"]), earlier_step)
        manifest = os.path.join(newest["path"], "manifest.json")
        with open(manifest, "w") as broken:
            broken.write("{")
        self.refuse(harness.FAILED, [manifest, f"step {listed[0]['step']}"], job)
        # A manifest of an older fsdpd has no checksum of itself.
        manifest = os.path.join(before["path"], "manifest.json")
        with open(manifest) as old:
            content = json.load(old)
        content["version"] = 1
        del content["sha256"]
        with open(manifest, "w") as old:
            json.dump(content, old)
        self.refuse(harness.CONFLICT, ["older fsdpd"], job, "--checkpoint", earlier_step)
        self.daemon.ctl("cancel", job)

    def test_none(self):
        job = self.daemon.submit("workers=9")
        self.refuse(harness.CONFLICT, ["QUEUED", "no checkpoint"], job)
        self.daemon.ctl("cancel", job)
        self.refuse(harness.CONFLICT, ["CANCELLED", "kept no state_dict", "no checkpoint"], job)
        result = self.daemon.submit("train.max_steps=1", wait=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        job = self.daemon.json("list")[-1]["id"]
        self.refuse(harness.CONFLICT, ["no checkpoint"], job, "--checkpoint", "latest")
        for step in ("0", "-1", "newest", "1x"):
            self.refuse(harness.USAGE, ["expected a step"], job, "--checkpoint", step)

    def test_directory_of_the_job(self):
        shared = os.path.join(self.daemon.data, "weights")
        os.mkdir(shared)
        job = self.daemon.submit(*EVERY_STEP, f"checkpoint.directory={shared}")
        self.daemon.wait_step(job, 2)
        step = int(self.daemon.json("pause", job)["step"])
        self.assertEqual(int(self.pull(job, "shared")[0]["step"]), step)
        os.rename(shared, shared + "-away")
        self.refuse(harness.CONFLICT, ["checkpoint.directory", shared], job)
        os.rename(shared + "-away", shared)
        # The job's own directory is fsdpd's: a pull follows no link in its place.
        run = os.path.join(shared, os.listdir(shared)[0])
        os.rename(run, run + "-away")
        os.symlink(run + "-away", run)
        self.refuse(harness.CONFLICT, ["not a directory"], job)
        os.unlink(run)
        os.rename(run + "-away", run)
        self.daemon.ctl("cancel", job)

    def test_bounded_memory(self):
        """For any client, however slow, the coordinator holds chunks, not the model."""
        def peak():
            with open(f"/proc/{self.daemon.process.pid}/status") as status:
                return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
        with open(self.path("wide.yaml"), "w") as file:
            file.write(WIDE)
        job = self.daemon.submit(f"model.file={self.path('wide.yaml')}", "optimizer.type=sgd",
                                 "train.batch_size=1", "train.max_steps=1000000", "train.evaluate=false")
        self.daemon.wait_step(job, 1)
        self.daemon.json("pause", job)
        before = peak()
        slow = self.daemon.spawn("pull", job, "-o", "-") # no process reads its output
        pulls = [self.daemon.spawn("pull", job, "-o", self.path(f"wide-{i}")) for i in range(2)]
        for pull in pulls:
            _, errors = pull.communicate(timeout=120)
            self.assertEqual(pull.returncode, 0, errors)
        self.assertGreater(os.path.getsize(self.path("wide-0")), 120 << 20)
        self.assertLess(peak() - before, 64 << 10)
        self.assertIsNone(slow.poll())
        slow.kill()
        slow.wait(20)
        self.daemon.ctl("cancel", job)

    def test_hugging_face(self):
        """A tied parameter has both its names, in the order of a live pull; shards, bf16."""
        os.makedirs(os.path.join(self.daemon.data, "gpt2"))
        with open(os.path.join(self.daemon.data, "gpt2/config.json"), "w") as file:
            json.dump(GPT2, file)
        with open(os.path.join(self.daemon.data, "text.txt"), "w") as file:
            file.write("so it goes, and so it went\n" * 200)
        with open(self.path("job.yaml"), "w") as file:
            file.write(TEXT_JOB)
        arguments = ["submit", self.path("job.yaml"), "--wait"]
        for key, name in (("model.hf", "gpt2"), ("data.path", "text.txt")):
            arguments += ["--set", f"{key}={os.path.join(self.daemon.data, name)}"]
        result = self.daemon.ctl(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        job = self.daemon.json("list")[-1]["id"]
        live, _ = self.pull(job, "final")
        self.assertFalse(live["checkpoint"])
        self.pull(job, "last", "--checkpoint", str(live["step"]))
        self.assertEqual(read(self.path("last")), read(self.path("final")))
        self.assertIn("lm_head.weight", harness.read_safetensors(self.path("last"))[0])
        for name, more in (("a", ()), ("b", ("--checkpoint", str(live["step"])))):
            self.pull(job, name, "--format", "hf", "--dtype", "bf16", "--max-shard-size", "20kB", *more)
        files = sorted(os.listdir(self.path("a")))
        self.assertGreater(len(files), 3)
        self.assertEqual(sorted(os.listdir(self.path("b"))), files)
        for name in files:
            self.assertEqual(read(os.path.join(self.path("a"), name)),
                             read(os.path.join(self.path("b"), name)), name)


if __name__ == "__main__":
    harness.main()
