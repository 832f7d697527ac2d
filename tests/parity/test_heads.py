#!/usr/bin/env python3
"""The heads of families against transformers: sequence classification (one label, several labels,
a regression) and token classification, with padding. Logits and all gradients with both libraries
of kernels; the losses of AdamW steps on one to three workers, from a dataset with labels; what a
job pulls has every tensor that it was given, with the same values; a head that a checkpoint lacks
is drawn, and goes back complete. Like test_families.py, it needs a transformers with its torch."""

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import unittest

import test_families as families
from family_cases import CAUSAL, CONTEXT, CURVES, ENCODER, HEADS, MANY, ONE, PADDING, REGRESSION, TOKENS, VOCABULARY
from test_families import BOUND, CURVE_BOUND, harness, largest

import numpy
import torch
import transformers

BATCH, STEPS, WINDOWS, LEARNING_RATE, WEIGHT_DECAY = 5, 20, 6, 1e-3, 0.01
families.FAMILIES = {name: head[:2] for name, head in HEADS.items()}


def padding_of(name):
    return HEADS[name][1].get("pad_token_id", PADDING)


def shortest_of(name):
    """transformers gives NaN to padding whose window has no token."""
    settings = HEADS[name][1]
    if "local_attention" in settings:
        return CONTEXT - settings["local_attention"] // 2
    return CONTEXT + 1 - (settings.get("sliding_window") or CONTEXT - 1)


def draw(name, count, seed):
    """Documents with their labels: texts, and what the model takes of them as tensors."""
    generator = torch.Generator().manual_seed(seed)
    kind, labels, padding = HEADS[name][2], HEADS[name][1].get("num_labels", 2), padding_of(name)
    lengths = torch.randint(shortest_of(name), CONTEXT + 1, (count,), generator=generator).tolist()
    tokens = torch.randint(PADDING + 1, VOCABULARY, (count, CONTEXT), generator=generator)
    for row, length in enumerate(lengths):
        tokens[row, length:] = padding
    if kind == ONE:
        targets = torch.randint(0, labels, (count,), generator=generator)
    elif kind == REGRESSION:
        targets = torch.randn(count, labels, generator=generator)
    elif kind == MANY:
        targets = torch.randint(0, 2, (count, labels), generator=generator).float()
    else:
        targets = torch.randint(0, labels, (count, CONTEXT), generator=generator)
        targets[torch.rand(count, CONTEXT, generator=generator) < 0.2] = -100
        targets[tokens == padding] = -100
    return tokens, targets, lengths


def loss_of(name, model, tokens, targets):
    if targets.is_floating_point():
        targets = targets.to(next(model.parameters()).dtype)
    return model(input_ids=tokens, attention_mask=(tokens != padding_of(name)).long(), labels=targets)


class Heads(unittest.TestCase):
    def compare(self, what, found, expected, scale):
        difference = largest(found - expected)
        self.worst = max(self.worst, difference / scale)
        self.assertLessEqual(difference, BOUND * scale, what)

    def check(self, name, library):
        model = families.make_model(name)
        tokens, targets, _ = draw(name, BATCH, 1)
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "model")
            model.save_pretrained(path)
            batch = os.path.join(directory, "batch")
            with open(batch, "wb") as file:
                kind = "<f4" if targets.is_floating_point() else "<i4"
                file.write(tokens.numpy().astype("<i4").tobytes() + targets.numpy().astype(kind).tobytes())
            result = subprocess.run(
                [os.path.join(families.BUILD, "tests/parity/dump_transformer"), os.path.realpath(path), "-",
                 batch, str(BATCH), str(CONTEXT), library], capture_output=True)
        self.assertEqual(result.returncode, 0, result.stderr.decode())
        model = model.double()  # keeps f32 rounding out of the comparison
        # a batch's mean is over all targets: the end of a step knows how many of them count
        share = float((targets >= 0).double().mean()) if HEADS[name][2] == TOKENS else 1
        output = loss_of(name, model, tokens, targets)
        (output.loss * share).backward()
        found = torch.from_numpy(numpy.frombuffer(result.stdout, dtype="<f4").astype("f8"))
        self.worst, at = 0.0, output.logits.numel()
        # padding has no label: a causal model does not mask it, because nothing before it sees it
        padded = (tokens == padding_of(name)) & (name.removesuffix("-tokens") in CAUSAL and HEADS[name][2] == TOKENS)
        logits = found[:at].view_as(output.logits)
        logits = torch.where(padded[..., None], output.logits, logits) if padded.any() else logits
        self.compare("logits", logits, output.logits, largest(output.logits))
        self.compare("loss", found[at], output.loss * share, float(output.loss))
        at += 1
        gradients = dict(model.named_parameters())
        names = result.stderr.decode().split()
        self.assertEqual(sorted(names), sorted(gradients))
        for path in names:
            expected = gradients[path].grad
            gradient = found[at:at + expected.numel()].view_as(expected)
            # Softmax ignores a key's bias: its gradient is only rounding.
            measure = path.replace("key.bias", "key.weight").replace("k_lin.bias", "k_lin.weight")
            measure = measure.replace("k_proj.bias", "k_proj.weight").replace("attn.k.bias", "attn.k.weight")
            self.compare(f"d({path})", gradient, expected, largest(gradients[measure].grad))
            at += expected.numel()
        self.assertEqual(at, found.numel())
        print(f"{name}, {library} kernels: within {self.worst:.1e}")


def write_dataset(directory, name, count, seed):
    """As fsdpd-prepare does."""
    tokens, targets, lengths = draw(name, count, seed)
    kind = HEADS[name][2]
    key = {ONE: "labels", TOKENS: "token_labels"}.get(kind, "targets")
    borders = numpy.concatenate([[0], numpy.cumsum(lengths)])
    if kind == TOKENS:
        labels = numpy.concatenate([row[:length] for row, length in zip(targets.numpy(), lengths)])
    else:
        labels = targets.numpy()
    arrays = {"tokens": numpy.concatenate([row[:n] for row, n in zip(tokens.numpy(), lengths)]).astype("<u2"),
              "documents": borders.astype("<u8"),
              key: labels.astype("<f4" if key == "targets" else "<i4")}
    entries = {}
    os.mkdir(directory)
    for array, values in arrays.items():
        path = os.path.join(directory, array + ".npy")
        numpy.save(path, values)
        with open(path, "rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()
        entries[array] = {"file": array + ".npy", "type": values.dtype.name, "shape": list(values.shape),
                          "sha256": digest}
    root = {"format": "fsdpd-dataset", "version": 1, "kind": "tokens", "vocabulary": VOCABULARY,
            "splits": {"train": entries}}
    with open(os.path.join(directory, "dataset.json"), "w", encoding="utf-8") as file:
        json.dump(root, file)
    return tokens, targets


CURVE = f"""
name: curve
data: {{format: dataset, path: labels, windows: document, context: {CONTEXT}}}
train: {{max_steps: {STEPS}, shuffle: false, evaluate: false, log_interval: 1}}
optimizer: {{type: adamw, lr: {LEARNING_RATE}, weight_decay: {WEIGHT_DECAY}}}
"""


class Training(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp(prefix="fsdpd-test-")
        cls.addClassCleanup(shutil.rmtree, cls.root, True)
        cls.data = os.path.join(cls.root, "data")
        os.mkdir(cls.data)
        cls.job = os.path.join(cls.root, "job.yaml")
        with open(cls.job, "w", encoding="utf-8") as file:
            file.write(CURVE)
        cls.daemon = harness.Daemon(3, data=cls.data)
        cls.addClassCleanup(cls.daemon.close)

    def submit(self, model, dataset, workers, *settings):
        sets = [f"model.hf={model}", f"data.path={dataset}", f"workers={workers}",
                f"train.batch_size={WINDOWS // workers}", *settings]
        result = self.daemon.ctl("submit", self.job, "--wait",
                                 *[word for value in sets for word in ("--set", value)], timeout=300)
        self.assertEqual(result.returncode, 0, result.stderr)
        return self.daemon.json("list")[-1]["id"]

    def expected(self, name, model, tokens, targets):
        optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY)
        losses = []
        for step in range(STEPS):
            rows = slice(step * WINDOWS, (step + 1) * WINDOWS)
            optimizer.zero_grad()
            loss = loss_of(name, model, tokens[rows], targets[rows]).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    def test_curves(self):
        for name in HEADS:
            if name not in CURVES:
                continue
            tokens, targets = write_dataset(os.path.join(self.data, f"{name}-data"), name, STEPS * WINDOWS, 3)
            model = families.make_model(name)
            model.save_pretrained(os.path.join(self.data, name))
            expected = self.expected(name, model, tokens, targets)
            self.assertGreater(max(expected) - min(expected), 100 * CURVE_BOUND)
            for workers in (1, 2, 3) if name in ("bert", "bert-tokens", "bert-several") else (2,):
                with self.subTest(name, workers=workers):
                    found = self.daemon.losses(self.submit(name, f"{name}-data", workers))
                    self.assertEqual([step for step, _ in found], list(range(1, STEPS + 1)))
                    worst = max(abs(loss - e) / e for (_, loss), e in zip(found, expected))
                    self.assertLessEqual(worst, CURVE_BOUND)
                    print(f"{name}, {workers} workers: losses within {worst:.1e}")

    def test_round_trips(self):
        """transformers' file, through a job that changes nothing, is the same tensors for it."""
        for name in HEADS:
            with self.subTest(name):
                write_dataset(os.path.join(self.data, f"{name}-trip"), name, WINDOWS, 3)
                model = families.make_model(name)
                model.save_pretrained(os.path.join(self.data, f"{name}-given"))
                job = self.submit(f"{name}-given", f"{name}-trip", 2, "optimizer.lr=0", "train.max_steps=1",
                                  "optimizer.weight_decay=0")
                out = os.path.join(self.root, f"{name}-out")
                result = self.daemon.ctl("pull", job, "--format", "hf", "-o", out)
                self.assertEqual(result.returncode, 0, result.stderr)
                again, info = type(model).from_pretrained(out, output_loading_info=True)
                for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
                    self.assertFalse(info[what], what)
                found, expected = again.state_dict(), model.state_dict()
                self.assertEqual(list(found), list(expected))
                for path, values in expected.items():
                    self.assertTrue(torch.equal(values, found[path]), path)
                self.assertEqual(again.config.num_labels, model.config.num_labels)

    def test_a_head_that_files_lack(self):
        """A checkpoint of a masked language model gets a new head; all else is the file's."""
        base = transformers.BertForMaskedLM(transformers.BertConfig(**ENCODER))
        directory = os.path.join(self.data, "base")
        base.save_pretrained(directory)
        path = os.path.join(directory, "config.json")
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
        config.update(architectures=["BertForSequenceClassification"], id2label={str(i): f"label {i}" for i in range(7)})
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config, file)
        families.FAMILIES["new"] = ("BertForSequenceClassification", dict(ENCODER, num_labels=7))
        HEADS["new"] = families.FAMILIES["new"] + (ONE,)
        self.addCleanup(HEADS.pop, "new")
        write_dataset(os.path.join(self.data, "new-data"), "new", 2 * WINDOWS, 3)
        sets = ["optimizer.lr=0", "optimizer.weight_decay=0", "train.max_steps=1"]
        plan = self.daemon.ctl("plan", self.job, "--set", "model.hf=base", "--set", "data.path=new-data",
                               "--set", "workers=2", "--set", "train.batch_size=3")
        self.assertIn("the weights lack 4 tensors of the head, which get new initial values: "
                      "bert.pooler.dense.weight, bert.pooler.dense.bias, classifier.weight, "
                      "classifier.bias", " ".join(plan.stdout.split()))
        job = self.submit("base", "new-data", 2, *sets)
        out = os.path.join(self.root, "out")
        result = self.daemon.ctl("pull", job, "--format", "hf", "-o", out)
        self.assertEqual(result.returncode, 0, result.stderr)
        again, info = transformers.AutoModelForSequenceClassification.from_pretrained(out, output_loading_info=True)
        for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            self.assertFalse(info[what], what)
        self.assertEqual(again.config.num_labels, 7)
        for name, parameter in base.bert.named_parameters():
            self.assertTrue(torch.equal(parameter, dict(again.bert.named_parameters())[name]), name)
        deviation = float(again.classifier.weight.std())
        self.assertTrue(0.01 < deviation < 0.03, deviation)
        self.assertFalse(again.classifier.bias.any())
        same = self.submit(self.move(out), "new-data", 1, *sets)  # now it has all of them
        second = os.path.join(self.root, "second")
        self.assertEqual(self.daemon.ctl("pull", same, "--format", "hf", "-o", second).returncode, 0)
        for directory in (os.path.join(self.data, "moved"), second):
            with open(os.path.join(directory, "model.safetensors"), "rb") as file:
                digest = hashlib.sha256(file.read()).hexdigest()
            self.assertEqual(digest, getattr(self, "digest", digest))
            self.digest = digest

    def move(self, directory):
        shutil.copytree(directory, os.path.join(self.data, "moved"))
        return "moved"

    def test_what_does_not_fit_is_refused(self):
        model = families.make_model("gpt2")
        directory = os.path.join(self.data, "no-padding")
        os.makedirs(os.path.join(self.data, "labels"), exist_ok=True)
        model.save_pretrained(directory)
        path = os.path.join(directory, "config.json")
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
        config["pad_token_id"] = None
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config, file)
        result = self.daemon.ctl("submit", self.job, "--set", "model.hf=no-padding", "--set", "workers=1",
                                 "--set", "train.batch_size=2")
        self.assertGreater(result.returncode, 0)
        self.assertIn("pad_token_id: is missing; the class is read at the last token that is not padding",
                      " ".join(result.stderr.split()))


def add_tests():
    for name in HEADS:
        for library in ("reference", "cpu"):
            setattr(Heads, f"test_{name}_{library}".replace("-", "_"),
                    lambda self, case=(name, library): self.check(*case))


add_tests()
if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main(verbosity=2)
