#!/usr/bin/env python3
"""Evaluations by a job of their own (fsdpctl eval of what does not run, train.only_evaluate): final weights, checkpoints,
paused jobs, adapters, pictures, directories of Hugging Face's transformers. Figures are those of the job's own evaluations,
to the bit."""

import json
import os
import shutil
import signal
import sys
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import test_early_stop

GPT2 = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 32, "n_positions": 16, "n_embd": 8,
        "n_layer": 1, "n_head": 2}


class Eval(unittest.TestCase):
    rows, submit = test_early_stop.EarlyStop.rows, test_early_stop.EarlyStop.submit

    @classmethod
    def setUpClass(cls):
        test_early_stop.EarlyStop.setUpClass.__func__(cls)

    def figures(self, *words):
        """Of an evaluation, and the job that made it."""
        result = self.daemon.ctl("eval", *words, "-o", "json", timeout=120)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout), result.stderr.split()[0]

    def refused(self, *words):
        result = self.daemon.ctl("eval", *words, timeout=60)
        self.assertGreater(result.returncode, 0)
        return " ".join(result.stderr.split())

    def test_weights_of_a_job_that_is_over(self):
        job = self.submit("train.max_steps=8", "optimizer.lr=0.02", "train.evaluate_interval=4", "checkpoint.every_steps=4",
                          "data.validation=[{name: code, path: code.bin, every_steps: 4, batches: 1}]",
                          "train.early_stop.patience=30", "labels.kind=trained")
        own, code = dict(self.rows(job, "")), dict(self.rows(job, "code"))
        seen, by = self.figures(job)
        self.assertEqual((int(seen["step"]), seen["loss"]), (8, own[8]))
        record = self.daemon.json("show", by)
        self.assertEqual((record["state"], record["reason"]["message"], record["name"]),
                         ("SUCCEEDED", "evaluated the weights after 8 steps", "eval-letters"))
        self.assertEqual(record["metrics"]["val_loss"], own[8])
        self.assertFalse(record.get("has_state_dict"))
        self.assertEqual(self.figures(job, "--checkpoint", "4")[0]["loss"], own[4])
        self.assertEqual(self.figures(job, "--checkpoint", "latest")[0]["loss"], own[8])
        self.assertEqual(self.figures(job, "--set", "code", "--checkpoint", "4")[0]["loss"], code[4])
        self.assertEqual(self.figures(job, "--data", "code.bin", "--batches", "1")[0]["loss"], code[8])
        alone = self.figures(job, "--key", "workers=1")[0]
        self.assertAlmostEqual(alone["loss"], own[8], places=5)
        for words, message in ((("--checkpoint", "5"), "has no checkpoint of step 5"),
                               (("--set", "none"), "data.validation of " + job + " has no set 'none'"),
                               (("--data", "none.bin"), "none.bin"),
                               (("--key", "model.head=x"), "cannot change when a job is evaluated"),
                               (("--key", "save_model=true"), "save_model: expected false")):
            with self.subTest(message):
                self.assertIn(message, self.refused(job, *words))
        self.assertEqual(self.daemon.ctl("forget", job).returncode, 0)
        self.assertIn("no job", self.refused(job))

    def test_average(self):
        """With train.ema.evaluate an evaluation needs the average, which only checkpoints have."""
        average = ("train.max_steps=4", "optimizer.lr=0.02", "train.ema.decay=0.5", "train.ema.evaluate=true",
                   "train.early_stop.patience=30")
        job = self.submit(*average, "checkpoint.every_steps=4")
        self.assertEqual(self.figures(job)[0]["loss"], dict(self.rows(job, ""))[4])
        kept = self.submit(*average)
        self.assertIn("without their average", self.refused(kept))
        self.figures(kept, "--key", "train.ema.evaluate=false")

    def test_pictures(self):
        job = self.submit("train.early_stop.patience=30", "train.epochs=2", "optimizer.lr=0.1", file="pictures.yaml")
        last = self.daemon.json("show", job)["metrics"]
        shutil.copytree(os.path.join(self.data, "pictures"), os.path.join(self.data, "others"))
        for words in (), ("--data", "others"):
            seen = self.figures(job, *words)[0]
            self.assertEqual(seen["loss"], last["test_loss"])
            self.assertEqual(seen["scores"]["accuracy"], last["accuracy"])
            self.assertEqual(seen["scores"]["f1"], last["test_scores"]["f1"])

    def test_pictures_of_a_running_job(self):
        result = self.daemon.ctl("submit", os.path.join(self.root, "pictures.yaml"), "--set", "train.epochs=1000000", "--set",
                                 "train.early_stop.patience=1000000", "--set", "optimizer.lr=0")
        job = result.stdout.strip()
        self.daemon.wait_step(job, 1)
        seen = self.daemon.json("eval", job)
        self.assertEqual(int(seen["tokens"]), 16)
        self.assertIn("accuracy", seen["scores"])
        shutil.copytree(os.path.join(self.data, "pictures"), os.path.join(self.data, "again"))
        os.makedirs(os.path.join(self.data, "trained"))
        for kind in "images-idx3", "labels-idx1":
            for part in "train", "t10k":
                shutil.copy(os.path.join(self.data, "pictures", f"train-{kind}-ubyte"),
                            os.path.join(self.data, "trained", f"{part}-{kind}-ubyte"))
        again, trained = (self.daemon.json("eval", job, "--data", name) for name in ("again", "trained"))
        for name in "tokens", "loss", "scores":
            self.assertEqual(again[name], seen[name])
        self.assertEqual(int(trained["tokens"]), 24)
        self.assertNotEqual(trained["loss"], seen["loss"])
        self.assertIn("missing", self.refused(job, "--data", "missing"))
        self.assertIn("images are evaluated to the last", self.refused(job, "--data", "again", "--batches", "1"))
        self.daemon.ctl("cancel", job)

    def test_adapters(self):
        job = self.submit("model.lora={rank: 2, targets: [head]}", "train.max_steps=4", "optimizer.lr=0.05",
                          "train.early_stop.patience=30")
        self.assertEqual(self.figures(job)[0]["loss"], dict(self.rows(job, ""))[4])

    def test_weights_of_another_job(self):
        """A job begins with another one's final weights, checkpoint or adapter: evaluated before a step changes them (a rate of 0),
        they have the other's loss. What cannot fit is refused at the submission."""
        settings = ("train.evaluate_interval=4", "train.early_stop.patience=30")
        job = self.submit(*settings, "train.max_steps=8", "optimizer.lr=0.02",
                          "checkpoint={every_steps: 4, best: {metric: loss, mode: max}}")
        own = dict(self.rows(job, ""))
        for which, step in (("", 8), (", checkpoint: 4", 4), (", checkpoint: best", 4), (", checkpoint: latest", 8)):
            with self.subTest(which):
                after = self.submit(*settings, "train.max_steps=4", f"model.weights={{job: {job}{which}}}")
                self.assertEqual(dict(self.rows(after, ""))[4], own[step])
        lora = "model.lora={rank: 2, alpha: 32, targets: [head]}"
        adapted = self.submit(*settings, "train.max_steps=4", "optimizer.lr=0.05", f"model.weights={{job: {job}}}", lora)
        trained = dict(self.rows(adapted, ""))[4]
        self.assertNotEqual(trained, own[8])
        again = self.submit(*settings, "train.max_steps=4", f"model.weights={{job: {job}}}", f"model.adapter={{job: {adapted}}}")
        self.assertEqual(dict(self.rows(again, ""))[4], trained)
        self.assertEqual(int(self.daemon.json("show", again)["spec"]["model"]["lora"]["rank"]), 2)
        with open(os.path.join(self.root, "model.yaml"), encoding="utf-8") as file:
            text = file.read()
        with open(os.path.join(self.root, "wide.yaml"), "w", encoding="utf-8") as file:
            file.write(text.replace("8", "12"))
        for words, message in (
            (("model.file=" + os.path.join(self.root, "wide.yaml"), f"model.weights={{job: {job}}}"),
             f"model.weights.job: table.weight is (32, 8) in job {job}; expected (32, 12)"),
            ((f"model.weights={{job: {adapted}}}",), f"model.weights.job: job {adapted} has a parameter head.lora_A"),
            ((f"model.adapter={{job: {job}}}",), f"model.adapter.job: job {job} trains no adapters"),
            ((f"model.adapter={{job: {adapted}}}", "model.lora={rank: 2, targets: [head]}"),
             f"model.adapter.job: model.lora.alpha is another one in job {adapted}"),
            (("model.weights={job: none-1}",), "model.weights.job: there is no job none-1"),
            ((f"model.weights={{job: {job}, checkpoint: 5}}",), f"model.weights.job: job {job} has no checkpoint of step 5"),
            ((f"model.weights={{job: {job}, checkpoint: first}}",), "expected latest, best or a step from 1 to"),
        ):
            with self.subTest(message):
                result = self.daemon.ctl("submit", os.path.join(self.root, "job.yaml"),
                                         *(word for one in words for word in ("--set", one)))
                self.assertIn(message, " ".join(result.stderr.split()))

    def test_waits_for_the_other_job(self):
        """It starts when the other has succeeded, whose weights stay as long as it needs them."""
        file = os.path.join(self.root, "job.yaml")
        first = self.daemon.json("submit", file, "--set", "train.max_steps=1000000", "--set", "train.early_stop.patience=1000000")["id"]
        self.daemon.wait_step(first, 1)
        then = self.daemon.json("submit", file, "--set", f"model.weights.job={first}", "--set", "train.max_steps=4", "--hold")
        self.assertEqual(then["spec"]["after"], [first])
        self.assertEqual(self.daemon.ctl("pause", first).returncode, 0)
        self.daemon.wait_state(first, "PAUSED")
        step = self.daemon.json("show", first)["step"]
        self.assertEqual(self.daemon.ctl("resume", first, "--set", f"train.max_steps={int(step) + 1}").returncode, 0)
        self.daemon.wait_state(first, "SUCCEEDED", seconds=60)
        refused = self.daemon.ctl("forget", first)
        self.assertEqual(refused.returncode, 6)
        self.assertIn(f"has the weights that job {then['id']} begins with", " ".join(refused.stderr.split()))
        self.assertEqual(self.daemon.ctl("release", then["id"]).returncode, 0)
        self.daemon.wait_state(then["id"], "SUCCEEDED", seconds=60)
        self.assertEqual(dict(self.rows(then["id"], ""))[4], dict(self.rows(first, ""))[int(step) + 1])
        self.assertEqual(self.daemon.ctl("forget", first).returncode, 0)

    def test_directory(self):
        model = os.path.join(self.data, "gpt2")
        os.makedirs(model)
        with open(os.path.join(model, "config.json"), "w", encoding="utf-8") as file:
            json.dump(GPT2, file)
        job = self.submit("model={hf: gpt2}", "train.max_steps=3", "optimizer.lr=0.02", "train.early_stop.patience=30",
                          "train.batch_size=8", "workers=1", "data.validation_path=code.bin", "train.evaluate_batches=0")
        self.assertEqual(self.figures(job)[0]["loss"], dict(self.rows(job, ""))[3])
        out = os.path.join(self.data, "pulled")
        self.assertEqual(self.daemon.ctl("pull", job, "--format", "hf", "-o", out).returncode, 0)
        seen = self.figures(out, "--data", "code.bin", "--key", "data.encoding=uint16", "--key", "workers=1")[0]
        self.assertEqual((seen["loss"], int(seen["step"])), (dict(self.rows(job, ""))[3], 0))
        self.assertIn("expected --data PATH", self.refused(out))
        self.assertIn("none.bin", self.refused(out, "--data", "none.bin"))

    def test_paused_and_left(self):
        """A paused job's newest checkpoint; while both workers are taken the evaluation is queued, and ends with its client."""
        busy = self.daemon.json("submit", os.path.join(self.root, "job.yaml"), "--set", "train.max_steps=1000000", "--set",
                                "train.early_stop.patience=1000000")["id"]
        self.daemon.wait_step(busy, 1)
        running = self.daemon.json("eval", busy)
        prompt, draws = ("sample", busy, "--tokens", "3,1", "--max-tokens", "5"), (
            "--temperature", "2", "--seed", "7", "--top-k", "20", "--top-p", "0.9", "--min-p", "0.01", "--repetition-penalty", "1.5")
        greedy, drawn = (self.daemon.json(*prompt, *way)["tokens"] for way in ((), draws))
        self.assertEqual(self.daemon.ctl("pause", busy).returncode, 0)
        self.daemon.wait_state(busy, "PAUSED")
        self.assertEqual(self.figures(busy)[0]["loss"], running["loss"])
        self.assertEqual(self.daemon.json(*prompt)["tokens"], greedy)
        said = self.daemon.json(*prompt, *draws, "--stop", f"{drawn[3]},{drawn[3]}", "--checkpoint", "latest")["tokens"]
        self.assertEqual(said, drawn[:drawn.index(drawn[3])])
        self.assertEqual(self.daemon.ctl("resume", busy).returncode, 0)
        self.daemon.wait_state(busy, "RUNNING")
        with self.daemon.spawn("eval", busy, "--checkpoint", "latest") as left:
            self.daemon.wait_for(lambda: self.daemon.json("list")[-1]["name"] == "eval-letters", 20, "its job")
            by = self.daemon.json("list")[-1]["id"]
            self.assertEqual(self.daemon.json("show", by)["state"], "QUEUED")
            left.send_signal(signal.SIGINT)
            self.assertEqual(left.wait(20), 130)
        self.daemon.wait_state(by, "CANCELLED")
        result = self.daemon.ctl("eval", busy, "--checkpoint", "latest", "--detach")
        self.daemon.ctl("cancel", busy)
        self.daemon.wait_state(result.stdout.strip(), "SUCCEEDED")


if __name__ == "__main__":
    unittest.main(verbosity=2)
