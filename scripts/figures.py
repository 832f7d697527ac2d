#!/usr/bin/env python3
"""Figures of the source tree at each of the given commits (default: HEAD): files and lines of each room, modules
in its largest include cycle, includes inside cycles, and includes of rooms further down in the table of
docs/architecture.md.

Usage: scripts/figures.py [COMMIT...]
"""
import collections
import io
import os
import subprocess
import sys
import tarfile
import tempfile

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(SOURCE, "tests"))
import check_circles  # noqa: E402

CODE = (".c", ".h", ".cc", ".cu", ".cuh")
OTHERS = ("tests", "bench", "scripts", "docs")


def git(*command):
    return subprocess.run(["git", "-C", SOURCE, *command], check=True, stdout=subprocess.PIPE).stdout


def rooms_in_order():
    """The rooms in the order of the current table, so that all commits are compared by one order."""
    with open(os.path.join(SOURCE, "docs/architecture.md"), encoding="utf-8") as page:
        return [line.split("`")[1] for line in page if line.startswith("| `")]


def room_of(path, rooms):
    folder = os.path.dirname(path)
    while folder and folder not in rooms:
        folder = os.path.dirname(folder)
    return folder or path.split("/")[0]


def count_lines(path):
    with open(path, "rb") as file:
        return file.read().count(b"\n")


def measure(commit, rooms):
    """Prints the table of a commit whose files are in the current directory."""
    files, lines, circle, inside, upward = (collections.Counter() for _ in range(5))
    modules = check_circles.read_modules()
    for tree in check_circles.TREES:
        for folder, _, names in os.walk(tree):
            for name in names:
                if not name.endswith(CODE):
                    continue
                room = room_of(os.path.join(folder, name), rooms)
                files[room] += 1
                lines[room] += count_lines(os.path.join(folder, name))
    for found in check_circles.find_circles(modules):
        for module in found:
            room = room_of(module, rooms)
            circle[room] = max(circle[room], len(found))
            inside[room] += len(modules[module] & found)
    place = {room: at for at, room in enumerate(rooms)}
    for module, included in modules.items():
        room = room_of(module, rooms)
        upward[room] += sum(place.get(room_of(other, rooms), 0) > place.get(room, 0) for other in included)
    print(f"\n{commit} {git('log', '-1', '--format=%h %s', commit).decode().strip()}")
    print(f"{'room':24}{'files':>6}{'lines':>8}{'circle':>8}{'in circles':>12}{'upward':>8}")
    for room in sorted(files, key=lambda name: (place.get(name, len(place)), name)):
        print(f"{room:24}{files[room]:6}{lines[room]:8}{circle[room]:8}{inside[room]:12}{upward[room]:8}")
    print(f"{'product':24}{sum(files.values()):6}{sum(lines.values()):8}{max(circle.values(), default=0):8}"
          f"{sum(inside.values()):12}{sum(upward.values()):8}")
    for tree in OTHERS:
        paths = [os.path.join(folder, name) for folder, _, names in os.walk(tree) for name in names
                 if name.endswith((*CODE, ".py", ".sh", ".md"))]
        print(f"{tree:24}{len(paths):6}{sum(map(count_lines, paths)):8}")
    makefiles = [os.path.join(folder, "local.mk") for folder, _, names in os.walk(".") if "local.mk" in names]
    print(f"{'local.mk':24}{len(makefiles):6}{sum(map(count_lines, makefiles)):8}")


def main():
    rooms = rooms_in_order()
    for commit in sys.argv[1:] or ["HEAD"]:
        with tempfile.TemporaryDirectory() as folder:
            with tarfile.open(fileobj=io.BytesIO(git("archive", commit))) as archive:
                archive.extractall(folder)
            os.chdir(folder)
            measure(commit, rooms)
            os.chdir(SOURCE)


if __name__ == "__main__":
    main()
