#!/usr/bin/env python3
"""The measurement of bench/lora.sh; see there."""

import json
import os
import subprocess
import sys
import tempfile

import numpy

import measure
import memory
import table_models

MODEL = "llama-134m"
LLAMA = table_models.ALL[MODEL].config
CONTEXT, RANK = table_models.ALL[MODEL].context, 16
WORLDS = (1, 2)
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj"]
BF16 = "adapters, base and arithmetic in bf16"
WAYS = [("all trained", []),
        *((f"adapters, base in {kind}", [f"model.lora={{rank: {RANK}, targets: [{', '.join(TARGETS)}]}}",
                                         f"model.base_dtype={kind}"]) for kind in ("f32", "bf16", "int8", "nf4"))]
WAYS.append((BF16, [*WAYS[2][1], "precision.param_dtype=bf16"]))
THEIRS = [("all trained", ["--variant", "adamw"]),
          ("adapters, base in f32", ["--variant", "lora", "--targets", ",".join(TARGETS)])]
THEIRS.append((BF16, [*THEIRS[1][1], "--base", "bf16"]))


def shapes():
    hidden, inner, words = LLAMA["hidden_size"], LLAMA["intermediate_size"], LLAMA["vocab_size"]
    yield from (("model.embed_tokens.weight", (words, hidden)), ("lm_head.weight", (words, hidden)),
                ("model.norm.weight", (hidden,)))
    for layer in range(LLAMA["num_hidden_layers"]):
        for name, shape in (*((f"self_attn.{name}", (hidden, hidden)) for name in TARGETS), ("mlp.gate_proj", (inner, hidden)),
                            ("mlp.up_proj", (inner, hidden)), ("mlp.down_proj", (hidden, inner)),
                            ("input_layernorm", (hidden,)), ("post_attention_layernorm", (hidden,))):
            yield f"model.layers.{layer}.{name}.weight", shape


def write_model(directory):
    """A directory as transformers has it, with weights in bf16: drawn ones would first be drawn in f32."""
    os.mkdir(directory)
    with open(os.path.join(directory, "config.json"), "w", encoding="utf-8") as file:
        json.dump(LLAMA, file)
    header, at, draw = {}, 0, numpy.random.default_rng(1)
    for name, shape in shapes():
        size = 2 * int(numpy.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with open(os.path.join(directory, "model.safetensors"), "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, shape in shapes():
            values = draw.normal(0, 0.02, shape).astype("<f4") if len(shape) > 1 else numpy.ones(shape, "<f4")
            file.write((values.view("<u4") >> 16).astype("<u2").tobytes())


def fsdpd(models):
    columns = ["", "ranks", "frozen", "trained", "kept parameters", "bytes per frozen parameter", "optimizer", "arenas",
               *memory.PROCESS]
    print("| " + " | ".join(columns) + " |\n" + "| --- " * len(columns) + "|", flush=True)
    for name, settings in WAYS:
        for world in WORLDS:
            job = models.run(models.job("llama", CONTEXT, world), *settings)
            plan = job["plan"]
            kinds = {kind["name"]: int(kind["bytes"]) for kind in plan["memory"]}
            trained = RANK * 2 * LLAMA["hidden_size"] * len(TARGETS) * LLAMA["num_hidden_layers"] if settings \
                else int(plan["parameters"])
            frozen = int(plan["parameters"]) - trained
            kept = kinds["parameters (shard)"]
            share = f"{(world * kept - 4 * trained) / frozen:.3f}" if frozen else "-"
            cells = [name, world, f"{frozen:,}", f"{trained:,}", memory.megabytes(kept), share,
                     memory.megabytes(kinds.get("optimizer state", 0)), memory.megabytes(int(plan["peak_bytes"])),
                     *memory.resident(job)]
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def peft(python):
    print("\n| peft and PyTorch, FSDP2 with two processes | " +
          " | ".join(f"{world} process{'es' * (world > 1)}" for world in WORLDS) +
          " |\n" + "| --- " * (1 + len(WORLDS)) + "|", flush=True)
    for name, arguments in THEIRS:
        cells = [name]
        for world in WORLDS:
            out = subprocess.run([python, os.path.join(measure.here, "table_torch.py"), "--model", MODEL, "--dtype", "f32",
                                  "--way", "eager" if world == 1 else "fsdp2", "--processes", str(world), "--batch", "1",
                                  "--steps", "2", *arguments], check=True, stdout=subprocess.PIPE, text=True,
                                 env=dict(os.environ, HF_HUB_OFFLINE="1")).stdout
            cells.append(memory.megabytes(json.loads(out)["trained"]))
        print("| " + " | ".join(cells) + " |", flush=True)


def main():
    with tempfile.TemporaryDirectory() as root:
        models = memory.Models(root)
        write_model(os.path.join(root, "llama"))
        print(f"Llama, rank {RANK} on {', '.join(TARGETS)}, one window of {CONTEXT} tokens per rank; megabytes per rank\n")
        fsdpd(models)
    if os.environ.get("PEFT_PYTHON"):
        peft(os.environ["PEFT_PYTHON"])
    print(f"\n{measure.machine()}")
    if not memory.within:
        sys.exit("a worker's process needed more than 1.05 of what its plan says")


if __name__ == "__main__":
    main()
