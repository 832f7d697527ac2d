#!/usr/bin/env python3
"""Training of embeddings on pairs against PyTorch: the loss over the whole batch of all workers, as
MultipleNegativesRankingLoss of sentence-transformers has it. Gradients, 40 steps of AdamW on one to
three workers with a short last batch, hard negatives, accumulated batches, strategies, activation
checkpointing, bf16; evaluations' losses and shares of anchors that find their text. And two towers,
as CLIP's."""

import hashlib
import json
import os
import shutil
import sys
import tempfile
import unittest

sys.path[:0] = [os.path.dirname(__file__), os.path.join(os.path.dirname(__file__), "../system")]
import harness

try:
    import numpy
    import torch
    from torch import nn
    from torch.nn import functional as F
except ImportError as missing:
    print("SKIP: python3-torch is not installed:", missing)
    sys.exit(77)

VOCABULARY, CONTEXT, WIDTH, HEADS, HIDDEN, SEED = 60, 12, 24, 3, 40, 7
BATCH, STEPS, LEARNING_RATE, WEIGHT_DECAY, SCALE = 12, 40, 2e-3, 0.01, 20.0
GRADIENT_BOUND, LOSS_BOUND = 1e-5, 1e-4
TRAINED, TESTED = BATCH * STEPS - 5, 50 # the last step begins the next epoch; the last test is short
MODEL = f"""
name: Encoder
args: {{count: 2, triplet: false, swapped: false}}
input: tokens
texts: count
vocabulary: {VOCABULARY}
context: {CONTEXT}
modules:
  embed: Embedding({VOCABULARY}, {WIDTH}, padding_idx=0)
  place: Embedding({CONTEXT}, {WIDTH})
  norm: LayerNorm({WIDTH})
  query: Linear({WIDTH}, {WIDTH})
  key: Linear({WIDTH}, {WIDTH})
  value: Linear({WIDTH}, {WIDTH})
  out: Linear({WIDTH}, {WIDTH})
  up: Linear({WIDTH}, {HIDDEN})
  down: Linear({HIDDEN}, {WIDTH})
forward:
  - mask = padding_mask(x, 0)
  - y = embed(x) + place(positions(x))
  - y = norm(y + out(attention(query(y), key(y), value(y), num_heads={HEADS}, mask=mask)))
  - y = y + down(gelu(up(y)))
  - output = mean(y, 1, mask)
loss: triplet_margin_loss(output, swap=swapped) if triplet else multiple_negatives_ranking_loss(output, scale={SCALE})
"""
JOB = f"""
name: pairs
model: {{file: model.yaml}}
data: {{format: dataset, path: pairs, windows: document, context: {CONTEXT}}}
train: {{epochs: 1, batch_size: {BATCH}, shuffle: false, log_interval: 1, seed: {SEED}}}
optimizer: {{type: adamw, lr: {LEARNING_RATE}, weight_decay: {WEIGHT_DECAY}}}
"""


TOWERS = f"""
name: Towers
input: {{image: [3, 8, 8], text: tokens}}
vocabulary: {VOCABULARY}
context: {CONTEXT}
modules:
  logit_scale: Parameter(1)
  visual: "Sequential(Conv2d(3, 4, 3, 2), ReLU(), Flatten(), Linear(36, 16))"
  embed: Embedding({VOCABULARY}, {WIDTH}, padding_idx=0)
  text: Linear({WIDTH}, 16)
forward:
  - a = visual(image)
  - b = text(mean(embed(text), 1, padding_mask(text, 0)))
  - output = a / unsqueeze(sqrt(sum(a * a, 1) + 1e-12), 1)
  - b = b / unsqueeze(sqrt(sum(b * b, 1) + 1e-12), 1)
loss: clip_loss(output, b, exp(logit_scale))
init: [{{match: logit_scale, constant: 2.6592}}]
"""
TOWERS_JOB = f"""
name: towers
model: {{file: towers.yaml}}
data: {{format: images, dir: towers, normalize: {{mean: 0.5, std: 0.25}}}}
train: {{epochs: 1, batch_size: {BATCH}, test_batch_size: {BATCH}, shuffle: false, log_interval: 1, seed: {SEED}}}
optimizer: {{type: adamw, lr: {LEARNING_RATE}, weight_decay: {WEIGHT_DECAY}}}
"""


class Towers(nn.Module):
    """CLIP's: the logits of pictures for texts."""

    def __init__(self):
        super().__init__()
        self.logit_scale = nn.Parameter(torch.full((1,), 2.6592))
        self.visual = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 16))
        self.embed, self.text = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0), nn.Linear(WIDTH, 16)

    def forward(self, image, text):
        mask = text != 0
        words = (self.embed(text) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        a = F.normalize(self.visual((image / 255 - 0.5) / 0.25), dim=-1)
        return self.logit_scale.exp() * a @ F.normalize(self.text(words), dim=-1).T


def tower_loss(logits):
    own = torch.arange(len(logits))
    return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2


def draw_pictures(count, generator):
    """Ten kinds of pictures, of which texts have words of their own; parts of both are drawn again."""
    kinds = torch.Generator().manual_seed(5)
    pictures = torch.randint(0, 256, (10, 3, 8, 8), generator=kinds)
    words = torch.randint(1, VOCABULARY, (10, CONTEXT), generator=kinds)
    kind, made = torch.randint(0, 10, (count,), generator=generator), []
    for whole, most in ((pictures[kind], 256), (words[kind], VOCABULARY)):
        other = torch.randint(1, most, whole.shape, generator=generator)
        made.append(torch.where(torch.rand(whole.shape, generator=generator) < 0.4, other, whole))
    lengths = torch.randint(2, CONTEXT + 1, (count,), generator=generator)
    made[1][torch.arange(CONTEXT) >= lengths[:, None]] = 0
    return made


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.place = nn.Embedding(CONTEXT, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, tokens):
        mask = tokens != 0
        y = self.embed(tokens) + self.place.weight
        q, k, v = (part(y).unflatten(2, (HEADS, -1)).transpose(1, 2)
                   for part in (self.query, self.key, self.value))
        scores = q @ k.transpose(2, 3) / (WIDTH // HEADS) ** 0.5
        seen = scores.masked_fill(~mask[:, None, None], -1e30).softmax(-1) @ v
        y = self.norm(y + self.out(seen.transpose(1, 2).flatten(2)))
        y = y + self.down(F.gelu(self.up(y)))
        return (y * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def scores_of(model, tokens):
    """Of each anchor with all candidates: all positives, then what else the pairs have."""
    texts = F.normalize(model(tokens.flatten(0, 1)), dim=-1).unflatten(0, tokens.shape[:2])
    candidates = texts[:, 1:].transpose(0, 1).flatten(0, 1)
    return texts[:, 0] @ candidates.T * SCALE


def loss_of(model, tokens):
    return F.cross_entropy(scores_of(model, tokens), torch.arange(len(tokens)))


def triplet_loss_of(model, tokens, swap):
    texts = model(tokens.flatten(0, 1)).unflatten(0, tokens.shape[:2])
    return F.triplet_margin_loss(*texts.unbind(1), swap=swap)


def draw(count, texts, generator):
    """Texts of which an anchor shares most words with its positive; ends of words are cut off."""
    rows = torch.randint(1, VOCABULARY, (count, 1, CONTEXT), generator=generator)
    rows = rows.repeat(1, texts, 1)
    other = torch.randint(1, VOCABULARY, rows.shape, generator=generator)
    changed = torch.rand(rows.shape, generator=generator) < torch.tensor([0, 0.4] + [0.7] * 14)[:texts, None]
    rows = torch.where(changed, other, rows)
    lengths = torch.randint(2, CONTEXT + 1, rows.shape[:2], generator=generator)
    rows[torch.arange(CONTEXT) >= lengths[..., None]] = 0
    return rows


def write_dataset(directory, texts, parts, padding=0, vocabulary=VOCABULARY):
    os.mkdir(directory)
    splits = {}
    for split, rows in parts.items():
        lengths = (rows != padding).sum(-1).flatten().numpy()
        arrays = {"tokens": rows[rows != padding].numpy().astype("<u2"),
                  "documents": numpy.concatenate([[0], numpy.cumsum(lengths)]).astype("<u8")}
        splits[split] = {}
        for name, values in arrays.items():
            file = f"{split}.{name}.npy"
            numpy.save(os.path.join(directory, file), values)
            with open(os.path.join(directory, file), "rb") as stream:
                digest = hashlib.sha256(stream.read()).hexdigest()
            splits[split][name] = {"file": file, "type": values.dtype.name,
                                   "shape": list(values.shape), "sha256": digest}
    root = {"format": "fsdpd-dataset", "version": 1, "kind": "tokens", "texts": texts,
            "vocabulary": vocabulary, "splits": splits}
    with open(os.path.join(directory, "dataset.json"), "w", encoding="utf-8") as file:
        json.dump(root, file)


class Pairs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp(prefix="fsdpd-test-")
        cls.addClassCleanup(shutil.rmtree, cls.root, True)
        cls.data = os.path.join(cls.root, "data")
        os.mkdir(cls.data)
        generator = torch.Generator().manual_seed(3)
        cls.train, cls.test = {}, {}
        for texts, name in ((2, "pairs"), (3, "negatives")):
            cls.train[texts] = draw(TRAINED, texts, generator)
            cls.test[texts] = draw(TESTED, texts, generator)
            write_dataset(os.path.join(cls.data, name), texts,
                          {"train": cls.train[texts], "validation": cls.test[texts]})
        os.mkdir(os.path.join(cls.data, "towers"))
        cls.pictures = {"train": draw_pictures(BATCH * 50, generator), "validation": draw_pictures(TESTED, generator)}
        for split, arrays in cls.pictures.items():
            for name, array, kind in zip(("image", "text"), arrays, ("u1", "<u2")):
                numpy.save(os.path.join(cls.data, "towers", f"{split}.{name}.npy"), array.numpy().astype(kind))
        for name, text in (("model.yaml", MODEL), ("job.yaml", JOB), ("towers.yaml", TOWERS),
                           ("towers-job.yaml", TOWERS_JOB)):
            with open(os.path.join(cls.root, name), "w", encoding="utf-8") as file:
                file.write(text)
        cls.daemon = harness.Daemon(3, data=cls.data)
        cls.addClassCleanup(cls.daemon.close)

    def submit(self, workers, *settings, batch=BATCH, file="job.yaml"):
        sets = [f"workers={workers}", f"train.batch_size={batch // workers}", *settings]
        result = self.daemon.ctl("submit", os.path.join(self.root, file), "--wait",
                                 *[word for value in sets for word in ("--set", value)], timeout=300)
        self.assertEqual(result.returncode, 0, result.stderr)
        return self.daemon.json("list")[-1]["id"]

    def pull(self, job):
        path = os.path.join(self.root, "state.safetensors")
        result = self.daemon.ctl("pull", job, "-o", path)
        self.assertEqual(result.returncode, 0, result.stderr)
        return {name: torch.frombuffer(bytearray(values), dtype=torch.float32).reshape(shape)
                for name, (_, shape, values) in harness.read_safetensors(path)[0].items()}

    def fresh(self):
        torch.manual_seed(SEED)
        return Encoder()

    def oracle(self, tokens, batch=BATCH, accumulate=1, loss_of=loss_of):
        """AdamW over one epoch; a step's mean is over all its pairs, each among its batch."""
        tokens = torch.cat([tokens, tokens[:-len(tokens) % (batch * accumulate)]])
        model, losses = self.fresh(), []
        optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY)
        for first in range(0, len(tokens), batch * accumulate):
            step = tokens[first:first + batch * accumulate]
            optimizer.zero_grad()
            loss = sum(loss_of(model, part) * len(part) for part in step.split(batch)) / len(step)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return model, losses

    def compare(self, job, losses, bound=LOSS_BOUND):
        found = [loss for step, loss in sorted(dict(self.daemon.losses(job)).items()) if step > 0]
        self.assertEqual(len(found), len(losses))
        worst = max(abs(ours / theirs - 1) for ours, theirs in zip(found, losses))
        self.assertLessEqual(worst, bound)
        print(f"{job}: {len(losses)} losses within {worst:.1e}")
        return found

    def check_evaluation(self, job, texts, batch=BATCH):
        """The weights that the job ends with, over batches of all workers."""
        model = Encoder()
        model.load_state_dict(self.pull(job), strict=True)
        loss = correct = 0
        with torch.no_grad():
            for part in self.test[texts].split(batch):
                scores = scores_of(model, part)
                loss += F.cross_entropy(scores, torch.arange(len(part)), reduction="sum").item()
                correct += int((scores.argmax(1) == torch.arange(len(part))).sum())
        metrics = json.loads(self.daemon.ctl("show", job, "-o", "json").stdout)["metrics"]
        self.assertEqual(set(metrics["val_scores"]), {"accuracy"})
        self.assertAlmostEqual(metrics["val_loss"], loss / TESTED, delta=1e-5 * loss / TESTED)
        self.assertAlmostEqual(metrics["val_scores"]["accuracy"], correct / TESTED, delta=1e-6)
        self.assertTrue(0 < correct < TESTED, correct)
        print(f"{job}: {correct} of {TESTED} anchors find their positive")

    def test_plan(self):
        """It says how many pairs there are."""
        sets = ["--set", "workers=2", "--set", "train.batch_size=6"]
        plan = self.daemon.ctl("plan", os.path.join(self.root, "job.yaml"), *sets).stdout
        full = 100 * float((self.train[2] != 0).double().mean())
        self.assertIn(f"an epoch of the dataset is {TRAINED} pairs of texts; windows are {full:.1f} % full",
                      " ".join(plan.split()))

    def test_gradients(self):
        """A step of SGD with the rate 1 subtracts the gradient of the whole batch's loss."""
        for texts, name in ((2, "pairs"), (3, "negatives")):
            model = self.fresh().double()
            loss_of(model, self.train[texts][:BATCH]).backward()
            for workers in (1, 2, 3):
                job = self.submit(workers, f"data.path={name}", f"model.args.count={texts}", "optimizer=null",
                                  "optimizer={type: sgd, lr: 1}", "train.max_steps=1", "train.evaluate=false")
                before, after = self.fresh().state_dict(), self.pull(job)
                worst = 0
                for path, parameter in model.named_parameters():
                    found = before[path].double() - after[path].double()
                    measure = dict(model.named_parameters())[path.replace("key.bias", "key.weight")].grad
                    rounding = 2 ** -24 * float(before[path].abs().max())
                    difference = float((found - parameter.grad).abs().max()) - rounding
                    worst = max(worst, difference / float(measure.abs().max()))
                    self.assertLessEqual(worst, GRADIENT_BOUND, path)
                print(f"{texts} texts, {workers} workers: gradients within {worst:.1e}")

    def test_curves(self):
        for texts, name in ((2, "pairs"), (3, "negatives")):
            _, losses = self.oracle(self.train[texts])
            self.assertLess(sum(losses[-5:]), 0.9 * sum(losses[:5]))
            for workers in (1, 2, 3):
                job = self.submit(workers, f"data.path={name}", f"model.args.count={texts}")
                self.compare(job, losses)
                self.check_evaluation(job, texts)

    def test_triplets(self):
        """PyTorch's TripletMarginLoss, of every triplet by itself, also in the last, short batch."""
        for swap in (False, True):
            model, losses = self.oracle(self.train[3], loss_of=lambda *batch: triplet_loss_of(*batch, swap))
            self.assertLess(sum(losses[-5:]), 0.9 * sum(losses[:5]))
            with torch.no_grad():
                expected = triplet_loss_of(model, self.test[3], swap).item()
            for workers in (1, 2, 3):
                job = self.submit(workers, "data.path=negatives", "model.args.count=3", "model.args.triplet=true",
                                  f"model.args.swapped={str(swap).lower()}")
                self.compare(job, losses)
                metrics = json.loads(self.daemon.ctl("show", job, "-o", "json").stdout)["metrics"]
                self.assertAlmostEqual(metrics["val_loss"], expected, delta=LOSS_BOUND * expected)

    def test_towers(self):
        """Pictures and texts, each among those of all workers, with a scale that is trained; the last test is short."""
        torch.manual_seed(SEED)
        model, losses = Towers(), []
        optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY)
        for image, text in zip(*(array.split(BATCH) for array in self.pictures["train"])):
            optimizer.zero_grad()
            loss = tower_loss(model(image, text))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        self.assertLess(sum(losses[-5:]), 0.9 * sum(losses[:5]))
        for workers in (1, 2, 3):
            job = self.submit(workers, file="towers-job.yaml")
            self.compare(job, losses)
            pulled = Towers()
            pulled.load_state_dict(self.pull(job), strict=True)
            loss = correct = 0
            with torch.no_grad():
                for image, text in zip(*(array.split(BATCH) for array in self.pictures["validation"])):
                    logits = pulled(image, text)
                    loss += tower_loss(logits).item() * len(logits)
                    correct += int((logits.argmax(1) == torch.arange(len(logits))).sum())
            metrics = json.loads(self.daemon.ctl("show", job, "-o", "json").stdout)["metrics"]
            self.assertAlmostEqual(metrics["test_loss"], loss / TESTED, delta=1e-5 * loss / TESTED)
            self.assertAlmostEqual(metrics["accuracy"], correct / TESTED, delta=1e-6)
            self.assertTrue(0 < correct < TESTED, correct)

    def test_strategies_keep_the_bits(self):
        first = self.compare(self.submit(2), self.oracle(self.train[2])[1])
        for settings in (["fsdp.strategy=no_shard"], ["fsdp.strategy=shard_grad_op"],
                         ["fsdp.activation_checkpointing=['*']"]):
            job = self.submit(2, *settings)
            self.assertEqual(self.compare(job, self.oracle(self.train[2])[1]), first)

    def test_accumulation(self):
        """A pair is compared with those of its batch on all workers, not with the whole step's."""
        _, losses = self.oracle(self.train[2], 6, 2)
        for workers in (1, 2, 3):
            self.compare(self.submit(workers, "train.accumulation_steps=2", batch=6), losses)

    def test_unequal_shares(self):
        """A global batch that the workers do not divide: rows that fill up a rank are no pairs."""
        _, losses = self.oracle(self.train[2], 10)
        for workers in (1, 2, 3):
            self.compare(self.submit(workers, "train.global_batch=10", batch=12), losses)

    def test_bf16(self):
        """The encoder computes in bf16, the loss in f32."""
        _, losses = self.oracle(self.train[2])
        for workers in (1, 2):
            self.compare(self.submit(workers, "precision.param_dtype=bf16"), losses, 0.05)


if __name__ == "__main__":
    unittest.main()
