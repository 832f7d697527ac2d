"""A module's forward pass as plain data, by torch.export.

{"name": class, "input": shape of a sample, "tokens": whether these are token ids,
 "modules": {path: {"type", "constructor" of a leaf, "list", "attention" of a MultiheadAttention: its dropout}},
 "tensors": {name: {"shape", "kind": "parameter" or "buffer", "trains"}}, "ties": {name: the name that has its memory},
 "placeholders": {node: tensor's name, "" of the input},
 "inputs": of several {"name", "node", "shape", "tokens"} each, instead of input and tokens; "outputs": all nodes,
 "nodes": [{"name", "op", "args", "kwargs", "stack": ["bs.0@1", ...], the calls of modules that it is part of, "place",
            "shape"}], "output": node}

A dimension is a number, "b" for the batch, or another text for what depends on the batch."""

from __future__ import annotations

import inspect
import os
import traceback
from typing import Any

import torch

from .refusal import Refusal

# Leaf modules: their arguments, with defaults, which are also their attributes; and what must hold besides.
LEAVES = {
    "Conv2d": (
        "in_channels out_channels kernel_size stride=1 padding=0 dilation=1 groups=1 bias=True",
        {"padding_mode": "zeros"},
    ),
    "Conv1d": (
        "in_channels out_channels kernel_size stride=1 padding=0 dilation=1 groups=1 bias=True",
        {"padding_mode": "zeros"},
    ),
    "ConvTranspose2d": (
        "in_channels out_channels kernel_size stride=1 padding=0 output_padding=0 groups=1 bias=True dilation=1",
        {"padding_mode": "zeros"},
    ),
    "Linear": ("in_features out_features bias=True", {}),
    "Dropout": ("p=0.5", {}),
    "ReLU": ("inplace=False", {}),
    "MaxPool2d": ("kernel_size stride=None padding=0", {"dilation": 1, "ceil_mode": False, "return_indices": False}),
    "MaxPool1d": ("kernel_size stride=None padding=0", {"dilation": 1, "ceil_mode": False, "return_indices": False}),
    "AvgPool1d": ("kernel_size stride=None padding=0 count_include_pad=True", {"ceil_mode": False}),
    "AdaptiveAvgPool1d": ("output_size", {}),
    "AvgPool2d": (
        "kernel_size stride=None padding=0 count_include_pad=True",
        {"ceil_mode": False, "divisor_override": None},
    ),
    "AdaptiveAvgPool2d": ("output_size", {}),
    "GroupNorm": ("num_groups num_channels eps=1e-05 affine=True", {}),
    "BatchNorm1d": ("num_features eps=1e-05 momentum=0.1 affine=True", {"track_running_stats": True}),
    "BatchNorm2d": ("num_features eps=1e-05 momentum=0.1 affine=True", {"track_running_stats": True}),
    "Flatten": ("start_dim=1 end_dim=-1", {}),
    "LogSoftmax": ("dim", {}),
    "Embedding": (
        "num_embeddings embedding_dim padding_idx=None",
        {"max_norm": None, "scale_grad_by_freq": False, "sparse": False},
    ),
    **{
        name: (
            "input_size hidden_size num_layers=1 bias=True batch_first=False dropout=0.0 bidirectional=False",
            {"batch_first": True, "proj_size": 0},
        )
        for name in ("LSTM", "GRU")
    },
    "LayerNorm": ("normalized_shape eps=1e-05 elementwise_affine=True bias=True", {}),
    "RMSNorm": ("normalized_shape eps=None elementwise_affine=True", {}),
    "GELU": ("approximate='none'", {}),
    "SiLU": ("inplace=False", {}),
    "Tanh": ("", {}),
    "Sigmoid": ("", {}),
    "Softmax": ("dim", {}),
    "LeakyReLU": ("negative_slope=0.01 inplace=False", {}),
    "ELU": ("alpha=1.0 inplace=False", {}),
    "ReLU6": ("inplace=False", {}),
    "Hardswish": ("inplace=False", {}),
    "Hardsigmoid": ("inplace=False", {}),
    "Identity": ("", {}),
}
ATTENTION = {"batch_first": True, "add_zero_attn": False, "bias_k": None, "bias_v": None, "_qkv_same_embed_dim": True}


def plain(value: Any) -> Any:
    """As few numbers as say the same: (3, 3) is 3."""
    if isinstance(value, (tuple, list)) and len(value) in (1, 2) and len(set(value)) == 1:
        return value[0]
    return tuple(value) if isinstance(value, (tuple, list)) else value


def attribute(module: torch.nn.Module, name: str) -> Any:
    value = getattr(module, name, None)
    if name == "bias" and not isinstance(value, bool):
        return value is not None or (hasattr(module, "elementwise_affine") and not module.elementwise_affine)
    return plain(value)


def constructor_of(module: torch.nn.Module, path: str) -> str | None:
    """Of a leaf that model files have; None: it is none."""
    name = type(module).__name__
    if type(module).__module__.split(".")[0] != "torch" or name not in LEAVES:
        return None
    words, musts = LEAVES[name]
    for must, value in musts.items():
        if plain(getattr(module, must, value)) != value:
            raise Refusal(
                f"module {path}", f"{name} with {must}={getattr(module, must)!r}; a model file has only {value!r}"
            )
    arguments = []
    for word in words.split():
        argument, _, default = word.partition("=")
        value = attribute(module, argument)
        if argument == "padding" and isinstance(value, str):
            raise Refusal(f"module {path}", f"{name} with padding={value!r}; a model file has numbers")
        if argument == "stride" and default == "None" and value == attribute(module, "kernel_size"):
            continue
        if default and str(default).strip("'") == str(value):
            continue
        arguments.append(f"{argument}={value!r}" if default else repr(value))
    return f"{name}({', '.join(arguments)})"


def describe_module(module: torch.nn.Module, path: str) -> dict[str, Any]:
    name = type(module).__name__
    described: dict[str, Any] = {"type": name}
    if type(module) is torch.nn.ModuleList:
        described["list"] = "ModuleList"
    elif isinstance(module, torch.nn.Sequential) and type(module).forward is torch.nn.Sequential.forward:
        described["list"] = "Sequential"
    elif type(module) is torch.nn.MultiheadAttention:
        for must, value in ATTENTION.items():
            if getattr(module, must) != value:
                raise Refusal(
                    f"module {path}",
                    f"MultiheadAttention with {must}={getattr(module, must)!r}; " f"only {value!r} can be converted",
                )
        described["attention"] = {"dropout": module.dropout}
        dropout, bias = (f", dropout={module.dropout}" if module.dropout else ""), module.in_proj_bias is not None
        described["constructor"] = (
            f"MultiheadAttention({module.embed_dim}, {module.num_heads}{dropout}"
            f"{'' if bias else ', bias=False'}, batch_first=True)"
        )
    else:
        constructor = constructor_of(module, path)
        if constructor:
            described["constructor"] = constructor
    return described


def describe_tensors(module: torch.nn.Module) -> tuple[dict[str, Any], dict[str, str]]:
    """Of those that are in the state_dict."""
    tensors, ties, first = {}, {}, {}
    state = module.state_dict()
    for kind, named in (
        ("parameter", module.named_parameters(remove_duplicate=False)),
        ("buffer", module.named_buffers(remove_duplicate=False)),
    ):
        for name, tensor in named:
            if name not in state:
                continue
            if not tensor.is_floating_point() and not name.endswith("num_batches_tracked"):
                raise Refusal(f"buffer {name}", f"is of {tensor.dtype}; a model file has floating-point numbers")
            tensors[name] = {"shape": list(tensor.shape), "kind": kind, "trains": tensor.requires_grad}
            if id(tensor) in first:
                ties[name] = first[id(tensor)]
            first.setdefault(id(tensor), name)
    return tensors, ties


def is_arithmetic_of_sizes(node: torch.fx.Node) -> bool:
    """Nodes without a tensor that compute nothing of the result."""
    value = node.meta.get("val")
    numbers = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)
    return isinstance(value, numbers) or "assert" in str(node.target) or "sym_constrain" in str(node.target)


def is_library(file: str) -> bool:
    return "/torch/" in f"/{file}" or file.startswith("<") or "importlib" in file


def place_of(text: str | None) -> str:
    """The user's innermost line of a stack trace."""
    lines = [line.strip() for line in (text or "").splitlines() if line.strip().startswith("File ")]
    for line in reversed(lines):
        file, number = line.split('"')[1], line.split("line ")[1].split(",")[0]
        if not is_library(file):
            return f"{os.path.relpath(file) if os.path.isabs(file) else file}:{number}"
    return "forward"


def place_of_error(error: BaseException, module: torch.nn.Module) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not is_library(frame.filename)]
    own = [frame for frame in frames if f"{os.sep}fsdpd{os.sep}export{os.sep}" not in frame.filename]
    return f"{os.path.relpath(own[-1].filename)}:{own[-1].lineno}" if own else forward_place(module)


def forward_place(module: torch.nn.Module) -> str:
    code = type(module).forward.__code__
    return f"{os.path.relpath(code.co_filename)}:{code.co_firstlineno}"


def check_inputs(module: torch.nn.Module, example: Any) -> list[str]:
    """The names of the inputs, if there are several."""
    required = [
        name
        for name, parameter in inspect.signature(module.forward).parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
    named = isinstance(example, dict)
    if named and sorted(required) == sorted(example):
        return required
    if named or len(required) != 1:
        raise Refusal(
            forward_place(module),
            f"forward takes {len(required)} tensors ({', '.join(required)}); "
            "of several each has an --input NAME=SIZES, or NAME=tokens,LENGTH",
        )
    return []


def encode(value: Any, batch: str) -> Any:
    if isinstance(value, torch.fx.Node):
        if is_arithmetic_of_sizes(value):
            return {"size": dimension(value.meta.get("val"), batch)}
        return {"node": value.name}
    if isinstance(value, (list, tuple)):
        return [encode(item, batch) for item in value]
    if isinstance(value, (int, float, bool, str, type(None))):
        return value
    return str(value)


def dimension(size: Any, batch: str) -> int | str:
    if isinstance(size, int):
        return size
    return "b" if str(size) == batch else str(size)


def shape_of(value: Any, batch: str) -> Any:
    if isinstance(value, (tuple, list)):
        return [shape_of(item, batch) for item in value]
    return [dimension(size, batch) for size in value.shape]


def stack_of(node: torch.fx.Node) -> list[str]:
    stack = []
    for key, (path, _) in node.meta.get("nn_module_stack", {}).items():
        if path:
            stack.append(path + ("@" + key.split("@")[1] if "@" in key else ""))
    return stack


def export(module: torch.nn.Module, examples: tuple[torch.Tensor, ...]) -> torch.export.ExportedProgram:
    try:
        batch = torch.export.Dim("batch", min=2)
        return torch.export.export(module, examples, dynamic_shapes=tuple({0: batch} for _ in examples), strict=False)
    except Exception as error:  # of the user's code as well as of torch
        words = " ".join(str(error).split())
        raise Refusal(place_of_error(error, module), f"torch.export: {type(error).__name__}: {words[:200]}") from None


def capture(module: torch.nn.Module, example: Any) -> dict[str, Any]:
    """`example`: a batch of at least 2 samples, or windows of token ids; of several inputs one for each name."""
    module.train()
    inputs = check_inputs(module, example)
    examples = tuple(example[name] for name in inputs) or (example,)
    modules = {path: describe_module(child, path) for path, child in module.named_modules(remove_duplicate=False)}
    tensors, ties = describe_tensors(module)
    program = export(module, examples)
    signature = program.graph_signature
    named = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    placeholders, nodes, output, batch = {}, [], None, ""
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder":
            tensor = named.get(node.name, "")
            given = node.name in signature.user_inputs
            placeholders[node.name] = "" if given else tensor if tensor in tensors else "?" + node.name
            if given:
                batch = str(value.shape[0])
                if batch.isdigit():
                    raise Refusal(forward_place(module), f"forward works only for a batch of {batch} samples")
        elif node.op == "output":
            output = encode(node.args[0], batch)
        elif node.op == "call_function" and not is_arithmetic_of_sizes(node):
            target = node.target
            nodes.append(
                {
                    "name": node.name,
                    "op": str(target) if not callable(target) or "aten" in str(target) else target.__name__,
                    "args": encode(node.args, batch),
                    "kwargs": {key: encode(item, batch) for key, item in node.kwargs.items()},
                    "stack": stack_of(node),
                    "place": place_of(node.meta.get("stack_trace")),
                    "shape": shape_of(value, batch) if isinstance(value, (torch.Tensor, tuple, list)) else [],
                }
            )
    outputs = list(signature.user_outputs)
    several: dict[str, Any] = {}
    if inputs:
        several["inputs"] = [
            {"name": name, "node": node, "shape": list(given.shape[1:]), "tokens": not given.is_floating_point()}
            for name, node, given in zip(inputs, signature.user_inputs, examples)
        ]
        several["outputs"] = outputs
    if len(outputs) != 1 and not (inputs and len(outputs) <= 3):
        raise Refusal(
            forward_place(module),
            f"forward returns {len(outputs)} values; a model file has one, output, and its loss reads others by name",
        )
    return {
        "name": type(module).__name__,
        "input": list(examples[0].shape[1:]),
        "tokens": not inputs and not examples[0].is_floating_point(),
        **several,
        "modules": modules,
        "tensors": tensors,
        "ties": ties,
        "placeholders": placeholders,
        "nodes": nodes,
        "output": outputs[0],
    }
