#!/usr/bin/env python3
"""The measurement of bench/planner.sh; see there."""

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

import gpt
import measure

harness = measure.harness
GPTS = {"gpt 128": (4, 4, 128, 64), "gpt 256": (4, 8, 256, 128), "gpt 384": (6, 6, 384, 128)}
EXAMPLES = {"bert": "bert", "llama": "llama"}
NETWORKS = ("mnist", *GPTS, *EXAMPLES)
BLOCKS = {"bert": "bert.encoder.layer.*", "llama": "model.layers.*", "mnist": "conv1"}
RUN_SECONDS = 1  # what a run takes beside its steps
BEGIN, END = "<!-- bench/planner.sh -->", "<!-- end -->"


class Case:
    """A job file with settings that were drawn."""

    def __init__(self, network, world, settings):
        self.network, self.world, self.settings = network, world, settings
        self.predicted = self.planned = self.measured = self.peak = None
        self.times = []

    def words(self):
        return ", ".join(setting.split(".", 1)[1] for setting in self.settings)

    def error(self):
        return self.predicted / self.measured - 1


def draw(choice, number):
    """The networks and numbers of workers take turns, so that every draw has all of them."""
    network = NETWORKS[number % len(NETWORKS)]
    world = (1, 2, 4)[number // len(NETWORKS) % 3]
    strategies = ["full_shard", "shard_grad_op", "no_shard"] + ["hybrid_shard"] * (world == 4)
    strategy = choice.choice(strategies)
    settings = [f"fsdp.strategy={strategy}"]
    if strategy == "hybrid_shard":
        settings.append("fsdp.shard_size=2")
    settings.append("fsdp.wrap.policy=" + choice.choice(
        ["none", "size"] if network == "mnist" else ["none", "auto", "size"]))
    if settings[-1].endswith("size"):
        settings.append(f"fsdp.wrap.min_num_params={choice.choice([20000, 100000])}")
    settings.append(f"precision.param_dtype={choice.choice(['f32', 'f32', 'bf16'])}")
    if choice.random() < 1 / 3:
        blocks = BLOCKS.get(network, "blocks.*")
        settings.append(f"fsdp.activation_checkpointing=[{blocks}]")
    accumulation = choice.choice([1, 1, 2, 4])
    settings.append(f"train.accumulation_steps={accumulation}")
    settings.append(f"train.batch_size={choice.choice([16, 32, 64] if network == 'mnist' else [2, 4, 8])}")
    settings.append("optimizer.type=" + choice.choice(["adamw", "sgd", "adadelta"]))
    return Case(network, world, settings)


def write_job(directory, case, data):
    """Writes the case's job and model; returns the job's path."""
    if case.network == "mnist":
        data_lines = f"{{format: idx, dir: {data['images']}}}"
        model = os.path.join(harness.SOURCE, "examples/mnist/net.yaml")
        with open(model) as file:
            text = file.read()
    elif case.network in GPTS:
        layers, heads, width, context = GPTS[case.network]
        text = gpt.MODEL.format(layers=layers, heads=heads, width=width, context=context)
        data_lines = f"{{format: text, path: {data['text']}, context: {context}}}"
    else:
        model = os.path.join(harness.SOURCE, "examples", EXAMPLES[case.network], "model.yaml")
        with open(model) as file:
            text = file.read()
        masked = ", objective: masked, mask_token: 256" if case.network == "bert" else ""
        data_lines = f"{{format: text, path: {data['text']}, context: 128{masked}}}"
    with open(os.path.join(directory, "model.yaml"), "w") as file:
        file.write(text)
    job = os.path.join(directory, "job.yaml")
    with open(job, "w") as file:
        file.write(f"name: planner\nmodel: {{file: model.yaml}}\ndata: {data_lines}\n"
                   "train: {epochs: 1000, log_interval: 1, evaluate: false}\noptimizer: {type: adamw, lr: 1e-4}\n"
                   f"workers: {case.world}\nsave_model: false\n")
    return job


def sets(case, *more):
    return [word for setting in (*case.settings, *more) for word in ("--set", setting)]


def ask(case, job, profile, data_root, *more):
    """The plan of fsdpd plan, or None if it does not fit."""
    result = subprocess.run(
        [harness.FSDPD, "plan", job, "--profile", profile, "--data-root", data_root,
         "--threads", "1", "-o", "json", *more, *sets(case)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if result.returncode == harness.DOES_NOT_FIT:
        return None
    if result.returncode != 0:
        sys.exit(f"{case.network}, {case.words()}: {result.stderr}")
    return json.loads(result.stdout)


def note_plan(case, plan):
    steps = {program["name"]: program["estimate"]["step_seconds"] for program in plan["programs"]}
    case.predicted = steps["train"] + (max(int(plan["micro_steps"]), 1) - 1) * \
        steps.get("accumulate", 0)
    case.planned = int(plan["peak_bytes"])


def steps_for(case, seconds):
    """As many steps as fit, at least enough for a median. What was measured in an earlier round
    counts more than the prediction, which may be far too short on a busy machine."""
    return max(6, min(60, math.ceil(seconds / (case.measured or case.predicted))))


def announce(cases, options):
    """How long the runs take if the predictions hold."""
    steps = sum(steps_for(case, options.seconds) * case.predicted for case in cases)
    minutes = options.rounds * (steps + RUN_SECONDS * len(cases)) / 60
    print(f"{options.rounds} x {len(cases)} runs, about {math.ceil(minutes)} minutes", file=sys.stderr)


def run_round(daemon, cases, jobs, options, number):
    begin = time.monotonic()
    for done, case in enumerate(cases, 1):
        run(daemon, case, jobs[case], options.seconds)
        if done % 12 == 0 or done == len(cases):
            print(f"round {number}: {done} of {len(cases)} runs after "
                  f"{(time.monotonic() - begin) / 60:.1f} minutes", file=sys.stderr)


def run(daemon, case, job, seconds):
    steps = steps_for(case, seconds)
    result = daemon.ctl("submit", job, "--wait", *sets(
        case, f"train.max_steps={steps}"), timeout=1800)
    if result.returncode != 0:
        sys.exit(f"{case.network}, {case.words()}: {result.stderr}")
    times, last = measure.step_seconds(daemon)
    case.times.append(statistics.median(times[steps // 10:]))
    case.measured = statistics.median(case.times)
    case.peak = int(last["memory_peak_bytes"])


def summary(cases):
    errors = sorted(abs(case.error()) for case in cases)
    exact = sum(case.planned == case.peak for case in cases)
    return (f"{len(cases)} configurations: mean absolute error {statistics.mean(errors):.1%}, "
            f"median {statistics.median(errors):.1%}, worst {errors[-1]:.1%}; "
            f"peak memory equal to the byte in {exact}")


def table(cases):
    lines = ["| network | workers | settings | predicted | measured | error |",
             "| --- | --- | --- | --- | --- | --- |"]
    for case in cases:
        lines.append(f"| {case.network} | {case.world} | {case.words()} | "
                     f"{case.predicted * 1e3:.1f} ms | {case.measured * 1e3:.1f} ms | "
                     f"{case.error():+.0%} |")
    return "\n".join(lines)


def ticks(low, high):
    """1, 2, 5, 10, 20, ... milliseconds, from one that is at most `low` to one that is at least `high`."""
    steps = [digit * 10 ** power for power in range(7) for digit in (1, 2, 5)]
    return [step for step in steps if 2.6 * step > low and step < 2.6 * high]


def scatter(cases):
    """An SVG of predicted over measured, both axes logarithmic, with lines at 0 and ±30 %."""
    values = [value * 1e3 for case in cases for value in (case.predicted, case.measured)]
    marks = ticks(min(values), max(values))
    size, edge = 520, 72
    scale = (size - 2 * edge) / math.log10(marks[-1] / marks[0])

    def at(milliseconds):
        return edge + math.log10(milliseconds / marks[0]) * scale

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size} {size}" '
             'font-family="sans-serif" font-size="12">',
             f'<rect width="{size}" height="{size}" fill="white"/>',
             f'<clipPath id="plot"><rect x="{edge}" y="{edge}" width="{size - 2 * edge}" '
             f'height="{size - 2 * edge}"/></clipPath>']
    for mark in marks:
        where = at(mark)
        parts.append(f'<path d="M{where:.1f} {edge}V{size - edge}M{edge} {size - where:.1f}'
                     f'H{size - edge}" stroke="#ddd" fill="none"/>')
        parts.append(f'<text x="{where:.1f}" y="{size - edge + 18}" text-anchor="middle">{mark:,}</text>')
        parts.append(f'<text x="{edge - 6}" y="{size - where + 4:.1f}" text-anchor="end">{mark:,}</text>')
    for factor, colour in ((1, "#333"), (1.3, "#bbb"), (0.7, "#bbb")):
        shift = math.log10(factor) * scale
        parts.append(f'<path d="M{edge} {size - edge - shift:.1f}L{size - edge} '
                     f'{edge - shift:.1f}" stroke="{colour}" clip-path="url(#plot)"/>')
    colours = {1: "#1b6ac9", 2: "#d9822b", 4: "#2b9348"}
    for case in cases:
        parts.append(f'<circle cx="{at(case.measured * 1e3):.1f}" cy="{size - at(case.predicted * 1e3):.1f}" '
                     f'r="3.5" fill="{colours[case.world]}" fill-opacity="0.7"/>')
    for row, (world, colour) in enumerate(colours.items()):
        parts.append(f'<circle cx="{edge + 12}" cy="{edge + 12 + 18 * row}" r="4" '
                     f'fill="{colour}"/><text x="{edge + 22}" y="{edge + 16 + 18 * row}">'
                     f'{world} worker{"s" if world > 1 else ""}</text>')
    parts.append(f'<text x="{size / 2}" y="{size - 24}" text-anchor="middle">measured, milliseconds a step'
                 f'</text><text transform="translate(20 {size / 2}) rotate(-90)" text-anchor="middle">'
                 "predicted, milliseconds a step</text></svg>")
    return "\n".join(parts) + "\n"


def replace(begin, body):
    """Replaces what is between two marks of docs/notebook.md."""
    page = os.path.join(harness.SOURCE, "docs/notebook.md")
    with open(page) as file:
        before, rest = file.read().split(begin, 1)
    after = rest.split(END, 1)[1]
    with open(page, "w") as file:
        file.write(f"{before}{begin}\n{body}\n{END}{after}")


def update(cases, options):
    """Replaces the table of docs/notebook.md, between its marks, and the plot of docs/planner.md."""
    replace(BEGIN,
            f"{summary(cases)}. {measure.machine()}; one thread per worker, seed {options.seed}, "
            f"median of {options.rounds} rounds.\n\n"
            f"{table(cases)}")
    with open(os.path.join(harness.SOURCE, "docs/planner.svg"), "w") as file:
        file.write(scatter(cases))


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=108)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each run, about")
    parser.add_argument("--profile", help="a profile from fsdpd calibrate; without it, one is made")
    parser.add_argument("--network", action="append", choices=NETWORKS)
    parser.add_argument("--update", action="store_true", help="write docs/notebook.md and its plot")
    return parser.parse_args()


def find_data():
    """The paths of the images and the text, and the directory that has both."""
    data = {"images": harness.find_mnist(), "text": measure.find_text()}
    if None in data.values():
        sys.exit("MNIST or the text to train on is missing (FSDPD_MNIST, FSDPD_TEXT)")
    return data, os.path.commonpath(list(data.values()))


def find_profile(given, work, workers=4):
    """The path of the given profile, or of one that is measured now."""
    profile = os.path.abspath(given or os.path.join(work, "profile.yaml"))
    if not given:
        subprocess.run([harness.FSDPD, "calibrate", "--workers", str(workers), "-o", profile], check=True)
    return profile


def main():
    options = parse()
    measure.require_quiet(options.update)
    data, root = find_data()
    choice = random.Random(options.seed)
    cases = [draw(choice, number) for number in range(options.count)]
    if options.network:
        cases = [case for case in cases if case.network in options.network]
    with tempfile.TemporaryDirectory() as work:
        profile = find_profile(options.profile, work)
        jobs = {}
        for number, case in enumerate(cases):
            directory = os.path.join(work, str(number))
            os.mkdir(directory)
            jobs[case] = write_job(directory, case, data)
            plan = ask(case, jobs[case], profile, root)
            if plan is None:
                sys.exit(f"{case.network}, {case.words()}: does not fit")
            note_plan(case, plan)
        with harness.Daemon(workers=4, data=root, arguments=["--threads", "1"]) as daemon:
            measure.share_priority(daemon)
            announce(cases, options)
            for number in range(1, options.rounds + 1):
                run_round(daemon, choice.sample(cases, len(cases)), jobs, options, number)
    print(table(cases))
    print(f"\n{summary(cases)}\nmachine: {measure.machine()}; load {os.getloadavg()[0]:.1f}")
    if options.update:
        update(cases, options)


if __name__ == "__main__":
    main()
