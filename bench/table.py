#!/usr/bin/env python3
"""The measurement of bench/table.sh; see there."""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

import measure
import numpy
import table_models

harness = measure.harness
WAYS = {1: ("eager", "compiled"), 2: ("ddp", "fsdp2")}
PAGE = os.path.join(harness.SOURCE, "docs/benchmarks.md")
BEGIN, END = "<!-- bench/table.sh -->", "<!-- end -->"
SAMPLES, TOKENS = 512, 1 << 20  # of the data that is drawn


class Case:
    """A model, type and number of processes; per program the seconds of its steps, and its memory."""

    def __init__(self, name, dtype, world):
        self.name, self.dtype, self.world = name, dtype, world
        self.seconds, self.resident, self.failures = {}, {}, {}
        self.flops = 0

    def add(self, program, seconds, resident):
        self.seconds.setdefault(program, []).extend(seconds)
        self.resident[program] = max(resident, self.resident.get(program, 0))

    def rate(self):
        model = table_models.MODELS[self.name]
        return model.samples() if model else (table_models.MNIST_BATCH, "images")

    def rows(self, product_rate):
        step = {program: statistics.median(seconds) for program, seconds in self.seconds.items()}
        count, unit = self.rate()
        for program in ("fsdpd", *WAYS[self.world]):
            start = f"| {self.name} | {self.dtype} | {self.world} | {program} | "
            if program not in step:
                yield start + f"{self.failures.get(program, 'not run')} | | | | |"
                continue
            seconds = step[program]
            share = self.flops / seconds / product_rate
            ratio = f"{step['fsdpd'] / seconds:.2f}" if program != "fsdpd" else ""
            yield start + (f"{seconds * 1e3:,.1f} ms | {count / seconds:,.0f} {unit}/s | {share:.0%} | "
                           f"{self.resident[program] / 1e6:,.0f} MB | {ratio} |")


def write_job(directory, name):
    """Writes the job, its model and data below `directory`; returns the job's path."""
    model = table_models.MODELS[name]
    data = os.path.join(directory, "data")
    os.mkdir(data)
    draw = numpy.random.default_rng(1)
    network, optimizer = f"{{hf: {directory}}}", "{type: adamw, lr: 1e-4}"
    if model is None or model.kind == table_models.IMAGES:
        shape = (3, model.side, model.side) if model else (28, 28)
        numpy.save(os.path.join(data, "train.images.npy"),
                   draw.integers(0, 256, (SAMPLES, *shape), numpy.uint8))
        numpy.save(os.path.join(data, "train.targets.npy"),
                   draw.integers(0, 10, SAMPLES).astype(numpy.uint8))
        source = f"{{format: images, dir: {data}, normalize: {{mean: 0.5, std: 0.5}}}}"
    else:
        path = os.path.join(data, "tokens.bin")
        draw.integers(0, model.config["vocab_size"], TOKENS).astype(numpy.uint16).tofile(path)
        masked = ", objective: masked, mask_token: 103" if model.kind == table_models.MASKED else ""
        source = f"{{format: tokens, path: {path}, encoding: uint16, context: {model.context}{masked}}}"
    if model is None:
        network = "{file: " + os.path.join(harness.SOURCE, "examples/mnist/net.yaml") + "}"
        optimizer = "{type: adadelta, lr: 1.0}"
    else:
        with open(os.path.join(directory, "config.json"), "w") as file:
            json.dump(model.config, file)
        if model.kind == table_models.IMAGES:
            with open(os.path.join(directory, "preprocessor_config.json"), "w") as file:
                json.dump({"size": {"height": model.side, "width": model.side}}, file)
    job = os.path.join(directory, "job.yaml")
    with open(job, "w") as file:
        file.write(f"name: table\nmodel: {network}\ndata: {source}\noptimizer: {optimizer}\n"
                   "train: {epochs: 100000, log_interval: 1, evaluate: false}\nsave_model: false\n")
    return job


def our_run(daemon, job, case, steps):
    model = table_models.MODELS[case.name]
    batch = (model.batch if model else table_models.MNIST_BATCH) // case.world
    result = daemon.ctl("submit", job, "--wait", timeout=7200, *(
        word for setting in (f"workers={case.world}", f"train.batch_size={batch}",
                             f"train.max_steps={steps}", f"precision.param_dtype={case.dtype}",
                             f"fsdp.strategy={'no_shard' if case.world == 1 else 'full_shard'}")
        for word in ("--set", setting)))
    if result.returncode != 0:
        raise RuntimeError(result.stderr.strip())
    seconds, _ = measure.step_seconds(daemon)
    shown = daemon.show(daemon.json("list")[-1]["id"])
    case.flops = next(program["estimate"]["flops"] for program in shown["plan"]["programs"]
                      if program["name"] == "train")
    case.add("fsdpd", seconds[steps // 4:], int(shown["metrics"]["resident_peak_bytes"]))


def torch(python, *arguments):
    result = subprocess.run([python, os.path.join(measure.here, "table_torch.py"), *arguments],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if result.returncode != 0:
        raise RuntimeError((result.stderr.strip().splitlines() or ["killed"])[-1])
    return json.loads(result.stdout)


def torch_run(python, case, way, steps):
    result = torch(python, "--model", case.name, "--dtype", case.dtype, "--way", way,
                   "--processes", str(case.world), "--steps", str(steps))
    case.add(way, result["seconds"][max(2, steps // 4):], result["resident"])
    return result["version"]


def measure_case(case, job, options):
    """Alternates the programs; one that fails is left out of later rounds, and the table says so."""
    version = ""
    for number in range(options.rounds):
        for program in ("fsdpd", *WAYS[case.world]):
            if program in case.failures:
                continue
            try:
                if program == "fsdpd":  # a new daemon: its workers have no memory of earlier jobs
                    with harness.Daemon(workers=case.world, data=os.path.dirname(job),
                                        arguments=["--threads", "1"]) as daemon:
                        measure.share_priority(daemon)
                        our_run(daemon, job, case, options.steps)
                else:
                    version = torch_run(options.python, case, program, options.steps)
            except RuntimeError as error:
                print(f"{case.name}, {case.dtype}, {program}: {error}", file=sys.stderr)
                case.failures[program] = "failed"
        print(f"{case.name}, {case.dtype}, {case.world} processes: round {number + 1}: " + ", ".join(
            f"{program} {statistics.median(seconds) * 1e3:.1f} ms"
            for program, seconds in case.seconds.items()), file=sys.stderr, flush=True)
    return version


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", required=True)
    parser.add_argument("--model", action="append", choices=list(table_models.MODELS), dest="models")
    parser.add_argument("--dtype", action="append", choices=("f32", "bf16"), dest="dtypes")
    parser.add_argument("--processes", action="append", type=int, choices=sorted(WAYS), dest="worlds")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--update", action="store_true", help="write the table to docs/benchmarks.md")
    return parser.parse_args()


def main():
    options = parse()
    lines = ["| model | type | processes | program | step | rate | of the product rate | memory | "
             "fsdpd / it |", "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    version = ""
    rates = {dtype: torch(options.python, "--way", "rate", "--dtype", dtype)["rate"]
             for dtype in options.dtypes or ("f32", "bf16")}
    for name in options.models or table_models.MODELS:
        with tempfile.TemporaryDirectory() as directory:
            job = write_job(directory, name)
            for dtype in rates:
                for world in options.worlds or WAYS:
                    case = Case(name, dtype, world)
                    version = measure_case(case, job, options) or version
                    lines += case.rows(rates[dtype])
    products = " and ".join(f"{rate / 1e9:,.0f} GFLOP/s in {dtype}" for dtype, rate in rates.items())
    lines.append(f"\n{measure.machine()}; load {os.getloadavg()[0]:.1f}; PyTorch {version}; products of "
                 f"one thread: {products}; {options.rounds} rounds of {options.steps} steps")
    print("\n".join(lines))
    if options.update:
        with open(PAGE) as file:
            page = file.read()
        with open(PAGE, "w") as file:
            file.write(re.sub(f"{BEGIN}.*{END}", lambda _: "\n".join((BEGIN, *lines, END)), page,
                              flags=re.S))


if __name__ == "__main__":
    main()
