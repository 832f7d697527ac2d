#!/usr/bin/env python3
"""The measurement of bench/mnist.sh, which see. PyTorch's batches lie ready in memory; ours come through
the loader. Steps of the first tenth of each run are warm-up and not counted."""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time

here = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(here, "../tests/system"), os.path.join(here, "../tests/parity")]
import harness
import reference
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
import torch.nn.functional as F

BATCH = 64


def torch_process(rank, world, directory, steps, port, results):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank,
                            world_size=world)
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(reference.Net())
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    images, labels = reference.dataset(directory).tensors
    batches = [(images[i:i + BATCH], labels[i:i + BATCH])
               for i in range(0, min(len(labels), 20 * BATCH) - BATCH + 1, BATCH)]
    seconds = []
    for step in range(steps):
        x, y = batches[step % len(batches)]
        started = time.perf_counter()
        optimizer.zero_grad()
        loss = F.nll_loss(model(x), y, reduction="sum")
        loss.backward()
        optimizer.step()
        loss.item()
        seconds.append(time.perf_counter() - started)
    if rank == 0:
        with open(results, "w") as file:
            json.dump(seconds, file)
    dist.destroy_process_group()


def torch_run(directory, steps, port):
    with tempfile.TemporaryDirectory() as work:
        results = os.path.join(work, "seconds")
        multiprocessing.spawn(torch_process, (2, directory, steps, port, results), nprocs=2)
        with open(results) as file:
            return json.load(file)[steps // 10:]


def our_run(daemon, steps, settings):
    result = daemon.submit(f"train.max_steps={steps}", "train.epochs=1000",
                           f"train.batch_size={BATCH}", "train.log_interval=1",
                           "train.evaluate=false", "save_model=false", *settings, wait=True)
    if result.returncode != 0:
        sys.exit(result.stderr)
    job = daemon.json("list")[-1]["id"]
    events = map(json.loads, daemon.ctl("watch", job, "-o", "json").stdout.splitlines())
    ends = [event["metrics"]["train_seconds"] for event in events if "metrics" in event]
    return [after - before for before, after in zip(ends, ends[1:])][steps // 10:]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--set", action="append", default=[], dest="settings")
    options = parser.parse_args()
    ours, theirs = [], []
    with harness.Daemon(data=harness.find_mnist(), arguments=["--threads", "1"]) as daemon:
        for number in range(options.rounds):
            mine = our_run(daemon, options.steps, options.settings)
            other = torch_run(daemon.data, options.steps, 29600 + number)
            ours += mine
            theirs += other
            print(f"round {number + 1}: fsdpd {statistics.median(mine) * 1e3:.2f} ms, PyTorch "
                  f"{statistics.median(other) * 1e3:.2f} ms a step", flush=True)
    for name, seconds in (("fsdpd", ours), (f"PyTorch {torch.__version__}", theirs)):
        low, middle, high = statistics.quantiles(seconds, n=4)
        print(f"{name}: median {middle * 1e3:.2f} ms (quartiles {low * 1e3:.2f}, {high * 1e3:.2f})"
              f" over {len(seconds)} steps of 2 x {BATCH} samples")
    print(f"machine: {platform.machine()}, {os.cpu_count()} cores")
    print(f"ratio {statistics.median(ours) / statistics.median(theirs):.3f}")


if __name__ == "__main__":
    main()
