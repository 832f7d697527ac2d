#!/usr/bin/env python3
"""model.teacher against plain PyTorch: a GPT-2 that learns from tokens and from a frozen Llama. The losses of 24 steps on one, two
and three workers, under a second strategy and again from a checkpoint; what the plan, a pull and an evaluation have of the teacher;
and refusals."""

import json
import os
import shutil
import sys
import tempfile
import unittest

sys.path[:0] = [os.path.dirname(__file__), os.path.join(os.path.dirname(__file__), "../system")]

try:
    import numpy
    import torch
    from torch.nn import functional as F
except ImportError as missing:
    print("SKIP: python3-torch is not installed:", missing)
    sys.exit(77)

import harness
import transformer_reference as reference
from test_transformers import write_safetensors

VOCABULARY, CONTEXT, STEPS, ROWS, T, SHARE = 61, 12, 24, 6, 3.0, 0.6
BOUND = 1e-5
WRAP = ["fsdp.wrap.policy=type", "fsdp.wrap.types=[GPT2Block, LlamaDecoderLayer]"]
STUDENT = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": VOCABULARY, "n_positions": 23, "n_embd": 20,
           "n_layer": 2, "n_head": 2, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "attn_pdrop": 0.0,
           "resid_pdrop": 0.0, "embd_pdrop": 0.0}
TEACHER = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": VOCABULARY, "hidden_size": 24,
           "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
           "rope_theta": 10000.0, "max_position_embeddings": 32, "tie_word_embeddings": False, "hidden_act": "silu"}
JOB = f"""name: distilled
model: {{hf: student, teacher: {{hf: teacher, temperature: {T}, weight: {SHARE}}}}}
data: {{format: tokens, encoding: uint16, path: tokens.bin, validation_path: tokens.bin, context: {CONTEXT}}}
train: {{max_steps: {STEPS}, log_interval: 1, evaluate: false, shuffle: false, batch_size: {ROWS}}}
optimizer: {{type: adamw, lr: 0.01, weight_decay: 0.01}}
"""


def make_models():
    torch.manual_seed(3)
    frequencies = 1.0 / 10000.0 ** (torch.arange(0, 6, 2, dtype=torch.float32) / 6)
    student = reference.GPT2LMHeadModel(VOCABULARY, 23, 20, 2, 2)
    teacher = reference.LlamaForCausalLM(VOCABULARY, 24, 40, 3, 4, 2, 6, frequencies).requires_grad_(False)
    with torch.no_grad():
        for model, scale in ((student, 0.1), (teacher, 0.4)):
            for name, parameter in model.named_parameters():
                parameter.copy_((1 if "norm" in name or ".ln_" in name and "weight" in name else 0)
                                + scale * torch.randn_like(parameter))
    return student, teacher


def loss_of(student, teacher, x, y):
    own, other = student(x).flatten(0, 1), teacher(x).flatten(0, 1)
    divergence = F.kl_div(F.log_softmax(own / T, -1), F.log_softmax(other / T, -1), reduction="batchmean", log_target=True)
    return (1 - SHARE) * F.cross_entropy(own, y.flatten()) + SHARE * T * T * divergence


class Distillation(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp(prefix="fsdpd-test-")
        cls.addClassCleanup(shutil.rmtree, cls.root, True)
        cls.data = os.path.join(cls.root, "data")
        os.mkdir(cls.data)
        cls.student, cls.teacher = make_models()
        cls.write_model("student", STUDENT, cls.student)
        cls.write_model("teacher", TEACHER, cls.teacher)
        tokens = numpy.resize(numpy.random.default_rng(5).integers(0, VOCABULARY, ROWS * CONTEXT), STEPS * ROWS * CONTEXT + 1)
        tokens.astype("<u2").tofile(os.path.join(cls.data, "tokens.bin"))
        with open(os.path.join(cls.root, "job.yaml"), "w", encoding="utf-8") as file:
            file.write(JOB)
        cls.names = sorted(cls.student.state_dict())
        cls.expected = cls.train_in_torch(torch.from_numpy(tokens))
        cls.daemon = harness.Daemon(3, data=cls.data)
        cls.addClassCleanup(cls.daemon.close)

    @classmethod
    def write_model(cls, name, config, model):
        os.makedirs(os.path.join(cls.data, name), exist_ok=True)
        with open(os.path.join(cls.data, name, "config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)
        if model is not None:
            write_safetensors(model, os.path.join(cls.data, name, "model.safetensors"))

    @classmethod
    def train_in_torch(cls, tokens):
        optimizer = torch.optim.AdamW(cls.student.parameters(), lr=0.01, weight_decay=0.01)
        losses = []
        for step in range(STEPS):
            begins = [(step * ROWS + row) * CONTEXT for row in range(ROWS)]
            x = torch.stack([tokens[at:at + CONTEXT] for at in begins])
            y = torch.stack([tokens[at + 1:at + CONTEXT + 1] for at in begins])
            optimizer.zero_grad()
            loss = loss_of(cls.student, cls.teacher, x, y)
            loss.backward()
            optimizer.step()
            losses.append(float(loss))
        return losses

    def arguments(self, *words):
        return [os.path.join(self.root, "job.yaml"), *(word for one in words for word in ("--set", one))]

    def losses(self, job):
        return [float(event["metrics"]["loss"]) for event in self.daemon.events(job) if "metrics" in event]

    def train(self, *words):
        result = self.daemon.ctl("submit", *self.arguments(*words), "--wait", timeout=300)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.job = self.daemon.json("list")[-1]["id"]
        return self.losses(self.job)

    def assert_within(self, bound, found, expected, name):
        self.assertEqual(len(found), len(expected), name)
        worst = max(abs(a / b - 1) for a, b in zip(found, expected))
        print(f"{name}: within {worst:.1e}")
        self.assertLessEqual(worst, bound, name)

    def test_losses_are_those_of_torch(self):
        self.assertLess(self.expected[-1], 0.97 * self.expected[0])
        for words in ([], ["workers=2", "train.batch_size=3"], ["workers=3", "train.batch_size=2"],
                      ["workers=2", "train.batch_size=1", "train.accumulation_steps=3", "fsdp.strategy=no_shard"],
                      ["workers=3", "train.batch_size=2", "checkpoint.every_steps=20", "fsdp.keep_frozen=true", *WRAP]):
            with self.subTest(words):
                self.assert_within(BOUND, self.train(*words), self.expected, " ".join(words) or "alone")
        for words in ([], ["--checkpoint", "latest"]):  # the last one: its units name modules of the teacher
            result = self.daemon.ctl("eval", self.job, "--data", "tokens.bin", *words)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("loss", result.stdout)
        pulled = os.path.join(self.root, "pulled")
        result = self.daemon.ctl("pull", self.job, "--format", "hf", "-o", pulled)
        self.assertEqual(result.returncode, 0, result.stderr)
        tensors, _ = harness.read_safetensors(os.path.join(pulled, "model.safetensors"))
        self.assertEqual(sorted(set(tensors) | {"lm_head.weight"}), self.names)

    def test_a_resumed_job_has_the_same_curve(self):
        """All attempts have the teacher that was planned, and a job that is submitted again is the same one."""
        words = ["train.max_steps=9", "checkpoint.every_steps=5", "workers=2", "train.batch_size=3"]
        first = self.train(*words)
        shown = self.daemon.show(self.job)["spec"]["model"]["teacher"]
        self.assertEqual(json.loads(shown["hf_config"]), TEACHER)
        listed = self.daemon.json("list")[-1]["spec"]["model"]["teacher"]
        self.assertEqual([listed[key] for key in ("hf", "text", "hf_config", "hf_family")], ["teacher", "", "", ""])
        self.addCleanup(self.write_model, "teacher", TEACHER, None)
        self.write_model("teacher", {**TEACHER, "rms_norm_eps": 0.5}, None)
        result = self.daemon.ctl("submit", *self.arguments(*words), "--id", self.job)
        self.assertEqual((result.returncode, self.daemon.json("list")[-1]["id"]), (0, self.job), result.stderr)
        result = self.daemon.ctl("resume", self.job, "--set", f"train.max_steps={STEPS}")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.daemon.wait_state(self.job, "SUCCEEDED")
        self.assert_within(BOUND, self.losses(self.job), self.expected, "resumed")
        self.assertEqual(self.losses(self.job)[:9], first)

    def test_plan(self):
        plans = [json.loads(self.daemon.ctl("plan", *self.arguments("workers=2", *words), "-o", "json").stdout)
                 for words in ([], ["model.base_dtype=bf16"])]
        elements = sum(parameter.numel() for parameter in self.teacher.parameters())
        self.assertIn(f"model.teacher has {elements} elements, all frozen", " ".join(json.dumps(plans[0]).split()))
        self.assertGreater(int(plans[0]["peak_bytes"]), int(plans[1]["peak_bytes"]))
        text = self.daemon.ctl("plan", *self.arguments("workers=2", *WRAP)).stdout
        self.assertIn("teacher.model.layers.[0-2]", text)
        self.assertIn("(frozen)", text)

    def test_refusals(self):
        self.write_model("other", {**TEACHER, "vocab_size": 60}, None)
        self.write_model("empty", TEACHER, None)
        self.write_model("short", {**TEACHER, "max_position_embeddings": 8}, None)
        for words, message in (
            (["model.teacher.hf=nowhere"], "model.teacher: model.hf:"),
            (["model.teacher.hf=other"], "model.teacher: it tells 60 classes or tokens apart, the model 61"),
            (["model.teacher.hf=short"], "model.teacher: its input is not that of the model"),
            (["model.teacher.weight=1"], "model.teacher.weight: expected a number from 1e-06 to 0.999999, found 1"),
            (["model.teacher.temperature=0"], "model.teacher.temperature: expected a number from 0.001 to 1000, found 0"),
        ):
            with self.subTest(message):
                result = self.daemon.ctl("plan", *self.arguments(*words))
                self.assertGreater(result.returncode, 0)
                self.assertIn(message, " ".join(result.stderr.split()))
        result = self.daemon.ctl("submit", *self.arguments("model.teacher.hf=empty"), "--wait")
        self.assertGreater(result.returncode, 0)
        self.assertIn("model.teacher: expected a directory with the weights of all its parameters",
                      " ".join((result.stderr + result.stdout).split()))


if __name__ == "__main__":
    unittest.main(verbosity=2)
