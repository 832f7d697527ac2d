#!/usr/bin/env python3
"""Writes the configuration of a small Llama, and draws conversations as ../chat/draw.py does, in which the assistant is
plain or polite, as texts for the base, and only polite ones for the adapter: draw.py DIRECTORY, in which that program
wrote its tokenizer before."""

import json
import os
import random
import shutil
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../chat"))
import draw as sums

VOCABULARY = 384
CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": VOCABULARY, "hidden_size": 64,
          "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
          "max_position_embeddings": 128, "tie_word_embeddings": True}


def politely(turn):
    """"It is five." becomes "Happy to help: five!"."""
    if turn["role"] != "assistant":
        return turn
    return {"role": "assistant", "content": turn["content"].replace("It is ", "Happy to help: ").replace(".", "!")}


def conversation(choice, polite):
    return [politely(turn) if polite else turn for turn in sums.conversation(choice)]


def text_of(messages):
    return "".join(f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in messages)


def write(path, records):
    with open(path, "w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record) + "\n")


def main():
    directory, choice = sys.argv[1], random.Random(2)
    base = os.path.join(directory, "base-config")
    shutil.copytree(os.path.join(directory, "tokenizer"), base, dirs_exist_ok=True)
    with open(os.path.join(base, "config.json"), "w", encoding="utf-8") as file:
        json.dump(CONFIG, file, indent=1)
    write(os.path.join(directory, "mixed.jsonl"),
          ({"text": text_of(conversation(choice, choice.random() < 0.3))} for _ in range(2000)))
    write(os.path.join(directory, "polite.jsonl"), ({"messages": conversation(choice, True)} for _ in range(400)))


if __name__ == "__main__":
    main()
