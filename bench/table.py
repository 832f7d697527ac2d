#!/usr/bin/env python3
"""The measurement of bench/table.sh; see there."""

import argparse
import datetime
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
import table_page

harness = measure.harness
PAGE = os.path.join(harness.SOURCE, "docs/benchmarks.md")
DATA = os.path.join(harness.SOURCE, "docs/benchmarks.json")
SAMPLES, TOKENS = 512, 1 << 20  # of the data that is drawn
FEWEST = 3  # steps of a run
SHARE = 0.5  # of the product rate, in the estimates of steps
STARTS = {"fsdpd": 3, "eager": 10, "compiled": 60, "ddp": 15, "fsdp2": 15}  # seconds, about


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


def settings(case):
    """The arguments that make write_job()'s job the case's."""
    model = table_models.MODELS[case["model"]]
    batch = (model.batch if model else table_models.MNIST_BATCH) // case["processes"]
    strategy = "no_shard" if case["processes"] == 1 else "full_shard"
    return [word for setting in (f"workers={case['processes']}", f"train.batch_size={batch}",
                                 f"precision.param_dtype={case['type']}", f"fsdp.strategy={strategy}")
            for word in ("--set", setting)]


def new_case(name, dtype, world, product_rate, version):
    model = table_models.MODELS[name]
    samples, unit = model.samples() if model else (table_models.MNIST_BATCH, "images")
    return {"machine": measure.machine(), "model": name, "type": dtype, "processes": world,
            "date": datetime.date.today().isoformat(), "load": 0.0, "torch": version, "samples": samples,
            "unit": unit, "product_rate": product_rate, "programs": {}}


def prepare(case, job, options):
    """Plans the case: adds its arithmetic, and the steps of a run."""
    plan = json.loads(subprocess.run(
        [harness.FSDPD, "plan", job, *settings(case), "--profile", "cpu", "--data-root",
         os.path.dirname(job), "-o", "json"], check=True, stdout=subprocess.PIPE).stdout)
    case["flops"] = next(program["estimate"]["flops"] for program in plan["programs"]
                         if program["name"] == "train")
    case["estimate"] = case["flops"] / case["product_rate"] / SHARE
    case["rounds"] = options.rounds
    case["steps"] = min(options.steps, max(int(options.seconds / case["estimate"]), FEWEST))


def expected_seconds(case):
    """What a case will take, about."""
    return case["rounds"] * sum(STARTS[program] + case["steps"] * case["estimate"]
                                for program in table_page.PROGRAMS[case["processes"]])


def counted(seconds, steps):
    """Without warm-up: a quarter of the steps, and at least two, but of three long ones only the first. The
    first of our steps has no duration."""
    warm = max(2, steps // 4) if steps > FEWEST else 1
    return seconds[warm - (steps - len(seconds)):]


def our_run(job, case, limit):
    """Adds a run by a new daemon, whose workers have no memory of earlier jobs."""
    with harness.Daemon(workers=case["processes"], data=os.path.dirname(job),
                        arguments=["--threads", "1"]) as daemon:
        measure.share_priority(daemon)
        measure.run_bounded(
            [harness.FSDPCTL, "submit", job, "--wait", *settings(case), "--set",
             f"train.max_steps={case['steps']}", "--set", f"train.trace_interval={case['steps']}"],
            limit, env=dict(os.environ, FSDPD_ADDRESS=daemon.address))
        seconds, _ = measure.step_seconds(daemon)
        shown = daemon.show(daemon.json("list")[-1]["id"])
        case["ops"] = [[row["op"], row["seconds"]] for row in shown["metrics"]["op_times"]]
        case["planned"] = {"arenas": int(shown["plan"]["peak_bytes"]),
                           "resident": int(shown["plan"]["resident_bytes"])}
        return seconds, max(map(measure.resident_peak, harness.children(daemon.process.pid)))


def torch(options, limit, *arguments):
    return json.loads(measure.run_bounded(
        [options.python, os.path.join(measure.here, "table_torch.py"), *arguments], limit))


def torch_run(case, way, options, steps, limit):
    return torch(options, limit, "--model", case["model"], "--dtype", case["type"], "--way", way,
                 "--processes", str(case["processes"]), "--steps", str(steps))


def run(case, program, job, options):
    if program == "fsdpd":
        seconds, resident = our_run(job, case, options.limit)
    else:
        result = torch_run(case, program, options, case["steps"], options.limit)
        seconds, resident = result["seconds"], result["resident"]
    return counted(seconds, case["steps"]), resident


def measure_case(case, job, options):
    """Alternates the programs. One that fails, or exceeds a limit, is left out of later rounds, and its row
    says why."""
    programs, all_seconds = case["programs"], {}
    for number in range(case["rounds"]):
        for program in table_page.PROGRAMS[case["processes"]]:
            result = programs.setdefault(program, {"resident": 0})
            if "not_run" in result:
                continue
            try:
                seconds, resident = run(case, program, job, options)
            except (measure.NotRun, AssertionError, subprocess.TimeoutExpired) as error:
                print(f"{program}: {error}", file=sys.stderr)
                programs[program] = {"not_run": re.split("[;\n]", str(error))[0].replace("|", "/")}
                continue
            all_seconds.setdefault(program, []).extend(seconds)
            result.update(seconds=statistics.median(all_seconds[program]),
                          resident=max(resident, result["resident"]))
        case["load"] = max(case["load"], round(os.getloadavg()[0], 1))
        print(f"{case['model']}, {case['type']}, {case['processes']} processes, round {number + 1}: " +
              ", ".join(f"{program} {result['seconds'] * 1e3:,.1f} ms" for program, result in programs.items()
                        if "seconds" in result), file=sys.stderr, flush=True)


def product_rates(options):
    """Floating-point operations per second of one thread's products, the better of PyTorch's and ours, by
    type; and PyTorch's version."""
    with tempfile.TemporaryDirectory() as work:
        profile = os.path.join(work, "profile.yaml")
        subprocess.run([harness.FSDPD, "calibrate", "--workers", "1", "--threads", "1", "--seconds", "10",
                        "-o", profile], check=True, stderr=subprocess.DEVNULL)
        with open(profile) as file:
            text = file.read()
    rates = {}
    for dtype in options.dtypes:
        ours = float(re.search(rf"^flops: .*\b{dtype}: ([0-9.e+]+)", text, re.M).group(1))
        result = torch(options, 120, "--way", "rate", "--dtype", dtype)
        theirs = result["rate"]
        print(f"products of one thread in {dtype}: {ours / 1e9:,.0f} GFLOP/s by fsdpd, {theirs / 1e9:,.0f} "
              "by PyTorch", file=sys.stderr)
        rates[dtype] = max(ours, theirs)
    return rates, result["version"]


def compile_first(cases, options):
    """Fills torch.compile's cache, so that a later table does not wait for its compiler."""
    for case in cases:
        if case["processes"] == 1:
            try:
                seconds = torch_run(case, "compiled", options, 1, options.limit)["seconds"]
                print(f"{case['model']}, {case['type']}: compiled; the first step took {seconds[0]:.0f} s",
                      flush=True)
            except measure.NotRun as error:
                print(f"{case['model']}, {case['type']}: {error}", flush=True)


def choice(values):
    """A type of argparse: a comma-separated choice of the values."""
    def parse_choice(text):
        words = [type(values[0])(word) for word in text.split(",")]
        if not set(words) <= set(values):
            raise ValueError(text)
        return words
    return parse_choice


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", required=True)
    models, dtypes, worlds = list(table_models.MODELS), ["f32", "bf16"], list(table_page.PROGRAMS)
    parser.add_argument("--models", type=choice(models), default=models)
    parser.add_argument("--dtypes", type=choice(dtypes), default=dtypes)
    parser.add_argument("--processes", type=choice(worlds), default=worlds, dest="worlds")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40, help="of a run, at most")
    parser.add_argument("--seconds", type=float, default=20, help="of a run's steps, about")
    parser.add_argument("--limit", type=float, default=300, help="of a run, in seconds; it is ended then")
    parser.add_argument("--compile", action="store_true", help="only fill the cache of torch.compile")
    parser.add_argument("--update", action="store_true", help="write docs/benchmarks.json and .md")
    return parser.parse_args()


def main():
    options = parse()
    rates, version = (dict.fromkeys(options.dtypes), "") if options.compile else product_rates(options)
    cases = [new_case(name, dtype, world, rates[dtype], version) for name in options.models
             for dtype in options.dtypes for world in options.worlds]
    if options.compile:
        compile_first(cases, options)
        return
    stored = table_page.load(DATA)
    with tempfile.TemporaryDirectory() as work:
        jobs = {}
        for name in options.models:
            os.mkdir(os.path.join(work, name))
            jobs[name] = write_job(os.path.join(work, name), name)
        for case in cases:
            prepare(case, jobs[case["model"]], options)
        most = sum(case["rounds"] * len(table_page.PROGRAMS[case["processes"]]) for case in cases) * options.limit
        print(f"{len(cases)} cases take about {sum(map(expected_seconds, cases)) / 60:.0f} minutes, at most "
              f"{most / 60:.0f}", file=sys.stderr, flush=True)
        for case in cases:
            measure_case(case, jobs[case["model"]], options)
            del case["estimate"]
            if options.update:
                table_page.merge(stored, case)
                table_page.store(DATA, stored)
                table_page.update(PAGE, stored)
    print(table_page.render(cases))


if __name__ == "__main__":
    main()
