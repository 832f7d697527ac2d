#!/usr/bin/python3
"""Attention and the fused head of bench/attention against PyTorch's, forward and backward together,
in alternating rounds on the same number of threads; on one thread by processor time, which other
programs disturb less. PyTorch's attention is that of nanoGPT without flash attention: softmax of
q k^T under a mask, over a packed projection; its head is F.linear and F.cross_entropy.

    builddir=... bench/attention.py [--threads N] [--rounds N] [--seconds S]
"""
import argparse
import os
import statistics
import subprocess
import time

import torch
import torch.nn.functional as F

ATTENTION = [(12, 4, 64, 32), (12, 6, 256, 64), (1, 12, 1024, 64), (1, 4, 4096, 32)]
HEADS = [(768, 128, 65), (3072, 384, 65), (1024, 768, 50257)]


def timed(function, seconds):
    now = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    function()
    times = []
    end = now() + seconds
    while not times or now() < end:
        started = now()
        function()
        times.append((now() - started) * 1e6)
    return statistics.median(times)


def torch_attention(batch, heads, length, head_dim, seconds):
    width = heads * head_dim
    qkv = torch.randn(batch, length, 3 * width, requires_grad=True)
    mask = torch.tril(torch.ones(length, length)).view(1, 1, length, length)
    dy = torch.randn(batch, length, width)

    def run():
        qkv.grad = None
        q, k, v = (x.view(batch, length, heads, head_dim).transpose(1, 2)
                   for x in qkv.split(width, dim=2))
        scores = (q @ k.transpose(-2, -1)) * head_dim**-0.5
        scores = F.softmax(scores.masked_fill(mask == 0, float("-inf")), dim=-1)
        y = (scores @ v).transpose(1, 2).contiguous().view(batch, length, width)
        y.backward(dy)

    return timed(run, seconds)


def torch_head(rows, columns, classes, seconds):
    x = torch.randn(rows, columns, requires_grad=True)
    weight = torch.randn(classes, columns, requires_grad=True)
    target = torch.randint(0, classes, (rows,))

    def run():
        x.grad = weight.grad = None
        F.cross_entropy(F.linear(x, weight), target).backward()

    return timed(run, seconds)


def ours(kind, threads, seconds, sizes):
    program = os.path.join(os.environ["builddir"], "bench/attention")
    words = [program, kind, threads, seconds, *sizes]
    lines = subprocess.run([str(word) for word in words], check=True, capture_output=True,
                           text=True, env={**os.environ, "OMP_NUM_THREADS": str(threads)})
    medians = {line.split()[0]: float(line.split()[2]) for line in lines.stdout.splitlines()}
    if kind == "head":  # in training the backward op includes the forward one
        return medians["linear_cross_entropy_backward"]
    return sum(medians.values())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    for kind, cases, reference in (("attention", ATTENTION, torch_attention),
                                   ("head", HEADS, torch_head)):
        for sizes in cases:
            found, theirs = [], []
            for _ in range(arguments.rounds):
                found.append(ours(kind, arguments.threads, arguments.seconds, sizes))
                theirs.append(reference(*sizes, arguments.seconds))
            a, b = statistics.median(found), statistics.median(theirs)
            print(f"{kind} {sizes}: fsdpd {a:.0f} us, PyTorch {b:.0f} us, ratio {a / b:.3f}",
                  flush=True)


if __name__ == "__main__":
    main()
