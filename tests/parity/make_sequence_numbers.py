#!/usr/bin/python3
"""Prints what PyTorch makes of activations, norms, softmax and embeddings, and of their gradients, for
tests/unit/test_sequence_numbers.c.

    tests/parity/make_sequence_numbers.py > tests/parity/sequence.txt

A case is a line of its sizes, and then a line per result; operands are drawn as in
make_attention_numbers.py. Arithmetic is in double.
"""
import torch
import torch.nn.functional as F

from make_attention_numbers import Random, show


def activation(name, count, function, operands):
    print(name, count)
    random = Random(count)
    leaves = [random.tensor(count) for _ in range(operands)]
    y = function(*(4 * leaf for leaf in leaves))
    dy = random.tensor(count)
    y.backward(dy.detach())
    show("y", y)
    for leaf in leaves:
        show("dx", leaf.grad / 4)


def softmax(rows, columns):
    print("softmax", rows, columns)
    random = Random(rows)
    x = random.tensor(rows, columns)
    y = F.softmax(x, dim=1)
    y.backward(random.tensor(rows, columns).detach())
    show("y", y)
    show("dx", x.grad)


def rms_norm(x, weight, eps):
    """LlamaRMSNorm."""
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))


def norm(name, rows, columns, eps):
    """Of x + residual, which is used elsewhere too."""
    print(name, rows, columns, eps)
    random = Random(rows)
    x, residual = random.tensor(rows, columns), random.tensor(rows, columns)
    weight, bias = random.tensor(columns), random.tensor(columns)
    dy, other = random.tensor(rows, columns).detach(), random.tensor(rows, columns).detach()
    both = x + residual
    if name == "layer_norm":
        y = F.layer_norm(both, (columns,), weight, bias, eps)
    else:
        y = rms_norm(both, weight, eps)
    ((y * dy).sum() + (both * other).sum()).backward()
    show("y", y)
    show("sum", both)
    show("dx", x.grad)
    show("dweight", weight.grad)
    if name == "layer_norm":
        show("dbias", bias.grad)


def embedding(tokens, rows, columns, padding_index):
    print("embedding", tokens, rows, columns, padding_index)
    random = Random(tokens)
    table = random.tensor(rows, columns)
    indices = torch.tensor([random.bits() % rows for _ in range(tokens)])
    y = F.embedding(indices, table, padding_idx=padding_index if padding_index >= 0 else None)
    y.backward(random.tensor(tokens, columns).detach())
    show("y", y)
    show("dweight", table.grad)


def broadcast(batch, rows, columns):
    print("broadcast", batch, rows, columns)
    random = Random(batch)
    a, b = random.tensor(batch, rows, columns), random.tensor(rows, columns)
    y = a + b
    y.backward(random.tensor(batch, rows, columns).detach())
    show("y", y)
    show("db", b.grad)


if __name__ == "__main__":
    for count in (37, 3001):
        activation("gelu", count, F.gelu, 1)
        activation("gelu_tanh", count, lambda x: F.gelu(x, approximate="tanh"), 1)
        activation("silu", count, F.silu, 1)
        activation("silu_mul", count, lambda gate, x: F.silu(gate) * x, 2)
    for rows, columns in ((1, 1), (5, 7), (3, 65), (33, 300)):
        softmax(rows, columns)
        norm("layer_norm", rows, columns, 1e-5)
        norm("layer_norm", rows, columns, 0.25)
        norm("rms_norm", rows, columns, 1e-6)
    embedding(9, 5, 7, -1)
    embedding(200, 13, 33, 3)
    broadcast(1, 2, 3)
    broadcast(5, 7, 65)
