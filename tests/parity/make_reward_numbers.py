#!/usr/bin/env python3
"""Writes tests/parity/reward.json: the losses and three figures of trl's RewardTrainer over the cases of reward_cases.py.
`--compare` writes nothing, but computes the numbers again and compares them with the file.

    python3 tests/parity/make_reward_numbers.py [--compare]

Needs trl, peft, transformers, datasets and torch; the file names their versions."""

import json
import sys
import tempfile
import warnings

import dpo_cases
import family_cases as cases
import family_models as models
import make_lora_numbers
import reward_cases
from make_dpo_numbers import tokenizer

import datasets
import peft
import torch
import transformers
import trl

BOUND = 1e-5  # of another version of torch


torch.set_num_threads(1)


class Trainer(trl.RewardTrainer):
    """Over tokens as they are, in their order; with the losses as they are, not as the log rounds them."""

    def compute_loss(self, *arguments, **words):
        loss = super().compute_loss(*arguments, **words)
        self.losses.append(loss.item())
        return loss

    def _prepare_dataset(self, dataset, *unused):
        return dataset

    def _get_train_sampler(self, *unused):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def make(name):
    case, lora = reward_cases.CASES[name]
    model, record = models.make_model(*reward_cases.MODELS[case])
    if lora:
        torch.manual_seed(reward_cases.SEED)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = peft.get_peft_model(model, make_lora_numbers.configuration(lora, {"task_type": "SEQ_CLS"}))
    rows = [{"chosen_ids": prompt + chosen, "rejected_ids": prompt + rejected}
            for prompt, chosen, rejected in dpo_cases.draw_pairs()]
    with tempfile.TemporaryDirectory() as root:
        arguments = trl.RewardConfig(
            output_dir=root, per_device_train_batch_size=reward_cases.PAIRS, max_steps=reward_cases.STEPS, use_cpu=True,
            learning_rate=reward_cases.LEARNING_RATE, weight_decay=cases.WEIGHT_DECAY, lr_scheduler_type="constant",
            max_grad_norm=0.0, logging_steps=1, logging_nan_inf_filter=False, report_to=[], save_strategy="no",
            max_length=cases.CONTEXT, bf16=False, fp16=False, gradient_checkpointing=False, optim="adamw_torch",
            remove_unused_columns=False)
        trainer = Trainer(model=model, args=arguments, train_dataset=datasets.Dataset.from_list(rows),
                          processing_class=tokenizer())
        trainer.losses = []
        # fsdpd decays every parameter, the trainer none of norms and biases
        trainer.get_decay_parameter_names = lambda model: [name for name, _ in model.named_parameters()]
        trainer.train()
    steps = [row for row in trainer.state.log_history if "margin" in row]
    found = {"loss": trainer.losses, **{key: [row[key] for row in steps] for key in reward_cases.FIGURES}}
    assert all(len(values) == reward_cases.STEPS for values in found.values())
    return {"record": record, **{key: [float(f"{value:.8g}") for value in values] for key, values in found.items()}}


def main():
    versions = {"torch": torch.__version__.partition("+")[0], "transformers": transformers.__version__,
                "peft": peft.__version__, "trl": trl.__version__}
    found = {name: make(name) for name in reward_cases.CASES}
    if "--compare" not in sys.argv:
        make_lora_numbers.write(reward_cases.PATH, {"versions": versions, **found})
        return 0
    with open(reward_cases.PATH, encoding="utf-8") as file:
        expected = json.load(file)
    worst = max(abs(a - b) for name in found for key in ("loss", *reward_cases.FIGURES)
                for a, b in zip(found[name][key], expected[name][key]))
    print(f"within {worst:.1e}")
    return worst > BOUND


if __name__ == "__main__":
    sys.exit(main())
