#!/usr/bin/env python3
"""A mean of nothing is no number, in no view; a job in which nothing counts fails, or is refused."""

import csv
import hashlib
import json
import os
import struct
import unittest

import harness
from harness import FAILED
from test_tensorboard import events

NAN = float("nan")
LINE = ("name: Line\ninput: [3]\ntargets: [1]\nmodules: {line: \"Linear(3, 1)\"}\n"
        "forward: [output = line(x)]\nloss: mse_loss(output, target)\n")
ROWS = """
name: rows
model: {file: line.yaml}
data: {format: images, dir: rows}
train: {epochs: 1, batch_size: 2, log_interval: 1, shuffle: false}
optimizer: {type: sgd, lr: 0.1}
tensorboard: true
workers: 1
"""
TOKENS = """
name: tokens
model: {file: tokens.yaml}
data: {format: dataset, path: tokens, windows: document}
train: {max_steps: 3, batch_size: 1, evaluate: false}
optimizer: {type: sgd, lr: 0.1}
workers: 1
"""
TINY = ("name: Tiny\ninput: tokens\nvocabulary: 5\ncontext: 4\n"
        "modules: {embed: \"Embedding(5, 4)\", head: \"Linear(4, 5)\"}\n"
        "forward: [x = embed(x), output = head(x)]\nloss: cross_entropy(output, target)\n")


def npy(path, kind, shape, values):
    """Writes an array, and returns what dataset.json says of it."""
    letter, name = {"<f4": ("f", "float32"), "<u2": ("H", "uint16"), "<u8": ("Q", "uint64"), "|u1": ("B", "uint8")}[kind]
    head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {tuple(shape)}, }}"
    head += " " * (-(len(head) + 11) % 64) + "\n"
    data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + struct.pack(f"<{len(values)}{letter}", *values)
    with open(path, "wb") as file:
        file.write(data)
    return {"file": os.path.basename(path), "type": name, "shape": shape, "sha256": hashlib.sha256(data).hexdigest()}


class NothingCounts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = harness.Daemon(workers=1, arguments=["--threads", "1"])
        cls.addClassCleanup(cls.daemon.close)

    def write(self, name, text):
        path = os.path.join(self.daemon.data, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def run_rows(self, targets, *settings, huge=()):
        """Trains on rows, two in each step, with these targets, of numbers near 1 or huge; none of the validation's counts."""
        os.makedirs(os.path.join(self.daemon.data, "rows"), exist_ok=True)
        for split, numbers in (("train", targets), ("validation", [NAN] * 3)):
            place = os.path.join(self.daemon.data, "rows", split)
            npy(place + ".images.npy", "<f4", [len(numbers), 3], 
                [1e30 if i // 3 in huge else 0.1 * (i % 3) for i in range(3 * len(numbers))])
            npy(place + ".targets.npy", "<f4", [len(numbers)], numbers)
        self.write("line.yaml", LINE)
        job = self.daemon.json("submit", self.write("rows-job.yaml", ROWS), *(f"--set={one}" for one in settings))["id"]
        return self.daemon.wait_state(job, "SUCCEEDED", "FAILED"), job

    def test_views(self):
        daemon = self.daemon
        shown, job = self.run_rows([1, 2, NAN, NAN, 3, NAN, NAN, NAN])
        self.assertEqual(shown["state"], "SUCCEEDED", shown["reason"])
        self.assertEqual(shown["metrics"]["skipped_steps"], 2)
        for key in ("loss", "val_loss"):
            self.assertIsNone(shown["metrics"][key])
        self.assertGreater(shown["metrics"]["train_loss"], 0)  # of the steps that count
        losses = daemon.losses(job)
        self.assertEqual([loss is None for _, loss in losses], [False, True, False, True])
        rows = list(csv.DictReader(daemon.ctl("metrics", job, "--csv").stdout.splitlines()))
        self.assertEqual([row["loss"] == "" for row in rows if row["kind"] == "step"], [False, True, False, True])
        self.assertEqual([row["val_loss"] for row in rows if row["kind"] == "validation"], [""])
        self.assertEqual([row["mse"] for row in rows if row["kind"] == "validation"], [""])
        for verb, words in (("show", "loss        - at a learning rate"), ("show", "validation  loss - after step 4"),
                            ("watch", "step 4/4: validation loss - "), ("metrics", " - ")):
            text = daemon.ctl(verb, job).stdout
            self.assertIn(words, text, verb)
            self.assertNotRegex(text, "(?i)nan|loss 0.0000", verb)
        path = os.path.join(daemon.root, "page.html")
        self.assertEqual(daemon.ctl("report", job, "-o", path).returncode, 0)
        with open(path, encoding="utf-8") as file:
            self.assertIn("<dt>Loss</dt><dd>-</dd>", file.read())
        board = os.path.join(daemon.root, "state/jobs", job, "tensorboard")
        read = events(os.path.join(board, os.listdir(board)[0]))
        self.assertEqual([step for _, step, scalars in read if "train/loss" in scalars], [1, 3])
        self.assertFalse([scalars for _, _, scalars in read if "validation/loss" in scalars])

    def test_means_are_of_what_counts(self):
        """An interval's mean leaves out its step without a target."""
        _, alone = self.run_rows([1, 2, NAN, NAN])
        _, both = self.run_rows([1, 2, NAN, NAN], "train.log_interval=2")
        self.assertEqual(self.daemon.losses(both), [(2, self.daemon.losses(alone)[0][1])])

    def test_a_skipped_step_keeps_its_loss(self):
        """One that is infinite, also if only a part of the step's batches has it. A longer interval's mean is of the rest."""
        skip = "train.non_finite=skip"
        _, plain = self.run_rows([1, 2, 5, 6])
        (_, first), (_, third) = self.daemon.losses(plain)
        for settings in ((), ("train.batch_size=1", "train.accumulation_steps=2")):
            shown, job = self.run_rows([1, 2, 3, 4, 5, 6], skip, *settings, huge=(3,))
            self.assertEqual((shown["state"], shown["metrics"]["skipped_steps"]), ("SUCCEEDED", 1), shown["reason"])
            rows = list(csv.DictReader(self.daemon.ctl("metrics", job, "--csv").stdout.splitlines()))
            losses = [row["loss"] for row in rows if row["kind"] == "step"]
            self.assertEqual(losses[1], "inf")
            for found, expected in ((float(losses[0]), first), (float(losses[2]), third),
                                    (shown["metrics"]["train_loss"], (first + third) / 2)):
                self.assertAlmostEqual(found, expected, delta=1e-6 * expected)
            self.assertIn(" inf ", self.daemon.ctl("metrics", job).stdout)
            self.assertIsNone(self.daemon.losses(job)[1][1])
        _, job = self.run_rows([1, 2, 3, 4, 5, 6], skip, "train.log_interval=3", huge=(3,))
        ((_, mean),) = self.daemon.losses(job)
        self.assertAlmostEqual(mean, (first + third) / 2, delta=1e-6 * mean)
        shown, _ = self.run_rows([1, 2, 3, 4], skip, huge=(0, 3))
        self.assertEqual(shown["state"], "FAILED")
        self.assertIn("no step of 2 trained: the loss, or the gradient's norm, was never finite", shown["reason"]["message"])

    def test_no_step_trains(self):
        shown, _ = self.run_rows([NAN] * 6)
        self.assertEqual(shown["state"], "FAILED")
        self.assertIn("no step of 3 trained: no target counts", shown["reason"]["message"])

    def test_plan(self):
        """What a dataset's arrays say beforehand."""
        self.write("tokens.yaml", TINY)
        job = self.write("tokens-job.yaml", TOKENS)
        place = os.path.join(self.daemon.data, "tokens")
        os.makedirs(place, exist_ok=True)
        for borders, mask, words in (([0, 3, 6], [1, 0, 0, 1, 0, 0], "its mask is 0 for every target"),
                                     ([0, 6], [0, 0, 0, 0, 0, 1], "its mask is 0 for every target"),
                                     ([0, 1, 2, 3, 4, 5, 6], [1] * 6, "every document has one token"),
                                     ([0, 3, 6], [0, 0, 1, 0, 0, 0], None)):
            arrays = {"tokens": npy(place + "/t.npy", "<u2", [6], [1, 2, 3, 4, 1, 2]),
                      "documents": npy(place + "/d.npy", "<u8", [len(borders)], borders),
                      "mask": npy(place + "/m.npy", "|u1", [6], mask)}
            self.write("tokens/dataset.json", json.dumps({"format": "fsdpd-dataset", "version": 1, "kind": "tokens",
                                                          "vocabulary": 5, "splits": {"train": arrays}}))
            for verb in ("plan", "submit"):
                result = self.daemon.ctl(verb, job)
                if words is None:
                    self.assertEqual(result.returncode, 0, result.stderr)
                    continue
                self.assertEqual(result.returncode, FAILED, result.stderr)
                self.assertIn("no target of its split train counts: " + words, result.stderr)


if __name__ == "__main__":
    harness.main()
