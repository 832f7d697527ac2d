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

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 768, "num_hidden_layers": 12,
         "num_attention_heads": 12, "num_key_value_heads": 12, "intermediate_size": 2048, "vocab_size": 32000,
         "max_position_embeddings": 1024, "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False}
CONTEXT, RANK = 128, 16
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj"]
WAYS = [("all trained", []),
        *((f"adapters, base in {kind}", [f"model.lora={{rank: {RANK}, targets: [{', '.join(TARGETS)}]}}",
                                         f"model.base_dtype={kind}"]) for kind in ("f32", "bf16", "int8", "nf4"))]

# What peft does of the same on one process: the largest resident set, in bytes, after two steps.
PEFT = """
import json, resource, sys, torch, transformers, peft
config, kind, context, rank, targets = json.loads(sys.argv[1])
torch.manual_seed(1)
torch.set_num_threads(1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
torch.set_default_dtype(torch.bfloat16 if kind == "bfloat16" else torch.float32)  # never as f32 first
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config))
torch.set_default_dtype(torch.float32)
if kind != "all":
    model = peft.get_peft_model(model, peft.LoraConfig(r=rank, target_modules=targets), autocast_adapter_dtype=True)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
tokens = torch.randint(256, (1, context))
for _ in range(2):
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


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
    columns = ["", "frozen", "trained", "kept parameters", "bytes per frozen parameter", "optimizer", "arenas",
               *memory.PROCESS]
    print("| " + " | ".join(columns) + " |\n" + "| --- " * len(columns) + "|", flush=True)
    for name, settings in WAYS:
        job = models.run(models.job("llama", CONTEXT, 1), *settings)
        plan = job["plan"]
        kinds = {kind["name"]: int(kind["bytes"]) for kind in plan["memory"]}
        trained = RANK * 2 * LLAMA["hidden_size"] * len(TARGETS) * LLAMA["num_hidden_layers"] if settings \
            else int(plan["parameters"])
        frozen = int(plan["parameters"]) - trained
        kept = kinds["parameters (shard)"]
        share = f"{(kept - 4 * trained) / frozen:.3f}" if frozen else "-"
        cells = [name, f"{frozen:,}", f"{trained:,}", memory.megabytes(kept), share,
                 memory.megabytes(kinds.get("optimizer state", 0)), memory.megabytes(int(plan["peak_bytes"])),
                 *memory.resident(job)]
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def peft(python):
    print("\n| peft and PyTorch, one process | resident, less imports |\n| --- | --- |", flush=True)
    for name, kind in (("all trained", "all"), ("adapters, base in f32", "float32"), ("adapters, base in bf16", "bfloat16")):
        argument = json.dumps([LLAMA, kind, CONTEXT, RANK, TARGETS])
        out = subprocess.run([python, "-c", PEFT, argument], check=True, stdout=subprocess.PIPE, text=True,
                             env=dict(os.environ, HF_HUB_OFFLINE="1")).stdout
        print(f"| {name} | {memory.megabytes(int(out))} |", flush=True)


def main():
    with tempfile.TemporaryDirectory() as root:
        models = memory.Models(root)
        write_model(os.path.join(root, "llama"))
        print(f"Llama, rank {RANK} on {', '.join(TARGETS)}, one window of {CONTEXT} tokens; megabytes\n")
        fsdpd(models)
    if os.environ.get("PEFT_PYTHON"):
        peft(os.environ["PEFT_PYTHON"])
    print(f"\n{measure.machine()}")
    if not memory.within:
        sys.exit("a worker's process needed more than 1.05 of what its plan says")


if __name__ == "__main__":
    main()
