#!/usr/bin/python3
"""Times in PyTorch the ops of bench/sequence: best and median microseconds, nanoseconds per element.

    bench/sequence.py [tokens [threads [seconds per op]]]

The process keeps its memory between runs, so that page faults are not measured. Ops that PyTorch lacks
are composed of those that it has, as in Hugging Face's models.
"""
import os
import sys
import time

if os.environ.get("MALLOC_MMAP_MAX_") != "0":
    os.environ.update(MALLOC_MMAP_MAX_="0", MALLOC_TRIM_THRESHOLD_=str(1 << 40))
    os.execv(sys.executable, [sys.executable] + sys.argv)

import torch
import torch.nn.functional as F

WIDTH, INNER, VOCABULARY, SCORES = 768, 3072, 50257, 1024
tokens = int(sys.argv[1]) if len(sys.argv) > 1 else 4096
threads = int(sys.argv[2]) if len(sys.argv) > 2 else 1
seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 0.5
torch.set_num_threads(threads)
torch.set_grad_enabled(False)
aten = torch.ops.aten
clock = time.process_time if threads == 1 else time.perf_counter


def measure(name, elements, function):
    times = []
    try:
        function()
    except RuntimeError as error:
        print(f"{name:36} {str(error).splitlines()[0]}")
        return
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = clock()
        function()
        times.append(clock() - start)
    times.sort()
    print(f"{name:36} {times[0] * 1e6:9.1f} {times[len(times) // 2] * 1e6:9.1f} "
          f"{times[0] * 1e9 / elements:8.3f}", flush=True)


def rms_norm(x, weight):
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


def rms_norm_backward(dy, x, weight):
    with torch.enable_grad():
        x, weight = x.requires_grad_(), weight.requires_grad_()
        return torch.autograd.grad(rms_norm(x, weight), (x, weight), dy)


def silu_mul_backward(dy, gate, x):
    return aten.silu_backward(dy * x, gate), dy * F.silu(gate)


print(f"PyTorch {torch.__version__}, {tokens} tokens, {threads} threads: best us, median us, ns/el")
for dtype, suffix in ((torch.float32, ""), (torch.bfloat16, ", bf16")):
    x, dy, other = (torch.randn(tokens, WIDTH).to(dtype) for _ in range(3))
    weight, bias = torch.randn(WIDTH).to(dtype), torch.randn(WIDTH).to(dtype)
    n = x.numel()
    y, mean, rstd = aten.native_layer_norm(x, [WIDTH], weight, bias, 1e-5)
    norm = lambda v: aten.native_layer_norm(v, [WIDTH], weight, bias, 1e-5)
    back = lambda: aten.native_layer_norm_backward(dy, x, [WIDTH], mean, rstd, weight, bias,
                                                   [True, True, True])
    measure("layer_norm" + suffix, n, lambda: norm(x))
    measure("layer_norm, residual" + suffix, n, lambda: norm(x + other))
    measure("layer_norm_backward" + suffix, n, back)
    measure("layer_norm_backward, other" + suffix, n, lambda: back()[0].add_(other))
    measure("rms_norm" + suffix, n, lambda: rms_norm(x, weight))
    measure("rms_norm forward and backward" + suffix, n, lambda: rms_norm_backward(dy, x, weight))
    x, dy, gate = (torch.randn(tokens, INNER).to(dtype) for _ in range(3))
    n = x.numel()
    for approximate, kind in (("none", ""), ("tanh", ", tanh")):
        measure("gelu" + kind + suffix, n, lambda: F.gelu(x, approximate=approximate))
        measure("gelu_backward" + kind + suffix, n,
                lambda: aten.gelu_backward(dy, x, approximate=approximate))
    measure("silu" + suffix, n, lambda: F.silu(x))
    measure("silu_backward" + suffix, n, lambda: aten.silu_backward(dy, x))
    measure("silu_mul" + suffix, n, lambda: F.silu(gate) * x)
    measure("silu_mul_backward" + suffix, n, lambda: silu_mul_backward(dy, gate, x))
    a, b = (torch.randn(4, tokens // 4, WIDTH).to(dtype) for _ in range(2))
    positions, n = b[0].clone(), a.numel()
    measure("add" + suffix, n, lambda: a + b)
    measure("add, broadcast" + suffix, n, lambda: a + positions)
    measure("sum_leading" + suffix, n, lambda: a.sum(0))
    measure("sum_leading, to a row" + suffix, n, lambda: a.sum((0, 1)))

scores, gradient = torch.randn(tokens, SCORES), torch.randn(tokens, SCORES)
softmax = F.softmax(scores, -1)
measure("softmax", scores.numel(), lambda: F.softmax(scores, -1))
measure("softmax_backward", scores.numel(),
        lambda: aten._softmax_backward_data(gradient, softmax, -1, torch.float32))
one, n = torch.ones(()), scores.numel()
measure("mse_loss", n, lambda: F.mse_loss(scores, gradient))
measure("mse_loss_backward", n, lambda: aten.mse_loss_backward(one, scores, gradient, 1))
measure("huber_loss", n, lambda: F.huber_loss(scores, gradient))
measure("huber_loss_backward", n, lambda: aten.huber_loss_backward(one, scores, gradient, 1, 1.0))
measure("kl_div", n, lambda: F.kl_div(scores, gradient, reduction="batchmean", log_target=True))
measure("kl_div_backward", n, lambda: torch.exp(gradient) * (-1 / tokens))
measure("randn_like", tokens * WIDTH, lambda: torch.randn(tokens, WIDTH))
indices, table = torch.randint(VOCABULARY, (tokens,)), torch.randn(VOCABULARY, WIDTH)
dy = torch.randn(tokens, WIDTH)
backward = lambda: aten.embedding_dense_backward(dy, indices, VOCABULARY, -1, False)
measure("embedding", dy.numel(), lambda: F.embedding(indices, table))
measure("embedding_backward", dy.numel(), backward)
measure("embedding_backward, accumulating", dy.numel(), lambda: table.add_(backward()))
