#!/usr/bin/env python3
"""GPT-2 in PyTorch beside the same job of fsdpd, for gpu-check.sh: needs PyTorch and nothing else.

prepare DIR         makes a Hugging Face directory with initial weights, tokens, and a job that reads them in
                    order and finds them in its data root as gpt2/
train DIR           trains the same in PyTorch; prints a line "step,loss,step_seconds" per step
compare A B         the losses of two tables, `fsdpctl metrics --csv` or train's: fails beyond --bound
rates A B           their median steps as tokens per second and as a part of the device's peak
memory A            what the arenas held, and what the device's memory in use grew by, against the plan
"""

import argparse
import array
import csv
import json
import os
import random
import statistics
import struct
import sys
import time

SIZES = {"124m": {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12},
         "tiny": {"vocab_size": 97, "n_positions": 32, "n_embd": 24, "n_layer": 2, "n_head": 3}}
RATE, BETAS, EPSILON, DECAY, BATCH = 1e-4, (0.9, 0.95), 1e-6, 0.1, 8
PEAK_BF16 = (("H100", 989e12), ("H200", 989e12), ("A100", 312e12), ("L40S", 362e12))

JOB = f"""name: gpt2
model: {{hf: gpt2/model}}
data: {{format: tokens, path: gpt2/tokens.bin, encoding: uint16, validation_fraction: 0}}
train: {{max_steps: 50, batch_size: {BATCH}, log_interval: 1, evaluate: false, shuffle: false}}
optimizer: {{type: adamw, lr: {RATE}, beta1: {BETAS[0]}, beta2: {BETAS[1]}, eps: {EPSILON}, weight_decay: {DECAY}}}
workers: 1
save_model: false
"""


def shapes(size):
    """Names and shapes of GPT2LMHeadModel's weights; the head's is the embedding's."""
    width, inner = size["n_embd"], 4 * size["n_embd"]
    yield "transformer.wte.weight", (size["vocab_size"], width)
    yield "transformer.wpe.weight", (size["n_positions"], width)
    for layer in range(size["n_layer"]):
        block = f"transformer.h.{layer}."
        for norm in ("ln_1", "ln_2"):
            yield f"{block}{norm}.weight", (width,)
            yield f"{block}{norm}.bias", (width,)
        for name, ins, outs in (("attn.c_attn", width, 3 * width), ("attn.c_proj", width, width),
                                ("mlp.c_fc", width, inner), ("mlp.c_proj", inner, width)):
            yield f"{block}{name}.weight", (ins, outs)
            yield f"{block}{name}.bias", (outs,)
    yield "transformer.ln_f.weight", (width,)
    yield "transformer.ln_f.bias", (width,)


def initial_weights(size):
    import torch
    draw = torch.Generator().manual_seed(1)
    weights = {}
    for name, shape in shapes(size):
        if len(shape) == 2:
            weights[name] = torch.randn(shape, generator=draw) * 0.02
        else:
            weights[name] = torch.full(shape, 1.0 if name.endswith("weight") else 0.0)
    return weights


def write_safetensors(path, weights):
    header, offset = {}, 0
    for name, value in weights.items():
        header[name] = {"dtype": "F32", "shape": list(value.shape),
                        "data_offsets": [offset, offset + 4 * value.numel()]}
        offset += 4 * value.numel()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for value in weights.values():
            file.write(value.contiguous().numpy().tobytes())


def prepare(options):
    """Phrases that come again and again, so that there is something to learn."""
    if os.path.exists(os.path.join(options.directory, "job.yaml")):
        return
    size = SIZES[options.size]
    os.makedirs(os.path.join(options.directory, "model"))
    config = dict(size, architectures=["GPT2LMHeadModel"], model_type="gpt2",
                  activation_function="gelu_new", attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)
    with open(os.path.join(options.directory, "model", "config.json"), "w") as file:
        json.dump(config, file)
    write_safetensors(os.path.join(options.directory, "model", "model.safetensors"),
                      initial_weights(size))
    draw = random.Random(1)
    phrases = [[draw.randrange(size["vocab_size"]) for _ in range(24)] for _ in range(400)]
    tokens = array.array("H")
    while len(tokens) < 64 * 17 * size["n_positions"]:
        tokens.extend(draw.choice(phrases))
    with open(os.path.join(options.directory, "tokens.bin"), "wb") as file:
        tokens.tofile(file)
    with open(os.path.join(options.directory, "job.yaml"), "w") as file:
        file.write(JOB)


def attend(q, k, v):
    import torch
    from torch.nn import functional as F
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v


def forward(weights, size, tokens):
    """GPT2LMHeadModel as the paper and the published configuration have it; logits in f32."""
    import torch
    from torch.nn import functional as F
    width, heads = size["n_embd"], size["n_head"]

    def norm(x, name):
        return F.layer_norm(x, (width,), weights[name + ".weight"], weights[name + ".bias"], 1e-5)

    def linear(x, name):
        return x @ weights[name + ".weight"] + weights[name + ".bias"]

    batch, length = tokens.shape
    x = F.embedding(tokens, weights["transformer.wte.weight"]) + weights["transformer.wpe.weight"][:length]
    for layer in range(size["n_layer"]):
        block = f"transformer.h.{layer}."
        parts = linear(norm(x, block + "ln_1"), block + "attn.c_attn").split(width, 2)
        q, k, v = (part.view(batch, length, heads, width // heads).transpose(1, 2) for part in parts)
        y = attend(q, k, v)
        x = x + linear(y.transpose(1, 2).reshape(batch, length, width), block + "attn.c_proj")
        y = F.gelu(linear(norm(x, block + "ln_2"), block + "mlp.c_fc"), approximate="tanh")
        x = x + linear(y, block + "mlp.c_proj")
    return F.linear(norm(x, "transformer.ln_f"), weights["transformer.wte.weight"]).float()


def train(options):
    """Computes in the dtype, keeps weights and the optimizer's state in f32, as FSDP's MixedPrecision."""
    import torch
    from torch.nn import functional as F
    torch.backends.cuda.matmul.allow_tf32 = False
    with open(os.path.join(options.directory, "model", "config.json")) as file:
        size = json.load(file)
    length, device = size["n_positions"], options.device
    dtype = torch.bfloat16 if options.dtype == "bf16" else torch.float32
    kept = {name: value.to(device).requires_grad_() for name, value in initial_weights(size).items()}
    tokens = array.array("H")
    with open(os.path.join(options.directory, "tokens.bin"), "rb") as file:
        tokens.frombytes(file.read())
    tokens = torch.tensor(tokens.tolist(), device=device)
    more = {"fused": True} if device.startswith("cuda") else {}
    optimizer = torch.optim.AdamW(kept.values(), lr=RATE, betas=BETAS, eps=EPSILON,
                                  weight_decay=DECAY, **more)

    def loss_of(windows, targets):
        weights = {name: value.to(dtype) for name, value in kept.items()}
        return F.cross_entropy(forward(weights, size, windows).flatten(0, 1), targets.flatten())

    if options.compile:
        loss_of = torch.compile(loss_of)
    print("step,loss,step_seconds")
    for step in range(options.steps):
        started = time.perf_counter()
        places = [(step * options.batch + row) * length for row in range(options.batch)]
        windows = torch.stack([tokens[p:p + length] for p in places])
        targets = torch.stack([tokens[p + 1:p + 1 + length] for p in places])
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(windows, targets)
        loss.backward()
        optimizer.step()
        value = loss.item()
        print(f"{step + 1},{value!r},{time.perf_counter() - started!r}")


def read(path):
    """Steps' losses and seconds, by step."""
    with open(path) as file:
        rows = [row for row in csv.DictReader(file) if row.get("kind", "step") == "step"]
    return {int(row["step"]): (float(row["loss"]), float(row["step_seconds"] or 0), row) for row in rows}


def median(table):
    """Of the steps after those in which libraries load, compile and choose."""
    last = sorted(table)[len(table) // 2:]
    return statistics.median(table[step][1] for step in last)


def compare(options):
    first, second = read(options.tables[0]), read(options.tables[1])
    if len(first) < 2 or sorted(first) != sorted(second):
        sys.exit(f"{len(first)} and {len(second)} steps, which are not the same")
    worst = max(abs(first[s][0] - second[s][0]) / abs(second[s][0]) for s in first)
    end = max(first)
    text = (f"{len(first)} steps, losses {first[1][0]:.5f} to {first[end][0]:.5f} and {second[1][0]:.5f} to "
            f"{second[end][0]:.5f}, at most {worst:.1e} relative apart")
    if options.times:
        text += f"; median steps {1e3 * median(first):.2f} and {1e3 * median(second):.2f} ms"
    print(text)
    if not worst <= options.bound:
        sys.exit(text + f", more than {options.bound:.0e}")
    if not first[end][0] < first[1][0]:
        sys.exit(text + ": nothing was learnt")


def rates(options):
    import torch
    size = SIZES[options.size]
    ours, theirs = (median(read(path)) for path in options.tables)
    tokens = options.batch * size["n_positions"]
    parameters = sum(a[0] * (a[1] if len(a) > 1 else 1) for _, a in shapes(size))
    parameters -= size["n_positions"] * size["n_embd"] # positions multiply nothing
    each = 6 * parameters + 6 * size["n_layer"] * size["n_embd"] * size["n_positions"] # causal attention
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    peaks = [peak for model, peak in PEAK_BF16 if model in name]
    used = ""
    if peaks:
        mine, other = (100 * each * tokens / seconds / peaks[0] for seconds in (ours, theirs))
        used = f", {mine:.1f} and {other:.1f} % of {peaks[0] / 1e12:.0f} TFLOP/s"
    text = (f"{tokens / ours:,.0f} tokens per second, PyTorch {torch.__version__} compiled "
            f"{tokens / theirs:,.0f}{used}; ratio {theirs / ours:.2f}")
    print(text)
    if theirs / ours < 1:
        sys.exit(text + ", less than 1.0")


def memory(options):
    held = max(int(row["memory_peak_bytes"]) for _, _, row in read(options.tables[0]).values())
    text = (f"planned {options.planned:,} bytes, arenas {held:,}, in use on the device "
            f"{options.used:,} more than before")
    print(text)
    if held != options.planned or not 0.99 < options.used / options.planned < 1.01:
        sys.exit(text + ": not within 1 %")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in (prepare, train, compare, rates, memory):
        own = verbs.add_parser(verb.__name__)
        own.set_defaults(run=verb)
        if verb in (prepare, train):
            own.add_argument("directory")
        else:
            own.add_argument("tables", nargs=1 if verb is memory else 2)
        own.add_argument("--size", choices=SIZES, default="124m")
        own.add_argument("--batch", type=int, default=BATCH)
        if verb is train:
            own.add_argument("--dtype", choices=("f32", "bf16"), default="f32")
            own.add_argument("--device", default="cuda:0")
            own.add_argument("--steps", type=int, default=50)
            own.add_argument("--compile", action="store_true")
        if verb is compare:
            own.add_argument("--bound", type=float, required=True)
            own.add_argument("--times", action="store_true")
        if verb is memory:
            own.add_argument("--planned", type=int, required=True)
            own.add_argument("--used", type=int, required=True)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
