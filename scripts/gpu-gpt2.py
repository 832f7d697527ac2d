#!/usr/bin/env python3
"""GPT-2 in PyTorch beside the same job of fsdpd, for gpu-check.sh: train and serve need PyTorch, nothing else.

prepare DIR         makes a Hugging Face directory with initial weights, tokens, and a job that reads them in
                    order and finds them in its data root as gpt2/
train DIR           trains the same in PyTorch; prints a line "step,loss,step_seconds" per step
serve DIR           for every line "eager N" or "compiled N" trains N steps more, and writes their seconds to
                    OUTPUT-KIND-ROUND.csv; prints what it attends with, and how fast the device multiplies
compare A B         the losses of two tables, `fsdpctl metrics --csv` or train's: fails beyond --bound
rates FILE...       medians of rate-ours-*, rate-torch-*: tokens per second and parts of the device's peak
memory A            what the arenas held against the plan, and what the device's memory in use grew by: within
                    1 % and 512 MiB
tensors A B         whether two files of safetensors hold the same tensors, all finite; not their values
"""

import argparse
import array
import csv
import json
import math
import os
import random
import statistics
import struct
import sys
import time
from collections import defaultdict

SIZES = {"124m": {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12},
         "tiny": {"vocab_size": 97, "n_positions": 32, "n_embd": 24, "n_layer": 2, "n_head": 3}}
RATE, BETAS, EPSILON, DECAY, BATCH = 1e-4, (0.9, 0.95), 1e-6, 0.1, 8
POOL = 1000003
PEAK_BF16 = (("H100 PCIe", 756e12), ("H100 NVL", 835e12), ("H100", 989e12), ("H200", 989e12),
             ("A100", 312e12), ("L40S", 362e12))

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
    """Normal numbers, from a pool that is drawn once: each matrix begins at another place of it."""
    draw = random.Random(1)
    pool = array.array("f", (draw.gauss(0, 0.02) for _ in range(POOL)))
    for name, shape in shapes(size):
        count = math.prod(shape)
        if len(shape) == 2:
            at = draw.randrange(POOL)
            values = (pool[at:] + pool * (count // POOL + 1))[:count]
        else:
            values = array.array("f", [1.0 if name.endswith("weight") else 0.0]) * count
        yield name, shape, values


def write_safetensors(path, size):
    header, offset = {}, 0
    for name, shape in shapes(size):
        bytes_ = 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, offset + bytes_]}
        offset += bytes_
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, values in initial_weights(size):
            values.tofile(file)


def read_safetensors(path):
    """As tensors on the CPU."""
    import torch
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = bytearray(file.read())
    values = torch.frombuffer(data, dtype=torch.float32)
    return {name: values[each["data_offsets"][0] // 4:each["data_offsets"][1] // 4].view(each["shape"])
            for name, each in header.items()}


def prepare(options):
    """A text of repeated phrases, so that a model can learn it."""
    if os.path.exists(os.path.join(options.directory, "job.yaml")):
        return
    size = SIZES[options.size]
    os.makedirs(os.path.join(options.directory, "model"))
    config = dict(size, architectures=["GPT2LMHeadModel"], model_type="gpt2",
                  activation_function="gelu_new", attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)
    with open(os.path.join(options.directory, "model", "config.json"), "w") as file:
        json.dump(config, file)
    write_safetensors(os.path.join(options.directory, "model", "model.safetensors"), size)
    draw = random.Random(1)
    phrases = [[draw.randrange(size["vocab_size"]) for _ in range(24)] for _ in range(400)]
    tokens = array.array("H")
    while len(tokens) < 64 * 61 * size["n_positions"]:
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
    """GPT2LMHeadModel as in the paper and the published configuration; logits in f32."""
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


class Training:
    """Computes in the dtype, keeps weights and the optimizer's state in f32, as FSDP's MixedPrecision."""

    def __init__(self, options):
        import torch
        from torch.nn import functional as F
        torch.backends.cuda.matmul.allow_tf32 = False
        with open(os.path.join(options.directory, "model", "config.json")) as file:
            self.size = json.load(file)
        self.length, self.batch, self.taken = self.size["n_positions"], options.batch, 0
        dtype = torch.bfloat16 if options.dtype == "bf16" else torch.float32
        path = os.path.join(options.directory, "model", "model.safetensors")
        kept = {name: value.to(options.device, copy=True).requires_grad_()
                for name, value in read_safetensors(path).items()}
        tokens = array.array("H")
        with open(os.path.join(options.directory, "tokens.bin"), "rb") as file:
            tokens.frombytes(file.read())
        self.tokens = torch.tensor(tokens.tolist(), device=options.device)
        more = {"fused": True} if options.device.startswith("cuda") else {}
        self.optimizer = torch.optim.AdamW(kept.values(), lr=RATE, betas=BETAS, eps=EPSILON,
                                           weight_decay=DECAY, **more)

        def loss_of(windows, targets):
            weights = {name: value.to(dtype) for name, value in kept.items()}
            return F.cross_entropy(forward(weights, self.size, windows).flatten(0, 1), targets.flatten())

        self.loss_of = loss_of

    def step(self, loss_of):
        """Trains on the next windows in order, wrapping around at the end; returns the loss, on the device."""
        import torch
        windows = []
        for row in range(self.batch):
            place = (self.taken * self.batch + row) * self.length % (len(self.tokens) - self.length)
            windows.append(self.tokens[place:place + self.length + 1])
        windows = torch.stack(windows)
        self.taken += 1
        self.optimizer.zero_grad(set_to_none=True)
        loss = loss_of(windows[:, :-1].contiguous(), windows[:, 1:].contiguous())
        loss.backward()
        self.optimizer.step()
        return loss


def train(options):
    import torch
    training = Training(options)
    loss_of = torch.compile(training.loss_of) if options.compile else training.loss_of
    print("step,loss,step_seconds")
    for step in range(options.steps):
        started = time.perf_counter()
        value = training.step(loss_of).item()
        print(f"{step + 1},{value!r},{time.perf_counter() - started!r}")


def seconds_of(device, work, times):
    """The time of one call of `work`, in the best of several rounds."""
    import torch
    wait = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    work()
    best = math.inf
    for _ in range(5):
        wait()
        started = time.perf_counter()
        for _ in range(times):
            work()
        wait()
        best = min(best, (time.perf_counter() - started) / times)
    return best


def best_attention(options, size):
    """The context of the fastest backend for forward and backward at this shape, and its name."""
    import contextlib
    import torch
    from torch.nn import functional as F
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:
        return contextlib.nullcontext, "its default attention"
    shape = (options.batch, size["n_head"], size["n_positions"], size["n_embd"] // size["n_head"])
    q, k, v, dy = (torch.randn(shape, device=options.device, dtype=torch.bfloat16) for _ in range(4))
    for x in (q, k, v):
        x.requires_grad_()
    found = []
    for name in ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION", "MATH"):
        backend = getattr(SDPBackend, name, None)
        if backend is None or (name == "MATH" and found):
            continue
        try:
            with sdpa_kernel(backend):
                found.append((seconds_of(options.device, lambda: torch.autograd.grad(
                    F.scaled_dot_product_attention(q, k, v, is_causal=True), (q, k, v), dy), 3), name, backend))
        except RuntimeError:
            continue # unsupported on this device or for this shape
    if not found:
        return contextlib.nullcontext, "its default attention"
    _, name, backend = min(found, key=lambda each: each[0])
    return lambda: sdpa_kernel(backend), name.lower()


def multiplied(options):
    """The rate of a large matrix product in bf16, in floating-point operations per second."""
    import torch
    n = 8192 if options.device.startswith("cuda") else 256
    a, b = (torch.randn((n, n), device=options.device).to(torch.bfloat16) for _ in range(2))
    return 2 * n ** 3 / seconds_of(options.device, lambda: a @ b, 10)


def serve(options):
    import torch
    with open(os.path.join(options.directory, "model", "config.json")) as file:
        size = json.load(file)
    attention, name = best_attention(options, size)
    training = Training(options)
    device = torch.cuda.get_device_name(options.device) if options.device.startswith("cuda") else "CPU"
    said = {"torch": torch.__version__, "device": device, "attention": name, "multiplies": multiplied(options)}
    torch.cuda.empty_cache()
    print(json.dumps(said), flush=True)
    kinds = {"eager": training.loss_of}
    kinds["compiled"] = torch.compile(training.loss_of) if hasattr(torch, "compile") else training.loss_of
    rounds = defaultdict(int)
    for line in sys.stdin:
        kind, steps = line.split()
        rounds[kind] += 1
        with attention():
            for _ in range(3 if rounds[kind] == 1 else 1): # warm-up: compiles, and fills caches
                training.step(kinds[kind]).item()
            rows = []
            for _ in range(6): # as many reports as fsdpd's run has
                started = time.perf_counter()
                for _ in range(max(int(steps) // 6, 1)):
                    loss = training.step(kinds[kind])
                value = loss.item()
                rows.append((training.taken, value, (time.perf_counter() - started) / max(int(steps) // 6, 1)))
        torch.cuda.empty_cache() # fsdpd runs next
        path = f"{options.output}-{kind}-{rounds[kind]}.csv"
        with open(path + ".new", "w") as file:
            print("step,loss,step_seconds", file=file)
            for row in rows:
                print(*row, sep=",", file=file)
        os.rename(path + ".new", path)


def read(path):
    """The loss, the seconds and the row of each step."""
    with open(path) as file:
        rows = [row for row in csv.DictReader(file) if row.get("kind", "step") == "step"]
    return {int(row["step"]): (float(row["loss"]), float(row["step_seconds"] or 0), row) for row in rows}


def median(table):
    """The median over the second half of the steps: in the first, libraries load, compile and tune."""
    last = sorted(table)[len(table) // 2:]
    return statistics.median(table[step][1] for step in last)


def between(table):
    """Likewise what a step takes beside its work on the device: the host's time between two steps."""
    last = sorted(table)[len(table) // 2:]
    return statistics.median(table[step][1] - float(table[step][2]["compute_seconds"]) for step in last)


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
    size, said = SIZES[options.size], json.loads(options.said)
    runs, gaps = defaultdict(list), []
    for path in options.tables:
        kind = next(kind for kind in ("ours", "eager", "compiled") if kind in os.path.basename(path))
        table = read(path)
        runs[kind].append(median(table))
        if kind == "ours":
            gaps.append(between(table))
    seconds = {kind: statistics.median(times) for kind, times in runs.items()}
    tokens = options.batch * size["n_positions"]
    parameters = sum(a[0] * (a[1] if len(a) > 1 else 1) for _, a in shapes(size))
    parameters -= size["n_positions"] * size["n_embd"] # positions multiply nothing
    flops = 6 * parameters + 6 * size["n_layer"] * size["n_embd"] * size["n_positions"] # causal attention
    flops *= tokens
    peaks = [peak for model, peak in PEAK_BF16 if model in said["device"]]

    def rate_text(kind):
        text = f"{tokens / seconds[kind]:,.0f} tokens/s"
        if peaks:
            text += f", MFU {100 * flops / seconds[kind] / peaks[0]:.1f} %"
        return text + f", {100 * flops / seconds[kind] / said['multiplies']:.1f} % of products"

    best = min(("eager", "compiled"), key=lambda kind: seconds[kind])
    text = (f"{rate_text('ours')}, {1e3 * statistics.median(gaps):.2f} ms between steps; PyTorch {said['torch']} {said['attention']}: compiled {rate_text('compiled')}; eager "
            f"{rate_text('eager')}; ratio {seconds[best] / seconds['ours']:.2f}; products of 8192: "
            f"{said['multiplies'] / 1e12:.4g} TFLOP/s; medians of {len(runs['ours'])} alternating runs")
    print(text)
    if seconds[best] / seconds["ours"] < 1:
        sys.exit(text + ": less than 1.0")


def tensors(options):
    """Checks names, types and shapes, and that all values are finite."""
    held = []
    for path in options.tables:
        with open(path, "rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
            header.pop("__metadata__", None)
            start, count = file.tell(), 0
            for name, tensor in header.items():
                first, last = tensor["data_offsets"]
                if tensor["dtype"] != "F32" or last - first != 4 * math.prod(tensor["shape"]):
                    sys.exit(f"{path}: {name} is {tensor}")
                file.seek(start + first)
                values = array.array("f", file.read(last - first))
                if len(values) != (last - first) // 4 or not all(map(math.isfinite, values)):
                    sys.exit(f"{path}: {name} is cut off, or has values that are not finite")
                count += len(values)
            held.append(({name: tensor["shape"] for name, tensor in header.items()}, count))
    if held[0] != held[1] or not held[0][0]:
        sys.exit("the two files hold different tensors")
    print(f"{len(held[0][0])} tensors of {held[0][1]:,} finite values")


def memory(options):
    held = max(int(row["memory_peak_bytes"]) for _, _, row in read(options.tables[0]).values())
    text = (f"planned {options.planned:,} bytes, arenas {held:,}, in use on the device "
            f"{options.used:,} more than before")
    print(text)
    # The driver counts what libraries, modules and graphs take, too.
    if held != options.planned or abs(options.used - options.planned) > options.planned / 100 + (512 << 20):
        sys.exit(text + ": the arenas not as planned, or not within 1 % and 512 MiB")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in (prepare, train, serve, compare, rates, memory, tensors):
        own = verbs.add_parser(verb.__name__)
        own.set_defaults(run=verb)
        if verb in (prepare, train, serve):
            own.add_argument("directory")
        else:
            own.add_argument("tables", nargs={memory: 1, rates: "+"}.get(verb, 2))
        own.add_argument("--size", choices=SIZES, default="124m")
        own.add_argument("--batch", type=int, default=BATCH)
        if verb in (train, serve):
            own.add_argument("--dtype", choices=("f32", "bf16"), default="f32")
            own.add_argument("--device", default="cuda:0")
        if verb is train:
            own.add_argument("--steps", type=int, default=50)
            own.add_argument("--compile", action="store_true")
        if verb is serve:
            own.add_argument("--output", required=True)
        if verb is rates:
            own.add_argument("--said", required=True)
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
