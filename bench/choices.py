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
         ("gpt 256", 2, 4, 0.8), ("gpt 256", 2, 8, 1), ("bert", 1, 4, 0.8), ("bert", 2, 4, 1),
         ("llama", 1, 4, 1), ("llama", 2, 8, 0.8))
HOPELESS = 1.5  # times the choice's predicted time: not run, if anything else can be
CLOSE = 1.15    # times the fastest: runs once more
PAIRS = 3       # runs of the choice and the fastest other, however long they take
BEGIN = "<!-- bench/choices.sh -->"


class Choice:
    """A job, the planner's choice for it, and what else would fit."""

    def __init__(self, network, world, samples, part):
        self.network, self.world, self.samples, self.part = network, world, samples, part
        self.memory = self.chosen = self.others = self.other = self.words = self.next = None
        self.fitting = 0

    def case(self, settings):
        return planner.Case(self.network, self.world, settings)

    def asked(self):
        return self.case([f"train.batch_size={self.samples}"])

    def ratio(self):
        """How much longer the choice takes than the fastest: the median over pairs of runs."""
        pairs = zip(self.chosen.times, self.other.times)
        return max(1, statistics.median(chosen / other for chosen, other in pairs))


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
    best, *others = ask(choice.asked(), "--auto", *budget(choice))["choices"]
    choice.words = best["description"]
    choice.next = [harness.settings_of(other) for other in others]
    return choice.case(harness.settings_of(best))


def budget(choice):
    return ["--memory", str(choice.memory)] if choice.memory else []


def find_others(choice, ask, most):
    """Distinct plans that fit: the `most` of them that are predicted to be the fastest, without
    those that are predicted to be much slower than the choice; at least one, if any fits."""
    plan = ask(choice.chosen)
    planner.note_plan(choice.chosen, plan)
    known, fitting = {plan["hash"]}, []
    for settings in itertools.chain(choice.next, grid(choice)):
        case = choice.case(settings)
        plan = ask(case, *budget(choice))
        if plan is None or plan["hash"] in known:
            continue
        known.add(plan["hash"])
        planner.note_plan(case, plan)
        fitting.append(case)
    choice.fitting = len(fitting)
    fitting.sort(key=lambda case: case.predicted)
    choice.others = [case for case in fitting[:most] if case is fitting[0] or
                     case.predicted <= HOPELESS * choice.chosen.predicted]


def measure_choice(daemon, choice, job, options, seconds):
    """Eliminates the slower ones, then compares the choice with the fastest other in runs of their
    own: the fastest of many is also the luckiest, so its earlier times do not count. Ends after
    about `seconds`: no second elimination begins after half of that, and no pair beyond the first
    few after all of it."""
    begin = time.monotonic()
    others = choice.others
    while len(others) > 1 and (others is choice.others or time.monotonic() < begin + seconds / 2):
        for case in others:
            planner.run(daemon, case, job, options.seconds)
        fastest = min(case.measured for case in others)
        close = [case for case in others if case.measured <= CLOSE * fastest]
        others = close if len(close) < len(others) else []
    choice.other = min(choice.others, key=lambda case: case.measured, default=None)
    if choice.other is None:
        return
    pair = [choice.chosen, choice.other]
    choice.other.times = []
    for number in range(options.rounds):
        if number >= PAIRS and time.monotonic() > begin + seconds:
            break
        for case in pair if number % 2 == 0 else pair[::-1]:
            planner.run(daemon, case, job, options.seconds)


def report(choice):
    """What was measured, the fastest first: for those who want to know why a choice is slow."""
    ran = [case for case in (choice.chosen, *choice.others) if case.measured]
    for case in sorted(ran, key=lambda case: case.measured):
        mark = "*" if case is choice.chosen else " "
        print(f"  {mark} measured {case.measured * 1e3:8.2f} ms, predicted "
              f"{case.predicted * 1e3:8.2f} ms, {case.planned / 1e6:6.1f} MB, {len(case.times)} "
              f"runs: {case.words()}", file=sys.stderr)


def summary(choices):
    """Workers without a processor of their own wait for one: what they take depends on the scheduler."""
    lines = []
    for crowded in (False, True):
        ratios = [choice.ratio() for choice in choices
                  if choice.other and (choice.world > os.cpu_count()) == crowded]
        if ratios:
            within = sum(ratio <= 1.05 for ratio in ratios)
            lines.append(f"{len(ratios)} jobs with {'more' if crowded else 'at most as many'} workers "
                         f"{'than' if crowded else 'as'} processors: in {within} the choice is within 5 % of "
                         f"the fastest measured; worst {max(ratios) - 1:.1%}, mean {statistics.mean(ratios) - 1:.1%}")
    return "; ".join(lines) or "no job has an alternative that fits"


def table(choices):
    lines = ["| network | workers | memory | chosen | predicted | step | fastest other | predicted | "
             "step | measured | slower by |", "| --- " * 11 + "|"]
    for choice in choices:
        memory = f"{choice.memory / 1e6:.1f} MB" if choice.memory else "free"
        row = (f"| {choice.network} | {choice.world} | {memory} | {choice.words} | "
               f"{choice.chosen.predicted * 1e3:.1f} ms | ")
        if choice.other is None:
            lines.append(row + "- | nothing else fits | - | - | 0 of 0 | - |")
            continue
        lines.append(
            row + f"{choice.chosen.measured * 1e3:.1f} ms | {choice.other.words()} | "
            f"{choice.other.predicted * 1e3:.1f} ms | {choice.other.measured * 1e3:.1f} ms | "
            f"{len(choice.others)} of {choice.fitting} | {choice.ratio() - 1:.1%} |")
    return "\n".join(lines)


def update(choices, options):
    body = (f"{summary(choices)}. {measure.machine()}; one thread per worker, up to "
            f"{options.rounds} runs of each pair.\n\n{table(choices)}")
    planner.replace(BEGIN, body)


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5, help="of the choice and the fastest other")
    parser.add_argument("--seconds", type=float, default=0.6, help="of each run, about")
    parser.add_argument("--most", type=int, default=14, help="alternatives that are measured")
    parser.add_argument("--minutes", type=float, default=12, help="for all jobs together, about")
    parser.add_argument("--profile", help="a profile from fsdpd calibrate; without it, one is made")
    parser.add_argument("--case", type=int, action="append", help="1 is the first; all without it")
    parser.add_argument("--update", action="store_true", help="write docs/notebook.md")
    return parser.parse_args()


def main():
    options = parse()
    measure.require_quiet(options.update)
    data, root = planner.find_data()
    numbers = options.case or range(1, len(CASES) + 1)
    choices = [Choice(*CASES[number - 1]) for number in numbers]
    print(f"{len(choices)} jobs, about {options.minutes * len(choices) / len(CASES):.0f} minutes at "
          "most on an idle machine", file=sys.stderr)
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

                start = time.monotonic()
                choice.chosen = choose(choice, ask)
                find_others(choice, ask, options.most)
                left = options.minutes * 60 / len(CASES) - (time.monotonic() - start)
                measure_choice(daemon, choice, job, options, left)
                slower = f"{choice.ratio() - 1:.1%} slower than the fastest other" \
                    if choice.other else "nothing else fits"
                print(f"{number} of {len(choices)} jobs after "
                      f"{(time.monotonic() - begin) / 60:.1f} minutes: {choice.network}, "
                      f"{choice.world} workers: {slower}", file=sys.stderr)
                report(choice)
    print(table(choices))
    print(f"\n{summary(choices)}\nmachine: {measure.machine()}; load {os.getloadavg()[0]:.1f}")
    if options.update:
        update(choices, options)


if __name__ == "__main__":
    main()
