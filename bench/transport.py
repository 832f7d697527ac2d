#!/usr/bin/env python3
"""The measurement of bench/transport.sh; see there."""

import argparse
import json
import os
import statistics
import sys

import gpt
import measure

TRANSPORTS = {"shared memory": [], "gloo": ["fsdp.transport=gloo"]}


def losses(daemon):
    """The newest job's reports, as printed."""
    job = daemon.json("list")[-1]["id"]
    events = map(json.loads, daemon.ctl("watch", job, "-o", "json").stdout.splitlines())
    return [event["metrics"]["loss"] for event in events if "metrics" in event]


def compare(daemon, options, size):
    """Prints a row: both medians, and the median and quartiles of the rounds' ratios. Alternating
    runs, every other round in the other order."""
    steps = {name: [] for name in TRANSPORTS}
    ratios, seen = [], set()
    for number in range(options.rounds):
        names = list(TRANSPORTS)
        medians = {}
        for name in names if number % 2 == 0 else names[::-1]:
            seconds = gpt.our_run(daemon, size, 2, options.steps, TRANSPORTS[name])
            steps[name] += seconds
            medians[name] = statistics.median(seconds)
            seen.add(tuple(losses(daemon)))
        ratios.append(medians["shared memory"] / medians["gloo"])
    if len(seen) != 1:
        sys.exit(f"{size}: the losses differ")
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    ours, theirs = (statistics.median(steps[name]) * 1e3 for name in TRANSPORTS)
    print(f"| {size} | {ours:.1f} ms | {theirs:.1f} ms | {middle:.2f} ({low:.2f}, {high:.2f}) |",
          flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--size", choices=sorted(gpt.SIZES), action="append", dest="sizes")
    parser.add_argument("--text", default=measure.find_text())
    options = parser.parse_args()
    if options.text is None:
        sys.exit("no text to train on: give one with --text FILE")
    print("| size | shared memory, a step | gloo, a step | ratio (quartiles of the rounds) |")
    print("| --- | --- | --- | --- |", flush=True)
    with measure.harness.Daemon(data=os.path.dirname(options.text),
                                arguments=["--threads", "1"]) as daemon:
        daemon.text_path = options.text
        for size in options.sizes or list(gpt.SIZES):
            compare(daemon, options, size)
    print(f"two processes of one thread; {measure.machine()}")


if __name__ == "__main__":
    main()
