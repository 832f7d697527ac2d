#!/usr/bin/python3
"""The units of random models under every wrap policy, from fsdpd, from a second implementation, and
if PyTorch is installed from PyTorch's own policies."""
import functools
import importlib.util
import os
import random
import subprocess
import sys
import tempfile

import wrap_reference as reference

TREES = 250
FILES_SEED = int(os.environ.get("WRAP_SEED", "1"))
SHAPES = ((3, 5), (4, 4), (7, 2), (1, 1), (16, 9), (12, 12))
BLOCK_NAMES = ("Block", "Mlp", "Attention", "ModuleDict", "Layer")


class Definition:
    """A block: names and constructors of its modules."""

    def __init__(self, name, modules):
        self.name, self.modules = name, modules

    def text(self):
        lines = ["  %s():" % self.name, "    modules:"]
        lines += ["      %s: %s" % (name, constructor_text(c)) for name, c in self.modules]
        return "\n".join(lines + ["    forward:", "      - output = x"])


def constructor_text(constructor):
    kind = constructor[0]
    if kind == "Linear":
        return "Linear(%d, %d, bias=%s)" % constructor[1:]
    if kind == "Conv2d":
        return "Conv2d(%d, %d, %d)" % constructor[1:]
    if kind == "MultiheadAttention":
        return "MultiheadAttention(%d, 2, bias=%s, batch_first=True)" % constructor[1:]
    if kind in ("Sequential", "ModuleList"):
        return "%s(%s)" % (kind, ", ".join(constructor_text(c) for c in constructor[1]))
    if kind == "repeat":
        return "%d * %s" % (constructor[1], constructor_text(constructor[2]))
    if kind == "block":
        return constructor[1].name + "()"
    return {"ReLU": "ReLU()", "Dropout": "Dropout(0.5)"}[kind]


def draw_constructor(draw, blocks, depth):
    choice = draw.randrange(13)
    if choice < 5 or depth > 3:
        return ("Linear",) + draw.choice(SHAPES) + (draw.random() < 0.7,)
    if choice == 5:
        return ("Conv2d", draw.randint(1, 4), draw.randint(1, 4), draw.randint(1, 3))
    if choice == 6:
        return (draw.choice(("ReLU", "Dropout")),)
    if choice == 12:
        return ("MultiheadAttention", draw.choice((4, 8)), draw.random() < 0.7)
    if choice == 7:
        again = draw_constructor(draw, blocks, depth + 1)
        return again if again[0] == "repeat" else ("repeat", draw.randint(1, 3), again)
    if choice == 8 or not blocks:
        kind = draw.choice(("Sequential", "ModuleList"))
        return (kind, [draw_constructor(draw, blocks, depth + 1)
                       for _ in range(draw.randint(1, 3))])
    return ("block", draw.choice(blocks))


def build(constructor, path):
    """The constructor's module, as in the reference."""
    kind = constructor[0]
    if kind == "repeat":
        module = reference.Module("ModuleList", path)
        module.children = [build(constructor[2], "%s.%d" % (path, i))
                           for i in range(constructor[1])]
    elif kind in ("Sequential", "ModuleList"):
        module = reference.Module(kind, path)
        entries = [entry for c in constructor[1]  # "3 * Linear(…)" here becomes three entries
                   for entry in ([c[2]] * c[1] if c[0] == "repeat" else [c])]
        module.children = [build(c, "%s.%d" % (path, i)) for i, c in enumerate(entries)]
    elif kind == "block":
        module = reference.Module(constructor[1].name, path)
        module.children = [build(c, "%s.%s" % (path, name)) for name, c in constructor[1].modules]
    else:
        module = reference.Module(kind, path)
        if kind == "Linear":
            shapes = [("weight", constructor[2:0:-1])] + [("bias", constructor[2:3])] * constructor[3]
        elif kind == "MultiheadAttention":
            width, bias = constructor[1:]
            shapes = [("in_proj_weight", (3 * width, width))] + [("in_proj_bias", (3 * width,))] * bias
            shapes += [("out_proj.weight", (width, width))] + [("out_proj.bias", (width,))] * bias
        elif kind == "Conv2d":
            shapes = [("weight", (constructor[2], constructor[1]) + constructor[3:] * 2),
                      ("bias", constructor[2:3])]
        else:
            shapes = []
        for name, shape in shapes:
            elements = functools.reduce(lambda a, b: a * b, shape)
            parameter = reference.Parameter("%s.%s" % (path, name), elements)
            parameter.shape = shape
            module.parameters.append(parameter)
    return module


def draw_model(draw):
    """A model file's text, and its tree."""
    blocks = []
    for name in draw.sample(BLOCK_NAMES, draw.randint(0, len(BLOCK_NAMES))):
        modules = [("m%d" % i, draw_constructor(draw, blocks, 1))
                   for i in range(draw.randint(1, 4))]
        blocks.append(Definition(name, modules))
    modules = [("a%d" % i, draw_constructor(draw, blocks, 0)) for i in range(draw.randint(1, 6))]
    modules.append(("head", ("Linear", 4, 3, True)))
    root = reference.Module("Net")
    root.children = [build(constructor, name) for name, constructor in modules]

    places = [(module, i) for module in root.tree() for i in range(len(module.parameters))]
    ties, freeze, tied = [], [], set()
    for _ in range(draw.choice((0, 0, 1, 2, 5))):
        module, i = draw.choice(places)
        keeper = module.parameters[i]
        alike = [(m, j) for m, j in places
                 if m.parameters[j].shape == keeper.shape and m.parameters[j] is not keeper
                 and m.parameters[j].name not in tied]
        if not alike:
            continue
        other_module, j = draw.choice(alike)
        dropped = other_module.parameters[j]
        ties.append("%s: %s" % (dropped.name, keeper.name))
        tied.add(dropped.name)
        first = min(keeper, dropped, key=[m.parameters[k] for m, k in places].index)
        gone = dropped if first is keeper else keeper
        for m, k in places:
            if m.parameters[k] is gone:
                m.parameters[k] = first
    for parameter in draw.sample(root.distinct(), len(root.distinct())):
        if len(freeze) < 20 and draw.random() < 0.1:
            freeze.append(parameter.name)
            parameter.frozen = True
    text = ["name: Net", "input: [4]", "classes: 3"]
    if blocks:
        text += ["blocks:"] + [block.text() for block in blocks]
    text += ["modules:"]
    text += ["  %s: %s" % (name, constructor_text(c)) for name, c in modules]
    text += ["forward:", "  - output = head(x)", "loss: cross_entropy(output, target)"]
    if ties:
        text.append("tie: {%s}" % ", ".join(ties))
    if freeze:
        text.append("freeze: [%s]" % ", ".join(freeze))
    return "\n".join(text) + "\n", root


def draw_policies(draw, root):
    """(request, groups): a request to dump_units, and a function that gives the reference's
    groups."""
    below = [module for module in root.tree() if module is not root]
    kinds = sorted({module.kind for module in below})
    sizes = sorted({module.size() for module in root.tree()} - {0})
    policies = [("none", lambda: [])]
    for least in {1, draw.choice(sizes), draw.choice(sizes) + draw.choice((-1, 0, 1)),
                  draw.randint(1, root.size() + 1)} - {0}:
        policies.append(("size %d" % least, functools.partial(reference.by_size, root, least)))
    leaf, exclude = (frozenset(draw.sample(kinds, draw.randint(0, min(2, len(kinds)))))
                     for _ in range(2))
    least = draw.choice(sizes)
    policies.append(("size %d leaf=%s exclude=%s" % (least, ",".join(leaf), ",".join(exclude)),
                     functools.partial(reference.by_size, root, least, leaf, exclude)))
    policies.append(("size 1 leaf=Wrong", functools.partial(
        reference.by_size, root, 1, frozenset(["Wrong"]), reference.EXCLUDE)))
    for count in (1, 2, 3):
        types = draw.sample(kinds + ["Net", "Missing"], min(count, len(kinds)))
        policies.append(("type " + " ".join(types),
                         functools.partial(reference.by_type, root, types)))
    globs = [module.path for module in below] + ["*", "a*", "a?", "*.0", "*.m0", "*.m[01].*", "a0.*"]
    for count in (1, 2, 3):
        patterns = [draw.choice(globs) for _ in range(count)]
        policies.append(("match " + " ".join(patterns),
                         functools.partial(reference.by_pattern, root, patterns)))
    for count in (1, 3):
        picked = draw.sample(below, min(len(below), draw.randint(1, 6)))
        lists = [[module.path for module in picked[i::count]] for i in range(count)]
        lists = [paths for paths in lists if paths]
        policies.append(("units " + " ".join(",".join(paths) for paths in lists),
                         functools.partial(reference.by_list, root, lists)))
    return policies


class PyTorch:
    """PyTorch's policies, on modules of the same tree. Not every Python can import the package
    around wrap.py; the file alone works."""

    def __init__(self):
        import torch
        path = os.path.join(os.path.dirname(torch.__file__), "distributed/fsdp/wrap.py")
        spec = importlib.util.spec_from_file_location("fsdp_wrap_alone", path)
        self.wrap = importlib.util.module_from_spec(spec)
        sys.modules["fsdp_wrap_alone"] = self.wrap
        spec.loader.exec_module(self.wrap)
        self.torch = torch
        nn = torch.nn
        self.classes = {kind: getattr(nn, kind) for kind in ("Linear", "Conv2d", "ReLU", "Dropout",
                                                             "Sequential", "ModuleList",
                                                             "MultiheadAttention", "ModuleDict")}

        class Wrapper(nn.Module):
            def __init__(self, module):
                super().__init__()
                self.inner = module

        self.wrapper = Wrapper

    def kind(self, name):
        if name not in self.classes:
            self.classes[name] = type(name, (self.torch.nn.Module,), {})
        return self.classes[name]

    def module(self, node, known):
        """An instance without its class's own constructor: only tree and parameters count."""
        kind = self.kind(node.kind)
        module = kind.__new__(kind)
        self.torch.nn.Module.__init__(module)
        for i, parameter in enumerate(node.parameters):
            if parameter not in known:
                known[parameter] = self.torch.nn.Parameter(
                    self.torch.empty(parameter.shape, device="meta"))
            module.register_parameter("p%d" % i, known[parameter])
        for child in node.children:
            module.add_module(child.path.rpartition(".")[2], self.module(child, known))
        return module

    def wrapped(self, root, request):
        """Paths of the modules that PyTorch wraps; None for a policy that PyTorch lacks."""
        words = request.split()
        if words[0] == "size":
            options = dict(word.split("=") for word in words[2:])
            types = {name: {self.kind(kind) for kind in options[key].split(",") if kind}
                     for key, name in (("leaf", "force_leaf_modules"),
                                       ("exclude", "exclude_wrap_modules")) if key in options}
            policy = functools.partial(self.wrap.size_based_auto_wrap_policy,
                                       min_num_params=int(words[1]), **types)
        elif words[0] == "type":
            policy = functools.partial(self.wrap.transformer_auto_wrap_policy,
                                       transformer_layer_cls={self.kind(k) for k in words[1:]})
        else:
            return None
        model = self.module(root, {})
        self.wrap._recursive_wrap(model, policy, self.wrapper, set(), set(), only_wrap_children=True)
        return {name.replace(".inner", "") for name, module in model.named_modules()
                if isinstance(module, self.wrapper)}


def ask(program, requests):
    done = subprocess.run([program], input="\n".join(requests) + "\n", stdout=subprocess.PIPE,
                          universal_newlines=True, check=True)
    return [answer.splitlines() for answer in done.stdout.split(".\n")[:-1]]


def main():
    build_dir = os.environ.get("builddir", ".")
    try:
        pytorch = PyTorch()
    except (ImportError, OSError, AttributeError) as missing:
        print("SKIP of the comparison with PyTorch:", missing)
        pytorch = None
    cases, failures, refusals, compared = [], 0, 0, 0
    with tempfile.TemporaryDirectory() as directory:
        for tree in range(TREES):
            draw = random.Random(FILES_SEED * 100000 + tree)
            text, root = draw_model(draw)
            path = os.path.join(directory, "%d.yaml" % tree)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            cases += [(tree, path, text, root, request, groups)
                      for request, groups in draw_policies(draw, root)]
        answers = ask(os.path.join(build_dir, "tests/parity/dump_units"),
                      ["%s %s" % (case[1], case[4]) for case in cases])
    assert len(answers) == len(cases), (len(answers), len(cases))
    for (tree, _, text, root, request, groups), answer in zip(cases, answers):
        try:
            expected = [unit.line() for unit in reference.units(root, groups())]
            wrong = answer != expected
            theirs = pytorch.wrapped(root, request) if pytorch else None
            if theirs is not None:
                compared += 1
                wrong |= theirs != {line.split()[1] for line in answer} - {"(root)"}
        except reference.Refused as why:
            expected, theirs = ["refused: %s" % why], None
            refusals += 1
            wrong = not answer[0].startswith("refused ")
        if not wrong:
            continue
        failures += 1
        if failures <= 3:
            print("tree %d, %s\n%s" % (tree, request, text))
            print("\n".join(["fsdpd:"] + answer + ["expected:"] + expected))
            print("PyTorch wraps:", theirs)
    print("%d trees, %d policies, %d of them refused, %d compared with PyTorch: %d differ" %
          (TREES, len(cases), refusals, compared, failures))
    accepted = len(cases) - refusals
    return 1 if failures or TREES < 200 or accepted < 1000 or refusals < 100 else 0


if __name__ == "__main__":
    sys.exit(main())
