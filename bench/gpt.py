#!/usr/bin/env python3
"""The measurement of bench/gpt.sh; see there. --python names an interpreter with another PyTorch."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

import measure

# Layers, heads, width, context, and windows per step over all processes.
SIZES = {"small": (4, 4, 128, 64, 12), "medium": (6, 6, 384, 256, 12)}

MODEL = """name: GPT
input: tokens
vocabulary: 256
context: {context}
blocks:
  Block:
    modules:
      norm1: LayerNorm({width}, bias=False)
      qkv: Linear({width}, 3 * {width}, bias=False)
      out: Linear({width}, {width}, bias=False)
      norm2: LayerNorm({width}, bias=False)
      up: Linear({width}, 4 * {width}, bias=False)
      down: Linear(4 * {width}, {width}, bias=False)
    forward:
      - x += out(attention(qkv(norm1(x)), num_heads={heads}, is_causal=True))
      - x += down(gelu(up(norm2(x))))
      - output = x
modules:
  tokens: Embedding(256, {width})
  places: Embedding({context}, {width})
  blocks: {layers} * Block()
  norm: LayerNorm({width}, bias=False)
  head: Linear({width}, 256, bias=False)
tie: {{head.weight: tokens.weight}}
init: [{{match: "*norm*", ones: true}}, {{match: "*", normal: 0.02}}]
forward:
  - x = tokens(x) + places(positions(x))
  - for block in blocks: x = block(x)
  - output = head(norm(x))
loss: cross_entropy(output, target)
"""

JOB = """name: gpt
model: {{file: model.yaml}}
data: {{format: text, path: {data}, context: {context}}}
train: {{batch_size: {batch}, log_interval: 1, evaluate: false, clip_grad_norm: {{max_norm: 1.0}}}}
optimizer:
  type: adamw
  lr: 1e-3
  beta2: 0.99
  weight_decay: 0.1
  groups: [{{match: "*norm*", weight_decay: 0}}]
workers: {world}
save_model: false
"""


def our_run(daemon, size, world, steps, settings):
    layers, heads, width, context, windows = SIZES[size]
    with tempfile.TemporaryDirectory() as work:
        with open(os.path.join(work, "model.yaml"), "w") as file:
            file.write(MODEL.format(layers=layers, heads=heads, width=width, context=context))
        job = os.path.join(work, "job.yaml")
        with open(job, "w") as file:
            file.write(JOB.format(data=daemon.text_path, context=context, batch=windows // world,
                                  world=world))
        arguments = ["submit", job, "--set", f"train.max_steps={steps}"]
        for setting in settings:
            arguments += ["--set", setting]
        result = daemon.ctl(*arguments, "--wait", timeout=1800)
    if result.returncode != 0:
        sys.exit(result.stderr)
    seconds, _ = measure.step_seconds(daemon)
    return seconds[steps // 10:]


def torch_run(python, text, size, world, steps, port):
    layers, heads, width, context, windows = SIZES[size]
    values = {"layers": layers, "heads": heads, "width": width, "context": context,
              "batch": windows // world, "vocabulary": 256, "world": world, "threads": 1,
              "steps": steps, "port": port}
    arguments = [python, os.path.join(measure.here, "gpt_torch.py"), "--data", text]
    for name, value in values.items():
        arguments += ["--" + name, str(value)]
    result = json.loads(subprocess.run(arguments, check=True, stdout=subprocess.PIPE).stdout)
    return result["seconds"][steps // 10 + 1:], result["version"]


def compare(daemon, options, size, world, port):
    """Prints a row for alternating runs; returns our median step over PyTorch's."""
    ours, theirs, version = [], [], ""
    for number in range(options.rounds):
        ours += our_run(daemon, size, world, options.steps, options.settings)
        seconds, version = torch_run(options.python, daemon.text_path, size, world, options.steps,
                                     port + number)
        theirs += seconds
    tokens = SIZES[size][3] * SIZES[size][4]
    mine, other = statistics.median(ours), statistics.median(theirs)
    print(f"| {size} | {world} | {mine * 1e3:.1f} ms | {tokens / mine:,.0f} | {other * 1e3:.1f} ms | "
          f"{tokens / other:,.0f} | {mine / other:.2f} |", flush=True)
    return mine / other, version


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--size", choices=sorted(SIZES), action="append", dest="sizes")
    parser.add_argument("--python", default="/usr/bin/python3")
    parser.add_argument("--text", default=measure.find_text())
    parser.add_argument("--set", action="append", default=[], dest="settings")
    options = parser.parse_args()
    if options.text is None:
        sys.exit("no text to train on: give one with --text FILE")
    print("| size | processes | fsdpd, a step | tokens/s | PyTorch, a step | tokens/s | ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    worst, version, port = 0, "", 29700
    with measure.harness.Daemon(data=os.path.dirname(options.text),
                                arguments=["--threads", "1"]) as daemon:
        measure.share_priority(daemon)
        daemon.text_path = options.text
        for size in options.sizes or list(SIZES):
            for world in (1, 2):
                ratio, version = compare(daemon, options, size, world, port)
                worst = max(worst, ratio)
                port += options.rounds
    print(f"PyTorch {version}, one thread per process; {measure.machine()}")
    print(f"ratio {worst:.3f}")


if __name__ == "__main__":
    main()
