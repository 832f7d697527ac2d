#!/usr/bin/env python3
"""Reward models against the numbers of trl in tests/parity/reward.json (make_reward_numbers.py): the losses and three figures of
30 steps; the same curve however pairs are spread over ranks and batches; and refusals. Needs numpy."""

import json
import os
import shutil
import sys
import tempfile
import unittest

sys.path[:0] = [os.path.dirname(__file__), os.path.join(os.path.dirname(__file__), "../system")]
import harness
import dpo_cases
import family_cases as cases
import family_numbers as numbers
import reward_cases

BOUND, SAME = 1e-4, 1e-6
with open(reward_cases.PATH, encoding="utf-8") as FILE:
    RECORDS = json.load(FILE)
JOB = f"""name: rewards
data: {{format: dataset, path: pairs, windows: document, objective: reward}}
train: {{max_steps: {reward_cases.STEPS}, log_interval: 1, evaluate: false, shuffle: false, seed: {reward_cases.SEED},
        batch_size: {reward_cases.PAIRS}}}
optimizer: {{type: adamw, lr: {reward_cases.LEARNING_RATE}, weight_decay: {cases.WEIGHT_DECAY}}}
"""


class Rewards(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp(prefix="fsdpd-test-")
        cls.addClassCleanup(shutil.rmtree, cls.root, True)
        cls.data = os.path.join(cls.root, "data")
        os.mkdir(cls.data)
        dpo_cases.write_pairs(os.path.join(cls.data, "pairs"), dpo_cases.draw_pairs(), ("train", "validation"))
        # not a multiple of a batch
        dpo_cases.write_pairs(os.path.join(cls.data, "few"), dpo_cases.draw_pairs()[:13], ("train", "validation"))
        for name in reward_cases.MODELS:
            numbers.write_checkpoint(os.path.join(cls.data, name), RECORDS[name]["record"])
        with open(os.path.join(cls.root, "job.yaml"), "w", encoding="utf-8") as file:
            file.write(JOB)
        cls.daemon = harness.Daemon(3, data=cls.data)
        cls.addClassCleanup(cls.daemon.close)

    def arguments(self, name, *more):
        case, lora = reward_cases.CASES[name]
        words = [f"model.hf={case}", *(f"model.lora.{key}={json.dumps(value)}" for key, value in lora.items()), *more]
        return [os.path.join(self.root, "job.yaml"), *(word for one in words for word in ("--set", one))]

    def train(self, name, *more):
        """The loss and the figures of every step."""
        result = self.daemon.ctl("submit", *self.arguments(name, *more), "--wait", timeout=300)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.job = self.daemon.json("list")[-1]["id"]
        rows = [event["metrics"] for event in self.daemon.events(self.job) if "metrics" in event]
        self.assertNotIn("logps_chosen", rows[-1])
        return {"loss": [float(row["loss"]) for row in rows],
                **{key: [float(of(row)) for row in rows] for key, of in reward_cases.FIGURES.items()}}

    def evaluated(self):
        """The loss of the last evaluation."""
        return [event["validation"]["loss"] for event in self.daemon.events(self.job) if "validation" in event][-1]

    def worst(self, found, expected):
        return max(abs(a - b) / max(1, abs(b)) for key in found for a, b in zip(found[key], expected[key], strict=True))

    def test_numbers_of_trl(self):
        for name in reward_cases.CASES:
            with self.subTest(name):
                found = self.train(name)
                if name in reward_cases.SHIFTED:
                    del found["mean_reward"]
                worst = self.worst(found, {key: RECORDS[name][key] for key in found})
                print(f"{name}: within {worst:.1e}")
                self.assertLessEqual(worst, BOUND)

    def test_any_split_has_one_curve(self):
        """And one loss of evaluations, whose last batch is not full."""
        more = ["data.path=few", "train.max_steps=8", "train.evaluate=true"]
        one = self.train("llama", *more)
        loss = self.evaluated()
        for words in (["workers=2", "train.batch_size=4"], ["train.batch_size=2", "train.accumulation_steps=4"],
                      ["workers=3", "train.global_batch=8", "train.batch_size=2"]):
            with self.subTest(words):
                worst = self.worst(self.train("llama", *more, *words), one)
                print(f"{' '.join(words)}: within {worst:.1e}")
                self.assertLessEqual(worst, SAME)
                self.assertAlmostEqual(self.evaluated(), loss, 5)

    def test_refusals(self):
        dpo_cases.write_pairs(os.path.join(self.data, "tokens"), dpo_cases.draw_pairs(), kind="tokens")
        for more, message in (
            (["data.path=tokens"], "its kind is tokens, but data.objective: reward learns from pairs; expected a dataset of "
                                   "fsdpd-prepare preference"),
            (["data.objective=causal"], "its kind is pairs, of which only data.objective: dpo or reward learns"),
            (["data.windows=packed"], "data.windows: data.objective: reward takes each document whole: expected document"),
            (["dpo.beta=0.2"], "dpo.beta"),
        ):
            with self.subTest(message):
                result = self.daemon.ctl("plan", *self.arguments("llama", *more))
                self.assertNotEqual(result.returncode, 0)
                self.assertIn(message, " ".join(result.stderr.split()))


if __name__ == "__main__":
    unittest.main(verbosity=2)
