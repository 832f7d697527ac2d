#!/usr/bin/env python3
"""Reward models against the numbers of trl in tests/parity/reward.json (make_reward_numbers.py): the losses and three figures of
30 steps; the same curve however pairs are spread over ranks and batches; and refusals. Needs numpy."""

import json
import os
import re
import sys
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import dpo_cases
import family_cases as cases
import reward_cases
from pair_jobs import BOUND, SAME, PairJobs

with open(reward_cases.PATH, encoding="utf-8") as FILE:
    RECORDS = json.load(FILE)
JOB = f"""name: rewards
data: {{format: dataset, path: pairs, windows: document, objective: reward}}
train: {{max_steps: {reward_cases.STEPS}, log_interval: 1, evaluate: false, shuffle: false, seed: {reward_cases.SEED},
        batch_size: {reward_cases.PAIRS}}}
optimizer: {{type: adamw, lr: {reward_cases.LEARNING_RATE}, weight_decay: {cases.WEIGHT_DECAY}}}
"""


class Rewards(PairJobs):
    job, records, models = JOB, RECORDS, reward_cases.MODELS

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # not a multiple of a batch
        dpo_cases.write_pairs(os.path.join(cls.data, "few"), dpo_cases.draw_pairs()[:13], ("train", "validation"))

    def arguments(self, name, *more):
        case, lora = reward_cases.CASES[name]
        return self.set([f"model.hf={case}", *(f"model.lora.{key}={json.dumps(value)}" for key, value in lora.items()), *more])

    def train(self, name, *more):
        """The loss and the figures of every step."""
        rows = self.rows(self.arguments(name, *more))
        self.assertNotIn("logps_chosen", rows[-1])
        return {"loss": [float(row["loss"]) for row in rows],
                **{key: [float(of(row)) for row in rows] for key, of in reward_cases.FIGURES.items()}}

    def evaluated(self):
        """The loss of the last evaluation."""
        return [event["validation"]["loss"] for event in self.daemon.events(self.job_id) if "validation" in event][-1]

    def test_numbers_of_trl(self):
        for name in reward_cases.CASES:
            with self.subTest(name):
                found = self.train(name)
                if name in reward_cases.SHIFTED:
                    del found["mean_reward"]
                self.assert_within(BOUND, found, {key: RECORDS[name][key] for key in found}, name)

    def test_any_split_has_one_curve(self):
        """And one loss of evaluations, whose last batch is not full."""
        more = ["data.path=few", "train.max_steps=8", "train.evaluate=true"]
        one = self.train("llama", *more)
        loss = self.evaluated()
        for words in (["workers=2", "train.batch_size=4"], ["train.batch_size=2", "train.accumulation_steps=4"],
                      ["workers=3", "train.global_batch=8", "train.batch_size=2"]):
            with self.subTest(words):
                self.assert_within(SAME, self.train("llama", *more, *words), one, " ".join(words))
                self.assertAlmostEqual(self.evaluated(), loss, 5)

    def test_packed_pairs(self):
        """Windows with several pairs have the losses of a window for each text, also of some that end with padding."""
        pairs = [[prompt[:2], chosen[:i % 4], rejected[:3] + i % 3 * [cases.PADDING]]
                 for i, (prompt, chosen, rejected) in enumerate(dpo_cases.draw_pairs()[:12])]
        dpo_cases.write_pairs(os.path.join(self.data, "short"), pairs, ("train", "validation"))
        more = ["data.path=short", "train.max_steps=6", "train.evaluate=true"]
        one, loss = self.train("llama", *more, f"train.batch_size={len(pairs)}"), self.evaluated()
        plan = " ".join(self.daemon.ctl("plan", *self.arguments("llama", *more, "data.windows=packed")).stdout.split())
        self.assertIn(f"an epoch of the dataset is {len(pairs)} pairs, of which {len(pairs)} count; windows are", plan)
        windows = int(re.search(r"documents are packed into (\d+) windows", plan)[1])
        self.assertLessEqual(windows, 8)
        for words in ([f"train.batch_size={windows}"], ["workers=3", f"train.global_batch={windows}", "train.batch_size=1"]):
            with self.subTest(words):
                self.assert_within(SAME, self.train("llama", *more, "data.windows=packed", *words), one, " ".join(words))
                self.assertAlmostEqual(self.evaluated(), loss, 5)

    def test_refusals(self):
        dpo_cases.write_pairs(os.path.join(self.data, "tokens"), dpo_cases.draw_pairs(), kind="tokens")
        for more, message in (
            (["data.path=tokens"], "its kind is tokens, but data.objective: reward learns from pairs; expected a dataset of "
                                   "fsdpd-prepare preference"),
            (["data.objective=causal"], "its kind is pairs, of which only data.objective: dpo or reward learns"),
            (["data.windows=continuous"], "data.windows: data.objective: reward takes each document whole: expected document or packed"),
            (["dpo.beta=0.2"], "dpo.beta"),
        ):
            with self.subTest(message):
                result = self.daemon.ctl("plan", *self.arguments("llama", *more))
                self.assertGreater(result.returncode, 0)
                self.assertIn(message, " ".join(result.stderr.split()))


if __name__ == "__main__":
    unittest.main(verbosity=2)
