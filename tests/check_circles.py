#!/usr/bin/env python3
"""Fails when more than three modules of daemon, common, client and kernels include each other in a circle.

x.c and x.h are one module.
"""
import os
import re
import sys

LARGEST = 3
TREES = ("daemon", "common", "client", "kernels")
SEARCHED = ("common", "daemon", ".")  # as Makefile.am's -I
INCLUDE = re.compile(r'\s*#\s*include\s+"([^"]+)"')


def read_modules():
    """Each module with the modules that it includes."""
    files = {os.path.join(folder, name) for tree in TREES for folder, _, names in os.walk(tree) for name in names
             if name.endswith((".c", ".h", ".cc", ".cu", ".cuh"))}
    modules = {}
    for file in sorted(files):
        module = os.path.splitext(file)[0]
        included = modules.setdefault(module, set())
        with open(file, encoding="utf-8") as text:
            names = [match[1] for match in map(INCLUDE.match, text) if match]
        for name in names:
            paths = (os.path.normpath(os.path.join(start, name)) for start in (os.path.dirname(file), *SEARCHED))
            found = next((path for path in paths if path in files), None)
            if found and os.path.splitext(found)[0] != module:
                included.add(os.path.splitext(found)[0])
    return modules


def reachable(modules, start):
    seen, left = set(), [start]
    while left:
        for module in modules[left.pop()] - seen:
            seen.add(module)
            left.append(module)
    return seen


def find_circles(modules):
    """The sets of modules that reach each other, largest first."""
    reach = {module: reachable(modules, module) for module in modules}
    circles = {frozenset(other for other in reach[module] if module in reach[other])
               for module in modules if module in reach[module]}
    return sorted(circles, key=lambda circle: (-len(circle), sorted(circle)))


def main():
    os.chdir(os.environ.get("srcdir", "."))
    modules = read_modules()
    if not modules:
        sys.exit("no modules found")
    status = 0
    for circle in find_circles(modules):
        if len(circle) > LARGEST:
            print(f"{len(circle)} modules form a circle; at most {LARGEST} may:")
            for module in sorted(circle):
                print(f"  {module} includes {', '.join(sorted(modules[module] & circle))}")
            status = 1
    if status == 0:
        print(f"{len(modules)} modules, no circle larger than allowed")
    return status


if __name__ == "__main__":
    sys.exit(main())
