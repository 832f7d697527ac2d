#!/usr/bin/env python3
"""Makes docs/architecture.svg from the tables of docs/architecture.md and docs/step.svg from a plan.

usage: scripts/pictures.py FSDPD [DIRECTORY]
  FSDPD      the program whose `plan` describes the step, for instance build/fsdpd
  DIRECTORY  where to write the pictures; docs by default
"""

import html
import json
import os
import re
import subprocess
import sys

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
PLAN = ("plan", "examples/shakespeare/job.yaml", "--profile", "a100x8", "--dump")
WIDTH = 800

STYLE = """
  text { font: 12px system-ui, "DejaVu Sans", sans-serif; fill: #1f2328 }
  .small { font-size: 10.5px; fill: #59636e }
  .bold { font-weight: 600 }
  .page { fill: #ffffff; stroke: #d1d9e0 }
  .process { fill: #f6f8fa; stroke: #818b98 }
  .room { fill: #ffffff; stroke: #d1d9e0 }
  .module { fill: none; stroke: #818b98; stroke-dasharray: 4 3 }
  .line { stroke: #59636e; fill: none }
  .head { fill: #59636e }
  .grid { stroke: #d1d9e0 }
  .gather { fill: #9ec5fe }
  .compute { fill: #a6d8b4 }
  .reduce { fill: #ffc999 }
  .optimizer { fill: #d5b8f0 }
  .other { fill: #c8ced6 }
  .kept { fill: #9ec5fe; stroke: #4c8dd6 }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc }
    .small { fill: #b1bac4 }
    .page { fill: #0d1117; stroke: #3d444d }
    .process { fill: #161b22; stroke: #6e7681 }
    .room { fill: #21262d; stroke: #3d444d }
    .module { stroke: #8b949e }
    .line { stroke: #b1bac4 }
    .head { fill: #b1bac4 }
    .grid { stroke: #3d444d }
    .gather { fill: #1f4f8f }
    .compute { fill: #22633a }
    .reduce { fill: #8a4b12 }
    .optimizer { fill: #5d3a86 }
    .other { fill: #4a525c }
    .kept { fill: #1f4f8f; stroke: #6ea8f0 }
  }"""


class Picture:
    """SVG shapes, one per line."""

    def __init__(self, title):
        self.title, self.lines = title, []

    def rect(self, x, y, width, height, kind, corner=3):
        self.lines.append(f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
                          f'height="{height:.1f}" rx="{corner}"/>')

    def text(self, x, y, words, kind="", anchor="start"):
        self.lines.append(f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
                          f'{html.escape(words)}</text>')

    def line(self, x1, y1, x2, y2, kind="line"):
        self.lines.append(f'<path class="{kind}" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>')

    def arrow(self, x1, x2, y):
        self.line(x1, y, x2, y)
        back = 7 if x2 > x1 else -7
        self.lines.append(f'<path class="head" d="M{x2:.1f} {y:.1f}l{-back} -4v8z"/>')

    def write(self, path, height):
        with open(path, "w", encoding="utf-8") as file:
            file.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0f}" '
                       f'viewBox="0 0 {WIDTH} {height:.0f}" role="img">\n<title>{html.escape(self.title)}</title>\n'
                       f'<style>{STYLE}\n</style>\n'
                       f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:.0f}" rx="6"/>\n')
            file.write("\n".join(self.lines) + "\n</svg>\n")


def wrap(words, width, letter=5.7):
    """Wraps a text to lines for a box of `width` pixels."""
    lines = [""]
    for word in words.split():
        if lines[-1] and len(lines[-1] + " " + word) * letter > width:
            lines.append("")
        lines[-1] = (lines[-1] + " " + word).strip()
    return lines


# ---- the architecture: which rooms each process is made of ----

def table(page, heading):
    """The rows of the first table below a heading, as lists of cells."""
    rows = []
    for line in page[page.index(heading):].splitlines():
        if line.startswith("|"):
            rows.append([cell.strip().replace("`", "") for cell in line.strip("|").split("|")])
        elif rows:
            break
    return rows[2:]


def rooms_of(page):
    """{room: (what it owns, the rooms that it may include)}."""
    rows = table(page, "\n## Rooms\n")
    names = sorted((row[0] for row in rows), key=lambda name: name.count("/"))

    def room(word):
        """Tables name a room by its path or by the end of it, which stands for the shortest such path."""
        return next((name for name in names if name == word or name.endswith("/" + word)), None)
    rooms = {}
    for name, owns, may in rows:
        words = [room(word) for word in may.split(", ")]
        rooms[name] = (owns.removesuffix(". Pure"), [word for word in words if word and word != name])
    return rooms


def reached(rooms, first):
    """The room, its sub-rooms, and all rooms that they include."""
    found, todo = set(), [name for name in rooms if name == first or name.startswith(first + "/")]
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += rooms[name][1]
    return found


def levels(rooms, names):
    """The rooms in rows: each includes only rooms of later rows, unless two include each other."""
    depth = {}

    def visit(name):
        if name not in depth:
            depth[name] = 0
            depth[name] = 1 + max((visit(i) for i in rooms[name][1] if i in names), default=-1)
        return depth[name]
    for name in names:
        visit(name)
    return [sorted(name for name in names if depth[name] == level)
            for level in sorted(set(depth.values()), reverse=True)]


def draw_rooms(picture, rooms, rows, x, y, width, kind="room"):
    """Draws rows of boxes; returns the y below the last row."""
    for row in rows:
        each = (width - 6 * (len(row) - 1)) / len(row)
        texts = [wrap(rooms[name][0], each - 14) for name in row]
        height = 24 + 13 * max(len(lines) for lines in texts)
        for i, name in enumerate(row):
            left = x + i * (each + 6)
            picture.rect(left, y, each, height, kind)
            picture.text(left + 7, y + 15, name.removeprefix("daemon/").removeprefix("coordinator/"), "bold")
            for j, line in enumerate(texts[i]):
                picture.text(left + 7, y + 29 + 13 * j, line, "small")
        y += height + 6
    return y


def architecture(page):
    picture = Picture("The processes of fsdpd and the rooms of code that each is made of")
    rooms = rooms_of(page)
    processes = table(page, "\n## Processes\n")
    common = [name for name in rooms if name.startswith("common/")]
    modules = [name for name in rooms if name.endswith("/cuda")]
    widths, gap, top, x = [150, 200, 262], 76, 16, 16
    places = {}
    for (name, what, first, _, _), width in zip(processes, widths):
        own = reached(rooms, first) - set(common) - set(modules)
        inside = Picture("")
        y = draw_rooms(inside, rooms, levels(rooms, own), x + 8, top + 42, width - 16)
        if name == "worker":
            y = draw_rooms(inside, rooms, [[module] for module in modules], x + 8, y, width - 16, "module")
            for shift in (8, 4):
                picture.rect(x + shift, top + shift, width, y + 2 - top, "process", 6)
        picture.rect(x, top, width, y + 2 - top, "process", 6)
        picture.text(x + 10, top + 18, name, "bold")
        picture.text(x + 10, top + 33, what, "small")
        picture.lines += inside.lines
        places[name] = (x, width, y + 2)
        x += width + gap
    for name, _, _, talks, _ in processes:
        x, width, bottom = places[name]
        for talk in filter(None, talks.split("; ")):
            other, words = talk.split(": ", 1)
            if other == name:
                picture.text(x + width, bottom + 24, f"{name}s among themselves: {words}", "small", "end")
                continue
            to, to_width, _ = places[other]
            start, end = (x + width, to - 1) if to > x else (x, to + to_width + 1)
            picture.arrow(start, end, top + 60)
            for i, line in enumerate(wrap(words, gap - 6)):
                picture.text((start + end) / 2, top + 75 + 13 * i, line, "small", "middle")
    # Below the two short columns, beside the worker.
    worker = processes[-1][0]
    y = max(bottom for name, (_, _, bottom) in places.items() if name != worker) + 26
    picture.text(16, y, "Rooms of common, which each process links as it needs them", "small")
    short = {name.removeprefix("common/"): rooms[name] for name in common}
    rows = [list(short)[i:i + 2] for i in range(0, len(short), 2)]
    y = draw_rooms(picture, short, rows, 16, y + 10, places[worker][0] - gap - 16)
    y = max(y, places[worker][2] + 30)
    picture.text(16, y + 8, "Within a process, a room includes only rooms below it. Dashed: loaded as a module. "
                 "Coordinator and worker are one program, fsdpd.", "small")
    return picture, y + 20


# ---- a step: the plan's schedule, by lane and by unit ----

def kind_of(kind):
    return {"all_gather": "gather", "reduce_scatter": "reduce", "optimizer": "optimizer",
            "compute": "compute"}.get(kind, "other")


def step(plan):
    program = next(item for item in plan["programs"] if item["name"] == "train")
    schedule = program["schedule"]
    units = [unit["name"] for unit in plan["units"]]
    prefix = os.path.commonprefix([name for name in units if name != "(root)"])

    def short(unit):
        return "root" if unit == "(root)" else unit[prefix.rfind(".", 0, -1) + 1:]

    def unit_of(op):
        return next((unit for unit in units if op == unit or op.startswith(unit + ".")), "(root)")

    def label(line):
        if line["kind"] != "compute":
            return short(line["subject"]) if line["subject"] else ""
        ends = [unit_of(op) for op in line["subject"].split(" ... ")]
        return ", ".join(dict.fromkeys(short(unit) for unit in ends))

    end = max(line["start_seconds"] + line["seconds"] for line in schedule)
    picture = Picture(f"One training step of {len(units)} units over {plan['world']} ranks, as its plan has it")
    left, right = 76, WIDTH - 16

    def at(seconds):
        return left + seconds / end * (right - left)

    # Phases: backward begins after the op that computes the loss and its gradient.
    computes = [line for line in schedule if line["lane"] == "compute"]
    turn = next(line for line in computes if ".backward" in line["subject"])
    close = next(line for line in computes if line["kind"] != "compute")
    phases = [("forward and loss", 0, turn["start_seconds"] + turn["seconds"]),
              ("backward", turn["start_seconds"] + turn["seconds"], close["start_seconds"]),
              ("optimizer", close["start_seconds"], end)]
    for name, begin, until in phases:
        picture.line(at(begin) + 1, 30, at(until) - 1, 30)
        picture.text((at(begin) + at(until)) / 2, 22, name, "bold", "middle")
    y = 44
    for lane in dict.fromkeys(line["lane"] for line in sorted(schedule, key=lambda line: line["lane"] == "copy")):
        picture.text(16, y + 19, lane, "bold")
        for line in schedule:
            if line["lane"] != lane:
                continue
            x, width = at(line["start_seconds"]), line["seconds"] / end * (right - left)
            picture.rect(x, y, max(width - 0.8, 1), 28, kind_of(line["kind"]), 2)
            words = label(line)
            if words and len(words) * 6.2 < width:
                picture.text(x + width / 2, y + 18, words, "", "middle")
        y += 40
    picture.text(16, y + 12, "Gathered units: a bar from the gather's start to the free", "small")
    y += 22
    order = sorted(units, key=lambda unit: min(line["first"] for line in schedule if line["kind"] == "all_gather" and
                                               line["subject"] == unit))
    frees = [(int(number), unit) for number, unit in
             re.findall(r"^ *([0-9]+)  compute  free +(\S+)", train_dump(plan["dump"]), re.M)]
    for unit in order:
        picture.text(16, y + 13, short(unit), "bold")
        picture.line(left, y + 9, right, y + 9, "grid")
        for gather in schedule:
            if gather["kind"] != "all_gather" or gather["subject"] != unit:
                continue
            free = min(number for number, name in frees if name == unit and number > gather["first"])
            freed = max(line["start_seconds"] + line["seconds"] for line in computes if line["first"] < free)
            picture.rect(at(gather["start_seconds"]), y, at(freed) - at(gather["start_seconds"]), 18, "kept", 2)
        y += 24
    y += 10
    x = left
    for words, kind in (("all-gather", "gather"), ("compute", "compute"), ("reduce-scatter", "reduce"),
                        ("optimizer", "optimizer"), ("batch, statistics, norm, gate", "other")):
        picture.rect(x, y, 12, 12, kind, 2)
        picture.text(x + 17, y + 10, words, "small")
        x += 40 + len(words) * 6
    y += 30
    picture.text(16, y, f"examples/shakespeare over {plan['world']} a100, by estimate: {end * 1e6:.0f} us. Lanes run "
                 "ahead of each other as far as the waits allow.", "small")
    return picture, y + 14


def train_dump(dump):
    """The instructions of the training program in a plan's text."""
    return re.search(r"^train: [0-9]+ instructions.*?(?=^evaluate: [0-9]+ instructions)", dump, re.M | re.S).group()


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    directory = sys.argv[2] if len(sys.argv) == 3 else os.path.join(SOURCE, "docs")
    with open(os.path.join(SOURCE, "docs/architecture.md"), encoding="utf-8") as file:
        picture, height = architecture(file.read())
    picture.write(os.path.join(directory, "architecture.svg"), height)
    done = subprocess.run([os.path.abspath(sys.argv[1]), *PLAN, "-o", "json"], cwd=SOURCE, stdout=subprocess.PIPE,
                          env={"PATH": os.environ["PATH"]}, check=True)
    picture, height = step(json.loads(done.stdout))
    picture.write(os.path.join(directory, "step.svg"), height)


if __name__ == "__main__":
    main()
