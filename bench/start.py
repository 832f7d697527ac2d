#!/usr/bin/env python3
"""The measurement of bench/start.sh; see there."""

import argparse
import json
import os
import re
import shutil
import socket
import statistics
import sys
import tempfile
import time

import gpt
import measure
import start_model

harness = measure.harness

# The stages between a submission and the first step, in order: their names and log lines.
STAGES = (("submitted", None), ("queued", "state=QUEUED"), ("placed", "state=STARTING"),
          ("assigned", "attempt_started"), ("planned", "planned"), ("joined", "group_joined"),
          ("training", "training_started"), ("first step", None))


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def log_times(daemon, job):
    """The time at which the last rank reached each stage, in seconds since 1970."""
    times = {}
    for line in daemon.ctl("logs", job).stdout.splitlines():
        stamp = harness.seconds(line.split()[0])
        for name, mark in STAGES:
            if mark is not None and re.search(rf" {mark}\b", line):
                times[name] = max(stamp, times.get(name, 0))
    return times


def run_job(daemon, submit):
    """Seconds from the submission to each stage, and the run's step times."""
    began = time.time()
    result = submit()
    ended = time.time()
    if result.returncode != 0:
        sys.exit(result.stderr)
    job = daemon.json("list")[-1]["id"]
    events = map(json.loads, daemon.ctl("watch", job, "-o", "json").stdout.splitlines())
    steps = [event for event in events if "metrics" in event]
    times = dict(log_times(daemon, job), submitted=began)
    times["first step"] = harness.seconds(steps[0]["time"])
    ends = [event["metrics"]["train_seconds"] for event in steps]
    return ({name: times[name] - began for name, _ in STAGES},
            [after - before for before, after in zip(ends, ends[1:])], ended - began)


def mnist(daemon, steps):
    return lambda: daemon.submit(f"train.max_steps={steps}", "train.epochs=1000",
                                 "train.log_interval=1", "train.evaluate=false",
                                 "save_model=false", wait=True)


def small_gpt(daemon, steps):
    job = os.path.join(daemon.root, "gpt.yaml")
    layers, heads, width, context, windows = gpt.SIZES["small"]
    with open(os.path.join(daemon.root, "model.yaml"), "w") as file:
        file.write(gpt.MODEL.format(layers=layers, heads=heads, width=width, context=context))
    with open(job, "w") as file:
        file.write(gpt.JOB.format(data=daemon.text_path, context=context, batch=windows // 2,
                                  world=2))
    return lambda: daemon.ctl("submit", job, "--set", f"train.max_steps={steps}", "--wait")


def measure_jobs(daemon, name, make, count):
    """Runs jobs of one step one after the other, and before them a longer job that times the step."""
    _, steps, _ = run_job(daemon, make(daemon, 30))
    step = statistics.median(steps)
    rows, walls = [], []
    for _ in range(count):
        times, _, wall = run_job(daemon, make(daemon, 1))
        rows.append(times)
        walls.append(wall)
    overhead = [(row["first step"] - step) * 1e3 for row in rows]
    print(f"| {name} | {step * 1e3:.1f} | {percentile(overhead, 0.5):.0f} | "
          f"{percentile(overhead, 0.99):.0f} | {statistics.median(walls) * 1e3:.0f} | "
          + " | ".join(f"{statistics.median((row[to] - row[of]) * 1e3 for row in rows):.0f}"
                       for (of, _), (to, _) in zip(STAGES, STAGES[1:])) + " |", flush=True)


def ready_seconds(data):
    """The time from fsdpd's start to READY=1, with two workers."""
    with tempfile.TemporaryDirectory() as root:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
            path = os.path.join(root, "notify")
            notified.bind(path)
            notified.settimeout(harness.PATIENCE)
            began = time.monotonic()
            process = measure.subprocess.Popen(
                [harness.FSDPD, "--workers", "cpu:2", "--runtime-dir", root + "/run",
                 "--state-dir", root + "/state", "--data-root", data],
                env=dict(os.environ, FSDPD_CONFIG="", NOTIFY_SOCKET=path),
                stdin=measure.subprocess.DEVNULL, stdout=measure.subprocess.DEVNULL,
                stderr=measure.subprocess.DEVNULL)
            while b"READY=1" not in notified.recv(4096):
                pass
            seconds = time.monotonic() - began
            process.terminate()
            process.wait()
    return seconds


def measure_daemon(options):
    with harness.Daemon(arguments=["--threads", "1"]) as daemon:
        print("| job | a step, ms | first step minus a step, p50 | p99 | whole job | "
              + " | ".join(f"to {name}" for name, _ in STAGES[1:]) + " |")
        print("|" + " --- |" * (5 + len(STAGES) - 1), flush=True)
        if options.jobs > 0:
            measure_jobs(daemon, "MNIST", mnist, options.jobs)
        if options.jobs > 0 and options.text is not None:
            daemon.text_path = os.path.join(daemon.data, "text.txt")
            shutil.copy(options.text, daemon.text_path)
            measure_jobs(daemon, "small GPT", small_gpt, options.jobs)
        if options.starts > 0:
            starts = [ready_seconds(daemon.data) * 1e3 for _ in range(options.starts)]
            print(f"READY after {percentile(starts, 0.5):.0f} ms (p50), {max(starts):.0f} ms (the slowest "
                  f"of {options.starts})", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--starts", type=int, default=20)
    parser.add_argument("--models", type=int, default=3, help="starts on a model of 2 GB, of each kind")
    parser.add_argument("--text", default=measure.find_text())
    options = parser.parse_args()
    if options.jobs > 0 or options.starts > 0:
        measure_daemon(options)
    if options.models > 0:
        start_model.compare(run_job, options.models)
    print(measure.machine())


if __name__ == "__main__":
    main()
