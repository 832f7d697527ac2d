#!/usr/bin/env python3
"""Writes tests/parity/lora.json and adapters.json: what peft makes of the cases of lora_cases.py: the first matrices of
adapters as torch.manual_seed and get_peft_model leave them, and the losses of AdamW steps in double; and adapters that peft
wrote, loaded again and trained on.
`--compare` writes nothing, but computes the numbers again and compares them with the file.

    python3 tests/parity/make_lora_numbers.py [--compare] [NAME...]

Needs peft, transformers and torch; the file names their versions."""

import argparse
import json
import os
import sys
import tempfile
import warnings

import family_cases as cases
import family_models as models
import lora_cases

import peft
import torch
import transformers
from torch.nn import functional as F

BOUND = 1e-6  # of another version of torch, of a loss
torch.set_num_threads(1)  # threads that share cores wait for each other


def configuration(lora, own):
    """LoraConfig of a job's keys."""
    targets = lora.get("targets")
    words = dict(r=lora["rank"], lora_alpha=lora.get("alpha", 8), lora_dropout=lora.get("dropout", 0.0),
                 use_rslora=lora.get("rslora", False), exclude_modules=lora.get("exclude"),
                 layers_to_transform=lora.get("layers"), modules_to_save=lora.get("modules_to_save"),
                 rank_pattern=lora.get("rank_pattern", {}), alpha_pattern=lora.get("alpha_pattern", {}),
                 target_modules="all-linear" if targets == ["all-linear"] else targets)
    return peft.LoraConfig(**{**words, **own})


def make_base(case):
    kind, _, base = case.rpartition("/")
    return models.make_model(*(cases.HEADS if kind else cases.FAMILIES)[base][:2])


def adapt(name):
    """The model with its adapters."""
    case, lora, own = lora_cases.CASES[name]
    model, record = make_base(case)
    config = configuration(lora, own)
    torch.manual_seed(lora_cases.SEED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fan_in_fan_out, which it corrects
        return peft.get_peft_model(model, config), record


def first_matrices(model):
    """Those that are drawn, in the order of the modules; of an embedding that is the second."""
    return [parameter.detach().numpy() for name, parameter in model.named_parameters()
            if "lora_A" in name or "lora_embedding_B" in name]


def train(case, model, steps=lora_cases.STEPS):
    """The losses of steps of the trained parameters, in double."""
    model = model.double().train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    optimizer, losses = models.adamw(model), []
    if case.startswith("head/"):
        tokens, targets, _ = cases.draw_documents(case[5:], lora_cases.STEPS * cases.WINDOWS, 4)
    elif cases.is_picture(case):
        images, labels = lora_cases.draw_pictures()
        images = ((models.as_tensor(images).float() / 255 - cases.MEAN) / cases.STD)[:, None].double()
    else:
        stream = models.as_tensor(lora_cases.draw_stream())
        shape = (lora_cases.STEPS, cases.WINDOWS, cases.CONTEXT)
        inputs, targets = stream[:-1].view(shape), stream[1:].view(shape)
    for step in range(steps):
        rows = slice(step * cases.WINDOWS, (step + 1) * cases.WINDOWS)
        if case.startswith("head/"):
            loss = models.head_output(cases.HEADS[case[5:]][1], model, tokens[rows], targets[rows]).loss
        elif cases.is_picture(case):
            rows = slice(step * cases.IMAGES_OF_A_STEP, (step + 1) * cases.IMAGES_OF_A_STEP)
            loss = F.cross_entropy(model(pixel_values=images[rows]).logits, models.as_tensor(labels[rows]))
        else:
            loss = F.cross_entropy(model(input_ids=inputs[step]).logits.flatten(0, 1), targets[step].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(f"{loss.item():.8g}"))
    return losses


def make(name):
    model, record = adapt(name)
    trained = [path for path, parameter in model.named_parameters() if parameter.requires_grad]
    matrices = first_matrices(model)
    return {"record": record, "adapters": len(matrices), "trained": sum(
        parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
        "saved": sum("modules_to_save" in path for path in trained),
        "initial": lora_cases.digest(matrices), "losses": train(lora_cases.CASES[name][0], model)}


def make_adapter(name, directory):
    """An adapter that peft wrote to the directory, loaded again and trained on."""
    case, words = lora_cases.ADAPTERS[name]
    model, record = make_base(case)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = peft.get_peft_model(model, peft.LoraConfig(**words))
    state = peft.get_peft_model_state_dict(adapted)
    values = lora_cases.draw_adapter({path: list(tensor.shape) for path, tensor in state.items()})
    peft.set_peft_model_state_dict(adapted, {path: torch.from_numpy(array) for path, array in values.items()})
    adapted.save_pretrained(directory)
    loaded = peft.PeftModel.from_pretrained(make_base(case)[0], directory, is_trainable=True)
    with open(os.path.join(directory, "adapter_config.json"), encoding="utf-8") as file:
        config = json.load(file)
    config.update({key: sorted(config[key]) for key in ("target_modules", "modules_to_save") if config[key]})
    return {"record": record, "config": config, "tensors": {path: list(array.shape) for path, array in values.items()},
            "losses": train(case, loaded, lora_cases.ADAPTER_STEPS)}


def make_adapters():
    with tempfile.TemporaryDirectory() as root:
        return {name: make_adapter(name, os.path.join(root, name)) for name in lora_cases.ADAPTERS}


def write(path, records):
    lines = [f"{json.dumps(name)}: {json.dumps(case, separators=(',', ':'))}" for name, case in records.items()]
    with open(path, "w", encoding="utf-8") as file:
        file.write("{\n" + ",\n".join(lines) + "\n}\n")


def compare_adapters(found):
    expected, wrong = lora_cases.load(lora_cases.ADAPTERS_PATH), 0
    for name, case in found.items():
        worst = max(abs(a / b - 1) for a, b in zip(case["losses"], expected[name]["losses"]))
        print(f"adapter {name}: losses within {worst:.1e}")
        wrong += worst > BOUND or case["tensors"] != expected[name]["tensors"]
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("names", nargs="*", default=list(lora_cases.CASES))
    options = parser.parse_args()
    versions = {"torch": torch.__version__.partition("+")[0], "transformers": transformers.__version__,
                "peft": peft.__version__}
    found = {name: make(name) for name in options.names}
    if not options.compare:
        write(lora_cases.PATH, {"versions": versions, **found})
        write(lora_cases.ADAPTERS_PATH, {"versions": versions, **make_adapters()})
        return 0
    expected, wrong = lora_cases.load(), compare_adapters(make_adapters())
    for name, case in found.items():
        other = expected[name]
        worst = max(abs(a / b - 1) for a, b in zip(case["losses"], other["losses"]))
        same = all(case[key] == other[key] for key in ("adapters", "trained", "saved", "initial"))
        print(f"{name}: losses within {worst:.1e}, {'the same' if same else 'OTHER'} initial values")
        wrong += worst > BOUND or not same
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
