#!/usr/bin/env python3
"""Networks for images and numbers, written by hand, against the same in plain PyTorch: outputs,
loss and all gradients with both libraries of kernels; and the losses of 50 steps of AdamW on one to
eight ranks under every strategy, with every division of a step's samples. Losses, poolings, norms,
parameters of a block's own and the ops on shapes are all part of some network."""

import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(__file__))

try:
    import numpy
    import torch
    from torch import nn
    from torch.nn import functional as F
except ImportError as missing:
    print("SKIP: python3-torch is not installed:", missing)
    sys.exit(77)

from decoder_blocks import GemmaBlock, Qwen3Block, SHAPE
from loss_networks import Distilled, Parts, Terms, VAE
from test_transformers import largest, run, write_safetensors

BATCH, STEPS = 8, 50
BOUND, LOSS_BOUND = 1e-5, 1e-4 # of the largest element, and of the loss


class Regression(nn.Module):
    text = """
name: Regression
input: [7]
targets: [3]
modules: {up: "Linear(7, 19)", act: Tanh(), down: "Linear(19, 3)"}
forward: [output = down(act(up(x)))]
loss: LOSS
"""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(7, 19), nn.Linear(19, 3)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


class Autoencoder(nn.Module):
    text = """
name: Autoencoder
input: [1, 5, 6]
classes: 10
modules: {encoder: "Linear(6, 4)", decoder: "Linear(4, 6)"}
forward: [output = decoder(relu(encoder(x)))]
loss: mse_loss(output, x)
"""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 4), nn.Linear(4, 6)

    def forward(self, x):
        return self.decoder(torch.relu(self.encoder(x)))


class Classifier(nn.Module):
    text = """
name: Classifier
input: [1, 8, 8]
classes: 10
modules: {conv: "Conv2d(1, 6, 3)", head: "Linear(216, 10)"}
forward: ["output = head(flatten(relu(conv(x)), 1))"]
args: {weights: [0.5, 2, 0, 1.25, 1, 3, 0.1, 1, 1, 7]}
loss: LOSS
"""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 6, 3), nn.Linear(216, 10)

    def forward(self, x):
        return self.head(torch.relu(self.conv(x)).flatten(1))


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        batch, time, width = x.shape
        q, k, v = (part.view(batch, time, self.heads, -1).transpose(1, 2)
                   for part in self.qkv(x).chunk(3, dim=-1))
        scores = q @ k.transpose(2, 3) / (width // self.heads) ** 0.5
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, time, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(width), Attention(width, heads)
        self.norm2, self.up, self.down = (nn.LayerNorm(width), nn.Linear(width, 2 * width),
                                          nn.Linear(2 * width, width))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class ViT(nn.Module):
    text = """
name: ViT
input: [3, 12, 8]
classes: 10
blocks:
  Attention(width, heads):
    modules: {qkv: "Linear(width, 3 * width)", out: "Linear(width, width)"}
    forward:
      - y = qkv(x)
      - y = attention(chunk(y, 3, dim=-1)[0], chunk(y, 3, dim=-1)[1], chunk(y, 3, dim=-1)[-1], num_heads=heads)
      - output = out(y)
  Block(width, heads):
    modules:
      norm1: LayerNorm(width)
      attn: Attention(width, heads)
      norm2: LayerNorm(width)
      up: Linear(width, 2 * width)
      down: Linear(2 * width, width)
    forward:
      - x = x + attn(norm1(x))
      - output = x + down(gelu(up(norm2(x))))
modules:
  patch: Conv2d(3, 20, 4, 4)
  cls: Parameter(1, 1, 20)
  pos: Parameter(1, 7, 20)
  blocks: 2 * Block(20, 4)
  norm: LayerNorm(20)
  head: Linear(40, 10)
forward:
  - y = transpose(flatten(patch(x), 2), 1, 2)
  - y = cat([cls, y], dim=1) + pos
  - for block in blocks: y = block(y)
  - y = norm(y)
  - output = head(cat((select(y, 1, 0), mean(narrow(y, 1, 1, 6), 1)), dim=-1))
loss: cross_entropy(output, target)
"""

    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 20, 4, 4)
        self.cls = nn.Parameter(torch.zeros(1, 1, 20))
        self.pos = nn.Parameter(torch.zeros(1, 7, 20))
        self.blocks = nn.ModuleList([Block(20, 4) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(20), nn.Linear(40, 10)

    def forward(self, x):
        y = self.patch(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.cls.expand(y.shape[0], -1, -1), y], dim=1) + self.pos
        for block in self.blocks:
            y = block(y)
        y = self.norm(y)
        return self.head(torch.cat((y[:, 0], y.narrow(1, 1, 6).mean(1)), dim=-1))


class Shapes(nn.Module):
    """Reshapes of every form, and parameters that are moved before a sample joins them."""
    text = """
name: Shapes
input: [3, 8, 6]
classes: 10
modules:
  cls: Parameter(1, 1, 12)
  registers: Parameter(1, 12, 3)
  pos: Parameter(1, 8, 12)
  mix: Linear(12, 12)
  head: Linear(96, 10)
forward:
  - y = reshape(x, (x.shape[0], 4, 12, -1))
  - y = mean(transpose(y, 2, 3), 2)
  - r = transpose(tanh(registers), 1, 2)
  - r = reshape(narrow(r, 1, 1, 2), (r.size(0), 2, -1))
  - last = reshape(select(registers, -1, 0) * reshape(cls, (-1, 12)), (-1, 1, 12))
  - y = cat([cls, r, y, last], dim=1)
  - y = mix(y + pos)
  - y = transpose(unflatten(y, -1, (2, -1, 3)), -1, 2)
  - output = head(reshape(y, (-1, 96)))
loss: cross_entropy(output, target)
"""

    def __init__(self):
        super().__init__()
        self.cls = nn.Parameter(torch.zeros(1, 1, 12))
        self.registers = nn.Parameter(torch.zeros(1, 12, 3))
        self.pos = nn.Parameter(torch.zeros(1, 8, 12))
        self.mix, self.head = nn.Linear(12, 12), nn.Linear(96, 10)

    def forward(self, x):
        y = torch.reshape(x, (x.shape[0], 4, 12, -1)).transpose(2, 3).mean(2)
        r = torch.tanh(self.registers).transpose(1, 2)
        r = torch.reshape(r.narrow(1, 1, 2), (r.size(0), 2, -1))
        last = (self.registers.select(-1, 0) * torch.reshape(self.cls, (-1, 12))).reshape(-1, 1, 12)
        parts = [part.expand(x.shape[0], -1, -1) for part in (self.cls, r, y, last)]
        y = self.mix(torch.cat(parts, dim=1) + self.pos)
        y = torch.unflatten(y, -1, (2, -1, 3)).transpose(-1, 2)
        return self.head(torch.reshape(y, (-1, 96)))


class Residual(nn.Module):
    """A small residual network with GroupNorm and every kind of convolution and average."""
    text = """
name: Residual
input: [3, 13, 11]
classes: 10
blocks:
  Block(width, stride):
    modules:
      conv1: Conv2d(width, width, 3, stride, padding=1, groups=2, bias=False)
      norm1: GroupNorm(2, width)
      conv2: Conv2d(width, width, (3, 1), padding=(2, 0), dilation=(2, 1))
      norm2: GroupNorm(4, width, eps=0.001)
      pool: AvgPool2d(3, stride, 1, count_include_pad=False)
    forward:
      - y = relu(norm1(conv1(x)))
      - output = relu(norm2(conv2(y)) + pool(x))
modules:
  stem: Conv2d(3, 8, 3, padding=1)
  norm: GroupNorm(1, 8, affine=False)
  layers: "ModuleList(Block(8, 1), Block(8, 2))"
  pool: AdaptiveAvgPool2d((2, 3))
  head: Linear(48, 10)
forward:
  - y = avg_pool2d(relu(norm(stem(x))), 2, stride=1, padding=1)
  - for layer in layers: y = layer(y)
  - output = head(flatten(pool(y), 1))
loss: cross_entropy(output, target)
"""

    class Block(nn.Module):
        def __init__(self, width, stride):
            super().__init__()
            self.conv1 = nn.Conv2d(width, width, 3, stride, padding=1, groups=2, bias=False)
            self.norm1 = nn.GroupNorm(2, width)
            self.conv2 = nn.Conv2d(width, width, (3, 1), padding=(2, 0), dilation=(2, 1))
            self.norm2 = nn.GroupNorm(4, width, eps=0.001)
            self.pool = nn.AvgPool2d(3, stride, 1, count_include_pad=False)

        def forward(self, x):
            y = torch.relu(self.norm1(self.conv1(x)))
            return torch.relu(self.norm2(self.conv2(y)) + self.pool(x))

    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(1, 8, affine=False)
        self.layers = nn.ModuleList([self.Block(8, stride) for stride in (1, 2)])
        self.pool, self.head = nn.AdaptiveAvgPool2d((2, 3)), nn.Linear(48, 10)

    def forward(self, x):
        y = F.avg_pool2d(torch.relu(self.norm(self.stem(x))), 2, stride=1, padding=1)
        for layer in self.layers:
            y = layer(y)
        return self.head(self.pool(y).flatten(1))


class Functions(nn.Module):
    """Every function of single elements, products of matrices, and tensors that are repeated."""
    text = """
name: Functions
input: [3, 4, 6]
classes: 10
modules:
  scale: Parameter(1, 3, 1, 1)
  mix: Parameter(12, 12)
  leaky: LeakyReLU(0.2)
  elu1: ELU(alpha=0.7)
  body: "Sequential(Conv2d(3, 4, 1), ReLU6(inplace=True), Identity(), Hardswish(), Hardsigmoid())"
  head: Linear(12, 10)
forward:
  - y = leaky(x) * scale + hardsigmoid(elu1(x))
  - y = interpolate(body(y), scale_factor=2)
  - y = sqrt(exp(y) + pow(y + 1, 1.5)) - log(abs(y) + 0.5) + relu6(elu(y, 0.5))
  - y = hardswish(leaky_relu(y, 0.1))
  - z = flatten(transpose(y, 1, 3), 1, 2)
  - w = softmax(matmul(z, transpose(z, 1, 2)), dim=-1)
  - z = transpose(matmul(w, z), 1, 2)
  - z = matmul(mix, transpose(reshape(z, (-1, 32, 12)), 1, 2))
  - y = reshape(sum(y, 1), (-1, 1, 96)) / 50
  - output = head(sum(transpose(z, 1, 2), 1) / 32 + sum(reshape(y * y, (-1, 8, 12)), 1))
loss: cross_entropy(output, target)
"""

    def __init__(self):
        super().__init__()
        self.scale, self.mix = nn.Parameter(torch.zeros(1, 3, 1, 1)), nn.Parameter(torch.zeros(12, 12))
        self.leaky, self.elu1 = nn.LeakyReLU(0.2), nn.ELU(alpha=0.7)
        self.body = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU6(inplace=True), nn.Identity(), nn.Hardswish(),
                                  nn.Hardsigmoid())
        self.head = nn.Linear(12, 10)

    def forward(self, x):
        y = self.leaky(x) * self.scale + F.hardsigmoid(self.elu1(x))
        y = F.interpolate(self.body(y), scale_factor=2)
        y = (y.exp() + torch.pow(y + 1, 1.5)).sqrt() - torch.log(y.abs() + 0.5) + F.relu6(F.elu(y, 0.5))
        y = F.hardswish(F.leaky_relu(y, 0.1))
        z = y.transpose(1, 3).flatten(1, 2)
        z = (torch.softmax(z @ z.transpose(1, 2), dim=-1) @ z).transpose(1, 2)
        z = self.mix @ z.reshape(-1, 32, 12).transpose(1, 2)
        y = y.sum(1).reshape(-1, 1, 96) / 50
        return self.head(z.sum(2) / 32 + (y * y).reshape(-1, 8, 12).sum(1))


class Choices(nn.Module):
    """Comparisons, what masks take, and the largest: of equal elements, of many, of those that have a NaN beside them."""
    text = """
name: Choices
input: [3, 4, 6]
classes: 10
modules:
  fill: Parameter(1, 6)
  equal: Parameter(1, 6)
  conv: Conv2d(3, 4, 1)
  head: Linear(21, 10)
forward:
  - y = conv(x)
  - y = where(y > 0.1, y * y, 0.3 * y) + (-0.4 >= y) * x[:, 1:2] - (0.5 < y) * 0.2
  - y = where(x[:, :1] < 0, fill, y)
  - r = relu(y)
  - y = y + 0.1 * (r == 0) + 0.2 * y * (r != 0)
  - w = where(y > 0, log(y), 2) + sqrt(masked_fill(y, 0 >= y, 1.5)) + where(1 - (y > 0) * (x[:, :1] > 0), 0.5, 0)
  - kept = x[:, 0] >= -1.5
  - s = softmax(where(kept, y[:, 1], 0) + log(kept), dim=-1)
  - u = (x[:, 0] > 0) * equal
  - far = max(flatten(interpolate(y, 2), 1), 1)
  - most = cat([amax(flatten(w, 2), -1), amax(u, 2), max(u, dim=2), mean(max(w, 1), 2)], dim=1)
  - output = head(cat([most, sum(s * y[:, 2], 2), unsqueeze(far, 1)], dim=1))
loss: cross_entropy(output, target)
"""

    def __init__(self):
        super().__init__()
        self.fill, self.equal = nn.Parameter(torch.zeros(1, 6)), nn.Parameter(torch.zeros(1, 6))
        self.conv, self.head = nn.Conv2d(3, 4, 1), nn.Linear(21, 10)

    def forward(self, x):
        y = self.conv(x)
        y = torch.where(y > 0.1, y * y, 0.3 * y) + (-0.4 >= y) * x[:, 1:2] - (0.5 < y) * 0.2
        y = torch.where(x[:, :1] < 0, self.fill, y)
        r = torch.relu(y)
        y = y + 0.1 * (r == 0) + 0.2 * y * (r != 0)
        two, zero = torch.full_like(y, 2), torch.zeros_like(y)
        both = (y > 0) & (x[:, :1] > 0)
        w = torch.where(y > 0, y.log(), two) + y.masked_fill(0 >= y, 1.5).sqrt() + torch.where(~both, zero + 0.5, zero)
        s = y[:, 1].masked_fill(~(x[:, 0] >= -1.5), float("-inf")).softmax(-1)
        u = (x[:, 0] > 0) * self.equal
        far = F.interpolate(y, scale_factor=2).flatten(1).max(1)[0]
        most = [w.flatten(2).amax(-1), u.amax(2), u.max(dim=2)[0], w.max(1)[0].mean(2)]
        return self.head(torch.cat(most + [(s * y[:, 2]).sum(2), far[:, None]], dim=1))


class Transposed(nn.Module):
    """Transposed convolutions: of groups, without bias, and of every argument."""
    text = """
name: Transposed
input: [4, 3, 5]
classes: 10
modules:
  conv: Conv2d(4, 6, 1)
  up1: ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1, groups=2)
  up2: ConvTranspose2d(4, 3, (2, 3), stride=(1, 2), dilation=(2, 1), bias=False)
  up3: ConvTranspose2d(3, 3, 2, 2, padding=1, output_padding=(0, 1))
  head: Linear(36, 10)
forward:
  - y = relu(up1(conv(x)))
  - y = up3(relu(up2(y)))
  - output = head(flatten(adaptive_avg_pool2d(y, (3, 4)), 1))
loss: cross_entropy(output, target)
"""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 6, 1)
        self.up1 = nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1, groups=2)
        self.up2 = nn.ConvTranspose2d(4, 3, (2, 3), stride=(1, 2), dilation=(2, 1), bias=False)
        self.up3 = nn.ConvTranspose2d(3, 3, 2, 2, padding=1, output_padding=(0, 1))
        self.head = nn.Linear(36, 10)

    def forward(self, x):
        y = torch.relu(self.up1(self.conv(x)))
        y = self.up3(torch.relu(self.up2(y)))
        return self.head(F.adaptive_avg_pool2d(y, (3, 4)).flatten(1))


class Line(nn.Module):
    """Lines of pixels, and parts of tensors."""
    text = """
name: Line
input: [4, 11]
targets: [3]
modules:
  conv1: Conv1d(4, 6, 3, stride=2, padding=2, groups=2)
  conv2: Conv1d(6, 8, 2, dilation=2, bias=False)
  body: "Sequential(MaxPool1d(2, 1), AvgPool1d(2, stride=1, padding=1), AdaptiveAvgPool1d(3))"
  head: Linear(15, 3)
forward:
  - y = conv2(relu(conv1(x)))
  - z = body(y) + adaptive_avg_pool1d(max_pool1d(y, 2), 3) * avg_pool1d(x, 4)[:, -1, None, :2][:, :, -1:]
  - y = cat([z[:, 1:-2, 0], z[:, :2, -2:][:, :, 1], unsqueeze(z[:, 3], 1)[:, 0]], dim=1)
  - y = cat([y, flatten(x[:, 2:4, 1:9], 1)[:, :5]], dim=1)
  - output = head(y)
loss: LOSS
"""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv1d(4, 6, 3, stride=2, padding=2, groups=2)
        self.conv2 = nn.Conv1d(6, 8, 2, dilation=2, bias=False)
        self.body = nn.Sequential(nn.MaxPool1d(2, 1), nn.AvgPool1d(2, stride=1, padding=1), nn.AdaptiveAvgPool1d(3))
        self.head = nn.Linear(15, 3)

    def forward(self, x):
        y = self.conv2(torch.relu(self.conv1(x)))
        scale = F.avg_pool1d(x, 4)[:, -1, None, :2][:, :, -1:]
        z = self.body(y) + F.adaptive_avg_pool1d(F.max_pool1d(y, 2), 3) * scale
        parts = [z[:, 1:-2, 0], z[:, :2, -2:][:, :, 1], torch.unsqueeze(z[:, 3], 1)[:, 0],
                 x[:, 2:4, 1:9].flatten(1)[:, :5]]
        return self.head(torch.cat(parts, dim=1))


class Recurrent(nn.Module):
    """LSTM and GRU: stacked, in both directions, without biases."""
    text = """
name: Recurrent
input: [9, 5]
targets: [3]
modules:
  lstm: LSTM(5, 8, num_layers=2, batch_first=True, bidirectional=True)
  gru: GRU(16, 6, 2, batch_first=True)
  plain: "Sequential(GRU(6, 4, bias=False, batch_first=True, bidirectional=True), LSTM(8, 4, 1, False, True))"
  head: Linear(4, 3)
forward:
  - y = plain(gru(lstm(x)))
  - output = head(y[:, -1])
loss: LOSS
"""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(5, 8, num_layers=2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(16, 6, 2, batch_first=True)
        self.plain = nn.ModuleList([nn.GRU(6, 4, bias=False, batch_first=True, bidirectional=True),
                                    nn.LSTM(8, 4, 1, False, True)])
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        y = x
        for layer in (self.lstm, self.gru, *self.plain):
            y, _ = layer(y)
        return self.head(y[:, -1])


class Multihead(nn.Module):
    """A TransformerEncoderLayer by its modules, and keys and values of another tensor."""
    text = """
name: Multihead
input: [7, 12]
targets: [3]
blocks:
  Layer(width, heads):
    modules:
      self_attn: MultiheadAttention(width, heads, batch_first=True)
      linear1: Linear(width, 20)
      linear2: Linear(20, width)
      norm1: LayerNorm(width)
      norm2: LayerNorm(width)
    forward:
      - x = norm1(x + self_attn(x, x, x, need_weights=False))
      - output = norm2(x + linear2(relu(linear1(x))))
modules:
  layers: 2 * Layer(12, 3)
  causal: MultiheadAttention(12, 2, bias=False, batch_first=True)
  cross: MultiheadAttention(12, 4, batch_first=True)
  head: Linear(12, 3)
forward:
  - y = x
  - for layer in layers: y = layer(y)
  - z = causal(x, x, x, is_causal=True)
  - output = head(mean(cross(y, z, value=x) + cross(z, y, y), 1))
loss: LOSS
"""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer
        self.layers = nn.ModuleList([layer(12, 3, 20, dropout=0, batch_first=True) for _ in range(2)])
        self.causal = nn.MultiheadAttention(12, 2, bias=False, batch_first=True)
        self.cross = nn.MultiheadAttention(12, 4, batch_first=True)
        self.head = nn.Linear(12, 3)

    def forward(self, x):
        y = x
        for layer in self.layers:
            y = layer(y)
        hidden = torch.ones(7, 7, dtype=torch.bool).triu(1)
        z = self.causal(x, x, x, attn_mask=hidden)[0]
        return self.head((self.cross(y, z, x)[0] + self.cross(z, y, y)[0]).mean(1))


class Towers(nn.Module):
    """CLIP's: pictures and texts, and a scale that is trained. A sample is a row of both."""
    text = """
name: Towers
input: {image: [3, 4, 2], text: tokens}
vocabulary: 11
context: 5
modules:
  logit_scale: Parameter(1)
  visual: "Sequential(Conv2d(3, 4, 2), ReLU(), Flatten(), Linear(12, 6))"
  token_embedding: Embedding(11, 8)
  text_projection: Linear(8, 6)
forward:
  - a = visual(image)
  - b = text_projection(mean(token_embedding(text), 1))
  - output = a / unsqueeze(sqrt(sum(a * a, 1) + 1e-12), 1)
  - b = b / unsqueeze(sqrt(sum(b * b, 1) + 1e-12), 1)
loss: clip_loss(output, b, exp(logit_scale))
"""

    def __init__(self):
        super().__init__()
        self.logit_scale = nn.Parameter(torch.zeros(1))
        self.visual = nn.Sequential(nn.Conv2d(3, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 6))
        self.token_embedding, self.text_projection = nn.Embedding(11, 8), nn.Linear(8, 6)

    def forward(self, x):
        image, text = x[:, :24].unflatten(1, (3, 4, 2)), x[:, 24:].long()
        a = F.normalize(self.visual(image), dim=-1)
        b = F.normalize(self.text_projection(self.token_embedding(text).mean(1)), dim=-1)
        return self.logit_scale.exp() * a @ b.t()

    @staticmethod
    def loss(output, _, target):
        own = torch.arange(len(output))
        return (F.cross_entropy(output, own) + F.cross_entropy(output.t(), own)) / 2


class Draw:
    """Batches for a network. `targets`: the shape of a sample's, or the number of classes."""

    def __init__(self, shape, targets, binary=False, pixels=False):
        self.shape, self.targets, self.binary, self.pixels = shape, targets, binary, pixels

    def batch(self, seed):
        generator = torch.Generator().manual_seed(seed)
        x = (torch.rand if self.pixels else torch.randn)(BATCH, *self.shape, generator=generator)
        if isinstance(self.targets, int):
            return x, torch.randint(0, self.targets, (BATCH,), generator=generator)
        y = torch.randn(BATCH, *self.targets, generator=generator)
        return x, (y > 0).float() if self.binary else y


class Captions(Draw):
    """Pictures with the ids of their texts behind them. There are no targets."""

    def batch(self, seed):
        x, targets = super().batch(seed)
        x[:, 24:] = torch.randint(0, 11, (BATCH, 5), generator=torch.Generator().manual_seed(seed)).float()
        return x, targets


def focal(output, target, alpha=0.25, gamma=2.0):
    """torchvision's sigmoid_focal_loss."""
    p, loss = torch.sigmoid(output), F.binary_cross_entropy_with_logits(output, target, reduction="none")
    loss = loss * (1 - (p * target + (1 - p) * (1 - target))) ** gamma
    if alpha >= 0:
        loss = (alpha * target + (1 - alpha) * (1 - target)) * loss
    return loss.mean()


def focal_of_classes(output, target, gamma, weight):
    own = F.log_softmax(output, dim=1).gather(1, target[:, None])[:, 0]
    return -(weight[target] * (1 - own.exp()) ** gamma * own).mean()


def against_target(function, **arguments):
    def loss(output, _, target):
        same = {name: value.to(output.dtype) if torch.is_tensor(value) else value
                for name, value in arguments.items()}
        return function(output, target, **same)
    return loss


WEIGHTS = torch.tensor([0.5, 2, 0, 1.25, 1, 3, 0.1, 1, 1, 7])
NUMBERS, BITS = Draw((7,), (3,)), Draw((7,), (3,), binary=True)

# name: the class, the draw, the loss, its text
NETWORKS = {
    "mse": (Regression, NUMBERS, against_target(F.mse_loss), "mse_loss(output, target)"),
    "l1": (Regression, NUMBERS, against_target(F.l1_loss), "l1_loss(output, target)"),
    "huber": (Regression, NUMBERS, against_target(F.huber_loss, delta=0.5),
              "huber_loss(output, target, delta=0.5)"),
    "binary": (Regression, BITS, against_target(F.binary_cross_entropy_with_logits),
               "binary_cross_entropy_with_logits(output, target)"),
    "autoencoder": (Autoencoder, Draw((1, 5, 6), 10), lambda output, x, _: F.mse_loss(output, x),
                    ""),
    "residual": (Residual, Draw((3, 13, 11), 10), against_target(F.cross_entropy), ""),
    "shapes": (Shapes, Draw((3, 8, 6), 10), against_target(F.cross_entropy), ""),
    "functions": (Functions, Draw((3, 4, 6), 10), against_target(F.cross_entropy), ""),
    "choices": (Choices, Draw((3, 4, 6), 10), against_target(F.cross_entropy), ""),
    "transposed": (Transposed, Draw((4, 3, 5), 10), against_target(F.cross_entropy), ""),
    "line": (Line, Draw((4, 11), (3,)), against_target(F.smooth_l1_loss, beta=0.3),
             "smooth_l1_loss(output, target, beta=0.3)"),
    "recurrent": (Recurrent, Draw((9, 5), (3,)), against_target(F.mse_loss), "mse_loss(output, target)"),
    "multihead": (Multihead, Draw((7, 12), (3,)), against_target(F.mse_loss), "mse_loss(output, target)"),
    "vit": (ViT, Draw((3, 12, 8), 10), against_target(F.cross_entropy), ""),
    "qwen3_block": (Qwen3Block, Draw(SHAPE, SHAPE), against_target(F.mse_loss), ""),
    "gemma_block": (GemmaBlock, Draw(SHAPE, SHAPE), against_target(F.mse_loss), ""),
    "smoothing": (Classifier, Draw((1, 8, 8), 10),
                  against_target(F.cross_entropy, label_smoothing=0.1),
                  "cross_entropy(output, target, label_smoothing=0.1)"),
    "weighted": (Classifier, Draw((1, 8, 8), 10),
                 against_target(F.cross_entropy, weight=WEIGHTS),
                 "cross_entropy(output, target, weight=weights)"),
    "weighted_smoothing": (Classifier, Draw((1, 8, 8), 10),
                           against_target(F.cross_entropy, weight=WEIGHTS, label_smoothing=0.3),
                           "cross_entropy(output, target, label_smoothing=0.3, weight=weights)"),
    "weighted_nll": (Classifier, Draw((1, 8, 8), 10),
                     against_target(F.nll_loss, weight=WEIGHTS),
                     "nll_loss(output, target, weight=weights)"),
    "towers": (Towers, Captions((29,), 1), Towers.loss, ""),
    "terms": (Terms, Draw((1, 8, 8), 10), Terms.loss, ""),
    "vae": (VAE, Draw((20,), 10, pixels=True), VAE.loss, ""),
    "parts": (Parts, BITS, Parts.loss, ""),
    "distilled": (Distilled, Draw((1, 8, 8), 10), Distilled.loss, ""),
    "focal": (Regression, BITS, against_target(focal, gamma=1.5), "sigmoid_focal_loss(output, target, gamma=1.5)"),
    "focal_plain": (Regression, BITS, against_target(focal, alpha=-1),
                    "sigmoid_focal_loss(output, target, alpha=-1, gamma=2)"),
    "focal_classes": (Classifier, Draw((1, 8, 8), 10), against_target(focal_of_classes, gamma=1.5, weight=WEIGHTS),
                      "focal_loss(output, target, gamma=1.5, weight=weights)"),
    "weighted_binary": (Regression, BITS,
                        against_target(F.binary_cross_entropy_with_logits,
                                       pos_weight=torch.tensor([0.25, 3, 1])),
                        "binary_cross_entropy_with_logits(output, target, "
                        "pos_weight=[0.25, 3, 2 - 1])"),
}


# Not trained: the signs that are the gradient of l1 often add up to 0 exactly, or but for rounding,
# and the steps of AdamW then differ; those of the others are part of another network.
ONCE = ("l1", "weighted", "weighted_nll", "recurrent", "multihead", "focal_plain")
# Their ops train as others do: seconds for what the unit tests of ops and plans say already.
if not os.environ.get("FSDPD_ALL_NETWORKS"):
    ONCE += ("functions", "transposed", "line", "choices", "focal")


def words(x, targets):
    kind = "<i4" if targets.dtype == torch.int64 else "<f4"
    return (x.numpy().astype("<f4").tobytes() + targets.numpy().astype(kind).tobytes())


def draw_noise(model, seed, step):
    """That of the test programs' seeds."""
    if hasattr(model, "draw"):
        model.draw(seed, step, BATCH)


class Networks(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name

    def path(self, name):
        return os.path.join(self.directory, name)

    def write(self, name, data):
        with open(self.path(name), "wb") as file:
            file.write(data)

    def prepare(self, name):
        kind, draw, loss, text = NETWORKS[name]
        torch.manual_seed(5)
        model = kind()
        with torch.no_grad():
            for path, parameter in model.named_parameters():
                scale = 1 if "norm" in path or "bn" in path else 0
                parameter.copy_(scale + 0.3 * torch.randn_like(parameter))
                if path == "equal":
                    parameter.fill_(0.5)
        self.write("model.yaml", kind.text.replace("LOSS", text).encode())
        write_safetensors(model, self.path("model.safetensors"))
        return model, draw, loss

    def compare(self, what, found, expected, scale):
        difference = largest(found - expected)
        self.worst = max(self.worst, difference / scale)
        self.assertLessEqual(difference, BOUND * scale, what)

    def check_once(self, name, library):
        model, draw, loss_of = self.prepare(name)
        x, targets = draw.batch(1)
        self.write("batch", words(x, targets))
        draw_noise(model, 3, 1)
        model = model.double()  # keeps f32 rounding out of the comparison
        exact = targets.double() if targets.is_floating_point() else targets
        output = model(x.double())
        loss = loss_of(output, x.double(), exact)
        if "weight=weights" in NETWORKS[name][3] and "focal" not in name:
            # An op divides by all targets; the end of a step knows the weights of those that count.
            loss = loss * WEIGHTS.double()[targets].mean()
        loss.backward()
        printed = run("dump_transformer", self.path("model.yaml"), self.path("model.safetensors"),
                      self.path("batch"), BATCH, 0, library)
        found = torch.from_numpy(numpy.frombuffer(printed, dtype="<f4").astype("f8"))
        self.worst = 0.0
        at = output.numel()
        self.compare("output", found[:at].view_as(output), output, largest(output))
        self.compare("loss", found[at], loss, abs(float(loss)))
        at += 1
        for path, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue
            gradient = found[at:at + parameter.numel()].view_as(parameter)
            self.compare(f"d({path})", gradient, parameter.grad, largest(parameter.grad))
            at += parameter.numel()
        self.assertEqual(at, found.numel())
        print(f"{name}, {library} kernels: within {self.worst:.1e}")

    def check_training(self, name):
        model, draw, loss_of = self.prepare(name)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
        expected, data = [], b""
        for step in range(STEPS):
            x, targets = draw.batch(100 + step % 4)
            data += words(x, targets)
            draw_noise(model, 42, step)
            optimizer.zero_grad()
            loss = loss_of(model(x), x, targets)
            loss.backward()
            optimizer.step()
            expected.append(float(loss))
        self.assertLess(expected[-1], expected[0] * 0.99)
        self.write("data", data)
        printed = run("train_transformer", self.path("model.yaml"), self.path("model.safetensors"),
                      self.path("data"), BATCH, STEPS).decode()
        worst, lines = 0.0, printed.splitlines()
        self.assertGreaterEqual(len(lines), 13 + 24)
        if name == "towers": # accumulated batches are not compared with each other
            lines = [line for line in lines if line.partition(":")[0].endswith(" 1")]
            self.assertEqual(len(lines), 25)
        for line in lines:
            way, losses = line.split(":")
            found = [float(loss) for loss in losses.split()]
            self.assertEqual(len(found), STEPS, way)
            for step, (ours, theirs) in enumerate(zip(found, expected)):
                worst = max(worst, abs(ours / theirs - 1))
                self.assertLessEqual(abs(ours / theirs - 1), LOSS_BOUND,
                                     f"{name}, {way}, step {step}: {ours}, PyTorch {theirs}")
        print(f"{name}: {STEPS} steps in {len(lines)} ways within {worst:.1e}")


def add_tests():
    for name in NETWORKS:
        def once(self, name=name):
            for library in ("reference", "cpu"):
                self.check_once(name, library)

        def training(self, name=name):
            self.check_training(name)
        setattr(Networks, f"test_{name}_is_pytorch", once)
        if name not in ONCE:
            setattr(Networks, f"test_{name}_trains_as_pytorch", training)


add_tests()

if __name__ == "__main__":
    unittest.main()
