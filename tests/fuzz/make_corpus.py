#!/usr/bin/python3
"""Writes the binary seeds of the fuzz targets' corpora (text ones are written by hand).

usage: make_corpus.py, from the top of the source tree; needs protoc.
"""
import gzip
import hashlib
import json
import struct
import subprocess

CORPUS = "tests/fuzz/corpus/"


def write(name, data):
    with open(CORPUS + name, "wb") as file:
        file.write(data)


def safetensors(name, header, data_bytes):
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    write("safetensors/" + name, struct.pack("<IQ", data_bytes, len(text)) + text)


safetensors("none", {}, 0)
safetensors("two", {"__metadata__": {"step": "3"},
                    "a.weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
                    "b": {"dtype": "BF16", "shape": [], "data_offsets": [24, 26]}}, 26)
safetensors("gap", {"a": {"dtype": "U8", "shape": [4], "data_offsets": [1, 5]}}, 5)
safetensors("empty-tensors", {"a": {"dtype": "F32", "shape": [0, 9], "data_offsets": [0, 0]},
                              "b": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}, 0)


def weights(name, tensors):
    header, end = {}, 0
    for tensor, (dtype, shape, size) in tensors.items():
        header[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    write("weights/" + name, struct.pack("<IQ", end, len(text)) + text)


weights("good", {"a.weight": ("F32", [3, 4], 48), "b.weight": ("BF16", [4, 3], 24),
                 "b.bias": ("F16", [4], 8)})
weights("tied", {"lm_head.weight": ("F32", [3, 4], 48), "b.weight": ("F32", [4, 3], 48),
                 "b.bias": ("F32", [4], 16), "h.0.attn.bias": ("U8", [4], 4)})
weights("wrong", {"a.weight": ("F32", [4, 3], 48), "b.weight": ("I64", [4, 3], 96),
                  "c": ("F32", [4], 16)})


def idx(name, images, labels):
    write("idx/" + name, struct.pack("<H", len(images)) + images + labels)


images = struct.pack(">IIII", 0x803, 2, 3, 3) + bytes(range(18))
labels = struct.pack(">II", 0x801, 2) + bytes([1, 9])
packed = [gzip.compress(data, mtime=0) for data in (images, labels)]
idx("plain", images, labels)
idx("gzipped", *packed)
idx("half-gzipped", packed[0], labels)
idx("two-members", gzip.compress(images[:9], mtime=0) + gzip.compress(images[9:], mtime=0), labels)
idx("cut", packed[0][:-5], labels)
idx("long", images + b"x", labels)
idx("bad-label", images, labels[:-1] + b"\xff")
idx("huge", struct.pack(">IIII", 0x803, 0xffffffff, 0xffff, 0xffff), labels)


def tokens(name, encoding, vocabulary, data):
    write("tokens/" + name, bytes([encoding, vocabulary]) + data)


def llmc(magic, version, count, data):
    return struct.pack("<iii", magic, version, count) + bytes(4 * 253) + data


ids = struct.pack("<4H", 1, 5, 9, 2)
wide = struct.pack("<4I", 1, 5, 9, 2)
tokens("nanogpt", 0, 127, ids)
tokens("odd", 0, 127, ids[:-1])
tokens("uint16", 0, 127, llmc(20240520, 1, 4, ids))
tokens("uint32", 0, 127, llmc(20240801, 7, 4, wide))
tokens("raw-uint32", 3, 127, wide)
tokens("too-large", 0, 5, ids)
tokens("cut", 1, 127, llmc(20240520, 1, 4, ids[:-1]))
tokens("lies", 0, 127, llmc(20240801, 7, -1, wide))
tokens("version", 0, 127, llmc(20240801, 1, 4, wide))
tokens("short-header", 1, 127, llmc(20240520, 1, 4, b"")[:100])
tokens("text", 4, 254, "To be, or not to be \u2014".encode())
tokens("empty", 0, 127, b"")


def megatron(name, lengths, type=8, width=2, version=1, pointers=None, borders=(0, 2), magic=b"MMIDIDX\0\0", cut=0):
    places = [sum(lengths[:i]) * width for i in range(len(lengths))] if pointers is None else pointers
    data = magic + struct.pack("<QBQQ", version, type, len(lengths), len(borders))
    data += struct.pack(f"<{len(lengths)}i{len(places)}q{len(borders)}q", *lengths, *places, *borders)
    write("megatron/" + name, data[:len(data) - cut])


megatron("uint16", [5, 7])
megatron("int32", [2, 4], type=4, width=4)
megatron("uint8", [24], type=1, width=1, borders=(0, 1))
megatron("int64", [3], type=5, width=8)
megatron("short", [5, 6])
megatron("long", [5, 8])
megatron("negative", [13, -1])
megatron("gap", [5, 7], pointers=[0, 12])
megatron("borders", [5, 7], borders=(0, 2, 1))
megatron("version", [12], version=2)
megatron("magic", [12], magic=b"MMIDIDX\0\1")
megatron("cut", [5, 7], cut=1)
megatron("header", [5, 7], cut=30)
megatron("empty", [], borders=())


def npy(descr, count, data, shape=None, version=1):
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape or (count,)}}}".encode()
    length = struct.pack("<H" if version == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + length + header + data


write("npy/tokens", npy("<u2", 3, b"abcdef"))
write("npy/version-2", npy("<u2", 3, b"abcdef", version=2))
write("npy/images", npy("|u1", 0, bytes(24), shape=(1, 2, 3, 4)))
write("npy/floats", npy("<f4", 0, bytes(24), shape=(3, 2)))
write("npy/labels", npy("<i8", 2, bytes(16)))
write("npy/cut", npy("<u2", 3, b"abcde"))
write("npy/long", npy("<u2", 3, b"abcdefg"))
write("npy/scalar", npy("<u2", 0, b"ab", shape="()"))
write("npy/huge", npy("<u2", 0, b"ab", shape=(1 << 40, 1 << 40)))
write("npy/descr", npy(">u2", 3, b"abcdef"))
write("npy/empty", b"")

# The arrays that fuzz_dataset.c writes.
arrays = {"tokens": ("t.npy", "uint16", npy("<u2", 12, struct.pack("<12H", *range(1, 13)), "(12,)")),
          "documents": ("d.npy", "uint64", npy("<u8", 3, struct.pack("<3Q", 0, 5, 12), "(3,)")),
          "mask": ("m.npy", "uint8", npy("|u1", 12, bytes([0, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 1]), "(12,)")),
          "labels": ("c.npy", "uint8", npy("|u1", 2, bytes([0, 1]), "(2,)")),
          "numbers": ("f.npy", "float32", npy("<f4", 2, struct.pack("<2f", 0.5, -1), "(2,)")),
          "images": ("i.npy", "uint8", npy("|u1", 0, bytes([1, 2, 3]).ljust(120, b"\0"), "(3, 2, 4, 5)")),
          "targets": ("l.npy", "uint8", npy("|u1", 3, bytes([0, 1, 2]), "(3,)"))}


def dataset(name, names=("tokens", "documents", "mask"), **changes):
    split = {}
    for key in names:
        file, kind, data = arrays[key]
        shape = {"tokens": [12], "documents": [3], "mask": [12], "images": [3, 2, 4, 5], "targets": [3], "labels": [2],
                 "numbers": [2]}[key]
        split["targets" if key == "numbers" else key] = {"file": file, "type": kind, "shape": shape,
                      "sha256": hashlib.sha256(data).hexdigest()}
    root = {"format": "fsdpd-dataset", "version": 1, "kind": "tokens", "vocabulary": 50,
            "splits": {"train": split}}
    write("dataset/" + name, json.dumps({**root, **changes}).encode())


dataset("whole")
dataset("tokens-only", names=("tokens",))
dataset("no-tokens", names=("documents",))
dataset("version", version=2)
dataset("kind", kind="sounds")
dataset("vocabulary", vocabulary=51)
dataset("labels", names=("tokens", "documents", "labels"))
dataset("numbers", names=("tokens", "documents", "numbers"))
dataset("pairs", names=("tokens", "documents"), texts=2)
dataset("pairs-odd", names=("tokens", "documents"), texts=3)
dataset("pairs-none", names=("tokens",), texts=2)
dataset("splits", splits=[])
dataset("images", names=("images", "targets"), kind="images", classes=3)
dataset("images-last", names=("images", "targets"), kind="images", classes=3, layout="NHWC")
dataset("images-bad-label", names=("images", "targets"), kind="images", classes=2)
dataset("images-no-targets", names=("images",), kind="images", classes=3)
write("dataset/empty", b"")


def protoc(*arguments, stdin=b""):
    return subprocess.run(["protoc", "--proto_path=proto", *arguments], input=stdin, check=True,
                          stdout=subprocess.PIPE).stdout


def job_message(name, text):
    write("job_message/" + name, protoc("--encode=fsdpd.v1.JobSpec", "fsdpd/v1/spec.proto",
                                        stdin=text.encode()))


JOB = """
name: "mnist" model { file_name: "net.yaml" text: "name: Net\\n" }
data { format: DATA_FORMAT_IDX dir: "data/mnist" normalize_mean: 0.1307 normalize_std: 0.3081 }
train { epochs: 10 batch_size: 64 test_batch_size: 1000 seed: 1 log_interval: 10 dropout: true }
schedule { type: SCHEDULE_TYPE_STEP step_size: 1 gamma: 0.7 }
workers: 2 save_model: true
"""
ADADELTA = 'optimizer { type: OPTIMIZER_TYPE_ADADELTA lr: 1 rho: 0.9 eps: 1e-6 }'
SGD = 'optimizer { type: OPTIMIZER_TYPE_SGD lr: 0.01 momentum: 0.9 nesterov: true }'
job_message("size", JOB + ADADELTA + """
fsdp { strategy: STRATEGY_FULL_SHARD backward_prefetch: PREFETCH_PRE
       wrap { policy: WRAP_POLICY_SIZE min_num_params: 20000 } }""")
job_message("units", JOB + SGD + """
fsdp { strategy: STRATEGY_NO_SHARD backward_prefetch: PREFETCH_NONE
       wrap { policy: WRAP_POLICY_UNITS units { modules: "fc1" modules: "a b" } units { modules: "c" } } }""")
ESCAPES = "".join(f"\\U{c:08x}" for c in (0x80, 0x85, 0x9f, 0x2028, 0x2029, 0xfdd0, 0xfeff, 0xfffe,
                                          0x1ffff, 0x1f600))
job_message("unprintable", JOB.replace("data/mnist", ESCAPES) + ADADELTA + """
fsdp { strategy: STRATEGY_FULL_SHARD backward_prefetch: PREFETCH_PRE
       wrap { policy: WRAP_POLICY_SIZE min_num_params: 20000 } }""")
job_message("incomplete", 'name: "a"')

write("descriptors/health", protoc("--descriptor_set_out=/dev/stdout",
                                   "grpc/health/v1/health.proto"))
write("descriptors/none", b"")
# a.proto imports b.proto and itself; message a.B { message C; enum D }
write("descriptors/small",
      b"\x0a\x2c\x0a\x07a.proto\x12\x01a\x1a\x07b.proto\x1a\x07a.proto"
      b"\x22\x0c\x0a\x01B\x1a\x03\x0a\x01C\x22\x02\x0a\x00"
      b"\x0a\x0b\x0a\x07b.proto\x12\x00")

# model, strategy, world, prefetch, forward, limit, slots, workspace, rank, kind, ...
write("http/lm-eval", b"\0" + b'''{"model": "gpt2-1", "prompt": [[5, 1, 12], [3]], "temperature": 0, "max_tokens": 1,
 "logprobs": 1, "seed": 1234, "echo": true}''')
write("http/draw", b"\0" + b'''{"model": "gpt2-1", "prompt": [5, 17, 3], "max_tokens": 4, "temperature": 0.7, "top_p": 0.9,
 "top_k": 5, "min_p": 0, "repetition_penalty": 1.1, "stop": [7], "seed": -1, "n": 1, "stream": false, "user": null}''')
write("http/text", b"\0" + b'{"model": "gpt2-1", "prompt": ["Once", "upon"], "stop": "a time"}')
write("http/scores", b"\0" + b'{"model": "a", "prompt": [2147483647], "logprobs": 20, "stop": 5, "max_tokens": 2147483647}')
write("http/not-json", b"\0" + b'{"prompt": [[[]]], "prompt": 1e999')
write("http/local", b"\1localhost:8000\nhttp://localhost:8000\nBearer fsdpd_0123456789abcdef")
write("http/address", b"\1[::1]:8000\nhttps://[::1]:8000\nbearer  x")
write("http/other", b"\1127.0.0.1.evil.example:8000\nhttp://evil.example\nBasic eDp5")
for name, path, kind, answer in (
        ("job", "/v1/jobs/mnist-1", "Job", "id: 'mnist-1' state: JOB_STATE_RUNNING step: 3 metrics { loss: nan }"),
        ("jobs", "/v1/jobs\npage_size=1\nfold=true\nname=a*", "ListJobsResponse", r"jobs { id: '\302\205\n' }"),
        ("workers", "/v1/workers\npage_token=x", "ListWorkersResponse", "workers { id: 'a/cpu:0' }"),
        ("history", "/v1/jobs/a/history\npage_size=7", "GetHistoryResponse", "entries { step: 1 }"),
        ("events", "/v1/jobs/a/events\nafter_sequence=9223372036854775807", "JobEvent",
         r"sequence: 18446744073709551615 state { state: JOB_STATE_FAILED reason { message: 'a\n\ndata: b' } }"),
        ("curve", "/v1/jobs/a/metrics\nevery=2\nchanges=true", "GetMetricsResponse",
         "rows { attempt: 1 event { metrics { step: 1 loss: inf } } }"),
        ("logs", "/v1/jobs/a/logs\ntail=9\nfollow=false", "GetLogsResponse", r"lines { rank: -1 text: '\r' }"),
        ("cancels", "/v1/jobs/a/events\ncancel_if_left=true", "JobEvent", ""),
        ("page", "/v1/jobs/a/page", "Job", "")):
    write(f"http/{name}", b"\2" + path.encode() + b"\n\n" + protoc(
        f"--encode=fsdpd.v1.{kind}", "fsdpd/v1/control.proto", stdin=answer.encode()))
write("policy/none", bytes([0, 0, 1, 1, 0, 0, 2, 0, 0, 2]))
write("policy/size", bytes([1, 0, 3, 2, 0, 1, 1, 1, 2, 1, 30, 0, 0, 1, 2, 3, 4]))
write("policy/units", bytes([0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 9, 1, 3, 0, 1, 1, 2, 3, 0, 4]))
write("policy/units-deep", bytes([1, 1, 2, 0, 1, 0, 2, 0, 1, 0, 9, 1, 2, 1, 3, 12, 0, 1]))
# conv2 and fc1 in two units over 8 ranks, resharded to 2 and 4, one in bf16
write("policy/settings", bytes([0, 0, 7, 1, 0, 0, 0, 0, 0, 0, 9, 1, 2, 0, 2, 0, 3,
                                1, 8, 0, 3, 2, 0, 2, 0, 1, 8, 0, 3, 4, 0, 0, 2, 0,
                                0, 0, 0, 0, 0, 1, 1]))
write("policy/frozen", bytes([2, 0, 1, 1, 0, 0, 2, 0, 0, 1, 3, 0]))


def manifest(name, world, units, entries=(), **changes):
    """A checkpoint's manifest, to which the fuzz target adds the sum; a unit is name, shard, shard_world, first_rank, slots,
    parameters; an entry of the state_dict is name, shape, unit, offset."""
    tally = {"loss": 1.5, "correct": 0, "samples": 40, "weight": 40, "tokens": 0, "steps": 2, "ns": 9,
             "compute_ns": 5, "comm_ns": 3, "exposed_ns": 1}
    root = {"format": "fsdpd-checkpoint", "version": 3, "run": "a-1@7", "job": "a-1", "attempt": 1,
            "time_ms": 1700000000000, "plan_hash": "00000000000000ff", "optimizer": "adamw",
            "world": world,
            "progress": {"step": 12, "rows": 480, "epochs": 1, "updates": 12, "skipped_steps": 0,
                         "epoch_rate": 0.7, "gradient_norm": 0.1, "interval": tally, "epoch": tally,
                         "evaluation_ns": 5, "validation_loss": 2.5, "validation_step": 10},
            "units": [{"name": unit[0], "shard": unit[1], "shard_world": unit[2],
                       "first_rank": unit[3], "slots": unit[4],
                       "parameters": [{"name": parameter, "elements": elements, "offset": offset}
                                      for parameter, elements, offset in unit[5]]}
                      for unit in units],
            "state_dict": [{"name": entry, "shape": shape, "unit": unit, "offset": offset}
                           for entry, shape, unit, offset in entries],
            "files": [{"name": f"rank-{rank:05}.safetensors", "bytes": 128,
                       "blocks_sha256": "0123abcd" * 8}
                      for rank in range(world)]}
    root.update(changes)
    write("manifest/" + name, json.dumps(root).encode())


manifest("one", 1, [("(root)", 8, 1, 0, 2, [("weight", 6, 0), ("bias", 2, 6)])])
manifest("sharded", 2, [("fc1", 8, 2, 0, 2, [("fc1.weight", 10, 0), ("fc1.bias", 2, 12)]),
                        ("(root)", 0, 2, 0, 0, [])])
packed = [("fc1.weight", 4096, 0), ("fc1.bias", 10, 4096)]
manifest("packed", 2, [("fc1", 2304, 2, 0, 2, packed)], version=4, state_dtype="int8")
manifest("cut_block", 2, [("fc1", 2312, 2, 0, 2, packed)], version=4, state_dtype="int8")
manifest("shared_block", 2, [("fc1", 2304, 2, 0, 2, [("a", 8, 0), ("b", 4100, 8)])],
         version=4, state_dtype="int8")
manifest("hybrid", 4, [("fc1", 8, 2, 0, 1, [("fc1.weight", 10, 0)]),
                       ("(root)", 4, 2, 2, 1, [("scale", 3, 0)])])
manifest("state_dict", 2, [("fc1", 8, 2, 0, 2, [("fc1.weight", 10, 0), ("fc1.bias", 2, 12)]),
                           ("(root)", 0, 2, 0, 0, [])],
         [("fc1.weight", [2, 5], 0, 0), ("empty", [0, 7], 1, 0), ("fc1.bias", [2], 0, 12),
          ("tied", [2, 5], 0, 0)])
manifest("too_large", 1, [("fc1", 8, 1, 0, 0, [("a", 6, 0)])], [("a", [1 << 40, 1 << 40], 0, 0)])
manifest("no_unit", 1, [("fc1", 8, 1, 0, 0, [("a", 6, 0)])], [("a", [6], 1, 0)])
manifest("outside", 2, [("fc1", 8, 2, 1, 2, [])])
manifest("overlap", 1, [("fc1", 8, 1, 0, 2, [("a", 6, 0), ("b", 2, 5)])])
manifest("older", 1, [], version=2)
manifest("newer", 1, [], version=4)
