"""Prints a dataset directory as the model will see it."""
import json
import os
import sys

import numpy

from .records import UsageError
from .writer import hash_file

SHADES = " .:-=+*#%@"
MOST_CLASSES = 20  # that are listed


def load(directory):
    try:
        with open(os.path.join(directory, "dataset.json"), encoding="utf-8") as file:
            root = json.load(file)
        if root["format"] != "fsdpd-dataset" or root["version"] != 1:
            raise UsageError(f"{directory}/dataset.json: expected format fsdpd-dataset, version 1")
        return root
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"{directory}: no dataset: {error}") from None


def arrays_of(directory, split, check):
    arrays = {}
    for name, entry in split.items():
        path = os.path.join(directory, entry["file"])
        if check and hash_file(path) != entry["sha256"]:
            raise UsageError(f"{path}: it is not what was prepared: its SHA-256 differs")
        arrays[name] = numpy.load(path, mmap_mode="r")
    return arrays


def histogram(lengths, out):
    edges = [0]
    while edges[-1] <= max(lengths):
        edges.append(max(1, edges[-1] * 2))
    counts, _ = numpy.histogram(lengths, bins=edges)
    for low, high, count in zip(edges, edges[1:], counts):
        if count:
            print(f"  {low:>8} to {high - 1:>8} tokens  {count:>8}  {'#' * int(40 * count / max(counts))}", file=out)


def pieces(ids, mask):
    """Runs of tokens that all count or all do not."""
    begin = 0
    for at in range(1, len(ids) + 1):
        if at == len(ids) or bool(mask[at]) != bool(mask[begin]):
            yield list(ids[begin:at]), bool(mask[begin])
            begin = at


def print_pieces(tokens, ids, mask, colour, out):
    for piece, counts in pieces(ids, mask):
        text = tokens.decode(piece) if tokens else " ".join(map(str, piece))
        text = "".join(sign if sign.isprintable() or sign in "\n\t" else "\ufffd" for sign in text)
        if colour:
            print(f"\033[32m{text}\033[0m" if counts else f"\033[2m{text}\033[0m", end="", file=out)
        else:
            print(f"[[{text}]]" if counts else text, end="", file=out)
    print(file=out)


def name_of(label, names):
    return names[label] if names and label < len(names) else str(label)


def print_classes(labels, names, out):
    """How often each class occurs."""
    found, counts = numpy.unique(labels, return_counts=True)
    width = max(len(name_of(int(label), names)) for label in found)
    for label, count in zip(found[:MOST_CLASSES], counts):
        print(f"  {name_of(int(label), names):>{width}}  {count:>8}  {'#' * int(40 * count / max(counts))}", file=out)
    if len(found) > MOST_CLASSES:
        print(f"  and {len(found) - MOST_CLASSES} more classes", file=out)


def print_numbers(values, names, out):
    values = numpy.asarray(values, dtype=numpy.float64)
    if values.ndim == 2:
        for column in range(min(values.shape[1], MOST_CLASSES)):
            print(f"  {name_of(column, names)}: from {values[:, column].min():g} to {values[:, column].max():g}, "
                  f"mean {values[:, column].mean():g}", file=out)
        if values.shape[1] > MOST_CLASSES:
            print(f"  and {values.shape[1] - MOST_CLASSES} more columns", file=out)
        return
    print(f"  targets from {values.min():g} to {values.max():g}, mean {values.mean():g}", file=out)


def text_of(numbers, names):
    """A record's numbers: one, the names of labels that are 1, or all."""
    if numpy.ndim(numbers) == 0:
        return f"{numbers:g}"
    if names and set(numpy.unique(numbers)) <= {0.0, 1.0}:
        return ", ".join(name for name, number in zip(names, numbers) if number) or "none"
    return ", ".join(f"{number:g}" for number in numbers)


class TokenSplit:
    def __init__(self, root, arrays):
        self.ids, self.arrays = arrays["tokens"], arrays
        self.mask = arrays.get("mask", numpy.broadcast_to(numpy.uint8(1), self.ids.shape))
        self.borders = arrays.get("documents", numpy.array([0, len(self.ids)])).astype(numpy.int64)
        self.lengths = numpy.diff(self.borders)
        self.pairs = root["kind"] == "pairs"
        self.names = root.get("origin", {}).get("names")
        # of a sample: what each of its documents is called
        fields = str(root.get("origin", {}).get("field")).split(",")
        self.texts = ["chosen", "rejected"] if self.pairs else [""] * root.get("texts", 1)
        if len(fields) == len(self.texts) > 1 and not self.pairs:
            self.texts = fields

    def heading(self):
        # The first token of a document is no target.
        counted = int(numpy.count_nonzero(self.mask)) - int(numpy.count_nonzero(self.mask[self.borders[:-1]]))
        texts = len(self.texts)
        pairs = f" ({len(self.lengths) // texts} pairs)" if texts > 1 else ""
        return (f"{len(self.lengths)} documents{pairs}, {len(self.ids)} tokens, {counted} count "
                f"({100 * counted / len(self.ids):.1f} %)")

    def about(self, number):
        texts = len(self.texts)
        if texts > 1:
            return f"pair {number // texts}, {self.texts[number % texts] or number % texts}"
        for what in ("labels", "targets"):
            if what in self.arrays:
                value = self.arrays[what][number]
                text = name_of(int(value), self.names) if what == "labels" else text_of(value, self.names)
                return f"document {number}, {text}"
        return f"document {number}"

    def show(self, number, tokens, colour, out):
        histogram(self.lengths, out)
        if "labels" in self.arrays:
            print_classes(self.arrays["labels"], self.names, out)
        elif "token_labels" in self.arrays:
            labels = self.arrays["token_labels"]
            print_classes(labels[labels >= 0], self.names, out)
        elif "targets" in self.arrays:
            print_numbers(self.arrays["targets"], self.names, out)
        for n in range(min(number * len(self.texts), len(self.lengths))):
            begin, end = int(self.borders[n]), int(self.borders[n + 1])
            ids, mask = self.ids[begin:end], self.mask[begin:end]
            print(f"--- {self.about(n)}: {len(ids)} tokens, {int(numpy.count_nonzero(mask[1:]))} count", file=out)
            print_pieces(tokens, ids, mask, colour, out)


class ImageSplit:
    def __init__(self, root, arrays):
        self.images, self.targets = arrays["images"], arrays["targets"]
        self.names = root.get("origin", {}).get("names")

    def heading(self):
        return f"{len(self.images)} images of {' x '.join(map(str, self.images.shape[1:]))}, {self.images.dtype}"

    def show(self, number, tokens, colour, out):
        classes = self.targets.dtype.kind != "f"
        if classes:
            print_classes(self.targets, self.names, out)
        else:
            print_numbers(self.targets, self.names, out)
        for n in range(min(number, len(self.images))):
            target = name_of(int(self.targets[n]), self.names) if classes else text_of(self.targets[n], self.names)
            print(f"--- image {n}: {target}", file=out)
            print_picture(self.images[n], out)


def print_picture(image, out):
    """Shades as characters: two rows of pixels to a line, 64 columns at most."""
    step = max(1, -(-image.shape[1] // 64))
    grey = image if image.ndim == 2 else image.mean(axis=-1 if image.shape[-1] <= 4 else 0)
    grey = numpy.asarray(grey, dtype=numpy.float64)[::2 * step, ::step]
    low, high = grey.min(), grey.max()
    shades = ((grey - low) / (high - low or 1) * (len(SHADES) - 1)).round().astype(int)
    for row in shades:
        print("".join(SHADES[shade] for shade in row).rstrip(), file=out)


def print_origin(origin, out):
    for table in origin.get("tables", []):
        print(f"read {table}", file=out)
    if origin.get("targets") == "class" or origin.get("kind") == "tags":
        names = [f"{number} {name}" for number, name in enumerate(origin.get("names") or ())]
        names = names[:MOST_CLASSES] + ["..."] * (len(names) > MOST_CLASSES)
        print(f"labels: {', '.join(names) or 'the numbers of the records'}", file=out)
    if origin.get("held_out"):
        print(f"validation: the last {origin['held_out']} tokens, as no record was chosen", file=out)
    done = origin.get("records", {})
    if done:
        print("records: " + ", ".join(f"{count} {what}" for what, count in sorted(done.items())), file=out)
    if origin.get("max_length") and any(done.get(what) for what in ("cut", "split", "dropped")):
        print(f"  {', '.join(what for what in ('cut', 'split', 'dropped') if done.get(what))}: "
              f"longer than {origin['max_length']} tokens", file=out)
    for reason, count in sorted(origin.get("reasons", {}).items(), key=lambda item: (-item[1], item[0])):
        print(f"  {count} malformed: {reason}", file=out)
    for line in origin.get("skipped", []):
        print(f"  skipped {line}", file=out)


def show(directory, number, tokenizer, check=False, out=sys.stdout):
    root = load(directory)
    tokenizer = tokenizer or root.get("origin", {}).get("tokenizer")
    tokens = None
    if tokenizer and os.path.isdir(tokenizer):
        from .tokens import Tokens
        tokens = Tokens(tokenizer)
    colour = out.isatty() and "NO_COLOR" not in os.environ
    for name, split in sorted(root["splits"].items()):
        arrays = arrays_of(directory, split, check)
        shown = (ImageSplit if root.get("kind") == "images" else TokenSplit)(root, arrays)
        print(f"{name}: {shown.heading()}", file=out)
        shown.show(number, tokens, colour, out)
    print_origin(root.get("origin", {}), out)
