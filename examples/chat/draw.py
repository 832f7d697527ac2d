#!/usr/bin/env python3
"""Draws conversations about sums, and trains a tokenizer on them: draw.py DIRECTORY. Needs tokenizers."""

import json
import os
import random
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

NUMBERS = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
           "seventeen eighteen").split()
ASK = ("What is {} plus {}?", "Please add {} and {}.", "{} and {}, how much is that?")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def conversation(choice):
    messages = [{"role": "system", "content": "You add numbers."}] if choice.random() < 0.5 else []
    for _ in range(choice.randint(1, 3)):
        a, b = choice.randrange(10), choice.randrange(10)
        messages.append({"role": "user", "content": choice.choice(ASK).format(NUMBERS[a], NUMBERS[b])})
        messages.append({"role": "assistant", "content": f"It is {NUMBERS[a + b]}."})
    return messages


def main():
    directory, choice = sys.argv[1], random.Random(1)
    conversations = [conversation(choice) for _ in range(4000)]
    os.makedirs(os.path.join(directory, "tokenizer"), exist_ok=True)
    with open(os.path.join(directory, "sums.jsonl"), "w", encoding="utf-8") as file:
        for messages in conversations:
            file.write(json.dumps({"messages": messages}) + "\n")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=384, special_tokens=SPECIAL, show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator((turn["content"] for turns in conversations for turn in turns), trainer)
    tokenizer.save(os.path.join(directory, "tokenizer/tokenizer.json"))
    with open(os.path.join(directory, "tokenizer/tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump({"eos_token": "<|im_end|>"}, file)


if __name__ == "__main__":
    main()
