#!/usr/bin/env python3
"""PyTorch's side of bench/table.sh, bench/variants.sh and bench/lora.sh: trains one model in one way, as its users would
write it, and prints as JSON the seconds of each step, the largest process's peak resident set, and that of the steps less
what is resident after the imports. Batches lie ready in memory. Attention is scaled_dot_product_attention, and the optimizer PyTorch's fused one."""

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time

os.environ["OMP_NUM_THREADS"] = "1"
here = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [here, os.path.join(here, "../tests/parity")]
import reference
import table_models
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.nn import functional as F

SIDE = 2048  # of the matrices that measure the product rate


def resident_peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))


class Several:
    """Optimizers of one model as one."""

    def __init__(self, *optimizers):
        self.optimizers = optimizers

    def zero_grad(self, set_to_none):
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=set_to_none)

    def step(self):
        for optimizer in self.optimizers:
            optimizer.step()


def optimizer_of(name, net):
    if name == "adamw8bit":
        import bitsandbytes
        return bitsandbytes.optim.AdamW8bit(net.parameters(), lr=1e-4)
    if name == "muon":  # for the matrices of blocks
        matrices = [p for module in net.modules() if isinstance(module, torch.nn.ModuleList)
                    for p in module.parameters() if p.ndim == 2]
        ours = {id(p) for p in matrices}
        return Several(torch.optim.Muon(matrices, lr=1e-3),
                       torch.optim.AdamW([p for p in net.parameters() if id(p) not in ours], lr=1e-4, fused=True))
    return torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-4, fused=True)


def import_for(model, variant):
    """What build() needs. Returns the peak of the resident set after that."""
    if model is not None:
        import transformers
        getattr(transformers, model.architecture)
    if variant == "lora":
        import peft  # noqa: F401
    return resident_peak()


def build(model, batch, options):
    """The model, a function from model and batch to its loss, a batch drawn, and a function from the model to its
    optimizer."""
    if model is None:
        images, labels = torch.randn(batch, 1, 28, 28), torch.randint(10, (batch,))
        return (reference.Net(), lambda net: F.nll_loss(net(images), labels, reduction="mean"),
                lambda net: torch.optim.Adadelta(net.parameters(), lr=1.0))
    import transformers
    if options.base == "bf16":
        torch.set_default_dtype(torch.bfloat16)  # never as f32 first
    net = getattr(transformers, model.architecture)(
        transformers.AutoConfig.for_model(**model.config))
    torch.set_default_dtype(torch.float32)
    if options.variant == "lora":
        import peft
        targets = options.targets.split(",") if options.targets else None  # peft's own choice of modules
        net = peft.get_peft_model(net, peft.LoraConfig(r=16, target_modules=targets))
    net.train()
    if model.kind == table_models.IMAGES:
        inputs = {"pixel_values": torch.randn(batch, 3, model.side, model.side),
                  "labels": torch.randint(10, (batch,))}
    else:
        tokens = torch.randint(model.config["vocab_size"], (batch, options.context or model.context))
        inputs = {"input_ids": tokens, "labels": tokens}
        if model.kind == table_models.MASKED:
            inputs["labels"] = torch.where(torch.rand(tokens.shape) < 0.15, tokens, -100)
    return net, lambda net: net(**inputs).loss, lambda net: optimizer_of(options.variant, net)


def shard(net, dtype):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    options = {"mesh": init_device_mesh("cpu", (dist.get_world_size(),))}
    if dtype == "bf16":
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16,
                                                    reduce_dtype=torch.float32)
    norms = [module for module in net.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    if dtype == "bf16" and norms:  # on the CPU they refuse weights in bf16 beside averages in f32
        fully_shard(norms, mesh=options["mesh"], mp_policy=MixedPrecisionPolicy(cast_forward_inputs=False))
    for module in net.modules():
        if isinstance(module, torch.nn.ModuleList):
            for block in module:
                fully_shard(block, **options)
    return fully_shard(net, **options)


def train(rank, options, results):
    torch.set_num_threads(1)
    world = options.processes
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{results}.join", rank=rank,
                                world_size=world)
    torch.manual_seed(1)
    model = table_models.ALL[options.model]
    batch = options.batch or (model.batch if model else table_models.MNIST_BATCH) // world
    imported = import_for(model, options.variant)
    net, loss_of, make_optimizer = build(model, batch, options)
    cast = contextlib.nullcontext()
    if options.dtype == "bf16" and options.way != "fsdp2":
        cast = torch.autocast("cpu", torch.bfloat16)
    if options.way == "compiled":
        net = torch.compile(net)
    elif options.way == "ddp":
        net = torch.nn.parallel.DistributedDataParallel(net)
    elif options.way == "fsdp2":
        net = shard(net, options.dtype)
    optimizer = make_optimizer(net)
    whole = resident_peak()  # before it is sharded, a model is whole in each process
    with open("/proc/self/clear_refs", "w") as clear:
        clear.write("5")  # the peak begins again
    seconds, loss = [], None
    for _ in range(options.steps):
        started = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with cast:
            loss = loss_of(net)
        loss.backward()
        optimizer.step()
        loss.item()
        seconds.append(time.perf_counter() - started)
    peaks = [(max(whole, resident_peak()), resident_peak() - imported)]
    if world > 1:
        peaks *= world
        dist.all_gather_object(peaks, peaks[0])
    if rank == 0:
        with open(results, "w") as file:
            json.dump({"seconds": seconds, "loss": loss.item(),
                       "resident": max(peaks)[0], "trained": max(after for _, after in peaks)}, file)
    if world > 1:
        dist.destroy_process_group()


def product_rate(dtype):
    """Floating-point operations per second of one thread in large products: the best of ten."""
    torch.set_num_threads(1)
    a = torch.randn(SIDE, SIDE, dtype={"f32": torch.float32, "bf16": torch.bfloat16}[dtype])
    best = float("inf")
    for _ in range(10):
        started = time.perf_counter()
        torch.mm(a, a)
        best = min(best, time.perf_counter() - started)
    return 2 * SIDE**3 / best


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=sorted(table_models.ALL))
    parser.add_argument("--dtype", choices=("f32", "bf16"), required=True)
    parser.add_argument("--way", choices=("rate", "eager", "compiled", "ddp", "fsdp2"), required=True)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--context", type=int, help="tokens of a window; the model's by default")
    parser.add_argument("--batch", type=int, help="samples of a process; the model's by default")
    parser.add_argument("--base", choices=("f32", "bf16"), default="f32", help="the type of the weights")
    parser.add_argument("--targets", help="of adapters; peft's by default")
    parser.add_argument("--variant", choices=("adamw", "adamw8bit", "muon", "lora"), default="adamw")
    options = parser.parse_args()
    if options.way == "rate":
        json.dump({"version": torch.__version__, "rate": product_rate(options.dtype)}, sys.stdout)
        return
    with tempfile.TemporaryDirectory() as work:
        results = os.path.join(work, "results")
        if options.processes == 1:
            train(0, options, results)
        else:
            multiprocessing.spawn(train, (options, results), nprocs=options.processes)
        with open(results) as file:
            sys.stdout.write(file.read())


if __name__ == "__main__":
    main()
