#!/usr/bin/env python3
"""The measurement of bench/variants.sh; see there."""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile

import measure
import table
import table_models

ADAMW = "optimizer={type: adamw, lr: 1e-4}"
OURS = {"adamw": [ADAMW],
        "adamw8bit": ["optimizer={type: adamw, lr: 1e-4, state_dtype: int8}"],
        "muon": ["optimizer={type: muon, lr: 1e-3, others: {type: adamw, lr: 1e-4}}"],
        "lora": [ADAMW, "model.lora={rank: 16}"]}


def our_run(job, world, variant, options):
    """Seconds of each counted step, and those of Muon's products in the last one."""
    case = {"model": options.model, "type": options.type, "processes": world}
    with measure.harness.Daemon(workers=world, data=os.path.dirname(job), arguments=["--threads", "1"]) as daemon:
        measure.share_priority(daemon)
        measure.run_bounded(
            [measure.harness.FSDPCTL, "submit", job, "--wait", *table.settings(case), "--set",
             f"data.context={options.context}", *(word for one in OURS[variant] for word in ("--set", one)), "--set",
             f"train.max_steps={options.steps}", "--set", f"train.trace_interval={options.steps}"],
            options.limit, env=dict(os.environ, FSDPD_ADDRESS=daemon.address))
        seconds, _ = measure.step_seconds(daemon)
        shown = daemon.show(daemon.json("list")[-1]["id"])
    products = sum(row["seconds"] for row in shown["metrics"]["op_times"] if row["op"] == "orthogonalize")
    return table.counted(seconds, options.steps), products


def torch_run(world, variant, options):
    way = "eager" if world == 1 else "fsdp2"
    result = table.torch(options, options.limit, "--model", options.model, "--dtype", options.type, "--way", way,
                         "--processes", str(world), "--steps", str(options.steps), "--variant", variant,
                         "--context", str(options.context))
    return table.counted(result["seconds"], options.steps)


def compare(job, world, options):
    """A row for each variant: the medians of all rounds' steps."""
    ours, theirs, products, why = {}, {}, {}, {}
    for _ in range(options.rounds):
        for variant in options.variants:
            seconds, products[variant] = our_run(job, world, variant, options)
            ours.setdefault(variant, []).extend(seconds)
            if variant in why:
                continue
            try:
                theirs.setdefault(variant, []).extend(torch_run(world, variant, options))
            except measure.NotRun as error:
                why[variant] = str(error)
    base = statistics.median(ours["adamw"]) if "adamw" in ours else float("nan")
    for variant, all_seconds in ours.items():
        mine = statistics.median(all_seconds)
        rest = f"{(mine - products[variant]) / base:.2f}" if products[variant] else ""
        other = statistics.median(theirs[variant]) if variant not in why else None
        print(f"| {variant} | {world} | {mine:.3f} s | {mine / base:.2f} | {rest} | " +
              (f"{other:.3f} s | {mine / other:.2f} |" if other else f"{why[variant]} | |"), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", required=True)
    parser.add_argument("--model", choices=[name for name, model in table_models.MODELS.items()
                                            if model and model.kind == table_models.TEXT], default="gpt2-124m")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--type", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--processes", type=table.choice([1, 2]), default=[1, 2])
    parser.add_argument("--variants", type=table.choice(list(OURS)), default=list(OURS))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--limit", type=float, default=600)
    options = parser.parse_args()
    measure.require_quiet(update=False)
    print("| variant | processes | fsdpd, a step | of AdamW's | without the products | PyTorch, a step | ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory() as work:
        job = table.write_job(work, options.model)
        for world in options.processes:
            compare(job, world, options)
    version = subprocess.run([options.python, "-c", "import torch; print(torch.__version__)"], check=True, text=True,
                             stdout=subprocess.PIPE).stdout.strip()
    print(f"{options.model}, {table_models.MODELS[options.model].batch} windows of {options.context} tokens, "
          f"{options.type}; PyTorch {version}; {measure.machine()}", file=sys.stdout)


if __name__ == "__main__":
    main()
