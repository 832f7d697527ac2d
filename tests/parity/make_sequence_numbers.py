#!/usr/bin/python3
"""Prints PyTorch's results of activations, norms, softmax and embeddings, and of their gradients,
for tests/unit/test_sequence_numbers.c.

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


def quotient(count):
    print("div", count)
    random = Random(count)
    a, b, dy = (random.tensor(count) for _ in range(3))
    y = a / (b + 2)
    y.backward(dy.detach())
    show("y", y)
    show("da", a.grad)
    show("db", b.grad)


def narrow(rows, columns, start, length):
    print("narrow", rows, columns, start, length)
    random = Random(rows)
    x, dy = random.tensor(rows, columns), random.tensor(rows, length)
    other = random.tensor(rows, columns)
    y = x.narrow(-1, start, length)
    ((y * dy.detach()).sum() + (x * other.detach()).sum()).backward()
    show("y", y)
    show("dx", x.grad)


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
    """Of x + residual, which has another use, too."""
    print(name, rows, columns, eps)
    random = Random(rows)
    x, residual = random.tensor(rows, columns), random.tensor(rows, columns)
    weight, bias = random.tensor(columns), random.tensor(columns)
    dy, other = random.tensor(rows, columns).detach(), random.tensor(rows, columns).detach()
    both = x + residual
    if name == "layer_norm":
        y = F.layer_norm(both, (columns,), weight, bias, eps)
    elif name == "rms_norm":
        y = rms_norm(both, weight, eps)
    else:  # GemmaRMSNorm
        y = rms_norm(both, 1 + weight, eps)
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
        activation("gelu_mul", count, lambda gate, x: F.gelu(gate) * x, 2)
        activation("gelu_tanh_mul", count,
                   lambda gate, x: F.gelu(gate, approximate="tanh") * x, 2)
        activation("silu_mul", count, lambda gate, x: F.silu(gate) * x, 2)
        activation("tanh", count, torch.tanh, 1)
        activation("sigmoid", count, torch.sigmoid, 1)
        activation("squared_relu", count, lambda x: F.relu(x) ** 2, 1)
        activation("scale", count, lambda x: 3 * x - 0.5, 1)
        activation("reciprocal", count, lambda x: 2 / x, 1)
        quotient(count)
    for rows, columns in ((1, 1), (5, 7), (3, 65), (33, 300)):
        softmax(rows, columns)
        norm("layer_norm", rows, columns, 1e-5)
        norm("layer_norm", rows, columns, 0.25)
        norm("rms_norm", rows, columns, 1e-6)
        norm("gemma_norm", rows, columns, 1e-6)
    narrow(5, 70, 13, 40)
    narrow(31, 9, 0, 4)
    embedding(9, 5, 7, -1)
    embedding(200, 13, 33, 3)
    broadcast(1, 2, 3)
    broadcast(5, 7, 65)
