#!/usr/bin/env python3
"""Tokens end to end: the Shakespeare example learns (unless FSDPD_QUICK is set; a drawn text, if its
own is missing), the same run gives the same bits, one worker gives the same losses as two,
and an error in the data is refused with its place."""

import json
import math
import os
import random
import re
import shutil
import string
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness
import printed

JOB = os.path.join(harness.SOURCE, "examples/shakespeare/job.yaml")
SHORT = ("train.max_steps=60", "schedule.warmup_steps=10", "train.evaluate_interval=25",
         "train.evaluate_batches=10", "train.log_interval=5")
# Enough to compare two runs with each other.
BRIEF = ("train.max_steps=20", "schedule.warmup_steps=5", "train.evaluate_batches=10", "train.log_interval=5")


def write_text(path):
    """Writes tiny Shakespeare, or, if it is missing, a text that every source tree has."""
    shakespeare = harness.find_shakespeare()
    if shakespeare:
        shutil.copy(shakespeare, path)
        return True
    documents = os.path.join(harness.SOURCE, "docs")
    with open(path, "w") as out:
        for name in sorted(os.listdir(documents)):
            if name.endswith(".md"):
                with open(os.path.join(documents, name)) as file:
                    out.write(file.read())
    return False


WORDS = 32  # of four different letters each, and a space
ENTROPY = math.log(WORDS) / 5  # per byte
# At a window's start the place in a word is unknown: this place and a word more, in 64 bytes.
PHASE = (math.log(WORDS) + math.log(5)) / 64


def draw_words(path):
    """Writes as many bytes as tiny Shakespeare has, of words that do not depend on each other."""
    choice = random.Random(1)
    words = ["".join(choice.sample(string.ascii_lowercase, 4)) for _ in range(WORDS)]
    with open(path, "w") as file:
        file.write("".join(choice.choice(words) + " " for _ in range(1115394 // 5)))


class Shakespeare(unittest.TestCase):
    brief = None

    @classmethod
    def setUpClass(cls):
        cls.data = tempfile.mkdtemp(prefix="fsdpd-test-")
        cls.text = os.path.join(cls.data, "text.txt")
        cls.real = write_text(cls.text)
        cls.daemon = harness.Daemon(data=cls.data)

    @classmethod
    def tearDownClass(cls):
        cls.daemon.close()
        shutil.rmtree(cls.data)

    def ctl(self, verb, *settings, arguments=(), timeout=600):
        sets = [word for setting in settings for word in ("--set", setting)]
        return self.daemon.ctl(verb, JOB, *sets, *arguments, timeout=timeout)

    def train(self, *settings, timeout=600):
        """Trains: the output, and the job at its end."""
        result = self.ctl("submit", f"data.path={self.text}", *settings, arguments=["--wait"],
                          timeout=timeout)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout + result.stderr, self.daemon.show(self.daemon.json("list")[-1]["id"])

    def brief_run(self):
        """The job of the run that the tests compare others with; made once."""
        if self.__class__.brief is None:
            self.__class__.brief = self.train(*BRIEF)[1]
        return self.__class__.brief

    def pull(self, job):
        path = os.path.join(self.data, job["id"] + ".safetensors")
        pulled = self.daemon.ctl("pull", job["id"], "-o", path)
        self.assertEqual(pulled.returncode, 0, pulled.stderr)
        return harness.read_safetensors(path)[0]

    def write(self, name, *parts):
        path = os.path.join(self.data, name)
        with open(path, "wb") as file:
            for part in parts:
                file.write(part)
        return path

    def test_short_run(self):
        text, job = self.train(*SHORT)
        self.assertIn("each of the 4 blocks of the type Block is a unit", text)
        self.assertEqual([unit["name"] for unit in job["units"]],
                         [f"transformer.h.{i}" for i in range(4)] + ["(root)"])
        metrics = job["metrics"]
        self.assertEqual((job["steps"], metrics["val_step"]), (60, 60))
        watched = self.daemon.ctl("watch", job["id"], "-o", "json")
        events = [json.loads(line) for line in watched.stdout.splitlines()]
        losses = [event["metrics"]["loss"] for event in events if "metrics" in event]
        validations = [event["validation"] for event in events if "validation" in event]
        self.assertEqual([validation["step"] for validation in validations], [25, 50, 60])
        self.assertEqual(validations[-1]["loss"], metrics["val_loss"])
        self.assertEqual({validation["tokens"] for validation in validations}, {10 * 12 * 64})
        print(f"loss {losses[0]:.3f} to {losses[-1]:.3f}, validation {metrics['val_loss']:.3f}")
        self.assertTrue(4.5 < losses[0] < 6)
        self.assertLess(losses[-1], losses[0] - 1.5)
        self.assertLess(metrics["val_loss"], losses[0] - 1.5)
        for key in ("tokens_per_second", "flops_per_second", "mfu"):
            self.assertGreater(metrics[key], 0, key)
        self.assertLess(metrics["mfu"], 1)
        self.assertAlmostEqual(metrics["tokens_per_second"] / metrics["samples_per_second"], 64, 6)
        shown = self.daemon.ctl("show", job["id"]).stdout
        self.assertRegex(shown, r"validation  loss \d\.\d{4}, perplexity \d+\.\d\d after step 60\n")
        self.assertRegex(shown, r"speed       [\d,]+ tokens/s")
        self.assertRegex(shown, r"GFLOP/s, MFU [\d.]+%")

    def test_same_bits(self):
        one = self.brief_run()
        _, other = self.train(*BRIEF)
        self.assertEqual(one["metrics"]["val_loss"], other["metrics"]["val_loss"])
        self.assertEqual(self.pull(one), self.pull(other))
        _, seeded = self.train(*BRIEF, "train.seed=7")
        self.assertNotEqual(one["metrics"]["val_loss"], seeded["metrics"]["val_loss"])

    def test_worlds(self):
        """The same 12 windows a step on one worker, on two, and in micro-steps."""
        two = self.brief_run()
        _, one = self.train(*BRIEF, "workers=1", "train.batch_size=12")
        _, parts = self.train(*BRIEF, "train.batch_size=2", "train.batch_tokens=768")
        for other in (one, parts):
            self.assertEqual(two["steps"], other["steps"])
            self.assertLess(abs(other["metrics"]["val_loss"] / two["metrics"]["val_loss"] - 1), 1e-3)

    def test_token_files(self):
        """The text in nanoGPT's and in llm.c's format trains to the same bits as the plain text."""
        text = self.brief_run()
        with open(self.text, "rb") as file:
            tokens = file.read()
        wide = struct.pack(f"<{len(tokens)}H", *tokens)
        header = struct.pack("<iii", 20240520, 1, len(tokens)) + bytes(4 * 253)
        for path in (self.write("raw.bin", wide), self.write("llmc.bin", header, wide)):
            _, job = self.train(*BRIEF, "data.format=tokens", f"data.path={path}")
            self.assertEqual(job["metrics"]["val_loss"], text["metrics"]["val_loss"])
        part = len(tokens) * 9 // 10
        train = self.write("train.txt", tokens[:part])
        val = self.write("val.txt", tokens[part:])
        _, job = self.train(*BRIEF, f"data.path={train}", f"data.validation_path={val}")
        self.assertEqual(job["metrics"]["val_loss"], text["metrics"]["val_loss"])

    def test_masked(self):
        """A step's loss is the mean over the masked tokens of all its windows, however these are
        divided into workers and batches. The text has no byte 255."""
        curves = []
        for cut in (["workers=1", "train.batch_size=12"],
                    ["workers=2", "train.batch_size=6"],
                    ["workers=1", "train.batch_size=4", "train.accumulation_steps=3"],
                    ["workers=2", "train.batch_size=1", "train.accumulation_steps=6",
                     "train.no_sync=true"],
                    ["workers=2", "train.batch_size=3", "train.accumulation_steps=2",
                     "fsdp.cpu_offload=true"]):
            _, job = self.train(*BRIEF, "data.objective=masked", "data.mask_token=255",
                                "train.epochs=0", "train.log_interval=1",
                                "optimizer.eps=1e-3", "optimizer.lr=1e-4", *cut)
            self.assertTrue(0 < job["metrics"]["val_loss"] < 5)
            curves.append([loss for _, loss in self.daemon.losses(job["id"])])
        self.assertEqual(len(curves[0]), int(job["steps"]))
        for curve in curves[1:]:
            for step, (found, expected) in enumerate(zip(curve, curves[0], strict=True)):
                self.assertLessEqual(abs(found / expected - 1), 1e-6, f"step {step}")

    def test_text_is_cut(self):
        """The file shrinks while a job reads it: the job fails with the reason, and the workers
        live on."""
        text = os.path.join(self.data, "cut.txt")
        shutil.copy(self.text, text)
        pids = {worker["pid"] for worker in self.daemon.worker_list()}
        job = self.daemon.json("submit", JOB, "--set", f"data.path={text}",
                               "--set", "train.max_steps=5000", "--set", "retry.failures=0")["id"]
        self.daemon.wait_step(job, 3)
        os.truncate(text, 4096)
        shown = self.daemon.wait_state(job, "FAILED", seconds=harness.PATIENCE)
        self.assertEqual(shown["reason"]["code"], "FAILED_PRECONDITION", shown["reason"])
        self.assertIn("cut.txt", shown["reason"]["message"])
        self.assertRegex(shown["reason"]["message"], "was cut|changed while it was read")
        self.daemon.wait_for(
            lambda: [worker["state"] for worker in self.daemon.worker_list()] == ["idle"] * 2,
            20, "two idle workers")
        self.assertEqual({worker["pid"] for worker in self.daemon.worker_list()}, pids)

    def test_pattern_of_files(self):
        """The text in three files trains like the text in one."""
        parts = os.path.join(self.data, "parts")
        os.makedirs(parts, exist_ok=True)
        with open(self.text, "rb") as file:
            text = file.read()
        for part in range(3):
            with open(os.path.join(parts, f"{part}.txt"), "wb") as file:
                file.write(text[len(text) * part // 3:len(text) * (part + 1) // 3])
        whole = self.brief_run()
        _, split = self.train(*BRIEF, "data.path=parts/*.txt")
        self.assertEqual(split["state"], "SUCCEEDED")
        last = [job["metrics"]["loss"] for job in (whole, split)]
        self.assertLess(abs(last[0] - last[1]), 0.3)
        self.refused(harness.NOT_FOUND, ["parts has no file that matches *.md"], "data.path=parts/*.md")

    def refused(self, code, words, *settings, verb="submit", arguments=()):
        result = self.ctl(verb, *settings, arguments=arguments)
        self.assertEqual(result.returncode, code, result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)

    def test_refusals(self):
        data = f"data.path={self.text}"
        self.refused(harness.USAGE, ["data.formt", "data.format"], "data.formt=text")
        self.refused(harness.USAGE, ["expected idx, images, tokens, text or dataset"], "data.format=parquet")
        self.refused(harness.USAGE, ["data.tokenizer: expected bytes"], "data.tokenizer=gpt2")
        self.refused(harness.USAGE, ["data.dir: belongs to data.format idx"], "data.dir=x")
        self.refused(harness.USAGE, ["train.max_steps: is missing"], "train.max_steps=0")
        self.refused(harness.NOT_FOUND, ["data.path", "nowhere"], "data.path=nowhere")
        self.refused(harness.NOT_PERMITTED, ["data.path"], "data.path=/etc/passwd")
        self.refused(harness.NOT_FOUND, ["dataset.json"], f"data={{format: dataset, path: {self.data}}}")
        self.refused(harness.NOT_FOUND, ["data.validation_path"], data, "data.validation_path=no")
        self.refused(harness.FAILED, ["data.context", "64 positions"], data, "data.context=65")
        self.refused(harness.FAILED, ["the nearest to 1000 are 768 or 1536"], data,
                     "train.batch_tokens=1000")
        empty = self.write("empty.txt", b"")
        self.refused(harness.FAILED, [empty, "is empty"], f"data.path={empty}")
        short = self.write("short.txt", b"x" * 640)
        self.refused(harness.FAILED, [short, "data for validation: 64 tokens are too few for one "
                                      "window of 64 and the token after it"], f"data.path={short}")
        odd = self.write("odd.bin", b"x" * 64001)
        self.refused(harness.FAILED, [odd, "64001 bytes are not a whole number of tokens"],
                     "data.format=tokens", f"data.path={odd}")
        lies = self.write("lies.bin", struct.pack("<iii", 20240520, 1, 1 << 30), bytes(1 << 16))
        self.refused(harness.FAILED, [lies, "cut short", "1073741824 tokens"],
                     "data.format=tokens", f"data.path={lies}")

    def test_token_beyond_the_vocabulary(self):
        bad = self.write("bad.bin", struct.pack("<H", 5) * 40000, struct.pack("<H", 256),
                         struct.pack("<H", 5) * 40000)
        result = self.ctl("submit", "data.format=tokens", f"data.path={bad}", *SHORT,
                          arguments=["--wait"])
        self.expect_bad_token(bad, 40000, result)
        # A file too large to be checked before training: the second worker's loader finds the
        # token.
        with open(self.write("large.bin"), "r+b") as file:
            file.truncate((1 << 29) + 4096)
            file.seek(2 * (64 * 92 + 7))
            file.write(struct.pack("<H", 256))
        result = self.ctl("submit", "data.format=tokens", f"data.path={file.name}", *SHORT,
                          "train.shuffle=false", "train.evaluate=false", arguments=["--wait"])
        self.expect_bad_token(file.name, 64 * 92 + 7, result)

    def expect_bad_token(self, path, place, result):
        self.assertEqual(result.returncode, harness.JOB_FAILED, result.stderr)
        self.assertIn(f"{path}: token {place} (byte {2 * place}) is 256, but the model's vocabulary has the "
                      "ids 0 to 255", result.stderr)

    def test_example(self):
        """The claims of examples/shakespeare/README.md, by the command of docs/getting-started.md."""
        if os.environ.get("FSDPD_QUICK"):
            self.skipTest("takes some minutes (FSDPD_QUICK)")
        text = os.path.join(self.data, "tinyshakespeare.txt")
        if self.real:
            shutil.copy(self.text, text)
        else:
            draw_words(text)
        command, = printed.block("docs/getting-started.md", "Train on text and tokens").lines
        environment = dict(os.environ, FSDPD_ADDRESS=self.daemon.address,
                           PATH=os.path.abspath(harness.BUILD) + ":" + os.environ["PATH"])
        result = subprocess.run(["bash", "-ec", command], cwd=harness.SOURCE, env=environment, text=True, timeout=1500,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        self.assertEqual(result.returncode, 0)
        text, job = result.stdout, self.daemon.show(self.daemon.json("list")[-1]["id"])
        losses = [float(loss) for loss in re.findall(r"validation loss (\d\.\d+)", text)]
        print("validation losses:", *losses, f"after {job['metrics']['train_seconds']:.0f} s")
        self.assertEqual(len(losses), 8)
        if self.real:
            self.assertLessEqual(job["metrics"]["val_loss"], 1.90)
        else:
            self.assertTrue(ENTROPY <= job["metrics"]["val_loss"] <= ENTROPY + PHASE)


class Waiting(unittest.TestCase):
    def test_a_slow_disk_shows(self):
        """Time that steps wait for data is in the metrics, and fsdpctl show says so."""
        with tempfile.TemporaryDirectory(prefix="fsdpd-test-") as root:
            text = os.path.join(root, "text.txt")
            write_text(text)
            faults = harness.Faults(root)
            with harness.Daemon(data=root, environment=faults.environment) as daemon:
                sets = [word for setting in (f"data.path={text}", "train.max_steps=10", "train.log_interval=5",
                                             "schedule.warmup_steps=2", "train.evaluate=false")
                        for word in ("--set", setting)]
                shares = []
                for rules in ([], ["read *text.txt 150"]):  # a batch takes 12 reads, and two threads make them
                    faults.set(*rules)
                    result = daemon.ctl("submit", JOB, *sets, "--wait", timeout=600)
                    self.assertEqual(result.returncode, 0, result.stderr + daemon.text())
                    job = daemon.show(daemon.json("list")[-1]["id"])
                    shares.append(job["metrics"]["data_wait_share"])
                print(f"waiting for data: {shares[0]:.1%} of the time, {shares[1]:.1%} with a slow disk")
                self.assertTrue(0 <= shares[0] < shares[1] - 0.2 and 0.3 < shares[1] < 1, shares)
                self.assertRegex(daemon.ctl("show", job["id"]).stdout, r"data        \d+% of the time waiting for data\n")


if __name__ == "__main__":
    harness.main()
