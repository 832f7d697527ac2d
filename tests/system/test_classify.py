#!/usr/bin/env python3
"""Texts with labels, prepared by fsdpd-prepare, train tiny BERTs with heads over two workers. The metrics that fsdpd
reports are those that the pulled model's predictions give, computed here as scikit-learn does. The predictions are those of
a BERT in NumPy, which gives transformers' logits of tests/parity/prepare.json (tests/parity/test_prepare_live.py)."""

import csv
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness

sys.dont_write_bytecode = True  # beside the sources
CLIENT = os.path.join(harness.SOURCE, "clients/python")
EXAMPLE = os.path.join(harness.SOURCE, "examples/classify")
ENVIRONMENT = dict(os.environ, PYTHONPATH=CLIENT, PYTHONDONTWRITEBYTECODE="1")

harness.need("numpy", "tokenizers")
import numpy
from test_prepare import NUMBERS, draw_tensors

sys.path.insert(0, EXAMPLE)
import draw

STEPS, CONTEXT = 60, 32
JOB = f"""
name: labels
model: {{hf: model}}
data: {{format: dataset, path: data, windows: document, context: {CONTEXT}}}
train: {{max_steps: {STEPS}, batch_size: 12, evaluate_interval: 40, seed: 2}}
optimizer: {{type: adamw, lr: 2.0e-3}}
workers: 2
"""


def load(directory):
    """A model that fsdpd wrote: its configuration, and its tensors in double."""
    with open(os.path.join(directory, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    tensors = harness.read_safetensors(os.path.join(directory, "model.safetensors"))[0]
    return config, {name: numpy.frombuffer(raw, "<f4").astype("f8").reshape(shape) for name, (_, shape, raw) in tensors.items()}


def bert(config, tensors, ids):
    """The logits of one text: of its first token, or of all tokens with a token head."""
    def linear(name, x):
        return x @ tensors[name + ".weight"].T + tensors[name + ".bias"]

    def norm(name, x):
        x = x - x.mean(-1, keepdims=True)
        return x / numpy.sqrt((x * x).mean(-1, keepdims=True) + 1e-12) * tensors[name + ".weight"] + tensors[name + ".bias"]

    def heads(x):
        return x.reshape(len(ids), config["num_attention_heads"], -1).transpose(1, 0, 2)

    at = "bert.embeddings."
    x = tensors[at + "word_embeddings.weight"][ids] + tensors[at + "position_embeddings.weight"][:len(ids)]
    x = norm(at + "LayerNorm", x + tensors[at + "token_type_embeddings.weight"][0])
    for layer in range(config["num_hidden_layers"]):
        at = f"bert.encoder.layer.{layer}."
        query, key, value = (heads(linear(f"{at}attention.self.{name}", x)) for name in ("query", "key", "value"))
        scores = numpy.exp(query @ key.transpose(0, 2, 1) / math.sqrt(key.shape[-1]))
        seen = (scores / scores.sum(-1, keepdims=True) @ value).transpose(1, 0, 2).reshape(x.shape)
        x = norm(at + "attention.output.LayerNorm", x + linear(at + "attention.output.dense", seen))
        inner = linear(at + "intermediate.dense", x)
        inner *= (1 + numpy.vectorize(math.erf)(inner / math.sqrt(2))) / 2  # gelu
        x = norm(at + "output.LayerNorm", x + linear(at + "output.dense", inner))
    return linear("classifier", numpy.tanh(linear("bert.pooler.dense", x[0])) if "bert.pooler.dense.bias" in tensors else x)


def f1_of(right, selected, wanted):
    return 2 * right / (selected + wanted) if selected + wanted else 0.0


def f1_of_class(found, truth, label):
    return f1_of(int(((found == label) & (truth == label)).sum()), int((found == label).sum()), int((truth == label).sum()))


def macro_f1(found, truth):
    return float(numpy.mean([f1_of_class(found, truth, label) for label in numpy.union1d(found, truth)]))


class Labels(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="fsdpd-test-")
        self.addCleanup(shutil.rmtree, self.root, True)
        self.choice = random.Random(5)
        os.makedirs(self.path("model"))

    def path(self, *names):
        return os.path.join(self.root, *names)

    def prepare(self, verb, records, *arguments):
        with open(self.path("records.jsonl"), "w", encoding="utf-8") as file:
            for record in records:
                file.write(json.dumps(record) + "\n")
        texts = (record.get("text") or " ".join(record["tokens"]) for record in records)
        tokenizer = draw.make_tokenizer(texts)
        tokenizer.save(self.path("model/tokenizer.json"))
        result = subprocess.run(
            [sys.executable, "-m", "fsdpd_prepare", verb, self.path("records.jsonl"), "--tokenizer", self.path("model"),
             "-o", self.path("data"), "--validation", "0.25", "--processes", "1", *arguments],
            env=ENVIRONMENT, text=True, capture_output=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        return tokenizer.get_vocab_size()

    def config(self, vocabulary, architecture, labels, **more):
        config = dict(draw.config_of(vocabulary, [f"label {n}" for n in range(labels)]), hidden_size=32,
                      hidden_dropout_prob=0.1, architectures=[architecture], **more)
        draw.write(self.path("model/config.json"), config)

    def array(self, name, split="validation"):
        return numpy.load(self.path("data", f"{split}.{name}.npy"))

    def arrays(self):
        with open(self.path("data/dataset.json"), encoding="utf-8") as file:
            return json.load(file)["splits"]["train"]

    def train(self, daemon):
        """The job, and the logits of the pulled model for the documents of the validation."""
        with open(self.path("job.yaml"), "w", encoding="utf-8") as file:
            file.write(JOB)
        self.assertIn("labelled documents" if "token_labels" not in self.arrays() else " count (",
                      daemon.ctl("plan", self.path("job.yaml")).stdout)
        result = daemon.ctl("submit", self.path("job.yaml"), "--wait", timeout=300)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr + daemon.text())
        job = daemon.json("list")[-1]["id"]
        result = daemon.ctl("pull", job, "--format", "hf", "-o", self.path("out"))
        self.assertEqual(result.returncode, 0, result.stderr)
        borders, tokens = self.array("documents").astype(int), self.array("tokens").astype("i8")
        documents = [tokens[begin:end] for begin, end in zip(borders, borders[1:])]
        return job, self.predict(self.path("out"), documents)

    def predict(self, directory, documents):
        """The logits of transformers' model."""
        config, tensors = load(directory)
        self.assertEqual(set(tensors), set(NUMBERS["bert"][config["architectures"][0]]["shapes"]))
        return [bert(config, tensors, ids) for ids in documents]

    def test_predictions_are_those_of_transformers(self):
        for architecture, expected in NUMBERS["bert"].items():
            tensors = draw_tensors(expected["shapes"])
            found = bert(expected["config"], tensors, expected["ids"])
            numpy.testing.assert_allclose(found, expected["logits"], rtol=0, atol=2e-6, err_msg=architecture)

    def scores(self, daemon, job, **expected):
        metrics = daemon.show(job)["metrics"]
        self.assertEqual(metrics["val_step"], STEPS)
        self.assertEqual(set(metrics["val_scores"]), set(expected))
        for name, value in expected.items():
            self.assertAlmostEqual(metrics["val_scores"][name], value, delta=1e-4 * max(1, abs(value)), msg=name)
        return metrics

    def test_classes(self):
        vocabulary = self.prepare("classify", [draw.review(self.choice) for _ in range(600)])
        self.config(vocabulary, "BertForSequenceClassification", 3)
        with harness.Daemon(2, data=self.root) as daemon:
            job, logits = self.train(daemon)
            found, truth = numpy.array([row.argmax() for row in logits]), self.array("labels")
            accuracy, f1 = float((found == truth).mean()), macro_f1(found, truth)
            self.scores(daemon, job, accuracy=accuracy, f1=f1)
            print(f"classes: accuracy {accuracy:.3f}, F1 {f1:.3f}")
            shown = daemon.ctl("show", job).stdout
            self.assertIn(f"accuracy {100 * accuracy:.2f}%, F1 {f1:.4f} after step {STEPS}", shown)
            rows = list(csv.DictReader(daemon.ctl("metrics", job, "--csv").stdout.splitlines()))
            last = [row for row in rows if row["kind"] == "validation"][-1]
            self.assertAlmostEqual(float(last["f1"]), f1, delta=1e-6)
            self.assertAlmostEqual(float(last["accuracy"]), accuracy, delta=1e-6)
            self.assertEqual((last["pearson"], last["mse"], last["perplexity"]), ("", "", ""))
        self.assertGreater(accuracy, 0.4)  # by chance a third

    def test_two_classes(self):
        records = [record for record in (draw.review(self.choice) for _ in range(700)) if record["label"] != "mixed"]
        vocabulary = self.prepare("classify", records)
        self.config(vocabulary, "BertForSequenceClassification", 2)
        with harness.Daemon(2, data=self.root) as daemon:
            job, logits = self.train(daemon)
            found, truth = numpy.array([row.argmax() for row in logits]), self.array("labels")
            self.scores(daemon, job, accuracy=float((found == truth).mean()), f1=f1_of_class(found, truth, 1))

    def test_numbers(self):
        records = [{"text": record["text"], "label": record["text"].count("not") - record["text"].count("cake")} for record in
                   (draw.review(self.choice) for _ in range(400))]
        vocabulary = self.prepare("classify", records, "--targets", "float")
        self.config(vocabulary, "BertForSequenceClassification", 1)
        with harness.Daemon(2, data=self.root) as daemon:
            job, logits = self.train(daemon)
            found, truth = numpy.array([row[0] for row in logits], "f8"), self.array("targets").astype("f8")
            pearson, mse = float(numpy.corrcoef(found, truth)[0, 1]), float(((found - truth) ** 2).mean())
            metrics = self.scores(daemon, job, pearson=pearson, mse=mse)
            self.assertAlmostEqual(metrics["val_loss"], mse, delta=1e-4)
            self.assertGreater(pearson, 0.5)
            print(f"numbers: Pearson {pearson:.4f}, MSE {mse:.4f}")

    def test_tags(self):
        kinds = {**{word: "food" for word in draw.FOOD}, **{word: "praise" for word in draw.GOOD}}
        records = []
        for _ in range(400):
            words = draw.review(self.choice)["text"].split()
            records.append({"tokens": words, "ner_tags": [kinds.get(word, "other") for word in words]})
        vocabulary = self.prepare("tags", records)
        self.config(vocabulary, "BertForTokenClassification", 3)
        with harness.Daemon(2, data=self.root) as daemon:
            job, logits = self.train(daemon)
            truth = self.array("token_labels")
            counts = truth >= 0
            self.assertEqual(int((~counts).sum()) >= 2 * len(logits), True)  # at least [CLS] and [SEP]
            found = numpy.concatenate(logits).argmax(-1)[counts]
            truth = truth[counts]
            self.scores(daemon, job, accuracy=float((found == truth).mean()), f1=macro_f1(found, truth))
            self.assertGreater((found == truth).mean(), 0.6)


if __name__ == "__main__":
    harness.main()
