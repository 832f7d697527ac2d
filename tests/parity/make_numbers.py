#!/usr/bin/python3
"""Prints PyTorch's numbers, for tests/unit/test_train_numbers.c.

tests/parity/make_numbers.py > tests/parity/numbers.txt

One case per line: the request, the CRC-32 of the resulting bytes (float32 or uint32,
little-endian), and the first values, which help to find a difference.
"""
import zlib

import numpy
import torch
from torch.utils.data.distributed import DistributedSampler

from lion import Lion


def show(words, values):
    bits = numpy.ascontiguousarray(values).view(numpy.uint32).ravel()
    first = " ".join("%08x" % v for v in bits[:4])
    print(*words, "%08x" % zlib.crc32(bits.tobytes()), first)


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def fills():
    for seed in (0, 1, 12345, 2**32 + 7):
        for n in (1, 5, 15, 16, 17, 100, 20000):
            for low, high in ((0.0, 1.0), (-1 / 3, 1 / 3), (-0.010416666666666666, 0.3)):
                values = torch.empty(n).uniform_(low, high, generator=seeded(seed))
                show(["uniform", seed, n, repr(low), repr(high)], values.numpy())
            for mean, std in ((0.0, 1.0), (0.0, 0.02), (0.25, 3.0)):
                values = torch.empty(n).normal_(mean, std, generator=seeded(seed))
                show(["normal", seed, n, repr(mean), repr(std)], values.numpy())
            order = torch.randperm(n, generator=seeded(seed))
            show(["randperm", seed, n, 0, 0], order.numpy().astype(numpy.uint32))
    # The second value of a pair is kept for the next call, and discarded when a seed is set.
    generator = seeded(3)
    values = [torch.empty(n).normal_(0, 1, generator=generator) for n in (1, 1, 3, 16, 2)]
    show(["normal_sequence", 3, 0, 0, 0], torch.cat(values).numpy())


def samplers():
    for n, world in ((10, 4), (10, 1), (7, 2), (2, 5), (60000, 2), (10001, 3)):
        for rank in sorted({0, world // 2, world - 1}):
            for epoch in (1, 2, 9):
                for shuffle in (False, True):
                    sampler = DistributedSampler(range(n), world, rank, shuffle)
                    sampler.set_epoch(epoch)
                    order = numpy.array(list(sampler), dtype=numpy.uint32)
                    show(["sampler", n, world, rank, epoch, int(shuffle)], order)


def rates():
    for rate, step, gamma in ((1.0, 1, 0.7), (0.1, 3, 0.9), (2.5, 2, 1.01)):
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=rate)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step, gamma)
        for epoch in range(1, 9):
            print("rate", repr(rate), step, repr(gamma), epoch, optimizer.param_groups[0]["lr"].hex())
            optimizer.step()
            schedule.step()


def factors():
    """Rates per step of the schedules that docs/job-file.md likens to PyTorch's."""
    schedulers = torch.optim.lr_scheduler
    for kind in ("constant", "linear", "cosine"):
        for warmup, start in ((0, 0.5), (3, 0.25), (5, 1e-9)):
            for total, end in ((12, 0.0), (20, 0.1)):
                optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
                parts, at = [], []
                if warmup:
                    parts.append(schedulers.LinearLR(optimizer, start, 1.0, warmup))
                    at.append(warmup)
                if kind == "cosine":
                    parts.append(schedulers.CosineAnnealingLR(optimizer, total - warmup, end * 0.5))
                else:
                    last = end if kind == "linear" else 1.0
                    parts.append(schedulers.LinearLR(optimizer, 1.0, last, total - warmup))
                schedule = schedulers.SequentialLR(optimizer, parts, at) if at else parts[0]
                for step in range(total + 1):
                    print("factor", kind, warmup, repr(start), total, repr(end), step,
                          optimizer.param_groups[0]["lr"].hex())
                    optimizer.step()
                    schedule.step()


def optimizers():
    """Parameters after 20 steps: the request is the kind, lr, weight decay and two more numbers."""
    kinds = {
        "adadelta": lambda p, lr, decay, a, b:
            torch.optim.Adadelta(p, lr, rho=a, eps=b, weight_decay=decay),
        "sgd": lambda p, lr, decay, a, b:
            torch.optim.SGD(p, lr, momentum=a, dampening=b, weight_decay=decay),
        "nesterov": lambda p, lr, decay, a, b:
            torch.optim.SGD(p, lr, momentum=a, nesterov=True, weight_decay=decay),
        "adam": lambda p, lr, decay, a, b:
            torch.optim.Adam(p, lr, betas=(a, b), weight_decay=decay),
        "adamw": lambda p, lr, decay, a, b:
            torch.optim.AdamW(p, lr, betas=(a, b), weight_decay=decay),
        "radam": lambda p, lr, decay, a, b:
            torch.optim.RAdam(p, lr, betas=(a, b), weight_decay=decay),
        "lion": lambda p, lr, decay, a, b: Lion(p, lr, betas=(a, b), weight_decay=decay),
        "adagrad": lambda p, lr, decay, a, b:
            torch.optim.Adagrad(p, lr, lr_decay=a, eps=b, weight_decay=decay),
    }
    for words in (("adadelta", 1.0, 0.0, 0.9, 1e-6), ("adadelta", 0.3, 0.01, 0.8, 1e-4),
                  ("sgd", 0.1, 0.0, 0.0, 0.0), ("sgd", 0.01, 0.1, 0.0, 0.0),
                  ("sgd", 0.1, 0.0, 0.9, 0.0), ("sgd", 0.03, 0.01, 0.9, 0.3),
                  ("nesterov", 0.1, 0.0, 0.9, 0.0), ("nesterov", 0.01, 0.1, 0.7, 0.0),
                  ("adam", 1e-3, 0.0, 0.9, 0.999), ("adam", 0.02, 0.1, 0.8, 0.95),
                  ("adamw", 1e-3, 0.01, 0.9, 0.999), ("adamw", 0.02, 0.0, 0.0, 0.95),
                  ("lion", 1e-3, 0.0, 0.9, 0.99), ("lion", 0.01, 0.1, 0.5, 0.95),
                  ("adagrad", 0.01, 0.0, 0.0, 1e-10), ("adagrad", 0.3, 0.1, 0.05, 1e-3),
                  ("radam", 1e-3, 0.0, 0.9, 0.999), ("radam", 0.02, 0.1, 0.8, 0.95)):
        values = torch.empty(1000).normal_(0, 1, generator=seeded(17))
        parameter = torch.nn.Parameter(values)
        optimizer = kinds[words[0]]([parameter], *words[1:])
        for step in range(20):
            parameter.grad = torch.empty(1000).normal_(0, 0.3, generator=seeded(100 + step))
            optimizer.step()
        show(["optimizer", words[0], *map(repr, words[1:])], parameter.detach().numpy())


def pixels():
    for mean, std in ((0.1307, 0.3081), (0.0, 1.0), (0.5, 0.25)):
        values = torch.arange(256, dtype=torch.uint8).to(torch.float32).div(255)
        values.sub_(torch.as_tensor(mean)).div_(torch.as_tensor(std))
        show(["pixels", repr(mean), repr(std)], values.numpy())


def initial():
    for seed in (1, 42):
        torch.manual_seed(seed)
        layers = [torch.nn.Conv2d(1, 32, 3, 1), torch.nn.Conv2d(32, 64, 3, 1),
                  torch.nn.Linear(9216, 128), torch.nn.Linear(128, 10)]
        values = [p.detach().ravel() for layer in layers for p in layer.parameters()]
        show(["initial", seed], torch.cat(values).numpy())
    # A head that is tied to an embedding draws its own values before they are replaced.
    torch.manual_seed(5)
    embedding, head = torch.nn.Embedding(20, 10), torch.nn.Linear(10, 20, bias=False)
    norm, last = torch.nn.LayerNorm(10), torch.nn.Linear(10, 3)
    head.weight = embedding.weight
    values = [p.detach().ravel() for layer in (embedding, norm, last) for p in layer.parameters()]
    show(["tied", 5], torch.cat(values).numpy())


if __name__ == "__main__":
    fills()
    samplers()
    rates()
    factors()
    optimizers()
    pixels()
    initial()
