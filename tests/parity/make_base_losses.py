#!/usr/bin/env python3
"""Writes tests/parity/base.json: the losses of AdamW steps, in double, of a small Llama with peft's adapters, whose
matrices of at least 4,096 numbers bitsandbytes quantised and dequantised on the CPU, as flat
tensors: of a matrix whose rows are not whole blocks, 0.50.2 quantises the flat tensor but dequantises rows.

    python3 tests/parity/make_base_losses.py

Needs peft, transformers, torch and bitsandbytes; the file names their versions."""

import json
import os

import bitsandbytes
import peft
import torch
import transformers

import family_models as models
import lora_cases
import make_base_numbers as numbers
import make_lora_numbers

STEPS = 20
PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "base.json")
LLAMA = dict(vocab_size=97, hidden_size=64, intermediate_size=288, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=16, max_position_embeddings=64)


def bf16(values):
    return None, None, lambda dtype: values.bfloat16().to(dtype)


KINDS = {"f32": None, "bf16": bf16, "int8": numbers.int8, "nf4": numbers.nf4}


def make(kind):
    model, record = models.make_model("LlamaForCausalLM", dict(LLAMA))
    for parameter in model.parameters():
        if KINDS[kind] and (kind == "bf16" or parameter.dim() > 1 and parameter.numel() >= 4096):
            parameter.data = KINDS[kind](parameter.data.flatten())[2](torch.float32).reshape(parameter.shape)
    torch.manual_seed(lora_cases.SEED)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=4))
    return make_lora_numbers.train("llama", adapted, STEPS), record


def main():
    found = {kind: make(kind) for kind in KINDS}
    versions = {module.__name__: module.__version__ for module in (bitsandbytes, peft, torch, transformers)}
    lines = {"versions": versions, "record": found["f32"][1], **{kind: losses for kind, (losses, _) in found.items()}}
    with open(PATH, "w", encoding="utf-8") as file:
        file.write("{\n" + ",\n".join(f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}"
                                      for key, value in lines.items()) + "\n}\n")


if __name__ == "__main__":
    main()
