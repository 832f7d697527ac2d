#!/usr/bin/env python3
"""The measurement of bench/goals.sh; see there."""

import argparse
import os
import re
import subprocess
import sys

import measure
import table
import table_page

RUNS = {  # the arguments of each, and with --quick
    "mnist": ([], ["--rounds", "2"]),
    "gpt": ([], ["--rounds", "1", "--steps", "10"]),
    "start": ([], ["--jobs", "50", "--starts", "10", "--models", "1"]),
    "checkpoint": ([], ["--rounds", "1", "--steps", "30"]),
}


def run(name, options):
    """What the benchmark prints."""
    command = ["/usr/bin/python3", os.path.join(measure.here, name + ".py"), *RUNS[name][options.quick]]
    if name == "gpt":
        command += ["--python", options.python]
    print(f"bench/{name}.sh {' '.join(command[2:])}", file=sys.stderr, flush=True)
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    sys.stderr.write(result.stdout)
    return result.stdout if result.returncode == 0 else ""


def cells(text, *first):
    """The cells of the table's row that begins with these."""
    for line in text.splitlines():
        row = [cell.strip() for cell in line.strip("|").split("|")]
        if row[:len(first)] == list(first):
            return row
    return None


def number(text):
    return float(re.search(r"-?\+?[\d,.]+", text).group().replace(",", ""))


def goal(words, measured, most, form="{:.2f}"):
    """Prints a goal: at most `most`; a measurement that is missing is None."""
    if measured is None:
        print(f"| {words} | {form.format(most)} | not measured | |")
    else:
        print(f"| {words} | {form.format(most)} | {form.format(measured)} | "
              f"{'reached' if measured <= most else 'not reached'} |", flush=True)


def mnist_goals(text):
    found = re.search(r"^ratio (\S+)$", text, re.M)
    goal("MNIST, two processes, over PyTorch 1.13 DDP", found and float(found.group(1)), 0.35)


def gpt_goals(text):
    one, two, small = (cells(text, *first) for first in (("medium", "1"), ("medium", "2"), ("small", "2")))
    goal("medium GPT, f32: a step of two processes over half of one's",
         one and two and 2 * number(two[2]) / number(one[2]), 1.05)
    goal("small GPT, f32, two processes, over PyTorch DDP", small and number(small[6]), 0.7)


def start_goals(text):
    for name in ("MNIST", "small GPT"):
        row = cells(text, name)
        goal(f"{name}, submission to the first step without the step, p99, ms", row and number(row[3]), 50, "{:.0f}")
        goal(f"{name}, a whole job of one step, ms (300 a minute)", row and number(row[4]), 200, "{:.0f}")
    ready = re.search(r"^READY after (\d+) ms", text, re.M)
    goal("fsdpd with two workers until READY, p50, ms", ready and int(ready.group(1)), 150, "{:.0f}")
    for where in ("on the disk", "in the page cache"):
        row = cells(text, where)
        goal(f"a model of 2 GB {where}: until training starts, over cat", row and number(row[3]), 1)


def checkpoint_goals(text):
    row = cells(text, "medium")
    stall = row and number(row[2].split("(")[1])
    goal("medium GPT: the stall at a checkpoint, % of a step", stall, 5, "{:.1f}")


def table_goals():
    """Of the table's cases on this machine."""
    machine = measure.machine()
    cases = {table_page.key(case)[1:]: case for case in table_page.load(table.DATA) if case["machine"] == machine}

    def ratio(model, dtype, world, program):
        case = cases.get((model, dtype, world))
        return case and table_page.ratio(case, program)

    goal("MNIST, f32, one process, over PyTorch 2 compiled", ratio("mnist", "f32", 1, "compiled"), 0.5)
    for world in (1, 2):
        others = [ratio("resnet-18", "f32", world, program) for program in table_page.PROGRAMS[world][1:]]
        goal(f"ResNet-18, f32, {world} processes, over the fastest PyTorch",
             max(filter(None, others), default=None), 0.7)
    with open("/proc/cpuinfo") as file:
        amx = " amx_bf16" in file.read()
    for model in dict.fromkeys(model for model, _, _ in cases):
        f32, bf16 = (cases.get((model, dtype, 1), {"programs": {}})["programs"].get("fsdpd", {}).get("seconds")
                     for dtype in ("f32", "bf16"))
        if amx:
            goal(f"{model}: bf16 over our own f32, AMX", f32 and bf16 and bf16 / f32, 0.25)
        others = [ratio(model, "bf16", 1, program) for program in ("eager", "compiled")]
        goal(f"{model}, bf16, one process, over the faster of autocast eager and compiled",
             max(filter(None, others), default=None), 0.6)
    for key, case in cases.items():
        resident, planned = case["programs"].get("fsdpd", {}).get("resident"), case.get("planned")
        if resident and planned:
            outside = resident - planned["arenas"] - 0.05 * planned["arenas"]
            goal(f"{', '.join(map(str, key))}: memory outside of the plan less 5 %, MB", outside / 1e6, 60, "{:.0f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", required=True)
    parser.add_argument("--runs", type=table.choice(list(RUNS)), default=list(RUNS))
    parser.add_argument("--quick", action="store_true", help="fewer runs")
    options = parser.parse_args()
    texts = {name: run(name, options) if name in options.runs else "" for name in RUNS}
    print("| goal | at most | measured | |\n| --- | --- | --- | --- |")
    for name, show in zip(RUNS, (mnist_goals, gpt_goals, start_goals, checkpoint_goals)):
        show(texts[name])
    table_goals()
    print(f"{measure.machine()}; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
