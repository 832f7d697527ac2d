"""Models of transformers with the seed-made weights of family_numbers.py, and what they answer: for the
live comparisons (make check-live) and for make_family_numbers.py. Needs a transformers with its torch,
which need not be the system's."""

import copy
import json
import os
import struct
import sys
import tempfile

import numpy

import family_cases as cases
import family_numbers as numbers

try:
    import torch
    from torch.nn import functional as F
    import transformers
except ImportError as missing:
    sys.exit(f"FAIL: the comparison with transformers needs torch, transformers and safetensors: {missing}. "
             "FSDPD_LIVE_PYTHON names a Python that has them; see docs/development.md.")
transformers.utils.logging.disable_progress_bar()

# The names of modules in transformers 5, by those in files, which it writes as it always has: of ViT and its like, of DINOv2,
# of EXAONE.
VIT = {"attention.attention.query": "attention.q_proj", "attention.attention.key": "attention.k_proj",
       "attention.attention.value": "attention.v_proj", "attention.output.dense": "attention.o_proj",
       "intermediate.dense": "mlp.fc1", "output.dense": "mlp.fc2", "weights_out": "down_proj"}
MODULES = ({"embed_out.": "lm_head.", "encoder.layer.": "layers.", **VIT}, VIT,
           {"transformer.wte": "model.embed_tokens", "transformer.h.": "model.layers.", "transformer.ln_f": "model.norm",
            "attn.attention.out_proj": "self_attn.o_proj", "attn.attention": "self_attn", "ln_1": "input_layernorm",
            "ln_2": "post_attention_layernorm", "c_fc_0": "gate_proj", "c_fc_1": "up_proj", "c_proj": "down_proj"})
# Those of language models of larger ones.
LANGUAGE = (("language_model.model.", "model.language_model."), ("language_model.", ""), ("model.", "model.language_model."))
# Tensors of files that hold those of several modules, one after the other.
JOINED = {"weights_in": ("gate_proj", "up_proj")}


def module_name(path, modules):
    """Of a tensor in a file."""
    if path in modules:
        return path
    for old, new in LANGUAGE:
        if path.startswith(old) and new + path[len(old):] in modules:
            return new + path[len(old):]
    for renamed in MODULES:
        name = path
        for old, new in renamed.items():
            name = name.replace(old, new)
        if name in modules:
            return name
    return path


def modules_of(path, modules):
    """The names of the parameters that a tensor in a file holds."""
    for joined, parts in JOINED.items():
        if joined in path:
            return [module_name(path.replace(joined, part), modules) for part in parts]
    return [module_name(path, modules)]


def scale_name(path):
    """The tensor whose gradient is the measure for this one's: softmax ignores a key's bias, so that
    its gradient is only rounding, and a mean of neighbours less the middle ignores what it is taken of all."""
    for key in ("key", "k_proj", "k_lin", "attn.k", "before_norm"):
        path = path.replace(key + ".bias", key + ".weight")
    return path


def largest(values):
    return float(values.detach().abs().max())


def describe(model, directory):
    """What transformers writes of a model: its config.json, and the names, types and shapes of tensors."""
    model.save_pretrained(directory)
    with open(os.path.join(directory, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    with open(os.path.join(directory, "model.safetensors"), "rb") as file:
        header = json.loads(file.read(*struct.unpack("<Q", file.read(8))))
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        tensors[name] = {"shape": entry["shape"]}
        if entry["dtype"] != "F32":
            tensors[name]["type"] = entry["dtype"]
    return {"class": type(model).__name__, "config": config, "tensors": tensors}


def blank_model(kind, settings):
    """A model of a class of the cases, and what reads one from a directory."""
    name, _, configuration = kind.partition("/")
    architecture = getattr(transformers, name)
    config_class = getattr(transformers, configuration) if configuration else architecture.config_class
    config = config_class(**settings, attn_implementation=cases.attention_of(kind))
    return architecture(config), transformers.AutoModelForCausalLM if configuration else architecture


def make_model(kind, settings, prefix=""):
    """A model with seed-made weights, which transformers reads from a checkpoint, and its record."""
    blank, loader = blank_model(kind, settings)
    with tempfile.TemporaryDirectory() as directory:
        record = describe(blank, directory)
        if prefix:
            record["prefix"] = prefix
        numbers.write_checkpoint(directory, record)
        model, info = loader.from_pretrained(directory, output_loading_info=True,
                                             attn_implementation=cases.attention_of(kind))
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[what]:
            raise AssertionError(f"{kind}: {what}: {info[what]}")
    return model.eval(), record


def has_batch_norm(model):
    return any(isinstance(module, torch.nn.BatchNorm2d) for module in model.modules())


def as_tensor(array):
    return torch.from_numpy(numpy.ascontiguousarray(array))


def head_output(settings, model, tokens, targets):
    tokens, targets = as_tensor(tokens), as_tensor(targets)
    if targets.is_floating_point():
        targets = targets.to(next(model.parameters()).dtype)
    return model(input_ids=tokens, attention_mask=(tokens != cases.padding_of(settings)).long(), labels=targets)


def answer_model(name, model):
    """The logits and the loss of a batch."""
    inputs, targets = map(as_tensor, cases.draw_inputs(name))
    if cases.is_picture(name):
        inputs = {"pixel_values": inputs.to(model.dtype)}
    else:
        inputs = {"input_ids": inputs}
    logits = model(**inputs).logits
    trained = model.train()(**inputs).logits if has_batch_norm(model) else logits  # by the batch's statistics
    return logits, F.cross_entropy(trained.flatten(0, -2), targets.flatten())


def answer_head(name, model):
    """The same for a head."""
    _, settings, kind = cases.HEADS[name]
    tokens, targets, _ = cases.draw_documents(name, cases.HEAD_BATCH, 1)
    # a batch's mean is over all targets: the end of a step knows how many of them count
    share = float((targets >= 0).mean()) if kind == cases.TOKENS else 1
    output = head_output(settings, model, tokens, targets)
    return output.logits, output.loss * share


def gradients_of(model, names):
    """By the names of tensors in files, which have every parameter that the inputs reach."""
    # a tied parameter under all of its names: the order of modules decides which is the first
    parameters = dict(model.named_parameters(remove_duplicate=False))
    found = {name: [parameters[part] for part in modules_of(name, parameters) if part in parameters] for name in names}
    found = {name: parts for name, parts in found.items() if parts and parts[0].grad is not None}
    reached = [parameter for parameter in model.parameters() if parameter.grad is not None]
    if sorted(id(part) for parts in found.values() for part in parts) != sorted(map(id, reached)):
        raise AssertionError("the files' tensors are not the parameters")
    return {name: torch.cat([part.grad for part in parts]) for name, parts in found.items()}


def adamw(model):
    return torch.optim.AdamW(model.parameters(), cases.LEARNING_RATE, weight_decay=cases.WEIGHT_DECAY)


def train(model, steps, loss_of):
    """The losses of AdamW steps, of which `loss_of` makes the loss of one."""
    optimizer, losses = adamw(model), []
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(step)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_text(model, steps):
    stream = as_tensor(cases.draw_stream())
    tokens, targets = (part.view(cases.STEPS, cases.WINDOWS, cases.CONTEXT) for part in (stream[:-1], stream[1:]))
    return train(model, steps, lambda step: F.cross_entropy(
        model(input_ids=tokens[step]).logits.flatten(0, 1), targets[step].flatten()))


def train_head(name, model, steps):
    tokens, targets, _ = cases.draw_documents(name, cases.STEPS * cases.WINDOWS, 3)

    def loss_of(step):
        rows = slice(step * cases.WINDOWS, (step + 1) * cases.WINDOWS)
        return head_output(cases.HEADS[name][1], model, tokens[rows], targets[rows]).loss
    return train(model, steps, loss_of)


def embed(model, tokens, settings):
    mask = (tokens != cases.padding_of(settings)).long()
    states = model(input_ids=tokens, attention_mask=mask).last_hidden_state
    if settings.get("pooling") == "cls":
        return states[:, 0]
    return (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def train_embeddings(settings, model, steps):
    rows = as_tensor(cases.draw_pairs(cases.padding_of(settings))).split(cases.PAIRS)

    def loss_of(step):
        texts = F.normalize(embed(model, rows[step].flatten(0, 1), settings), dim=-1).unflatten(0, (-1, 2))
        return F.cross_entropy(20 * texts[:, 0] @ texts[:, 1].T, torch.arange(cases.PAIRS))
    return train(model, steps, loss_of)


def scaled_pictures():
    """The images as models take them, and labels."""
    images, labels = cases.draw_pictures()
    return ((as_tensor(images).float() / 255 - cases.MEAN) / cases.STD)[:, None], as_tensor(labels)


def train_pictures(model, steps, workers):
    """As this number of ranks; the model is rank 0's. Returns the losses."""
    images, labels = scaled_pictures()
    images, batch = images.to(model.dtype), cases.IMAGES_OF_A_STEP
    ranks = [model] + [copy.deepcopy(model) for _ in range(workers - 1)]
    optimizer, losses = adamw(model), []
    for step in range(steps):
        total = 0
        for rank, replica in enumerate(ranks):
            mine = slice(step * batch + rank, (step + 1) * batch, workers)
            replica.train().zero_grad()
            loss = F.cross_entropy(replica(pixel_values=images[mine]).logits, labels[mine])
            loss.backward()
            total += loss.item()
        for parameters in zip(*(replica.parameters() for replica in ranks)):
            if parameters[0].grad is not None:  # what images do not reach has none
                parameters[0].grad = torch.stack([one.grad for one in parameters]).mean(0)
        optimizer.step()
        with torch.no_grad():
            for replica in ranks[1:]:
                for mine, first in zip(replica.parameters(), model.parameters()):
                    mine.copy_(first)
        losses.append(total / workers)
    return losses
