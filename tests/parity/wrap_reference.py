"""A second implementation of the wrap policies, from the rules in words, for test_wrap.py to
compare with fsdpd's.

A module tree is made of Modules; a Parameter object that several modules hold is a tied one. A
result is a list of Units in fsdpd's order, or Refused.
"""
import fnmatch

FORCE_LEAF = frozenset(["MultiheadAttention"])
EXCLUDE = frozenset(["ModuleList", "ModuleDict"])


class Parameter:
    """Several tied names: one parameter, called by the first of them."""

    def __init__(self, name, elements):
        self.name, self.elements, self.frozen = name, elements, False


class Module:
    """A node: its type, its own parameters and its children, in registration order."""

    def __init__(self, kind, path=""):
        self.kind, self.path = kind, path
        self.parameters, self.children = [], []

    def tree(self):
        """This module and all below it, depth first."""
        yield self
        for child in self.children:
            yield from child.tree()

    def distinct(self):
        """The distinct parameters at and below this module, in registration order."""
        found = []
        for module in self.tree():
            found += [p for p in module.parameters if not any(p is q for q in found)]
        return found

    def size(self):
        return sum(parameter.elements for parameter in self.distinct())


class Unit:
    """Some modules' parameters: `modules` are the wrapped ones."""

    def __init__(self, modules, parameters, frozen):
        self.modules, self.parameters, self.frozen = modules, parameters, frozen

    def line(self):
        modules = [module.path or "(root)" for module in self.modules]
        return " ".join(["unit", modules[0], "frozen" if self.frozen else "trainable",
                         ",".join(modules), ",".join(p.name for p in self.parameters) or "-"])


class Refused(Exception):
    """The policy selects nothing, or names something that does not exist."""


def by_size(root, least, leaf=FORCE_LEAF, exclude=EXCLUDE):
    """Groups of one module each, by PyTorch's size_based_auto_wrap_policy."""
    if root.size() < least:
        raise Refused("nothing is large enough")
    present = {module.kind for module in root.tree() if module is not root}
    if (leaf - FORCE_LEAF - present) or (exclude - EXCLUDE - present):
        raise Refused("no such type")
    chosen = []

    def visit(module):
        size = module.size()
        if size < least or module.kind in leaf:
            return 0
        wrapped = sum(visit(child) for child in module.children)
        if module is root or size - wrapped < least or module.kind in exclude:
            return wrapped
        chosen.append(module)
        return size

    visit(root)
    return [[module] for module in chosen]


def by_type(root, types):
    """Every module of the types, except the root."""
    below = [module for module in root.tree() if module is not root]
    for kind in types:
        if sum(module.size() for module in below if module.kind == kind) == 0:
            raise Refused("a type without parameters, or without modules")
    return [[module] for module in below if module.kind in types]


def by_pattern(root, patterns):
    """Each pattern selects the outermost modules that it matches, unless they have no
    parameters."""
    chosen = []

    def visit(module, pattern):
        if module is not root and fnmatch.fnmatchcase(module.path, pattern):
            return [module]
        return [found for child in module.children for found in visit(child, pattern)]

    for pattern in patterns:
        found = [module for module in visit(root, pattern) if module.size() > 0]
        if not found:
            raise Refused("a pattern that matches nothing")
        chosen += [module for module in found if module not in chosen]
    return [[module] for module in chosen]


def by_list(root, lists):
    """The units as listed: no module twice, none inside another."""
    modules = {module.path: module for module in root.tree() if module is not root}
    named = [path for paths in lists for path in paths]
    if not lists or any(not paths for paths in lists) or any(path not in modules for path in named):
        raise Refused("no such module")
    if len(set(named)) < len(named):
        raise Refused("named twice")
    for path in named:
        if any(path.startswith(other + ".") for other in named):
            raise Refused("one inside another")
    groups = [[modules[path] for path in paths] for paths in lists]
    if any(sum(module.size() for module in group) == 0 for group in groups):
        raise Refused("nothing to shard")
    return groups


def units(root, groups):
    """The units of these groups and the root: the place and the order of each parameter."""
    order = {module: i for i, module in enumerate(root.tree())}
    groups = [sorted(group, key=order.get) for group in groups]
    groups = sorted(groups, key=lambda group: order[group[0]]) + [[root]]
    number = {module: i for i, group in enumerate(groups) for module in group}

    around = {}  # by module: the groups that contain it, the innermost first

    def descend(module, outer):
        around[module] = ([number[module]] if module in number else []) + outer
        for child in module.children:
            descend(child, around[module])

    descend(root, [])
    users = {}
    for module in root.tree():
        for parameter in module.parameters:
            users.setdefault(parameter, []).append(module)
    owned = [[] for _ in groups]
    for parameter in root.distinct():
        inside_all = [g for g in around[users[parameter][0]]
                      if all(g in around[user] for user in users[parameter])]
        owned[inside_all[0]].append(parameter)

    result = []
    for group, parameters in zip(groups, owned):
        frozen = [p for p in parameters if p.frozen]
        trainable = [p for p in parameters if not p.frozen]
        if frozen:
            result.append(Unit(group, frozen, True))
        if trainable or not frozen:
            result.append(Unit(group, trainable, False))
    return result
