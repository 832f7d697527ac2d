#!/usr/bin/env python3
"""Ends of training. train.early_stop: a job whose evaluations do not become better ends, says why, and counts on after a resume.
With a learning rate of 0 every evaluation is the same, so the step at which it ends is known. Held-out sets (data.validation),
also as what it looks at, and evaluations of running jobs (fsdpctl eval). train.ema: the average of the weights is planned,
pulled, evaluated, and added and removed by a resume."""

import array
import csv
import glob
import json
import os
import pwd
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness

JOB = """name: letters
model: {file: model.yaml}
data: {format: tokens, path: letters.bin, encoding: uint16, context: 16}
train: {max_steps: 60, batch_size: 2, evaluate_interval: 5, early_stop: {patience: 2}}
optimizer: {type: adamw, lr: 0, weight_decay: 0}
workers: 2
"""
PICTURES = """name: pictures
model: {file: pictures-model.yaml}
data: {dir: pictures}
train: {epochs: 9, batch_size: 4, test_batch_size: 4, early_stop: {patience: 1, metric: accuracy}}
optimizer: {type: sgd, lr: 0}
workers: 2
"""
PICTURES_MODEL = """name: Net
input: [1, 6, 6]
classes: 3
modules:
  fc: Linear(36, 3)
forward:
  - x = flatten(x, 1)
  - output = fc(x)
loss: cross_entropy(output, target)
"""


class EarlyStop(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp(prefix="fsdpd-test-")
        cls.addClassCleanup(shutil.rmtree, cls.root, True)
        cls.data = os.path.join(cls.root, "data")
        os.makedirs(os.path.join(cls.data, "pictures"))
        draw = random.Random(4)
        with open(os.path.join(cls.data, "letters.bin"), "wb") as file:
            for _ in range(8000):
                file.write(draw.randrange(32).to_bytes(2, "little"))
        for name, count in ("code.bin", 700), ("long.bin", 4000000):
            with open(os.path.join(cls.data, name), "wb") as file:
                file.write(b"".join(bytes((n % 32, 0)) for n in draw.randbytes(count)))
        for part, count in (("train", 24), ("t10k", 16)):
            for kind, header, size in (("images-idx3", [0x803, count, 6, 6], 36), ("labels-idx1", [0x801, count], 1)):
                with open(os.path.join(cls.data, "pictures", f"{part}-{kind}-ubyte"), "wb") as file:
                    file.write(b"".join(n.to_bytes(4, "big") for n in header))
                    file.write(bytes(draw.randrange(3 if size == 1 else 256) for _ in range(count * size)))
        model = harness.LETTERS_MODEL
        for name, text in (("model.yaml", model), ("job.yaml", JOB),
                           ("long-model.yaml", model.replace("context: 16", "context: 5000000")),
                           ("pictures-model.yaml", PICTURES_MODEL), ("pictures.yaml", PICTURES)):
            with open(os.path.join(cls.root, name), "w", encoding="utf-8") as file:
                file.write(text)
        cls.daemon = harness.Daemon(2, data=cls.data, arguments=["--http-listen", "127.0.0.1:0"])
        cls.addClassCleanup(cls.daemon.close)

    def submit(self, *settings, file="job.yaml"):
        result = self.daemon.ctl("submit", os.path.join(self.root, file), "--wait",
                                 *(word for one in settings for word in ("--set", one)), timeout=120)
        self.assertEqual(result.returncode, 0, result.stderr)
        return self.daemon.json("list")[-1]["id"]

    def ended(self, job):
        """The step, and why."""
        shown = self.daemon.json("show", job)
        self.assertEqual(shown["state"], "SUCCEEDED")
        return int(shown["step"]), shown["reason"]["code"], shown["reason"]["message"]

    def test_ends_after_evaluations_without_gain(self):
        job = self.submit()
        step, code, message = self.ended(job)
        self.assertEqual((step, code), (15, "EARLY_STOP"))
        self.assertRegex(message, r"stopped early after 15 steps: the loss of the last 2 evaluations is not better "
                                  r"than [0-9.]+ of step 5 by more than 0 \(train.early_stop\)")
        out = os.path.join(self.root, "letters.safetensors")
        self.assertEqual(self.daemon.ctl("pull", job, "-o", out).returncode, 0)

    def test_goes_on_while_it_becomes_better(self):
        """With enough gain to the last step; with less than min_delta asks for, not."""
        settings = ("optimizer.lr=0.02", "train.max_steps=40", "data.path=letters.bin")
        self.assertEqual(self.ended(self.submit(*settings, "train.early_stop.patience=30"))[:2], (40, "DONE"))
        self.assertEqual(self.ended(self.submit(*settings, "train.early_stop.min_delta=1000"))[:2], (15, "EARLY_STOP"))

    def test_resumed_job_counts_on(self):
        """Also with another number of workers, which changes a loss's last bits. Forgotten, it would end at 20."""
        job = self.submit("train.max_steps=10", "checkpoint.every_steps=10", "train.early_stop.min_delta=1e-5")
        self.assertEqual(self.ended(job)[:2], (10, "DONE"))
        result = self.daemon.ctl("resume", job, "--set", "train.max_steps=60", "--set", "workers=1")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.daemon.wait_for(lambda: self.daemon.json("show", job)["reason"]["code"] == "EARLY_STOP", 60, "its end")
        self.assertEqual(self.ended(job)[:2], (15, "EARLY_STOP"))

    def test_accuracy_of_pictures(self):
        job = self.submit(file="pictures.yaml")
        step, code, message = self.ended(job)
        self.assertEqual((step, code), (6, "EARLY_STOP"))
        self.assertIn("the accuracy of the last 1 evaluation is not better than", message)

    def pulled(self, job, *options):
        out = os.path.join(self.root, "pulled.safetensors")
        result = self.daemon.ctl("pull", job, "-o", out, *options)
        self.assertEqual(result.returncode, 0, result.stderr)
        tensors, _ = harness.read_safetensors(out)
        return {name: array.array("f", raw) for name, (_, _, raw) in tensors.items()}

    def test_average_of_the_weights(self):
        """With one more step at a rate of 0 it moves by what torch.lerp says."""
        average = ("optimizer.lr=0.05", "train.ema.decay=0.75", "train.early_stop.patience=30", "train.max_steps=8")
        file = os.path.join(self.root, "job.yaml")
        plan = self.daemon.ctl("plan", file, *(word for one in average for word in ("--set", one)))
        self.assertRegex(plan.stdout, r"average \(ema\) +\S+")
        job = self.submit(*average, "checkpoint.every_steps=8", "train.ema.evaluate=true", "train.evaluate_interval=8")
        weights, before = self.pulled(job), self.pulled(job, "--ema")
        self.assertFalse(any(weights[name] == before[name] for name in weights))
        result = self.daemon.ctl("resume", job, "--set", "train.max_steps=9", "--set", "optimizer.lr=0")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.daemon.wait_state(job, "SUCCEEDED", seconds=60)
        after = self.pulled(job, "--ema", "--checkpoint", "9")
        for name, values in after.items():
            expected = [0.75 * a + 0.25 * w for a, w in zip(before[name], weights[name], strict=True)]
            self.assertLessEqual(max(abs(a - b) for a, b in zip(values, expected, strict=True)), 1e-6, name)
        self.daemon.ctl("resume", job, "--set", "train.max_steps=12", "--set", "train.ema.decay=0")
        self.daemon.wait_state(job, "SUCCEEDED", seconds=60)
        self.assertIn("its average of the weights was left out: the job keeps none any more (train.ema)",
                      str(self.daemon.events(job)))
        out = os.path.join(self.root, "none.safetensors")
        for options, message in (((), "keeps no average of its weights: its settings have no train.ema"),
                                 (("--checkpoint", "12"), "the checkpoint of step 12 has no average of the weights")):
            result = self.daemon.ctl("pull", job, "-o", out, "--ema", *options)
            self.assertEqual(result.returncode, 6, result.stderr)
            self.assertIn(message, " ".join(result.stderr.split()))

    def rows(self, job, name):
        """The held-out set's curve."""
        table = csv.DictReader(self.daemon.ctl("metrics", job, "--csv").stdout.splitlines())
        return [(int(row["step"]), float(row["val_loss"])) for row in table
                if row["kind"] == "validation" and row["set"] == name]

    def test_held_out_sets(self):
        """One decides; the job's own data are evaluated once more at the end."""
        job = self.submit("data.validation=[{name: code, path: code.bin, every_steps: 4, batches: 2}]",
                          "train.early_stop.metric=code/val_loss", "tensorboard=true")
        step, code, message = self.ended(job)
        self.assertEqual((step, code), (12, "EARLY_STOP"))
        self.assertIn("the loss of the last 2 evaluations of code is not better than", message)
        self.assertEqual([step for step, _ in self.rows(job, "code")], [4, 8, 12])
        self.assertEqual([step for step, _ in self.rows(job, "")], [5, 10, 12])
        self.assertRegex(self.daemon.ctl("show", job).stdout, r"validation  code: loss [0-9.]+.* after step 12\n")
        self.assertIn("validation of code", self.daemon.ctl("metrics", job).stdout)
        page = os.path.join(self.root, "letters.html")
        self.assertEqual(self.daemon.ctl("report", job, "-o", page).returncode, 0)
        with open(page, encoding="utf-8") as file:
            self.assertIn('="code|4 ', file.read())

    def evaluate(self, job, *arguments):
        result = self.daemon.ctl("eval", job, *arguments)
        return result.returncode, result.stdout, " ".join(result.stderr.split())

    def start(self, *settings):
        """A job that runs until it is cancelled, or for as many steps as it was given; the last settings count."""
        result = self.daemon.ctl("submit", os.path.join(self.root, "job.yaml"), *(
            word for one in ("optimizer.lr=0.02", "train.early_stop.patience=1000000", "train.log_interval=100",
                             "data.validation=[{name: code, path: code.bin, every_steps: 1, batches: 1}]", *settings)
            for word in ("--set", one)))
        self.assertEqual(result.returncode, 0, result.stderr)
        job = self.daemon.json("list")[-1]["id"]
        self.daemon.wait_step(job, 1)
        return job

    def test_evaluations(self):
        """They are the held-out curve's values at their steps, and change no bit of the training."""
        jobs = [self.start("train.max_steps=1000000", "name=seen"), None]
        seen = [self.daemon.json("eval", jobs[0], "--set", "code") for _ in range(5)]
        said = self.daemon.json("sample", jobs[0], "--tokens", "1", "--max-tokens", "15", "--temperature", "1")
        self.assertEqual(len(said["tokens"]), 15)
        self.assertEqual(self.daemon.ctl("pause", jobs[0]).returncode, 0)
        self.daemon.wait_state(jobs[0], "PAUSED")
        steps = f"train.max_steps={int(self.daemon.json('show', jobs[0])['step']) + 5}"
        self.assertEqual(self.daemon.ctl("resume", jobs[0], "--set", steps).returncode, 0)
        self.daemon.wait_state(jobs[0], "SUCCEEDED")
        jobs[1] = self.start(steps, "name=unseen")
        self.daemon.wait_state(jobs[1], "SUCCEEDED")
        curve = dict(self.rows(jobs[0], "code"))
        for result in seen:
            self.assertEqual(result["loss"], curve[int(result["step"])])
        self.assertEqual(*(self.daemon.tensors(job) for job in jobs))
        self.assertEqual(curve, dict(self.rows(jobs[1], "code")))

    def token(self, *words):
        return subprocess.run([harness.FSDPD, "token", *words, "--coordinator", self.daemon.address], text=True,
                              env=self.daemon.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def check_completions(self, job, greedy):
        """The same over HTTP, with a token of fsdpd token, as the manual's line of curl does; scores follow from one another."""
        name = pwd.getpwuid(os.geteuid()).pw_name
        issued = self.token("issue", name, "--days", "2")
        self.assertRegex(issued.stdout, r"^fsdpd_[0-9a-f]{64}\n$", issued.stderr)
        self.assertRegex(self.token("list").stdout, rf"NAME +ROLE.*\n{name} +user +\d{{4}}-.* UTC +{name}\n$")
        with open(os.path.join(self.daemon.root, "fsdpd.log"), encoding="utf-8") as file:
            port = re.search(r"http_served address=127\.0\.0\.1:(\d+)", file.read())[1]

        def ask(**request):
            result = subprocess.run(
                ["curl", "-s", f"http://127.0.0.1:{port}/v1/completions", "-H", f"Authorization: Bearer {issued.stdout.strip()}",
                 "-H", "Content-Type: application/json", "-d", json.dumps({"model": job, "temperature": 0, **request})],
                stdout=subprocess.PIPE, text=True, check=True, timeout=harness.PATIENCE)
            return json.loads(result.stdout)

        made = ask(prompt=[5, 17, 3], max_tokens=9)["choices"][0]
        self.assertEqual((made["token_ids"], made["finish_reason"], made["logprobs"]), (greedy, "length", None))
        two = ask(prompt=[[5, 17, 3], [3]], max_tokens=9, stop=[greedy[1]], logprobs=32 - 12)["choices"]
        self.assertEqual([(choice["token_ids"], choice["finish_reason"]) for choice in two],
                         [(greedy[:greedy.index(greedy[1])], "stop")] * 2)
        drawn = ask(prompt=[5, 17, 3], max_tokens=4, echo=True, logprobs=1)["choices"][0]
        scored = ask(prompt=drawn["token_ids"], max_tokens=0, echo=True, logprobs=1)["choices"][0]
        self.assertEqual((scored["token_ids"], scored["logprobs"]), (drawn["token_ids"], drawn["logprobs"]))
        self.assertIsNone(scored["logprobs"]["token_logprobs"][0])
        self.assertEqual(scored["logprobs"]["top_logprobs"][3], {f"token_id:{greedy[0]}": scored["logprobs"]["token_logprobs"][3]})
        self.assertIn("fsdpd-sample --serve", ask(prompt="verily forsooth")["error"]["message"])
        ask(prompt=[29, 1, 30, 2], max_tokens=1)
        self.daemon.json("sample", job, "--tokens", "29,1,30,2", "--max-tokens", "1")
        logs = glob.glob(os.path.join(self.daemon.root, "**/*log*"), recursive=True)
        self.assertIn(os.path.join(self.daemon.root, "fsdpd.log"), logs)
        for path in filter(os.path.isfile, logs):
            with open(path, errors="replace") as file:
                self.assertNotRegex(file.read(), "forsooth|29,? ?1,? ?30,? ?2", path)
        self.assertEqual(self.token("revoke", name).stdout, f"1 token of {name} revoked\n")
        self.assertEqual(ask(prompt=[3])["error"]["code"], "UNAUTHENTICATED")
        for words, code in ((("revoke", name), 5), (("issue", "a b"), 2), (("issue",), 2), (("list", "--days", "3"), 2)):
            self.assertEqual(self.token(*words).returncode, code, words)

    def check_reserve(self, job, workers):
        """A call of the reserved size takes what the plan has, and says how the weights were gathered."""
        rows = {row["name"]: int(row["bytes"]) for row in self.daemon.show(job)["plan"]["outside"]}
        made = self.daemon.json("sample", job, "--tokens", "5,17,3", "--max-tokens", "13")
        held = rows.get("weights of samples", 0)
        self.assertEqual((made["memory_bytes"], made["held_bytes"]), (rows["samples"] + held, held))
        self.assertEqual(held > 0, workers > 1)

    def test_samples(self):
        """What a job says follows from its weights, on one worker as on two."""
        ways = ([], ["--temperature", "2", "--seed", "7"], ["--temperature", "2", "--seed", "8"],
                ["--temperature", "2", "--seed", "7", "--top-k", "1"])
        said = []
        for workers in (1, 2):
            if workers == 2:
                self.daemon.ctl("cancel", job)
            job = self.start("train.max_steps=1000000", "optimizer.lr=0", f"workers={workers}", f"name=said-{workers}",
                             "sample.reserve.context=16")
            self.check_reserve(job, workers)
            said.append([self.daemon.json("sample", job, "--tokens", "5,17,3", "--max-tokens", "9", *way)["tokens"]
                         for way in ways])
        self.assertEqual(*said)
        greedy, drawn, other, narrow = said[0]
        self.assertEqual(narrow, greedy)
        self.assertEqual([len(tokens) for tokens in (drawn, other)], [9, 9])
        self.assertNotEqual(drawn, other)
        table, head, bias = (self.pulled(job)[name] for name in ("table.weight", "head.weight", "head.bias"))
        expected = [3]
        for _ in range(9):
            row = table[8 * expected[-1]:8 * expected[-1] + 8]
            logits = [bias[i] + sum(a * b for a, b in zip(row, head[8 * i:8 * i + 8])) for i in range(32)]
            expected.append(logits.index(max(logits)))
        self.assertEqual(greedy, expected[1:])
        stopped = self.daemon.json("sample", job, "--tokens", "5,17,3", "--max-tokens", "9", "--stop", f"31,{greedy[1]}")
        self.assertEqual(stopped["tokens"], greedy[:greedy.index(greedy[1])])
        self.assertEqual(self.daemon.ctl("sample", job, "--tokens", "3", "--max-tokens", "2").stdout,
                         ",".join(map(str, greedy[:2])) + "\n")
        self.check_completions(job, greedy)
        for arguments, code, message in (
            (["--tokens", "40", "--max-tokens", "5"], 1, "prompt 0 has the token 40; the model knows 0 to 31"),
            (["--tokens", "3", "--max-tokens", "16"], 1, "a prompt of 1 tokens and 16 more: the model takes 16 in all"),
            (["--tokens", "3", "--max-tokens", "5", "--top-p", "1.5"], 1, "top_p: 1.5 is not possible"),
            (["--tokens", "3", "--top-p", "0"], 2, "expected a number above 0, found '0'"),
            (["--tokens", "3,"], 2, "--tokens: expected token ids as in 5,17,3, found '3,'"),
            (["--prompt", "To be"], 1, "tokens are not the bytes of a text"),
            ([], 2, "expected either --tokens or --prompt"),
        ):
            with self.subTest(message):
                result = self.daemon.ctl("sample", job, *arguments)
                self.assertIn(message, " ".join(result.stderr.split()))
                self.assertEqual(result.returncode, code)
        self.daemon.ctl("cancel", job)
        job = self.start("train.max_steps=1000000", "optimizer.lr=0.5", "train.ema.decay=0.9999999",
                         "train.ema.evaluate=true", "name=average")  # which does not move, unlike the parameters
        first = self.daemon.json("sample", job, "--tokens", "5,17,3", "--max-tokens", "9")["tokens"]
        self.daemon.wait_step(job, int(self.daemon.show(job)["step"]) + 200)
        self.assertEqual(self.daemon.json("sample", job, "--tokens", "5,17,3", "--max-tokens", "9")["tokens"], first)
        self.daemon.ctl("cancel", job)

    def test_own_samples(self):
        """A job's own prompts are events, in its report and in TensorBoard, and change no bit of its training."""
        settings = ("train.max_steps=12", "optimizer.lr=0.02", "train.log_interval=1", "data.validation=[]")
        plain, job = self.submit(*settings), self.submit(
            *settings, "train.sample={prompts: ['5,17,3', 1], every_steps: 5, max_tokens: 6}", "tensorboard=true")
        self.assertEqual(*(self.daemon.tensors(one) for one in (plain, job)))
        events = [json.loads(line) for line in self.daemon.ctl("watch", job, "-o", "json").stdout.splitlines()]
        said = [event["sampled"] for event in events if "sampled" in event]
        self.assertEqual([int(one["step"]) for one in said], [5, 10, 12])
        self.assertEqual([[len(row["tokens"]) for row in one["sequences"]] for one in said], [[6, 6]] * 3)
        last = ",".join(map(str, said[-1]["sequences"][0]["tokens"]))
        rows = {int(event["metrics"]["step"]): event["metrics"] for event in events if "metrics" in event}
        self.assertNotIn("sample_share", rows[5])
        for name in ("sample_prefill_tokens_per_second", "sample_tokens_per_second", "sample_share"):
            self.assertGreater(rows[6][name], 0)
        self.assertEqual(rows[6]["sample_wait_seconds"], 0)
        self.assertIn(f"step 12: sample: 5,17,3 -> {last}\n", self.daemon.ctl("watch", job).stdout)
        page = os.path.join(self.root, "report.html")
        self.assertEqual(self.daemon.ctl("report", job, "-o", page).returncode, 0)
        with open(page, encoding="utf-8") as file:
            self.assertIn(f"step 12: sample: 5,17,3 -&gt; {last}\n", file.read())
        (board,) = glob.glob(os.path.join(self.daemon.root, "state/jobs", job, "tensorboard/*"))
        with open(board, "rb") as file:
            self.assertIn(f"5,17,3 -> {last}".encode(), file.read())

    def test_reserved_samples(self):
        """The plan has the memory, whatever else is in it, or says why it cannot."""
        plans = [self.daemon.json("plan", os.path.join(self.root, "job.yaml"), *settings) for settings in (
            [], ["--set", "sample.reserve.context=16"],
            ["--set", "sample.reserve.context=16", "--set", "sample.reserve.sequences=8"])]
        bytes_of = [{row["name"]: int(row["bytes"]) for row in plan["outside"]} for plan in plans]
        self.assertNotIn("samples", bytes_of[0])
        self.assertGreater(bytes_of[2].pop("samples"), bytes_of[1].pop("samples"))
        self.assertGreater(bytes_of[1].pop("weights of samples"), 0)
        self.assertIn("samples gather all units once for a call, and hold them", plans[1]["notes"])
        self.assertEqual(bytes_of[0], bytes_of[1])
        self.assertEqual(*(plan["peak_bytes"] for plan in plans[:2]))
        result = self.daemon.ctl("plan", os.path.join(self.root, "job.yaml"), "--set", "sample.reserve.context=17")
        self.assertIn("sample.reserve.context: expected at most the model's 16 tokens, found 17",
                      " ".join(result.stderr.split()))

    def test_samples_as_they_are_drawn(self):
        """Tokens arrive before the last one is drawn. A client that leaves ends the call, and so does a rank that is lost."""
        job = self.start("train.max_steps=1000000", "model.file=long-model.yaml", "retry.machine_failures=0", "name=streams")
        endless = ("sample", job, "--tokens", "5,17,3", "--max-tokens", "1000000", "--temperature", "1")
        for leave in (signal.SIGINT, signal.SIGKILL):
            with self.daemon.spawn(*endless) as left:
                self.assertRegex(left.stdout.read(1), "[0-9]")
                self.assertIsNone(left.poll())
                left.send_signal(leave)
            self.daemon.wait_step(job, int(self.daemon.show(job)["step"]) + 2)
        result = self.daemon.ctl("--timeout", "1", *endless, "-o", "json")
        self.assertIn("no message from fsdpd for 1 s", result.stderr)
        self.daemon.wait_for(lambda: self.daemon.ctl("sample", job, "--tokens", "3").returncode == 0, 20, "an answer")
        with self.daemon.spawn(*endless) as lost:
            self.assertRegex(lost.stdout.read(1), "[0-9]")
            os.kill(next(int(row["pid"]) for row in self.daemon.worker_list() if row["job"] == job), signal.SIGKILL)
            error = " ".join(lost.communicate(timeout=60)[1].split())
            # Whether fsdpd learns first that the link is gone, or that its process is.
            self.assertRegex(error, f"(the link to rank [01] of job {job} broke|the attempt of job {job} ended .*) before it was "
                                    "evaluated")
            self.assertGreater(lost.returncode, 0)
        self.daemon.wait_state(job, "FAILED")

    def test_loss_that_is_none(self):
        """The answer names it; the job's own evaluation comes at its end only."""
        job = self.start("train.max_steps=1000000", "name=none", "optimizer.lr=1e6", "optimizer.weight_decay=1e6",
                         "train.non_finite=skip", "train.evaluate_interval=1000000", "data.validation=[]")
        self.daemon.wait_step(job, 20)
        code, text, error = self.evaluate(job)
        self.assertEqual(code, 0, error)
        self.assertRegex(text, r"after step [0-9]+: the loss is NaN \(not a number\) \([0-9]+ targets in ")
        self.assertIsNone(self.daemon.json("eval", job, "--data", "code.bin")["loss"])
        self.daemon.ctl("cancel", job)

    def test_evaluations_that_fail(self):
        job = self.start("train.max_steps=1000000", "retry.machine_failures=0", "name=failing")
        for arguments, message in (
            (["--set", "none"], "data.validation has no set 'none'"),
            (["--data", "none.bin"], "none.bin"),
            (["--batches", "3"], "batches: expected a path or a set"),
        ):
            with self.subTest(message):
                code, _, error = self.evaluate(job, *arguments)
                self.assertNotEqual(code, 0)
                self.assertIn(message, error)
        code, text, error = self.evaluate(job, "--data", "code.bin", "--batches", "0")
        self.assertEqual(code, 0, error)
        self.assertRegex(text, r"after step [0-9]+: loss [0-9.]+, perplexity [0-9.]+ \([0-9]+ targets in ")
        with self.daemon.spawn("eval", job, "--data", "long.bin", "--batches", "0") as left:
            self.daemon.wait_for(lambda: "being evaluated already" in self.evaluate(job, "--batches", "3")[2], 20, "it")
            left.kill()
        step = int(self.daemon.show(job)["step"])
        self.daemon.wait_step(job, step + 2)
        with self.daemon.spawn("eval", job, "--data", "long.bin", "--batches", "0") as lost:
            self.daemon.wait_for(lambda: "being evaluated already" in self.evaluate(job, "--batches", "3")[2], 20, "it")
            os.kill(next(int(row["pid"]) for row in self.daemon.worker_list() if row["job"] == job), signal.SIGKILL)
            error = lost.communicate(timeout=60)[1]
            self.assertIn("before it was evaluated", " ".join(error.split()))
            self.assertGreater(lost.returncode, 0)
        self.daemon.wait_state(job, "FAILED")

    def checkpoints(self, job):
        """Their steps, and the value of the best one by its step."""
        listed = self.daemon.json("checkpoints", job)
        return [int(one["step"]) for one in listed], {int(one["step"]): one["best"] for one in listed if "best" in one}

    def test_best_checkpoint(self):
        """It stays beside the newest: of a loss that falls, the first one is the largest. A checkpoint that was due by its step
        anyway, or was ordered, knows that it is the best one."""
        job = self.submit("optimizer.lr=0.02", "train.max_steps=20", "train.early_stop.patience=30", "save_model=false",
                          "data.validation=[{name: code, path: code.bin, every_steps: 4, batches: 2}]",
                          "checkpoint={every_steps: 2, keep: 2, best: {metric: code/val_loss, mode: max}}")
        code = dict(self.rows(job, "code"))
        self.assertEqual(self.checkpoints(job), ([4, 18, 20], {4: code[4]}))
        self.assertRegex(self.daemon.ctl("checkpoints", job).stdout, rf"(?m)^ +4 .* 2 +{code[4]:.6g} +/")
        weights = self.pulled(job, "--checkpoint", "best")
        self.assertEqual(weights, self.pulled(job, "--checkpoint", "4"))
        self.assertNotEqual(weights, self.pulled(job, "--checkpoint", "latest"))
        seen = json.loads(self.daemon.ctl("eval", job, "--checkpoint", "best", "--set", "code", "-o", "json", timeout=120).stdout)
        self.assertEqual((int(seen["step"]), seen["loss"]), (4, code[4]))
        result = self.daemon.ctl("resume", job, "--set", "train.max_steps=24", "--set", "checkpoint.best.mode=min")
        self.assertIn("checkpoint.best.mode: cannot change", " ".join(result.stderr.split()))
        self.assertEqual(self.daemon.ctl("resume", job, "--set", "train.max_steps=24").returncode, 0)
        self.daemon.wait_state(job, "SUCCEEDED", seconds=60)
        self.assertEqual(self.checkpoints(job), ([4, 22, 24], {4: code[4]}))
        alone = self.submit("optimizer.lr=0.02", "train.max_steps=12", "train.early_stop.patience=30",
                            "checkpoint={keep: 1, best: {metric: loss}}")
        self.assertEqual(self.checkpoints(alone), ([12], {12: dict(self.rows(alone, ""))[12]}))
        pictures = self.submit("optimizer.lr=0", "train.epochs=3", "train.early_stop.patience=30",
                               "checkpoint={every_steps: 3, keep: 1, best: {metric: accuracy}}", file="pictures.yaml")
        steps, best = self.checkpoints(pictures)
        self.assertEqual((steps, list(best)), ([3, 9], [3]))
        none = self.daemon.ctl("pull", self.submit("checkpoint.every_steps=5"), "--checkpoint", "best", "-o", "none")
        self.assertEqual(none.returncode, 6)
        self.assertIn("has no best checkpoint: expected checkpoint.best among its settings", " ".join(none.stderr.split()))

    def test_refusals(self):
        for settings, message in (
            (["train.evaluate=false"], "train.early_stop: expected train.evaluate: true, as it compares evaluations"),
            (["train.evaluate_interval=0"], "train.early_stop: expected a train.evaluate_interval above 0"),
            (["train.early_stop.patience=0"], "train.early_stop.patience: expected an integer from 1 to 1000000, found 0"),
            (["train.ema.decay=1"], "train.ema.decay: expected a number from 0 to 0.9999999, found 1"),
            (["train.ema.evaluate=true"], "train.ema.evaluate: belongs to train.ema.decay"),
            (["train.early_stop.metric=f1"], "train.early_stop.metric: expected loss or accuracy, or NAME/val_loss or "
                                               "NAME/accuracy, found 'f1'"),
            (["train.early_stop.min_delta=-1"], "train.early_stop.min_delta: expected a number from 0 to 1000000"),
            (["checkpoint.best.metric=accuracy"], "checkpoint.best.metric: accuracy belongs to models of classes"),
            (["train.early_stop.metric=accuracy"], "train.early_stop.metric: accuracy belongs to models of classes"),
        ):
            with self.subTest(message):
                words = [word for one in settings for word in ("--set", one)]
                result = self.daemon.ctl("plan", os.path.join(self.root, "job.yaml"), *words)
                self.assertGreater(result.returncode, 0)
                self.assertIn(message, " ".join(result.stderr.split()))


if __name__ == "__main__":
    unittest.main(verbosity=2)
