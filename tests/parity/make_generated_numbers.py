#!/usr/bin/env python3
"""Writes tests/parity/generated.json, or to another file: what transformers' generate makes of the
cases of generated_cases.py, greedily and in double: the tokens, and a digest of the logits before
each; `close` is the first place whose two best logits differ by less than CLOSE.

    python3 tests/parity/make_generated_numbers.py [-o FILE]

Needs a transformers with its torch; the file names their versions."""

import argparse
import os

import torch

import family_models as models
import family_numbers as numbers
import generated_cases as cases
import transformers


def continue_prompt(model, prompt):
    """The tokens, and the logits before each by a forward pass without a cache."""
    with torch.no_grad():
        whole = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                               max_new_tokens=cases.TOKENS, do_sample=False, pad_token_id=0, eos_token_id=None)
        logits = model(input_ids=whole, use_cache=False).logits[0, len(prompt) - 1:-1]
    tokens = whole[0, len(prompt):].tolist()
    best = logits.topk(2).values
    close = next((i for i in range(cases.TOKENS) if best[i, 0] - best[i, 1] < cases.CLOSE), cases.TOKENS)
    if logits.argmax(1).tolist()[:close] != tokens[:close]:
        raise AssertionError("generate and a forward pass disagree")
    return {"tokens": tokens, "close": close, "logits": numbers.digest("logits", logits.numpy())}


def make_one(name):
    model, record = models.make_model(*cases.settings_of(name))
    model = model.double()
    record["continued"] = [continue_prompt(model, prompt) for prompt in cases.PROMPTS]
    return record


def main():
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "generated.json"))
    arguments = parser.parse_args()
    records = {"versions": {"torch": torch.__version__.partition("+")[0], "transformers": transformers.__version__}}
    for name in cases.NAMES:
        records[name] = make_one(name)
        print(name, [part["close"] for part in records[name]["continued"]])
    with open(arguments.o, "w", encoding="utf-8") as file:
        file.write(numbers.as_text(records, 3) + "\n")


if __name__ == "__main__":
    main()
