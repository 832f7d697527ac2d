"""The text of a model file from the scopes of a captured graph."""

from __future__ import annotations

import itertools
import re
from typing import Any

from .operations import Expression, Ref
from .refusal import Refusal
from .scopes import NORMS, Scope, Translator, as_attribute

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
    wanted, kept = {scope.output}, []
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
                and inner != scope.output
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

    # ---- forward lines

    def forward(self, path: str) -> tuple[list[str], list[str]]:
        """The names of the inputs, and the lines."""
        scope = self.scopes.get(path)
        if scope is None:
            return ["x"], ["output = x"]
        taken = {child.rpartition(".")[2] for child in self.children[path]} | set(self.own_tensors(path)) | {"output"}
        free = [
            name
            for name in itertools.chain("xyzuvwpqrs", (f"t{i}" for i in range(1000)))
            if name not in taken or name == "x"
        ]
        if "x" in self.own_tensors(path):
            raise Refusal(f"module {path or self.graph['name']}", "a parameter is called x, which is the input's name")
        names = {value: free[index] for index, value in enumerate(scope.inputs)}
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
        places, texts = self.translator.places, []
        for index, (value, expression, _) in enumerate(lines):
            parts = []
            for part in expression.parts:
                tensor = places.get(part) if isinstance(part, Ref) else None
                parts.append(tensor.rpartition(".")[2] if tensor else names[part] if isinstance(part, Ref) else part)
            dead = [
                names[part]
                for part in expression.parts
                if isinstance(part, Ref) and part in names and last[part] == index
            ]
            live = {name for known, name in names.items() if last.get(known, -1) > index}
            name = dead[0] if dead and dead[0] not in live else next(name for name in free if name not in live)
            names[value] = "output" if value == scope.output else name
            texts.append(f"{names[value]} = {''.join(parts)}")
        return [free[index] for index in range(len(scope.inputs))], self.find_loops(path, texts, taken)

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
                if not 1 <= len(tensor["shape"]) <= 6:
                    raise Refusal(
                        f"module {path or self.graph['name']}",
                        f"{last} has {len(tensor['shape'])} dimensions; expected 1 to 6",
                    )
                own[last] = f"Parameter({', '.join(str(size) for size in tensor['shape'])})"
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
        text = [f"{indent}inputs: [{', '.join(inputs)}]"] if len(inputs) > 1 else []
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
    if graph["tokens"]:
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


def write(graph: dict[str, Any], loss: str = "", vocabulary: int = 0) -> str:
    """The model file's text. Raises Refusals, or a Refusal."""
    translator = Translator(graph)
    scopes = translator.translate()
    output = translator.shapes[scopes[""].output]
    loss = loss or (
        "cross_entropy(output, target)" if len(output) == 2 or graph["tokens"] else "mse_loss(output, target)"
    )
    norm = next((path for path, module in graph["modules"].items() if module["type"] in NORMS), None)
    if norm and (graph["tokens"] or has_numbers(loss)):
        raise Refusal(f"module {norm}", "a batch norm needs targets that are classes, or a loss against x (--loss)")
    writer = Writer(graph, scopes, translator)
    body = writer.body("", "")
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
