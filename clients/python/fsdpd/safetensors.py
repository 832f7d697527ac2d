"""Safetensors files as NumPy arrays."""
from __future__ import annotations

import json

import numpy

TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
         "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?"}


def read_safetensors(data: bytes | bytearray) -> dict[str, numpy.ndarray]:
    """The arrays of a file by name, in its order, over its bytes. BF16, which NumPy lacks, becomes float32."""
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > len(data) - 8:
        raise ValueError("it is no safetensors file: its header does not end")
    header = json.loads(bytes(data[8:8 + size]))
    header.pop("__metadata__", None)
    view, arrays = memoryview(data)[8 + size:], {}
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        array = numpy.frombuffer(view[begin:end], TYPES[entry["dtype"]]).reshape(entry["shape"])
        if entry["dtype"] == "BF16":
            array = (array.astype("<u4") << 16).view("<f4")
        arrays[name] = array
    return arrays
