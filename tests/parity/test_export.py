#!/usr/bin/env python3
"""Networks that others write through fsdpd.export: the model files that come out of the captured graphs (export.json)
have PyTorch's outputs, loss and gradients; what does not convert is named with its line, and nothing is written."""

import copy
import json
import os
import sys
import tempfile
import unittest
import unittest.mock

SOURCE = os.environ.get("srcdir", ".")
sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.path.join(SOURCE, "clients/python")]

try:
    import numpy
    import torch
    from torch.nn import functional as F
except ImportError as missing:
    print("SKIP: python3-torch is not installed:", missing)
    sys.exit(77)

from draws import normal
from export_networks import LOSSES, NETWORKS
from fsdpd.export.refusal import Refusal, Refusals
from fsdpd.export.write import write
from test_transformers import largest, run

BATCH, BOUND, STEPS, LOSS_BOUND = 8, 1e-5, 50, 1e-4  # of the largest element, and of the loss
MOVED = 12  # runs
PAIRED = ("clip", "normal")
UNTRAINED = ("sentiment", "encoder", "textcnn")  # train_transformer's windows have a target for each token
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "export.json"), encoding="utf-8") as known:
    GRAPHS = json.load(known)

# What does not convert, with the reason.
REFUSED = {
    "changed": [
        "export_networks.py:319: mul_: changes a tensor in its place that is read again later",
    ],
    "named": [
        "export_networks.py:331: exp: the module exp has the function's name, and a model file would call it",
    ],
    "hooked": [
        "export_networks.py:341: mul: is part of module fc, a Linear, which a model file has without it",
    ],
    "mixed": [
        "export_networks.py:348: mean: takes dimension 0, which is the batch's",
        "export_networks.py:349: t: a model file has no such operation",
        "export_networks.py:349: matmul: moves the batch: (4, b); in a model file it stays dimension 0",
        "export_networks.py:349: sum: moves the batch: (b, b); in a model file it stays dimension 0",
        "export_networks.py:350: cat: joins samples of the batch",
    ],
    "borrowed": [
        "export_networks.py:361: matmul: reads fc.weight outside of its module; a model file calls modules",
        "export_networks.py:361: add: reads a constant tensor that is neither a parameter nor a buffer",
    ],
    "padded": [
        "module conv: Conv2d with padding_mode='reflect'; a model file has only 'zeros'",
    ],
    "states": [
        "export_networks.py:467: select: reads the state of a layer before the last; a model file has the last one's "
        "output",
        "export_networks.py:467: select: reads the last states of an LSTM or GRU; a model file has its output, "
        "y[:, -1]",
    ],
    "masked": [
        "export_networks.py:480: zeros_like: module first is not attention of one tensor to itself without a mask of "
        "its own",
        "export_networks.py:481: transpose: module second is not attention of one tensor to itself without a mask of "
        "its own",
    ],
    "sums": [
        "export_networks.py:555: einsum: 'btd,bud->bu' is no product of matrices, over one letter and with one of either "
        "alone",
        "export_networks.py:556: einsum: 'btd,btd->bt' is no product of matrices, over one letter and with one of either "
        "alone",
        "export_networks.py:556: einsum: moves the batch: (b, b); in a model file it stays dimension 0",
        "export_networks.py:556: sum: moves the batch: (b, b); in a model file it stays dimension 0",
    ],
    "chosen": [
        "export_networks.py:589: to: a model file has no types; precision is a job's",
        "export_networks.py:590: ge: of two tensors; a model file compares a tensor with a number, or two of them by > or <",
        "export_networks.py:590: where: with nan, which is neither a tensor nor a number",
        "export_networks.py:590: amax: over [1, 3]; a model file has the largest of neighbouring dimensions",
        "export_networks.py:590: repeat: a model file has no such operation",
    ],
    "evaluated": [
        "export_networks.py:387: batch_norm: module norm evaluates while the model trains",
        "forward: wrap_with_set_grad_enabled: a model file has no such operation",
        "export_networks.py:390: mul: reads a constant tensor that is neither a parameter nor a buffer",
    ],
}

TOWERS = """\
name: CLIP
input: {image: [24], text: tokens}
vocabulary: 40
context: 6

modules:
  logit_scale: Parameter(1)
  visual: Linear(24, 8)
  text: Embedding(40, 8)
forward:
  - x = visual(image)
  - y = mean(text(text), dim=1)
  - output = x / sqrt(reshape(sum(x * x, dim=1), (-1, 1)) + 1e-24)
  - y = y / sqrt(reshape(sum(y * y, dim=1), (-1, 1)) + 1e-24)

loss: clip_loss(output, y, exp(logit_scale))
"""

MIXER = """\
name: MLPMixer
input: [3, 12, 12]
classes: 10

blocks:
  MixerBlock():
    modules:
      norm1: LayerNorm(16)
      norm2: LayerNorm(16)
      token_mix: Sequential(Linear(9, 18), GELU(), Linear(18, 9))
      channel_mix: Sequential(Linear(16, 64), GELU(), Linear(64, 16))
    forward:
      - x = x + transpose(token_mix(transpose(norm1(x), 1, 2)), 1, 2)
      - output = x + channel_mix(norm2(x))

modules:
  patch: Conv2d(3, 16, 4, stride=4)
  blocks: 3 * MixerBlock()
  norm: LayerNorm(16)
  head: Linear(16, 10)
forward:
  - x = transpose(flatten(patch(x), 2), 1, 2)
  - for block in blocks: x = block(x)
  - output = head(mean(norm(x), dim=1))

loss: cross_entropy(output, target)
"""


def state_of(model):
    """The state_dict as test programs read it: a number of batches is two numbers."""
    import struct

    header, parts, at = {}, [], 0
    for name, tensor in model.state_dict().items():
        data = b"\0" * 8 if name.endswith("num_batches_tracked") else tensor.numpy().astype("<f4").tobytes()
        shape = [2] if name.endswith("num_batches_tracked") else list(tensor.shape) or [1]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + len(data)]}
        parts.append(data)
        at += len(data)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(parts)


def is_tokens(name):
    """Whether the only input is token ids."""
    return NETWORKS[name][2] > 0 and name not in PAIRED


def outputs_of(name, model, x):
    """Of two towers from rows of both inputs."""
    if name not in PAIRED:
        return model(x)
    image, text = x.split([size for size, in NETWORKS[name][1].values()], 1)
    made = model(image, text.long())
    return made[2] * made[0] @ made[1].t() if name == "normal" else made


def prepare(name):
    """The network with weights for which rounding shows little, without dropout, and a batch."""
    kind, shape, vocabulary = NETWORKS[name]
    torch.manual_seed(5)
    model = kind()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(module, (torch.nn.RNNBase, torch.nn.MultiheadAttention)):
            module.dropout = 0.0
    with torch.no_grad():
        for path, tensor in model.named_parameters():
            tensor.copy_((1 if "norm" in path or "bn" in path else 0) + 0.3 * torch.randn_like(tensor))
    if name in PAIRED:
        parts = [torch.randn(BATCH, *shape["image"]), torch.randint(0, vocabulary, (BATCH, *shape["text"])).float()]
        if name == "normal":
            parts[0][3] = 0  # which PyTorch's normalize() makes zeros of, with finite gradients
        return model, torch.cat(parts, 1), torch.zeros(BATCH, dtype=torch.int64)
    x = torch.randint(0, vocabulary, (BATCH, *shape)) if vocabulary else torch.randn(BATCH, *shape)
    output = model.eval()(x)
    classes = vocabulary or output.dim() == 2
    if name in LOSSES:
        return model, x, torch.zeros(BATCH, dtype=torch.int64)
    return model, x, torch.randint(0, output.shape[-1], output.shape[:-1]) if classes else torch.randn_like(output)


def loss_of(name, output, x, targets):
    if name in LOSSES:
        return F.mse_loss(output, x)
    if name in PAIRED:
        own = torch.arange(len(output))
        return (F.cross_entropy(output, own) + F.cross_entropy(output.t(), own)) / 2
    if targets.is_floating_point():
        return F.mse_loss(output, targets)
    return F.cross_entropy(output.flatten(0, -2), targets.flatten())


def drawing(seed, step):
    """torch.randn_like draws what randn_like() does in the test programs."""

    def draw(like):
        return torch.from_numpy(normal(seed, 0, step, tuple(like.shape))).to(like.dtype)

    return unittest.mock.patch.object(torch, "randn_like", draw)


def train(name, model, x, targets):
    """The losses of PyTorch's steps, in the model's type."""
    model, kind = copy.deepcopy(model).train(), next(model.parameters()).dtype
    x = x.to(kind) if x.is_floating_point() else x
    targets = targets.to(kind) if targets.is_floating_point() else targets
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        with drawing(42, step):
            loss = loss_of(name, outputs_of(name, model, x), x, targets)
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses


def move(model, seed):
    """The model with weights moved by at most half a unit of f32."""
    model, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.mul_(1 + 2**-24 * (2 * torch.rand(tensor.shape, generator=generator, dtype=tensor.dtype) - 1))
    return model


def distance(losses, others):
    return max(abs(loss / other - 1) for loss, other in zip(losses, others))


class Export(unittest.TestCase):
    def compare(self, what, found, expected, scale):
        difference = largest(found - expected)
        self.worst = max(self.worst, difference / scale)
        self.assertLessEqual(difference, BOUND * scale, what)

    def check_network(self, name, directory):
        model, x, targets = prepare(name)
        paths = [os.path.join(directory, file) for file in ("model.yaml", "model.safetensors", "batch")]
        text = write(GRAPHS[name], LOSSES.get(name, ""), NETWORKS[name][2])
        words = [
            x.numpy().astype("<i4" if is_tokens(name) else "<f4"),
            targets.numpy().astype("<f4" if targets.is_floating_point() else "<i4"),
        ]
        for path, data in zip(paths, (text.encode(), state_of(model), b"".join(part.tobytes() for part in words))):
            with open(path, "wb") as file:
                file.write(data)
        model = model.double()  # keeps f32 rounding out of the comparison
        exact = x if is_tokens(name) else x.double()
        with drawing(3, 1):
            output, trained = outputs_of(name, model.eval(), exact), outputs_of(name, model.train(), exact)
        loss = loss_of(name, trained, exact, targets.double() if targets.is_floating_point() else targets)
        loss.backward()
        printed = run("dump_transformer", *paths, BATCH, x.shape[1] if is_tokens(name) else 0, "cpu")
        found = torch.from_numpy(numpy.frombuffer(printed, dtype="<f4").astype("f8"))
        self.worst, at = 0.0, output.numel()
        self.compare("output", found[:at].view_as(output), output, largest(output))
        self.compare("loss", found[at], loss, abs(float(loss)))
        at += 1
        for path, parameter in model.named_parameters():
            gradient = found[at : at + parameter.numel()].view_as(parameter)
            self.compare(f"d({path})", gradient, parameter.grad, max(largest(parameter.grad), 1e-2))
            at += parameter.numel()
        print(f"{name}: within {self.worst:.1e}")

    def test_converted_networks_are_pytorch(self):
        with tempfile.TemporaryDirectory() as directory:
            for name in NETWORKS:
                if name not in REFUSED:
                    with self.subTest(name):
                        self.check_network(name, directory)

    def check_training(self, name, directory):
        """Batch norms are those of one rank; the others train alike in every division of a step's samples."""
        model, x, targets = prepare(name)
        paths = [os.path.join(directory, file) for file in ("model.yaml", "model.safetensors", "data")]
        words = [
            x.numpy().astype("<i4" if is_tokens(name) else "<f4"),
            targets.numpy().astype("<f4" if targets.is_floating_point() else "<i4"),
        ]
        data = b"".join(part.tobytes() for part in words) * STEPS
        text = write(GRAPHS[name], LOSSES.get(name, ""), NETWORKS[name][2])
        for path, content in zip(paths, (text.encode(), state_of(model), data)):
            with open(path, "wb") as file:
                file.write(content)
        printed = run("train_transformer", *paths, BATCH, STEPS).decode().splitlines()
        norms = any(isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in model.modules())
        expected, bound = train(name, model.double() if norms else model, x, targets), LOSS_BOUND
        if norms:
            # AdamW divides a gradient by its own size, so rounding decides the direction of a gradient that is
            # nearly 0, and batch norms divide by the spread of what follows. How much that makes of rounding is
            # measured: PyTorch's own run in f32, and in f64 from weights moved by at most half a unit of f32.
            others = [copy.deepcopy(model).float()] + [move(model, seed) for seed in range(MOVED)]
            bound = max([bound] + [distance(train(name, other, x, targets), expected) for other in others])
        worst = 0.0
        if name in PAIRED:  # accumulated batches are not compared with each other
            printed = [line for line in printed if line.partition(":")[0].endswith(" 1")]
        for line in printed[:1] if norms else printed:
            found = [float(loss) for loss in line.partition(":")[2].split()]
            self.assertEqual(len(found), STEPS, line)
            worst = max(worst, distance(found, expected))
        print(f"{name}: {STEPS} steps in {1 if norms else len(printed)} ways within {worst:.1e} of {bound:.1e}")
        self.assertLessEqual(worst, bound, name)

    @unittest.skipUnless(os.environ.get("FSDPD_ALL_NETWORKS"), "takes a minute (FSDPD_ALL_NETWORKS)")
    def test_converted_networks_train_as_pytorch(self):
        with tempfile.TemporaryDirectory() as directory:
            for name in NETWORKS:
                if name not in REFUSED and name not in UNTRAINED:
                    with self.subTest(name):
                        self.check_training(name, directory)

    def test_what_does_not_convert_says_why(self):
        for name, expected in REFUSED.items():
            with self.subTest(name):
                if "refused" in GRAPHS[name]:
                    self.assertEqual([": ".join(GRAPHS[name]["refused"])], expected)
                    continue
                with self.assertRaises(Refusals) as raised:
                    write(GRAPHS[name], vocabulary=NETWORKS.get(name, (0, 0, 0))[2])
                self.assertEqual(raised.exception.lines, expected)

    def test_model_file_is_as_one_writes_it(self):
        self.maxDiff = None
        self.assertEqual(write(GRAPHS["mixer"]), MIXER)
        self.assertEqual(write(GRAPHS["clip"], vocabulary=40), TOWERS)

    def test_towers_may_return_what_they_make(self):
        """The features and the scale, as open_clip's, or the products of both."""
        graph = copy.deepcopy(GRAPHS["clip"])
        graph.update(nodes=graph["nodes"][:-3], output="div", outputs=["div", "div_1", "exp"])
        self.assertEqual(write(graph, vocabulary=40), TOWERS)
        graph = copy.deepcopy(GRAPHS["clip"])
        turned = dict(graph["nodes"][-2], name="t_1", args=[{"node": graph["output"]}], shape=["b", "b"])
        graph.update(nodes=graph["nodes"] + [turned], outputs=[graph["output"], "t_1"])
        self.assertEqual(write(graph, vocabulary=40), TOWERS)
        for results in (["div", "div_1"], ["div", "div_1", "linear"]):
            graph.update(outputs=results)
            with self.assertRaisesRegex(Refusal, "^forward: returns . values, which are not the features of two"):
                write(graph, vocabulary=40)
        with self.assertRaises(Refusals) as raised:
            write(GRAPHS["clip"], "mse_loss(output, target)", 40)
        self.assertEqual(raised.exception.lines[0], "export_networks.py:96: t: a model file has no such operation")

    def test_a_tower_may_be_an_input(self):
        graph = copy.deepcopy(GRAPHS["clip"])
        made = {"image", graph["nodes"][-2]["args"][0]["node"]}  # of the image, and the products'
        for node in list(graph["nodes"]):
            if any(isinstance(value, dict) and value.get("node") in made for value in node["args"]):
                made.add(node["name"])
                graph["nodes"].remove(node)
        graph["inputs"][0]["shape"] = [8]
        graph.update(outputs=["image", "div_1", "exp"])
        lines = write(graph, vocabulary=40).splitlines()
        self.assertIn("  - output = image", lines)
        self.assertEqual(lines[-1], "loss: clip_loss(output, x, exp(logit_scale))")

    def test_a_scale_of_another_module_is_named(self):
        text = json.dumps(GRAPHS["clip"]).replace('"logit_scale"', '"text.scale"')
        graph = json.loads(text.replace('{"node": "exp"}', '{"node": "p_logit_scale"}'))
        graph["nodes"] = [node for node in graph["nodes"] if node["name"] != "exp"]
        with self.assertRaises(Refusals) as raised:
            write(graph, vocabulary=40)
        self.assertIn(
            "export_networks.py:96: mul: reads text.scale outside of its module; a model file calls modules",
            raised.exception.lines,
        )


if __name__ == "__main__":
    unittest.main()
