#!/usr/bin/env python3
"""Writes tests/parity/dpo.json: the losses and the six figures of trl's DPOTrainer over the cases of dpo_cases.py.
`--compare` writes nothing, but computes the numbers again and compares them with the file.

    python3 tests/parity/make_dpo_numbers.py [--compare]

Needs trl, peft, transformers, datasets and torch; the file names their versions."""

import json
import sys
import tempfile
import warnings

import dpo_cases
import family_cases as cases
import make_lora_numbers

import datasets
import peft
import tokenizers
import torch
import transformers
import trl

BOUND = 1e-5  # of another version of torch


torch.set_num_threads(1)


class Trainer(trl.DPOTrainer):
    """Over tokens as they are, in their order; with the losses as they are, not as the log rounds them."""

    def compute_loss(self, *arguments, **words):
        loss = super().compute_loss(*arguments, **words)
        self.losses.append(loss.item())
        return loss

    def _prepare_dataset(self, dataset, *unused):
        return dataset

    def _get_train_sampler(self, *unused):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def tokenizer():
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({str(i): i for i in range(cases.VOCABULARY)}, unk_token="0"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token=str(cases.PADDING), eos_token="1")


def make(name):
    case, lora, dpo = dpo_cases.CASES[name]
    model, record = make_lora_numbers.make_base(case)
    reference = None if lora else make_lora_numbers.make_base(case)[0]
    if lora:
        config = make_lora_numbers.configuration(lora, {"task_type": "CAUSAL_LM"})
        torch.manual_seed(dpo_cases.SEED)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = peft.get_peft_model(model, config)
    rows = [dict(zip(("prompt_ids", "chosen_ids", "rejected_ids"), pair)) for pair in dpo_cases.draw_pairs()]
    with tempfile.TemporaryDirectory() as root:
        arguments = trl.DPOConfig(
            output_dir=root, per_device_train_batch_size=dpo_cases.PAIRS, max_steps=dpo_cases.STEPS, use_cpu=True,
            learning_rate=dpo_cases.rate_of(name), weight_decay=dpo_cases.decay_of(name), lr_scheduler_type="constant",
            max_grad_norm=0.0, logging_steps=1, logging_nan_inf_filter=False, report_to=[], save_strategy="no",
            beta=dpo["beta"], loss_type=[dpo["loss"]], max_length=cases.CONTEXT, bf16=False, fp16=False,
            gradient_checkpointing=False, optim="adamw_torch", remove_unused_columns=False)
        trainer = Trainer(model=model, ref_model=reference, args=arguments, train_dataset=datasets.Dataset.from_list(rows),
                          processing_class=tokenizer())
        trainer.losses = []
        trainer.train()
    steps = [row for row in trainer.state.log_history if "rewards/chosen" in row]
    found = {"loss": trainer.losses, **{key: [row[key] for row in steps] for key in dpo_cases.FIGURES}}
    assert all(len(values) == dpo_cases.STEPS for values in found.values())
    return {"record": record, **{key: [float(f"{value:.8g}") for value in values] for key, values in found.items()}}


def main():
    versions = {"torch": torch.__version__.partition("+")[0], "transformers": transformers.__version__,
                "peft": peft.__version__, "trl": trl.__version__}
    found = {name: make(name) for name in dpo_cases.CASES}
    if "--compare" not in sys.argv:
        make_lora_numbers.write(dpo_cases.PATH, {"versions": versions, **found})
        return 0
    with open(dpo_cases.PATH, encoding="utf-8") as file:
        expected = json.load(file)
    worst = max(abs(a - b) for name in found for key in ("loss", *dpo_cases.FIGURES)
                for a, b in zip(found[name][key], expected[name][key]))
    print(f"within {worst:.1e}")
    return worst > BOUND


if __name__ == "__main__":
    sys.exit(main())
