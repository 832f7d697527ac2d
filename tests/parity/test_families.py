#!/usr/bin/env python3
"""Every family of families/ against transformers: a tiny model with odd sizes of its own
configuration class, saved by transformers and read like a job's. Logits and all gradients, with
both libraries of kernels; a round trip through a job: from_pretrained() finds every tensor, with
the same values; and the losses of AdamW steps on one to three workers. Needs a transformers with
its torch, which need not be the system's: `make check-live` runs it with that Python.
test_family_numbers.py compares with numbers of transformers wherever that is missing; the last test
here computes them again."""

import filecmp
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path[:0] = [os.path.dirname(__file__), os.path.join(os.path.dirname(__file__), "../system")]
import harness
from family_cases import attention_of, BATCH, CONTEXT, FAMILIES, PADDING, PICTURES, VOCABULARY

SOURCE, BUILD = os.environ.get("srcdir", "."), os.environ.get("builddir", ".")

from family_models import blank_model, largest, modules_of  # ends the program where transformers cannot be had
import numpy
import torch
from torch.nn import functional as F
from safetensors.torch import load_file
import transformers

BOUND = 1e-5  # of the largest element


def make_model(name):
    """With values that make every part matter."""
    torch.manual_seed(5)
    kind, settings = FAMILIES[name]
    model = blank_model(kind, settings)[0].eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if "norm" in path.lower() or "ln_" in path:
                one = path.endswith("weight") and not kind.startswith("Gemma")  # theirs is 1 + weight
                parameter.copy_((1 if one else 0) +
                                0.2 * torch.randn_like(parameter))
            else:
                parameter.copy_(0.25 * torch.randn_like(parameter))
        for path, buffer in model.named_buffers():
            if path.endswith("running_mean"):
                buffer.normal_(0, 0.5)
            if path.endswith("running_var"):
                buffer.uniform_(0.5, 2)
    return model


def make_inputs(name):
    """The argument of a model, its targets, and both as a batch."""
    generator = torch.Generator().manual_seed(1)
    if name in PICTURES:
        inputs = torch.randn(BATCH, 1, 14, 14, generator=generator)
        targets = torch.randint(0, 7, (BATCH,), generator=generator)
        data = inputs.numpy().astype("<f4").tobytes() + targets.numpy().astype("<i4").tobytes()
        return {"pixel_values": inputs.double()}, targets, data
    tokens = torch.randint(PADDING + 1, VOCABULARY, (BATCH, CONTEXT), generator=generator)
    targets = torch.randint(0, VOCABULARY, (BATCH, CONTEXT), generator=generator)
    data = torch.stack([tokens, targets]).numpy().astype("<i4").tobytes()
    return {"input_ids": tokens}, targets, data


class Families(unittest.TestCase):
    def compare(self, what, found, expected, scale):
        difference = largest(found - expected)
        self.worst = max(self.worst, difference / scale)
        self.assertLessEqual(difference, BOUND * scale, what)

    def check(self, name, library):
        model = make_model(name)
        inputs, targets, data = make_inputs(name)
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "model")
            model.save_pretrained(path)
            batch = os.path.join(directory, "batch")
            with open(batch, "wb") as file:
                file.write(data)
            result = subprocess.run(
                [os.path.join(BUILD, "tests/parity/dump_transformer"), os.path.realpath(path), "-",
                 batch, str(BATCH), "0" if name in PICTURES else str(CONTEXT), library],
                capture_output=True)
        self.assertEqual(result.returncode, 0, result.stderr.decode())
        model = model.double()  # keeps f32 rounding out of the comparison
        logits = model(**inputs).logits
        if any(isinstance(module, torch.nn.BatchNorm2d) for module in model.modules()):
            trained = model.train()(**inputs).logits  # by the batch's statistics
        else:
            trained = logits
        loss = F.cross_entropy(trained.flatten(0, -2), targets.flatten())
        loss.backward()
        found = torch.from_numpy(numpy.frombuffer(result.stdout, dtype="<f4").astype("f8"))
        self.worst = 0.0
        at = logits.numel()
        self.compare("logits", found[:at].view_as(logits), logits, largest(logits))
        self.compare("loss", found[at], loss, float(loss))
        at += 1
        # a tied parameter under all of its names: the order of modules decides which is the first
        gradients = dict(model.named_parameters(remove_duplicate=False))
        names = {path: modules_of(path, gradients) for path in result.stderr.decode().split()}
        self.assertEqual(sorted(id(gradients[part]) for parts in names.values() for part in parts),
                         sorted(id(parameter) for parameter in model.parameters() if parameter.grad is not None))
        for path, parts in names.items():
            expected = torch.cat([gradients[part].grad for part in parts])
            gradient = found[at:at + expected.numel()].view_as(expected)
            # Softmax ignores a key's bias: its gradient is only rounding.
            measure = parts[0].replace("key.bias", "key.weight").replace("k_proj.bias", "k_proj.weight")
            measure = measure.replace("k_lin.bias", "k_lin.weight")
            measure = measure.replace("attn.k.bias", "attn.k.weight")
            measure = measure.replace("before_norm.bias", "before_norm.weight")
            self.compare(f"d({path})", gradient, expected, largest(gradients[measure].grad))
            at += expected.numel()
        self.assertEqual(at, found.numel())
        print(f"{name}, {library} kernels: within {self.worst:.1e}")

    def test_the_numbers_that_travel_are_those_of_transformers(self):
        maker = os.path.join(SOURCE, "tests/parity/make_family_numbers.py")
        result = subprocess.run([sys.executable, maker, "--compare"], stdout=subprocess.PIPE, text=True)
        print(result.stdout)
        self.assertEqual(result.returncode, 0, "the files of tests/parity/families differ")


JOB = f"""
name: tiny
data: {{format: tokens, path: tokens.bin, encoding: uint16, context: {CONTEXT}}}
train: {{max_steps: 1, batch_size: 2, evaluate: false}}
optimizer: {{type: adamw, lr: 0, weight_decay: 0}}
workers: 2
"""


def write_idx(path, values):
    with open(path, "wb") as file:
        file.write(bytes([0, 0, 8, values.dim()]))
        for size in values.shape:
            file.write(size.to_bytes(4, "big"))
        file.write(values.numpy().astype("u1").tobytes())


class RoundTrip(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp(prefix="fsdpd-test-")
        cls.addClassCleanup(shutil.rmtree, cls.root, True)
        cls.data = os.path.join(cls.root, "data")
        os.mkdir(cls.data)
        (numpy.arange(2000) % VOCABULARY).astype("<u2").tofile(
            os.path.join(cls.data, "tokens.bin"))
        for part in ("train", "t10k"):
            write_idx(os.path.join(cls.data, f"{part}-images-idx3-ubyte"),
                      torch.arange(8 * 14 * 14).view(8, 14, 14) % 256)
            write_idx(os.path.join(cls.data, f"{part}-labels-idx1-ubyte"), torch.arange(8) % 7)
        cls.job = os.path.join(cls.root, "job.yaml")
        cls.pictures = os.path.join(cls.root, "pictures.yaml")
        with open(cls.pictures, "w", encoding="utf-8") as file:
            file.write(re.sub("data: .*", "data: {format: idx, dir: .}", JOB))
        with open(cls.job, "w", encoding="utf-8") as file:
            file.write(JOB)
        cls.daemon = harness.Daemon(data=cls.data)
        cls.addClassCleanup(cls.daemon.close)

    def through_a_job(self, directory, out):
        arguments = ["--set", f"model.hf={directory}"]
        if FAMILIES[directory.removesuffix("-1")][0].endswith("MaskedLM"):
            arguments += ["--set", "data.objective=masked", "--set", "data.mask_token=1"]
        job = self.pictures if directory.partition("-")[0] in PICTURES else self.job
        result = self.daemon.ctl("submit", job, "--wait", *arguments, timeout=300)
        self.assertEqual(result.returncode, 0, result.stderr)
        job = self.daemon.json("list")[-1]["id"]
        path = os.path.join(self.data, out)
        result = self.daemon.ctl("pull", job, "--format", "hf", "-o", path)
        self.assertEqual(result.returncode, 0, result.stderr)
        return path

    def compare_but_buffers(self, model, buffers, first, second):
        """Everything but these is what it was, and the count is of steps. Gives the model those
        that the first job left."""
        before, after = (load_file(os.path.join(path, "model.safetensors"))
                         for path in (first, second))
        self.assertEqual(list(before), list(after))
        state = model.state_dict()
        for path, values in before.items():
            if path not in buffers:
                self.assertTrue(torch.equal(values, after[path]), path)
                self.assertTrue(torch.equal(values, state[path]), path)
            elif path.endswith("num_batches_tracked"):
                self.assertEqual((int(values), int(after[path])), (1, 2))
            else:
                self.assertFalse(torch.equal(values, after[path]), path)
        model.load_state_dict({**state, **{path: before[path] for path in buffers}})

    def test_every_family(self):
        for name in FAMILIES:
            with self.subTest(name):
                model = make_model(name)
                model.save_pretrained(os.path.join(self.data, name))
                first = self.through_a_job(name, f"{name}-1")
                second = self.through_a_job(f"{name}-1", f"{name}-2")
                buffers = [path for path, _ in model.named_buffers() if "normalization." in path]
                if buffers:  # a step moves them
                    self.compare_but_buffers(model, buffers, first, second)
                else:
                    self.assertTrue(filecmp.cmp(os.path.join(first, "model.safetensors"),
                                                os.path.join(second, "model.safetensors"), False))
                again, info = blank_model(*FAMILIES[name])[1].from_pretrained(first, output_loading_info=True,
                                                          attn_implementation=attention_of(FAMILIES[name][0]))
                for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
                    self.assertFalse(info[what], what)
                inputs = make_inputs(name)[0]
                with torch.no_grad():
                    self.assertTrue(torch.equal(model.double()(**inputs).logits,
                                                again.eval().double()(**inputs).logits))

    def test_images_without_a_head(self):
        """A checkpoint of the body alone: its tensors are those of the job, and the classifier is drawn."""
        for name in ("vit", "deit", "resnet", "convnext"):
            with self.subTest(name):
                whole, directory = make_model(name), os.path.join(self.data, f"{name}-body")
                FAMILIES[f"{name}-body"] = FAMILIES[name]
                self.addCleanup(FAMILIES.pop, f"{name}-body")
                body = getattr(whole, whole.base_model_prefix)
                body.save_pretrained(directory)
                with open(os.path.join(directory, "config.json"), encoding="utf-8") as file:
                    self.assertNotIn("ForImageClassification", file.read())
                self.assertIn("classifier.", self.daemon.ctl(
                    "plan", self.pictures, "--set", f"model.hf={name}-body").stdout)
                again, info = type(whole).from_pretrained(
                    self.through_a_job(f"{name}-body", f"{name}-body-out"), output_loading_info=True)
                for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
                    self.assertFalse(info[what], what)
                buffers = {path for path, _ in body.named_buffers()}
                found = getattr(again, whole.base_model_prefix).state_dict()
                for path, values in body.state_dict().items():
                    if path not in buffers and not path.startswith("pooler."):
                        self.assertTrue(torch.equal(values, found[path]), path)

    def test_images_of_another_size(self):
        """A checkpoint of larger and of smaller images: positions as F.interpolate makes them, logits as transformers'
        interpolation in the forward pass, and a directory that from_pretrained takes without it."""
        for name in ("vit", "deit"):
            kind, settings = FAMILIES[name]
            for size in (9, 22, 33):
                with self.subTest(name, size=size):
                    FAMILIES[f"{name}-{size}"] = kind, dict(settings, image_size=size)
                    self.addCleanup(FAMILIES.pop, f"{name}-{size}")
                    model, directory = make_model(f"{name}-{size}"), os.path.join(self.data, f"{name}-{size}")
                    model.save_pretrained(directory)
                    with open(os.path.join(directory, "config.json"), "r+", encoding="utf-8") as file:
                        config = dict(json.load(file), image_size=14)
                        file.seek(0)
                        json.dump(config, file)
                        file.truncate()
                    self.assertIn("which are interpolated", self.daemon.ctl(
                        "plan", self.pictures, "--set", f"model.hf={name}-{size}").stdout)
                    out = self.through_a_job(f"{name}-{size}", f"{name}-{size}-out")
                    again, info = type(model).from_pretrained(out, output_loading_info=True, attn_implementation="eager")
                    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
                        self.assertFalse(info[what], what)
                    self.assertEqual(again.config.image_size, 14)
                    path = f"{name}.embeddings.position_embeddings"
                    old = load_file(os.path.join(directory, "model.safetensors"))[path].double()
                    new = load_file(os.path.join(out, "model.safetensors"))[path].double()
                    first = 1 if name == "vit" else 2
                    grid = old[:, first:].view(1, size // 4, size // 4, -1).permute(0, 3, 1, 2)
                    grid = F.interpolate(grid, size=(3, 3), mode="bicubic", align_corners=False)
                    expected = torch.cat([old[:, :first], grid.permute(0, 2, 3, 1).reshape(1, 9, -1)], 1)
                    worst = largest(new - expected) / largest(expected)
                    self.assertLessEqual(worst, BOUND)
                    inputs = make_inputs(name)[0]
                    with torch.no_grad():
                        logits = model.double()(**inputs, interpolate_pos_encoding=True).logits
                        found = again.eval().double()(**inputs).logits
                    self.assertLessEqual(largest(found - logits), BOUND * largest(logits))
                    print(f"{name}, from {size // 4} x {size // 4} to 3 x 3: positions within {worst:.1e}, "
                          f"logits within {largest(found - logits) / largest(logits):.1e}")


STEPS, WINDOWS, LEARNING_RATE, WEIGHT_DECAY = 20, 6, 1e-3, 0.01
CURVE_BOUND = 1e-4  # of the loss
CURVE = f"""
name: curve
data: {{format: tokens, path: stream.bin, encoding: uint16, context: {CONTEXT}, validation_fraction: 0}}
train: {{max_steps: {STEPS}, shuffle: false, evaluate: false, log_interval: 1}}
optimizer: {{type: adamw, lr: {LEARNING_RATE}, weight_decay: {WEIGHT_DECAY}}}
"""


class Curves(unittest.TestCase):
    """The losses of AdamW steps, with a step's windows on one worker and divided among several."""

    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp(prefix="fsdpd-test-")
        cls.addClassCleanup(shutil.rmtree, cls.root, True)
        cls.data = os.path.join(cls.root, "data")
        os.mkdir(cls.data)
        generator = torch.Generator().manual_seed(3)
        # a step takes WINDOWS of CONTEXT tokens, and each window's last target is one further
        cls.stream = torch.randint(PADDING + 1, VOCABULARY, (STEPS * WINDOWS * CONTEXT + 1,),
                                   generator=generator)
        cls.stream.numpy().astype("<u2").tofile(os.path.join(cls.data, "stream.bin"))
        cls.job = os.path.join(cls.root, "job.yaml")
        with open(cls.job, "w", encoding="utf-8") as file:
            file.write(CURVE)
        cls.daemon = harness.Daemon(3, data=cls.data)
        cls.addClassCleanup(cls.daemon.close)

    def expected(self, model):
        optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE,
                                      weight_decay=WEIGHT_DECAY)
        tokens = self.stream[:-1].view(STEPS, WINDOWS, CONTEXT)
        targets = self.stream[1:].view(STEPS, WINDOWS, CONTEXT)
        losses = []
        for step in range(STEPS):
            optimizer.zero_grad()
            logits = model(input_ids=tokens[step]).logits
            loss = F.cross_entropy(logits.flatten(0, 1), targets[step].flatten())
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    def test_every_family_of_text(self):
        for name in FAMILIES:
            if "-" in name or name in PICTURES:
                continue
            model = make_model(name)
            model.save_pretrained(os.path.join(self.data, name))
            expected = self.expected(model)
            for workers in (1, 2, 3):
                with self.subTest(name, workers=workers):
                    result = self.daemon.ctl(
                        "submit", self.job, "--wait", "--set", f"model.hf={name}", "--set",
                        f"workers={workers}", "--set", f"train.batch_size={WINDOWS // workers}",
                        timeout=300)
                    self.assertEqual(result.returncode, 0, result.stderr)
                    found = self.daemon.losses(self.daemon.json("list")[-1]["id"])
                    self.assertEqual([step for step, _ in found], list(range(1, STEPS + 1)))
                    worst = max(abs(loss - e) / e for (_, loss), e in zip(found, expected))
                    self.assertLessEqual(worst, CURVE_BOUND)
                    self.assertGreater(max(expected) - min(expected), 100 * CURVE_BOUND)
                    print(f"{name}, {workers} workers: losses within {worst:.1e}")


def add_tests():
    for name in FAMILIES:
        for library in ("reference", "cpu"):
            setattr(Families, f"test_{name}_{library}".replace("-", "_"),
                    lambda self, case=(name, library): self.check(*case))


add_tests()
if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main(verbosity=2)
