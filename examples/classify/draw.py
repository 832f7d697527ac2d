#!/usr/bin/env python3
"""Draws reviews of food with a verdict, trains a tokenizer on them, and writes the configuration of a small BERT:
draw.py DIRECTORY. Needs tokenizers."""

import json
import os
import random
import sys

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

FOOD = "soup bread rice pie salad curry fish cake tea stew pasta omelette".split()
GOOD = "wonderful tasty fresh delicious perfect lovely".split()
BAD = "bland cold burnt stale awful salty".split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def opinion(choice, good):
    """In words that may negate it."""
    negated = choice.random() < 0.3
    word = choice.choice(GOOD if good != negated else BAD)
    return f"the {choice.choice(FOOD)} was {'not ' if negated else ''}{word}"


def review(choice):
    label = choice.choice(("bad", "good", "mixed"))
    goods = {"bad": [False, False], "good": [True, True], "mixed": [True, False]}[label]
    choice.shuffle(goods)
    return {"text": " and ".join(opinion(choice, good) for good in goods), "label": label}


def make_tokenizer(texts):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=200, special_tokens=SPECIAL,
                                                                   show_progress=False))
    ends = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return tokenizer


def config_of(vocabulary, names):
    return {"model_type": "bert", "architectures": ["BertForSequenceClassification"], "vocab_size": vocabulary,
            "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
            "max_position_embeddings": 32, "pad_token_id": 0, "id2label": dict(enumerate(names)),
            "label2id": {name: number for number, name in enumerate(names)}}


def write(path, value):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)


def main():
    directory, choice = sys.argv[1], random.Random(1)
    reviews = [review(choice) for _ in range(3000)]
    os.makedirs(os.path.join(directory, "reviewer"), exist_ok=True)
    with open(os.path.join(directory, "reviews.jsonl"), "w", encoding="utf-8") as file:
        for record in reviews:
            file.write(json.dumps(record) + "\n")
    tokenizer = make_tokenizer(record["text"] for record in reviews)
    tokenizer.save(os.path.join(directory, "reviewer/tokenizer.json"))
    write(os.path.join(directory, "reviewer/config.json"),
          config_of(tokenizer.get_vocab_size(), sorted({record["label"] for record in reviews})))


if __name__ == "__main__":
    main()
