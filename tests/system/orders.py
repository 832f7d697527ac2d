#!/usr/bin/env python3
"""Interleaves orders of all kinds to a running job at random: pulls, checkpoints, traces, changes
of the wrap policy, pauses and resumes, from several users at once. Each must answer in time. With
--faults some connections between the ranks are refused, and calls may fail, but nothing may hang.
One seed determines everything.

usage: orders.py [--seconds N] [--seed N] [--users N] [--faults]        (60 seconds, 3 users by default)
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness

SETTINGS = ("workers=2", "train.epochs=100000", "train.batch_size=4", "train.evaluate=false",
            "fsdp.wrap.policy=size", "fsdp.wrap.min_num_params=20000", "retry.machine_failures=0")
# The call that creates the memory that a group's ranks share.
REFUSED = "connect unix:@fsdpd-* ECONNREFUSED skip={} times=1"
ANSWER_SECONDS = 60  # longer than any order takes, and shorter than a forgotten wait


# Each is (job, random numbers, path of a file to write) -> the arguments of fsdpctl.

def pull(job, rng, path):
    return ["pull", job, "-o", path]


def checkpoint(job, rng, path):
    return ["checkpoint", job]


def trace(job, rng, path):
    return ["trace", job, "--steps", str(rng.randint(1, 5)), "-o", path]


def wrap(job, rng, path):
    policy = rng.choice((["none"], ["size", "--min-num-params", str(rng.choice((1000, 20000)))]))
    return ["wrap", "set", job, "--policy", *policy]


def pause(job, rng, path):
    return ["pause", job]


def resume(job, rng, path):
    return ["resume", job]


ORDERS = ((8, pull), (5, checkpoint), (4, trace), (5, wrap), (3, pause), (5, resume))


def draw(rng):
    return rng.choices([order for _, order in ORDERS], [weight for weight, _ in ORDERS])[0]


class Interleaving:
    """Users who give orders to one job until the time is over or one of them gets no answer."""

    def __init__(self, daemon, job, seed, faults=None, out=None):
        self.daemon, self.job, self.seed, self.faults, self.out = daemon, job, seed, faults, out
        self.ending = threading.Event()
        self.wrong, self.counts = [], {}

    def order(self, name, rng):
        make = draw(rng)
        path = os.path.join(self.daemon.root, name)
        began = time.monotonic()
        result = self.daemon.ctl(*make(self.job, rng, path), "--timeout", str(ANSWER_SECONDS))
        seconds = time.monotonic() - began
        key = (make.__name__, result.returncode)
        self.counts[key] = self.counts.get(key, 0) + 1
        if self.out:
            print(f"{name} {make.__name__} {result.returncode} {seconds:.2f} {result.stderr.strip()}",
                  file=self.out, flush=True)
        if result.returncode in (harness.UNREACHABLE, harness.DEADLINE):
            raise AssertionError(f"{make.__name__}: {seconds:.1f} s: {result.stderr.strip()}")

    def user(self, name):
        rng = random.Random(f"{self.seed}/{name}")
        try:
            while not self.ending.wait(rng.uniform(0, 0.2)):
                self.order(name, rng)
        except Exception as error:
            self.wrong.append(f"{name}: {error}")
            self.ending.set()

    def trouble(self):
        rng = random.Random(f"{self.seed}/trouble")
        while not self.ending.wait(rng.uniform(0, 1)):
            self.faults.set(REFUSED.format(rng.randint(0, 2)))

    def run(self, seconds, users):
        threads = [threading.Thread(target=self.user, args=(f"user-{n}",)) for n in range(users)]
        if self.faults:
            threads.append(threading.Thread(target=self.trouble))
        for thread in threads:
            thread.start()
        self.ending.wait(seconds)
        self.ending.set()
        for thread in threads:
            thread.join()
        if self.faults:
            self.faults.clear()
        return self.wrong


def interleave(seconds, seed, users=3, faults=False, out=None):
    """Runs the orders and returns the problems found: a list of sentences."""
    root = tempfile.mkdtemp(prefix="fsdpd-orders-")
    injected = harness.Faults(root) if faults else None
    daemon = harness.Daemon(root=root, environment=injected.environment if faults else {})
    try:
        job = daemon.submit(*SETTINGS)
        daemon.wait_state(job, "RUNNING")
        interleaving = Interleaving(daemon, job, seed, injected, out)
        wrong = interleaving.run(seconds, users)
        shown = daemon.show(job)
        if shown["state"] not in ("RUNNING", "STARTING", "PAUSED", "QUEUED"):
            # The training's own group may be refused, too: that fails the attempt.
            if not (faults and "cannot join group train" in shown["reason"]["message"]):
                wrong.append(f"{job} is {shown['state']}: {shown['reason']}")
        code = daemon.kill(15)
        if code != 0:
            wrong.append(f"fsdpd ended with {code}")
        if out:
            print(seed, sorted(interleaving.counts.items()), file=out)
        if wrong:
            wrong.append(f"seed {seed}: {daemon.text()}")
        return wrong
    finally:
        daemon.close()
        shutil.rmtree(root, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--users", type=int, default=3)
    parser.add_argument("--faults", action="store_true")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 31)
    wrong = interleave(options.seconds, seed, options.users, options.faults, sys.stdout)
    for sentence in wrong:
        print("WRONG", sentence)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
