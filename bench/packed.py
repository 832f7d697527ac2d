#!/usr/bin/python3
"""Attention over rows that hold several documents: the time of bench/attention, forward and backward
together, by the length of the documents, in alternating rounds on one thread, beside two forecasts:
the pairs of tokens that see each other, and the blocks of 64 x 64 tokens that hold such pairs, which
the kernels compute. Prints a table in Markdown; exits with 1 if a time is more than 1.2 times the
blocks' forecast.

    builddir=... bench/packed.py [--rounds N] [--seconds S] [--time TOKENS]
"""
import argparse
import os
import statistics
import subprocess
import sys

BLOCK = 64
HEADS, HEAD_DIM = 4, 64


def measure(time, document, seconds):
    """Microseconds of processor time, forward and backward: the best run of each."""
    words = [os.path.join(os.environ["builddir"], "bench/attention"), "attention", 1, seconds, 1, HEADS, time, HEAD_DIM,
             0, document]
    lines = subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True).stdout.splitlines()
    return sum(float(line.split()[1]) for line in lines)


def pairs(time, document):
    return sum(at % document + 1 for at in range(time))


def blocks(time, document):
    """Blocks of queries and keys of which a query sees a key."""
    starts = {first: first // document * document for first in range(0, time, BLOCK)}
    return sum(first // BLOCK - start // BLOCK + 1 for first, start in starts.items())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--time", type=int, default=4096)
    options = parser.parse_args()
    time = options.time
    lengths = [time, *(n for n in (2048, 1024, 512, 300, 128, 64) if n < time)]
    times = {n: [] for n in lengths}
    for _ in range(options.rounds):
        for n in lengths:
            times[n].append(measure(time, n, options.seconds))
    whole = statistics.median(times[time])
    print(f"Rows of {time} tokens, {HEADS} heads of {HEAD_DIM}:\n")
    print("| tokens per document | microseconds | share of one document's time | pairs | blocks |")
    print("| --- | --- | --- | --- | --- |")
    worst = 0
    for n in lengths:
        share = statistics.median(times[n]) / whole
        forecast = blocks(time, n) / blocks(time, time)
        worst = max(worst, share / forecast)
        print(f"| {n} | {statistics.median(times[n]):,.0f} | {share:.3f} | {pairs(time, n) / pairs(time, time):.3f} | "
              f"{forecast:.3f} |")
    print(f"\nAt most {worst:.2f} times the forecast of the blocks.")
    sys.exit(worst > 1.2)


if __name__ == "__main__":
    main()
