"""The command: reads the user's module, writes NAME.yaml and NAME.safetensors, and with --check compares the losses."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import struct
import sys
from typing import Any, Sequence

from .refusal import Refusal, Refusals


def input_of(text: str) -> tuple[str, bool, list[int]]:
    """Of "3,32,32", "image=3,32,32" or "text=tokens,77": the name, whether it is of token ids, and the sizes."""
    name, _, sizes = text.rpartition("=")
    return name, sizes.startswith("tokens,"), [int(size) for size in sizes.removeprefix("tokens,").split(",")]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m fsdpd.export",
        description="Converts a PyTorch module into a model file of fsdpd "
        "and its weights, or names the operations that a model file does not have.",
    )
    parser.add_argument(
        "module",
        help="module.py:NAME, a class, an instance or a function that makes one; or a call, "
        "module.py:'Net(width=64)'",
    )
    parser.add_argument(
        "--input",
        type=input_of,
        action="append",
        metavar="SIZES",
        help="the shape of one sample without the batch: 3,32,32; with --vocabulary the length of a window. "
        "Of a forward that takes several tensors once for each: image=3,32,32 or text=tokens,77",
    )
    parser.add_argument("--vocabulary", type=int, default=0, metavar="N", help="the input is token ids below N")
    parser.add_argument(
        "--loss",
        default="",
        help="as in a model file; cross_entropy(output, target) if the output is (batch, classes), "
        "otherwise mse_loss(output, target)",
    )
    parser.add_argument(
        "-o", "--output", default="", metavar="NAME", help="writes NAME.yaml and NAME.safetensors; the class's name"
    )
    parser.add_argument("--force", action="store_true", help="replace files that exist")
    parser.add_argument(
        "--check",
        action="store_true",
        help="submit an evaluation of random samples and compare its loss with PyTorch's",
    )
    parser.add_argument("--fsdpctl", default="fsdpctl", metavar="PATH", help="of --check")
    options = parser.parse_args(arguments)
    if not options.input:
        parser.error("--input is missing: the shape of one sample, as in --input 3,32,32")
    if ":" not in options.module:
        parser.error(f"{options.module}: expected FILE.py:NAME")
    several = {name: (tokens, sizes) for name, tokens, sizes in options.input}
    if len(several) < len(options.input) or (len(several) > 1 and "" in several):
        parser.error("several --input have names of their own, those of forward: --input image=3,32,32")
    if any(tokens for tokens, _ in several.values()) and not options.vocabulary:
        parser.error("--vocabulary is missing: the number of token ids")
    options.inputs = several if len(several) > 1 else {}
    options.input = options.input[0][2]
    return options


def load(text: str) -> Any:
    """Runs the user's file and makes the module."""
    import torch

    file, _, expression = text.partition(":")
    spec = importlib.util.spec_from_file_location(os.path.basename(file).removesuffix(".py"), file)
    if spec is None or spec.loader is None or not os.path.exists(file):
        raise Refusal(file, "there is no such Python file")
    sys.path.insert(0, os.path.dirname(os.path.abspath(file)))
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    spec.loader.exec_module(loaded)
    try:
        found = eval(expression, vars(loaded))  # the user's own words about the user's own code
    except NameError as error:
        raise Refusal(file, str(error)) from None
    if not isinstance(found, torch.nn.Module) and callable(found):
        found = found()
    if not isinstance(found, torch.nn.Module):
        raise Refusal(file, f"{expression} is no torch.nn.Module, but {type(found).__name__}")
    return found


def example_of(options: argparse.Namespace, count: int) -> Any:
    import torch

    if options.inputs:
        return {
            name: torch.randint(0, options.vocabulary, (count, *sizes)) if tokens else torch.randn(count, *sizes)
            for name, (tokens, sizes) in options.inputs.items()
        }
    if options.vocabulary:
        return torch.randint(0, options.vocabulary, (count, *options.input))
    return torch.randn(count, *options.input)


TYPES = {
    "float32": "F32",
    "float64": "F64",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "uint8": "U8",
    "bool": "BOOL",
}


def weights_of(state: dict[str, Any]) -> bytes:
    """A safetensors file."""
    header, parts, at = {}, [], 0
    import torch

    for name, tensor in state.items():
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        header[name] = {
            "dtype": TYPES[str(tensor.dtype).removeprefix("torch.")],
            "shape": list(tensor.shape),
            "data_offsets": [at, at + len(data)],
        }
        parts.append(data)
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([struct.pack("<Q", len(text)), text, *parts])


def write_file(path: str, data: bytes, force: bool) -> None:
    if os.path.exists(path) and not force:
        raise Refusal(path, "exists; --force replaces it")
    with open(path + ".new", "wb") as file:
        file.write(data)
    os.replace(path + ".new", path)


def convert(options: argparse.Namespace) -> list[str]:
    from .capture import capture
    from .write import write

    module = load(options.module)
    text = write(capture(module, example_of(options, 3)), options.loss, options.vocabulary)
    name = options.output or type(module).__name__.lower()
    paths = [name + ".yaml", name + ".safetensors"]
    for path in paths if not options.force else []:
        if os.path.exists(path):
            raise Refusal(path, "exists; --force replaces it")
    state = {key: value for key, value in module.state_dict().items()}
    write_file(paths[0], text.encode(), options.force)
    write_file(paths[1], weights_of(state), options.force)
    for path in paths:
        print(path)
    if options.check:
        from .check import check

        check(options, module, paths, text)
    return paths


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    try:
        convert(options)
    except (Refusal, Refusals) as refusal:
        print(refusal, file=sys.stderr)
        return 1
    return 0
