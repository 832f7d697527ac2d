"""The expression of each operation of a captured graph in the language of model files (docs/model-file.md)."""

from __future__ import annotations

import math
from typing import Any, Callable

from .refusal import Refusal


class Ref(str):
    """A value's name within an expression."""


class Expression:
    """Texts and values. `loose`: an operator's, which needs parentheses within another one's."""

    def __init__(self, *parts: str, loose: bool = False):
        self.parts, self.loose = parts, loose


def call(name: str, *arguments: Any, **keywords: Any) -> Expression:
    parts: list[str] = [name + "("]
    for index, argument in enumerate(arguments):
        parts += [", "] * (index > 0) + [argument if isinstance(argument, str) else repr(argument)]
    for key, value in keywords.items():
        parts += [f", {key}=", value if isinstance(value, Ref) else repr(value)]
    return Expression(*parts, ")")


class Operation:
    """A node, with the shapes of what it reads."""

    def __init__(self, node: dict[str, Any], shapes: dict[str, Any], made: dict[str, dict[str, Any]]):
        self.node, self.shapes, self.made = node, shapes, made
        self.shape = node["shape"]

    def argument(self, index: int, name: str = "", default: Any = None) -> Any:
        if index < len(self.node["args"]):
            return self.node["args"][index]
        return self.node["kwargs"].get(name, default)

    def refuse(self, reason: str) -> Refusal:
        return Refusal(self.node["place"], f"{short(self.node['op'])}: {reason}")

    def value(self, index: int, name: str = "") -> Ref:
        argument = self.argument(index, name)
        if not is_value(argument):
            raise self.refuse(f"expected a tensor, found {argument!r}")
        return Ref(argument["node"])

    def mask(self, index: int) -> Ref:
        x = self.value(index)
        if not self.made.get(x, {}).get("mask"):
            raise self.refuse("reads a condition that is no comparison")
        return x

    def number(self, argument: Any) -> Any:
        if not isinstance(argument, (int, float)) or not math.isfinite(argument):
            raise self.refuse(f"with {argument!r}, which is neither a tensor nor a number")
        return int(argument) if isinstance(argument, bool) else argument

    def check_states(self) -> None:
        """Of an LSTM or GRU, the last state is read by its layer."""
        for argument in self.node["args"]:
            made = self.made.get(argument["node"], {}) if is_value(argument) else {}
            repeats = "expanded" in made and short(self.node["op"]).rstrip("_") in SIGNS
            if "missing" in made and not repeats:
                raise self.refuse(made["missing"])
            if "cell" in made or ("last" in made and short(self.node["op"]) not in ("select", "squeeze")):
                raise self.refuse("reads the last states of an LSTM or GRU; a model file has its output, y[:, -1]")

    def last_state(self, x: str, index: int) -> Expression:
        """Number `index` of h_n, of the result of all times."""
        y, width, directions = self.made[x]["last"]
        count = self.shapes[x][0]
        index = index + count if index < 0 else index
        if index < count - directions:
            raise self.refuse("reads the state of a layer before the last; a model file has the last one's output")
        back = directions == 2 and index == count - 1
        parts: list[str] = ["select("]
        parts += ["narrow(", Ref(y), f", 2, {width if back else 0}, {width})"] if directions == 2 else [Ref(y)]
        return Expression(*parts, f", 1, {0 if back else -1})")

    def shape_of(self, value: str) -> list[Any]:
        return self.shapes[value]

    def keeps_batch(self, *values: str) -> None:
        """Values of samples have the batch first and nowhere else; only then does the language say the same."""
        for shape in [self.shapes[value] for value in values] + [self.shape]:
            whole = [size for size in shape if not isinstance(size, int)]
            if whole and (whole != ["b"] or shape[0] != "b"):
                raise self.refuse(f"moves the batch: {format_shape(shape)}; in a model file it stays dimension 0")

    def dim(self, index: int, name: str, value: str, default: Any = None) -> int:
        """Counted from the front, and never the batch's."""
        dim, shape = self.argument(index, name, default), self.shapes[value]
        dim = dim + len(shape) if dim < 0 else dim
        if dim == 0:
            raise self.refuse(f"takes dimension 0 of {format_shape(shape)}, which is the batch's")
        return dim


def short(op: str) -> str:
    return op.removeprefix("aten.").rpartition(".")[0] or op


def format_shape(shape: list[Any]) -> str:
    return f"({', '.join(str(size) for size in shape)})"


def is_value(argument: Any) -> bool:
    return isinstance(argument, dict) and "node" in argument


TABLE: dict[str, Callable[[Operation], Any]] = {}


def op(*names: str) -> Callable[[Callable[[Operation], Any]], Callable[[Operation], Any]]:
    def add(function: Callable[[Operation], Any]) -> Callable[[Operation], Any]:
        for name in names:
            TABLE["aten." + name] = function
        return function

    return add


# What only says the same again. The value stands for its first argument.
SAME = {
    "aten." + name
    for name in (
        "contiguous.default",
        "clone.default",
        "alias.default",
        "lift_fresh_copy.default",
        "_assert_tensor_metadata.default",
    )
}


def simple(name: str) -> Callable[[Operation], Expression]:
    return lambda node: call(name, node.value(0))


for _name in ("relu", "silu", "tanh", "sigmoid", "relu6", "hardswish", "hardsigmoid", "exp", "log", "sqrt", "abs"):
    op(_name + ".default", _name + "_.default")(simple(_name))


@op("leaky_relu.default", "leaky_relu_.default")
def leaky_relu(node: Operation) -> Expression:
    return call("leaky_relu", node.value(0), node.argument(1, "negative_slope", 0.01))


@op("elu.default", "elu_.default")
def elu(node: Operation) -> Expression:
    if node.argument(2, "scale", 1) != 1 or node.argument(3, "input_scale", 1) != 1:
        raise node.refuse("with a scale")
    alpha = node.argument(1, "alpha", 1)
    return call("elu", node.value(0), *([] if alpha == 1 else [alpha]))


@op("hardtanh.default", "hardtanh_.default")
def hardtanh(node: Operation) -> Expression:
    return within(node, node.argument(1, "min_val", -1), node.argument(2, "max_val", 1))


@op("clamp.default", "clamp_.default", "clamp_min.default", "clamp_max.default")
def clamp(node: Operation) -> Expression:
    if "clamp_max" in node.node["op"]:
        return within(node, None, node.argument(1, "max"))
    return within(node, node.argument(1, "min"), node.argument(2, "max"))


def within(node: Operation, least: Any, most: Any) -> Expression:
    x = node.value(0)
    if least == 0 and most in (None, 6):
        return call("relu" if most is None else "relu6", x)
    parts: list[str] = [x]
    for sign, bound in ((">", most), ("<", least)):
        if bound is not None:
            parts = ["masked_fill(", *parts, ", ", x, f" {sign} {node.number(bound)!r}, {node.number(bound)!r})"]
    return Expression(*parts)


# ---- masks


def compared(node: Operation, *parts: str) -> Expression:
    """0 or 1, which conditions may be."""
    node.made[node.node["name"]] = {"mask": True}
    return Expression(*parts, loose=True)


SIGNS_OF = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "eq": "==", "ne": "!="}


@op(*(f"{name}.{kind}" for name in SIGNS_OF for kind in ("Scalar", "Tensor")))
def compare(node: Operation) -> Expression:
    x, other, name = node.value(0), node.argument(1, "other"), short(node.node["op"])
    if not is_value(other):
        return compared(node, x, f" {SIGNS_OF[name]} ", repr(node.number(other)))
    if name not in ("gt", "lt"):
        raise node.refuse("of two tensors; a model file compares a tensor with a number, or two of them by > or <")
    check_broadcast(node, x, node.value(1))
    return compared(node, x, " - ", node.value(1), f" {SIGNS_OF[name]} 0")


@op(*(f"logical_{name}.default" for name in ("not", "and", "or")), "bitwise_not.default")
@op("bitwise_and.Tensor", "bitwise_or.Tensor", "__and__.Tensor", "__or__.Tensor")
def combined(node: Operation) -> Expression:
    name, x = short(node.node["op"]).strip("_").rpartition("_")[2], node.mask(0)
    if name == "not":
        return compared(node, "1 - ", x)
    check_broadcast(node, x, node.mask(1))
    both = (x, " * ", node.mask(1)) if name == "and" else ("1 - (1 - ", x, ") * (1 - ", node.mask(1), ")")
    return compared(node, *both)


def choice(node: Operation, mask: Ref, chosen: Any, other: Any) -> Expression:
    """An infinite number is the logarithm of a mask: 0, or -infinity."""
    sides, more = [], []
    for index, side in enumerate((chosen, other)):
        if is_value(side):
            sides.append(Ref(side["node"]))
            check_broadcast(node, mask, sides[-1])
        elif isinstance(side, (int, float)) and math.isinf(side):
            sides.append("0")
            more += [" + " if side < 0 else " - ", *(["log(1 - ", mask, ")"] if index == 0 else ["log(", mask, ")"])]
        else:
            sides.append(repr(node.number(side)))
    parts = ["where(", mask, ", ", sides[0], ", ", sides[1], ")"]
    return Expression(*parts, *more, loose=bool(more))


@op("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def where(node: Operation) -> Expression:
    return choice(node, node.mask(0), node.argument(1, "self"), node.argument(2, "other"))


@op("masked_fill.Scalar", "masked_fill_.Scalar", "masked_fill.Tensor")
def masked_fill(node: Operation) -> Expression:
    return choice(node, node.mask(1), node.argument(2, "value"), node.argument(0))


@op("randn_like.default")
def randn_like(node: Operation) -> Expression:
    if node.argument(1, "dtype") is not None:
        raise node.refuse("with a dtype")
    return call("randn_like", node.value(0))


@op("rand_like.default", "randn.default", "rand.default", "bernoulli.default", "normal.default")
def draw(node: Operation) -> Any:
    raise node.refuse("draws random numbers; a model file has only randn_like and dropout")


@op("gelu.default")
def gelu(node: Operation) -> Expression:
    how = node.argument(1, "approximate", "none")
    return call("gelu", node.value(0)) if how == "none" else call("gelu", node.value(0), approximate=how)


@op("softmax.int", "log_softmax.int")
def softmax(node: Operation) -> Expression:
    if node.argument(2, "dtype") is not None:
        raise node.refuse("with a dtype")
    x = node.value(0)
    dim = node.dim(1, "dim", x)
    if dim != len(node.shape) - 1:
        raise node.refuse(f"over dim={dim} of {format_shape(node.shape)}; a model file has it over the last dimension")
    return call(short(node.node["op"]), x, dim=-1)


@op("dropout.default", "dropout_.default", "feature_dropout.default")
def dropout(node: Operation) -> Any:
    if "feature" in node.node["op"]:
        raise node.refuse("zeroes whole channels; a model file has dropout of elements")
    p, trains = node.argument(1, "p", 0.5), node.argument(2, "train", True)
    return node.value(0) if p == 0 or not trains else call("dropout", node.value(0), p)


# ---- arithmetic


def suffix(shape: list[Any]) -> list[Any]:
    """As the language sees a parameter: a first dimension of 1 stands for the batch."""
    return shape[1:] if len(shape) > 1 and shape[0] == 1 else shape


def check_broadcast(node: Operation, a: Ref, b: Ref) -> None:
    """As PyTorch repeats tensors, unless this would join the batch with another dimension."""
    left, right = node.shapes[a], node.shapes[b]
    if left == right:
        return
    for shape in (left, right):
        if "b" in shape and (len(shape) < len(node.shape) or shape[0] != "b"):
            raise node.refuse(f"{format_shape(left)} with {format_shape(right)} repeats samples of the batch")
    if "b" not in node.shape and len(suffix(left)) != len(suffix(right)):
        raise node.refuse(f"{format_shape(left)} with {format_shape(right)}, of parameters alone")


SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}


@op(
    *(f"{name}{inplace}.{kind}" for name in SIGNS for inplace in ("", "_") for kind in ("Tensor", "Scalar")),
    "rsub.Scalar",
    "rsub.Tensor",
)
def arithmetic(node: Operation) -> Expression:
    name = short(node.node["op"]).rstrip("_")
    if name == "div" and node.argument(2, "rounding_mode") is not None:
        raise node.refuse("with a rounding_mode")
    first, second = node.argument(0, "input"), node.argument(1, "other")
    if name == "rsub":
        first, second, name = second, first, "sub"
    if node.argument(2, "alpha", 1) != 1:
        raise node.refuse("with alpha")
    sides = []
    for side in (first, second):
        if is_value(side):
            sides.append(Ref(node.made.get(side["node"], {}).get("expanded", side["node"])))
        else:
            sides.append(repr(node.number(side)))
    values = [side for side in sides if isinstance(side, Ref)]
    repeated = any(is_value(side) and side["node"] not in sides for side in (first, second))
    if repeated and all(node.shapes[value] != node.shape for value in values):
        raise node.refuse("of what is repeated, with nothing of its size")
    if len(values) == 2:
        check_broadcast(node, *values)
        if name == "div" and node.shapes[values[0]] != node.shape:
            raise node.refuse(f"repeats the dividend {format_shape(node.shapes[values[0]])}")
    return Expression(sides[0], f" {SIGNS[name]} ", sides[1], loose=True)


@op("neg.default")
def neg(node: Operation) -> Expression:
    return Expression("-1 * ", node.value(0), loose=True)


@op("pow.Tensor_Scalar", "square.default")
def power(node: Operation) -> Expression:
    exponent, x = node.argument(1, "exponent", 2), node.value(0)
    return Expression(x, " * ", x, loose=True) if exponent == 2 else call("pow", x, exponent)


@op("matmul.default", "bmm.default", "mm.default")
def matmul(node: Operation) -> Expression:
    a, b = node.value(0), node.value(1)
    node.keeps_batch(a, b)
    left, right = node.shapes[a], node.shapes[b]
    for shape, other in ((left, right), (right, left)):
        if len(shape) < 2:
            raise node.refuse(f"{format_shape(left)} times {format_shape(right)}; a model file multiplies matrices")
        constant = len(shape) == 2 and "b" not in shape
        if not constant and shape[:-2] != other[:-2] and len(other) != 2:
            raise node.refuse(f"{format_shape(left)} times {format_shape(right)}; the first dimensions must be equal")
    if len(right) == 2 and "b" in right or (len(left) == 2 and len(right) > 2 and "b" in left):
        raise node.refuse(f"{format_shape(left)} times {format_shape(right)} mixes samples of the batch")
    return call("matmul", a, b)


@op("sum.dim_IntList")
def total(node: Operation) -> Expression:
    if node.argument(3, "dtype") is not None:
        raise node.refuse("with a dtype")
    return reduce(node, "sum")


@op("upsample_nearest2d.vec", "upsample_nearest2d.default")
def upsample(node: Operation) -> Expression:
    x = node.value(0)
    before, after = node.shapes[x][2:], node.shape[2:]
    factor = after[0] // before[0]
    if after != [size * factor for size in before]:
        raise node.refuse(
            f"from {format_shape(before)} to {format_shape(after)}; a model file has one whole factor for both"
        )
    return call("interpolate", x, scale_factor=factor)


# ---- shapes


@op(
    "view.default",
    "reshape.default",
    "flatten.using_ints",
    "unflatten.int",
    "unsqueeze.default",
    "squeeze.dim",
    "squeeze.default",
    "squeeze.dims",
    "_unsafe_view.default",
)
def reshape(node: Operation) -> Any:
    """From the shapes alone, so that the batch's size does not matter."""
    x = node.value(0)
    if "last" in node.made.get(x, {}):
        return node.last_state(x, 0)
    node.keeps_batch(x)
    before, after = node.shapes[x], node.shape
    if before == after:
        return x
    if "b" not in before or "b" not in after:
        raise node.refuse(f"of {format_shape(before)}, which has no batch")
    source = node.made.get(x, {})
    if source.get("split") and source["split"][0] in node.shapes and node.shapes[source["split"][0]] == after:
        return Ref(source["split"][0])
    first = 0
    while first < min(len(before), len(after)) and before[first] == after[first]:
        first += 1
    last = 0
    while last < min(len(before), len(after)) - first and before[-1 - last] == after[-1 - last]:
        last += 1
    old, new = before[first : len(before) - last], after[first : len(after) - last]
    if node.node["op"] == "aten.flatten.using_ints":
        start, end = (
            node.argument(index, name, default) % len(before)
            for index, name, default in ((1, "start_dim", 0), (2, "end_dim", -1))
        )
        return call("flatten", x, start, *([end] if end < len(before) - 1 else []))
    if len(new) == 1 and len(old) > 1:
        end = () if last == 0 else (len(before) - last - 1,)
        return call("flatten", x, first, *end)
    if len(old) == 1 and len(new) > 1:
        if len(new) == 2 and first == len(before) - 1:
            node.made[node.node["name"]] = {"split": (x, new[0])}
        return call("unflatten", x, first if first < len(before) - 1 else -1, tuple(new))
    return call("reshape", x, tuple([-1] + after[1:]))


def swap(node: Operation, x: Ref, first: int, second: int) -> Expression:
    source = node.made.get(x, {})
    if {first, second} == {1, 2} and len(node.shape) == 4:
        if source.get("split"):
            node.made[node.node["name"]] = {"heads": source["split"]}
        if source.get("heads"):
            node.made[node.node["name"]] = {"split": source["heads"]}
    return call("transpose", x, first, second)


@op("transpose.int", "transpose_.default")
def transpose(node: Operation) -> Any:
    x = node.value(0)
    node.keeps_batch(x)
    first, second = node.dim(1, "dim0", x), node.dim(2, "dim1", x)
    return x if first == second else swap(node, x, first, second)


@op("permute.default")
def permute(node: Operation) -> Any:
    x = node.value(0)
    node.keeps_batch(x)
    order = [dim % len(node.shape) for dim in node.argument(1, "dims")]
    if order[0] != 0:
        raise node.refuse(f"puts dimension {order[0]} first, where the batch is")
    swaps = exchanges(order)
    if not swaps:
        return x
    return swap(node, x, *swaps[0]) if len(swaps) == 1 else Expression(*transposed(swaps, [x]))


def exchanges(order: list[int]) -> list[tuple[int, int]]:
    """Of two dimensions each, one after the other, which make the order of 0, 1, 2 ..."""
    swaps, now = [], list(range(len(order)))
    for at, dim in enumerate(order):
        if now[at] != dim:
            other = now.index(dim)
            now[at], now[other] = now[other], now[at]
            swaps.append((at, other))
    return swaps


def transposed(swaps: list[tuple[int, int]], parts: list[str]) -> list[str]:
    return ["transpose("] * len(swaps) + parts + [f", {first}, {second})" for first, second in swaps]


@op("einsum.default")
def einsum(node: Operation) -> Expression:
    """Of two tensors, as their product as matrices with transposes before and behind it."""
    equation, values = node.argument(0, "equation").replace(" ", ""), node.argument(1, "tensors")
    inputs, arrow, out = equation.partition("->")
    sides = inputs.split(",")
    letters = [set(side) for side in sides + [out]]
    if not arrow or len(sides) != 2 or not inputs.replace(",", "").isalpha() or not out.isalpha():
        raise node.refuse(f"{equation!r}; a model file has products of two tensors, with '->' and without '...'")
    left, right = sides
    summed = [letter for letter in left if letter in right and letter not in out]
    shared = [letter for letter in out if letter in left and letter in right]
    rows = [letter for letter in out if letter in left and letter not in right]
    columns = [letter for letter in out if letter in right and letter not in left]
    once = all(len(side) == len(known) for side, known in zip(sides + [out], letters))
    first = columns[:-1] if not shared and len(rows) == 1 else []
    columns = columns[len(first) :]
    alone = letters[0] ^ letters[1] <= letters[2]
    if not once or not alone or len(summed) != 1 or not rows or len(columns) != 1 or (len(rows) > 1 and shared):
        raise node.refuse(f"{equation!r} is no product of matrices, over one letter and with one of either alone")
    a, b = (Ref(value["node"]) for value in values)
    node.keeps_batch(a, b)
    sizes = node.shapes
    if not shared and ("b" in sizes[a] and "b" in sizes[b] or len(right if not first else left) != 2):
        raise node.refuse(f"{equation!r} joins samples of the batch")
    parts = ["matmul("]
    for value, old, new in ((a, left, shared + rows + summed), (b, right, shared + first + summed + columns)):
        if new[0] != old[0]:
            raise node.refuse(f"{equation!r} moves the first dimension of {format_shape(sizes[value])}")
        parts += [*transposed(exchanges([old.index(letter) for letter in new]), [value]), ", "]
    made = shared + first + rows + columns
    parts[-1] = ")"
    if made[0] != out[0]:
        raise node.refuse(f"{equation!r} moves the batch; in a model file it stays dimension 0")
    return Expression(*transposed(exchanges([made.index(letter) for letter in out]), parts))


@op("select.int")
def select(node: Operation) -> Expression:
    x = node.value(0)
    if "last" in node.made.get(x, {}) and node.argument(1, "dim") == 0:
        return node.last_state(x, node.argument(2, "index"))
    node.keeps_batch(x)
    return call("select", x, node.dim(1, "dim", x), node.argument(2, "index"))


@op("slice.Tensor", "narrow.default")
def cut(node: Operation) -> Any:
    x = node.value(0)
    node.keeps_batch(x)
    if node.shapes[x] == node.shape:
        return x
    dim = node.dim(1, "dim", x, 0)
    size = node.shapes[x][dim]
    start = node.argument(2, "start", 0) or 0
    if node.node["op"] == "aten.slice.Tensor" and node.argument(4, "step", 1) != 1:
        raise node.refuse("with a step")
    start = max(0, start + size) if start < 0 else start
    return call("narrow", x, dim, start, node.shape[dim])


@op("chunk.default", "split.Tensor", "split_with_sizes.default", "unbind.int")
def parts(node: Operation) -> None:
    """Several values: see getitem."""
    x = node.value(0)
    if "unbind" in node.node["op"]:
        node.made[node.node["name"]] = {"parts": (x, node.dim(1, "dim", x, 0), None)}
        return None
    dim = node.dim(2, "dim", x, 0)
    node.made[node.node["name"]] = {"parts": (x, dim, [shape[dim] for shape in node.shape])}
    return None


def getitem(node: Operation) -> Any:
    """One of several values. x[i] of a chunk, or a part of its dimension."""
    source, index = node.argument(0)["node"], node.argument(1)
    if "largest" in node.made.get(source, {}):
        if index != 0:
            node.made[node.node["name"]] = {"missing": "reads where the largest is; a model file has only the largest"}
            return None
        return node.made[source]["largest"]
    if source not in node.made or "parts" not in node.made[source]:
        raise node.refuse(f"takes value {index} of an operation that is not converted")
    x, dim, sizes = node.made[source]["parts"]
    if sizes is None:
        return call("select", x, dim, index)
    if len(set(sizes)) == 1:
        return Expression("chunk(", x, f", {len(sizes)}, dim={dim})[{index}]")
    return call("narrow", x, dim, sum(sizes[:index]), sizes[index])


TABLE["getitem"] = getitem


@op("cat.default")
def cat(node: Operation) -> Expression:
    values = [Ref(item["node"]) for item in node.argument(0, "tensors")]
    dim = node.argument(1, "dim", 0) % len(node.shape)
    if dim == 0:
        raise node.refuse("joins samples of the batch")
    node.keeps_batch(*values)
    inside = [part for value in values for part in (", ", value)][1:]
    return Expression("cat([", *inside, f"], dim={dim})")


@op("expand.default", "expand_as.default")
def expand(node: Operation) -> Any:
    """Over the batch a parameter is repeated anyway."""
    x = node.value(0)
    before = node.shapes[x]
    if before == node.shape or (
        len(before) == len(node.shape) and before[0] == 1 and before[1:] == node.shape[1:] and node.shape[0] == "b"
    ):
        return x
    reason = f"of {format_shape(before)} to {format_shape(node.shape)}; a model file repeats only over the batch"
    if len(before) != len(node.shape) or any(old not in (1, new) for old, new in zip(before, node.shape)):
        raise node.refuse(reason)
    node.made[node.node["name"]] = {"expanded": x, "missing": f"reads what expand made {reason}"}  # arithmetic repeats
    return None


def reduce(node: Operation, name: str, inner: list[str] | None = None, at: int = 1) -> Expression:
    """`inner`: what is reduced, of the shape of the first argument; `at`: the place of the argument `dim`."""
    x = node.value(0)
    node.keeps_batch(x)
    rank = len(node.shapes[x])
    dims = node.argument(at, "dim")
    dims = sorted(
        {dim % rank for dim in (range(rank) if not dims else [dims] if isinstance(dims, int) else dims)}, reverse=True
    )
    if 0 in dims:
        raise node.refuse("takes dimension 0, which is the batch's")
    if name == "amax" and len(dims) > 1:
        if dims[0] - dims[-1] >= len(dims):
            raise node.refuse(f"over {dims[::-1]}; a model file has the largest of neighbouring dimensions")
        parts: list[str] = ["amax(flatten(", x, f", {dims[-1]}, {dims[0]}), dim={dims[-1]})"]
    else:
        parts = [name + "("] * len(dims) + (inner or [x]) + [f", dim={dim})" for dim in dims]
    if not node.argument(at + 1, "keepdim", False):
        return Expression(*parts)
    return Expression("reshape(", *parts, f", {tuple([-1] + node.shape[1:])})")


@op("amax.default", "max.dim")
def largest(node: Operation) -> Any:
    """With equal elements amax divides the gradient, and max gives it to the first one."""
    if node.node["op"] == "aten.amax.default":
        return reduce(node, "amax")
    node.shape = node.shape[0]
    node.made[node.node["name"]] = {"largest": reduce(node, "max")}
    return None


@op("mean.dim")
def mean(node: Operation) -> Expression:
    return reduce(node, "mean")


@op("linalg_vector_norm.default", "norm.ScalarOpt_dim")
def norm(node: Operation) -> Expression:
    if node.argument(1, "ord" if "linalg" in node.node["op"] else "p", 2) != 2 or node.argument(4, "dtype") is not None:
        raise node.refuse("with an order other than 2, or a dtype")
    x = node.value(0)  # of zeros PyTorch's gradient is 0, and that of a root of 0 is not
    return Expression("sqrt(", *reduce(node, "sum", [x, " * ", x], at=2).parts, " + 1e-24)")


# ---- images


@op(*(f"{name}_pool{rank}d.default" for name in ("max", "avg", "adaptive_avg") for rank in (1, 2)))
def pool(node: Operation) -> Expression:
    name, kernel = short(node.node["op"]), node.argument(1, "kernel_size")
    x, size = node.value(0), lambda value: (
        tuple(value)
        if isinstance(value, list) and len(set(value)) > 1
        else value[0] if isinstance(value, list) else value
    )
    if name.startswith("adaptive"):
        return call(name, x, size(node.argument(1, "output_size")))
    stride = node.argument(2, "stride", []) or kernel
    padding = node.argument(3, "padding", 0)
    if (
        name.startswith("max")
        and size(node.argument(4, "dilation", 1)) != 1
        or node.argument(5 if name.startswith("max") else 4, "ceil_mode", False)
    ):
        raise node.refuse("with dilation or ceil_mode")
    keywords = {} if size(padding) == 0 else {"padding": size(padding)}
    if name.startswith("avg"):
        if node.argument(6, "divisor_override") is not None:
            raise node.refuse("with divisor_override")
        if not node.argument(5, "count_include_pad", True):
            keywords["count_include_pad"] = False
    return call(name, x, size(kernel), *([] if size(stride) == size(kernel) else [size(stride)]), **keywords)


# ---- attention


@op("scaled_dot_product_attention.default")
def attention(node: Operation) -> Expression:
    """Model files have the heads side by side: (batch, time, heads x columns)."""
    if node.argument(3, "attn_mask") is not None:
        raise node.refuse("with an attn_mask; a model file has padding_mask, is_causal and window")
    if len(node.shape) != 4:
        raise node.refuse(f"of {format_shape(node.shape)}; expected (batch, heads, time, columns)")
    keywords: dict[str, Any] = {"num_heads": node.shape[1]}
    kv_heads = node.shapes[node.value(1)][1]
    if kv_heads != node.shape[1]:
        keywords["num_kv_heads"] = kv_heads
    for index, name, default in ((4, "dropout_p", 0.0), (5, "is_causal", False), (6, "scale", None)):
        if node.argument(index, name, default) != default:
            keywords[name] = node.argument(index, name, default)
    parts: list[str] = ["attention("]
    for index in range(3):
        x = node.value(index)
        node.keeps_batch(x)
        if len({node.shapes[node.value(k)][2] for k in range(3)}) > 1:
            raise node.refuse("of a query and keys of different lengths")
        heads = node.made.get(x, {}).get("heads")
        parts += [Ref(heads[0]), ", "] if heads else ["flatten(transpose(", x, ", 1, 2), 2), "]
    flat = node.node["name"] + "_flat"
    node.shapes[flat] = [node.shape[0], node.shape[2], node.shape[1] * node.shape[3]]
    node.made[node.node["name"]] = {
        "heads": (flat, node.shape[1]),
        "flat": flat,
        "expression": Expression(*parts, ", ".join(f"{k}={v!r}" for k, v in keywords.items()), ")"),
    }
    return Expression("transpose(unflatten(", Ref(flat), f", -1, ({node.shape[1]}, -1)), 1, 2)")


@op("arange.default", "arange.start")
def positions(node: Operation) -> Any:
    raise node.refuse("a model file has positions(x), of token ids")
