#!/usr/bin/env python3
"""The measurement of bench/load.sh; see there."""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

BUILD = os.environ.get("builddir", "build")
SOURCE = os.environ.get("srcdir", ".")


def machine():
    with open("/proc/cpuinfo") as file:
        models = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return f"{os.cpu_count()} x {models[0] if models else '?'}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--state-dir", help="on the disk to be measured (a temporary directory)")
    options, rest = parser.parse_known_args()
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
             f"{root}/state", "--log-level", "warning"],
            env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            until = time.monotonic() + 20
            while not os.path.exists(f"{root}/run/fsdpd.sock") and time.monotonic() < until:
                time.sleep(0.05)
            print(f"machine: {machine()}; load {os.getloadavg()[0]:.1f}", flush=True)
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
