#!/usr/bin/env python3
"""Draws pairs of answers about sums, of which the polite one is chosen: draw.py DIRECTORY."""

import json
import os
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../chat"))
import draw as sums


def pair(choice):
    a, b = choice.randrange(10), choice.randrange(10)
    ask = choice.choice(sums.ASK).format(sums.NUMBERS[a], sums.NUMBERS[b])
    return {"prompt": [{"role": "user", "content": ask}],
            "chosen": [{"role": "assistant", "content": f"Happy to help: {sums.NUMBERS[a + b]}!"}],
            "rejected": [{"role": "assistant", "content": f"It is {sums.NUMBERS[a + b]}."}]}


def main():
    directory, choice = sys.argv[1], random.Random(3)
    with open(os.path.join(directory, "pairs.jsonl"), "w", encoding="utf-8") as file:
        for _ in range(400):
            file.write(json.dumps(pair(choice)) + "\n")


if __name__ == "__main__":
    main()
