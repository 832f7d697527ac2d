#!/usr/bin/env python3
"""The measurement of bench/strategies.sh; see there. Growth is the amount by which training raised the
peak of a process's resident set: of PyTorch's above what it was with the data and before the model, of
ours above that of a worker without a job. The plan is what the runtime allocated in its arenas."""

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
    """Skips groups of two with two ranks: they equal full_shard."""
    return (*ROWS, GROUPS) if world > 2 and world % 2 == 0 else ROWS


def resident(pid):
    """The resident set of a process, in bytes."""
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS:"))


def our_growth(world, steps, settings):
    """The growth of the largest worker's resident set by a job, on workers that are new."""
    with measure.harness.Daemon(workers=world, data=measure.harness.find_mnist(),
                                arguments=["--threads", "1"]) as daemon:
        before = min(map(resident, measure.harness.children(daemon.process.pid)))
        measure.our_run(daemon, steps, (f"workers={world}", *settings))
        job = daemon.show(daemon.json("list")[-1]["id"])
    return int(job["metrics"]["resident_peak_bytes"]) - before


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
    print("| | ranks | ms per step | planned per rank | growth per rank |"
          "\n| --- | --- | --- | --- | --- |")
    for world in map(int, options.worlds.split(",")):
        rows = rows_of(world)
        times = {name: [] for name, _ in (*rows, (ddp, None))}
        planned = {ddp: "-"}
        growth = {name: our_growth(world, options.steps, settings) for name, settings in rows}
        with measure.harness.Daemon(workers=world, data=measure.harness.find_mnist(),
                                    arguments=["--threads", "1"]) as daemon:
            measure.share_priority(daemon)
            for _ in range(options.rounds):
                for name, settings in rows:
                    seconds, arenas = measure.our_run(
                        daemon, options.steps, (f"workers={world}", *settings))
                    planned[name] = f"{arenas / 1e6:.1f} MB"
                    times[name] += seconds
                seconds, growth[ddp] = measure.torch_run(daemon.data, options.steps, world)
                times[ddp] += seconds
        for name, seconds in times.items():
            print(f"| {name} | {world} | {statistics.median(seconds) * 1e3:.1f} | "
                  f"{planned[name]} | {growth[name] / 1e6:.1f} MB |", flush=True)


if __name__ == "__main__":
    main()
