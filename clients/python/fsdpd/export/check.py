"""Compares the loss of what was written with PyTorch's: an evaluation of random samples by a running fsdpd."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
from typing import Any

from .refusal import Refusal
from .write import has_classes

SAMPLES, BOUND = 16, 1e-4  # of the loss


def loss_in_torch(module: Any, x: Any, text: str) -> tuple[float, Any]:
    """The loss, by the line `loss` of the model file, and the targets."""
    import torch

    functions = torch.nn.functional
    line = next(line for line in text.splitlines() if line.startswith("loss: "))[len("loss: ") :]
    with torch.no_grad():
        output = module.eval()(x)
    target = torch.randint(0, output.shape[1], output.shape[:1]) if has_classes(line) else torch.randn_like(output)
    if line.startswith("binary"):
        target = (target > 0).float()
    return float(eval(line, vars(functions), {"output": output, "target": target, "x": x})), target


def fsdpctl(options: argparse.Namespace, *arguments: str) -> str:
    try:
        made = subprocess.run([options.fsdpctl, *arguments], capture_output=True, text=True)
    except FileNotFoundError:
        raise Refusal("--check", f"there is no {options.fsdpctl}") from None
    if made.returncode != 0:
        raise Refusal("--check", f"{options.fsdpctl} {arguments[0]}: {made.stderr.strip() or made.stdout.strip()}")
    return made.stdout


def check(options: argparse.Namespace, module: Any, paths: list[str], text: str) -> None:
    import numpy
    import torch

    images = not options.inputs and not options.vocabulary and len(options.input) in (1, 3)
    if not images or "reduction" in text.rpartition("\nloss: ")[2]:
        raise Refusal(
            "--check", "compares only the mean loss of images (3 sizes) and of rows (1 size); the files are written"
        )
    name = os.path.abspath(paths[0].removesuffix(".yaml"))
    directory = name + "-check"
    os.makedirs(directory)
    try:
        torch.manual_seed(1)
        x = torch.randn(SAMPLES, *options.input)
        expected, target = loss_in_torch(module, x, text)
        for split in ("train", "validation"):
            numpy.save(os.path.join(directory, f"{split}.images.npy"), x.numpy())
            rows = target.numpy() if target.is_floating_point() else target.numpy().astype("int32")
            numpy.save(
                os.path.join(directory, f"{split}.targets.npy"), rows.reshape(SAMPLES, -1) if rows.ndim > 1 else rows
            )
        job = {
            "name": "export-check",
            "model": {"file": name + ".yaml", "weights": name + ".safetensors"},
            "data": {"format": "images", "dir": directory},
            "workers": 1,
            "save_model": False,
            "train": {"only_evaluate": True, "batch_size": SAMPLES},
        }
        with open(os.path.join(directory, "job.yaml"), "w", encoding="utf-8") as file:
            json.dump(job, file)  # which is YAML
        identity = json.loads(fsdpctl(options, "submit", os.path.join(directory, "job.yaml"), "-o", "json"))["id"]
        fsdpctl(options, "watch", identity)
        shown = json.loads(fsdpctl(options, "show", identity, "-o", "json"))
        metrics = shown.get("metrics", {})
        found = metrics.get("test_loss", metrics.get("val_loss"))
        if found is None:
            raise Refusal("--check", f"{identity} has no loss: {shown.get('error', shown.get('state'))}")
        if not abs(found - expected) <= BOUND * abs(expected):
            raise Refusal("--check", f"the loss of {identity} is {found}, PyTorch's {expected}")
        print(f"checked: loss {found:.7g}, PyTorch's {expected:.7g}")
    finally:
        shutil.rmtree(directory)
