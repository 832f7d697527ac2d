#!/usr/bin/env python3
"""PyTorch's side of bench/gpt.sh: a GPT of the given size, written as nanoGPT's users write it, trained
on random windows of a file's bytes by one process, or several under DDP over Gloo. Prints the seconds
of each step as JSON. Attention is scaled_dot_product_attention, which on the CPU is a blocked kernel,
if this PyTorch has it, otherwise a softmax over all pairs."""

import argparse
import json
import math
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, width, heads, context):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.hidden = torch.ones(context, context, dtype=torch.bool).triu(1)

    def forward(self, x):
        batch, time_, width = x.shape
        q, k, v = (part.view(batch, time_, self.heads, width // self.heads).transpose(1, 2)
                   for part in self.qkv(x).split(width, dim=2))
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-2, -1) * (1 / math.sqrt(k.size(-1)))
            scores = scores.masked_fill(self.hidden[:time_, :time_], float("-inf"))
            y = F.softmax(scores, dim=-1) @ v
        return self.out(y.transpose(1, 2).reshape(batch, time_, width))


class Norm(nn.Module):
    """LayerNorm without a bias, which PyTorch 1.13 does not offer."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.layer_norm(x, self.weight.shape, self.weight, None, 1e-5)


class Block(nn.Module):
    def __init__(self, width, heads, context):
        super().__init__()
        self.norm1, self.norm2 = Norm(width), Norm(width)
        self.attention = Attention(width, heads, context)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, vocabulary, layers, heads, width, context):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads, context) for _ in range(layers)))
        self.norm = Norm(width)
        self.apply(self.draw)

    @staticmethod
    def draw(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.size(1)))
        logits = F.linear(self.norm(self.blocks(x)), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def train(rank, options, results):
    torch.set_num_threads(options.threads)
    if options.world > 1:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{options.port}", rank=rank,
                                world_size=options.world)
    torch.manual_seed(1)
    model = GPT(options.vocabulary, options.layers, options.heads, options.width, options.context)
    if options.world > 1:
        model = nn.parallel.DistributedDataParallel(model)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1},
                                   {"params": others, "weight_decay": 0.0}],
                                  lr=1e-3, betas=(0.9, 0.99))
    with open(options.data, "rb") as file:
        text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
    draw = torch.Generator().manual_seed(rank)
    seconds, loss = [], None
    for _ in range(options.steps):
        starts = torch.randint(len(text) - options.context - 1, (options.batch,), generator=draw)
        windows = torch.stack([text[s:s + options.context + 1].long() for s in starts.tolist()])
        started = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = model(windows[:, :-1], windows[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()
        seconds.append(time.perf_counter() - started)
    if rank == 0:
        with open(results, "w") as file:
            json.dump({"version": torch.__version__, "seconds": seconds, "loss": loss.item()}, file)
    if options.world > 1:
        dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    for name in ("layers", "heads", "width", "context", "batch", "vocabulary", "world", "threads",
                 "steps", "port"):
        parser.add_argument("--" + name, type=int, required=True)
    parser.add_argument("--data", required=True)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    with tempfile.TemporaryDirectory() as work:
        results = os.path.join(work, "results")
        if options.world == 1:
            train(0, options, results)
        else:
            multiprocessing.spawn(train, (options, results), nprocs=options.world)
        with open(results) as file:
            sys.stdout.write(file.read())


if __name__ == "__main__":
    main()
