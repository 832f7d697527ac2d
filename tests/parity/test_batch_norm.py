#!/usr/bin/env python3
"""ResNet-18 for small images, of small width, against PyTorch: 50 steps on one worker, and on two as
DistributedDataParallel, which normalises by each rank's own samples and keeps rank 0's running
statistics. Losses, all parameters and buffers, and an evaluation by the running statistics; a pull
loads into the module with strict=True. Strategies and activation checkpointing keep the bits. The
same with accumulated batches, in bf16, from a pulled file, and of a job that loses a worker.
SyncBatchNorm, on one to three workers, against BatchNorm on the whole batch."""

import copy
import os
import shutil
import sys
import tempfile
import unittest

sys.path[:0] = [os.path.dirname(__file__), os.path.join(os.path.dirname(__file__), "../system")]
import harness

try:
    import torch
    from torch import nn
    from torch.nn import functional as F
except ImportError as missing:
    print("SKIP: python3-torch is not installed:", missing)
    sys.exit(77)

STEPS, BATCH, SIDE, SEED, TESTED = 50, 16, 20, 16, 40
LEARNING_RATE, MOMENTUM = 0.00002, 0.9
# The job that loses a worker: its checkpoints, the step at which it does, and its last step, which is
# beyond the epoch's short one.
EVERY, BEFORE, DONE = 5, 11, STEPS + 5
# Bounds of the loss, and of the largest element or 1. Two programs that round differently drift apart:
# every step rounds every parameter, and the steps after it enlarge that. In double, moving every
# parameter by an ulp after every step moves the losses of 55 steps by 2e-6 to 8e-6, the state by 6e-6
# to 2e-5 (six draws of the signs), and after 200 steps both by 1e-4: the number of steps is fixed.
# Float32 against double is 3e-6 and 4e-6. Two programs drift in two directions, and another draw may
# be twice as far: 4 times the drift, which test_bounds measures, is the least bound.
LOSS_BOUND, STATE_BOUND = 1e-4, 1e-4
ULP, DRIFTS = 2.0**-23, 4
WIDTHS = (4, 8, 12, 16)
MODEL = f"""
name: ResNet
input: [1, {SIDE}, {SIDE}]
classes: 10
blocks:
  BasicBlock(inplanes, planes, stride=1):
    modules:
      conv1: Conv2d(inplanes, planes, 3, stride, 1, bias=False)
      bn1: BatchNorm2d(planes)
      conv2: Conv2d(planes, planes, 3, 1, 1, bias=False)
      bn2: BatchNorm2d(planes)
      downsample: "Sequential(Conv2d(inplanes, planes, 1, stride, bias=False), BatchNorm2d(planes)) if stride > 1 else None"
    forward:
      - y = bn2(conv2(relu(bn1(conv1(x)))))
      - output = relu(y + (downsample(x) if stride > 1 else x))
modules:
  conv1: Conv2d(1, 4, 3, 1, 1, bias=False)
  bn1: BatchNorm2d(4, eps=1e-4, momentum=0.2)
  layer1: Sequential(BasicBlock(4, 4), BasicBlock(4, 4))
  layer2: Sequential(BasicBlock(4, 8, 2), BasicBlock(8, 8))
  layer3: Sequential(BasicBlock(8, 12, 2), BasicBlock(12, 12))
  layer4: Sequential(BasicBlock(12, 16, 2), BasicBlock(16, 16))
  avgpool: AdaptiveAvgPool2d(1)
  fc: Linear(16, 10)
forward:
  - x = relu(bn1(conv1(x)))
  - x = layer4(layer3(layer2(layer1(x))))
  - output = fc(flatten(avgpool(x), 1))
loss: cross_entropy(output, target)
"""
JOB = f"""
name: resnet
model: {{file: net.yaml}}
data: {{format: idx, dir: ., normalize: {{mean: 0.4, std: 0.25}}}}
train: {{epochs: 1, batch_size: {BATCH}, test_batch_size: 16, shuffle: false, log_interval: 1,
        seed: {SEED}}}
optimizer: {{type: sgd, lr: {LEARNING_RATE}, momentum: {MOMENTUM}}}
"""


class BasicBlock(nn.Module):
    def __init__(self, inplanes, planes, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = nn.Sequential(nn.Conv2d(inplanes, planes, 1, stride, bias=False),
                                        nn.BatchNorm2d(planes)) if stride > 1 else None

    def forward(self, x):
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(4, eps=1e-4, momentum=0.2)
        before = WIDTHS[0]
        for number, width in enumerate(WIDTHS, 1):
            stride = 1 if number == 1 else 2
            setattr(self, f"layer{number}", nn.Sequential(BasicBlock(before, width, stride),
                                                          BasicBlock(width, width)))
            before = width
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(before, 10)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


def write_idx(path, values):
    with open(path, "wb") as file:
        file.write(bytes([0, 0, 8, values.dim()]))
        for size in values.shape:
            file.write(size.to_bytes(4, "big"))
        file.write(values.numpy().astype("u1").tobytes())


def draw(count, generator):
    """Images whose classes can be learned: a bright bar at a height of the class."""
    labels = torch.randint(0, 10, (count,), generator=generator)
    images = torch.randint(0, 160, (count, SIDE, SIDE), generator=generator)
    for image, label in zip(images, labels):
        image[2 * int(label):2 * int(label) + 2] += 90
    return images, labels


def normalised(images):
    return ((images.float() / 255 - 0.4) / 0.25)[:, None]


def largest(values):
    return float(values.abs().max())


class BatchNorm(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp(prefix="fsdpd-test-")
        cls.addClassCleanup(shutil.rmtree, cls.root, True)
        cls.data = os.path.join(cls.root, "data")
        os.mkdir(cls.data)
        generator = torch.Generator().manual_seed(3)
        # the last step of two workers is short: the rows that fill it up must not count
        cls.train = {workers: draw(STEPS * BATCH * workers - workers * 3, generator)
                     for workers in (1, 2)}
        cls.test = draw(TESTED, generator)
        for workers, (images, labels) in cls.train.items():
            directory = os.path.join(cls.data, str(workers))
            os.mkdir(directory)
            for part, (x, y) in (("train", (images, labels)), ("t10k", cls.test)):
                write_idx(os.path.join(directory, f"{part}-images-idx3-ubyte"), x)
                write_idx(os.path.join(directory, f"{part}-labels-idx1-ubyte"), y)
        for name, text in (("net.yaml", MODEL), ("job.yaml", JOB)):
            with open(os.path.join(cls.root, name), "w", encoding="utf-8") as file:
                file.write(text)
        cls.faults = harness.Faults(cls.root)
        cls.daemon = harness.Daemon(3, data=cls.data, environment=cls.faults.environment)
        cls.addClassCleanup(cls.daemon.close)

    def arguments(self, workers, settings):
        arguments = [f"workers={workers}", f"data.dir={workers}", *settings]
        return [os.path.join(self.root, "job.yaml"),
                *(part for one in arguments for part in ("--set", one))]

    def submit(self, workers, *settings):
        result = self.daemon.ctl("submit", *self.arguments(workers, settings), "--wait")
        self.assertEqual(result.returncode, 0, result.stderr)
        return self.daemon.json("list")[-1]["id"]

    def pull(self, job):
        path = os.path.join(self.root, "state.safetensors")
        result = self.daemon.ctl("pull", job, "-o", path)
        self.assertEqual(result.returncode, 0, result.stderr)
        entries = harness.read_safetensors(path)[0]
        types = {"F32": torch.float32, "I64": torch.int64}
        return {name: torch.frombuffer(bytearray(values), dtype=types[dtype]).reshape(shape)
                for name, (dtype, shape, values) in entries.items()}

    def fresh(self):
        torch.manual_seed(SEED)
        return ResNet()

    def oracle(self, model, workers, steps, moved=0):
        """Trains the model; a step has every rank's batches, which are numbers of samples. Ranks
        that a later step adds begin with the model's statistics. After every step, each parameter
        is moved by this part of itself, up or down. Returns the losses."""
        images, labels = self.train[workers]
        images = normalised(images).to(model.fc.weight.dtype)
        losses, ranks, generator = [], [], torch.Generator().manual_seed(SEED)
        optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE, momentum=MOMENTUM)
        for step in steps:
            if len(step) != len(ranks):
                ranks = [model] + [copy.deepcopy(model) for _ in step[1:]]
            samples, total = sum(len(batch) for rank in step for batch in rank), 0
            for replica, batches in zip(ranks, step):
                replica.zero_grad()
                for batch in batches:
                    loss = F.cross_entropy(replica(images[batch]), labels[batch], reduction="sum")
                    (loss / samples).backward()
                    total += loss.item()
            for parameters in zip(*(replica.parameters() for replica in ranks)):
                parameters[0].grad = torch.stack([one.grad for one in parameters]).sum(0)
            optimizer.step()
            with torch.no_grad():
                for values in model.parameters() if moved else ():
                    sign = 2 * torch.randint(0, 2, values.shape, generator=generator) - 1
                    values.mul_(1 + moved * sign)
                for replica in ranks[1:]:
                    for mine, first in zip(replica.parameters(), model.parameters()):
                        mine.copy_(first)
            losses.append(total / samples)
        return losses

    def epoch(self, workers, accumulate=1):
        """The steps of one epoch."""
        samples = len(self.train[workers][1])
        batches = [[torch.arange(first + rank, min(first + BATCH * workers, samples), workers)
                    for rank in range(workers)] for first in range(0, samples, BATCH * workers)]
        return [list(zip(*batches[at:at + accumulate]))
                for at in range(0, len(batches), accumulate)]

    def whole(self):
        """An epoch of whole batches."""
        samples = len(self.train[2][1]) # the last step has 26 samples of 32: shares are unequal
        return [[[torch.arange(first, min(first + 32, samples))]] for first in range(0, samples, 32)]

    def shrinking(self, before, done):
        """Steps of two ranks, and then those of one, which takes two batches."""
        steps, epoch = [], [batches[0] for [batches] in self.whole()]
        for number in range(done):
            step = epoch[number % len(epoch)]
            half = len(step) // 2
            steps.append([[step[:half]], [step[half:]]] if number < before
                         else [[step[:BATCH], step[BATCH:]]])
        return steps

    def found_losses(self, job):
        return [loss for step, loss in sorted(dict(self.daemon.losses(job)).items()) if step > 0]

    def compare(self, job, model, losses, batches, loss_bound=LOSS_BOUND, state_bound=STATE_BOUND):
        """A job's losses, state and last evaluation, with those of a trained model."""
        found = self.found_losses(job)
        self.assertEqual(len(found), len(losses))
        worst = max(abs(ours / theirs - 1) for ours, theirs in zip(found, losses))
        self.assertLessEqual(worst, loss_bound)
        state = self.pull(job)
        expected = model.state_dict()
        self.assertEqual(set(state), set(expected))
        for name, values in expected.items():
            if "num_batches" in name:
                self.assertEqual(int(state[name]), batches, name)
            else:
                self.assertLessEqual(largest(state[name] - values),
                                     state_bound * max(1, largest(values)), name)
        print(f"{job}: {len(losses)} losses within {worst:.1e}")
        return state

    def check_evaluation(self, job, state, bound=1e-5):
        """It used the running statistics that the state has."""
        model = ResNet()
        model.load_state_dict(state, strict=True)
        images, labels = self.test
        with torch.no_grad():
            output = model.eval()(normalised(images))
        metrics = [event for event in self.daemon.events(job) if "epoch" in event][-1]["epoch"]
        self.assertAlmostEqual(metrics["test_loss"], F.cross_entropy(output, labels).item(),
                               delta=bound * metrics["test_loss"])
        if bound < 1e-4:
            self.assertEqual(int(metrics["correct"]), int((output.argmax(1) == labels).sum()))

    def check(self, workers, *settings):
        model = self.fresh()
        losses = self.oracle(model, workers, self.epoch(workers))
        self.assertLess(sum(losses[-10:]), sum(losses[:10]))
        job = self.submit(workers, *settings)
        state = self.compare(job, model, losses, STEPS)
        self.check_evaluation(job, state)
        return state

    def test_accumulation(self):
        """Every batch moves the statistics once, as a PyTorch loop over them does."""
        for workers in (1, 2):
            model, steps = self.fresh(), self.epoch(workers, 4)
            losses = self.oracle(model, workers, steps)
            settings = ["train.accumulation_steps=4"]
            for more in ([], ["train.no_sync=true"], ["fsdp.activation_checkpointing=[layer*]"]):
                job = self.submit(workers, *settings, *more)
                self.check_evaluation(job, self.compare(job, model, losses, STEPS))

    def test_bf16(self):
        """Statistics are f32, of values that were rounded to 8 bits before."""
        for workers in (1, 2):
            model = self.fresh()
            losses = self.oracle(model, workers, self.epoch(workers))
            job = self.submit(workers, "precision.param_dtype=bf16")
            state = self.compare(job, model, losses, STEPS, 0.02, 0.02)
            self.check_evaluation(job, state, 0.02)

    def test_continued_from_a_file(self):
        """A pulled state is all that a job needs to continue; what a batch does not move, it keeps."""
        first = self.submit(2)
        state = self.pull(first)
        path = os.path.join(self.data, "state.safetensors")
        shutil.copy(os.path.join(self.root, "state.safetensors"), path)
        model = ResNet()
        model.load_state_dict(state, strict=True)
        losses = self.oracle(model, 2, self.epoch(2))
        again = self.submit(2, f"model.weights={path}")
        self.check_evaluation(again, self.compare(again, model, losses, 2 * STEPS))
        still = os.path.join(self.root, "still.yaml")
        with open(still, "w", encoding="utf-8") as file:
            file.write(MODEL.replace("momentum=0.2", "momentum=0").replace(
                "BatchNorm2d(planes)", "BatchNorm2d(planes, momentum=0)"))
        kept = self.pull(self.submit(2, f"model.weights={path}", f"model.file={still}",
                                     "optimizer.lr=0"))
        for name, values in state.items():
            expected = values + STEPS if "num_batches" in name else values
            self.assertTrue(torch.equal(kept[name], expected), name)

    def test_over_all_workers(self):
        """SyncBatchNorm on any number of workers is BatchNorm of one that has the whole batch."""
        path = os.path.join(self.root, "sync.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(MODEL.replace("BatchNorm2d", "SyncBatchNorm"))
        model = self.fresh()
        losses = self.oracle(model, 2, self.whole())
        for workers, more in ((1, ()), (2, ()), (3, ("fsdp.activation_checkpointing=[layer*]",)),
                              (3, ("fsdp.strategy=no_shard",))):
            job = self.submit(2, f"workers={workers}", f"model.file={path}", "train.batch_size=32",
                              "train.global_batch=32", *more)
            state = self.compare(job, model, losses, STEPS)
            self.check_evaluation(job, state)

    def test_a_worker_fewer(self):
        """An elastic job of two workers continues with one, and with rank 0's statistics."""
        self.faults.hold_checkpoint()
        settings = ["train.global_batch=32", "elastic={min_workers: 1, max_workers: 2}",
                    "train.epochs=2", f"train.max_steps={DONE}", f"checkpoint.every_steps={EVERY}"]
        result = self.daemon.ctl("submit", *self.arguments(2, settings))
        self.assertEqual(result.returncode, 0, result.stderr)
        job = result.stdout.strip()
        self.daemon.wait_step(job, 2 * EVERY) # where it is held, until it has the order
        self.assertEqual(self.daemon.ctl("resize", job, "1").returncode, 0)
        self.daemon.wait_delivered(job)
        self.faults.clear()
        self.daemon.wait_state(job, "SUCCEEDED")
        changes = [entry["reason"]["message"] for entry in self.daemon.json("history", job)
                   if "continuing from step" in entry["reason"].get("message", "")]
        self.assertEqual(len(changes), 1)
        self.assertIn(f"training on 1 worker, continuing from step {BEFORE};", changes[0])
        self.assertEqual([step for step, _ in self.daemon.losses(job)], list(range(1, DONE + 1)))
        model = self.fresh()
        losses = self.oracle(model, 2, self.shrinking(BEFORE, DONE))
        self.compare(job, model, losses, BEFORE + 2 * (DONE - BEFORE))

    def test_bounds(self):
        """No rounding reaches them, by the derivation where they are."""
        steps = self.shrinking(BEFORE, DONE)
        exact, other = self.fresh().double(), self.fresh().double()
        losses = self.oracle(exact, 2, steps)
        moved = self.oracle(other, 2, steps, ULP)
        loss = max(abs(ours / theirs - 1) for ours, theirs in zip(moved, losses))
        state = max(largest(values - other.state_dict()[name]) / max(1, largest(values))
                    for name, values in exact.state_dict().items())
        print(f"an ulp per step: {DONE} losses within {loss:.1e}, the state within {state:.1e}")
        self.assertLess(DRIFTS * loss, LOSS_BOUND)
        self.assertLess(DRIFTS * state, STATE_BOUND)

    def test_one_worker(self):
        plain = self.check(1)
        repeated = self.check(1, "fsdp.activation_checkpointing=[layer*]")
        for name, values in plain.items():
            self.assertTrue(torch.equal(values, repeated[name]), name)

    def test_two_workers(self):
        plain = self.check(2)
        for strategy in ("no_shard", "shard_grad_op"):
            other = self.check(2, f"fsdp.strategy={strategy}")
            for name, values in plain.items():
                self.assertTrue(torch.equal(values, other[name]), name)


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
