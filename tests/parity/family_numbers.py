"""The numbers of transformers that travel with the sources: tests/parity/families has a file for each
family, which make_family_numbers.py writes and test_family_numbers.py compares. Needs numpy only.

Nothing in the files is random: an element of a tensor, an input or a digest's weight is a hash of a
text and the element's index (`draw_bits`: SplitMix64, seeded with the text's CRC-32), in integers
and exact arithmetic, so that any language makes the same values.

A file is JSON, one tensor a line. An array's `digest` is the scale, which is its largest magnitude
(a key's bias takes that of its weight: softmax ignores the bias, so its gradient is only rounding),
and a sum for every BLOCK elements in order, with hashed signs, in units of the scale times the root of
BLOCK: rounding errors are independent, so that a sum in these units is as exact as an element."""

import json
import math
import os
import zlib

import numpy

BLOCK = 32
DIRECTORY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "families")
TYPES = {"F32": numpy.dtype("<f4"), "I64": numpy.dtype("<i8"), "BF16": numpy.dtype("<u2"), "F16": numpy.dtype("<f2")}


def draw_bits(text, count):
    """64 bits for each index: SplitMix64."""
    seed = numpy.uint64(zlib.crc32(text.encode()) << 32)
    with numpy.errstate(over="ignore"):
        z = seed + numpy.arange(1, count + 1, dtype="u8") * numpy.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return z ^ (z >> numpy.uint64(31))


def draw_uniform(text, shape):
    """From 0 to below 1."""
    values = (draw_bits(text, math.prod(shape)) >> numpy.uint64(11)).astype("f8") / 2.0 ** 53
    return values.reshape(shape)


def draw_normal(text, shape):
    """Nearly normal, with the deviation 1: the sum of four uniform values of 16 bits."""
    fields = draw_bits(text, math.prod(shape)).view("<u2").reshape(-1, 4)
    return ((fields.astype("i8").sum(1) - 131070) / 37837.0).reshape(shape)


def draw_integers(text, shape, low, high):
    """From low to below high."""
    return (low + draw_uniform(text, shape) * (high - low)).astype("i8")


def make_tensor(architecture, name, kind, shape):
    """A tensor of a checkpoint, with values that make every part matter."""
    modules = ".".join(name.split(".")[-3:])  # without the model's own name, which may have a norm in it
    if kind == "I64":
        return numpy.zeros(shape, TYPES[kind])  # BatchNorm's count of steps
    if name.endswith("running_var"):
        values = 0.5 + 1.5 * draw_uniform(name, shape)
    elif name.endswith("running_mean"):
        values = 0.5 * draw_normal(name, shape)
    elif "norm" in modules.lower() or "ln_" in modules:
        one = name.endswith("weight") and not architecture.startswith("Gemma")  # theirs is 1 + weight
        values = (1 if one else 0) + 0.2 * draw_normal(name, shape)
    else:
        values = 0.25 * draw_normal(name, shape)
    return values.astype(TYPES[kind])


def make_tensors(record):
    """The tensors of a checkpoint, by their names. Those of a body have the values that they have in
    the whole model, where their names have a prefix."""
    return {name: make_tensor(record["class"], record.get("prefix", "") + name, entry.get("type", "F32"),
                              entry["shape"])
            for name, entry in record["tensors"].items()}


def write_checkpoint(directory, record, tensors=None):
    """The config.json and the model.safetensors that transformers would write. Returns the tensors."""
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, "config.json"), "w", encoding="utf-8") as file:
        json.dump(record["config"], file)
    tensors = make_tensors(record) if tensors is None else tensors
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, values in tensors.items():
        kind = next(kind for kind, dtype in TYPES.items() if dtype == values.dtype)
        header[name] = {"dtype": kind, "shape": values.shape, "data_offsets": [end, end + values.nbytes]}
        end += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(directory, "model.safetensors"), "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + b"".join(map(numpy.ndarray.tobytes, tensors.values())))
    return tensors


def read_checkpoint(directory):
    """The tensors of a model.safetensors, or of the files that an index names."""
    index = os.path.join(directory, "model.safetensors.index.json")
    if not os.path.exists(index):
        return read_file(os.path.join(directory, "model.safetensors"))
    with open(index, encoding="utf-8") as file:
        places = json.load(file)["weight_map"]
    files = {name: read_file(os.path.join(directory, name)) for name in sorted(set(places.values()))}
    if sum(map(len, files.values())) != len(places):
        raise AssertionError("the index does not name all tensors")
    return {name: files[place][name] for name, place in places.items()}


def read_file(path):
    with open(path, "rb") as file:
        raw = file.read()
    start = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:start])
    header.pop("__metadata__", None)
    return {name: numpy.frombuffer(raw[start + entry["data_offsets"][0]:start + entry["data_offsets"][1]],
                                   TYPES[entry["dtype"]]).reshape(entry["shape"])
            for name, entry in header.items()}


def block_sums(text, values):
    signs = 1 - 2 * (draw_bits("digest of " + text, values.size) & numpy.uint64(1)).astype("f8")
    padded = numpy.zeros(-(-values.size // BLOCK) * BLOCK)
    padded[:values.size] = values.reshape(-1) * signs
    return padded.reshape(-1, BLOCK).sum(1) / math.sqrt(BLOCK)


def digest(text, values, scale=None):
    """Of an array of doubles; the text chooses the signs."""
    scale = float(f"{numpy.abs(values).max() if scale is None else scale:.8g}")
    sums = (round(float(value), 6) for value in block_sums(text, values) / scale)
    return [scale, *(int(value) if value == int(value) else value for value in sums)]


def distance(text, values, expected):
    """The largest difference from a digest, in units of its scale."""
    found = block_sums(text, values.astype("f8")) / expected[0]
    if found.shape != (len(expected) - 1,):
        raise AssertionError(f"{text} has {found.size} blocks, expected {len(expected) - 1}")
    return float(numpy.abs(found - expected[1:]).max())


def path_of(family, directory=DIRECTORY):
    return os.path.join(directory, family + ".json")


def load(family, directory=DIRECTORY):
    with open(path_of(family, directory), encoding="utf-8") as file:
        return json.load(file)


def as_text(value, depth):
    """JSON whose first levels have an entry a line."""
    if not isinstance(value, dict) or depth == 0:
        return json.dumps(value, separators=(",", ":"))
    entries = [f"{json.dumps(key)}: {as_text(entry, depth - 1 if key != 'config' else 0)}"
               for key, entry in value.items()]
    return "{\n" + ",\n".join(entries) + "\n}"


def save(family, records, directory=DIRECTORY):
    with open(path_of(family, directory), "w", encoding="utf-8") as file:
        file.write(as_text(records, 3) + "\n")
