#!/usr/bin/env python3
"""The losses of AdamW steps of every family of pictures (families/) against transformers, with a
step's images on one worker and divided among several: each normalises by its own images where there
is BatchNorm, as DistributedDataParallel's ranks do, and rank 0's running statistics are kept; with
SyncBatchNorm all losses are those of one worker. What a pull writes then, transformers reads: the
same logits. Needs what test_families.py needs."""

import copy
import os
import shutil
import sys
import tempfile
import unittest

sys.path[:0] = [os.path.dirname(__file__), os.path.join(os.path.dirname(__file__), "../system")]
import harness
import test_families as families # ends the program where transformers cannot be had
import torch
from torch.nn import functional as F

STEPS, BATCH, SIDE, LABELS = 20, 12, 14, 7
LEARNING_RATE, WEIGHT_DECAY, MEAN, STD = 1e-3, 0.01, 0.4, 0.25
LOSS_BOUND, LOGIT_BOUND = 1e-4, 1e-3 # of the loss, and of the largest logit after all steps
JOB = f"""
name: pictures
data: {{format: idx, dir: ., normalize: {{mean: {MEAN}, std: {STD}}}}}
train: {{epochs: 1, shuffle: false, evaluate: false, log_interval: 1}}
optimizer: {{type: adamw, lr: {LEARNING_RATE}, weight_decay: {WEIGHT_DECAY}}}
"""


class PictureCurves(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp(prefix="fsdpd-test-")
        cls.addClassCleanup(shutil.rmtree, cls.root, True)
        cls.data = os.path.join(cls.root, "data")
        os.mkdir(cls.data)
        generator = torch.Generator().manual_seed(3)
        images = torch.randint(0, 256, (STEPS * BATCH, SIDE, SIDE), generator=generator)
        cls.labels = torch.randint(0, LABELS, (STEPS * BATCH,), generator=generator)
        cls.images = ((images.float() / 255 - MEAN) / STD)[:, None]
        for part in ("train", "t10k"):
            families.write_idx(os.path.join(cls.data, f"{part}-images-idx3-ubyte"), images)
            families.write_idx(os.path.join(cls.data, f"{part}-labels-idx1-ubyte"), cls.labels)
        cls.job = os.path.join(cls.root, "job.yaml")
        with open(cls.job, "w", encoding="utf-8") as file:
            file.write(JOB)
        cls.daemon = harness.Daemon(3, data=cls.data)
        cls.addClassCleanup(cls.daemon.close)

    def train(self, model, workers):
        """As this number of ranks; the model is rank 0's. Returns the losses."""
        ranks = [model] + [copy.deepcopy(model) for _ in range(workers - 1)]
        optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY)
        losses = []
        for step in range(STEPS):
            total = 0
            for rank, replica in enumerate(ranks):
                mine = slice(step * BATCH + rank, (step + 1) * BATCH, workers)
                replica.train().zero_grad()
                loss = F.cross_entropy(replica(pixel_values=self.images[mine]).logits,
                                       self.labels[mine])
                loss.backward()
                total += loss.item()
            for parameters in zip(*(replica.parameters() for replica in ranks)):
                parameters[0].grad = torch.stack([one.grad for one in parameters]).mean(0)
            optimizer.step()
            with torch.no_grad():
                for replica in ranks[1:]:
                    for mine, first in zip(replica.parameters(), model.parameters()):
                        mine.copy_(first)
            losses.append(total / workers)
        return losses

    def compare_pulled(self, job, model):
        path = os.path.join(self.root, job)
        result = self.daemon.ctl("pull", job, "--format", "hf", "-o", path)
        self.assertEqual(result.returncode, 0, result.stderr)
        again, info = type(model).from_pretrained(path, output_loading_info=True,
                                                  attn_implementation="eager")
        for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            self.assertFalse(info[what], what)
        with torch.no_grad():
            found, expected = (one.eval()(pixel_values=self.images[:BATCH]).logits
                               for one in (again, model))
        self.assertLessEqual(families.largest(found - expected),
                             LOGIT_BOUND * families.largest(expected))
        state = again.state_dict()
        for name, buffer in model.named_buffers():
            if name.endswith("num_batches_tracked"):
                self.assertEqual(int(state[name]), STEPS, name)

    def test_every_family_of_pictures(self):
        for name in families.PICTURES:
            start = families.make_model(name)
            start.save_pretrained(os.path.join(self.data, name))
            for workers in (1, 2, 3):
                with self.subTest(name, workers=workers):
                    model = copy.deepcopy(start)
                    expected = self.train(model, 1 if name.endswith("-sync") else workers)
                    settings = (f"model.hf={name}", f"workers={workers}",
                                f"train.batch_size={BATCH // workers}")
                    result = self.daemon.ctl("submit", self.job, "--wait",
                                             *(part for one in settings for part in ("--set", one)),
                                             timeout=300)
                    self.assertEqual(result.returncode, 0, result.stderr)
                    job = self.daemon.json("list")[-1]["id"]
                    found = self.daemon.losses(job)
                    self.assertEqual([step for step, _ in found], list(range(1, STEPS + 1)))
                    worst = max(abs(loss - e) / e for (_, loss), e in zip(found, expected))
                    print(f"{name}, {workers} workers: losses within {worst:.1e}")
                    self.assertLessEqual(worst, LOSS_BOUND)
                    self.assertGreater(max(expected) - min(expected), 100 * LOSS_BOUND)
                    self.compare_pulled(job, model)


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main(verbosity=2)
