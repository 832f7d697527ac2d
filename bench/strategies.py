#!/usr/bin/env python3
"""The measurement of bench/strategies.sh, which see. PyTorch's memory is by how much training raised the
process's resident peak; ours is what the runtime allocated, which is the plan's figure."""

import argparse
import statistics

import measure
import torch

POLICY = ("fsdp.wrap.policy=size", "fsdp.wrap.min_num_params=20000")
ROWS = (
    ("no_shard", ("fsdp.strategy=no_shard", "fsdp.wrap.policy=none")),
    ("full_shard", ("fsdp.strategy=full_shard", "fsdp.wrap.policy=none")),
    ("full_shard + policy", ("fsdp.strategy=full_shard", *POLICY)),
    ("shard_grad_op + policy", ("fsdp.strategy=shard_grad_op", *POLICY)),
    ("full_shard + policy + checkpointing",
     ("fsdp.strategy=full_shard", *POLICY, "fsdp.activation_checkpointing=[conv1]")),
    ("full_shard + policy + bf16",
     ("fsdp.strategy=full_shard", *POLICY, "precision.param_dtype=bf16")),
)
GROUPS = ("hybrid_shard of 2 + policy", ("fsdp.strategy=hybrid_shard", "fsdp.shard_size=2", *POLICY))


def rows_of(world):
    """With two ranks one group of two is full_shard."""
    return (*ROWS, GROUPS) if world > 2 and world % 2 == 0 else ROWS


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--worlds", default="2,4")
    options = parser.parse_args()
    ddp = f"PyTorch {torch.__version__} DDP"
    print(f"Machine: {measure.machine()}; {measure.torch_libraries()}. "
          f"One thread per rank, batch {measure.BATCH} per rank, "
          f"median of {options.rounds} alternating rounds of {options.steps} steps.\n")
    print("| | ranks | ms per step | peak memory per rank |\n| --- | --- | --- | --- |")
    for world in map(int, options.worlds.split(",")):
        rows = rows_of(world)
        times = {name: [] for name, _ in (*rows, (ddp, None))}
        memory = {}
        with measure.harness.Daemon(workers=world, data=measure.harness.find_mnist(),
                                    arguments=["--threads", "1"]) as daemon:
            measure.share_priority(daemon)
            for _ in range(options.rounds):
                for name, settings in rows:
                    seconds, memory[name] = measure.our_run(
                        daemon, options.steps, (f"workers={world}", *settings))
                    times[name] += seconds
                seconds, memory[ddp] = measure.torch_run(daemon.data, options.steps, world)
                times[ddp] += seconds
        for name, seconds in times.items():
            print(f"| {name} | {world} | {statistics.median(seconds) * 1e3:.1f} | "
                  f"{memory[name] / 1e6:.1f} MB |", flush=True)


if __name__ == "__main__":
    main()
