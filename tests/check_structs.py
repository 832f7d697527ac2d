#!/usr/bin/env python3
"""Fails when two structs of common, daemon, client and kernels have the same name."""
import os
import re
import sys

TREES = ("common", "daemon", "client", "kernels")
DEFINITION = re.compile(r"^(?:typedef )?struct (\w+)\s*\{", re.MULTILINE)


def main():
    os.chdir(os.environ.get("srcdir", "."))
    places = {}
    for file in (os.path.join(folder, name) for tree in TREES for folder, _, names in os.walk(tree)
                 for name in sorted(names) if name.endswith((".c", ".h", ".cc", ".cu", ".cuh"))):
        with open(file, encoding="utf-8") as text:
            for match in DEFINITION.finditer(text.read()):
                places.setdefault(match[1], []).append(file)
    if not places:
        sys.exit("no structs found")
    double = {name: files for name, files in places.items() if len(files) > 1}
    for name, files in sorted(double.items()):
        print(f"struct {name} is defined in {', '.join(sorted(files))}: give all but one the prefix of its room")
    if not double:
        print(f"{len(places)} structs, each with a name of its own")
    return bool(double)


if __name__ == "__main__":
    sys.exit(main())
