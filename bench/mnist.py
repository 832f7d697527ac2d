#!/usr/bin/env python3
"""The measurement of bench/mnist.sh; see there."""

import argparse
import os
import statistics

import measure


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--set", action="append", default=[], dest="settings")
    options = parser.parse_args()
    ours, theirs = [], []
    with measure.harness.Daemon(data=measure.harness.find_mnist(),
                                arguments=["--threads", "1"]) as daemon:
        measure.share_priority(daemon)
        for number in range(options.rounds):
            mine, _ = measure.our_run(daemon, options.steps, options.settings)
            other, _ = measure.torch_run(daemon.data, options.steps)
            ours += mine
            theirs += other
            print(f"round {number + 1}: fsdpd {statistics.median(mine) * 1e3:.2f} ms, PyTorch "
                  f"{statistics.median(other) * 1e3:.2f} ms a step", flush=True)
    for name, seconds in (("fsdpd", ours), ("PyTorch DDP", theirs)):
        low, middle, high = statistics.quantiles(seconds, n=4)
        print(f"{name}: median {middle * 1e3:.2f} ms (quartiles {low * 1e3:.2f}, {high * 1e3:.2f})"
              f" over {len(seconds)} steps of 2 x {measure.BATCH} samples")
    print(f"machine: {measure.machine()}; load {os.getloadavg()[0]:.1f}; "
          f"{measure.torch_libraries()}")
    print(f"ratio {statistics.median(ours) / statistics.median(theirs):.3f}")


if __name__ == "__main__":
    main()
