#!/usr/bin/env python3
"""random_families.py FIRST COUNT: language models of random configurations whose positions are turned by neighbouring
columns, or said by ALiBi, or whose queries, keys and values are clipped, against transformers: logits, loss and all
gradients. With a Python that has transformers; srcdir and builddir as in a test. Prints what differs, and the worst error. The
bound of a configuration is larger where rounding alone makes more of a difference to transformers itself."""

import os
import random
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import numpy
import torch
from torch.nn import functional as F
from family_models import blank_model, largest, modules_of, scale_name

BOUND, ROUNDING, BATCH = 1e-5, 4, 3  # of the largest element, and of what transformers' own f32 makes of it
BUILD = os.environ.get("builddir", ".")


def joint(draw):
    heads, head = draw.choice((1, 2, 3, 4, 6)), 2 * draw.randint(1, 6)
    return heads, head, dict(
        n_positions=23, n_embd=heads * head, n_layer=draw.randint(1, 2), n_head=heads, n_inner=draw.randint(5, 40),
        rotary_dim=2 * draw.randint(1, head // 2), tie_word_embeddings=False, embd_pdrop=0, attn_pdrop=0, resid_pdrop=0)


def decoder(draw):
    heads = draw.choice((1, 2, 3, 4, 6))
    kv = draw.choice([kv for kv in range(1, heads + 1) if heads % kv == 0])
    head = 2 * draw.randint(1, 6)
    return heads, head, dict(
        hidden_size=heads * head, intermediate_size=draw.randint(5, 40), num_hidden_layers=draw.randint(1, 2),
        num_attention_heads=heads, num_key_value_heads=kv, max_position_embeddings=23, attention_dropout=0.0,
        tie_word_embeddings=draw.random() < 0.5, pad_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": draw.choice((50.0, 1e4, 5e5))})


def scaled(draw, settings):
    """Sometimes with a scaling of positions."""
    rope = settings["rope_parameters"]
    kind = draw.choice(("default", "default", "linear", "llama3", "yarn"))
    if kind != "default":
        rope.update(rope_type=kind, factor=draw.choice((2.0, 4.0, 8.0)))
    if kind == "llama3":
        rope.update(low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)
    if kind == "yarn":
        rope.update(original_max_position_embeddings=draw.choice((6, 12)))
    return settings


def cohere(draw):
    heads, head, settings = decoder(draw)
    settings.update(logit_scale=draw.uniform(0.1, 2), attention_bias=draw.random() < 0.5,
                    use_qk_norm=draw.random() < 0.5 and head > 2, layer_norm_eps=draw.choice((1e-5, 1e-3)))
    return "CohereForCausalLM", scaled(draw, settings)


def cohere2(draw):
    heads, head, settings = decoder(draw)
    kinds = ("full_attention", "sliding_attention")
    settings.update(logit_scale=draw.uniform(0.1, 2), attention_bias=draw.random() < 0.5, num_hidden_layers=2,
                    sliding_window=draw.randint(2, 25), layer_types=[draw.choice(kinds) for _ in range(2)])
    return "Cohere2ForCausalLM", scaled(draw, settings)


def glm(draw):
    heads, head, settings = decoder(draw)
    settings.update(head_dim=head, hidden_size=draw.randint(5, 30), attention_bias=draw.random() < 0.5)
    turned = 2 * draw.randint(1, head // 2)
    settings["rope_parameters"]["partial_rotary_factor"] = turned / head
    return draw.choice(("GlmForCausalLM", "Glm4ForCausalLM")), settings


def ernie(draw):
    heads, head, settings = decoder(draw)
    settings.update(head_dim=head, hidden_size=heads * draw.randint(2, 9), use_bias=draw.random() < 0.5)
    return "Ernie4_5ForCausalLM", scaled(draw, settings)


def helium(draw):
    heads, head, settings = decoder(draw)
    settings.update(head_dim=head, attention_bias=draw.random() < 0.5)
    return "HeliumForCausalLM", scaled(draw, settings)


def gptj(draw):
    return "GPTJForCausalLM", joint(draw)[2]


def codegen(draw):
    heads, head, settings = joint(draw)
    return "CodeGenForCausalLM", dict(settings, n_head=4, n_embd=4 * head)  # transformers' has four parts


def olmo(draw):
    heads, head, settings = decoder(draw)
    return "OlmoForCausalLM", dict(settings, attention_bias=draw.random() < 0.5,
                                   clip_qkv=draw.choice((None, 0.1, 0.5, 2.0)))


def bloom(draw):
    heads = draw.randint(1, 13)
    return "BloomForCausalLM", dict(
        seq_length=23, hidden_size=2 * heads * draw.randint(1, 4), n_layer=draw.randint(1, 2), n_head=heads,
        apply_residual_connection_post_layernorm=draw.random() < 0.5, tie_word_embeddings=draw.random() < 0.5,
        layer_norm_epsilon=draw.choice((1e-5, 1e-3)))


def mpt(draw):
    heads = draw.randint(1, 13)
    config = {"clip_qkv": draw.choice((None, 0.0, 0.1, 0.5, 2.0))}
    if draw.random() < 0.5:
        config["softmax_scale"] = draw.uniform(0.1, 1.5)
    return "MptForCausalLM", dict(
        max_seq_len=23, d_model=2 * heads * draw.randint(1, 4), n_layers=draw.randint(1, 2), n_heads=heads,
        attn_config=config, tie_word_embeddings=draw.random() < 0.5, layer_norm_epsilon=draw.choice((1e-5, 1e-3)))


def falcon(draw):
    heads = draw.randint(1, 12)
    settings = dict(
        hidden_size=2 * heads * draw.randint(1, 4), num_hidden_layers=draw.randint(1, 2), num_attention_heads=heads,
        max_position_embeddings=23, ffn_hidden_size=draw.randint(5, 40), alibi=draw.random() < 0.7,
        multi_query=draw.random() < 0.5, parallel_attn=draw.random() < 0.5, bias=draw.random() < 0.5,
        tie_word_embeddings=draw.random() < 0.5)
    if draw.random() < 0.3:
        kv = draw.choice([kv for kv in range(1, heads + 1) if heads % kv == 0])
        settings.update(new_decoder_architecture=True, num_kv_heads=kv, parallel_attn=True)
    return "FalconForCausalLM", settings


FAMILIES = (cohere, cohere2, glm, ernie, helium, gptj, codegen, olmo, bloom, mpt, falcon)


def numbers_of(model, tokens, targets):
    """Logits, loss, and gradients by name."""
    logits = model(input_ids=tokens).logits
    loss = F.cross_entropy(logits.flatten(0, -2), targets.flatten())
    model.zero_grad()
    loss.backward()
    gradients = {name: value.grad.clone() for name, value in model.named_parameters(remove_duplicate=False)}
    return logits.detach(), loss.detach(), gradients


def error_of(found, expected):
    """Of logits, loss, and gradients by name."""
    worst = max(largest(found[0] - expected[0]) / largest(expected[0]), abs(float(found[1]) / float(expected[1]) - 1))
    most = max(largest(gradient) for gradient in expected[2].values())
    for name, gradient in found[2].items():
        measure = max(largest(expected[2][scale_name(name)]), 1e-2 * most)  # a key that is alone has no score
        worst = max(worst, largest(gradient - expected[2][name]) / measure)
    return worst


def compare(kind, settings, seed):
    """The worst error and its bound, or what went wrong."""
    time = random.Random(seed).randint(1, 23)
    torch.manual_seed(seed)
    model = blank_model(kind, settings)[0].eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            norm = "norm" in path.lower() or "ln_" in path
            parameter.copy_((norm and path.endswith("weight")) + (0.2 if norm else 0.25) * torch.randn_like(parameter))
    tokens, targets = (torch.randint(0, settings["vocab_size"], (BATCH, time)) for _ in range(2))
    with tempfile.TemporaryDirectory() as directory:
        path, batch = os.path.join(directory, "model"), os.path.join(directory, "batch")
        model.save_pretrained(path)
        torch.stack([tokens, targets]).numpy().astype("<i4").tofile(batch)
        program = os.path.join(BUILD, "tests/parity/dump_transformer")
        result = subprocess.run([program, path, "-", batch, str(BATCH), str(time), "cpu"], capture_output=True)
    if result.returncode != 0:
        return result.stderr.decode().strip()
    plain = numbers_of(model, tokens, targets)
    expected = numbers_of(model.double(), tokens, targets)  # keeps f32 rounding out of the comparison
    found = torch.from_numpy(numpy.frombuffer(result.stdout, dtype="<f4").astype("f8"))
    at, gradients = expected[0].numel() + 1, {}
    for path in result.stderr.decode().split():
        for name in modules_of(path, expected[2]):
            size = expected[2][name].numel()
            gradients[name] = found[at:at + size].view_as(expected[2][name])
            at += size
    if at != found.numel():
        return f"{found.numel()} numbers instead of {at}"
    logits = found[:expected[0].numel()].view_as(expected[0])
    error = error_of((logits, found[logits.numel()], gradients), expected)
    return error, max(BOUND, ROUNDING * error_of(plain, expected))


def main():
    first, count = int(sys.argv[1]), int(sys.argv[2])
    worst, differ, seen = 0.0, 0, {}
    for seed in range(first, first + count):
        draw = random.Random(seed)
        kind, settings = FAMILIES[seed % len(FAMILIES)](draw)
        settings.update(vocab_size=draw.randint(5, 70), bos_token_id=None, eos_token_id=None)
        found = compare(kind, settings, seed)
        seen[kind] = seen.get(kind, 0) + 1
        if isinstance(found, str) or not found[0] <= found[1]:
            differ += 1
            print(f"{seed}: {kind} {settings}: {found}", flush=True)
        else:
            worst = max(worst, found[0])
    print(f"{count} configurations ({', '.join(f'{n} {kind}' for kind, n in sorted(seen.items()))}): {differ} differ, "
          f"the others within {worst:.1e}")
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
