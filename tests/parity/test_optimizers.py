#!/usr/bin/env python3
"""The parts of a step follow PyTorch: optimizers, schedules, parameter groups, accumulation and
clipping, on the tutorial's network without dropout, against DistributedDataParallel on two Gloo
processes. With these settings PyTorch agrees with itself: a control run, one process on the same
global batches, must stay within the same bound of DDP, otherwise the case proves nothing."""

import json
import os
import sys
import tempfile
import unittest
import warnings

sys.path[:0] = [os.path.dirname(__file__), os.path.join(os.path.dirname(__file__), "../system")]
import harness

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as multiprocessing
    import torch.nn.functional as F
    import reference
    from lion import Lion
    from torch.optim import lr_scheduler
    from torch.utils.data import DataLoader
    from torch.utils.data.distributed import DistributedSampler
except ImportError as error:
    print(f"PyTorch is missing: {error}")
    sys.exit(77)

# SequentialLR of PyTorch 1 uses what PyTorch 1 deprecates.
warnings.filterwarnings("ignore", message="The epoch parameter in")

STEPS, BATCH, PORT = 24, 8, 29560
EPOCH = 10  # steps, of the first samples alone, if the schedule goes by epochs
LOSS_BOUND, PARAMETER_BOUND = 1e-4, 1e-6


def cosine(optimizer):
    return lr_scheduler.SequentialLR(optimizer, [
        lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 5),
        lr_scheduler.CosineAnnealingLR(optimizer, STEPS - 5, 0.0)], [5])


def linear(optimizer):
    return lr_scheduler.LinearLR(optimizer, 1.0, 0.2, STEPS)


def by_epochs(optimizer):
    return lr_scheduler.StepLR(optimizer, 1, gamma=0.5)


def biases_apart(model, rate):
    biases = [value for name, value in model.named_parameters() if name.endswith(".bias")]
    others = [value for name, value in model.named_parameters() if not name.endswith(".bias")]
    return [{"params": others}, {"params": biases, "weight_decay": 0.0, "lr": 0.5 * rate}]


# name: optimizer of a model, schedule, micro-steps, max_norm and norm type, settings of the job
CASES = {
    "adam, cosine after warm-up": (
        lambda model: torch.optim.Adam(model.parameters(), 1e-4, eps=1e-3), cosine, 1, None,
        ["optimizer.type=adam", "optimizer.lr=1e-4", "optimizer.eps=1e-3", "schedule.type=cosine",
         "schedule.warmup_steps=5", "schedule.warmup_start_factor=0.1"]),
    "adamw, linear, groups": (
        lambda model: torch.optim.AdamW(biases_apart(model, 1e-4), 1e-4, eps=1e-3,
                                        weight_decay=0.1), linear, 1, None,
        ["optimizer.type=adamw", "optimizer.lr=1e-4", "optimizer.eps=1e-3",
         "optimizer.weight_decay=0.1", "schedule.type=linear", "schedule.end_factor=0.2",
         "optimizer.groups=[{match: '*.bias', weight_decay: 0, lr_scale: 0.5}]"]),
    "lion, linear, groups": (
        lambda model: Lion(biases_apart(model, 5e-7), 5e-7, weight_decay=0.1), linear, 1, None,
        ["optimizer.type=lion", "optimizer.lr=5e-7", "optimizer.weight_decay=0.1",
         "schedule.type=linear", "schedule.end_factor=0.2",
         "optimizer.groups=[{match: '*.bias', weight_decay: 0, lr_scale: 0.5}]"]),
    "adagrad, decaying rate": (
        lambda model: torch.optim.Adagrad(model.parameters(), 1e-3, lr_decay=0.1,
                                          weight_decay=0.01, eps=1e-3), None, 1, None,
        ["optimizer.type=adagrad", "optimizer.lr=1e-3", "optimizer.lr_decay=0.1",
         "optimizer.weight_decay=0.01", "optimizer.eps=1e-3"]),
    "radam": (
        lambda model: torch.optim.RAdam(model.parameters(), 1e-4, eps=1e-3, betas=(0.9, 0.99)),
        None, 1, None,
        ["optimizer.type=radam", "optimizer.lr=1e-4", "optimizer.eps=1e-3",
         "optimizer.beta2=0.99"]),
    "sgd, StepLR": (
        lambda model: torch.optim.SGD(model.parameters(), 2e-4, momentum=0.9), by_epochs, 1, None,
        ["optimizer.type=sgd", "optimizer.lr=2e-4", "optimizer.momentum=0.9",
         "schedule.type=step", "schedule.step_size=1", "schedule.gamma=0.5"]),
    "adadelta, weight decay": (
        lambda model: torch.optim.Adadelta(model.parameters(), 0.01, weight_decay=0.01), None, 1,
        None, ["optimizer.lr=0.01", "optimizer.weight_decay=0.01"]),
    "sgd, nesterov": (
        lambda model: torch.optim.SGD(model.parameters(), 2e-4, momentum=0.9, nesterov=True,
                                      weight_decay=0.01), None, 1, None,
        ["optimizer.type=sgd", "optimizer.lr=2e-4", "optimizer.momentum=0.9",
         "optimizer.nesterov=true", "optimizer.weight_decay=0.01"]),
    "accumulation, clipped": (
        lambda model: torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9), None, 3,
        (5.0, 2.0),
        ["optimizer.type=sgd", "optimizer.lr=1e-3", "optimizer.momentum=0.9",
         "train.accumulation_steps=3", "train.clip_grad_norm.max_norm=5"]),
    "accumulation without sync, clipped by the largest": (
        lambda model: torch.optim.SGD(model.parameters(), 1e-3), None, 3, (0.5, float("inf")),
        ["optimizer.type=sgd", "optimizer.lr=1e-3", "train.accumulation_steps=3",
         "train.no_sync=true", "train.clip_grad_norm.max_norm=0.5",
         "train.clip_grad_norm.norm_type=inf"]),
    "clipped, no_shard": (
        lambda model: torch.optim.SGD(model.parameters(), 1e-3), None, 1, (2.0, 2.0),
        ["optimizer.type=sgd", "optimizer.lr=1e-3", "train.clip_grad_norm.max_norm=2",
         "fsdp.strategy=no_shard"]),
}


def batches(directory, ranks):
    """The batches of these ranks together, endlessly."""
    data = reference.dataset(directory)
    samplers = [DistributedSampler(data, rank=rank, num_replicas=2, shuffle=True) for rank in ranks]
    epoch = 0
    while True:
        epoch += 1
        for sampler in samplers:
            sampler.set_epoch(epoch)
        loaders = [DataLoader(data, batch_size=BATCH, sampler=sampler) for sampler in samplers]
        for parts in zip(*loaders):
            yield torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


def train(rank, directory, case):
    """The case's losses, norms, rates and first parameters by rank 0 or 1 of DDP; without a rank,
    by one process on both ranks' batches."""
    make_optimizer, make_schedule, micro_steps, clip, _ = CASES[case]
    torch.manual_seed(1)
    model = net = reference.Net()
    net.dropout1.p = net.dropout2.p = 0.0
    alone = rank is None
    if not alone:
        model = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = make_optimizer(net)
    schedule = make_schedule(optimizer) if make_schedule else None
    feed = batches(directory, (0, 1) if alone else (rank,))
    losses, norms, rates, first = [], [], [], None
    for step in range(STEPS):
        optimizer.zero_grad()
        total = torch.zeros(2, dtype=torch.float64)
        for _ in range(micro_steps):
            images, labels = next(feed)
            loss = F.nll_loss(model(images), labels, reduction="sum")
            (loss / 2 if alone else loss).backward()
            total += torch.tensor([loss.item(), len(labels)], dtype=torch.float64)
        if clip:
            norms.append(torch.nn.utils.clip_grad_norm_(net.parameters(), *clip).item())
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if schedule and (make_schedule is not by_epochs or (step + 1) % EPOCH == 0):
            schedule.step()
        if not alone:
            dist.all_reduce(total)
        losses.append((total[0] / total[1]).item())
        if first is None:
            first = {name: value.clone() for name, value in net.state_dict().items()}
    return {"losses": losses, "norms": norms, "rates": rates, "first": first}


def train_all(rank, directories, results):
    """All cases, one after the other: each start of PyTorch takes longer than a case."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{PORT}", rank=rank, world_size=2)
    trained = {case: train(rank, directories[case], case) for case in CASES}
    if rank == 0:
        torch.save(trained, results)
    dist.destroy_process_group()


def first_samples(directory, count, target):
    """The digits with only the first samples for training, so that epochs are short."""
    for name in harness.MNIST_FILES:
        values = reference.read_idx(directory, name).numpy()
        if name.startswith("train"):
            values = values[:count]
        shape = b"".join(size.to_bytes(4, "big") for size in values.shape)
        with open(os.path.join(target, name), "wb") as file:
            file.write(bytes([0, 0, 8, values.ndim]) + shape + values.tobytes())


def worst(found, expected):
    return max(abs(a - b) / abs(b) for a, b in zip(found, expected))


class Optimizers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.many, cls.few = tempfile.TemporaryDirectory(), tempfile.TemporaryDirectory()
        cls.whole = harness.Daemon(data=harness.find_clear_digits(cls.many.name, train=2 * BATCH * STEPS * 3))
        first_samples(cls.whole.data, 2 * BATCH * EPOCH, cls.few.name)
        cls.short = harness.Daemon(data=cls.few.name)

    @classmethod
    def tearDownClass(cls):
        cls.whole.close()
        cls.short.close()
        cls.many.cleanup()
        cls.few.cleanup()

    def run_job(self, steps, settings):
        result = self.daemon.submit("train.dropout=false", "train.evaluate=false",
                                    "train.log_interval=1", f"train.batch_size={BATCH}",
                                    "schedule.type=constant", f"train.max_steps={steps}",
                                    *settings, wait=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        job = self.daemon.json("list")[-1]["id"]
        events = self.daemon.ctl("watch", job, "-o", "json").stdout.splitlines()
        rows = [event["metrics"] for event in map(json.loads, events) if "metrics" in event]
        rows = [row for row in rows if row.get("loss")]
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "state.safetensors")
            pulled = self.daemon.ctl("pull", job, "-o", path)
            self.assertEqual(pulled.returncode, 0, pulled.stderr)
            state, _ = harness.load_state_dict(path)
        return {int(row["step"]): row for row in rows}, state

    def check(self, case, expected):
        _, make_schedule, _, clip, settings = CASES[case]
        self.daemon = self.daemon_of(case)
        control = train(None, self.daemon.data, case)
        self.assertLessEqual(worst(control["losses"], expected["losses"]), LOSS_BOUND,
                             "PyTorch does not agree with itself: another setting is needed")
        rows, _ = self.run_job(STEPS, settings)
        self.assertEqual(sorted(rows), list(range(1, STEPS + 1)))
        curve = worst([rows[step + 1]["loss"] for step in range(STEPS)], expected["losses"])
        # A schedule's end does not depend on the number of steps of the run.
        ends = make_schedule not in (None, by_epochs)
        end = [f"schedule.total_steps={STEPS}"] if ends else []
        _, first = self.run_job(1, settings + end)
        distance = max(((first[name] - value).norm() / value.norm()).item()
                       for name, value in expected["first"].items())
        print(f"{case}: losses within {curve:.1e}, parameters after a step within {distance:.1e}")
        self.assertLessEqual(curve, LOSS_BOUND)
        self.assertLessEqual(distance, PARAMETER_BOUND)
        self.assertLessEqual(worst([rows[step + 1]["learning_rate"] for step in range(STEPS)],
                                   expected["rates"]), 1e-9)
        if clip:
            norms = [rows[step + 1]["gradient_norm"] for step in range(STEPS)]
            self.assertLessEqual(worst(norms, expected["norms"]), 1e-3)
            self.assertGreater(max(norms), clip[0], "nothing was clipped")

    def daemon_of(self, case):
        return self.short if CASES[case][1] is by_epochs else self.whole

    def test_cases(self):
        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "results.pt")
            directories = {case: self.daemon_of(case).data for case in CASES}
            multiprocessing.spawn(train_all, (directories, path), nprocs=2)
            expected = torch.load(path)
        for case in CASES:
            with self.subTest(case):
                self.check(case, expected[case])


if __name__ == "__main__":
    harness.main()
