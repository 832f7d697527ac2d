#!/usr/bin/env python3
"""The head `embeddings` of encoders against transformers' models without a head: AdamW on pairs with
the pooled texts' cosines, from the checkpoint of a masked language model and from its own; what a
job pulls loads into AutoModel with strict names and has the same values. Like test_families.py, it
needs a transformers with its torch."""

import hashlib
import os
import shutil
import tempfile
import unittest

import test_families as families
from family_cases import CONTEXT, EMBEDDINGS, PADDING, VOCABULARY
from test_families import CURVE_BOUND, harness
from test_pairs import write_dataset

import torch
import transformers
from torch.nn import functional as F

STEPS, BATCH, LEARNING_RATE, WEIGHT_DECAY = 8, 6, 1e-3, 0.01
JOB = f"""
name: embed
data: {{format: dataset, path: "", windows: document, context: {CONTEXT}}}
train: {{max_steps: {STEPS}, shuffle: false, evaluate: false, log_interval: 1}}
optimizer: {{type: adamw, lr: {LEARNING_RATE}, weight_decay: {WEIGHT_DECAY}}}
"""
for name, (bare, masked, settings) in EMBEDDINGS.items():
    families.FAMILIES[f"{name}/bare"] = (bare, settings)
    families.FAMILIES[f"{name}/masked"] = (masked, settings)


def draw(padding, generator):
    rows = torch.randint(PADDING + 1, VOCABULARY, (STEPS * BATCH, 2, CONTEXT), generator=generator)
    lengths = torch.randint(CONTEXT - 3, CONTEXT + 1, rows.shape[:2], generator=generator)
    rows[:, 1] = torch.where(torch.rand(rows[:, 1].shape, generator=generator) < 0.5, rows[:, 0], rows[:, 1])
    rows[torch.arange(CONTEXT) >= lengths[..., None]] = padding
    return rows


def embed(model, tokens, pooling, padding):
    mask = (tokens != padding).long()
    states = model(input_ids=tokens, attention_mask=mask).last_hidden_state
    if pooling == "cls":
        return states[:, 0]
    return (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


class Embeddings(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp(prefix="fsdpd-test-")
        cls.addClassCleanup(shutil.rmtree, cls.root, True)
        cls.data = os.path.join(cls.root, "data")
        os.mkdir(cls.data)
        with open(os.path.join(cls.root, "job.yaml"), "w", encoding="utf-8") as file:
            file.write(JOB)
        cls.daemon = harness.Daemon(3, data=cls.data)
        cls.addClassCleanup(cls.daemon.close)

    def submit(self, model, dataset, workers, *settings):
        sets = [f"model.hf={model}", f"data.path={dataset}", f"workers={workers}",
                f"train.batch_size={BATCH // workers}", *settings]
        return self.daemon.ctl("submit", os.path.join(self.root, "job.yaml"), "--wait",
                               *[word for value in sets for word in ("--set", value)], timeout=300)

    def run_job(self, *arguments):
        result = self.submit(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return self.daemon.json("list")[-1]["id"]

    def expected(self, model, tokens, pooling, padding):
        optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY)
        losses = []
        for rows in tokens.split(BATCH):
            optimizer.zero_grad()
            texts = F.normalize(embed(model, rows.flatten(0, 1), pooling, padding), dim=-1).unflatten(0, (-1, 2))
            loss = F.cross_entropy(20 * texts[:, 0] @ texts[:, 1].T, torch.arange(len(rows)))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    def pull(self, job, name):
        out = os.path.join(self.root, name)
        shutil.rmtree(out, True)
        result = self.daemon.ctl("pull", job, "--format", "hf", "-o", out)
        self.assertEqual(result.returncode, 0, result.stderr)
        model, info = transformers.AutoModel.from_pretrained(out, output_loading_info=True)
        for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            self.assertFalse(info[what], what)
        return model, out

    def check(self, name):
        settings = EMBEDDINGS[name][2]
        padding = settings.get("pad_token_id", PADDING)
        generator = torch.Generator().manual_seed(3)
        tokens = draw(padding, generator)
        self.write(name, tokens, padding)
        masked, bare = families.make_model(f"{name}/masked"), families.make_model(f"{name}/bare")
        # the body of the masked language model; a head that it lacks is not used
        bare.load_state_dict(getattr(masked, masked.base_model_prefix).state_dict(), strict=False)
        bare.eval()
        for kind, model in (("masked", masked), ("bare", bare)):
            model.save_pretrained(os.path.join(self.data, f"{name}-{kind}"))
        still = ["optimizer.lr=0", "optimizer.weight_decay=0", "train.max_steps=1"]
        again, out = self.pull(self.run_job(f"{name}-bare", f"{name}-data", 2, *still), "same")
        for path, values in bare.state_dict().items():
            self.assertTrue(torch.equal(values, again.state_dict()[path]), path)
        if settings.get("pooling"):
            self.assertEqual(again.config.pooling, settings["pooling"])
        self.second(name, out, still)
        expected = self.expected(bare, tokens, settings.get("pooling"), padding)
        self.assertGreater(max(expected) - min(expected), 100 * CURVE_BOUND)
        for kind, workers, more in (("bare", 1, []), ("bare", 2, []), ("masked", 3, ["model.head=embeddings"])):
            found = self.daemon.losses(self.run_job(f"{name}-{kind}", f"{name}-data", workers, *more))
            worst = max(abs(loss - e) / e for (_, loss), e in zip(found, expected, strict=True))
            self.assertLessEqual(worst, CURVE_BOUND)
            print(f"{name}, {kind}, {workers} workers: losses within {worst:.1e}")

    def second(self, name, out, still):
        """What was pulled, through another job, is the same bytes."""
        moved = os.path.join(self.data, f"{name}-moved")
        shutil.copytree(out, moved)
        _, out = self.pull(self.run_job(f"{name}-moved", f"{name}-data", 1, *still), "second")
        digests = set()
        for directory in (moved, out):
            with open(os.path.join(directory, "model.safetensors"), "rb") as file:
                digests.add(hashlib.sha256(file.read()).hexdigest())
        self.assertEqual(len(digests), 1)

    def write(self, name, tokens, padding):
        write_dataset(os.path.join(self.data, f"{name}-data"), 2, {"train": tokens}, padding, VOCABULARY)

    def test_a_head_that_there_is_not(self):
        families.make_model("bert/bare").save_pretrained(os.path.join(self.data, "other"))
        self.write("any", draw(PADDING, torch.Generator()), PADDING)
        self.assertIn("model.head: the family bert has no head 'rerank'; it has embeddings",
                      self.submit("other", "any-data", 1, "model.head=rerank").stderr)


for one in EMBEDDINGS:
    setattr(Embeddings, f"test_{one.replace('-', '_')}", lambda self, one=one: self.check(one))

if __name__ == "__main__":
    unittest.main()
