#!/usr/bin/env python3
"""The measurement of bench/checkpoint.sh; see there."""

import argparse
import os
import re
import statistics

import gpt
import measure


def copied_bytes(daemon):
    """Of rank 0's state, for every checkpoint so far."""
    with open(os.path.join(daemon.root, "fsdpd.log"), errors="replace") as log:
        return [int(count) for count in re.findall(r" copied_bytes=(\d+)", log.read())]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--size", choices=sorted(gpt.SIZES), default="medium")
    parser.add_argument("--text", default=measure.find_text())
    options = parser.parse_args()
    stalls, slowed, plain = [], [], []
    with measure.harness.Daemon(data=os.path.dirname(options.text),
                                arguments=["--threads", "1"]) as daemon:
        daemon.text_path = options.text
        # our_run drops the first tenth of the steps, and the first step has no time: entry i is
        # step i + first.
        first = options.steps // 10 + 2
        for _ in range(options.rounds):
            plain += gpt.our_run(daemon, options.size, 2, options.steps, ["checkpoint.every_steps=0"])
            seconds = gpt.our_run(daemon, options.size, 2, options.steps,
                                  [f"checkpoint.every_steps={options.every}"])
            rest = []
            for index, value in enumerate(seconds):
                # The worker takes the checkpoint between a step's report and the next step.
                after = (index + first - 1) % options.every
                if after == 0:
                    stalls.append(value)
                elif after in (1, 2):
                    slowed.append(value)
                else:
                    rest.append(value)
            plain += rest
        copied = copied_bytes(daemon)
    step = statistics.median(plain)
    print("| size | a step | the step after a checkpoint is taken | the next two | copied, at most |")
    print("| --- | --- | --- | --- | --- |")
    print(f"| {options.size} | {step * 1e3:.1f} ms | "
          + " | ".join(f"{statistics.median(values) * 1e3:.1f} ms ({statistics.median(values) / step - 1:+.1%})"
                       for values in (stalls, slowed)) + f" | {max(copied) / 1e6:.1f} MB |")
    print(f"two processes of one thread, a checkpoint every {options.every} steps; {measure.machine()}")


if __name__ == "__main__":
    main()
