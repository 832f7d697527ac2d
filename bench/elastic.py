#!/usr/bin/env python3
"""The measurement of bench/elastic.sh; see there."""

import argparse
import os
import statistics

import gpt
import measure

KINDS = ("none", "mirror", "parity")


def settings(kind, world, windows):
    return ["elastic.min_workers=1", f"elastic.max_workers={world}", f"elastic.redundancy={kind}",
            f"train.global_batch={windows}"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--size", choices=sorted(gpt.SIZES), default="medium")
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--text", default=measure.find_text())
    options = parser.parse_args()
    print("| size | workers | a step | mirror | parity |")
    print("| --- | --- | --- | --- | --- |")
    for world in options.workers:
        seconds = {kind: [] for kind in KINDS}
        with measure.harness.Daemon(workers=world, data=os.path.dirname(options.text),
                                    arguments=["--threads", "1"]) as daemon:
            daemon.text_path = options.text
            for _ in range(options.rounds):
                for kind in KINDS:
                    seconds[kind] += gpt.our_run(daemon, options.size, world, options.steps,
                                                 settings(kind, world, gpt.SIZES[options.size][4]))
        step, *others = (statistics.median(seconds[kind]) for kind in KINDS)
        print(f"| {options.size} | {world} | {step * 1e3:.1f} ms | "
              + " | ".join(f"{(other - step) * 1e3:+.1f} ms ({other / step - 1:+.1%})"
                           for other in others) + " |")
    print(f"processes of one thread, renewed after every step; {measure.machine()}")


if __name__ == "__main__":
    main()
