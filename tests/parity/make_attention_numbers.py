#!/usr/bin/python3
"""Prints PyTorch's results of attention, rotary positions and the head with its cross-entropy, for
tests/unit/test_kernels_attention.c.

tests/parity/make_attention_numbers.py > tests/parity/attention.txt

A case is a line of its sizes, and then a line per result: its name, its number of elements, the
distance between the printed ones, and these. Operands come from the generator of the kernel tests,
one after another, so they need not be printed. Arithmetic is in double, except for the angles of
rotary positions, which are f32 in Hugging Face's models.
"""
import math

import torch
import torch.nn.functional as F

MASK = 2**64 - 1


class Random:
    """splitmix64, as tests/unit/kernel_fixture.h has it."""

    def __init__(self, seed):
        self.state = seed

    def bits(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK
        return z ^ z >> 31

    def tensor(self, *shape):
        values = [(self.bits() >> 40) * 2.0**-23 - 1 for _ in range(math.prod(shape))]
        return torch.tensor(values, dtype=torch.float64).view(shape).requires_grad_()


def show(name, tensor):
    values = tensor.detach().double().reshape(-1)
    step = max(1, len(values) // 40) | 1  # odd: visits all columns
    print(name, len(values), step, *("%.9g" % v for v in values[::step]))


def heights(heads, time, alibi, rounded, scale):
    """ALiBi of (heads, row, key), with slopes as transformers' MPT makes them; rounded: as Falcon's."""
    power = 2 ** math.ceil(math.log2(heads))
    slopes = 1 / 2 ** (torch.arange(1, power + 1).double() * alibi / power)
    if power != heads:
        slopes = torch.cat([slopes[1::2], slopes[::2]])[:heads]
    of_keys = slopes[:, None] * torch.arange(time)
    if rounded:
        of_keys = (slopes[:, None].bfloat16() * torch.arange(time)).double() * scale
    return of_keys[:, None, :] - of_keys[:, :, None]


def attention(batch, time, kv_heads, group, head_dim, packed, causal, padding, window=0, softcap=0,
              document=0, biased=0, alibi=0, rounded=0):
    print("attention", batch, time, kv_heads, group, head_dim, packed, causal, padding, window, softcap,
          document, biased, alibi, rounded)
    random = Random(time)
    heads = kv_heads * group
    if packed:
        whole = random.tensor(batch, time, (heads + 2 * kv_heads) * head_dim)
        parts = whole.split([heads * head_dim, kv_heads * head_dim, kv_heads * head_dim], dim=2)
        leaves = [whole]
    else:
        leaves = [random.tensor(batch, time, n * head_dim) for n in (heads, kv_heads, kv_heads)]
        parts = leaves
    bias = random.tensor(2 * time - 1, heads) if biased else None
    dy = random.tensor(batch, time, heads * head_dim)
    q, k, v = (x.view(batch, time, -1, head_dim).transpose(1, 2) for x in parts)
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    seen = torch.ones(batch, 1, time, time, dtype=torch.bool)
    if causal:
        seen = seen.tril()
    if window:
        near = torch.ones(time, time, dtype=torch.bool)
        seen &= ~(near.tril(-window) | near.triu(window))
    if padding:  # the last keys of sample n: n * padding of them
        for n in range(batch):
            seen[n, :, :, time - n * padding:] = False
    if document:  # of that many tokens; the first one is shorter by the sample's number
        for n in range(batch):
            number = (torch.arange(time) + n) // document
            seen[n] &= number[:, None] == number[None, :]
    scores = q @ k.transpose(2, 3) / math.sqrt(head_dim)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if biased:  # by distance key - query
        distances = torch.arange(time)[None, :] - torch.arange(time)[:, None]
        scores = scores + bias[distances + time - 1].permute(2, 0, 1)
    if alibi:
        scores = scores + heights(heads, time, alibi, rounded, 1 / math.sqrt(head_dim))
    scores = scores.masked_fill(~seen, float("-inf"))
    y = (torch.softmax(scores, dim=3) @ v).transpose(1, 2).reshape(batch, time, -1)
    y.backward(dy.detach())
    show("y", y)
    show("lse", torch.logsumexp(scores, dim=3))
    for name, leaf in zip(("dq", "dk", "dv"), leaves):
        show(name, leaf.grad)
    if biased:
        show("dbias", bias.grad)


def frequencies(head_dim, theta, scaling, factor, low, high, context):
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    plain = 1.0 / theta**exponents
    if scaling == 0:
        return plain
    if scaling == 1:
        return plain / factor
    if scaling == 3:  # low and high are beta_slow and beta_fast
        def pair(rotations):
            return head_dim * math.log(context / (rotations * 2 * math.pi)) / (2 * math.log(theta))
        first, last = max(math.floor(pair(high)), 0), min(math.ceil(pair(low)), head_dim - 1)
        ramp = torch.clamp((torch.arange(head_dim // 2).float() - first) /
                           (last - first if last != first else 0.001), 0, 1)
        return plain / factor * ramp + plain * (1 - ramp)
    wavelengths = 2 * math.pi / plain
    blend = (context / wavelengths - low) / (high - low)
    blended = (1 - blend) * plain / factor + blend * plain
    chosen = torch.where(wavelengths > context / low, plain / factor, blended)
    return torch.where(wavelengths < context / high, plain, chosen)


def rope(time, heads, head_dim, theta, scaling, factor, low, high, context, rotary=0, magnitude=1, interleaved=0):
    print("rope", time, heads, head_dim, theta, scaling, factor, low, high, context, rotary,
          magnitude, interleaved)
    x = Random(time).tensor(1, time, heads * head_dim).detach().float()
    turned_columns = rotary or head_dim
    angles = torch.arange(time).float()[:, None] * frequencies(turned_columns, theta, scaling, factor,
                                                               low, high, context)
    angles = (angles.repeat_interleave(2, dim=1) if interleaved else torch.cat((angles, angles), dim=1))[:, None]
    cosines, sines = angles.cos() * magnitude, angles.sin() * magnitude
    heads_of_x = x.view(time, heads, head_dim)
    x, rest = heads_of_x[..., :turned_columns], heads_of_x[..., turned_columns:]
    first, second = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=2)
    turned = (torch.stack((-second, first), dim=3).flatten(2) if interleaved
              else torch.cat((-second, first), dim=2))
    show("y", torch.cat((x * cosines + turned * sines, rest), dim=2))
    show("dx", torch.cat((x * cosines - turned * sines, rest), dim=2))


def head(rows, columns, classes, bias, mean):
    print("head", rows, columns, classes, bias, mean)
    random = Random(rows)
    x, weight = random.tensor(rows, columns), random.tensor(classes, columns)
    offset = random.tensor(classes) if bias else None
    target = torch.tensor([random.bits() % (classes + 1) - 1 for _ in range(rows)])
    scores = F.linear(x, weight, offset)
    loss = F.cross_entropy(scores, target, ignore_index=-1, reduction="sum")
    if mean:
        loss = loss / rows  # all of them, as common/ops/op.h has it
    loss.backward()
    show("loss", loss)
    correct = (scores.argmax(dim=1) == target).sum()
    show("correct", correct)
    show("dx", x.grad)
    show("dweight", weight.grad)
    if bias:
        show("dbias", offset.grad)


if __name__ == "__main__":
    attention(2, 7, 2, 1, 4, 1, 1, 0)
    attention(1, 70, 1, 3, 6, 0, 1, 0)
    attention(3, 67, 2, 2, 8, 1, 0, 9)
    attention(2, 130, 1, 1, 32, 0, 1, 20)
    attention(2, 65, 2, 1, 16, 0, 0, 0)
    attention(1, 200, 1, 2, 8, 0, 1, 0, 70)
    attention(2, 90, 2, 1, 6, 1, 1, 0, 5, 1.5)
    attention(2, 67, 1, 2, 8, 0, 0, 9, 0, 0.7)
    attention(2, 210, 1, 2, 8, 1, 0, 9, 40)
    attention(1, 190, 2, 1, 8, 0, 0, 0, 70, 1.5, 90)
    attention(2, 130, 2, 2, 8, 1, 0, 9, biased=1)
    attention(2, 90, 1, 2, 6, 0, 1, 0, 40, 1.5, biased=1)
    attention(2, 150, 2, 2, 8, 1, 1, 0, document=37)
    attention(3, 140, 1, 2, 16, 0, 0, 9, document=50)
    attention(1, 190, 1, 2, 8, 0, 1, 0, 70, 1.5, 90)
    attention(2, 100, 3, 4, 4, 1, 1, 0, alibi=8)
    attention(1, 160, 1, 3, 8, 0, 1, 9, 0, 1.5, 90, alibi=5)
    attention(1, 300, 12, 1, 4, 0, 1, 0, alibi=8, rounded=1)
    rope(5000, 1, 8, 10000, 0, 1, 1, 4, 1)
    rope(3000, 2, 6, 500000, 1, 4, 1, 4, 1)
    rope(4100, 1, 64, 500000, 2, 8, 1, 4, 512)
    rope(300, 3, 10, 10000, 0, 1, 1, 4, 1, 4)
    rope(900, 2, 16, 500000, 2, 8, 1, 4, 64, 12)
    rope(2000, 1, 64, 10000, 3, 4, 1, 32, 512, 0, 1.25)
    rope(500, 2, 24, 10000, 3, 16, 2, 8, 32, 16, 1.5)
    rope(700, 2, 32, 10000, 0, 1, 1, 4, 1, 0, 1, 1)
    rope(400, 3, 20, 500000, 1, 2, 1, 4, 1, 12, 1, 1)
    head(9, 5, 7, 1, 1)
    head(130, 16, 65, 0, 1)
    head(70, 12, 301, 1, 0)
