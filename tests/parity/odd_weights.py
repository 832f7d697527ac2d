"""Directories of weights that are damaged or odd, each drawn by its number: names, types, shapes, values, headers, indexes and
files. tests/system/test_odd_weights.py reads some and compares with numbers, tests/parity/test_weights_live.py all of them with
transformers. Needs numpy only."""

import json
import os
import random

import numpy

import family_numbers as numbers

COUNT, SAMPLE = 500, 120  # how many there are, and how many have committed numbers
MODELS = ("model/llama", "model/qwen2-tied", "model/gpt2", "model/bert", "model/roberta", "model/vit", "model/gpt_neox",
          "model/resnet", "model/modernbert", "model/opt-after", "model/distilbert", "model/phi3", "head/bert", "head/llama",
          "head/gpt_neox-tokens")
ONE, INDEX = "model.safetensors", "model.safetensors.index.json"
# What is tied, by the model: the name that files leave out, the one that they have
TIED = {"model/qwen2-tied": ("lm_head.weight", "model.embed_tokens.weight"), "model/gpt2": ("lm_head.weight", "transformer.wte.weight"),
        "model/bert": ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
        "model/roberta": ("lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight"),
        "model/modernbert": ("decoder.weight", "model.embeddings.tok_embeddings.weight"),
        "model/distilbert": ("vocab_projector.weight", "distilbert.embeddings.word_embeddings.weight")}
BIASES = {"model/bert": ("cls.predictions.decoder.bias", "cls.predictions.bias"), "model/roberta": ("lm_head.decoder.bias", "lm_head.bias")}
BUFFERS = ("model.layers.0.self_attn.rotary_emb.inv_freq", "transformer.h.0.attn.bias", "transformer.h.0.attn.masked_bias",
           "bert.embeddings.position_ids", "roberta.embeddings.position_ids", "gpt_neox.layers.0.attention.bias",
           "gpt_neox.layers.0.attention.rotary_emb.inv_freq", "distilbert.embeddings.position_ids", "rotary_emb.inv_freq",
           "vit.embeddings.mask_token")
OTHERS = ("v_head.summary.weight", "mtp.norm.weight", "score.weight", "classifier.weight", "cls.seq_relationship.weight",
          "cls.seq_relationship.bias", "bert.pooler.dense.weight", "roberta.pooler.dense.weight", "lm_head.weight", "qa_outputs.bias", "x",
          "model.layers.7.mlp.up_proj.weight", "vit.pooler.dense.weight", "embed_out.weight", "classifier.bias", "base_model.x", "é\n")
DIFFERENT = (3, 4)  # a BERT and a RoBERTa with two biases of the output, and nothing else
SIZES = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8, "I32": 4, "I64": 8, "I8": 1, "BOOL": 1, "F8_E4M3": 1, "U8": 1}


def as_type(kind, values):
    values = numpy.asarray(values)
    if kind == "BF16":
        words = values.astype("<f4").view("<u4")
        return ((words + 0x7fff + (words >> 16 & 1)) >> 16).astype("<u2").tobytes()
    if kind in ("F8_E4M3", "U8", "I8", "BOOL"):
        return (numpy.abs(values.ravel() * 8).astype("u1") % 2).tobytes()
    return values.astype({"F32": "<f4", "F16": "<f2", "F64": "<f8", "I32": "<i4", "I64": "<i8"}[kind]).tobytes()


class Directory:
    """What is to be written. `about` are words of which a refusal must have one."""

    def __init__(self, number, records):
        self.choice = random.Random(f"weights {number}")
        self.model = MODELS[number % len(MODELS)]
        self.record = records[self.model]
        # of each tensor its type, shape and bytes
        self.tensors = {name: ("F32" if values.dtype == "<f4" else "I64", list(values.shape), values.tobytes())
                        for name, values in numbers.make_tensors(self.record).items()}
        self.about, self.done = [], []
        self.is_foreign = False  # transformers fails with it, for reasons of its own
        self.shards = self.choice.choice((1, 1, 2, 3))
        self.metadata = {"format": "pt"}
        if number in DIFFERENT:
            self.shards = 1
            biases(self, self.choice, "different")
            self.done.append("biases")
        edits, layouts = (0, 0) if number in DIFFERENT else self.choice.choice(((1, 0), (1, 0), (0, 1), (0, 1), (1, 1), (2, 0)))
        for change in self.choice.sample(TENSORS, edits):
            self.does(change)
        self.lay_out()
        for change in self.choice.sample(FILES, layouts):
            self.does(change)

    def does(self, change):
        """Unless an earlier change left it no tensor of that name or type."""
        own = [name for pairs in (TIED, BIASES) for name in pairs.get(self.model, ())[1:]]
        if change in TENSORS and not all(self.tensors.get(name, "-")[0] == "F32" for name in own + [next(iter(self.tensors), "-")]):
            return
        self.done.append(change.__name__)
        change(self, self.choice)

    def lay_out(self):
        """The files: the tensors of each, or its bytes, or where it links to."""
        self.files, self.index = {}, None
        if self.shards == 1:
            self.files[ONE] = dict(self.tensors)
            return
        parts = [f"model-{i + 1:05d}-of-{self.shards:05d}.safetensors" for i in range(self.shards)]
        self.files = {part: {} for part in parts}
        self.index = {"metadata": {"total_size": sum(len(raw) for _, _, raw in self.tensors.values())}, "weight_map": {}}
        for i, (name, tensor) in enumerate(self.tensors.items()):
            part = parts[i * self.shards // max(1, len(self.tensors))]
            self.files[part][name] = tensor
            self.index["weight_map"][name] = part

    def matrix(self):
        return self.choice.choice([name for name, (kind, shape, _) in self.tensors.items() if kind == "F32" and len(shape) == 2])

    def floating(self):
        return self.choice.choice([name for name, (kind, *_) in self.tensors.items() if kind == "F32"])

    def values(self, name):
        kind, shape, raw = self.tensors[name]
        return numpy.frombuffer(raw, "<f4" if kind == "F32" else "<i8").reshape(shape).copy()

    def put(self, name, values, kind="F32"):
        self.tensors[name] = (kind, list(numpy.shape(values)), as_type(kind, values))

    def file(self):
        return self.choice.choice([name for name, content in self.files.items() if isinstance(content, dict)])

    def raw(self, name):
        """The bytes of a file, for those who damage them."""
        if isinstance(self.files[name], dict):
            self.files[name] = file_bytes(self.files[name], self.metadata)
        return self.files[name]

    def header(self, name):
        """The header of a file, and its data."""
        raw = self.raw(name)
        length = int.from_bytes(raw[:8], "little")
        return json.loads(raw[8:8 + length]), raw[8 + length:]

    def write(self, path):
        os.makedirs(path)
        with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as file:
            json.dump(self.record["config"], file)
        if self.index is not None:
            self.files[INDEX] = self.index if isinstance(self.index, bytes) else json.dumps(self.index).encode()
        for name, content in self.files.items():
            target = os.path.join(path, name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if isinstance(content, str):
                os.symlink(content, target)
            elif content is None:
                os.makedirs(target)
            else:
                with open(target, "wb") as file:
                    file.write(file_bytes(content, self.metadata) if isinstance(content, dict) else content)


def with_header(header, data, pad=8):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % pad)
    return len(text).to_bytes(8, "little") + text + data


def file_bytes(tensors, metadata):
    header, end = ({"__metadata__": metadata} if metadata is not None else {}), 0
    for name, (kind, shape, raw) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [end, end + len(raw)]}
        end += len(raw)
    return with_header(header, b"".join(raw for _, _, raw in tensors.values()))


# ---- changes of tensors ----

def types(d, choice):
    kinds = choice.choice((["F16"], ["BF16"], ["F16", "BF16", "F32"], ["BF16", "F32"]))
    for name in [name for name, (kind, *_) in d.tensors.items() if kind == "F32"]:
        d.put(name, d.values(name), choice.choice(kinds))


def another_type(d, choice):
    name = d.floating()
    d.put(name, d.values(name), choice.choice(("F64", "I32", "I64", "F8_E4M3", "BOOL", "U8", "I8", "F16", "BF16")))
    d.about.append(name)


def shape(d, choice):
    name = d.floating()
    values = d.values(name)
    flat = values.ravel()
    made = choice.choice((values.T, flat, values[None], values[..., None], values[:-1], numpy.concatenate([values, values]), flat[:0],
                          values.reshape(2, -1) if flat.size % 2 == 0 else flat[:1], flat[0]))
    d.put(name, made)
    d.about.append(name)


def missing(d, choice):
    for name in choice.sample(sorted(d.tensors), choice.choice((1, 1, 2, 5))):
        del d.tensors[name]
        d.about.append(name)


def extra(d, choice):
    for name in choice.sample(OTHERS, choice.choice((1, 2))):
        if name not in d.tensors:
            d.put(name, numbers.draw_normal(name, choice.choice(((3,), (2, 3), (0,), (), (5, 24)))), choice.choice(("F32", "F32", "I64")))
            d.about += [name, name.strip("\n")]


def buffers(d, choice):
    for name in choice.sample(BUFFERS, 3):
        d.put(name, numbers.draw_normal(name, (1, 5)), choice.choice(("F32", "I64", "BOOL", "U8")))
        d.about.append(name)


def not_finite(d, choice):
    name = d.floating()
    values = d.values(name)
    if values.size:
        values.flat[choice.randrange(values.size)] = choice.choice((numpy.nan, numpy.inf, -numpy.inf))
    d.put(name, values, choice.choice(("F32", "F16", "BF16")))
    d.about.append(name)


def large(d, choice):
    name = d.floating()
    d.put(name, d.values(name) * choice.choice((0, 1e-42, 1e4, -1)), choice.choice(("F32", "BF16")))
    d.about.append(name)


def tied(d, choice):
    if d.model not in TIED:
        return extra(d, choice)
    if d.model in BIASES and choice.random() < 0.5:
        return biases(d, choice)
    other, own = TIED[d.model]
    values = d.values(own)
    what = choice.choice(("equal", "different", "only", "a row", "another type", "shape"))
    if what == "only":
        del d.tensors[own]
    d.put(other, values[1:] if what == "shape" else values * 1.5 if what == "different" else values,
          "BF16" if what == "another type" else "F32")
    if what == "a row":
        values[7] += 1
        d.put(other, values)
    d.about += [other, own, "tie_word_embeddings"]
    return None


def biases(d, choice, what=None):
    if d.model not in BIASES:
        return tied(d, choice)
    other, own = BIASES[d.model]
    what = what or choice.choice(("equal", "different", "only"))
    d.put(other, d.values(own) * (3 if what == "different" else 1))  # a sum with a constant would change no loss
    if what == "only":
        del d.tensors[own]
    d.about += [other, own]
    return None


def prefix(d, choice):
    own = {"model/llama": "model.", "model/qwen2-tied": "model.", "model/phi3": "model.", "head/llama": "model.", "model/gpt2": "transformer.",
           "model/opt-after": "model."}.get(d.model, next(iter(d.tensors)).partition(".")[0] + ".")
    what = choice.choice(("none", "one", "twice", "base_model.model.", "module.", "_orig_mod.", "model.", "transformer.", "bert.", "other"))
    names = [choice.choice(sorted(d.tensors))] if what in ("one", "other") else list(d.tensors)

    def renamed(name):
        if name not in names:
            return name
        if what in ("none", "one"):
            return name.removeprefix(own)
        return own + name if what == "twice" else name.upper() if what == "other" else what + name
    d.tensors = {renamed(name): tensor for name, tensor in d.tensors.items()}
    d.about += list(d.tensors) + names


def copies(d, choice):
    """A tensor with the prefix and without it."""
    name = d.floating()
    first, dot, rest = name.partition(".")
    if dot:
        d.put(rest, d.values(name) + choice.choice((0, 1)))
    d.about += [name, rest]


def old_names(d, choice):
    pairs = choice.choice(((("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")), (("embed_out.", "lm_head."),),
                           (("norm.weight", "norm.scale"),), (("encoder.layer.", "layers."),), (("wte.", "embed_tokens."),),
                           (("lm_head.", "embed_out."),), (("self_attn.", "attention."),)))
    both = choice.random() < 0.3
    made = {}
    for name, tensor in d.tensors.items():
        new = name
        for before, after in pairs:
            new = new.replace(before, after)
        if both or new == name:
            made[name] = tensor
        made[new] = tensor
        if new != name:
            d.about += [name, new]
    d.tensors = made


def metadata(d, choice):
    d.metadata = choice.choice((None, {}, {"format": "tf"}, {"format": "mlx"}, {"format": "np"}, {"x": "y"}, {"format": "pt", "n": 3}, "pt"))
    d.about += ["__metadata__", "format", ONE, "safetensors"]


def order(d, choice):
    names = list(d.tensors)
    choice.shuffle(names)
    d.tensors = {name: d.tensors[name] for name in names}


# ---- changes of files ----

def cut(d, choice):
    name = d.file()
    raw = d.raw(name)
    d.files[name] = choice.choice((raw[:-1], raw[:len(raw) // 2], b"", raw[:8], raw[:5], raw[:8 + int.from_bytes(raw[:8], "little")],
                                   raw + b"\0", raw + bytes(64), raw[1:]))
    d.about.append(name)


def offsets(d, choice):
    name = d.file()
    header, data = d.header(name)
    names = [key for key in header if key != "__metadata__"]
    if len(names) < 2:
        return
    one, other = (header[key] for key in choice.sample(names, 2))
    what = choice.randrange(9)
    if what == 0:
        one["data_offsets"] = [other["data_offsets"][0], other["data_offsets"][0] + one["data_offsets"][1] - one["data_offsets"][0]]
    elif what == 1:
        one["data_offsets"] = [offset + 4 for offset in one["data_offsets"]]
    elif what == 2:
        one["data_offsets"] = [len(data), len(data) + one["data_offsets"][1] - one["data_offsets"][0]]
    elif what == 3:  # a gap between all tensors
        for key in names[1:]:
            header[key]["data_offsets"] = [offset + 8 for offset in header[key]["data_offsets"]]
        first = header[names[0]]["data_offsets"][1]
        data = data[:first] + bytes(8) + data[first:]
    elif what == 4:
        one["data_offsets"] = one["data_offsets"][::-1]
    elif what == 5:
        one["data_offsets"] = [-8, 0]
    elif what == 6:
        one["dtype"] = choice.choice(("F16", "F64", "F31", "I8", 3, None))
    elif what == 7:
        one["shape"] = choice.choice(([2 ** 62, 4], [-1], [1.5], "x", [0], [1, 1], None))
    else:
        del one[choice.choice(("dtype", "shape", "data_offsets"))]
    d.files[name] = with_header(header, data)
    d.about.append(name)


def headers(d, choice):
    name = d.file()
    header, data = d.header(name)
    text = json.dumps(header).encode()
    key = next(key for key in header if key != "__metadata__")
    twice = text[:-1] + b', ' + json.dumps(key).encode() + b': ' + json.dumps(header[key]).encode() + b'}'
    d.files[name] = choice.choice((
        with_header(text, data, 1), with_header(text + b" " * 100, data), with_header(b" " + text, data), with_header(twice, data),
        with_header(text[:-1], data), with_header(b"[]", data), with_header(b"{}", b""), with_header(b"", b""), with_header(text + b"}", data),
        (1 << 62).to_bytes(8, "little") + text + data, with_header({**header, "extra": 3}, data),
        with_header({**header, "__metadata__": [1]}, data), with_header(text.replace(b'"F32"', b'"f32"'), data),
        with_header({**header, key: {**header[key], "note": "x"}}, data), with_header(b"\xff" + text, data)))
    d.about += [name, key]


def sharded(change):
    """A change of what is in several files."""
    def of_several(d, choice):
        if d.index is None:
            d.shards = 2
            d.lay_out()
        change(d, choice)
    of_several.__name__ = change.__name__
    return of_several


@sharded
def no_shard(d, choice):
    name = choice.choice(sorted(d.files))
    del d.files[name]
    d.about += [name, INDEX]


@sharded
def maps(d, choice):
    """An index that says what is not so."""
    places, files = d.index["weight_map"], sorted(d.files)
    name, other = choice.sample(sorted(places), 2)
    what = choice.randrange(12)
    if what == 0:
        places[choice.choice(("model.nowhere.weight", "lm_head.weight", "v_head.weight", "score.weight"))] = files[0]
    elif what == 1:
        places[name] = choice.choice(("model-00009-of-00009.safetensors", "../" + files[0], os.path.abspath(files[0]), "", ".", "a/" + files[0],
                                      "pytorch_model.bin", "./" + files[0], files[0].upper(), 3, None, [files[0]]))
    elif what == 2:
        places[name] = next(file for file in files if file != places[name])
    elif what == 3:
        del places[name]
    elif what == 4:
        d.index = json.dumps(d.index).encode()[:-3]
    elif what == 5:
        d.index = {**d.index, "weight_map": choice.choice(({}, None, [], {name: files[0]}))}
    elif what == 6:
        d.index.pop("metadata")
        d.is_foreign = True
    elif what == 7:
        d.index["metadata"] = choice.choice(({"total_size": 1}, {}, None, "x", {"total_size": "many"}))
        d.is_foreign = True
    elif what == 8:
        places.update({name: places[other], other: places[name]})
    elif what == 9:
        d.index = (b"\xef\xbb\xbf" + json.dumps(d.index).encode(), b"", b"null", b"[]")[choice.randrange(4)]
    elif what == 10:
        text = json.dumps(d.index)
        d.index = text.replace('"weight_map": {', f'"weight_map": {{"{name}": "{choice.choice(files)}", ', 1).encode()
    else:
        d.index["unknown"] = {"a": 1}
    d.about += [name, other, INDEX, *files, "index", "model-00009", "nowhere", "v_head"]


@sharded
def stale(d, choice):
    """A copy of a tensor in another file than the index says."""
    name = choice.choice(sorted(d.index["weight_map"]))
    file = next(file for file in sorted(d.files) if file != d.index["weight_map"][name])
    kind, form, raw = d.tensors[name]
    d.files[file][name] = choice.choice(((kind, form, bytes(len(raw))), (kind, form, raw), (kind, [len(raw) // SIZES[kind]], raw)))
    if choice.random() < 0.3:
        del d.index["weight_map"][name]
    d.about += [name, file]


@sharded
def unlisted(d, choice):
    d.files[choice.choice(sorted(d.files))]["left.over"] = ("F32", [2], bytes(8))
    if choice.random() < 0.5:
        d.files["model-00003-of-00002.safetensors"] = {"left.over": ("F32", [2], bytes(8))}
    d.about.append("left.over")


@sharded
def both(d, choice):
    """One file beside the several, complete or not: it is what counts."""
    tensors = {name: (kind, form, bytes(len(raw)) if kind == "F32" and name.endswith("bias") else raw)
               for name, (kind, form, raw) in d.tensors.items()}
    if choice.random() < 0.3:
        name = choice.choice(sorted(tensors))
        del tensors[name]
        d.about.append(name)
    d.files[ONE] = tensors


def no_index(d, choice):
    d.index = None
    d.about += [INDEX, ONE, "weights"]


def beside(d, choice):
    """Files that nothing should read, or that another program wrote."""
    for name in choice.sample(("pytorch_model.bin", "consolidated.safetensors", "adapter_model.safetensors", "tf_model.h5", "model.fp16.safetensors",
                               "optimizer.pt", "model-00001-of-00001.safetensors", "pytorch_model.bin.index.json", ".model.safetensors"), 2):
        d.files[name] = choice.choice((b"", b"{}", b"junk", with_header({}, b"")))


def elsewhere(d, choice):
    """Weights under another name."""
    content = d.files.pop(d.file())
    name = choice.choice(("pytorch_model.bin", "consolidated.safetensors", "model.fp16.safetensors", "MODEL.SAFETENSORS", "a/model.safetensors",
                          "model.safetensors.bak", "flax_model.msgpack", "tf_model.h5", "model-00001-of-00001.safetensors"))
    d.files[name] = content
    d.about += [name, "weights", INDEX, "model-0000", ONE]


def links(d, choice):
    name = d.file()
    content = d.files.pop(name)
    what = choice.randrange(6)
    if what < 2:
        d.files["blobs/0123"] = content
        d.files[name] = ("blobs/0123", "./blobs/../blobs/0123")[what]
    elif what == 2:
        d.files[name] = "nowhere"
    elif what == 3:
        d.files[name] = name
    elif what == 4:
        d.files["second"], d.files["third"], d.files[name] = content, "second", "third"
    else:
        d.files[name] = None
    d.about.append(name)


TENSORS = (types, another_type, shape, missing, extra, buffers, not_finite, large, tied, tied, biases, prefix, prefix, copies, old_names,
           metadata, order)
FILES = (cut, offsets, offsets, headers, headers, no_shard, maps, maps, stale, stale, unlisted, both, no_index, beside, elsewhere, links)
