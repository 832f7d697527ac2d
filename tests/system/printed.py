"""The commands that pages print: the lines of their code blocks, and those in `code` within sentences."""

import collections
import os
import re
import sys

import harness

Block = collections.namedtuple("Block", "page heading number lines")  # number: of its heading, from 0
SPAN = re.compile(r"(fsdpd|fsdpctl|fsdpd-prepare|make|export|systemctl|pip|man) ."
                  r"|(\./|scripts/|bench/|check\.sh)")
PYTHON = re.compile(r"(from|import|with) ")
YAML = re.compile(r"[\w.]+: ")


def read(page):
    with open(os.path.join(harness.SOURCE, page), encoding="utf-8") as file:
        return file.read().splitlines()


def blocks(page):
    """Its indented blocks, and those in fences of sh; without comments and empty lines."""
    found, heading, count, fence, lines = [], "", 0, None, []
    for line in read(page) + ["."]:
        inside = line[4:] if fence is None and line.startswith("    ") else line if fence == "```sh" else None
        if line.startswith("```"):
            fence, inside = None if fence else line.strip(), None
        elif fence not in (None, "```sh"):
            continue
        if inside is not None:
            lines.append(re.sub(r"(^|\s+)# .*$", "", inside).rstrip())
        elif lines and line.strip():
            found.append(Block(page, heading, count, [text for text in lines if text]))
            count, lines = count + 1, []
        if fence is None and line.startswith("#"):
            heading, count = line.lstrip("# "), 0
    return found


def is_python(block):
    return bool(PYTHON.match(block.lines[0]))


def commands(block):
    """The lines of a block that a shell runs; a line of YAML belongs to a job file."""
    return [] if is_python(block) else [line for line in block.lines if not YAML.match(line)]


def spans(page):
    """The commands between backquotes in its sentences and tables, each once. A program's name alone is none."""
    prose, fenced = [], False
    for line in read(page):
        fence = line.lstrip().startswith("```")  # of a list's item, too
        fenced ^= fence
        prose.append("" if fenced or fence or line.startswith("    ") else line)
    found = (" ".join(span.split()) for span in re.findall(r"`([^`]+)`", "\n".join(prose)))
    return list(dict.fromkeys(span for span in found if SPAN.match(span)))


def block(page, heading, number=0):
    one, = (found for found in blocks(page) if (found.heading, found.number) == (heading, number))
    return one


if __name__ == "__main__":  # PAGE HEADING [NUMBER]: for scripts
    print("\n".join(commands(block(*sys.argv[1:3], *map(int, sys.argv[3:])))))
