"""The cases of preference training that are compared with trl: a model of family_cases.py, the job's model.lora, empty to train
the whole model, and dpo, and the pairs, drawn by a formula. Needs numpy only."""

import os

import numpy

import family_cases as cases
from family_numbers import draw_integers

STEPS, PAIRS, SEED, LEARNING_RATE = 30, 8, 7, 0.01
PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "dpo.json")
FIGURES = ("rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins", "logps/chosen", "logps/rejected")
CASES = {
    "gpt2": ("gpt2", dict(rank=3, alpha=6), dict(loss="sigmoid", beta=0.1)),
    "gpt2-hinge": ("gpt2", dict(rank=2, alpha=8), dict(loss="hinge", beta=0.5)),
    "llama": ("llama", dict(rank=4, alpha=8), dict(loss="sigmoid", beta=0.3)),
    "llama-ipo": ("llama", dict(rank=4, alpha=8, targets=["q_proj", "down_proj"]), dict(loss="ipo", beta=0.2)),
    "gpt2-copy": ("gpt2", {}, dict(loss="sigmoid", beta=0.2, reference="copy")),
}


def rate_of(name):
    """A whole model learns fast."""
    return LEARNING_RATE if CASES[name][1] else LEARNING_RATE / 10


def decay_of(name):
    """transformers' Trainer decays neither norms nor biases, which adapters do not have."""
    return cases.WEIGHT_DECAY if CASES[name][1] else 0


def draw_pairs():
    """(prompt, chosen, rejected) of every pair of all steps."""
    count = STEPS * PAIRS
    tokens = draw_integers("pairs", (count, 3, 7), cases.PADDING + 1, cases.VOCABULARY)
    lengths = draw_integers("lengths", (count, 3), 1, 8)
    return [[tokens[i, k, :lengths[i, k]].tolist() for k in range(3)] for i in range(count)]


def write_pairs(directory, pairs, splits=("train",), **keys):
    """As fsdpd-prepare preference writes them."""
    documents = [(prompt, answer) for prompt, *answers in pairs for answer in answers]
    arrays = {"tokens": numpy.array([token for prompt, answer in documents for token in prompt + answer], "<u2"),
              "mask": numpy.array([bit for prompt, answer in documents
                                   for bit in [0] * len(prompt) + [1] * len(answer)], "u1"),
              "documents": numpy.cumsum([0] + [len(prompt + answer) for prompt, answer in documents]).astype("<u8")}
    cases.write_dataset(directory, {split: arrays for split in splits},
                        **{"kind": "pairs", "vocabulary": cases.VOCABULARY, **keys})
