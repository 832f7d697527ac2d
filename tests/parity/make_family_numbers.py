#!/usr/bin/env python3
"""Writes tests/parity/families/FAMILY.json, or to another directory: what transformers makes of the
cases of family_cases.py, in double, so that rounding is that of the one who compares. `--compare`
writes nothing, but computes the numbers again and compares them with the files.

    python3 tests/parity/make_family_numbers.py [--compare] [-o DIRECTORY] [FAMILY...]

Needs a transformers with its torch; the files name their versions."""

import argparse
import copy
import os
import sys
import tempfile

import torch
from torch.nn import functional as F

import family_cases as cases
import family_models as models
import family_numbers as numbers
import transformers

BOUND = 1e-6  # of another version of torch, in units of an array's scale, and of a loss


def losses_text(losses):
    return [float(f"{loss:.9g}") for loss in losses]


def add_answer(record, name, model, answer, hidden=None):
    """The logits, the loss and the gradients of a batch."""
    logits, loss = answer(name, model)
    loss.backward()
    values = logits.detach().numpy()
    if hidden is not None:
        values = values * ~hidden[..., None]
    record["logits"] = {"shape": list(values.shape), "digest": numbers.digest("logits", values)}
    record["loss"] = float(f"{loss.item():.9g}")
    buffers = {path for path, _ in model.named_buffers()}
    gradients = models.gradients_of(model, [path for path in record["tensors"] if path not in buffers])
    for path, gradient in gradients.items():
        scale = models.largest(gradients[models.scale_name(path)])
        record["tensors"][path]["gradient"] = numbers.digest(path, gradient.numpy(), scale)


def make_one(name):
    model, record = models.make_model(*cases.FAMILIES[name])
    fresh = copy.deepcopy(model).double()
    add_answer(record, name, model.double(), models.answer_model)
    if not cases.is_picture(name):
        record["losses"] = losses_text(models.train_text(fresh, cases.LOSSES))
        return record
    record["losses"] = {}
    for workers in (1, 2, 3):
        trained = copy.deepcopy(fresh)
        record["losses"][str(workers)] = losses_text(models.train_pictures(
            trained, cases.LOSSES, 1 if name.endswith("-sync") else workers))
        if workers == 1:
            for path, buffer in trained.named_buffers():
                if "running_" in path:
                    record["tensors"][path]["after"] = numbers.digest(path, buffer.numpy())
    return record


def make_head(name):
    model, record = models.make_model(*cases.HEADS[name][:2])
    fresh = copy.deepcopy(model).double()
    add_answer(record, name, model.double(), models.answer_head,
               cases.hidden_padding(name, cases.draw_documents(name, cases.HEAD_BATCH, 1)[0]))
    record["losses"] = losses_text(models.train_head(name, fresh, cases.LOSSES))
    return record


def make_embeddings(name):
    """The encoder alone, and its masked language model with the same values."""
    bare, masked, settings = cases.EMBEDDINGS[name]
    masked, whole = models.make_model(masked, settings)
    model, record = models.make_model(bare, settings, masked.base_model_prefix + ".")
    record["losses"] = losses_text(models.train_embeddings(settings, model.double(), cases.LOSSES))
    return record, whole


def make_body(name):
    """The checkpoint of a body without its classifier."""
    model, _ = models.make_model(*cases.FAMILIES[name])
    body = getattr(model, model.base_model_prefix)
    with tempfile.TemporaryDirectory() as directory:
        record = models.describe(body, directory)
    return {**record, "prefix": model.base_model_prefix + "."}


def make_resized(name, size):
    """A checkpoint of images of another size: the positions of a model for this one, and its logits."""
    kind, settings = cases.FAMILIES[name]
    model, record = models.make_model(kind, dict(settings, image_size=size))
    positions = model.state_dict()[f"{name}.embeddings.position_embeddings"].double()
    first = 1 if name == "vit" else 2
    grid = positions[:, first:].view(1, size // 4, size // 4, -1).permute(0, 3, 1, 2)
    grid = F.interpolate(grid, size=(3, 3), mode="bicubic", align_corners=False)
    positions = torch.cat([positions[:, :first], grid.permute(0, 2, 3, 1).reshape(1, 9, -1)], 1)
    record["positions"] = {"shape": list(positions.shape), "digest": numbers.digest("positions", positions.numpy())}
    with torch.no_grad():
        logits = model.double()(models.as_tensor(cases.draw_inputs(name)[0]).double(),
                                interpolate_pos_encoding=True).logits.numpy()
    record["logits"] = {"shape": list(logits.shape), "digest": numbers.digest("logits", logits)}
    return record


def make_family(family):
    records = {"versions": {"torch": torch.__version__.partition("+")[0], "transformers": transformers.__version__}}
    for name in cases.FAMILIES:
        if cases.family_of(name) == family:
            records[f"model/{name}"] = make_one(name)
    for name in cases.HEADS:
        if cases.family_of(name) == family:
            records[f"head/{name}"] = make_head(name)
    for name in cases.EMBEDDINGS:
        if cases.family_of(name) == family:
            records[f"embeddings/{name}"], records[f"masked/{name}"] = make_embeddings(name)
    if family in cases.BODIES:
        records[f"body/{family}"] = make_body(family)
    for name, size in cases.RESIZED:
        if name == family:
            records[f"resized/{name}-{size}"] = make_resized(name, size)
    return records


def compare(place, found, expected):
    """Yields what differs. Digests, losses and other numbers may do so by rounding."""
    if isinstance(found, dict) and isinstance(expected, dict):
        for key in sorted(found.keys() ^ expected.keys()):
            yield f"{place}/{key}: only {'computed' if key in found else 'in the file'}"
        for key in found.keys() & expected.keys():
            if key not in ("versions", "transformers_version"):
                yield from compare(f"{place}/{key}", found[key], expected[key])
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        for index, pair in enumerate(zip(found, expected)):
            yield from compare(f"{place}/{index}", *pair)
    elif isinstance(found, float) and isinstance(expected, (int, float)):
        if abs(found - expected) > BOUND * max(1, abs(expected)):
            yield f"{place}: {found}, in the file {expected}"
    elif found != expected:
        yield f"{place}: {found}, in the file {expected}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("-o", dest="directory", default=numbers.DIRECTORY)
    parser.add_argument("families", nargs="*", metavar="FAMILY")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    families = sorted(set(map(cases.family_of, cases.FAMILIES)))
    differences = []
    for family in arguments.families or families:
        records = make_family(family)
        if arguments.compare:
            differences += compare(family, records, numbers.load(family, arguments.directory))
        else:
            os.makedirs(arguments.directory, exist_ok=True)
            numbers.save(family, records, arguments.directory)
    for difference in differences:
        print(difference)
    if arguments.compare and not differences:
        print(f"torch {torch.__version__}, transformers {transformers.__version__}: all numbers are those of the files")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
