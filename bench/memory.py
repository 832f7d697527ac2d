#!/usr/bin/env python3
"""The measurement of bench/memory.sh; see there. --quick runs the small models only."""

import argparse
import array
import json
import os
import random
import subprocess
import sys
import tempfile

import measure

GPT2 = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 768, "n_layer": 12,
        "n_head": 12, "n_positions": 1024, "vocab_size": 50257, "activation_function": "gelu_new",
        "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
SMALL = dict(GPT2, n_embd=128, n_layer=4, n_head=4, vocab_size=256, n_positions=4096)

JOB = """name: memory
model: {{hf: {model}}}
data: {{format: tokens, path: tokens.bin, encoding: uint16, context: {context}}}
train: {{max_steps: 2, batch_size: 1, log_interval: 1, evaluate: false}}
optimizer: {{type: adamw, lr: 1e-4}}
workers: {world}
"""


class Models:
    """A data root with the models and some tokens, and jobs that train on them."""

    def __init__(self, root):
        self.root = root
        draw = random.Random(1)
        with open(os.path.join(root, "tokens.bin"), "wb") as file:
            array.array("H", (draw.randrange(256) for _ in range(100000))).tofile(file)
        for name, config in (("gpt2", GPT2), ("small", SMALL), ("drawn", {})):
            os.mkdir(os.path.join(root, name))
            with open(os.path.join(root, name, "config.json"), "w") as file:
                json.dump(config, file)

    def job(self, model, context, world):
        path = os.path.join(self.root, "job.yaml")
        with open(path, "w") as file:
            file.write(JOB.format(model=model, context=context, world=world))
        return path

    def plan(self, model, context, world):
        return json.loads(subprocess.run(
            [measure.harness.FSDPD, "plan", self.job(model, context, world), "--profile", "cpu",
             "--data-root", self.root, "-o", "json"], check=True, stdout=subprocess.PIPE).stdout)

    def run(self, path, *settings):
        """A job that has run on workers of its own."""
        with measure.harness.Daemon(workers=4, data=self.root, arguments=["--threads", "1"]) as daemon:
            result = daemon.ctl("submit", path, *(f"--set={s}" for s in settings), "--wait",
                                timeout=1800)
            if result.returncode != 0:
                sys.exit(result.stderr)
            return daemon.show(daemon.json("list")[-1]["id"])


def megabytes(count):
    return f"{count / 1e6:,.1f}"


CLASSES = {"parameters (shard)": "shard", "optimizer state": "optimizer",
           "parameters (gathered)": "gathered", "activations": "activations"}


within = True  # no process needed much more than its plan says


def resident(job):
    """The cells of a table: the process's resident set as planned and as measured."""
    planned = int(job["plan"]["resident_bytes"])
    measured = int(job["metrics"]["resident_peak_bytes"])
    global within
    within &= measured / planned <= (1.05 if int(job["plan"]["peak_bytes"]) > 100e6 else 1.1)
    return [megabytes(planned), megabytes(measured), f"{measured / planned:.3f}"]


def row(models, model, context, world, run):
    """Prints one line of a table; returns whether the run needed the planned memory."""
    plan = models.plan(model, context, world)
    kinds = {kind["name"]: int(kind["bytes"]) for kind in plan["memory"]}
    planned = int(plan["peak_bytes"])
    job = models.run(models.job(model, context, world)) if run else None
    measured = int(job["metrics"]["memory_peak_bytes"]) if run else None
    cells = [world, context] + [megabytes(kinds.get(name, 0)) for name in CLASSES]
    rest = planned - sum(kinds.get(name, 0) for name in CLASSES)
    cells += [megabytes(rest), f"{planned:,}", "-" if measured is None else f"{measured:,}"]
    cells += resident(job) if run else ["-"] * 3
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    return measured in (None, planned)


PROCESS = ["process planned", "measured", "ratio"]


def mnist(models):
    """Prints a table of the MNIST network on a drawn set as large as MNIST."""
    print("\nThe MNIST network, 60,000 images; megabytes per rank\n")
    columns = ["ranks", "arenas", *PROCESS]
    print("| " + " | ".join(columns) + " |\n" + "| --- " * len(columns) + "|", flush=True)
    measure.harness.draw_digits(models.root, train=60000, test=10000)
    for world in (1, 2):
        job = models.run(measure.harness.JOB, f"data.dir={models.root}", f"workers={world}",
                         "train.epochs=1", "train.max_steps=100")
        cells = [world, megabytes(int(job["plan"]["peak_bytes"])), *resident(job)]
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def sampled(models):
    """Prints a table of jobs that continue four prompts of their own to 256 tokens, in memory that their plan has for it."""
    print("\nGPT-2 124M, context 1,024, that samples; megabytes per rank\n")
    columns = ["ranks", "arenas", "samples", "weights of samples", *PROCESS]
    print("| " + " | ".join(columns) + " |\n" + "| --- " * len(columns) + "|", flush=True)
    prompts = [",".join(str(first * 100 + i) for i in range(128)) for first in range(4)]
    for world in (1, 2):
        job = models.run(models.job("gpt2", 1024, world), "sample.reserve.context=256", "sample.reserve.sequences=4",
                         f"train.sample={{prompts: {json.dumps(prompts)}, every_steps: 1, max_tokens: 128}}")
        rows = {row["name"]: int(row["bytes"]) for row in job["plan"]["outside"]}
        cells = [world, megabytes(int(job["plan"]["peak_bytes"])), megabytes(rows["samples"]),
                 megabytes(rows.get("weights of samples", 0)), *resident(job)]
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def drawn_model(draw):
    """The text of a config.json, and the largest window that the model takes."""
    heads, layers = draw.choice((2, 4, 8)), draw.randint(1, 8)
    channels, window = heads * 2 * draw.randint(8, 32), draw.choice((128, 512, 2048))
    if draw.random() < 0.5:
        return dict(GPT2, n_embd=channels, n_layer=layers, n_head=heads, n_positions=window,
                    vocab_size=draw.choice((256, 5000, 30000))), window
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": channels,
            "intermediate_size": 3 * channels, "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": draw.choice((1, heads // 2, heads)), "max_position_embeddings": window,
            "vocab_size": draw.choice((256, 5000, 30000)),
            "tie_word_embeddings": draw.random() < 0.5}, window


def drawn(models, count):
    """Prints a table of drawn jobs with default settings beside what is drawn."""
    print(f"\n{count} drawn jobs; megabytes per rank\n")
    columns = ["model", "layers", "channels", "context", "ranks", "settings", "arenas", *PROCESS]
    print("| " + " | ".join(columns) + " |\n" + "| --- " * len(columns) + "|", flush=True)
    draw, equal = random.Random(24), True
    for _ in range(count):
        config, window = drawn_model(draw)
        with open(os.path.join(models.root, "drawn", "config.json"), "w") as file:
            json.dump(config, file)
        world, context = draw.randint(1, 4), draw.randint(16, window)
        settings = [f"train.batch_size={draw.randint(1, 4)}"]
        for part, choices in (
                ("optimizer.type", ("adamw", "adamw", "sgd", "adafactor")),
                ("precision.param_dtype", ("f32", "f32", "bf16")),
                ("fsdp.strategy", ("full_shard", "full_shard", "shard_grad_op", "no_shard")),
                ("fsdp.activation_checkpointing",
                 ("", "", "[transformer.h.*]" if "n_layer" in config else "[model.layers.*]"))):
            value = draw.choice(choices)
            if value != choices[0]:
                settings.append(f"{part}={value}")
        job = models.run(models.job("drawn", context, world), *settings)
        equal &= int(job["metrics"]["memory_peak_bytes"]) == int(job["plan"]["peak_bytes"])
        cells = [config["model_type"], config.get("n_layer") or config["num_hidden_layers"],
                 config.get("n_embd") or config["hidden_size"], context, world, " ".join(settings),
                 megabytes(int(job["plan"]["peak_bytes"])), *resident(job)]
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    return equal


def header(title):
    print(f"\n{title}\n")
    columns = ["ranks", "context", *CLASSES.values(), "the rest", "planned, bytes", "measured, bytes",
               *PROCESS]
    print("| " + " | ".join(columns) + " |\n" + "| --- " * len(columns) + "|", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--drawn", type=int, metavar="N", help="N drawn jobs, and nothing else")
    options = parser.parse_args()
    equal = True
    with tempfile.TemporaryDirectory() as root:
        models = Models(root)
        if options.drawn:
            equal = drawn(models, options.drawn)
            finish(equal)
            return
        mnist(models)
        header("GPT-2 124M, one window per rank; megabytes per rank")
        for world in (1, 2, 8, 64):
            equal &= row(models, "gpt2", 1024, world, world <= 2 and not options.quick)
        header("4 layers of 128 channels, one window per rank; megabytes per rank")
        for context in (512, 1024, 2048, 4096):
            equal &= row(models, "small", context, 2, True)
        if not options.quick:
            sampled(models)
    finish(equal)


def finish(equal):
    print(f"\n{measure.machine()}")
    if not equal:
        sys.exit("a run needed another amount of memory than its plan says")
    if not within:
        sys.exit("a worker's process needed more than 1.05 of what its plan says (1.1 with arenas below 100 MB)")


if __name__ == "__main__":
    main()
