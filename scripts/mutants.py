#!/usr/bin/env python3
"""Do the unit and engine tests notice a mistake? Changes one operator, one constant, or removes one call in a C file
of a room, and runs the programs that contain the file until one fails.

    scripts/mutants.py [--seed N] [--count N] [--rooms ROOM,...] [--time-limit SECONDS] [--out DIR]
    scripts/mutants.py --again      the survivors again, after tests were added

The rooms are those of docs/architecture.md. Mutants are drawn by the seed, and each place in the code is equally
likely. Calls that only release memory stay, as leaks are for the sanitizers, and so do log lines. A mutant that does
not compile, or whose object files stay the same, does not count.

Everything happens in a copy of the working tree below --out (build/mutants by default), built with -O1, unless CFLAGS
says otherwise, and without CUDA. results.jsonl there has a row per mutant: interrupted, the script continues where it
was. table.md has the table. A program of which no test ends for much longer than without a mutant has noticed it.
"""
import argparse
import contextlib
import ctypes
import fcntl
import glob
import itertools
import json
import os
import random
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
import zlib

from figures import SOURCE, git, room_of, rooms_in_order

TREES = ("common/", "daemon/", "kernels/", "client/")
MEMORY = 8 << 30  # of a program's addresses, unless it needs more without a mutant
UNKNOWN = {"seconds": 60, "longest": 30, "limited": True}  # a program that has not passed yet

TOKEN = re.compile(r"""
    (?P<skip> /\*.*?\*/ | //[^\n]* | "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*' | ^[ \t]*\#(?:[^\n\\]|\\.)* )
  | (?P<name> [A-Za-z_]\w* )
  | (?P<number> \.?\d(?:[eEpP][+-]|[\w.])* )
  | (?P<operator> -> | \+\+ | -- | <<= | >>= | << | >> | && | \|\| | [-+*/%&|^<>=!]= | [^\s\w] )
""", re.VERBOSE | re.MULTILINE | re.DOTALL)
BINARY = {"==": "!=", "!=": "==", "<": "<= >=", "<=": "< >", ">": ">= <=", ">=": "> <", "&&": "||", "||": "&&",
          "+": "-", "-": "+", "*": "/", "/": "*", "%": "/", "<<": ">>", ">>": "<<", "&": "|", "|": "&",
          "+=": "-=", "-=": "+=", "*=": "/=", "|=": "&=", "&=": "|="}
UNARY = {"++": "--", "--": "++", "!": ""}
FAILED = re.compile(rb"^not ok \d+ - [^:\n]*:[^:\n]*:(\w+).*\n", re.MULTILINE)
NO_CALL = re.compile(r"(if|for|while|switch|return|sizeof|log_event|log_status|(.*_)?(free|deinit|destroy|decref))$")


def other_numbers(text):
    """What stands in the place of a number: one more, one less; of a fraction, its double."""
    whole = re.fullmatch(r"(0[xX][0-9a-fA-F]+|[1-9]\d*|0)([uUlL]*)", text)
    if whole:
        value = int(whole[1], 0)
        write = hex if whole[1][:2] in ("0x", "0X") else str
        return [write(other) + whole[2] for other in (value + 1, value - 1) if other >= 0]
    fraction = re.fullmatch(r"(\d*\.?\d*(?:[eE][+-]?\d+)?)([fF]?)", text)
    return [repr(float(fraction[1]) * 2 or 1.0) + fraction[2]] if fraction else []


def places_of(text):
    """Every place that can change: its start, its end, what may stand there."""
    tokens = [match for match in TOKEN.finditer(text) if match.lastgroup != "skip"]
    depth = 0
    places = []
    for at, token in enumerate(tokens):
        word, (start, end) = token[0], token.span()
        before = tokens[at - 1][0] if at else ";"
        depth += (word == "{") - (word == "}")
        spaced = text[start - 1:start].isspace() and text[end:end + 1].isspace()
        if token.lastgroup == "number":
            places.append((start, end, other_numbers(word)))
        elif word in ("true", "false"):
            places.append((start, end, ["false" if word == "true" else "true"]))
        elif word in UNARY:
            places.append((start, end, [UNARY[word]]))
        elif word in BINARY and spaced:
            places.append((start, end, BINARY[word].split()))
        elif token.lastgroup == "name" and depth and before in (";", "{", "}", ")", "else"):
            end = end_of_call(tokens, at)
            if end and not NO_CALL.match(word):
                places.append((start, end, [";"]))
    return [place for place in places if place[2]]


def end_of_call(tokens, at):
    """The end of the statement NAME(...); that begins here, or None."""
    depth = 0
    for later, token in enumerate(tokens[at + 1:], at + 1):
        depth += (token[0] == "(") - (token[0] == ")")
        if depth == 0:
            follows = tokens[later + 1:later + 2]
            return follows[0].end() if later > at + 1 and follows and follows[0][0] == ";" else None
    return None


def mutant_of(path, text, place, after):
    """A row: the lines as they are and as they become, which are found again when lines above them change."""
    start, end = place[:2]
    first = text.rfind("\n", 0, start) + 1
    last = (text + "\n").find("\n", end)
    return {"file": path, "line": text.count("\n", 0, start) + 1, "was": text[first:last],
            "now": text[first:start] + after + text[end:last],
            "change": f"{' '.join(text[start:end].split())} -> {after.strip(';') or 'nothing'}"}


def apply(text, row):
    """The text with the mutant in it, or None: its lines are gone."""
    found = [match.start() for match in re.finditer(r"^" + re.escape(row["was"]) + r"$", text, re.MULTILINE)]
    if not found:
        return None
    at = min(found, key=lambda start: abs(text.count("\n", 0, start) + 1 - row["line"]))
    return text[:at] + row["now"] + text[at + len(row["was"]):]


def read(path, mode="r"):
    with open(path, mode, encoding=None if "b" in mode else "utf-8") as file:
        return file.read()


def write(path, content):
    with open(path, "wb" if isinstance(content, bytes) else "w", encoding=None) as file:
        file.write(content)


def end_children(program):
    """Ends a program and what it left behind: this process is the parent of orphans (see main)."""
    program.terminate()  # Check then ends the test's process
    with contextlib.suppress(subprocess.TimeoutExpired):
        program.wait(2)
    program.kill()
    program.wait()
    while children := read(f"/proc/self/task/{os.getpid()}/children").split():
        for child in map(int, children):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


class Tree:
    """The copy, its build, and the programs in it."""

    def __init__(self, out):
        self.out, self.source, self.build = out, os.path.join(out, "source"), os.path.join(out, "source", "build")
        os.makedirs(self.build, exist_ok=True)
        self.copy()
        if not os.path.exists(os.path.join(self.build, "Makefile")):
            self.output(f"cd .. && ./autogen.sh && cd build && {self.source}/configure --quiet --without-cuda "
                        "CFLAGS=\"${CFLAGS:--O1}\" CXXFLAGS=\"${CXXFLAGS:--O1}\"")
        self.output("make --quiet && make --quiet check TESTS=")
        silent = "make --silent --no-print-directory "
        listed = re.findall(r"tests/(?:unit|engine)/\S+", self.output(silent + "print-tests"))
        environment = self.output(silent + "--eval='environment:; @$(AM_TESTS_ENVIRONMENT) env' environment")
        self.environment = dict(line.split("=", 1) for line in environment.splitlines() if "=" in line)
        # A line for each test as it ends, so that the first failure suffices.
        self.environment.update(CK_TAP_LOG_FILE_NAME="-", CK_VERBOSITY="silent")
        self.objects = self.find_objects()
        self.texts = {name: read(path) if os.path.exists(path) else ""  # of some for CUDA the text is another's
                      for name in listed for path in [os.path.join(SOURCE, name + ".c")]}
        self.symbols = {name: self.symbols_of(name) for name in listed}
        self.known = os.path.join(out, "programs.json")
        known = json.loads(read(self.known)) if os.path.exists(self.known) else {}
        self.clean = {name: clean for name, clean in known.items() if clean["version"] == self.version_of(name)}

    def copy(self):
        """The working tree; what is the same keeps its time, so that make does little. Undoes any mutant."""
        for name in git("ls-files", "-z", "--cached", "--others", "--exclude-standard").decode().split("\0")[:-1]:
            mine, copied = os.path.join(SOURCE, name), os.path.join(self.source, name)
            if not os.path.exists(mine):
                if os.path.exists(copied):
                    os.remove(copied)
            elif not os.path.exists(copied) or read(mine, "rb") != read(copied, "rb"):
                os.makedirs(os.path.dirname(copied), exist_ok=True)
                shutil.copy(mine, copied)

    def output(self, command):
        done = subprocess.run(command, shell=True, cwd=self.build, check=False, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        if done.returncode:
            sys.exit(f"mutants.py: {command}\n{done.stdout.decode()[-2000:]}")
        return done.stdout.decode()

    def make(self, *targets):
        return subprocess.run(["make", "--quiet", "--keep-going", *targets], cwd=self.build, check=False,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0

    def find_objects(self):
        """The objects of each C file, by what the compiler wrote down."""
        objects = {}
        for path in glob.glob(os.path.join(self.build, "**/.deps/*.*o"), recursive=True):
            rule = re.match(r"(\S+\.l?o):[\s\\]*(\S+\.c)\s", read(path))
            name = rule and os.path.relpath(os.path.join(self.build, rule[2]), self.source)
            if rule and name.startswith(TREES) and os.path.exists(os.path.join(self.build, rule[1])):
                objects.setdefault(name, []).append(rule[1])
        return objects

    def symbols_of(self, binary):
        lines = self.output(f"nm --extern-only --defined-only --format=posix {binary}").splitlines()
        return {line.split()[0] for line in lines if " " in line} - {"main"}

    def code_of(self, name):
        """An object without its debugger's lines."""
        stripped = os.path.join(self.out, "stripped.o")
        self.output(f"objcopy --strip-debug {name} {stripped}")
        return read(stripped, "rb")

    def version_of(self, program):
        return zlib.crc32(self.texts.get(program, "").encode())

    def passes(self, program):
        """Whether it passes without a mutant, with as much memory as others; forgets it if it fails."""
        failure = not self.make(program) or self.run(program, 600, True) and self.run(program, 600, False)
        if failure:
            print(f"{program} fails without a mutant: {failure}", flush=True)
            del self.symbols[program]
        return not failure and self.clean[program]["limited"]

    def run(self, program, patience, limited):
        """Returns what failed first. If nothing did, remembers how long the program took, and the longest time until
        one of its tests ended."""
        def limit():
            resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
            if limited:
                resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
        running = subprocess.Popen([os.path.join(self.build, program)], cwd=self.build, env=self.environment,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                   start_new_session=True, preexec_fn=limit)
        began = last = time.monotonic()
        longest, text, failed = 0, b"", None
        try:
            while running.poll() is None and not failed:
                if time.monotonic() - last > patience:
                    return "hangs"
                if not select.select([running.stdout], [], [], 0.1)[0]:
                    continue
                piece = os.read(running.stdout.fileno(), 1 << 16)
                if not piece:
                    time.sleep(0.05)
                elif b"ok " in piece:
                    longest, last = max(longest, time.monotonic() - last), time.monotonic()
                text = text[-1000:] + piece
                failed = FAILED.search(text)
        finally:
            end_children(running)
            failed = failed or FAILED.search(text + running.stdout.read())
            running.stdout.close()
        if failed or running.returncode not in (0, 77):
            return failed[1].decode() if failed else f"status {running.returncode}"
        now = time.monotonic()
        self.clean.setdefault(program, {"seconds": now - began, "longest": max(longest, now - last),
                                        "limited": limited, "version": self.version_of(program)})
        write(self.known, json.dumps(self.clean, indent=1))
        return None

    def programs_for(self, path, rows):
        """The programs that contain the file, most relevant first: by name, by what they include, by what noticed
        mutants of this file and room before, by the room's list."""
        symbols = set().union(*map(self.symbols_of, self.objects[path]))
        folder, stem = os.path.split(path[:-len(".c")])
        lists = [os.path.join(SOURCE, folder, up, "local.mk") for up in ("", "..")]
        listed = "".join(map(read, filter(os.path.exists, lists[:1 + (not os.path.exists(lists[0]))])))
        before = [row["by"].split()[0] for row in rows if "by" in row and os.path.dirname(row["file"]) == folder]

        def rank(name):
            return (not name.endswith("test_" + stem), re.search(rf'["/]{stem}\.h"', self.texts[name]) is None,
                    -before.count(name), re.search(rf"{name}\b", listed) is None,
                    self.clean.get(name, UNKNOWN)["seconds"])
        return sorted((name for name in self.symbols if symbols & self.symbols[name]), key=rank)

    def try_mutant(self, row, rows):
        """Fills in the row: result, by, programs."""
        path = os.path.join(self.source, row["file"])
        objects = self.objects[row["file"]]
        text, times, code = read(path), os.stat(path), list(map(self.code_of, objects))
        clean = [read(os.path.join(self.build, name), "rb") for name in objects]
        programs = self.programs_for(row["file"], rows)
        mutated = apply(text, row)
        if mutated is None:
            row["result"] = "gone"
            return
        try:
            write(path, mutated)
            if not self.make(*objects):
                row["result"] = "does not compile"
            elif code == list(map(self.code_of, objects)):
                row["result"] = "same code"
            else:
                row.update(result="survived", programs=len(programs))
                self.notice(row, programs)
        finally:
            for name, content in zip(objects, clean):
                write(os.path.join(self.build, name), content)
            write(path, text)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        program = row.get("by", "").split(" ")[0]
        if program and program not in self.clean and not self.passes(program):
            del row["by"]
            self.try_mutant(row, rows)

    def notice(self, row, programs):
        begun = 0
        while begun < len(programs):  # 1 program, then 2, 4, ... are linked
            some = programs[begun:2 * begun + 1]
            if not self.make(*some):
                row["result"] = "does not link"
                return
            for begun, program in enumerate(some, begun + 1):
                clean = self.clean.get(program, UNKNOWN)
                failure = self.run(program, 4 * clean["longest"] + 15, clean["limited"])
                if failure:
                    row.update(result="noticed", by=f"{program} {failure}", programs=begun)
                    return


def table(rows):
    lines = ["| room | mutants | noticed | survivors |", "| --- | --- | --- | --- |"]
    for room in rooms_in_order() + ["all"]:
        results = [row["result"] for row in rows if room in (row["room"], "all")]
        noticed, survived = results.count("noticed"), results.count("survived")
        if noticed + survived:
            lines.append(f"| {room} | {noticed + survived} | {noticed} | {survived} |")
    lines += [f"{row['file']}:{row['line']}: {row['change']} (in `{' '.join(row['was'].split())}`; "
              f"{row['programs']} programs)" for row in rows if row["result"] == "survived"]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=300, help="mutants that compile and change the code")
    parser.add_argument("--rooms", default="", help="such as common/base,daemon/train; all by default")
    parser.add_argument("--time-limit", type=float, default=float("inf"), help="seconds; no mutant begins after that")
    parser.add_argument("--out", default=os.path.join(SOURCE, "build", "mutants"))
    parser.add_argument("--again", action="store_true")
    arguments = parser.parse_args()
    end = time.monotonic() + arguments.time_limit
    rooms = rooms_in_order()
    wanted = set(arguments.rooms.split(",") if arguments.rooms else rooms)
    if wanted - set(rooms):
        parser.error(f"no such room: {', '.join(wanted - set(rooms))}")
    os.makedirs(arguments.out, exist_ok=True)
    lock = open(os.path.join(arguments.out, "lock"), "w", encoding="utf-8")
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    results = os.path.join(arguments.out, "results.jsonl")
    lines = read(results).splitlines() if os.path.exists(results) else []
    rows = {row["draw"]: row for row in map(json.loads, lines)}  # the last of each
    draws = f"{arguments.seed}:{arguments.rooms}:"

    def drawn():
        return [row for draw, row in rows.items() if draw.startswith(draws)]

    def attempt(row):
        began = time.monotonic()
        tree.try_mutant(row, list(rows.values()))
        row["seconds"] = round(time.monotonic() - began, 1)
        rows[row["draw"]] = row
        with open(results, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        write(os.path.join(arguments.out, "table.md"), table(drawn()))
        print(f"{row['result']}: {row['file']}:{row['line']}: {row['change']} ({row.get('by', '')})", flush=True)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    tree = Tree(arguments.out)
    if arguments.again:
        for row in [row for row in drawn() if row["result"] == "survived"]:
            if time.monotonic() < end:
                attempt({key: row[key] for key in ("draw", "room", "file", "line", "was", "now", "change")})
    else:
        texts = {path: read(os.path.join(SOURCE, path)) for path in sorted(tree.objects)
                 if room_of(path, rooms) in wanted}
        places = [(path, place) for path, text in texts.items() for place in places_of(text)]
        for number in itertools.count():
            done = sum(row["result"] in ("noticed", "survived") for row in drawn())
            if done >= arguments.count or time.monotonic() > end:
                break
            if f"{draws}{number}" not in rows:
                chance = random.Random(f"{draws}{number}")
                path, place = chance.choice(places)
                attempt({"draw": f"{draws}{number}", "room": room_of(path, rooms),
                         **mutant_of(path, texts[path], place, chance.choice(place[2]))})
    print(table(drawn()), end="")


if __name__ == "__main__":
    main()
