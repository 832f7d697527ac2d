"""The text of a model file from the scopes of a captured graph."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

from .operations import Expression, Ref, is_value, short
from .refusal import Refusal
from .scopes import NORMS, Scope, Translator, as_attribute, values_of

WIDTH, NESTED = 90, 5  # of an expression that was put together from several: letters, and parentheses
BUILT_IN = (
    "Identity",
    "Sequential",
    "ModuleList",
    "Parameter",
    "Conv1D",
    "GemmaRMSNorm",
    "ReLUSquaredActivation",
    "SyncBatchNorm",
)


def length_of(expression: Expression) -> int:
    return sum(1 if isinstance(part, Ref) else len(part) for part in expression.parts)


def depth_of(expression: Expression) -> int:
    depth = deepest = 0
    for letter in "".join(part for part in expression.parts if not isinstance(part, Ref)):
        depth += (letter == "(") - (letter == ")")
        deepest = max(deepest, depth)
    return deepest


def put_in(outer: Expression, value: str, inner: Expression) -> Expression:
    parts: list[str] = []
    for part in outer.parts:
        if not (isinstance(part, Ref) and part == value):
            parts.append(part)
        elif inner.loose and outer.loose:
            parts += ["(", *inner.parts, ")"]
        else:
            parts += inner.parts
    return Expression(*parts, loose=outer.loose)


def needed_lines(scope: Scope) -> list[tuple[str, Expression, str | None]]:
    """Those that the result depends on; a value that one line reads is put into that line."""
    results = {scope.output, *scope.kept}
    wanted, kept = set(results), []
    for line in reversed(scope.lines):
        if line.value in wanted:
            wanted.update(part for part in line.expression.parts if isinstance(part, Ref))
            kept.append((line.value, line.expression, line.module))
    kept.reverse()
    uses: dict[str, int] = {}
    for _, expression, _ in kept:
        for part in expression.parts:
            if isinstance(part, Ref):
                uses[part] = uses.get(part, 0) + 1
    joined: list[tuple[str, Expression, str | None]] = []
    for value, expression, module in kept:
        for at in range(len(joined) - 1, -1, -1) if not (module or "").endswith("]") else ():
            inner, made, of = joined[at]
            if (
                inner in expression.parts
                and uses[inner] == 1
                and not (of or "").endswith("]")
                and length_of(expression) + length_of(made) <= WIDTH
                and depth_of(put_in(expression, inner, made)) <= NESTED
                and inner not in results
            ):
                expression = put_in(expression, inner, made)
                del joined[at]
        joined.append((value, expression, module))
    return joined


class Writer:
    def __init__(self, graph: dict[str, Any], scopes: dict[str, Scope], translator: Translator):
        self.graph, self.scopes, self.translator = graph, scopes, translator
        self.modules, self.tensors = graph["modules"], graph["tensors"]
        self.children: dict[str, list[str]] = {path: [] for path in self.modules}
        for path in self.modules:
            if path:
                self.children[path.rpartition(".")[0]].append(path)
        self.definitions: dict[str, list[str]] = {}
        self.names: dict[str, str] = {}
        self.kept: dict[str, str] = {}  # the names of the root's values

    # ---- forward lines

    def forward(self, path: str) -> tuple[list[str], list[str]]:
        """The names of the inputs, and the lines."""
        scope = self.scopes.get(path)
        if scope is None:
            return ["x"], ["output = x"]
        given = {one["node"]: one["name"] for one in self.graph.get("inputs", ()) if not path}
        own = set(given.values())
        taken = {child.rpartition(".")[2] for child in self.children[path]} | set(self.own_tensors(path)) | {"output"}
        taken |= own
        free = [
            name
            for name in itertools.chain("xyzuvwpqrs", (f"t{i}" for i in range(1000)))
            if name not in taken or (name == "x" and name not in own)
        ]
        if "x" in self.own_tensors(path):
            raise Refusal(f"module {path or self.graph['name']}", "a parameter is called x, which is the input's name")
        names = {value: given.get(value, free[index]) for index, value in enumerate(scope.inputs)}
        if not path:
            self.kept = names
        lines = needed_lines(scope)
        if not lines:
            return [names[value] for value in scope.inputs], [f"output = {names[scope.output]}"]
        if any(part.startswith("[") for _, expression, _ in lines for part in expression.parts):
            raise Refusal(f"module {path or self.graph['name']}", "calls modules that have numbers as names")
        last = {
            part: index
            for index, (_, expression, _) in enumerate(lines)
            for part in expression.parts
            if isinstance(part, Ref)
        }
        last.update(dict.fromkeys(scope.kept, len(lines)))
        places, texts = self.translator.places, []
        for index, (value, expression, _) in enumerate(lines):
            parts = []
            for part in expression.parts:
                tensor = places.get(part) if isinstance(part, Ref) else None
                parts.append(tensor.rpartition(".")[2] if tensor else names[part] if isinstance(part, Ref) else part)
            dead = [
                names[part]
                for part in expression.parts
                if isinstance(part, Ref) and part in names and last[part] == index and names[part] not in own
            ]  # an input keeps its name, which a loss may read
            live = {name for known, name in names.items() if last.get(known, -1) > index}
            name = dead[0] if dead and dead[0] not in live else next(name for name in free if name not in live)
            names[value] = "output" if value == scope.output else name
            texts.append(f"{names[value]} = {''.join(parts)}")
        if scope.output in scope.inputs:
            texts.append(f"output = {names[scope.output]}")
        return [given.get(value, free[index]) for index, value in enumerate(scope.inputs)], self.find_loops(
            path, texts, taken
        )

    def find_loops(self, path: str, lines: list[str], taken: set[str]) -> list[str]:
        """The calls of all modules of a list in a row as a loop."""
        made, at = [], 0
        while at < len(lines):
            found = re.fullmatch(r"(\w+) = ([\w.\[\]]+)\[0\](\(.*\))", lines[at])
            size = 0
            if found:
                target, name, arguments = found.groups()
                full = next(
                    (
                        child
                        for child in self.modules
                        if as_attribute(child[len(path) + 1 :] if path else child) == name
                    ),
                    None,
                )
                size = len(self.children[full]) if full else 0
            if (
                size > 1
                and all(
                    re.fullmatch(rf"(?:{target}|output) = {re.escape(name)}\[{i}\]{re.escape(arguments)}", line)
                    for i, line in enumerate(lines[at : at + size])
                )
                and len(lines) >= at + size
            ):
                word = name.rpartition(".")[2].rstrip("s") or "layer"
                used = word in taken or word == name or any(f"{word}(" in line for line in lines)
                word = "one_of_" + name.rpartition(".")[2] if used else word
                made.append(f"for {word} in {name}: {target} = {word}{arguments}")
                if lines[at + size - 1].startswith("output") and target != "output":
                    made.append(f"output = {target}")
                at += size
            else:
                made.append(lines[at])
                at += 1
        return made

    # ---- constructors

    def own_tensors(self, path: str) -> dict[str, str]:
        """The parameters and buffers of a container itself, as constructors."""
        own = {}
        for name, tensor in self.tensors.items():
            owner, _, last = name.rpartition(".")
            if owner == path:
                if len(tensor["shape"]) > 6:
                    raise Refusal(
                        f"module {path or self.graph['name']}",
                        f"{last} has {len(tensor['shape'])} dimensions; expected 1 to 6",
                    )
                own[last] = f"Parameter({', '.join(str(size) for size in tensor['shape'] or [1])})"
        return own

    def has_state(self, path: str) -> bool:
        return any(name.startswith(path + ".") for name in self.tensors)

    def is_called(self, path: str) -> bool:
        return any(call.partition("@")[0] == path for node in self.graph["nodes"] for call in node["stack"])

    def constructor(self, path: str) -> str:
        module = self.modules[path]
        if "constructor" in module:
            return module["constructor"]
        if "list" not in module:
            return f"{self.define(path)}()"
        parts = []
        for text, run in itertools.groupby(self.constructor(child) for child in self.children[path]):
            count = len(list(run))
            parts.append(text if count == 1 else f"{count} * {text}")
        if not parts:
            raise Refusal(f"module {path}", f"{module['list']} is empty")
        if module["list"] == "ModuleList" and len(parts) == 1 and "*" in parts[0].partition("(")[0]:
            return parts[0]
        return f"{module['list']}({', '.join(parts)})"

    def define(self, path: str) -> str:
        """The name of the block that the container is; equal ones are one block."""
        body = self.body(path, "    ")
        wanted = re.sub(r"\W", "_", self.modules[path]["type"])
        text = "\n".join(body)
        for name, lines in self.definitions.items():
            if "\n".join(lines) == text and self.names[name] == wanted:
                return name
        name, count = wanted, 1
        while name in self.definitions or name in BUILT_IN or name == self.graph["name"] or self.is_leaf_name(name):
            count += 1
            name = f"{wanted}{count}"
        self.definitions[name], self.names[name] = body, wanted
        return name

    def is_leaf_name(self, name: str) -> bool:
        return any("constructor" in module and module["type"] == name for module in self.modules.values())

    def body(self, path: str, indent: str) -> list[str]:
        inputs, lines = self.forward(path)
        made = {**self.own_tensors(path)}
        for child in self.children[path]:
            if self.has_state(child) or self.is_called(child):
                made[child.rpartition(".")[2]] = self.constructor(child)
        text = [f"{indent}inputs: [{', '.join(inputs)}]"] if len(inputs) > 1 and path else []
        text += (
            [f"{indent}modules:"] + [f"{indent}  {name}: {quote(value)}" for name, value in made.items()]
            if made
            else [f"{indent}modules: {{}}"]
        )
        return text + [f"{indent}forward:"] + [f"{indent}  - {quote(line, 'for ' in line[:4])}" for line in lines]


def quote(text: str, loop: bool = False) -> str:
    """As YAML reads it: a loop is a mapping."""
    if text[0] in "[{\"'&*!|>%@`" or " #" in text or (": " in text and not loop):
        return "'" + text.replace("'", "''") + "'"
    return text


def frozen(graph: dict[str, Any]) -> list[str]:
    """Patterns of what is not trained."""
    owners: dict[str, list[str]] = {}
    for name in graph["tensors"]:
        owners.setdefault(name.rpartition(".")[0], []).append(name)
    patterns = []
    for owner, names in owners.items():
        module = graph["modules"][owner]
        still = [
            name
            for name in names
            if not graph["tensors"][name]["trains"]
            and not (module["type"] in NORMS and graph["tensors"][name]["kind"] == "buffer")
        ]
        parameters = [
            name for name in names if graph["tensors"][name]["kind"] == "parameter" or module.get("constructor") is None
        ]
        if (
            owner
            and still == parameters
            and len(still) > 1
            and not any(path.startswith(owner + ".") for path in graph["modules"])
        ):
            patterns.append(owner + ".*")
        else:
            patterns += still
    return patterns


def has_classes(loss: str) -> bool:
    """Whether a term of the loss is of classes."""
    return re.search(r"\b(cross_entropy|nll_loss|focal_loss)\(", loss) is not None


def has_numbers(loss: str) -> bool:
    """Whether it compares with a sample's numbers, and not only with x."""
    return not has_classes(loss) and re.search(r"\btargets?\b", loss) is not None


def head(graph: dict[str, Any], output: list[Any], loss: str, vocabulary: int) -> list[str]:
    """What a module does not say: the kind of its input and of its targets."""
    lines = [f"name: {graph['name']}"]
    if graph.get("inputs"):
        kinds = [f"{one['name']}: {'tokens' if one['tokens'] else one['shape']}" for one in graph["inputs"]]
        lines.append(f"input: {{{', '.join(kinds)}}}")
        lengths = {tuple(one["shape"]) for one in graph["inputs"] if one["tokens"]}
        if len(lengths) > 1 or any(len(shape) != 1 for shape in lengths):
            raise Refusal("--input", "all inputs of tokens have one length")
        lines += [line for length in lengths for line in (f"vocabulary: {vocabulary}", f"context: {length[0]}")]
        if loss.startswith("clip_loss("):
            return lines
    elif graph["tokens"]:
        lines += ["input: tokens", f"vocabulary: {vocabulary}", f"context: {graph['input'][0]}"]
    else:
        lines.append(f"input: {graph['input']}")
    if not has_classes(loss):
        lines.append(f"targets: {output[1:]}" if has_numbers(loss) else "classes: 2")
    elif len(output) == 2:
        lines.append(f"classes: {output[1]}")
    elif not graph["tokens"]:
        raise Refusal(
            "--loss",
            f"{loss.partition('(')[0]} of an output of {len(output)} dimensions needs tokens; mse_loss and "
            "binary_cross_entropy_with_logits compare every element",
        )
    elif output[2] != vocabulary:
        lines.append(f"token_classes: {output[2]}")
    return lines


def find_towers(graph: dict[str, Any]) -> tuple[dict[str, Any], Any] | None:
    """Of a graph that ends with the products of two towers, or returns what these make: the graph before that, whose
    output and what is kept are the towers' results, and the scale, a node, a number or None."""
    nodes, outputs = {node["name"]: node for node in graph["nodes"]}, list(graph.get("outputs", ()))
    shapes = {name: node["shape"] for name, node in nodes.items()}
    shapes |= {one["node"]: ["b"] + one["shape"] for one in graph.get("inputs", ())}
    own = {name: tensor["shape"] for name, tensor in graph["tensors"].items() if "." not in name}
    left_out: set[str] = set()

    def reads(value: Any, *ops: str) -> list[Any]:
        """The arguments of the operation that makes a value, if it is one of these."""
        node = nodes.get(value) if isinstance(value, str) else None
        return [a["node"] if is_value(a) else a for a in node["args"]] if node and short(node["op"]) in ops else []

    def turned(value: Any) -> Any:
        """What a value is the transposed of."""
        read = reads(value, "t", "transpose", "permute", "numpy_T")
        return read[0] if read and len(shapes[value]) == 2 and shapes[value][1] == "b" else None

    def is_own(value: str) -> bool:
        """Whether it is made of the module's own parameters alone."""
        if value in graph["placeholders"]:
            return graph["placeholders"][value] in own
        return value in nodes and all(is_own(read) for read in values_of(nodes[value]))

    def is_scale(value: Any) -> bool:
        if not isinstance(value, str):
            return value is not None and 0 < value < math.inf
        shape = shapes.get(value, own.get(graph["placeholders"].get(value)))
        return is_own(value) and list(shape) in ([], [1])

    def scaled(value: str) -> tuple[str, Any]:
        """Without a factor that may be the scale."""
        factors = reads(value, "mul")
        for factor, other in zip(factors, factors[::-1]):
            if shapes.get(other) == shapes[value] and is_scale(factor):
                left_out.add(value)
                return other, factor
        return value, None

    if len(outputs) == 2 and turned(outputs[1]) == outputs[0]:
        left_out.add(outputs.pop())  # the same of the other tower
    if not outputs or any(value not in shapes for value in outputs[:2]) or not graph.get("inputs"):
        return None
    if len(outputs) > 1:
        if len(outputs) != 3 or not is_scale(outputs[2]):
            return None
        first, second, scale = outputs
    else:
        product, scale = scaled(outputs[0])
        sides = reads(product, "matmul", "mm")
        if not sides or shapes[product] != ["b", "b"] or turned(sides[1]) is None:
            return None
        left_out |= {product, sides[1]}
        first, second = sides[0], turned(sides[1])
        if scale is None:
            first, scale = scaled(first)
    rest = [node for node in graph["nodes"] if node["name"] not in left_out]
    kept = [value for value in (second, scale) if isinstance(value, str)]
    same = shapes.get(first) == shapes.get(second) and len(shapes.get(first, ())) == 2
    if not same or any(value in left_out for node in rest for value in values_of(node)):
        return None
    return {**graph, "nodes": rest, "output": first, "kept": kept}, scale


def inline_scale(scale: Any, translator: Translator, scope: Scope) -> str | None:
    """A number, or what a line makes of parameters alone, which the loss then computes in f32; None: a value."""
    if not isinstance(scale, str):
        return "1" if scale is None else repr(scale)
    value, places = translator.resolve(scale), translator.places
    line = next((line for line in scope.lines if line.value == value), None)
    parts = line.expression.parts if line else [Ref(value)]
    if not all(places.get(part) for part in parts if isinstance(part, Ref)):
        return None
    return "".join(places[part] if isinstance(part, Ref) else part for part in parts)


def write(graph: dict[str, Any], loss: str = "", vocabulary: int = 0) -> str:
    """The model file's text. Raises Refusals, or a Refusal."""
    towers = find_towers(graph) if not loss else None
    if towers:
        graph = towers[0]
    elif len(graph.get("outputs", "1")) > 1:
        raise Refusal("forward", f"returns {len(graph['outputs'])} values, which are not the features of two towers and a scale")
    translator = Translator(graph)
    scopes = translator.translate()
    root, inline = scopes[""], None
    output = translator.shapes[root.output]
    if towers:
        inline = inline_scale(towers[1], translator, root)
        root.kept = root.kept[:1] if inline else root.kept
    loss = loss or (
        "cross_entropy(output, target)" if len(output) == 2 or graph["tokens"] else "mse_loss(output, target)"
    )
    norm = next((path for path, module in graph["modules"].items() if module["type"] in NORMS), None)
    if norm and (graph["tokens"] or has_numbers(loss)):
        raise Refusal(f"module {norm}", "a batch norm needs targets that are classes, or a loss against x (--loss)")
    writer = Writer(graph, scopes, translator)
    body = writer.body("", "")
    if towers:
        scale = inline or writer.kept[root.kept[1]]
        loss = f"clip_loss(output, {writer.kept[root.kept[0]]}, {scale})"
    blocks = [line for name, lines in writer.definitions.items() for line in [f"  {name}():", *lines]]
    text = (
        head(graph, output, loss, vocabulary)
        + [""]
        + (["blocks:", *blocks, ""] if blocks else [])
        + body
        + ["", f"loss: {loss}"]
    )
    if graph["ties"]:
        text += ["", "tie:"] + [f"  {name}: {first}" for name, first in graph["ties"].items()]
    if frozen(graph):
        text += ["", f"freeze: [{', '.join(frozen(graph))}]"]
    return "\n".join(text) + "\n"
