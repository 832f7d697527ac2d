"""Shared code of the benchmarks: runs of fsdpd and of PyTorch DDP over Gloo on the MNIST network, one
thread per process. PyTorch's batches lie ready in memory; ours come through the loader. The first
tenth of each run's steps is warm-up and not counted."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

os.environ["OMP_NUM_THREADS"] = "1"
here = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(here, "../tests/system"), os.path.join(here, "../tests/parity")]
import harness
import reference
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
import torch.nn.functional as F

BATCH = 64
RESERVE = 1 << 30  # bytes that the host keeps: without swap it would end some process before the last page


class NotRun(Exception):
    """Why a program has no figures."""


def available_memory():
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))


def _wait_for_group(group):
    """Waits until the memory of killed processes is free, for a while."""
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)


def run_bounded(arguments, seconds, **options):
    """Runs a program and returns its output. Ends it and its children after `seconds`, and before the host
    runs out of memory."""
    at_first, until = available_memory(), time.monotonic() + seconds
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=out, stderr=errors,
                                   process_group=0, **options)
        try:
            while process.poll() is None:
                if time.monotonic() > until:
                    raise NotRun(f"not run: limit of {seconds:.0f} s")
                if available_memory() < RESERVE:
                    raise NotRun(f"not run: {at_first / 1e9:.1f} GB of memory are not enough")
                time.sleep(0.2)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                _wait_for_group(process.pid)
        out.seek(0)
        errors.seek(0)
        if process.returncode != 0:
            raise NotRun("failed: " + (errors.read().strip().splitlines() or ["killed"])[-1])
        return out.read()


def resident_peak(process="self"):
    with open(f"/proc/{process}/status") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def _torch_process(rank, world, directory, steps, rendezvous, results):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank,
                            world_size=world)
    torch.manual_seed(1)
    images, labels = reference.dataset(directory).tensors
    batches = [(images[i:i + BATCH].clone(), labels[i:i + BATCH])
               for i in range(0, min(len(labels), 20 * BATCH) - BATCH + 1, BATCH)]
    del images
    with open("/proc/self/clear_refs", "w") as clear:
        clear.write("5")  # reset the peak, so that it covers only the model and its training
    before = resident_peak()
    model = torch.nn.parallel.DistributedDataParallel(reference.Net())
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
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
            json.dump([seconds, resident_peak() - before], file)
    dist.destroy_process_group()


def torch_run(directory, steps, world=2):
    """Seconds of each counted step, and the bytes by which training raised the resident set's peak."""
    with tempfile.TemporaryDirectory() as work:
        results = os.path.join(work, "results")
        rendezvous = os.path.join(work, "rendezvous")
        multiprocessing.spawn(_torch_process, (world, directory, steps, rendezvous, results),
                              nprocs=world)
        with open(results) as file:
            seconds, memory = json.load(file)
    return seconds[steps // 10:], memory


def our_run(daemon, steps, settings=()):
    """Seconds of each counted step, and the measured memory peak in bytes per rank."""
    result = daemon.submit(f"train.max_steps={steps}", "train.epochs=1000",
                           f"train.batch_size={BATCH}", "train.log_interval=1",
                           "train.evaluate=false", "save_model=false", *settings, wait=True)
    if result.returncode != 0:
        sys.exit(result.stderr)
    seconds, last = step_seconds(daemon)
    return seconds[steps // 10:], int(last["memory_peak_bytes"])


def step_seconds(daemon):
    """Seconds of each step of the newest job but the first, and its last report. The job must report
    every step."""
    job = daemon.json("list")[-1]["id"]
    events = map(json.loads, daemon.ctl("watch", job, "-o", "json").stdout.splitlines())
    metrics = [event["metrics"] for event in events if "metrics" in event]
    ends = [row["train_seconds"] for row in metrics]
    return [after - before for before, after in zip(ends, ends[1:])], metrics[-1]


def find_text():
    """The path of a text to train on, or None."""
    for path in (os.environ.get("FSDPD_TEXT"),
                 os.path.join(harness.SOURCE, "../shared/data/text/tinyshakespeare.txt"),
                 os.path.join(harness.BUILD, "../../shared/data/text/tinyshakespeare.txt")):
        if path and os.path.exists(path):
            return os.path.realpath(path)
    return None


def share_priority(daemon):
    """Makes `nice` effective across sessions: Linux first divides processor time among sessions, and
    each of our workers has its own, but PyTorch's processes share this one."""
    for process in ("self", *harness.children(daemon.process.pid)):
        try:
            with open(f"/proc/{process}/autogroup", "w") as file:
                file.write(str(os.nice(0)))
        except OSError:
            pass  # the kernel lacks it, or forbids it


def torch_libraries():
    """PyTorch's version and its BLAS, which can change its speed by a factor of two."""
    with open("/proc/self/maps") as file:
        paths = sorted({line.split()[-1] for line in file if "blas" in line or "libmkl" in line})
    # Debian's alternatives for libblas.so.3 lie in directories named after them.
    serving = [path for path in paths if os.path.basename(path).startswith("libblas.so")]
    if any(os.path.basename(os.path.dirname(path)) == "blas" for path in serving):
        blas = "the reference BLAS"
        print("PyTorch runs on the reference BLAS: what follows flatters fsdpd. Install "
              "libopenblas0-openmp.", flush=True)
    else:
        others = [os.path.basename(path) for path in paths if path not in serving]
        named = [name for name in others if re.match(r"lib(openblas|blis|mkl)", name)]
        blas = named[0] if named else " ".join(serving) or "a BLAS of its own"
    return f"PyTorch {torch.__version__} on {blas}, " + \
        ("with oneDNN" if torch.backends.mkldnn.is_available() else "without oneDNN")


def busy(seconds=2):
    """How many processors are busy now, as the kernel counts. Call it before the measurement."""
    def used():
        with open("/proc/stat") as file:
            fields = list(map(int, file.readline().split()[1:9]))
        return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")

    before, begin = used(), time.monotonic()
    time.sleep(seconds)
    return (used() - before) / (time.monotonic() - begin)


def require_quiet(update):
    """Warns if other processes are busy, and refuses to update a page with what would be measured."""
    others = busy()
    if others <= 0.1 * os.cpu_count():
        return
    text = f"other processes use {others:.1f} of {os.cpu_count()} processors"
    if update:
        sys.exit(f"{text}: --update needs a quiet machine")
    print(f"{text}: the times will not hold", file=sys.stderr)


def machine():
    """The processor's name and the number of cores."""
    with open("/proc/cpuinfo") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return f"{names[0] if names else 'unknown processor'}, {os.cpu_count()} cores"
