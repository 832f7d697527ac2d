#!/usr/bin/env python3
"""fsdpctl verify: what is kept of a job, and what was pulled from it, is proved or named.

FSDPD_FLIPS flips of each format, drawn from FSDPD_SEED."""

import os
import random
import sys

sys.path.insert(0, os.path.dirname(__file__))
import harness
import test_hf
from test_bit_flips import FLIPS, SEED, flip, read, tensor_at


class Verify(test_hf.HuggingFace):
    def verify(self, *arguments, code=0):
        result = self.daemon.ctl("verify", *arguments)
        self.assertEqual(result.returncode, code, (arguments, result.stdout, result.stderr))
        return result.stdout if code == 0 else result.stderr

    def flip_all(self, job, target, files, *options):
        """Each flip in one of the files is found, and its tensor named."""
        dice = random.Random(SEED)
        good = {path: read(path) for path in files}
        for number in range(FLIPS // 3):
            path = files[number % len(files)]
            at = dice.randrange(len(good[path]))
            flip(path, at, dice.randrange(8))
            named = self.verify(job, target, *options, code=1)
            self.assertIn(path, named)
            if path.endswith(".safetensors"):
                self.assertIn(f"byte {at}, in ", named)
                self.assertIn(tensor_at(good[path], at) or "its header", named)
            with open(path, "wb") as file:
                file.write(good[path])
        with open(files[0], "ab") as file:
            file.write(b"x")
        self.verify(job, target, *options, code=1)
        os.truncate(files[0], len(good[files[0]]) - 1)
        self.verify(job, target, *options, code=1)
        with open(files[0], "wb") as file:
            file.write(good[files[0]])
        self.assertIn("proved", self.verify(job, target, *options))

    def test_verify(self):
        job = self.submit("model.hf=gpt2", "checkpoint.every_steps=1", "checkpoint.keep=0")
        for name, *options in (("f32.safetensors",), ("bf16.safetensors", "--dtype", "bf16")):
            path = self.out(name)
            self.assertEqual(self.daemon.ctl("pull", job, "-o", path, *options).returncode, 0)
            self.flip_all(job, path, [path])
        for name, *options in (("hf",), ("hf-bf16", "--dtype", "bf16")):
            path, size = self.out(name), ("--max-shard-size", "20kB")
            self.pull(job, path, *size, *options)
            files = [os.path.join(path, file) for file in sorted(os.listdir(path))]
            self.assertGreater(len(files), 3)
            self.flip_all(job, path, files, *size)
        path = self.out("checkpoint")
        self.assertEqual(self.daemon.ctl("pull", job, "--checkpoint", "1", "-o", path).returncode, 0)
        self.assertIn("after step 1: ", self.verify(job, path, "--checkpoint", "1"))
        self.assertIn("differs", self.verify(job, path, code=1))

    def test_kept(self):
        job = self.submit("model.hf=gpt2", "checkpoint.every_steps=1", "checkpoint.keep=0")
        whole = self.verify(job)
        for words in ("final weights after step 2: ", "checkpoint after step 1: ", "checkpoint after step 2: "):
            self.assertIn(words, whole)
        kept = os.path.join(self.daemon.root, "state/jobs", job)
        checkpoint = self.daemon.json("checkpoints", job)[0]["path"]
        for path, named in ((os.path.join(kept, "state_dict.safetensors"), "state_dict.safetensors is damaged"),
                            (os.path.join(kept, "state_dict.safetensors.sums"), ".sums is damaged"),
                            (os.path.join(checkpoint, "rank-00001.safetensors"), "rank-00001.safetensors"),
                            (os.path.join(kept, "log/00000001.log"), "damaged lines")):
            at = os.path.getsize(path) // 2
            flip(path, at, 3)
            self.assertIn(named, self.verify(job, code=1))
            flip(path, at, 3)
        self.assertEqual(self.verify(job), whole)


for inherited in [name for name in dir(test_hf.HuggingFace) if name.startswith("test_")]:
    setattr(Verify, inherited, None)  # its tests are its own

if __name__ == "__main__":
    harness.main()
