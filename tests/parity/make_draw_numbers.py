#!/usr/bin/env python3
"""Writes tests/unit/draw_numbers.h: the probabilities with which transformers' logits processors, in the order in
which generate applies them, draw each token after some others. test_draw.c compares its own draws with them.

    python3 tests/parity/make_draw_numbers.py [-o FILE]

Needs a transformers with its torch; the file names their versions."""

import argparse
import os

import torch
import transformers
from transformers.generation import logits_process as process

LOGITS = [0.5, 2, -1, 1.75, 1, -0.5, 0.25, 3, -2, 1.5]
SEEN = [7, 1, 2, 7]
CASES = [  # temperature, top_k, top_p, min_p, repetition_penalty
    (1, 0, 1, 0, 1), (0.7, 0, 1, 0, 1), (1.8, 0, 1, 0, 1), (1, 4, 1, 0, 1), (1, 0, 0.6, 0, 1), (1, 0, 1, 0.08, 1),
    (1, 0, 1, 0, 1.5), (1, 0, 1, 0, 0.6), (0.6, 6, 0.9, 0.05, 1.3), (1.4, 8, 0.95, 0.1, 2)]


def probabilities(temperature, top_k, top_p, min_p, penalty):
    """As generate makes its list: the penalty first, and the others where they change anything."""
    chain = process.LogitsProcessorList()
    if penalty != 1:
        chain.append(process.RepetitionPenaltyLogitsProcessor(float(penalty)))
    if temperature != 1:
        chain.append(process.TemperatureLogitsWarper(float(temperature)))
    if top_k > 0:
        chain.append(process.TopKLogitsWarper(top_k))
    if top_p < 1:
        chain.append(process.TopPLogitsWarper(float(top_p)))
    if min_p > 0:
        chain.append(process.MinPLogitsWarper(float(min_p)))
    return chain(torch.tensor([SEEN]), torch.tensor([LOGITS], dtype=torch.double)).softmax(-1)[0].tolist()


def row(values):
    return "{" + ", ".join(f"{value:.9g}" for value in values) + "}"


def main():
    parser = argparse.ArgumentParser()
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("-o", default=os.path.join(here, "../unit/draw_numbers.h"))
    arguments = parser.parse_args()
    lines = [f"/* tests/parity/make_draw_numbers.py has written this with transformers {transformers.__version__} and torch",
             f" * {torch.__version__.partition('+')[0]}: the probability of each token by some settings. Do not edit. */",
             "/* clang-format off */",
             f"enum {{ NUMBERS = {len(LOGITS)}, NUMBERS_SEEN = {len(SEEN)} }};",
             f"static const double numbers_logits[NUMBERS] = {row(LOGITS)};",
             f"static const int32_t numbers_seen[NUMBERS_SEEN] = {row(SEEN)};",
             "static const struct {",
             "    struct train_draw settings;",
             "    double probabilities[NUMBERS];",
             "} numbers[] = {"]
    for case in CASES:
        names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
        settings = ", ".join(f".{name} = {value:g}" for name, value in zip(names, case))
        lines.append(f"    {{{{{settings}}},")
        lines.append(f"     {row(probabilities(*case))}}},")
    lines += ["};", "/* clang-format on */"]
    with open(arguments.o, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
