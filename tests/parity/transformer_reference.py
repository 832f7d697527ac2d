"""GPT-2, Llama and BERT in plain PyTorch, with the parameter names of Hugging Face's transformers,
written from the papers and the published configurations: the oracle of test_transformers.py."""

import math

import torch
from torch import nn
from torch.nn import functional as F


class Conv1D(nn.Module):
    """A linear layer whose weight is stored input-major, like GPT-2's."""

    def __init__(self, nf, nx):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(nx, nf))
        self.bias = nn.Parameter(torch.empty(nf))

    def forward(self, x):
        return x @ self.weight + self.bias


def heads_of(x, heads):
    batch, time, width = x.shape
    return x.view(batch, time, heads, width // heads).transpose(1, 2)


def attend(q, k, v, causal=False, mask=None):
    """By head; `mask` is (batch, time), False for hidden places."""
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        time = q.shape[-2]
        scores = scores.masked_fill(~torch.ones(time, time, dtype=torch.bool).tril(), -math.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None, :], -math.inf)
    y = scores.softmax(-1) @ v
    return y.transpose(1, 2).flatten(2)


# --- GPT-2 ---

class GPT2Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.c_attn = Conv1D(3 * width, width)
        self.c_proj = Conv1D(width, width)

    def forward(self, x):
        q, k, v = (heads_of(part, self.heads) for part in self.c_attn(x).chunk(3, -1))
        return self.c_proj(attend(q, k, v, causal=True))


class GPT2MLP(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.c_fc = Conv1D(4 * width, width)
        self.c_proj = Conv1D(width, 4 * width)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class GPT2Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = GPT2Attention(width, heads)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = GPT2MLP(width)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT2Model(nn.Module):
    def __init__(self, vocabulary, context, width, layers, heads):
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(context, width)
        self.h = nn.ModuleList(GPT2Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        return self.ln_f(x)


class GPT2LMHeadModel(nn.Module):
    def __init__(self, vocabulary, context, width, layers, heads):
        super().__init__()
        self.transformer = GPT2Model(vocabulary, context, width, layers, heads)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.transformer.wte.weight

    def forward(self, tokens):
        return self.lm_head(self.transformer(tokens))


# --- Llama ---

class RMSNorm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.eps = eps

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps))


def llama3_frequencies(head_dim, theta, factor, low, high, context):
    """Slows long waves down by `factor`, keeps short ones, and blends those in between. In f32, as
    in transformers: the error at a context of 128k positions does not matter."""
    frequencies = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    waves = 2 * math.pi / frequencies
    blend = (context / waves - low) / (high - low)
    blended = (1 - blend) * frequencies / factor + blend * frequencies
    slowed = torch.where(waves > context / low, frequencies / factor, frequencies)
    between = (waves <= context / low) & (waves >= context / high)
    return torch.where(between, blended, slowed)


def rotate(x, frequencies):
    """x is (batch, heads, time, head_dim); the first half of a head's columns pairs the second."""
    angles = torch.arange(x.shape[-2], dtype=torch.float32)[:, None] * frequencies
    angles = torch.cat([angles, angles], -1)
    cosines, sines = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, -1)
    return x * cosines + torch.cat([-second, first], -1) * sines


class LlamaAttention(nn.Module):
    def __init__(self, width, heads, kv_heads, head_dim, frequencies):
        super().__init__()
        self.heads, self.kv_heads, self.frequencies = heads, kv_heads, frequencies
        self.q_proj = nn.Linear(width, heads * head_dim, bias=False)
        self.k_proj = nn.Linear(width, kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(width, kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(heads * head_dim, width, bias=False)

    def forward(self, x):
        q = rotate(heads_of(self.q_proj(x), self.heads), self.frequencies)
        k = rotate(heads_of(self.k_proj(x), self.kv_heads), self.frequencies)
        v = heads_of(self.v_proj(x), self.kv_heads)
        group = self.heads // self.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        return self.o_proj(attend(q, k, v, causal=True))


class LlamaMLP(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaDecoderLayer(nn.Module):
    def __init__(self, width, inner, heads, kv_heads, head_dim, frequencies, eps):
        super().__init__()
        self.self_attn = LlamaAttention(width, heads, kv_heads, head_dim, frequencies)
        self.mlp = LlamaMLP(width, inner)
        self.input_layernorm = RMSNorm(width, eps)
        self.post_attention_layernorm = RMSNorm(width, eps)

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class LlamaModel(nn.Module):
    def __init__(self, vocabulary, width, inner, layers, heads, kv_heads, head_dim, frequencies,
                 eps=1e-5):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            LlamaDecoderLayer(width, inner, heads, kv_heads, head_dim, frequencies, eps)
            for _ in range(layers))
        self.norm = RMSNorm(width, eps)

    def forward(self, tokens):
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class LlamaForCausalLM(nn.Module):
    def __init__(self, vocabulary, width, *sizes):
        super().__init__()
        self.model = LlamaModel(vocabulary, width, *sizes)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        return self.lm_head(self.model(tokens))


# --- BERT ---

class BertEmbeddings(nn.Module):
    def __init__(self, vocabulary, context, width):
        super().__init__()
        self.word_embeddings = nn.Embedding(vocabulary, width, padding_idx=0)
        self.position_embeddings = nn.Embedding(context, width)
        self.token_type_embeddings = nn.Embedding(2, width)
        self.LayerNorm = nn.LayerNorm(width, eps=1e-12)

    def forward(self, tokens):
        x = self.word_embeddings(tokens) + self.token_type_embeddings(torch.zeros_like(tokens))
        return self.LayerNorm(x + self.position_embeddings(torch.arange(tokens.shape[1])))


class BertSelfAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)

    def forward(self, x, mask):
        q, k, v = (heads_of(part(x), self.heads) for part in (self.query, self.key, self.value))
        return attend(q, k, v, mask=mask)


class BertOutput(nn.Module):
    def __init__(self, inner, width):
        super().__init__()
        self.dense = nn.Linear(inner, width)
        self.LayerNorm = nn.LayerNorm(width, eps=1e-12)

    def forward(self, x, residual):
        return self.LayerNorm(self.dense(x) + residual)


class BertAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.self = BertSelfAttention(width, heads)
        self.output = BertOutput(width, width)

    def forward(self, x, mask):
        return self.output(self.self(x, mask), x)


class BertIntermediate(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.dense = nn.Linear(width, inner)

    def forward(self, x):
        return F.gelu(self.dense(x))


class BertLayer(nn.Module):
    def __init__(self, width, inner, heads):
        super().__init__()
        self.attention = BertAttention(width, heads)
        self.intermediate = BertIntermediate(width, inner)
        self.output = BertOutput(inner, width)

    def forward(self, x, mask):
        y = self.attention(x, mask)
        return self.output(self.intermediate(y), y)


class BertEncoder(nn.Module):
    def __init__(self, width, inner, layers, heads):
        super().__init__()
        self.layer = nn.ModuleList(BertLayer(width, inner, heads) for _ in range(layers))

    def forward(self, x, mask):
        for layer in self.layer:
            x = layer(x, mask)
        return x


class BertModel(nn.Module):
    def __init__(self, vocabulary, context, width, inner, layers, heads):
        super().__init__()
        self.embeddings = BertEmbeddings(vocabulary, context, width)
        self.encoder = BertEncoder(width, inner, layers, heads)

    def forward(self, tokens):
        return self.encoder(self.embeddings(tokens), tokens != 0)


class BertPredictionHeadTransform(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.LayerNorm = nn.LayerNorm(width, eps=1e-12)

    def forward(self, x):
        return self.LayerNorm(F.gelu(self.dense(x)))


class BertLMPredictionHead(nn.Module):
    def __init__(self, vocabulary, width):
        super().__init__()
        self.transform = BertPredictionHeadTransform(width)
        self.decoder = nn.Linear(width, vocabulary)

    def forward(self, x):
        return self.decoder(self.transform(x))


class BertOnlyMLMHead(nn.Module):
    def __init__(self, vocabulary, width):
        super().__init__()
        self.predictions = BertLMPredictionHead(vocabulary, width)

    def forward(self, x):
        return self.predictions(x)


class BertForMaskedLM(nn.Module):
    def __init__(self, vocabulary, context, width, inner, layers, heads):
        super().__init__()
        self.bert = BertModel(vocabulary, context, width, inner, layers, heads)
        self.cls = BertOnlyMLMHead(vocabulary, width)
        self.cls.predictions.decoder.weight = self.bert.embeddings.word_embeddings.weight

    def forward(self, tokens):
        return self.cls(self.bert(tokens))
