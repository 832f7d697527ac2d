#!/usr/bin/env python3
"""The measurement of bench/load.sh; see there."""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import load_pages

BUILD = os.environ.get("builddir", "build")
SOURCE = os.environ.get("srcdir", ".")


def machine():
    with open("/proc/cpuinfo") as file:
        models = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return f"{os.cpu_count()} x {models[0] if models else '?'}"


def token_of(environment, address):
    return subprocess.run([f"{BUILD}/fsdpd", "token", "issue", "eve", "--role", "observer", "--coordinator", address],
                          env=environment, check=True, text=True, stdout=subprocess.PIPE).stdout.strip()


def running(environment, address):
    """The job that runs, and its step."""
    shown = subprocess.run([f"{BUILD}/fsdpctl", "list", "--state", "RUNNING", "-o", "json"], text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                           env=dict(environment, FSDPD_ADDRESS=address))
    jobs = json.loads(shown.stdout) if shown.returncode == 0 else []
    return (jobs[0]["id"], int(jobs[0]["step"])) if jobs else ("", 0)


def submit_arrays(environment, address, jobs):
    """Jobs that wait, 100 with each submission: one by one, 10,000 take minutes."""
    for number in range(0, jobs, 100):
        settings = [f"name=array-{number}", "workers=8", "save_model=false", "device=cpu"]
        result = subprocess.run([f"{BUILD}/fsdpctl", "submit", f"{SOURCE}/examples/mnist/job.yaml",
                                 *(f"--set={setting}" for setting in settings),
                                 "--array", f"1-{min(100, jobs - number)}"],
                                env=dict(environment, FSDPD_ADDRESS=address), text=True, capture_output=True)
        if result.returncode != 0:
            sys.exit(result.stderr)


def measure_pages(daemon, port, address, environment, options):
    """Beside jobs that wait, alone and in arrays, and one that runs, with a long curve. The exit status."""
    alone = min(options.jobs, 100)
    load = subprocess.Popen([f"{BUILD}/bench/load", "--address", address, "--job", f"{SOURCE}/examples/mnist/job.yaml",
                             "--workers", "8", "--ranks", "8", "--watchers", "1", "--seconds", "2",
                             "--jobs", str(alone), "--history", str(options.history)], text=True,
                            stdout=subprocess.PIPE)
    try:
        while (found := running(environment, address))[1] < options.history:
            if load.poll() is not None:
                print(load.stdout.read())
                return 1
            time.sleep(1)
        submit_arrays(environment, address, options.jobs - alone)
        token, seconds, count = token_of(environment, address), options.seconds, options.pages

        def measure(what, **kinds):
            return load_pages.measure(daemon.pid, port, token, found[0], seconds, what, **kinds)

        return min(1, measure("no page") + measure(f"{count} with the list of jobs", list=count) +
                   measure(f"{count} with the job", job=count) +
                   measure(f"{count} with the job, {count // 5} slow, {count // 5} vanish", job=count, slow=count // 5,
                           vanishing=count // 5) +
                   measure(f"{count // 5} read all events and vanish", rereading=count // 5) +
                   measure("no page, afterwards"))
    finally:
        load.kill()
        load.wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--state-dir", help="on the disk to be measured (a temporary directory)")
    parser.add_argument("--pages", type=int, default=0, help="browsers with the page open, instead of workers' load")
    options, rest = parser.parse_known_args()
    if options.pages:
        parser = argparse.ArgumentParser()
        parser.add_argument("--jobs", type=int, default=10000)
        parser.add_argument("--history", type=int, default=1000000)
        parser.add_argument("--seconds", type=int, default=20)
        options = parser.parse_args(rest, options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that child processes end, too
    root = tempfile.mkdtemp(prefix="fsdpd-load-", dir=options.state_dir)
    address = f"unix:{root}/run/fsdpd.sock"
    # A single user owns all submissions and all connections.
    environment = dict(os.environ, FSDPD_CONFIG="", FSDPD_LIMITS_JOBS_ACTIVE="20000",
                       FSDPD_LIMITS_JOBS_PER_USER="20000")
    code = 1
    with open(f"{root}/log", "w") as log:
        daemon = subprocess.Popen(
            [f"{BUILD}/fsdpd", "--workers", "none", "--runtime-dir", f"{root}/run", "--state-dir",
             f"{root}/state", "--log-level", "info" if options.pages else "warning",
             *(["--http-listen", "127.0.0.1:0"] if options.pages else [])],
            env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            until = time.monotonic() + 20
            while not os.path.exists(f"{root}/run/fsdpd.sock") and time.monotonic() < until:
                time.sleep(0.05)
            print(f"machine: {machine()}; load {os.getloadavg()[0]:.1f}", flush=True)
            if options.pages:
                with open(f"{root}/log") as started:
                    port = int(re.search(r"http_served address=127\.0\.0\.1:(\d+)", started.read())[1])
                code = measure_pages(daemon, port, address, environment, options)
            else:
                code = subprocess.run(
                    [f"{BUILD}/bench/load", "--address", address, "--job",
                     f"{SOURCE}/examples/mnist/job.yaml", "--pid", str(daemon.pid), "--ctl",
                     f"{BUILD}/fsdpctl", *rest]).returncode
            size = sum(os.path.getsize(f"{root}/state/{name}")
                       for name in os.listdir(f"{root}/state") if name.startswith("store.db"))
            print(f"store: {size / 1e6:.1f} MB")
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(60)
    with open(f"{root}/log", errors="replace") as log:
        sys.stdout.writelines([line for line in log if " ERROR " in line][:10])
    shutil.rmtree(root)
    return code


if __name__ == "__main__":
    sys.exit(main())
