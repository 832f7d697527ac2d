#!/usr/bin/env python3
"""A pulled file depends on the weights alone: the same bytes, in the model's order, for every policy,
strategy and number of workers, from jobs of any name, running or not, and from their checkpoints."""

import hashlib
import json
import os
import shutil
import struct
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness

try:
    from torch import nn
except ImportError:
    nn = None

# Registered in another order than executed; frozen parameters, buffers and a tied one among others.
NET = """
name: Ordered
input: [1, 28, 28]
classes: 10
blocks:
  Stage(before, after):
    modules:
      conv: Conv2d(before, after, 3, 2, bias=False)
      norm: BatchNorm2d(after, momentum=0)
    forward:
      - output = relu(norm(conv(x)))
  Inner:
    modules:
      a: Linear(20, 40)
      b: Linear(40, 20)
    forward:
      - output = b(relu(a(x)))
  Outer:
    modules:
      a: Linear(360, 20)
      inner: Inner()
      b: Linear(20, 20)
      c: Linear(20, 20)
    forward:
      - output = relu(c(relu(b(relu(inner(relu(a(x))))))))
modules:
  out: Linear(20, 10)
  first: Stage(1, 6)
  outer: Outer()
  second: Stage(6, 10)
forward:
  - output = out(outer(flatten(second(first(x)), 1)))
loss: cross_entropy(output, target)
tie: {outer.c.weight: outer.b.weight}
freeze: [outer.a.weight, outer.inner.a.bias, second.conv.weight]
"""
SIZE = ("fsdp.wrap.policy=size", "fsdp.wrap.min_num_params=20")
UNITS = ("fsdp.wrap.policy=units", "fsdp.wrap.units=[[outer.b, first], outer.inner]")
TYPE = ("fsdp.wrap.policy=type", "fsdp.wrap.types=[Inner, Stage]")
NONE = ("fsdp.wrap.policy=none",)
LAYOUTS = (
    (*NONE, "workers=1"), (*SIZE, "workers=1"),
    (*NONE, "workers=2"), (*SIZE, "workers=2"), (*UNITS, "workers=2"), (*TYPE, "workers=2"),
    (*UNITS, "workers=2", "fsdp.strategy=shard_grad_op"), (*TYPE, "workers=2", "fsdp.strategy=no_shard"),
    (*NONE, "workers=3"), (*SIZE, "workers=3"), (*TYPE, "workers=3"),
    (*SIZE, "workers=4", "fsdp.strategy=hybrid_shard", "fsdp.shard_size=2"),
)
# Nothing changes the weights.
KEEP = ("optimizer.type=sgd", "optimizer.lr=0")
GPT2 = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 24, "n_layer": 2,
        "n_head": 3, "n_positions": 32, "vocab_size": 257, "layer_norm_epsilon": 1e-05}
TEXT_JOB = """
name: tiny
model: {hf: gpt2}
data: {format: text, path: text.txt, context: 16}
train: {max_steps: 2, batch_size: 2, seed: 3, evaluate: false}
optimizer: {type: sgd, lr: 0}
workers: 2
"""


def names_in_file(path):
    """The tensors' names, as the header's text has them, and checks that the data has that order."""
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
    assert header.pop("__metadata__") == {"format": "pt"}
    begins = [entry["data_offsets"] for entry in header.values()]
    assert begins == sorted(begins), begins
    return list(header)


def sum_of(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def ordered_in_torch():
    """The same network's state_dict in PyTorch."""
    def stage(before, after):
        module = nn.Module()
        module.conv, module.norm = nn.Conv2d(before, after, 3, 2, bias=False), nn.BatchNorm2d(after)
        return module
    outer, inner, net = nn.Module(), nn.Module(), nn.Module()
    inner.a, inner.b = nn.Linear(20, 40), nn.Linear(40, 20)
    outer.a, outer.inner, outer.b, outer.c = nn.Linear(360, 20), inner, nn.Linear(20, 20), nn.Linear(20, 20)
    outer.c.weight = outer.b.weight
    net.out, net.first, net.outer, net.second = nn.Linear(20, 10), stage(1, 6), outer, stage(6, 10)
    return net.state_dict()


class PullOrder(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = harness.Daemon(workers=4)

    @classmethod
    def tearDownClass(cls):
        cls.daemon.close()

    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="fsdpd-test-")
        self.addCleanup(shutil.rmtree, self.directory)

    def path(self, name):
        return os.path.join(self.directory, name)

    def write(self, name, text):
        with open(self.path(name), "w") as file:
            file.write(text)
        return self.path(name)

    def pull(self, job, name, *arguments):
        """The step."""
        pulled = self.daemon.ctl("pull", job, "-o", self.path(name), *arguments, "--format", "json")
        self.assertEqual(pulled.returncode, 0, pulled.stderr)
        return int(json.loads(pulled.stdout)["step"])

    def run_job(self, *settings, **options):
        result = self.daemon.submit(*settings, wait=True, **options)
        self.assertEqual(result.returncode, 0, result.stderr)
        return self.daemon.json("list")[-1]["id"]

    def test_equal_weights_are_equal_files(self):
        net, sums = self.write("net.yaml", NET), {}
        for i, layout in enumerate(LAYOUTS):
            job = self.run_job(f"model.file={net}", *KEEP, *layout, f"name=layout{i}", "train.max_steps=2",
                               "train.seed=5", "train.evaluate=false", "checkpoint.every_steps=1",
                               "checkpoint.keep=1")
            for kind, arguments in (("f32", ()), ("f32", ("--checkpoint", "latest")),
                                    ("bf16", ("--dtype", "bf16")),
                                    ("bf16", ("--dtype", "bf16", "--checkpoint", "2"))):
                self.assertEqual(self.pull(job, kind, *arguments), 2)
                found = sums.setdefault(kind, sum_of(self.path(kind)))
                self.assertEqual(sum_of(self.path(kind)), found, (layout, arguments))
        self.assertEqual(len(set(sums.values())), 2)
        if nn is None: self.skipTest("the order in PyTorch: there is no PyTorch")
        for kind in ("f32", "bf16"):
            self.assertEqual(names_in_file(self.path(kind)), list(ordered_in_torch()))

    def test_a_change_of_units_in_the_run(self):
        """From one unit to several and back, at other steps: the weights are the same, the file is."""
        job = self.daemon.submit(*KEEP, *NONE, "train.epochs=100000", "workers=2")
        self.addCleanup(self.daemon.ctl, "cancel", job)
        self.daemon.wait_step(job, 2)
        steps = [self.pull(job, "before")]
        for policy in (("units", "--units", "[[conv1, fc2], fc1]"), ("match", "--modules", "conv*,fc1"),
                       ("none",)):
            changed = self.daemon.ctl("wrap", "set", job, "--policy", *policy)
            self.assertEqual(changed.returncode, 0, changed.stderr)
            steps.append(self.pull(job, "after"))
            self.assertEqual(sum_of(self.path("after")), sum_of(self.path("before")), policy)
            self.daemon.wait_step(job, steps[-1] + 1)
        self.assertEqual(steps, sorted(set(steps)))
        paused = int(self.daemon.json("pause", job)["step"])
        self.assertEqual(self.pull(job, "paused"), paused)
        self.assertEqual(sum_of(self.path("paused")), sum_of(self.path("before")))
        self.assertEqual(names_in_file(self.path("before")),
                         ["conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias",
                          "fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"])

    def test_hugging_face(self):
        """As for other files; a tied head's weight comes last, and not at all with --format hf."""
        data = os.path.join(self.daemon.data, "gpt2")
        os.makedirs(data)
        with open(os.path.join(data, "config.json"), "w") as file:
            json.dump(GPT2, file)
        text = os.path.join(self.daemon.data, "text.txt")
        with open(text, "w") as file:
            file.write("so it goes, and so it went\n" * 200)
        job_file, sums = self.write("job.yaml", TEXT_JOB), {}
        for i, layout in enumerate(((*NONE, "workers=1"), (*NONE, "workers=3"),
                                    ("fsdp.wrap.policy=type", "fsdp.wrap.types=[GPT2Block]"),
                                    ("fsdp.wrap.policy=size", "fsdp.wrap.min_num_params=600"))):
            arguments = ["submit", job_file, "--wait"]
            for setting in (f"model.hf={data}", f"data.path={text}", *layout):
                arguments += ["--set", setting]
            result = self.daemon.ctl(*arguments)
            self.assertEqual(result.returncode, 0, result.stderr)
            job = self.daemon.json("list")[-1]["id"]
            self.pull(job, f"whole{i}")
            self.pull(job, f"hf{i}", "--format", "hf", "--max-shard-size", "20kB")
            files = {"whole": self.path(f"whole{i}")}
            files.update((name, os.path.join(self.path(f"hf{i}"), name))
                         for name in os.listdir(self.path(f"hf{i}")))
            found = {name: sum_of(path) for name, path in files.items()}
            self.assertGreater(len(found), 4)
            self.assertEqual(found, sums.setdefault("all", found), layout)
        whole = names_in_file(self.path("whole0"))
        self.assertEqual(whole[:2] + whole[-3:], ["transformer.wte.weight", "transformer.wpe.weight",
                                                  "transformer.ln_f.weight", "transformer.ln_f.bias",
                                                  "lm_head.weight"])
        split = [name for file in sorted(os.listdir(self.path("hf0"))) if file.endswith(".safetensors")
                 for name in names_in_file(os.path.join(self.path("hf0"), file))]
        self.assertEqual([name.removeprefix("transformer.") for name in split],
                         [name.removeprefix("transformer.") for name in whole[:-1]])


if __name__ == "__main__":
    harness.main()
