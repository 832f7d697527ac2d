"""Blocks of Qwen3 and of Gemma 2, written by hand as model files and in plain PyTorch, for
test_networks.py. Samples are (time, width), as if they came from an embedding."""

import math

import torch
from torch import nn
from torch.nn import functional as F

TIME, WIDTH, HEADS, KV_HEADS, HEAD = 9, 20, 4, 2, 6
SHAPE = (TIME, WIDTH)


def rope(x, theta):
    """(batch, heads, time, columns), the rotate-half form."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-torch.arange(half, dtype=x.dtype) / half)
    angles = torch.arange(x.shape[2], dtype=x.dtype)[:, None] * frequencies
    cosine, sine = angles.cos(), angles.sin()
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


def heads(x, count):
    return x.unflatten(-1, (count, HEAD)).transpose(1, 2)


def attend(q, k, v, window=TIME, cap=None):
    """Causal, with fewer heads of keys and values; the scale is that of a head's width."""
    k, v = (x.repeat_interleave(HEADS // KV_HEADS, dim=1) for x in (k, v))
    scores = q @ k.transpose(2, 3) / math.sqrt(HEAD)
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    distance = torch.arange(TIME)[:, None] - torch.arange(TIME)[None, :]
    scores = scores.masked_fill((distance < 0) | (distance >= window), -math.inf)
    return (torch.softmax(scores, dim=-1) @ v).transpose(1, 2).flatten(2)


class RMSNorm(nn.Module):
    def __init__(self, width, plus=0):
        super().__init__()
        self.weight, self.plus = nn.Parameter(torch.ones(width)), plus

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * (self.plus + self.weight)


class Projections(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(WIDTH, HEADS * HEAD, bias=False)
        self.k_proj = nn.Linear(WIDTH, KV_HEADS * HEAD, bias=False)
        self.v_proj = nn.Linear(WIDTH, KV_HEADS * HEAD, bias=False)
        self.o_proj = nn.Linear(HEADS * HEAD, WIDTH, bias=False)


class Gated(nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.gate_proj = nn.Linear(WIDTH, 13, bias=False)
        self.up_proj = nn.Linear(WIDTH, 13, bias=False)
        self.down_proj = nn.Linear(13, WIDTH, bias=False)
        self.activation = activation

    def forward(self, x):
        return self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))


class Qwen3Attention(Projections):
    def __init__(self):
        super().__init__()
        self.q_norm, self.k_norm = RMSNorm(HEAD), RMSNorm(HEAD)

    def forward(self, x):
        q = rope(self.q_norm(heads(self.q_proj(x), HEADS)), 500.0)
        k = rope(self.k_norm(heads(self.k_proj(x), KV_HEADS)), 500.0)
        return self.o_proj(attend(q, k, heads(self.v_proj(x), KV_HEADS)))


class Qwen3Block(nn.Module):
    text = """
name: Qwen3Block
args: {width: 20, heads: 4, kv: 2, head: 6}
input: [9, width]
targets: [9, width]
blocks:
  Attention:
    modules:
      q_proj: Linear(width, heads * head, bias=False)
      k_proj: Linear(width, kv * head, bias=False)
      v_proj: Linear(width, kv * head, bias=False)
      o_proj: Linear(heads * head, width, bias=False)
      q_norm: RMSNorm(head, eps=1e-6)
      k_norm: RMSNorm(head, eps=1e-6)
    forward:
      - q = rope(flatten(q_norm(unflatten(q_proj(x), -1, (heads, head))), 2), head, 500.0)
      - k = rope(flatten(k_norm(unflatten(k_proj(x), -1, (kv, head))), 2), head, 500.0)
      - output = o_proj(attention(q, k, v_proj(x), num_heads=heads, num_kv_heads=kv, is_causal=True))
  MLP:
    modules:
      gate_proj: Linear(width, 13, bias=False)
      up_proj: Linear(width, 13, bias=False)
      down_proj: Linear(13, width, bias=False)
    forward: [output = down_proj(silu(gate_proj(x)) * up_proj(x))]
modules:
  self_attn: Attention()
  mlp: MLP()
  input_norm: RMSNorm(width, eps=1e-6)
  post_norm: RMSNorm(width, eps=1e-6)
forward:
  - y = x + self_attn(input_norm(x))
  - output = y + mlp(post_norm(y))
loss: mse_loss(output, target)
"""

    def __init__(self):
        super().__init__()
        self.self_attn, self.mlp = Qwen3Attention(), Gated(F.silu)
        self.input_norm, self.post_norm = RMSNorm(WIDTH), RMSNorm(WIDTH)

    def forward(self, x):
        x = x + self.self_attn(self.input_norm(x))
        return x + self.mlp(self.post_norm(x))


class GemmaAttention(Projections):
    def forward(self, x):
        q = rope(heads(self.q_proj(x), HEADS), 10000.0)
        k = rope(heads(self.k_proj(x), KV_HEADS), 10000.0)
        return self.o_proj(attend(q, k, heads(self.v_proj(x), KV_HEADS), window=4, cap=1.5))


class GemmaBlock(nn.Module):
    text = """
name: GemmaBlock
args: {width: 20, heads: 4, kv: 2, head: 6}
input: [9, width]
targets: [9, width]
blocks:
  Attention:
    modules:
      q_proj: Linear(width, heads * head, bias=False)
      k_proj: Linear(width, kv * head, bias=False)
      v_proj: Linear(width, kv * head, bias=False)
      o_proj: Linear(heads * head, width, bias=False)
    forward:
      - q = rope(q_proj(x), head)
      - k = rope(k_proj(x), head)
      - y = attention(q, k, v_proj(x), num_heads=heads, num_kv_heads=kv, is_causal=True, window=4, softcap=1.5)
      - output = o_proj(y)
  MLP:
    modules:
      gate_proj: Linear(width, 13, bias=False)
      up_proj: Linear(width, 13, bias=False)
      down_proj: Linear(13, width, bias=False)
    forward: ["output = down_proj(gelu(gate_proj(x), approximate='tanh') * up_proj(x))"]
modules:
  self_attn: Attention()
  mlp: MLP()
  input_norm: GemmaRMSNorm(width)
  post_norm: GemmaRMSNorm(width)
  pre_norm: GemmaRMSNorm(width)
  last_norm: GemmaRMSNorm(width)
forward:
  - x = sqrt(width) * x
  - x += post_norm(self_attn(input_norm(x)))
  - x += last_norm(mlp(pre_norm(x)))
  - output = 3.0 * tanh(x / 3.0)
loss: mse_loss(output, target)
"""

    def __init__(self):
        super().__init__()
        self.self_attn = GemmaAttention()
        self.mlp = Gated(lambda x: F.gelu(x, approximate="tanh"))
        self.input_norm, self.post_norm = RMSNorm(WIDTH, 1), RMSNorm(WIDTH, 1)
        self.pre_norm, self.last_norm = RMSNorm(WIDTH, 1), RMSNorm(WIDTH, 1)

    def forward(self, x):
        x = math.sqrt(WIDTH) * x
        x = x + self.post_norm(self.self_attn(self.input_norm(x)))
        x = x + self.last_norm(self.mlp(self.pre_norm(x)))
        return 3 * torch.tanh(x / 3)
