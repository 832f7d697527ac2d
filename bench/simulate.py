#!/usr/bin/env python3
"""The measurement of bench/simulate.sh; see there."""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import tempfile

import measure
import planner

harness = measure.harness
WORLDS = (2, 4, 8)
NETWORKS = {"mnist": 32, "gpt 256": 4, "llama": 4}  # and their batches
STRATEGIES = ("full_shard", "no_shard", "hybrid_shard")
BEGIN = "<!-- bench/simulate.sh -->"


def make_cases():
    """hybrid_shard needs more than two ranks."""
    for world, (network, batch), strategy in itertools.product(WORLDS, NETWORKS.items(), STRATEGIES):
        if strategy == "hybrid_shard" and world == 2:
            continue
        settings = [f"fsdp.strategy={strategy}", f"train.batch_size={batch}"]
        if strategy == "hybrid_shard":
            settings.append("fsdp.shard_size=2")
        yield planner.Case(network, world, settings)


def simulate(case, job, profile, root):
    result = subprocess.run(
        [harness.FSDPD, "plan", job, "--profile", profile, "--data-root", root, "--simulate", f"1x{case.world}",
         "-o", "json", *planner.sets(case)], check=True, stdout=subprocess.PIPE)
    case.predicted = json.loads(result.stdout)["step_seconds"]


def summary(cases):
    """The errors for each number of workers."""
    lines = []
    for world in WORLDS:
        errors = [case.error() for case in cases if case.world == world]
        lines.append(f"{world} workers: mean absolute error {statistics.mean(map(abs, errors)):.1%}, "
                     f"worst {max(errors, key=abs):+.1%}")
    return "; ".join(lines)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each run, about")
    parser.add_argument("--profile", help="a profile from fsdpd calibrate; without it, one is made")
    parser.add_argument("--update", action="store_true", help="write docs/notebook.md")
    options = parser.parse_args()
    measure.require_quiet(options.update)
    data, root = planner.find_data()
    cases, jobs = list(make_cases()), {}
    with tempfile.TemporaryDirectory() as work:
        profile = planner.find_profile(options.profile, work, max(WORLDS))
        for number, case in enumerate(cases):
            directory = os.path.join(work, str(number))
            os.mkdir(directory)
            jobs[case] = planner.write_job(directory, case, data)
            simulate(case, jobs[case], profile, root)
        with harness.Daemon(workers=max(WORLDS), data=root, arguments=["--threads", "1"]) as daemon:
            measure.share_priority(daemon)
            for _ in range(options.rounds):
                for case in cases:
                    planner.run(daemon, case, jobs[case], options.seconds)
    body = f"{planner.table(cases)}\n\n{summary(cases)}. {measure.machine()}; one thread per worker."
    print(body)
    if options.update:
        planner.replace(BEGIN, body)


if __name__ == "__main__":
    main()
