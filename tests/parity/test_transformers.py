#!/usr/bin/env python3
"""Tiny GPT-2, Llama (grouped queries, llama3 positions) and BERT, from one file of weights, against
the same models in plain PyTorch: logits and all gradients, with both libraries of kernels; and the
losses of 50 steps of AdamW on one to eight ranks under every strategy, with every division of a
step's windows: a step's loss is the mean over its targets that count, as of one batch. The model
files are those of examples/, with odd sizes."""

import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(__file__))

try:
    import numpy
    import torch
    from torch.nn import functional as F
    import transformer_reference as reference
except ImportError as missing:
    print("SKIP: python3-torch is not installed:", missing)
    sys.exit(77)

SOURCE, BUILD = os.environ.get("srcdir", "."), os.environ.get("builddir", ".")
VOCABULARY, CONTEXT, BATCH, STEPS, IGNORED = 61, 23, 8, 50, -100
BOUND, LOSS_BOUND = 1e-5, 1e-4 # of the largest element, and of the loss
WAYS_BOUND = 1e-6 # of the loss, between two divisions of a step


def llama(*sizes):
    frequencies = reference.llama3_frequencies(16, 500000.0, 8.0, 1.0, 4.0, 64)
    return reference.LlamaForCausalLM(*sizes, frequencies)


# name: the model; lines of the example, and their replacements in the test's model file
MODELS = {
    "gpt2": (
        lambda: reference.GPT2LMHeadModel(VOCABULARY, CONTEXT, 24, 2, 3),
        {"vocabulary: 256": "vocabulary: 61", "context: 64": "context: 23",
         "GPT2Model(256, 64, 128, 4, 4)": "GPT2Model(61, 23, 24, 2, 3)",
         "lm_head: Linear(128, 256,": "lm_head: Linear(24, 61,"}),
    "llama": (
        lambda: llama(VOCABULARY, 20, 37, 2, 4, 2, 16),
        {"vocabulary: 256": "vocabulary: 61", "context: 128": "context: 23",
         "LlamaModel(256, 128, 352, 4, 8, 2, 16)": "LlamaModel(61, 20, 37, 2, 4, 2, 16)",
         "lm_head: Linear(128, 256,": "lm_head: Linear(20, 61,"}),
    "bert": (
        lambda: reference.BertForMaskedLM(VOCABULARY, CONTEXT, 24, 39, 2, 3),
        {"vocabulary: 260": "vocabulary: 61", "context: 128": "context: 23",
         "BertModel(260, 128, 128, 512, 4, 4)": "BertModel(61, 23, 24, 39, 2, 3)",
         "BertOnlyMLMHead(260, 128)": "BertOnlyMLMHead(61, 24)"}),
}


def write_model_file(name, path):
    with open(os.path.join(SOURCE, "examples", name, "model.yaml"), encoding="utf-8") as file:
        text = file.read()
    for old, new in MODELS[name][1].items():
        assert old in text, old
        text = text.replace(old, new)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def make_model(name):
    """With values that make every part matter."""
    torch.manual_seed(5)
    model = MODELS[name][0]()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            norm = any(part in path for part in ("ln_", "norm", "LayerNorm"))
            if norm and path.endswith("weight"):
                parameter.copy_(1 + 0.2 * torch.randn_like(parameter))
            else:
                parameter.copy_(0.25 * torch.randn_like(parameter))
    return model


def write_safetensors(model, path):
    header, data, offset = {"__metadata__": {"format": "pt"}}, [], 0
    for name, parameter in model.named_parameters():
        values = parameter.detach().numpy().astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(parameter.shape),
                        "data_offsets": [offset, offset + len(values)]}
        data.append(values)
        offset += len(values)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(data))


def make_batch(name, seed, time=CONTEXT):
    """Tokens and targets. BERT's windows end in padding, and as with masking only some of the
    places count: a different number in each window, in one none at all."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCABULARY, (BATCH, time), generator=generator)
    targets = torch.randint(0, VOCABULARY, (BATCH, time), generator=generator)
    if name == "bert":
        for row in range(BATCH):
            tokens[row, time - row:] = 0
        counted = torch.rand(BATCH, time, generator=generator) < 0.15
        counted[seed % BATCH] = False
        targets = torch.where(counted, targets, IGNORED)
    return tokens, targets


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


def run(program, *arguments):
    command = [os.path.join(BUILD, "tests/parity", program), *map(str, arguments)]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout


def largest(values):
    return float(values.abs().max())


class Transformers(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name

    def path(self, name):
        return os.path.join(self.directory, name)

    def prepare(self, name):
        model = make_model(name)
        write_model_file(name, self.path("model.yaml"))
        write_safetensors(model, self.path("model.safetensors"))
        return model

    def compare(self, what, found, expected, scale):
        difference = largest(found - expected)
        self.worst = max(self.worst, difference / scale)
        self.assertLessEqual(difference, BOUND * scale, what)

    def check_once(self, name, library, time):
        model = self.prepare(name).double()  # keeps f32 rounding out of the comparison
        tokens, targets = make_batch(name, 1, time)
        logits = model(tokens)
        # The op's mean is over all places; the end of a step makes it the mean over those that
        # count.
        loss = loss_of(logits, targets) * int((targets >= 0).sum()) / targets.numel()
        loss.backward()
        batch = torch.stack([tokens, targets]).numpy().astype("<i4")
        batch.tofile(self.path("batch"))
        output = run("dump_transformer", self.path("model.yaml"), self.path("model.safetensors"),
                     self.path("batch"), BATCH, time, library)
        found = torch.from_numpy(numpy.frombuffer(output, dtype="<f4").astype("f8"))
        self.worst = 0.0
        self.compare("logits", found[:logits.numel()].view_as(logits), logits, largest(logits))
        at = logits.numel()
        self.compare("loss", found[at], loss, float(loss))
        at += 1
        gradients = dict(model.named_parameters())
        for path, parameter in gradients.items():
            gradient = found[at:at + parameter.numel()].view_as(parameter)
            # Softmax ignores a key's bias: its gradient is 0 except for the rounding of the sums
            # that form the weight's gradient, too.
            measure = path.replace("key.bias", "key.weight")
            self.compare(f"d({path})", gradient, parameter.grad, largest(gradients[measure].grad))
            at += parameter.numel()
        self.assertEqual(at, found.numel())
        print(f"{name}, {time} of {CONTEXT} positions, {library} kernels: "
              f"within {self.worst:.1e}")

    def check_training(self, name):
        model = self.prepare(name)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
        expected, windows = [], []
        for step in range(STEPS):
            tokens, targets = make_batch(name, 100 + step % 4)
            windows += [tokens, targets]
            optimizer.zero_grad()
            loss = loss_of(model(tokens), targets)
            loss.backward()
            optimizer.step()
            expected.append(float(loss))
        self.assertLess(expected[-1], expected[0] - 0.5)
        torch.stack(windows).numpy().astype("<i4").tofile(self.path("windows"))
        output = run("train_transformer", self.path("model.yaml"), self.path("model.safetensors"),
                     self.path("windows"), BATCH, STEPS).decode()
        lines, worst, apart = output.splitlines(), 0.0, 0.0
        # 3 strategies, hybrid_shard of one and two, 1 to 3 ranks; 8 divisions in 3 ways
        self.assertEqual(len(lines), 26 + 24)
        curves = {}
        for line in lines:
            way, losses = line.split(":")
            curves[way] = [float(loss) for loss in losses.split()]
            self.assertEqual(len(curves[way]), STEPS, way)
        whole = curves["full_shard one 1 1"]
        for way, found in curves.items():
            for step, (ours, theirs) in enumerate(zip(found, expected)):
                worst = max(worst, abs(ours - theirs) / theirs)
                self.assertLessEqual(abs(ours - theirs), LOSS_BOUND * theirs,
                                     f"{name}, {way}, step {step}: {ours}, not {theirs}")
                apart = max(apart, abs(ours - whole[step]) / whole[step])
                self.assertLessEqual(abs(ours - whole[step]), WAYS_BOUND * whole[step],
                                     f"{name}, {way}, step {step}: {ours}, not {whole[step]}")
        print(f"{name}: {STEPS} losses from {expected[0]:.3f} to {expected[-1]:.3f}, "
              f"{len(lines)} ways within {worst:.1e}, and {apart:.1e} of each other")


def add_tests():
    for name in MODELS:
        for library in ("reference", "cpu"):
            for time in (CONTEXT, CONTEXT - 6):
                setattr(Transformers, f"test_{name}_{library}_{time}",
                        lambda self, case=(name, library, time): self.check_once(*case))
        setattr(Transformers, f"test_{name}_training",
                lambda self, case=name: self.check_training(case))


add_tests()
if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main(verbosity=2)
