#!/usr/bin/env python3
"""The measurement of bench/choices.sh; see there."""

import argparse
import itertools
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time

import measure
import planner

harness = measure.harness
# Network, workers, samples per step and rank, the part of the free choice's memory that is allowed.
CASES = (("mnist", 1, 64, 1), ("mnist", 2, 64, 1), ("mnist", 4, 64, 0.9),
         ("gpt 128", 1, 8, 0.8), ("gpt 128", 2, 8, 1), ("gpt 128", 4, 8, 1),
         ("gpt 256", 2, 4, 0.8), ("bert", 2, 4, 1), ("llama", 1, 4, 1), ("llama", 2, 8, 0.8))
HOPELESS = 1.5  # times the choice's predicted time: not run
CLOSE = 1.15    # times the fastest: runs once more
BEGIN = "<!-- bench/choices.sh -->"


class Choice:
    """A job, the planner's choice for it, and what else would fit."""

    def __init__(self, network, world, samples, part):
        self.network, self.world, self.samples, self.part = network, world, samples, part
        self.memory = self.chosen = self.others = self.other = self.words = None
        self.fitting = 0

    def case(self, settings):
        return planner.Case(self.network, self.world, settings)

    def asked(self):
        return self.case([f"train.batch_size={self.samples}"])

    def ratio(self):
        return self.chosen.measured / min(self.chosen.measured, self.other.measured)


def grid(choice):
    """The settings of every alternative; some may have equal plans."""
    units = [["fsdp.wrap.policy=none"]]
    if choice.network == "mnist":
        units += [["fsdp.wrap.policy=size", f"fsdp.wrap.min_num_params={size}"]
                  for size in (1000000, 100000, 10000, 1000)]
    else:
        units.append(["fsdp.wrap.policy=auto"])
    strategies = [["fsdp.strategy=full_shard"]]
    if choice.world > 1:
        strategies += [["fsdp.strategy=shard_grad_op"], ["fsdp.strategy=no_shard"]]
    if choice.world > 2:
        strategies.append(["fsdp.strategy=hybrid_shard", "fsdp.shard_size=2"])
    modules = f"fsdp.activation_checkpointing=[{planner.BLOCKS.get(choice.network, 'blocks.*')}]"
    recompute = [[], [modules], [modules, "fsdp.recompute=cheap"]]
    batches = [[f"train.accumulation_steps={steps}",
                f"train.batch_size={choice.samples // steps}"] + no_sync
               for steps in (1, 2, 4)
               for no_sync in ([[], ["train.no_sync=true"]] if steps > 1 < choice.world else [[]])]
    for parts in itertools.product(strategies, units, recompute, batches):
        yield [setting for part in parts for setting in part]


def choose(choice, ask):
    """The choice within the budget, as a case."""
    if choice.part < 1:
        free = ask(choice.asked(), "--auto")
        choice.memory = math.floor(int(free["resident_bytes"]) - (1 - choice.part) *
                                   int(free["peak_bytes"]))
    best = ask(choice.asked(), "--auto", *budget(choice))["choices"][0]
    choice.words = best["description"]
    return choice.case(best["settings"])


def budget(choice):
    return ["--memory", str(choice.memory)] if choice.memory else []


def find_others(choice, ask, most):
    """Distinct plans that fit: the `most` of them that are predicted to be the fastest, without
    those that are predicted to be much slower than the choice."""
    plan = ask(choice.chosen)
    planner.note_plan(choice.chosen, plan)
    known, fitting = {plan["hash"]}, []
    for settings in grid(choice):
        case = choice.case(settings)
        plan = ask(case, *budget(choice))
        if plan is None or plan["hash"] in known:
            continue
        known.add(plan["hash"])
        planner.note_plan(case, plan)
        fitting.append(case)
    choice.fitting = len(fitting)
    fitting.sort(key=lambda case: case.predicted)
    choice.others = [case for case in fitting[:most]
                     if case.predicted <= HOPELESS * choice.chosen.predicted]


def measure_choice(daemon, choice, job, options):
    """Eliminates the slower ones, then compares the choice with the fastest other in runs of their
    own: the fastest of many is also the luckiest, so its earlier times do not count."""
    others = choice.others
    while len(others) > 1:
        for case in others:
            planner.run(daemon, case, job, options.seconds)
        fastest = min(case.measured for case in others)
        close = [case for case in others if case.measured <= CLOSE * fastest]
        others = close if len(close) < len(others) else []
    choice.other = min(choice.others, key=lambda case: case.measured)
    pair = [choice.chosen, choice.other]
    choice.other.times = []
    for number in range(options.rounds):
        for case in pair if number % 2 == 0 else pair[::-1]:
            planner.run(daemon, case, job, options.seconds)


def summary(choices):
    ratios = [choice.ratio() for choice in choices]
    within = sum(ratio <= 1.05 for ratio in ratios)
    return (f"{len(choices)} jobs: in {within} the choice is within 5 % of the fastest measured; "
            f"worst {max(ratios) - 1:.1%}, mean {statistics.mean(ratios) - 1:.1%}")


def table(choices):
    lines = ["| network | workers | memory | chosen | step | fastest other | step | measured | slower by |",
             "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    for choice in choices:
        memory = f"{choice.memory / 1e6:.1f} MB" if choice.memory else "free"
        lines.append(
            f"| {choice.network} | {choice.world} | {memory} | {choice.words} | "
            f"{choice.chosen.measured * 1e3:.1f} ms | {choice.other.words()} | "
            f"{choice.other.measured * 1e3:.1f} ms | {len(choice.others)} of {choice.fitting} | "
            f"{choice.ratio() - 1:.1%} |")
    return "\n".join(lines)


def update(choices, options):
    body = (f"{summary(choices)}. {measure.machine()}; one thread per worker, {options.rounds} runs "
            f"of each pair.\n\n{table(choices)}")
    planner.replace(BEGIN, body)


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5, help="of the choice and the fastest other")
    parser.add_argument("--seconds", type=float, default=0.6, help="of each run, about")
    parser.add_argument("--most", type=int, default=14, help="alternatives that are measured")
    parser.add_argument("--profile", help="a profile from fsdpd calibrate; without it, one is made")
    parser.add_argument("--case", type=int, action="append", help="1 is the first; all without it")
    parser.add_argument("--update", action="store_true", help="write docs/planner.md")
    return parser.parse_args()


def main():
    options = parse()
    data, root = planner.find_data()
    numbers = options.case or range(1, len(CASES) + 1)
    choices = [Choice(*CASES[number - 1]) for number in numbers]
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as work:
        profile = planner.find_profile(options.profile, work)
        with harness.Daemon(workers=4, data=root, arguments=["--threads", "1"]) as daemon:
            measure.share_priority(daemon)
            for number, choice in enumerate(choices, 1):
                directory = os.path.join(work, str(number))
                os.mkdir(directory)
                job = planner.write_job(directory, choice.asked(), data)

                def ask(case, *more, job=job):
                    return planner.ask(case, job, profile, root, *more)

                choice.chosen = choose(choice, ask)
                find_others(choice, ask, options.most)
                measure_choice(daemon, choice, job, options)
                print(f"{number} of {len(choices)} jobs after "
                      f"{(time.monotonic() - begin) / 60:.1f} minutes: {choice.network}, "
                      f"{choice.world} workers: {choice.ratio() - 1:.1%} slower than the fastest",
                      file=sys.stderr)
    print(table(choices))
    print(f"\n{summary(choices)}\nmachine: {measure.machine()}; load {os.getloadavg()[0]:.1f}")
    if options.update:
        update(choices, options)


if __name__ == "__main__":
    main()
