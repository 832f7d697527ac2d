#!/usr/bin/env python3
"""Adapters against the numbers of peft in tests/parity/lora.json (make_lora_numbers.py): which modules
of tiny models get one, their initial values bit for bit, and the losses of 50 AdamW steps on one to three
workers under each strategy. Needs numpy only."""

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

BOUND = 1e-5  # of a loss
CASES = lora_cases.CASES
RECORDS = lora_cases.load()


class Lora(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp(prefix="fsdpd-test-")
        cls.addClassCleanup(shutil.rmtree, cls.root, True)
        cls.data = os.path.join(cls.root, "data")
        os.mkdir(cls.data)
        lora_cases.draw_stream().astype("<u2").tofile(os.path.join(cls.data, "stream.bin"))
        images, labels = lora_cases.draw_pictures()
        for part in ("train", "t10k"):
            cases.write_idx(os.path.join(cls.data, f"{part}-images-idx3-ubyte"), images)
            cases.write_idx(os.path.join(cls.data, f"{part}-labels-idx1-ubyte"), labels)
        cases.write_documents(os.path.join(cls.data, "labels"), "bert", lora_cases.STEPS * cases.WINDOWS, 4)
        for kind in cases.DATA:
            with open(os.path.join(cls.root, f"{kind}.yaml"), "w", encoding="utf-8") as file:
                file.write(cases.job_file(kind, lora_cases.STEPS))
        for name, (case, _, _) in CASES.items():
            if not os.path.exists(os.path.join(cls.data, case)):
                numbers.write_checkpoint(os.path.join(cls.data, case), RECORDS[name]["record"])
        cls.daemon = harness.Daemon(3, data=cls.data)
        cls.addClassCleanup(cls.daemon.close)

    def arguments(self, name, workers, *more):
        case, lora, _ = CASES[name]
        kind = "documents" if case.startswith("head/") else "pictures" if cases.is_picture(case) else "text"
        batch = cases.IMAGES_OF_A_STEP if kind == "pictures" else cases.WINDOWS
        words = [f"model.hf={case}", *lora_cases.settings(lora), f"workers={workers}", "train.dropout=false",
                 f"train.batch_size={batch // workers}", f"train.seed={lora_cases.SEED}", *more]
        return [os.path.join(self.root, f"{kind}.yaml"), *(word for one in words for word in ("--set", one))]

    def run_job(self, *arguments):
        """The id of a job that has ended well."""
        result = self.daemon.ctl("submit", *self.arguments(*arguments), "--wait", timeout=300)
        self.assertEqual(result.returncode, 0, result.stderr)
        return self.daemon.json("list")[-1]["id"]

    def pull(self, job, *options):
        out = os.path.join(self.root, f"{job}.pulled")
        result = self.daemon.ctl("pull", job, "-o", out, *options)
        self.assertEqual(result.returncode, 0, result.stderr)
        return out

    def test_file_has_the_cases(self):
        self.assertEqual(sorted(RECORDS), sorted([*CASES, "versions"]))

    def test_initial_values_are_those_of_peft(self):
        """At any sharding: the digest is of all first matrices, in the order of the modules."""
        for name in CASES:
            with self.subTest(name):
                tensors, _ = harness.read_safetensors(self.pull(self.run_job(name, 3, *cases.STILL)))
                first = [raw for path, (_, _, raw) in tensors.items() if path.endswith(".lora_A.weight")]
                self.assertEqual(len(first), RECORDS[name]["adapters"])
                self.assertEqual(lora_cases.digest(numpy.frombuffer(raw, "<f4") for raw in first),
                                 RECORDS[name]["initial"])
                for path, (_, _, raw) in tensors.items():
                    if path.endswith(".lora_B.weight"):
                        self.assertFalse(any(raw), path)

    def test_plan_says_what_is_trained(self):
        for name, record in RECORDS.items():
            if name == "versions":
                continue
            plan = self.daemon.ctl("plan", *self.arguments(name, 2))
            self.assertEqual(plan.returncode, 0, plan.stderr)
            text = " ".join(plan.stdout.split())
            self.assertIn(f"LoRA adapts {record['adapters']} modules: ", text)
            self.assertIn(f"; {record['trained']} elements are trained, ", text)

    def test_losses(self):
        for name in CASES:
            expected = RECORDS[name]["losses"]
            ways = [(1,), (2,), (3,)]
            if name in ("gpt2", "llama", "vit"):
                ways += [(2, *more) for more in lora_cases.STRATEGIES]
            for workers, *more in ways:
                with self.subTest(name, workers=workers, more=more):
                    found = self.daemon.losses(self.run_job(name, workers, *more))
                    self.assertEqual([step for step, _ in found], list(range(1, lora_cases.STEPS + 1)))
                    worst = max(abs(loss / e - 1) for (_, loss), e in zip(found, expected))
                    print(f"{name}, {workers} workers {' '.join(more)}: losses within {worst:.1e}")
                    self.assertLessEqual(worst, BOUND)

    def refused(self, *arguments):
        """What standard error says, in one line, and the exit code."""
        result = self.daemon.ctl(*arguments)
        self.assertNotEqual(result.returncode, 0)
        return " ".join(result.stderr.split()), result.returncode

    def test_refusals_of_jobs(self):
        for more, message in (
            (["model.lora.targets=[q_prj]"], "model.lora.targets: 'q_prj' matches no Linear or Conv1D module of the "
                                             "model; did you mean 'q_proj'?"),
            (["model.lora.targets=[embed_tokens]"], "of the type Embedding; only Linear and Conv1D can be adapted, yet"),
            (["model.lora.rank=21"], "model.lora.rank: expected an integer from 1 to 20, the smaller side of "
                                     "model.layers.0.self_attn.q_proj"),
            (["model.lora.rank=0"], "model.lora.rank: expected an integer from 1 to 65536, found 0"),
        ):
            self.assertIn(message, self.refused("plan", *self.arguments("llama", 1, *more))[0])
        text = self.refused("plan", *self.arguments("vit", 1, "model.lora.targets=[]"))[0]
        self.assertIn("model.lora.targets: is missing, as PEFT has no default for this model", text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
