#!/usr/bin/env python3
"""Preference training against the numbers of trl in tests/parity/dpo.json (make_dpo_numbers.py): the losses and the six figures
of 30 steps; the same curve however pairs are spread over ranks and batches; and refusals. Needs numpy."""

import json
import math
import os
import re
import sys
import unittest

sys.path[:0] = [os.path.dirname(__file__), os.path.join(os.path.dirname(__file__), "../system")]
import dpo_cases
import harness
import family_cases as cases
from pair_jobs import BOUND, SAME, PairJobs

PAIRS = dpo_cases.PAIRS
with open(dpo_cases.PATH, encoding="utf-8") as FILE:
    RECORDS = json.load(FILE)
JOB = f"""name: pairs
data: {{format: dataset, path: pairs, windows: document, objective: dpo}}
train: {{max_steps: {dpo_cases.STEPS}, log_interval: 1, evaluate: false, shuffle: false, seed: {dpo_cases.SEED}}}
optimizer: {{type: adamw, lr: {dpo_cases.LEARNING_RATE}, weight_decay: {cases.WEIGHT_DECAY}}}
"""


class Preferences(PairJobs):
    job, records, models = JOB, RECORDS, {case for case, _, _ in dpo_cases.CASES.values()}

    def arguments(self, name, *more, adapts=True, prefers=True):
        case, lora, dpo = dpo_cases.CASES[name]
        lora, dpo = lora if adapts else {}, dpo if prefers else {}
        words = [f"model.hf={case}", *(f"model.lora.{key}={json.dumps(value)}" for key, value in lora.items()),
                 *(f"dpo.{key}={json.dumps(value)}" for key, value in dpo.items()), f"train.batch_size={PAIRS}",
                 f"optimizer.lr={dpo_cases.rate_of(name)}", f"optimizer.weight_decay={dpo_cases.decay_of(name)}", *more]
        return self.set(words)

    def train(self, name, *more):
        """The loss and the six figures of every step."""
        rows = self.rows(self.arguments(name, *more))
        return {key: [float(row[key.replace("/", "_")]) for row in rows] for key in ("loss", *dpo_cases.FIGURES)}

    def validations(self):
        """The losses of the last job's evaluations."""
        return [float(event["validation"]["loss"]) for event in self.daemon.events(self.job_id) if "validation" in event]

    def test_numbers_of_trl(self):
        for name in dpo_cases.CASES:
            with self.subTest(name):
                found = self.train(name)
                self.assert_within(BOUND, found, RECORDS[name], name)

    def test_any_split_has_one_curve(self):
        """Also of pairs that do not all count: of some, one answer has no token."""
        pairs = [[prompt, [] if i % 5 == 2 else chosen, [] if i % 7 == 3 else rejected]
                 for i, (prompt, chosen, rejected) in enumerate(dpo_cases.draw_pairs())]
        dpo_cases.write_pairs(os.path.join(self.data, "some"), pairs)
        more = ["data.path=some", "train.max_steps=12"]
        plan = self.daemon.ctl("plan", *self.arguments("llama", *more)).stdout
        counted = sum(bool(chosen and rejected) for _, chosen, rejected in pairs)
        self.assertIn(f"an epoch of the dataset is {len(pairs)} pairs, of which {counted} count", " ".join(plan.split()))
        one = self.train("llama", *more)
        self.assertTrue(all(math.isfinite(value) for values in one.values() for value in values))
        for words in (["workers=2", "train.batch_size=4"], ["train.batch_size=2", "train.accumulation_steps=4"],
                      ["workers=3", "train.global_batch=8", "train.batch_size=2"],
                      ["workers=2", "train.batch_size=2", "train.accumulation_steps=2", "fsdp.strategy=no_shard"],
                      ["dpo.reference=precomputed", "workers=3", "train.global_batch=8", "train.batch_size=2"]):
            with self.subTest(words):
                self.assert_within(SAME, self.train("llama", *more, *words), one, " ".join(words))

    def test_packed_pairs(self):
        """Windows with several pairs have the losses of a window for each answer; also of some that do not count, and one that
        is longer than a window."""
        pairs = [[prompt[:2], chosen[:4] if i % 4 else [], rejected[:3]]
                 for i, (prompt, chosen, rejected) in enumerate(dpo_cases.draw_pairs()[:12])]
        dpo_cases.write_pairs(os.path.join(self.data, "few"), pairs)
        more = ["data.path=few", "train.max_steps=6"]
        one = self.train("llama", *more, f"train.batch_size={len(pairs)}")
        plan = " ".join(self.daemon.ctl("plan", *self.arguments("llama", *more, "data.windows=packed")).stdout.split())
        self.assertIn(f"an epoch of the dataset is {len(pairs)} pairs, of which 9 count; windows are", plan)
        windows = int(re.search(r"documents are packed into (\d+) windows", plan)[1])
        self.assertLessEqual(windows, 6)
        for words in ([f"train.batch_size={windows}"], ["workers=3", f"train.global_batch={windows}", "train.batch_size=1"],
                      ["workers=2", f"train.global_batch={windows}", "train.batch_size=2", "dpo.reference=precomputed"]):
            with self.subTest(words):
                self.assert_within(SAME, self.train("llama", *more, "data.windows=packed", *words), one, " ".join(words))
        dpo_cases.write_pairs(os.path.join(self.data, "long"), [[pairs[1][0] * 20, pairs[1][1], pairs[1][2]], pairs[2]])
        plan = self.daemon.ctl("plan", *self.arguments("llama", "data.path=long", "data.windows=packed")).stdout
        self.assertIn("2 documents are longer than a window, and are cut", " ".join(plan.split()))

    def test_a_reference_of_the_whole_model(self):
        """One curve over any ranks, also from a checkpoint; the plan has the copy, and what is pulled does not."""
        more = ["train.max_steps=12"]
        plan = self.daemon.ctl("plan", *self.arguments("gpt2-copy", *more, "workers=2")).stdout
        elements = sum(math.prod(tensor["shape"]) for tensor in RECORDS["gpt2-copy"]["record"]["tensors"].values())
        self.assertIn(f"the reference of dpo has {elements} elements of its own", " ".join(plan.split()))
        peaks = []
        for kept in ("f32", "bf16"):
            words = self.arguments("gpt2-copy", *more, "workers=2", f"model.base_dtype={kept}")
            peaks.append(int(json.loads(self.daemon.ctl("plan", *words, "-o", "json").stdout)["peak_bytes"]))
        self.assertGreater(peaks[0], peaks[1])
        one = self.train("gpt2-copy", *more)
        for words in (["workers=2", "train.batch_size=4", "fsdp.wrap.policy=none"],
                      ["workers=3", "train.global_batch=8", "train.batch_size=2"],
                      ["dpo.reference=precomputed", "workers=2", "train.batch_size=4", "fsdp.strategy=no_shard"]):
            with self.subTest(words):
                self.assert_within(SAME, self.train("gpt2-copy", *more, *words), one, " ".join(words))
        pulled = os.path.join(self.root, "whole")
        result = self.daemon.ctl("pull", self.job_id, "--format", "hf", "-o", pulled)
        self.assertEqual(result.returncode, 0, result.stderr)
        tensors, _ = harness.read_safetensors(os.path.join(pulled, "model.safetensors"))
        self.assertEqual(sorted(tensors), sorted(RECORDS["gpt2-copy"]["record"]["tensors"]))
        self.resume_in_two("gpt2-copy", one["loss"])
        words = ["dpo.reference=precomputed", "train.global_batch=8", "train.batch_size=4"]
        again = self.resume_in_two("gpt2-copy", one["loss"], *words)
        os.remove(os.path.join(self.daemon.root, "state/jobs", again, "checkpoints/reference.bin"))
        self.daemon.ctl("resume", again, "--set", "train.max_steps=14")
        ended = self.daemon.wait_state(again, "FAILED")
        self.assertIn("the job cannot continue without its reference: there is no", ended["reason"]["message"])

    def resume_in_two(self, name, losses, *more):
        """After half of the steps; with a global batch, on two workers."""
        words = self.arguments(name, "train.max_steps=6", "checkpoint.every_steps=3", *more)
        result = self.daemon.ctl("submit", *words, "--wait")
        self.assertEqual(result.returncode, 0, result.stderr)
        again = self.daemon.json("list")[-1]["id"]
        workers = ("--set", "workers=2") if more else ()
        result = self.daemon.ctl("resume", again, "--set", "train.max_steps=12", *workers)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.daemon.wait_state(again, "SUCCEEDED")
        rows = [event["metrics"] for event in self.daemon.events(again) if "metrics" in event]
        self.assert_within(SAME, {"loss": [float(row["loss"]) for row in rows]}, {"loss": losses}, "resumed")
        return again

    def test_label_smoothing_and_evaluation(self):
        """At first the model is its reference: the loss of each pair is log 2, whatever is smoothed."""
        found = self.train("gpt2", "dpo.label_smoothing=0.25", "train.evaluate=true", "train.max_steps=8")
        losses = self.validations()
        self.assertGreater(len(losses), 0)
        self.assertAlmostEqual(found["loss"][0], math.log(2), 6)
        self.assertEqual(found["rewards/margins"][0], 0)
        plain = self.train("gpt2", "train.max_steps=8")
        self.assertNotAlmostEqual(found["loss"][7], plain["loss"][7], 5)
        row = self.daemon.json("show", self.job_id)["metrics"]
        self.assertIn("rewards_margins", row)
        again = self.train("gpt2", "dpo.label_smoothing=0.25", "train.evaluate=true", "train.max_steps=8",
                           "dpo.reference=precomputed", "workers=2", "train.batch_size=4")
        self.assert_within(SAME, again, found, "computed before")
        for own, other in zip(self.validations(), losses, strict=True):
            self.assertAlmostEqual(own, other, 6)

    def test_refusals(self):
        odd = dpo_cases.draw_pairs()
        dpo_cases.write_pairs(os.path.join(self.data, "odd"), [*odd, odd[0][:2]])
        dpo_cases.write_pairs(os.path.join(self.data, "tokens"), odd, kind="tokens")
        for more, message, *left_out in (
            (["data.path=odd"], "documents, an odd number: expected pairs, each of a chosen document and the rejected one"),
            (["data.path=tokens"], "its kind is tokens, but data.objective: dpo learns from pairs; expected a dataset of "
                                   "fsdpd-prepare preference"),
            (["data.objective=causal"], "its kind is pairs, of which only data.objective: dpo or reward learns", "prefers"),
            ([], "model.lora: data.objective: dpo compares the model with itself without its adapter: "
                                  "expected model.lora or model.adapter, or dpo.reference: copy or precomputed", "adapts"),
            (["model.lora.modules_to_save=[norm]"], "model.lora.modules_to_save: with data.objective: dpo the reference is the "
                                                    "model with its adapter switched off"),
            (["data.windows=continuous"], "data.windows: data.objective: dpo takes each document whole: expected document or "
                                          "packed"),
            (["dpo.loss=ipo", "dpo.label_smoothing=0.1"], "dpo.label_smoothing: data.objective: dpo smooths labels with "
                                                          "dpo.loss: sigmoid only"),
            (["dpo.loss=kto"], "dpo.loss: expected sigmoid, ipo or hinge, found 'kto'"),
            (["dpo.reference=before"], "dpo.reference: expected adapter, copy or precomputed, found 'before'"),
            (["dpo.reference=precomputed", "train.only_evaluate=true", "train.evaluate=true", "save_model=false"],
             "dpo.reference: data.objective: dpo compares with the model as its training began"),
            (["dpo.reference=copy", "model.base_dtype=nf4"], "model.base_dtype: data.objective: dpo with dpo.reference: copy keeps "
                                                             "copies of the adapters, in f32 only"),
            (["dpo.reference=copy", "train.only_evaluate=true", "train.evaluate=true", "save_model=false"],
             "dpo.reference: data.objective: dpo compares with the model as its training began"),
            (["dpo.beta=0"], "dpo.beta: expected a number from 1e-06 to 1000000, found 0"),
        ):
            with self.subTest(message):
                result = self.daemon.ctl("plan", *self.arguments("llama", *more, **dict.fromkeys(left_out, False)))
                self.assertGreater(result.returncode, 0)
                self.assertIn(message, " ".join(result.stderr.split()))


if __name__ == "__main__":
    unittest.main(verbosity=2)
