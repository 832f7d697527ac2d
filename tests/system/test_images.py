#!/usr/bin/env python3
"""Images of CIFAR-10's shape: every form of the same data gives the same curve, augmentation does not
depend on the number of workers, and a small network learns them. With MNIST's files gzipped or not,
the curve is the same."""

import csv
import gzip
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness

EXAMPLE = os.path.join(harness.SOURCE, "examples/cifar")
JOB = os.path.join(EXAMPLE, "job.yaml")


class Images(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp(prefix="fsdpd-test-")
        cls.addClassCleanup(shutil.rmtree, cls.root)
        subprocess.run([sys.executable, os.path.join(EXAMPLE, "draw.py"),
                        os.path.join(cls.root, "cifar"), "--npy", os.path.join(cls.root, "arrays")],
                       check=True)

    def setUp(self):
        self.daemon = harness.Daemon(data=self.root, arguments=["--threads", "1"])
        self.addCleanup(self.daemon.close)

    def train(self, *settings, job=JOB):
        """(step, loss) of all reports, and the job."""
        result = self.daemon.ctl("submit", job, *(f"--set={s}" for s in settings), "--wait",
                                 timeout=300)
        self.assertEqual(result.returncode, 0, result.stderr)
        identity = self.daemon.json("list")[-1]["id"]
        return self.daemon.losses(identity), self.daemon.show(identity)

    def test_forms_and_worlds(self):
        short = ("train.epochs=2", "train.log_interval=1", "train.max_steps=40", "save_model=false",
                 "optimizer.type=sgd", "optimizer.lr=0.05")
        binary, _ = self.train(*short)
        arrays, _ = self.train(*short, "data.dir=arrays")
        self.assertEqual(len(binary), 40)
        self.assertEqual(binary, arrays)
        one, _ = self.train(*short, "workers=1", "train.batch_size=64")
        for (step, a), (_, b) in zip(binary, one):
            self.assertAlmostEqual(a, b, delta=1e-5 * abs(b), msg=f"step {step}")
        plain, _ = self.train(*short, "data.augment.flip=false", "data.augment.crop_padding=0")
        self.assertNotEqual(binary[0], plain[0])

    def test_learns(self):
        losses, job = self.train()
        self.assertLess(losses[-1][1], losses[0][1] / 3)
        self.assertGreater(float(job["metrics"]["accuracy"]), 0.8)

    def test_gzip(self):
        digits = os.path.join(self.root, "digits")
        packed = os.path.join(self.root, "packed")
        harness.draw_digits(digits, train=500, test=100)
        os.mkdir(packed)
        for name in os.listdir(digits):
            with open(os.path.join(digits, name), "rb") as file, \
                    gzip.open(os.path.join(packed, name + ".gz"), "wb") as out:
                out.write(file.read())
        short = ("train.epochs=1", "train.log_interval=1", "save_model=false")
        whole, _ = self.train(*short, f"data.dir={digits}", job=harness.JOB)
        self.assertEqual(whole, self.train(*short, f"data.dir={packed}", job=harness.JOB)[0])

    def test_rows_with_numbers(self):
        """A table with two columns of numbers to predict, the second far from 0 and with gaps: one curve for any
        number of workers, and the metrics that its model has."""
        try:
            import numpy
        except ImportError as missing:
            self.skipTest(f"SKIP: {missing}")
        self.daemon.close()
        self.daemon = harness.Daemon(workers=3, data=self.root, arguments=["--threads", "1"])
        self.addCleanup(self.daemon.close)
        choice = numpy.random.default_rng(3)
        os.makedirs(os.path.join(self.root, "table"), exist_ok=True)
        for split, count in (("train", 240), ("validation", 101)):
            x = choice.normal(size=(count, 5)).astype("float32")
            y = x @ numpy.arange(10).reshape(5, 2) / 10 + choice.normal(size=(count, 2)) / 4 + (0, 30)
            y[::7, 1] = numpy.nan
            for name, array in (("images", x), ("targets", y.astype("float32"))):
                numpy.save(os.path.join(self.root, "table", f"{split}.{name}.npy"), array)
        with open(os.path.join(self.root, "line.yaml"), "w") as file:
            file.write("name: Line\ninput: [5]\ntargets: [2]\nmodules: {line: \"Linear(5, 2)\"}\n"
                       "forward: [output = line(x)]\nloss: mse_loss(output, target)\n")
        job = os.path.join(self.root, "table.yaml")
        with open(job, "w") as file:
            file.write("name: table\nmodel: {file: line.yaml}\ndata: {format: images, dir: table}\n"
                       "train: {epochs: 6, log_interval: 1}\noptimizer: {type: sgd, lr: 0.1}\n")
        curves = []
        for workers in (1, 2, 3):
            losses, shown = self.train(f"workers={workers}", f"train.batch_size={24 // workers}", job=job)
            self.assertEqual(len(losses), 60)
            curves.append((losses, shown["metrics"]))
        for losses, metrics in curves[1:]:
            for (step, a), (_, b) in zip(losses, curves[0][0]):
                self.assertAlmostEqual(a, b, delta=1e-5 * abs(b), msg=f"step {step}")
            self.assertEqual(set(metrics["val_scores"]), {"mse", "pearson"})
            for name, value in metrics["val_scores"].items():
                self.assertAlmostEqual(value, curves[0][1]["val_scores"][name], delta=1e-5 * value, msg=name)
        tensors = self.daemon.tensors(self.daemon.json("list")[-1]["id"])
        weight, bias = (numpy.frombuffer(tensors["line." + name][2], "<f4").astype("f8") for name in ("weight", "bias"))
        found, counted = x @ weight.reshape(2, 5).T + bias, ~numpy.isnan(y)
        squares = ((found - y)[counted] ** 2).mean()
        pearson = numpy.mean([numpy.corrcoef(found[counted[:, c], c], y[counted[:, c], c])[0, 1] for c in (0, 1)])
        metrics = curves[-1][1]
        self.assertAlmostEqual(metrics["val_loss"], squares, delta=1e-4 * squares)
        self.assertAlmostEqual(metrics["val_scores"]["mse"], squares, delta=1e-4 * squares)
        self.assertAlmostEqual(metrics["val_scores"]["pearson"], pearson, delta=1e-5)
        self.assertGreater(pearson, 0.9)
        self.assertNotIn("accuracy", metrics)

    def test_draws(self):
        """A network with noise draws the same for any number of workers, other numbers in every step, and the same in every
        evaluation with as many workers."""
        try:
            import numpy
        except ImportError as missing:
            self.skipTest(f"SKIP: {missing}")
        self.daemon.close()
        self.daemon = harness.Daemon(workers=3, data=self.root, arguments=["--threads", "1"])
        self.addCleanup(self.daemon.close)
        table = os.path.join(self.root, "noisy")
        os.makedirs(table)
        for split, count in (("train", 48), ("validation", 50)):
            x = numpy.random.default_rng(count).normal(size=(count, 5)).astype("float32")
            numpy.save(os.path.join(table, f"{split}.images.npy"), x)
            numpy.save(os.path.join(table, f"{split}.targets.npy"), (x[:, 0] > 0).astype("uint8"))
        with open(os.path.join(self.root, "noisy.yaml"), "w") as file:
            file.write("name: Noisy\ninput: [5]\nclasses: 2\nmodules: {line: \"Linear(5, 2)\"}\n"
                       "forward: [output = line(x + randn_like(x))]\nloss: cross_entropy(output, target)\n")
        job = os.path.join(self.root, "noisy-job.yaml")
        with open(job, "w") as file:
            file.write("name: noisy\nmodel: {file: noisy.yaml}\ndata: {format: images, dir: noisy}\n"
                       "train: {log_interval: 1, global_batch: 24, batch_size: 24, shuffle: false}\n"
                       "optimizer: {type: sgd, lr: 0}\n")
        (once, first), (alone, second), (three, _) = (
            self.train(f"workers={workers}", f"train.epochs={epochs}", job=job)
            for workers, epochs in ((1, 1), (1, 2), (3, 2)))
        self.assertEqual(once, alone[:2])
        self.assertEqual(len({loss for _, loss in alone}), 4)
        for (step, a), (_, b) in zip(alone, three):
            self.assertAlmostEqual(a, b, delta=1e-6 * abs(b), msg=f"step {step}")
        self.assertEqual(first["metrics"]["test_loss"], second["metrics"]["test_loss"])

    def test_f1_of_classes(self):
        """F1 of skewed classes, one of which is rare in the test set, as the pulled weights give it, with two classes and with
        four; the same for any number of workers, whose shares of the test set are not equal."""
        try:
            import numpy
        except ImportError as missing:
            self.skipTest(f"SKIP: {missing}")
        self.daemon.close()
        self.daemon = harness.Daemon(workers=3, data=self.root, arguments=["--threads", "1"])
        self.addCleanup(self.daemon.close)
        choice = numpy.random.default_rng(7)
        for classes in (4, 2):
            table = os.path.join(self.root, f"classes{classes}")
            os.makedirs(table)
            centres = choice.normal(size=(classes, 6))
            for split, count in (("train", 240), ("validation", 101)):
                y = numpy.minimum(choice.geometric(0.5, count) - 1, classes - 1)
                x = (centres[y] + 2 * choice.normal(size=(count, 6))).astype("float32")
                numpy.save(os.path.join(table, f"{split}.images.npy"), x)
                numpy.save(os.path.join(table, f"{split}.targets.npy"), y.astype("uint8"))
            with open(os.path.join(self.root, "classes.yaml"), "w") as file:
                file.write(f"name: Classes\ninput: [6]\nclasses: {classes}\nmodules: {{line: \"Linear(6, {classes})\"}}\n"
                           "forward: [output = line(x)]\nloss: cross_entropy(output, target)\n")
            job = os.path.join(self.root, "classes-job.yaml")
            with open(job, "w") as file:
                file.write(f"name: classes\nmodel: {{file: classes.yaml}}\ndata: {{format: images, dir: classes{classes}}}\n"
                           "train: {epochs: 3, log_interval: 1}\noptimizer: {type: sgd, lr: 0.2}\n")
            for workers in (1, 2, 3):
                _, shown = self.train(f"workers={workers}", f"train.batch_size={24 // workers}", job=job)
                tensors = self.daemon.tensors(shown["id"])
                weight, bias = (numpy.frombuffer(tensors["line." + name][2], "<f4").astype("f8")
                                for name in ("weight", "bias"))
                found = (x @ weight.reshape(classes, 6).T + bias).argmax(1)
                by_class = [2 * ((found == c) & (y == c)).sum() / ((found == c).sum() + (y == c).sum())
                            for c in numpy.union1d(found, y)]
                f1 = by_class[1] if classes == 2 else numpy.mean(by_class)
                metrics, where = shown["metrics"], f"{classes} classes, {workers} workers"
                self.assertEqual(set(metrics["test_scores"]), {"accuracy", "f1"}, where)
                self.assertAlmostEqual(metrics["test_scores"]["f1"], f1, delta=1e-9, msg=where)
                self.assertAlmostEqual(metrics["test_scores"]["accuracy"], (found == y).mean(), delta=1e-9, msg=where)
                self.assertEqual(metrics["test_scores"]["accuracy"], metrics["accuracy"], where)
                self.assertIsNone(metrics["val_scores"])
                self.assertGreater(abs(f1 - metrics["accuracy"]), 1e-3, "this test cannot tell F1 from accuracy")
            end = f"accuracy {100 * metrics['accuracy']:.2f}%, F1 {f1:.4f}"
            for verb in ("show", "metrics"):
                self.assertIn(end, self.daemon.ctl(verb, shown["id"]).stdout, verb)
            rows = csv.DictReader(self.daemon.ctl("metrics", shown["id"], "--csv").stdout.splitlines())
            last = [row for row in rows if row["kind"] == "epoch"][-1]
            self.assertAlmostEqual(float(last["f1"]), f1, delta=1e-9)
            self.assertAlmostEqual(float(last["accuracy"]), metrics["accuracy"], delta=1e-9)


if __name__ == "__main__":
    harness.main()
