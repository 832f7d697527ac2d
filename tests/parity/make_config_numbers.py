#!/usr/bin/env python3
"""Changes every key of every family's config.json, one or two at a time: other values, null, absence,
old and new spellings, both spellings, at the top and inside objects. Compares the loss of weights
that are made of names and numbers (tests/unit/config_loss.c) with transformers, in double.

    make_config_numbers.py [--trials N] [--seed N] [--families A,B]      compare N trials
    make_config_numbers.py --write tests/parity/configs.txt   write 300 of them as numbers

A trial differs in silence if both have a loss, not the same one, and no note says why.
"""

import argparse
import copy
import json
import os
import random
import subprocess
import sys
import tempfile
import warnings

import numpy
import torch
import transformers
from torch.nn import functional as F

sys.path.insert(0, os.path.dirname(__file__))
from family_cases import attention_of

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity(100)

SOURCE, BUILD = os.environ.get("srcdir", "."), os.environ.get("builddir", "build")
SAMPLES, TIME, FIRST, LAST = 3, 16, 4, 60
BOUND = 2e-5
SAMPLE = 300

DECODER = dict(vocab_size=61, hidden_size=16, intermediate_size=20, num_hidden_layers=2,
               num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=23,
               pad_token_id=3, bos_token_id=1, eos_token_id=2)
ENCODER = dict(vocab_size=61, hidden_size=16, intermediate_size=20, num_hidden_layers=2,
               num_attention_heads=2, max_position_embeddings=23, pad_token_id=3)
ROBERTA = dict(ENCODER, max_position_embeddings=27)
IMAGES = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=20,
              image_size=14, patch_size=7, num_channels=1, num_labels=3)
STAGES = dict(num_channels=1, num_labels=3, image_size=14)
DECODERS = {
    "llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "gemma": "Gemma",
    "gemma2": "Gemma2", "gemma3_text": "Gemma3", "phi3": "Phi3", "granite": "Granite",
    "stablelm": "StableLm", "phi": "Phi", "gpt_neox": "GPTNeoX", "olmo": "Olmo", "olmo2": "Olmo2",
    "smollm3": "SmolLM3", "arcee": "Arcee", "nemotron": "Nemotron", "exaone4": "Exaone4",
    "starcoder2": "Starcoder2", "olmo3": "Olmo3", "seed_oss": "SeedOss", "ministral": "Ministral",
    "jais2": "Jais2", "vaultgemma": "VaultGemma", "cohere": "Cohere", "cohere2": "Cohere2", "glm": "Glm",
    "glm4": "Glm4", "ernie4_5": "Ernie4_5", "helium": "Helium", "cwm": "Cwm", "hunyuan_v1_dense": "HunYuanDenseV1",
    "hyperclovax": "HyperCLOVAX", "nanochat": "NanoChat", "persimmon": "Persimmon", "biogpt": "BioGpt",
    "gpt_neox_japanese": "GPTNeoXJapanese", "exaone": "Llama", "internlm3": "Llama", "iquestcoder": "Llama",
    "modernbert-decoder": "ModernBertDecoder"}
MORE = {"gemma": {"head_dim": 8}, "gemma2": {"head_dim": 8, "sliding_window": 6},
        "gemma3_text": {"head_dim": 8, "sliding_window": 6}, "qwen3": {"head_dim": 8},
        "mistral": {"sliding_window": 6}, "ministral": {"sliding_window": 6, "head_dim": 8},
        "olmo3": {"sliding_window": 6}, "seed_oss": {"head_dim": 8},
        "vaultgemma": {"head_dim": 8, "sliding_window": 6}, "cohere2": {"sliding_window": 6},
        "glm": {"head_dim": 8}, "glm4": {"head_dim": 8}, "ernie4_5": {"head_dim": 8},
        "helium": {"head_dim": 8}, "stablelm": {"hidden_size": 32},
        "gpt_neox": {"hidden_size": 32}, "phi": {"hidden_size": 32},
        "cwm": {"head_dim": 8, "sliding_window": 6, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
        "hunyuan_v1_dense": {"head_dim": 8}, "persimmon": {"hidden_size": 32}, "gpt_neox_japanese": {"hidden_size": 32},
        "internlm3": {"head_dim": 8}, "iquestcoder": {"head_dim": 8}, "modernbert-decoder": {"local_attention": 8},
        "exaone4": {"sliding_window": 6, "num_hidden_layers": 4,
                    "layer_types": ["sliding_attention"] * 3 + ["full_attention"]}}
ENCODERS = {"bert": ("Bert", ENCODER), "ernie": ("Ernie", ENCODER), "megatron-bert": ("MegatronBert", ENCODER),
            "roberta-prelayernorm": ("RobertaPreLayerNorm", ROBERTA), "xlm-roberta-xl": ("XLMRobertaXL", ROBERTA),
            "rembert": ("RemBert", dict(ENCODER, input_embedding_size=10, output_embedding_size=12)),
            "eurobert": ("EuroBert", dict(ENCODER, num_key_value_heads=1)),
            "albert": ("Albert", dict(ENCODER, embedding_size=10, num_hidden_layers=4, num_hidden_groups=2)),
            "electra": ("Electra", dict(ENCODER, embedding_size=10)),
            "roberta": ("Roberta", ROBERTA), "camembert": ("Camembert", ROBERTA),
            "xlm-roberta": ("XLMRoberta", ROBERTA),
            "mpnet": ("MPNet", dict(ENCODER, pad_token_id=1, max_position_embeddings=25)),
            "modernbert": ("ModernBert", dict(ENCODER, local_attention=8)),
            "distilbert": ("DistilBert", dict(vocab_size=61, dim=16, hidden_dim=20, n_layers=2,
                                              n_heads=2, max_position_embeddings=23,
                                              pad_token_id=3))}
PICTURES = {"vit": ("ViT", IMAGES), "deit": ("DeiT", IMAGES),
            "convnext": ("ConvNext", dict(STAGES, patch_size=2, hidden_sizes=[4, 6], depths=[1, 1],
                                          num_stages=2, layer_scale_init_value=0.5)),
            "resnet": ("ResNet", dict(STAGES, embedding_size=4, hidden_sizes=[8, 8],
                                      depths=[2, 1])),
            "ijepa": ("IJepa", IMAGES), "dinov2": ("Dinov2", dict(IMAGES, mlp_ratio=2)),
            "dinov2_with_registers": ("Dinov2WithRegisters", dict(IMAGES, mlp_ratio=2)),
            "convnextv2": ("ConvNextV2", dict(STAGES, patch_size=2, hidden_sizes=[4, 6], depths=[1, 1], num_stages=2)),
            "regnet": ("RegNet", dict(STAGES, embedding_size=4, hidden_sizes=[8, 8], depths=[2, 1], groups_width=4)),
            "poolformer": ("PoolFormer", dict(STAGES, hidden_sizes=[4, 5, 6, 7], depths=[1, 1, 1, 1], strides=[2, 2, 1, 1],
                                              patch_sizes=[3, 3, 3, 3], padding=[1, 1, 1, 1])),
            **{kind: (name, dict(num_labels=3, vision_config={key: value for key, value in IMAGES.items()
                                                              if key != "num_labels"}))
               for kind, name in (("clip", "CLIP"), ("metaclip_2", "MetaClip2"), ("siglip", "Siglip"))}}
# Language models of larger ones, whose keys are those of a part, as are the keys of towers that classify.
TEXT = {key: value for key, value in DECODER.items() if not key.endswith("token_id")}
TOWER = dict(hidden_size=8, intermediate_size=8, num_attention_heads=2, num_hidden_layers=1, image_size=8, patch_size=4)
VISUAL = dict(depth=1, hidden_size=8, intermediate_size=8, num_heads=2, patch_size=4)
TEXTS = {"gemma3": ("Gemma3", dict(vision_config=TOWER, mm_tokens_per_image=4,
                                   text_config=dict(TEXT, head_dim=8, sliding_window=6, model_type="gemma3_text"))),
         "mistral3": ("Mistral3", dict(vision_config=dict(TOWER, head_dim=4), image_token_index=2,
                                       text_config=dict(TEXT, head_dim=8, sliding_window=6, model_type="mistral"))),
         "qwen2_5_vl": ("Qwen2_5_VL", dict(
             vision_config=dict(VISUAL, out_hidden_size=16, fullatt_block_indexes=[0]), text_config=dict(
                 TEXT, model_type="qwen2_5_vl_text", rope_parameters={
                     "rope_type": "default", "rope_theta": 900.0, "mrope_section": [2, 1, 1]}))),
         "qwen3_vl": ("Qwen3VL", dict(
             vision_config=dict(VISUAL, out_hidden_size=16, num_position_embeddings=4, deepstack_visual_indexes=[0]),
             text_config=dict(TEXT, head_dim=8, model_type="qwen3_vl_text", rope_parameters={
                 "rope_type": "default", "rope_theta": 900.0, "mrope_section": [2, 1, 1]})))}
PARTS = {**dict.fromkeys(TEXTS, "text_config"), **dict.fromkeys(("clip", "metaclip_2", "siglip"), "vision_config")}
TWO_HEADS = {"gemma3_text": ["ForSequenceClassification"], "olmo3": ["ForSequenceClassification"],
             **dict.fromkeys(("olmo", "olmo2", "granite", "jais2", "vaultgemma", "cohere", "cohere2",
                              "ernie4_5", "cwm", "hunyuan_v1_dense", "hyperclovax", "nanochat", "persimmon", "biogpt",
                              "gpt_neox_japanese", "exaone", "internlm3", "iquestcoder", "modernbert-decoder"), [])}
MASKED_ALONE = ("megatron-bert", "roberta-prelayernorm", "xlm-roberta-xl", "rembert", "eurobert", "albert")
NAMES = {"gemma3_text": "Gemma3Text"}


def make_bases():
    """The config.json of every family, with every one of its heads."""
    bases = []
    for kind, name in DECODERS.items():
        settings = dict(DECODER, **MORE.get(kind, {}))
        bases.append(dict(settings, model_type=kind, architectures=[name + "ForCausalLM"]))
        for head in TWO_HEADS.get(kind, ["ForSequenceClassification", "ForTokenClassification"]):
            bases.append(dict(settings, model_type=kind, num_labels=3,
                              architectures=[NAMES.get(kind, name) + head]))
    gpt2 = dict(vocab_size=61, n_positions=23, n_embd=16, n_layer=2, n_head=2, pad_token_id=3)
    joint = dict(gpt2, n_embd=32, n_head=4, rotary_dim=4)
    opt = dict(DECODER, ffn_dim=20)
    bloom = dict(vocab_size=61, seq_length=23, hidden_size=24, n_layer=2, n_head=3, pad_token_id=3)
    mpt = dict(vocab_size=61, max_seq_len=23, d_model=24, n_layers=2, n_heads=3, pad_token_id=3, attn_config={})
    falcon = dict(vocab_size=61, hidden_size=48, num_hidden_layers=2, num_attention_heads=12, pad_token_id=3,
                  max_position_embeddings=23)
    for base, kind, name, heads in (
            (gpt2, "gpt2", "GPT2", ["LMHeadModel", "ForSequenceClassification"]),
            (joint, "gptj", "GPTJ", ["ForCausalLM", "ForSequenceClassification"]),
            (joint, "codegen", "CodeGen", ["ForCausalLM"]),
            (gpt2, "openai-gpt", "OpenAIGPT", ["LMHeadModel"]),
            (bloom, "bloom", "Bloom", ["ForCausalLM"]),
            (mpt, "mpt", "Mpt", ["ForCausalLM"]),
            (falcon, "falcon", "Falcon", ["ForCausalLM"]),
            (opt, "opt", "OPT", ["ForCausalLM", "ForSequenceClassification"])):
        bases += [dict(base, model_type=kind, architectures=[name + head]) for head in heads]
    for kind, (name, settings) in ENCODERS.items():
        for head in ("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")[:1 if kind in MASKED_ALONE else 3]:
            bases.append(dict(settings, model_type=kind, architectures=[name + head]))
    for kind, (name, settings) in PICTURES.items():
        bases.append(dict(settings, model_type=kind,
                          architectures=[name + "ForImageClassification"]))
    for kind, (name, settings) in TEXTS.items():
        bases.append(dict(settings, model_type=kind, architectures=[name + "ForConditionalGeneration"]))
    return bases


def numbers(name, count):
    """As tests/unit/config_loss.c makes them."""
    hashed = numpy.uint32(0x811c9dc5)
    with numpy.errstate(over="ignore"):
        for byte in name.encode():
            hashed = (hashed ^ numpy.uint32(byte)) * numpy.uint32(0x01000193)
        x = hashed + numpy.arange(count, dtype=numpy.uint32) * numpy.uint32(0x9e3779b9)
        x = (x ^ x >> numpy.uint32(16)) * numpy.uint32(0x85ebca6b)
        x = (x ^ x >> numpy.uint32(13)) * numpy.uint32(0xc2b2ae35)
    return ((x ^ x >> numpy.uint32(16)) >> numpy.uint32(8)) / float(1 << 24)


# names in transformers' modules, and in files
RENAMED = {
    "vit": (("layers.", "encoder.layer."), ("attention.q_proj", "attention.attention.query"),
            ("attention.k_proj", "attention.attention.key"),
            ("attention.v_proj", "attention.attention.value"),
            ("attention.o_proj", "attention.output.dense"), ("mlp.fc1", "intermediate.dense"),
            ("mlp.fc2", "output.dense"))}
RENAMED.update(dict.fromkeys(("deit", "ijepa"), RENAMED["vit"]))
RENAMED.update(dict.fromkeys(("dinov2", "dinov2_with_registers"), RENAMED["vit"][1:5]))
RENAMED["exaone"] = (("model.embed_tokens", "transformer.wte"), ("model.layers.", "transformer.h."),
                     ("model.norm", "transformer.ln_f"), ("self_attn.o_proj", "self_attn.out_proj"),
                     ("self_attn", "attn.attention"), ("post_attention_layernorm", "ln_2"), ("input_layernorm", "ln_1"),
                     ("gate_proj", "c_fc_0"), ("up_proj", "c_fc_1"), ("down_proj", "c_proj"))
BEGINNINGS = {"gpt_neox": (("lm_head.", "embed_out."),),
              "qwen2_5_vl": (("model.language_model.", "model."),),
              **dict.fromkeys(("gemma3", "mistral3"), (("model.language_model.", "language_model.model."),
                                                       ("lm_head.", "language_model.lm_head.")))}


def name_in_files(kind, name):
    for new, old in RENAMED.get(kind, ()):
        name = name.replace(new, old)
    for new, old in BEGINNINGS.get(kind, ()):
        name = old + name[len(new):] if name.startswith(new) else name
    return name


def fill(kind, model):
    tensors = list(model.named_parameters(remove_duplicate=False)) + list(model.named_buffers())
    # what is tied has the name of the embeddings, and of the head's own bias: they come last
    tensors.sort(key=lambda item: 2 * ("embed" in item[0] and "embed_out" not in item[0] or "wte" in item[0]) +
                 (not item[0].endswith("decoder.bias")))
    for path, value in tensors:
        if path.endswith("num_batches_tracked") or not (
                isinstance(value, torch.nn.Parameter) or path.endswith(("running_mean",
                                                                       "running_var"))):
            continue
        name = name_in_files(kind, path)
        norm = "norm" in name or "Norm" in name or "ln_" in name
        middle = 1 if norm and name.endswith(("weight", "running_var")) else 0
        made = (middle + 0.8 * (numbers(name, value.numel()) - 0.5)).astype("f4")
        with torch.no_grad():
            value.copy_(torch.from_numpy(made.astype("f8")).view_as(value))


CLASSES = {}


def make_model(text, dtype=torch.double):
    with tempfile.TemporaryDirectory() as directory:
        with open(os.path.join(directory, "config.json"), "w") as file:
            file.write(text)
        config = transformers.AutoConfig.from_pretrained(directory)
    name = json.loads(text)["architectures"][0]
    config._attn_implementation = attention_of(name)
    if config.model_type == "ministral":  # AutoModel's choice for a Mistral with layer_types
        name = name.replace("Mistral", "Ministral")
    return config, getattr(transformers, name)(config).to(dtype).eval()


def transformers_loss(text, dtype=torch.double, disturbed=0):
    """`disturbed`: the seed of changes of all weights by half a unit of f32's last place; 0: none."""
    torch.manual_seed(disturbed)
    given = json.loads(text)
    config, model = make_model(text, dtype)
    fill(given["model_type"], model)
    for parameter in model.parameters() if disturbed else ():
        parameter.data *= 1 + 2 ** -24 * (2 * torch.rand_like(parameter) - 1).double()
    if given["model_type"] in PICTURES:
        place = given.get(PARTS.get(given["model_type"]), given)
        size = place.get("image_size", 224)
        channels = getattr(config, PARTS.get(given["model_type"], ""), config).num_channels
        pixels = numbers("pixels", SAMPLES * channels * size * size).astype("f4").astype("f8")
        inputs = torch.from_numpy(pixels).view(SAMPLES, channels, size, size).to(dtype)
        logits = model(pixel_values=inputs).logits
    else:
        tokens = (FIRST + (numbers("tokens", SAMPLES * TIME) * (LAST - FIRST)).astype("i8"))
        tokens = torch.from_numpy(tokens).view(SAMPLES, TIME)
        encoder = given["model_type"] in ENCODERS
        # a decoder's batch has no padding; an encoder masks it
        mask = tokens != config.pad_token_id if encoder else torch.ones_like(tokens)
        logits = model(input_ids=tokens, attention_mask=mask.long()).logits
    classes = logits.shape[-1]
    kind = config.problem_type
    if "SequenceClassification" in given["architectures"][0] and (
            kind == "multi_label_classification" or kind == "regression" or
            (kind is None and classes == 1)):
        targets = torch.arange(logits.numel()).view_as(logits).to(dtype) % 2
        if kind == "multi_label_classification":
            return float(F.binary_cross_entropy_with_logits(logits, targets))
        return float(F.mse_loss(logits, targets))
    rows = logits.reshape(-1, classes)
    return float(F.cross_entropy(rows, torch.arange(rows.shape[0]) * 5 % classes))


OBJECTS = [
    {"rope_type": "default", "rope_theta": 500.0}, {"type": "linear", "factor": 2.0},
    {"rope_type": "linear", "factor": 3.0, "rope_theta": 77.0}, {}, None,
    {"rope_type": "dynamic", "factor": 2.0}, {"type": "yarn", "factor": 4.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 6},
    {"rope_type": "yarn", "factor": 4.0, "beta_fast": 8, "beta_slow": 2, "rope_theta": 900.0,
     "original_max_position_embeddings": 9},
    {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.2,
     "original_max_position_embeddings": 6},
    {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.5,
     "original_max_position_embeddings": 6},
    {"rope_type": "yarn", "factor": 4.0, "truncate": False, "original_max_position_embeddings": 6},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 8},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    {"rope_type": "default", "partial_rotary_factor": 0.5},
    {"rope_type": "linear", "factor": 2.0, "mystery": 1},
    {"rope_type": "dynamic", "factor": 1.0, "alpha": 30.0}, {"rope_type": "dynamic", "factor": 2.0},
    {"full_attention": {"rope_type": "linear", "factor": 2.0},
     "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}},
    {"full_attention": {"rope_theta": 123.0}, "sliding_attention": None},
    {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5},
    {"full_attention": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 6,
                        "partial_rotary_factor": 0.5}},
]
VALUES = {
    "rope_parameters": OBJECTS, "rope_scaling": OBJECTS,
    "rope_theta": [100.0, 5000, None], "original_max_position_embeddings": [5, 11, 23, None],
    "partial_rotary_factor": [0.5, 1.0, 0.25, None], "rotary_pct": [0.5, 1.0],
    "rotary_emb_base": [100, 5000.0], "rope_local_base_freq": [50.0, None],
    "global_rope_theta": [70.0], "local_rope_theta": [30.0],
    "num_labels": [1, 3, 5, 2, None],
    "id2label": [{"0": "a"}, {"0": "a", "1": "b", "2": "c", "3": "d"}, None],
    "num_key_value_heads": [None, 1, 2], "head_dim": [None, 8, 4, 6],
    "layer_types": [["full_attention"] * 2, ["sliding_attention"] * 2, None,
                    ["sliding_attention", "full_attention"], ["full_attention"] * 4],
    "tie_word_embeddings": [True, False, None],
    "problem_type": [None, "regression", "multi_label_classification",
                     "single_label_classification"],
    "layer_type": ["basic", "bottleneck"], "classifier_pooling": ["cls", "mean"],
    "position_embedding_type": ["absolute", "relative_key", None],
    "pad_token_id": [3, 0, 7, None, -1], "pretraining_tp": [1, 2, None],
    "no_rope_layers": [[1, 0], [0, 0], None, [1, 1]], "no_rope_layer_interval": [1, 2, 3],
    "sliding_window": [3, 5, None, 100], "sliding_window_pattern": [2, 1, 6, None],
    "use_sliding_window": [True, False], "max_window_layers": [0, 1, 2],
    "num_hidden_layers": [1, 2], "hidden_sizes": [[4, 6], [8, 12]], "depths": [[1, 1], [2, 2]],
    "num_stages": [2, None], "local_attention": [4, 6], "global_attn_every_n_layers": [1, 2],
    "word_embed_proj_dim": [8, 16, None], "clip_qkv": [None, 0.5], "n_inner": [12, None],
    "hidden_size": [8, 16, 32], "max_position_embeddings": [18, 23, 40], "vocab_size": [61, 67],
    "mystery": [1, "x", None, {"a": 1}], "use_cache": [False], "torch_dtype": ["float16", None],
    "dtype": ["bfloat16"], "attn_logit_softcapping": [None, 2.0], "is_decoder": [True],
    "final_logit_softcapping": [None, 1.5], "query_pre_attn_scalar": [4, 20],
    "use_bidirectional_attention": [True, False, None], "chunk_size_feed_forward": [0],
    "norm_eps": [1e-3], "layer_norm_eps": [1e-3], "rms_norm_eps": [1e-3], "norm_epsilon": [1e-3],
    "layer_norm_epsilon": [1e-3], "scale_attn_by_inverse_layer_idx": [True],
    "reorder_and_upcast_attn": [True], "image_size": [21], "drop_path_rate": [0.1],
    "relative_attention_num_buckets": [32, 40], "sync_batch_norm": [True],
    "initializer_cutoff_factor": [2.5], "embedding_size": [6, 16], "n_positions": [20],
    "encoder_stride": [8], "out_features": [["stage1"]], "per_layer_config": [None],
    "use_swiglu_ffn": [False, None],  # it has two tensors in one
    "alpha": [2.0], "intermediate_multiple_size": [2, 1.5], "num_hidden_groups": [1, 2, 3], "inner_group_num": [1, 2],
    "input_embedding_size": [6, 16], "output_embedding_size": [6, 16], "afn": ["gelu", "relu", "silu", "swish", "tanh"],
    "groups_width": [2, 4, 100], "pool_size": [3, 5], "mlp_ratio": [1, 2], "qk_layernorm": [True, False],
    "num_register_tokens": [1, 3], "layerscale_value": [0.5], "type_vocab_size": [1, 2, 3], "use_task_id": [True, False],
    "n_embd": [8, 16], "n_head": [1, 4], "dim": [8], "rotary_dim": [2, 4, 8, None], "logit_scale": [0.5, 3.0],
    "use_qk_norm": [True, False], "num_attention_heads": [1, 4, 2],
}
ACTIVATIONS = ["gelu", "gelu_10", "gelu_fast", "gelu_new", "gelu_python", "gelu_pytorch_tanh",
               "gelu_python_tanh", "gelu_accurate", "quick_gelu", "relu", "relu2", "silu", "swish",
               "tanh", "sigmoid", "mish", "linear", "relu6", None]
for key in ("hidden_act", "hidden_activation", "activation_function", "activation",
            "classifier_activation"):
    VALUES[key] = ACTIVATIONS
ABSENT = object()
BESIDE = ("num_labels", "id2label", "tie_word_embeddings", "mystery", "problem_type")  # what is at the top also where keys are in a part
COMMON = ["mystery", "layer_types", "tie_word_embeddings", "num_labels", "id2label", "use_cache",
          "torch_dtype", "problem_type", "original_max_position_embeddings", "rope_theta",
          "rope_scaling", "rope_parameters", "partial_rotary_factor", "num_key_value_heads",
          "sliding_window", "head_dim", "hidden_act", "is_decoder", "pad_token_id"]


def keys_of(base):
    config = transformers.CONFIG_MAPPING[base["model_type"]]()
    part = PARTS.get(base["model_type"])
    if part:  # what is beside it has no effect
        inner = getattr(config, part)
        return sorted((set(inner.to_dict()) | set(base[part]) | set(COMMON)) - {"model_type", "_name_or_path"}), inner.to_dict()
    keys = set(config.to_dict()) | set(base) | set(COMMON) | set(config.attribute_map)
    keys |= {"rotary_pct", "rotary_emb_base"} if base["model_type"] == "gpt_neox" else set()
    keys |= {"rope_local_base_freq", "sliding_window_pattern"} if base[
        "model_type"] in ("gemma3_text", "cohere2") else set()
    keys |= {"global_rope_theta", "local_rope_theta", "global_attn_every_n_layers"} if base[
        "model_type"] == "modernbert" else set()
    return sorted(keys - {"model_type", "architectures", "transformers_version", "label2id",
                          "_name_or_path"}), config.to_dict()


def values_of(key, default):
    if key in VALUES:
        return VALUES[key]
    if isinstance(default, bool):
        return [True, False]
    if isinstance(default, float):
        return [0.1, 0.5, 2.0] if "multiplier" in key or "scal" in key else [0.1]
    if isinstance(default, int):
        return [default, default * 2, 1]
    return [None]


def make_trials(count, seed, families=None):
    drawn = random.Random(seed)
    bases = [(base, *keys_of(base)) for base in make_bases() if families is None or base["model_type"] in families]
    trials = []
    seen = set()
    # half: a key with a value, drawn from all of all families; then two or three keys together
    for base, keys, standard in bases:
        for key in keys:
            # what a part of a larger model lacks has the size of a large model
            without = [] if key in base.get(PARTS.get(base["model_type"]), ()) else [None, ABSENT]
            for value in values_of(key, standard.get(key)) + without:
                trials.append((base, {key: value}))
    drawn.shuffle(trials)
    trials = trials[:count // 2]
    while len(trials) < 2 * count:
        base, keys, standard = drawn.choice(bases)
        change = {}
        weights = [6 if key in VALUES else 1 for key in keys]
        for key in drawn.choices(keys, weights, k=drawn.choice([2, 2, 3])):
            without = [] if key in base.get(PARTS.get(base["model_type"]), ()) else [ABSENT]
            change[key] = drawn.choice(values_of(key, standard.get(key)) + without)
        trials.append((base, change))
    made = []
    for base, change in trials:
        config = copy.deepcopy(base)
        part = PARTS.get(base["model_type"])
        for key, value in change.items():
            place = config[part] if part and key not in BESIDE else config
            if value is ABSENT:
                place.pop(key, None)
            else:
                place[key] = copy.deepcopy(value)
        text = json.dumps(config)
        if text not in seen and len(made) < count:
            seen.add(text)
            made.append(text)
    return made


def ours(texts):
    result = subprocess.run([os.path.join(BUILD, "tests/parity/dump_config_losses")],
                            input="".join(text + "\n" for text in texts), capture_output=True,
                            text=True, env=dict(os.environ, srcdir=SOURCE), check=True)
    return [line.split("|", 1) for line in result.stdout.splitlines()]


def theirs(text):
    try:
        return transformers_loss(text), ""
    except Exception as error:  # whatever transformers makes of it
        return None, f"{type(error).__name__}: {error}".replace("\n", " ")[:150]


def is_equal(text, found, loss):
    """But for rounding: wide models round more, which transformers in f32 shows, with weights that round differently."""
    bound = BOUND * max(1, abs(loss))
    if abs(found - loss) <= bound or abs(found - loss) > 50 * bound:
        return abs(found - loss) <= bound
    rounding = [abs(transformers_loss(text, torch.float32, seed) - loss) for seed in range(5)]
    return abs(found - loss) <= 4 * max(rounding)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write")
    parser.add_argument("--families", help="only of these model types: a,b")
    options = parser.parse_args()
    torch.set_num_threads(1)
    texts = make_trials(options.trials, options.seed, options.families.split(",") if options.families else None)
    counts = dict.fromkeys(["equal", "both refuse", "we refuse", "they refuse", "differ, noted",
                            "differ in silence"], 0)
    kept = []
    for text, (found, why) in zip(texts, ours(texts)):
        loss, problem = theirs(text)
        if loss is not None and loss != loss:
            loss, problem = None, "no number"
        if found == "refused":
            kind = "both refuse" if loss is None else "we refuse"
        elif loss is None:
            kind = "they refuse"
        elif is_equal(text, float(found), loss):
            kind = "equal"
        else:
            kind = "differ, noted" if why else "differ in silence"
        counts[kind] += 1
        if kind in ("equal", "both refuse", "we refuse"):
            kept.append((text, "refused" if found == "refused" else f"{loss:.7g}"))
        if kind.startswith("differ") or kind in ("we refuse", "they refuse") and "-v" in os.environ.get(
                "VERBOSE", ""):
            print(f"{kind}: {found} {loss} {why or problem}\n    {text}", flush=True)
    print(f"{len(texts)} trials, transformers {transformers.__version__}, torch "
          f"{torch.__version__}: " + ", ".join(f"{count} {kind}" for kind, count in counts.items()))
    if options.write:
        step = max(1, len(kept) // SAMPLE)
        with open(options.write, "w") as file:
            file.write(f"# losses by tests/parity/make_config_numbers.py: transformers "
                       f"{transformers.__version__}, torch {torch.__version__.split('+')[0]}\n")
            for text, loss in kept[::step][:SAMPLE]:
                file.write(f"{loss} {text}\n")
    return 1 if counts["differ in silence"] else 0


if __name__ == "__main__":
    sys.exit(main())
