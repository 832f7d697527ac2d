#!/usr/bin/env python3
"""model.base_dtype against tests/parity/base.json (make_base_losses.py): the losses of a small Llama with adapters over a
base that bitsandbytes dequantised, the same bits at any number of workers and under each strategy; a resumed job; what is
pulled; and refusals. Needs numpy."""

import json
import os
import shutil
import sys
import tempfile
import unittest

sys.path[:0] = [os.path.dirname(__file__), os.path.join(os.path.dirname(__file__), "../system")]
import harness
import numpy
import family_cases as cases
import family_numbers as numbers
import lora_cases

BOUND = 1e-4  # of a loss
KINDS = ("bf16", "int8", "nf4")
WAYS = ((1,), (2,), (3,), (3, "fsdp.strategy=no_shard"))
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "base.json"), encoding="utf-8") as file:
    RECORDS = json.load(file)


class Base(unittest.TestCase):
    model = "llama"

    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp(prefix="fsdpd-test-")
        cls.addClassCleanup(shutil.rmtree, cls.root, True)
        cls.data = os.path.join(cls.root, "data")
        os.mkdir(cls.data)
        lora_cases.draw_stream().astype("<u2").tofile(os.path.join(cls.data, "stream.bin"))
        cls.tensors = numbers.write_checkpoint(os.path.join(cls.data, "llama"), RECORDS["record"])
        numbers.write_checkpoint(os.path.join(cls.data, "mixed"), RECORDS["record"],
                                 {name: cls.in_other_type(values) for name, values in cls.tensors.items()})
        with open(os.path.join(cls.root, "job.yaml"), "w", encoding="utf-8") as file:
            file.write(cases.job_file("text", len(RECORDS["f32"])))
        cls.daemon = harness.Daemon(3, data=cls.data)
        cls.addClassCleanup(cls.daemon.close)

    @staticmethod
    def in_other_type(values):
        """Large matrices as bf16, square ones in f16, vectors in f32."""
        if values.ndim < 2:
            return values
        return values.astype("<f2") if values.shape[0] == values.shape[1] else (values.view("<u4") >> 16).astype("<u2")

    def arguments(self, kind, workers, *more):
        words = [f"model.hf={self.model}", f"model.base_dtype={kind}", "model.lora.rank=4", f"workers={workers}",
                 f"train.batch_size={cases.WINDOWS // workers}", f"train.seed={lora_cases.SEED}", *more]
        return [os.path.join(self.root, "job.yaml"), *(word for one in words for word in ("--set", one))]

    def run_job(self, *arguments):
        result = self.daemon.ctl("submit", *self.arguments(*arguments), "--wait", timeout=300)
        self.assertEqual(result.returncode, 0, result.stderr)
        return self.daemon.json("list")[-1]["id"]

    def losses(self, job):
        return [loss for _, loss in self.daemon.losses(job)]

    def compare(self, losses, kind, what):
        worst = max(abs(loss / e - 1) for loss, e in zip(losses, RECORDS[kind], strict=True))
        print(f"{kind}, {what}: losses within {worst:.1e}")
        self.assertLessEqual(worst, BOUND)

    def test_losses(self):
        far = max(abs(a / b - 1) for a, b in zip(RECORDS["nf4"], RECORDS["f32"]))
        self.assertGreater(far, 3 * BOUND)  # so that the comparison sees the type
        for kind in KINDS:
            for way in WAYS:
                self.compare(self.losses(self.run_job(kind, *way)), kind, " ".join(map(str, way)))

    def test_ops_in_bf16(self):
        """Over copies in bf16 the losses are near, also with adapters kept in bf16."""
        for kind in KINDS:
            for workers, *more in ((1,), (2,), (2, "precision.master_dtype=bf16")):
                losses = self.losses(self.run_job(kind, workers, "precision.param_dtype=bf16", *more))
                worst = max(abs(loss / e - 1) for loss, e in zip(losses, RECORDS[kind], strict=True))
                print(f"{kind}, {workers} {more} in bf16: losses within {worst:.1e}")
                self.assertLessEqual(worst, 100 * BOUND)

    def test_bits_of_any_cut(self):
        """What the base stands for does not depend on where it is cut, nor on the units."""
        for kind in KINDS:
            pulled = []
            for workers, *more in ((1,), (2,), (3,), (2, "fsdp.strategy=no_shard"), (3, "fsdp.wrap.policy=none")):
                out = os.path.join(self.root, f"{kind}-{len(pulled)}")
                job = self.run_job(kind, workers, *more, *cases.STILL)
                result = self.daemon.ctl("pull", job, "-o", out)
                self.assertEqual(result.returncode, 0, result.stderr)
                with open(out, "rb") as file:
                    pulled.append(file.read())
            for other in pulled[1:]:
                self.assertEqual(pulled[0], other)
            self.check_error(kind, out)

    def check_error(self, kind, path):
        """Matrices have the error of their type, vectors none."""
        found, _ = harness.read_safetensors(path)
        for name, given in self.tensors.items():
            values = numpy.frombuffer(found[name][2], "<f4").reshape(given.shape)
            error = float(numpy.sqrt(numpy.mean((values - given) ** 2) / numpy.mean(given ** 2)))
            packed = given.ndim > 1 and given.size >= 4096
            bound = {"bf16": 2.0 ** -8, "int8": 0.02, "nf4": 0.15}[kind]
            if packed:
                self.assertGreater(error, bound / 20, name)
            self.assertLess(error, bound if packed or kind == "bf16" else 1e-12, name)

    def test_types_of_the_file(self):
        """`file` has the values of f32 in fewer bytes, wherever units are cut, also after a resume with other units."""
        self.model = "mixed"
        halved = sum(v.size for v in self.tensors.values() if self.in_other_type(v).dtype == numpy.dtype("<u2"))
        low = (2, "precision.param_dtype=bf16", "fsdp.wrap={policy: size, min_num_params: 1}")
        for way in ((1,), (3, "fsdp.wrap.policy=none"), low):
            f32, kept = (self.run_job(kind, *way, "checkpoint.every_steps=30") for kind in ("f32", "file"))
            self.assertEqual(self.losses(f32), self.losses(kept))
            sizes = [{kind["name"]: int(kind["bytes"]) for kind in self.daemon.json("show", job)["plan"]["memory"]}
                     ["parameters (shard)"] for job in (f32, kept)]
            saved = 2 * halved / way[0]
            print(f"file, {way}: {sizes[1]} bytes instead of {sizes[0]}")
            self.assertGreater(sizes[0] - sizes[1], saved * 0.9)  # all ranks' parts are as long as the longest
            self.assertLessEqual(sizes[0] - sizes[1], saved)
        rounded = self.losses(self.run_job("file", *low, "precision.master_dtype=bf16"))
        self.assertLess(max(abs(a / b - 1) for a, b in zip(rounded, self.losses(kept), strict=True)), 100 * BOUND)
        job = self.run_job("file", 2, "train.max_steps=8", "checkpoint.every_steps=8", "fsdp.wrap.policy=none")
        words = ["train.max_steps=20", "fsdp.wrap.policy=auto"]
        result = self.daemon.ctl("resume", job, *(word for one in words for word in ("--set", one)))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.daemon.wait_state(job, "SUCCEEDED", seconds=120)
        self.assertEqual(self.losses(job), self.losses(self.run_job("f32", 2)))

    def test_resumed_by_another_number_of_workers(self):
        """The checkpoint has no base; a resumed job makes it of the files again."""
        job = self.run_job("nf4", 3, "train.max_steps=8", "checkpoint.every_steps=8")
        refused = self.daemon.ctl("resume", job, "--set", "model.base_dtype=f32", "--set", "train.max_steps=20")
        self.assertIn("model.base_dtype: cannot change when a job resumes", refused.stderr)
        self.check_weights_of(job)
        words = ["train.max_steps=20", "workers=2", f"train.batch_size={cases.WINDOWS // 2}"]
        result = self.daemon.ctl("resume", job, *(word for one in words for word in ("--set", one)))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.daemon.wait_state(job, "SUCCEEDED", seconds=120)
        self.compare(self.losses(job), "nf4", "resumed")
        path = os.path.join(self.data, "llama", "model.safetensors")
        with open(path, "rb") as file:
            whole = file.read()
        self.addCleanup(self.write, path, whole)
        start = 8 + int.from_bytes(whole[:8], "little")
        self.write(path, whole[:start] + bytes([whole[start] ^ 1]) + whole[start + 1:])  # the last bit of a value
        self.assertEqual(self.daemon.ctl("resume", job, "--set", "train.max_steps=24").returncode, 0)
        self.daemon.wait_state(job, "FAILED", seconds=60)
        reason = self.daemon.json("show", job)["reason"]
        self.assertIn("llama are not those over which the job trained until step 20", reason["message"])
        refused = self.daemon.ctl("eval", job, "--checkpoint", "latest", "--data", "stream.bin", "--batches", "2",
                                  "--key", "train.evaluate=true", timeout=120)
        self.assertIn("llama are not those over which the job trained until step 20", " ".join(refused.stderr.split()))

    def write(self, path, content):
        with open(path, "wb") as file:
            file.write(content)

    def check_weights_of(self, job):
        """Its final weights can be evaluated, and its checkpoints, whose base is made again; these have the adapter for another
        job, but no whole model."""
        data = ("--data", "stream.bin", "--batches", "2", "-o", "json", "--key", "train.evaluate=true")
        seen = self.daemon.ctl("eval", job, *data, timeout=120)
        self.assertEqual(seen.returncode, 0, seen.stderr)
        loss = json.loads(seen.stdout)["loss"]
        seen = self.daemon.ctl("eval", job, "--checkpoint", "latest", *data, timeout=120)
        self.assertEqual(seen.returncode, 0, seen.stderr)
        self.assertEqual(json.loads(seen.stdout)["loss"], loss)
        refused = self.daemon.ctl("pull", job, "--checkpoint", "latest", "--format", "hf", "--merge", "-o", self.root + "/merged")
        self.assertIn(f"checkpoints of job {job} lack the parameters that it does not train (model.base_dtype); expected --format "
                      "peft", " ".join(refused.stderr.split()))
        refused = self.daemon.ctl("submit", *self.arguments("nf4", 1), "--set", f"model.weights={{job: {job}, checkpoint: latest}}")
        self.assertIn(f"model.weights.job: the checkpoints of job {job} lack", " ".join(refused.stderr.split()))
        then = self.run_job("nf4", 2, *cases.STILL, f"model.adapter={{job: {job}, checkpoint: latest}}")
        seen = json.loads(self.daemon.ctl("eval", then, *data, timeout=120).stdout)
        self.assertAlmostEqual(seen["loss"], loss, places=5)

    def test_refusals(self):
        def refused(*arguments):
            result = self.daemon.ctl("plan", *arguments)
            self.assertGreater(result.returncode, 0)
            return " ".join(result.stderr.split())

        self.assertIn("model.base_dtype: expected f32, bf16, int8, nf4 or file", refused(*self.arguments("fp4", 1)))
        words = self.arguments("nf4", 1)
        at = words.index("model.lora.rank=4")
        self.assertIn("model.base_dtype: nf4 is for parameters that are not trained, but all of this model are",
                      refused(*words[:at - 1], *words[at + 1:]))
        words = ["fsdp.keep_frozen=true" if word.startswith("model.base_dtype=") else word for word in words]
        self.assertIn("fsdp.keep_frozen is for parameters that are not trained, but all of this model are",
                      refused(*words[:at - 1], *words[at + 1:]))


if __name__ == "__main__":
    unittest.main(verbosity=2)
