"""Divides a captured graph by modules: of every container the lines of its forward pass, of every leaf where it is
called.

A container whose lines another module cannot call (it returns several values, or none of its own) is opened: its lines
are then part of its parent's, with the names of its modules from there."""

from __future__ import annotations

import itertools
import re
from typing import Any

from .operations import SAME, TABLE, Expression, Operation, Ref, is_value, short
from .refusal import Refusal, Refusals

LEAF_OPS = {
    "Conv2d": "conv2d.default",
    "Conv1d": "conv1d.default",
    "ConvTranspose2d": "conv_transpose2d.input",
    "MaxPool1d": "max_pool1d.default",
    "AvgPool1d": "avg_pool1d.default",
    "AdaptiveAvgPool1d": "adaptive_avg_pool1d.default",
    "Linear": "linear.default",
    "Dropout": "dropout.default",
    "ReLU": "relu",
    "GELU": "gelu.default",
    "MaxPool2d": "max_pool2d.default",
    "AvgPool2d": "avg_pool2d.default",
    "AdaptiveAvgPool2d": "adaptive_avg_pool2d.default",
    "GroupNorm": "group_norm.default",
    "BatchNorm1d": "batch_norm.default",
    "BatchNorm2d": "batch_norm.default",
    "Flatten": "flatten.using_ints",
    "LogSoftmax": "log_softmax.int",
    "Softmax": "softmax.int",
    "Embedding": "embedding.default",
    "LSTM": "lstm.input",
    "GRU": "gru.input",
    "LayerNorm": "layer_norm.default",
    "RMSNorm": "rms_norm.default",
    "SiLU": "silu",
    "Tanh": "tanh.default",
    "Sigmoid": "sigmoid.default",
    "LeakyReLU": "leaky_relu",
    "ELU": "elu",
    "ReLU6": "hardtanh",
    "Hardswish": "hardswish",
    "Hardsigmoid": "hardsigmoid",
}
RECURRENT = ("LSTM", "GRU")
# What PyTorch's MultiheadAttention is made of, of one tensor: without weights, and with those that nothing reads.
PROJECTIONS = "transpose linear unflatten unsqueeze transpose squeeze contiguous"
PROJECTIONS += 3 * " select" + 3 * " view transpose"
ATTENTIONS = [
    (PROJECTIONS + " " + rest).split()
    for rest in (
        "view view view scaled_dot_product_attention permute reshape linear view transpose",
        "mul transpose bmm softmax bmm transpose reshape linear view view mean transpose",
        "mul transpose bmm softmax bmm transpose reshape linear view view transpose",
    )
]
STATES = ("aten.zeros.default", "getitem")  # what an LSTM or GRU begins with, and its results
SWITCHES = {  # the places of the arguments that say whether the operation trains
    "aten.batch_norm.default": 5,
    "aten.dropout.default": 2,
    "aten.lstm.input": 6,
    "aten.gru.input": 6,
}
NORMS = ("BatchNorm1d", "BatchNorm2d")
VIEWS = (
    "view",
    "reshape",
    "flatten",
    "unflatten",
    "unsqueeze",
    "squeeze",
    "transpose",
    "permute",
    "select",
    "slice",
    "narrow",
    "chunk",
    "split",
    "split_with_sizes",
    "unbind",
    "getitem",
    "expand",
    "expand_as",
    "contiguous",
    "alias",
    "_unsafe_view",
    "t",
    "dropout",
)


class Line:
    """value = expression, or of a value that stands for another one that one."""

    def __init__(self, value: str, expression: Expression, module: str | None = None):
        self.value, self.expression, self.module = value, expression, module


class Scope:
    """One call of a container: what it reads, its lines and its result."""

    def __init__(self, path: str):
        self.path = path
        self.inputs: list[str] = []
        self.lines: list[Line] = []
        self.output = ""
        self.kept: list[str] = []  # other values that the loss reads


def path_of(call: str) -> str:
    return call.partition("@")[0]


def below(path: str, parent: str) -> str:
    return path[len(parent) + 1 :] if parent else path


def as_attribute(path: str) -> str:
    """blocks.0.conv as blocks[0].conv."""
    text = ""
    for part in path.split("."):
        text += f"[{part}]" if part.isdigit() else ("." if text else "") + part
    return text


class Translator:
    def __init__(self, graph: dict[str, Any]):
        self.graph, self.modules = graph, graph["modules"]
        self.nodes = graph["nodes"]
        self.places = graph["placeholders"]
        self.shapes: dict[str, Any] = {node["name"]: node["shape"] for node in self.nodes}
        for name, tensor in self.places.items():
            if tensor in graph["tensors"]:
                self.shapes[name] = graph["tensors"][tensor]["shape"]
        own = {given["node"]: given["shape"] for given in graph.get("inputs", ())}
        for name, tensor in self.places.items():
            if tensor == "":
                self.shapes[name] = ["b"] + own.get(name, graph["input"])
        self.results = {graph["output"], *graph.get("kept", ())}
        self.users: dict[str, list[int]] = {}
        for index, node in enumerate(self.nodes):
            for value in values_of(node):
                self.users.setdefault(value, []).append(index)
        self.opened: set[str] = set()
        self.refused: list[Refusal] = []

    # ---- what a node reads

    def translate(self) -> dict[str, Scope]:
        """The scope of every container that is called, by path."""
        while True:
            self.refused, self.same, self.made = [], {}, {}
            self.unknown: set[str] = set()  # values of refused operations
            self.scopes: dict[str, Scope] = {}
            again = len(self.opened)
            self.check_mutations()
            root = self.scope("", list(range(len(self.nodes))), 0)
            root.output = self.resolve(self.graph["output"])
            root.kept = [self.resolve(value) for value in self.graph.get("kept", ())]
            root.inputs = [name for name, tensor in self.places.items() if tensor == ""]
            self.scopes[""] = root
            if "missing" in self.made.get(root.output, {}):
                self.refused.append(Refusal("forward", self.made[root.output]["missing"]))
            if len(self.opened) == again:
                break
        if self.refused:
            raise Refusals(self.refused)
        return self.scopes

    def check_mutations(self) -> None:
        """The language has no assignment into a tensor: what changes in its place may not be read otherwise."""
        alias: dict[str, str] = {}
        for index, node in enumerate(self.nodes):
            name = short(node["op"])
            first = node["args"][0]["node"] if node["args"] and is_value(node["args"][0]) else None
            if first and (name in VIEWS or name.endswith("_")):
                alias[node["name"]] = alias.get(first, first)
            if not (name.endswith("_") and not name.endswith("__")) or first is None:
                continue
            group = alias.get(first, first)
            if group in self.places:
                if not self.places[group].endswith("num_batches_tracked"):
                    self.refuse(node, f"changes {self.places[group] or 'the input'} in its place")
                continue
            members = [group] + [value for value, base in alias.items() if base == group and value != node["name"]]
            for member in members:
                if any(user > index for user in self.users.get(member, ())):
                    self.refuse(node, "changes a tensor in its place that is read again later")
                    break

    def refuse(self, node: dict[str, Any], reason: str) -> None:
        self.refused.append(Refusal(node["place"], f"{short(node['op'])}: {reason}"))

    def resolve(self, value: str) -> str:
        while value in self.same:
            value = self.same[value]
        return value

    def scope(self, call: str, members: list[int], depth: int) -> Scope:
        """The lines of the nodes, which are those of a call of the module; `depth`: of the call in their stacks."""
        scope = Scope(path_of(call))
        self.fill(scope, members, depth)
        return scope

    def fill(self, scope: Scope, members: list[int], depth: int) -> None:
        at = 0
        while at < len(members):
            stack = self.nodes[members[at]]["stack"]
            if len(stack) <= depth:
                self.add_node(scope, self.nodes[members[at]])
                at += 1
                continue
            end = at
            while (
                end < len(members)
                and len(self.nodes[members[end]]["stack"]) > depth
                and self.nodes[members[end]]["stack"][depth] == stack[depth]
            ):
                end += 1
            self.add_call(scope, stack[depth], members[at:end], depth + 1)
            at = end

    def add_node(self, scope: Scope, node: dict[str, Any]) -> None:
        constant = node["op"].startswith("aten.detach") and self.places.get(
            self.resolve(values_of(node)[0]), ""
        ).startswith("?")
        if node["op"] in SAME or constant:
            if node["args"] and is_value(node["args"][0]):
                self.same[node["name"]] = node["args"][0]["node"]
            return
        first = self.resolve(values_of(node)[0]) if node["args"] and is_value(node["args"][0]) else ""
        masked = self.made.get(first, {}).get("mask")
        if node["op"] == "aten.to.dtype" and masked:
            self.same[node["name"]] = first
            return
        if node["op"] == "aten.to.dtype" or node["op"] == "aten.to.device":
            self.refuse(node, "a model file has no types; precision is a job's")
            self.made[node["name"]] = {"mask": True}  # what reads it is not refused for its sake
            return
        function = TABLE.get(node["op"])
        seen = {**node, "args": self.seen(node["args"]), "kwargs": {k: self.seen(v) for k, v in node["kwargs"].items()}}
        try:
            if function is None:
                raise Refusal(node["place"], f"{short(node['op'])}: a model file has no such operation")
            operation = Operation(seen, self.shapes, self.made)
            operation.check_states()
            self.check_parameters(scope, seen)
            expression = function(operation)
            self.check_names(scope, seen, expression)
            self.check_names(scope, seen, self.made.get(node["name"], {}).get("expression"))
        except Refusal as refusal:
            if node["op"] != "getitem" or node["args"][0]["node"] not in self.unknown:
                self.refused.append(refusal)
            self.unknown.add(node["name"])
            self.made[node["name"]] = {"mask": True}
            return
        if masked and short(node["op"]) in VIEWS:
            self.made.setdefault(node["name"], {})["mask"] = True
        if isinstance(expression, Ref):
            self.same[node["name"]] = str(expression)
        elif expression is not None:
            flat = self.made.get(node["name"], {}).get("flat")
            if flat:
                scope.lines.append(Line(flat, self.made[node["name"]]["expression"]))
            scope.lines.append(Line(node["name"], expression))

    def seen(self, argument: Any) -> Any:
        if is_value(argument):
            return {"node": self.resolve(argument["node"])}
        return [self.seen(item) for item in argument] if isinstance(argument, list) else argument

    def check_parameters(self, scope: Scope, node: dict[str, Any]) -> None:
        """A forward line reads the parameters of its own module only."""
        for value in values_of(node):
            tensor = self.places.get(value)
            if not tensor:
                continue
            if tensor.startswith("?"):
                raise Refusal(
                    node["place"],
                    f"{short(node['op'])}: reads a constant tensor that is neither a parameter nor a buffer",
                )
            owner, _, name = tensor.rpartition(".")
            if owner != scope.path:
                raise Refusal(
                    node["place"],
                    f"{short(node['op'])}: reads {tensor} outside of its module; a model file calls modules",
                )
            if node["op"] in ("aten.linear.default", "aten.conv1d.default", "aten.conv2d.default"):
                continue
            if len(self.shapes[value]) > 6:
                raise Refusal(
                    node["place"], f"{short(node['op'])}: reads {tensor} of {len(self.shapes[value])} dimensions"
                )

    def check_names(self, scope: Scope, node: dict[str, Any], expression: Any) -> None:
        """A module of a function's name is called in its place, which must be the same."""
        if not isinstance(expression, Expression):
            return
        text = "".join("$" if isinstance(part, Ref) else part for part in expression.parts)
        for name in re.findall(r"([a-z_]\w*)\(", text):
            path = f"{scope.path}.{name}" if scope.path else name
            constructor = self.modules.get(path, {}).get("constructor", "")
            same = re.fullmatch(r"(\w+)\((inplace=True)?\)", constructor)
            if path in self.modules and not (same and same[1].lower() == name and text == f"{name}($)"):
                raise Refusal(
                    node["place"], f"{name}: the module {path} has the function's name, and a model file would call it"
                )

    # ---- calls of modules

    def add_call(self, scope: Scope, call: str, members: list[int], depth: int) -> None:
        path = path_of(call)
        module = self.modules[path]
        if path in self.opened:
            self.fill(scope, members, depth)
            return
        if module["type"] in RECURRENT and "constructor" in module:
            members = self.take_states(members)
        inputs, outputs = self.borders(members)
        if module["type"] in RECURRENT and "constructor" in module:
            outputs = [self.nodes[members[-1]]["name"]]
        if not outputs:
            return
        for value in inputs:
            if "missing" in self.made.get(self.resolve(value), {}):
                self.refuse(self.nodes[members[0]], self.made[self.resolve(value)]["missing"])
        name = as_attribute(below(path, scope.path))
        if "attention" in module:
            causal = self.check_attention(path, module, members, inputs, outputs)
            x = Ref(self.resolve(inputs[0])) if inputs else Ref("")
            call_text = Expression(f"{name}(", x, ", ", x, ", ", x, causal)
            scope.lines.append(Line(self.resolve(outputs[0]), call_text, name))
            return
        if "constructor" in module:
            self.check_leaf(path, module, members, inputs, outputs)
        elif "attention" in module:
            self.check_attention(module, members, inputs)
        else:
            # Refusals within a container that is opened come again from its parent.
            count = len(self.refused)
            inner = self.scope(call, members, depth)
            inputs = list(dict.fromkeys(self.resolve(value) for value in inputs))
            outputs = list(dict.fromkeys(self.resolve(value) for value in outputs))
            inner.inputs, inner.output = inputs, outputs[0]
            own = {line.value for line in inner.lines}
            if (
                len(outputs) != 1
                or not inputs
                or len(inputs) > 8
                or outputs[0] not in own
                or not self.is_same_call(path, inner)
                or (module.get("list") == "Sequential" and not self.is_sequence(path, inner))
            ):
                if len(self.refused) == count:
                    self.opened.add(path)
                return
            self.scopes[path] = inner
        if not inputs:
            return
        arguments = [part for value in inputs for part in (", ", Ref(self.resolve(value)))][1:]
        scope.lines.append(Line(self.resolve(outputs[0]), Expression(f"{name}(", *arguments, ")"), name))

    def take_states(self, members: list[int]) -> list[int]:
        """Without the nodes of the last states of an LSTM or GRU: others read these from the results of all times."""
        parts = {self.nodes[m]["args"][1]: m for m in members if self.nodes[m]["op"] == "getitem"}
        if 0 in parts:
            y, last = self.nodes[parts[0]]["name"], self.nodes[parts[1]]
            width = last["shape"][-1]
            self.made[last["name"]] = {"last": (y, width, self.shapes[y][-1] // width)}
        if 2 in parts:
            self.made[self.nodes[parts[2]]["name"]] = {"cell": True}
        return [m for m in members if m not in (parts.get(1), parts.get(2))]

    def is_sequence(self, path: str, scope: Scope) -> bool:
        """Whether the lines are the calls of all its modules, one after the other."""
        children = [child for child in self.modules if child.rpartition(".")[0] == path]
        value = scope.inputs[0]
        children = [child for child in children if self.modules[child].get("constructor") != "Identity()"]
        for child, line in itertools.zip_longest(children, scope.lines):
            reads = [part for part in line.expression.parts if isinstance(part, Ref)] if line else []
            if child is None or line is None or line.module != as_attribute(below(child, path)) or reads != [value]:
                return False
            value = line.value
        return len(scope.inputs) == 1

    def is_same_call(self, path: str, scope: Scope) -> bool:
        before = self.scopes.get(path)
        return before is None or shape_of_lines(before) == shape_of_lines(scope)

    def borders(self, members: list[int]) -> tuple[list[str], list[str]]:
        """The values that come in, but for parameters, and those that others read."""
        inside, made, inputs, outputs = set(members), {self.nodes[m]["name"] for m in members}, [], []
        for member in members:
            for value in values_of(self.nodes[member]):
                if value not in made and not self.places.get(value) and value not in inputs:
                    inputs.append(value)
        for member in members:
            name = self.nodes[member]["name"]
            if any(user not in inside for user in self.users.get(name, ())) or name in self.results:
                outputs.append(name)
        return inputs, outputs

    def check_leaf(
        self, path: str, module: dict[str, Any], members: list[int], inputs: list[str], outputs: list[str]
    ) -> None:
        """A leaf stands for its operation only if it does nothing else, as a hook would."""
        expected, count = LEAF_OPS[module["type"]], len(self.refused)
        own = {self.first(name) for name in self.graph["tensors"] if name.rpartition(".")[0] == path}
        states = STATES if module["type"] in RECURRENT else ()
        for member in members:
            node = self.nodes[member]
            if node["op"] == "getitem" and node["args"][0]["node"] in self.unknown:
                continue
            if node["op"] in states:
                continue
            name = node["op"].removeprefix("aten.")
            counts = module["type"] in NORMS and name.startswith("add_.")
            if not counts and name != expected and name.rpartition(".")[0].rstrip("_") != expected:
                self.refuse(node, f"is part of module {path}, a {module['type']}, which a model file has without it")
            self.check_as_it_trains(path, module, node)
            for value in values_of(node):
                tensor = self.places.get(value)
                if tensor and self.first(tensor) not in own:
                    self.refuse(node, f"module {path} reads {tensor}, of another module")
        if len(self.refused) == count and (
            len(inputs) != 1
            or len(outputs) != 1
            or len([m for m in members if "add_" not in self.nodes[m]["op"] and self.nodes[m]["op"] not in states]) != 1
        ):
            self.refuse(self.nodes[members[0]], f"module {path} is more than one operation")

    def check_as_it_trains(self, path: str, module: dict[str, Any], node: dict[str, Any]) -> None:
        """A leaf that the user's code switched to evaluation would train in a model file; and what a leaf's operation
        may not do is also refused of a module."""
        switch = SWITCHES.get(node["op"])
        if switch is not None and not node["args"][switch]:
            self.refuse(node, f"module {path} evaluates while the model trains")
        function = TABLE.get(node["op"])
        try:
            if function is not None:
                function(Operation(node, self.shapes, dict(self.made)))
        except Refusal as refusal:
            self.refused.append(refusal)

    def first(self, tensor: str) -> str:
        """The first name of tensors that share memory."""
        return self.graph["ties"].get(tensor, tensor)

    def check_attention(
        self, path: str, module: dict[str, Any], members: list[int], inputs: list[str], outputs: list[str]
    ) -> str:
        """Of one tensor as query, key and value, without masks. Returns the end of the call."""
        nodes = [self.nodes[member] for member in members]
        found = [short(node["op"]) for node in nodes]
        own = [name for node in nodes for name in values_of(node) if self.places.get(name)]
        drops, causal = 0.0, False
        for node in nodes:
            if node["op"] == "aten.scaled_dot_product_attention.default":
                arguments = dict(enumerate(node["args"])) | {3: node["kwargs"].get("attn_mask"), **{
                    index: node["kwargs"][key]
                    for index, key in ((4, "dropout_p"), (5, "is_causal"))
                    if key in node["kwargs"]
                }}
                drops, causal = arguments.get(4, 0.0), arguments.get(5, False)
            elif node["op"] == "aten.dropout.default" and node["args"][2]:
                drops = node["args"][1]
        if (
            [name for name in found if name != "dropout"] not in ATTENTIONS
            or len(inputs) != 1
            or outputs != [nodes[-1]["name"]]
            or any(self.places[name].partition(path + ".")[0] for name in own)
        ):
            self.refuse(nodes[0], f"module {path} is not attention of one tensor to itself without a mask of its own")
        elif drops != module["attention"]["dropout"]:
            self.refuse(nodes[0], f"module {path} evaluates while the model trains")
        return ", is_causal=True)" if causal else ")"


def values_of(node: dict[str, Any]) -> list[str]:
    found: list[str] = []

    def walk(argument: Any) -> None:
        if is_value(argument):
            found.append(argument["node"])
        elif isinstance(argument, (list, tuple)):
            for item in argument:
                walk(item)

    walk(node["args"])
    for value in node["kwargs"].values():
        walk(value)
    return found


def shape_of_lines(scope: Scope) -> list[Any]:
    """The lines with values by number, to compare two calls."""
    number = {value: index for index, value in enumerate(scope.inputs)}
    lines: list[Any] = []
    for line in scope.lines:
        lines.append(
            [f"${number.get(part, part)}" if isinstance(part, Ref) else part for part in line.expression.parts]
        )
        number[line.value] = len(number)
    return lines + [number.get(scope.output)]
