"""The cases of adapters that are compared with peft: a model of family_cases.py, what the job says of
its adapters, and the same as peft's LoraConfig. Needs numpy only."""

import hashlib
import json
import os

import family_cases as cases
from family_numbers import draw_integers

STEPS, SEED = 50, 7
PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lora.json")

# name: the case of FAMILIES or, with "head/", of HEADS; keys of model.lora; LoraConfig, if it says it
# in other words
CASES = {
    "gpt2": ("gpt2", dict(rank=3, alpha=6), {}),
    "gpt2-all": ("gpt2", dict(rank=2, alpha=3, targets=["all-linear"], rslora=True), {}),
    "llama": ("llama", dict(rank=4), {}),
    "llama-layers": ("llama", dict(rank=5, alpha=2.5, targets=["q_proj", "mlp.down_proj"], layers=[1]), {}),
    "llama-all": ("llama", dict(rank=2, alpha=16, targets=["all-linear"], exclude=["mlp.up_proj"]), {}),
    "llama-patterns": ("llama", dict(rank=4, alpha=8, targets=["q_proj", "v_proj", "down_proj"],
                                     rank_pattern={"down_proj": 7, "layers.1.self_attn.q_proj": 2},
                                     alpha_pattern={"v_proj": 3, "down_proj": 20}), {}),
    "llama-embeddings": ("llama", dict(rank=3, alpha=6, targets=["embed_tokens", "q_proj"]), {}),
    # which is also its head's matrix, without the adapter; and the table of positions
    "gpt2-embeddings": ("gpt2", dict(rank=3, alpha=5, targets=["wte", "wpe", "c_attn"], rslora=True), {}),
    "qwen3": ("qwen3", dict(rank=4, alpha=4), {}),
    "gemma2": ("gemma2", dict(rank=4, alpha=12), {}),
    "phi": ("phi", dict(rank=4, alpha=8), {}),
    "bert": ("bert", dict(rank=3, alpha=6), {}),
    "bert-saved": ("bert", dict(rank=3, alpha=6, modules_to_save=["transform"]), {}),
    # with a row of padding
    "bert-embeddings": ("bert", dict(rank=3, alpha=6, targets=["word_embeddings", "query"]), {}),
    "roberta": ("roberta", dict(rank=3, alpha=6), {}),
    # transformers 5 calls these modules otherwise than its files do
    "vit": ("vit", dict(rank=3, alpha=6, targets=["query", "value"]),
            dict(target_modules=["q_proj", "v_proj"], modules_to_save=["classifier"])),
    "bert-head": ("head/bert", dict(rank=3, alpha=6), dict(task_type="SEQ_CLS")),
}
TIED = ("gpt2-embeddings", "bert-embeddings")  # whose head has the embedding's matrix, and no adapter
# Adapters that peft wrote, with drawn values, and continues: a case, and LoraConfig.
ADAPTERS = {
    "gpt2": ("gpt2", dict(r=3, lora_alpha=5, target_modules=["c_attn", "c_fc"], use_rslora=True)),
    "llama": ("llama", dict(r=4, target_modules=["q_proj", "down_proj", "absent"], layers_to_transform=[1],
                            rank_pattern={"down_proj": 6}, alpha_pattern={"^model.layers.1.mlp.down_proj": 24})),
    # whose file has the embedding itself, too, with other values than the model's
    "llama-embeddings": ("llama", dict(r=3, lora_alpha=6, target_modules=["embed_tokens", "q_proj"])),
    "bert-head": ("head/bert", dict(r=3, lora_alpha=6, task_type="SEQ_CLS")),
}
ADAPTERS_PATH = os.path.join(os.path.dirname(PATH), "adapters.json")
ADAPTER_STEPS = 20
FAMILIES = ("gpt2", "llama", "qwen3", "gemma2", "phi", "bert", "roberta", "vit")  # cases at each strategy and world
NO_SHARD, HYBRID = ("fsdp.strategy=no_shard",), ("fsdp.strategy=hybrid_shard", "fsdp.shard_size=1")
STRATEGIES = ((1, *NO_SHARD), (2, *NO_SHARD), (3, *NO_SHARD), (2, *HYBRID), (3, *HYBRID))
GRAD_OP = ("gpt2", "llama", "vit")


def settings(lora):
    """--set words."""
    return [f"model.lora.{key}={json.dumps(value)}" for key, value in lora.items()]


def draw_stream():
    return draw_integers("lora", (STEPS * cases.WINDOWS * cases.CONTEXT + 1,), cases.PADDING + 1, cases.VOCABULARY)


def draw_pictures():
    count = STEPS * cases.IMAGES_OF_A_STEP
    return draw_integers("lora images", (count, 14, 14), 0, 256), draw_integers("lora labels", (count,), 0, 7)


def digest(tensors):
    """Of float arrays in order: their bits."""
    whole = hashlib.sha256()
    for values in tensors:
        whole.update(values.astype("<f4").tobytes())
    return whole.hexdigest()


def draw_adapter(tensors):
    """Values by name, of the shapes by name; the same ones wherever they are drawn."""
    return {name: (draw_integers(f"adapter {name}", shape, -64, 65) / 512).astype("<f4")
            for name, shape in tensors.items()}


def load(path=PATH):
    with open(path, encoding="utf-8") as file:
        return json.load(file)
