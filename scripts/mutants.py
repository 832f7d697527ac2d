#!/usr/bin/env python3
"""Do the unit and engine tests notice a mistake? Changes one operator, one constant, or removes one call in a C file
of a room, and runs the tests that execute its line until one fails.

    scripts/mutants.py [--seed N] [--count N] [--rooms ROOM,...] [--time-limit SECONDS] [--patience SECONDS] [--out DIR]
    scripts/mutants.py --again      the survivors again, after tests were added

The rooms are those of docs/architecture.md. Mutants are drawn by the seed, and each place in the code is equally
likely. Calls that only release memory stay, as leaks are for the sanitizers, and so do log lines. A mutant that does
not compile, or whose object files stay the same, does not count.

Everything happens in a copy of the working tree below --out (build/mutants by default), built with -Og and without CUDA.
results.jsonl there has a row per mutant: interrupted, the script continues where it was. table.md has the table. A program
of which no test ends for much longer than without a mutant has noticed it.

The build records which tests execute a line: first each test runs alone, once for each version of its program. What
stands in a line without code, such as a table, belongs to its function or else to its file. A mutant runs its tests in the
order of their programs: first those written for its file, or with tests named like it, then the quickest, as long as
--patience (20) by the times that these tests took alone and half a second for each program. The table says of how many
tests a survivor ran how many; none: no test executes its line.
"""
import argparse
import bisect
import collections
import contextlib
import ctypes
import fcntl
import functools
import glob
import itertools
import json
import math
import multiprocessing
import operator
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
TO_LINK = 0.5  # seconds of patience that a program costs beside its tests
# A byte for each byte of the program's code, in a file that its processes share: not 0 where a block began to run.
# Another program that it starts, such as fsdpd-digits, leaves the file as it is.
RECORDER = r"""
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
extern char __executable_start, etext;
static unsigned char *map;
__attribute__((constructor(101))) static void open_map(void)
{
    const char *path = getenv("MUTANTS_COVERAGE");
    size_t size = &etext - &__executable_start;
    struct stat known;
    int file = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (file < 0) return;
    int other = fstat(file, &known) || (known.st_size && known.st_size != size);  // a program that the test starts
    if (!other && ftruncate(file, size) == 0) map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (map == MAP_FAILED) map = NULL;
    close(file);
}
void __sanitizer_cov_trace_pc(void)
{
    size_t at = (char *)__builtin_return_address(0) - &__executable_start;
    if (map && at < (size_t)(&etext - &__executable_start) && !map[at]) map[at] = 1;
}
"""

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


def word_of(row):
    """How the names of tests for the mutant's file may begin a word: resiz, of resizing.c and resizes_by_what_memory_has."""
    return os.path.basename(row["file"])[:-len(".c")][:5]


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


def become_parent():
    """Orphans of a test become children of this process, which ends them."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def output(command, directory):
    done = subprocess.run(command, shell=True, cwd=directory, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        sys.exit(f"mutants.py: {command}\n{done.stdout.decode()[-2000:]}")
    return done.stdout.decode()


def run_limited(limited):
    """What a program does before it starts: no core files, and at most MEMORY."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if limited:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))


class Coverage:
    """Which tests of a program execute which lines: its masks are {file: {line: the sum of 1 << number of a test}}. Also
    which of them pass without a mutant, and whether they do so with as much memory as others."""

    def __init__(self, source, build, names, environment, patience):
        self.source, self.build, self.environment, self.patience = source, build, environment, patience
        self.programs = {}
        with multiprocessing.Pool(initializer=become_parent) as pool:
            for name, known in pool.imap_unordered(self.measure, names):
                self.programs[name] = known

    @staticmethod
    def is_broken(known):
        """No test of the program passes, though some end."""
        return not known["passed"] and min(known["seconds"], default=math.inf) < known["patience"]

    def measure(self, name):
        kept, program = os.path.join(self.build, name + ".coverage"), os.path.join(self.build, name)
        version = zlib.crc32(read(program, "rb"))
        known = json.loads(read(kept)) if os.path.exists(kept) else {"version": None}
        reached = known["version"] == version and min(self.patience, max(known["seconds"], default=0)) <= known["patience"]
        if not reached or self.is_broken(known):  # perhaps what its tests need is there now
            names = [line.split()[0] for line in output(f"{program} --list", self.build).splitlines()]
            runs = [self.run(program, test, True) for test in names]
            failed = [test for test, run in zip(names, runs) if run[0] not in (0, None)]
            again = {test: self.run(program, test, False)[0] for test in failed}
            known = {"version": version, "patience": self.patience, "tests": names, "seconds": [run[1] for run in runs],
                     "passed": [test for test, run in zip(names, runs) if again.get(test, run[0]) == 0],
                     "limited": 0 not in again.values(), "lines": self.lines_of(program, [run[2] for run in runs])}
            write(kept, json.dumps(known))
        known["lines"] = {path: {int(line): mask for line, mask in lines.items()} for path, lines in known["lines"].items()}
        return name, known

    def run(self, program, test, limited):
        """Its status, None: it did not end; how long it took; the offsets of the blocks that it ran."""
        path = f"{program}.{test}.map"
        began = time.monotonic()
        running = subprocess.Popen([program, test], cwd=self.build, env=dict(self.environment, MUTANTS_COVERAGE=path),
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   start_new_session=True, preexec_fn=lambda: run_limited(limited))
        status = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = running.wait(self.patience)  # a longer test is known by what it did until then
        end_children(running)
        hits = [match.start() for match in re.finditer(rb"\x01", read(path, "rb"))] if os.path.exists(path) else []
        if os.path.exists(path):
            os.remove(path)
        return 0 if status == 77 else status, round(time.monotonic() - began, 2), hits

    def lines_of(self, program, runs):
        """A block is what follows a call of the recorder, until the next one."""
        recorder = int(output(f"nm {program} | grep ' T __sanitizer_cov_trace_pc$'", self.build).split()[0], 16)
        code = read(program, "rb")
        first, size, offset = self.text_of(program)
        starts = []  # of blocks: where the recorder returns to
        for match in re.finditer(rb"\xe8", code[offset:offset + size]):
            after = first + match.end() + 4
            at = offset + match.end()
            if (after + int.from_bytes(code[at:at + 4], "little", signed=True)) & 0xffffffff == recorder:
                starts.append(after)
        masks = collections.Counter()
        for number, hits in enumerate(runs):
            for hit in hits:
                masks[hit] |= 1 << number
        found = {}
        for address, path, line in self.rows_of(program):
            at = bisect.bisect(starts, address + 5) - 1  # the call itself belongs to its block
            lines = found.setdefault(path, {}) if path.startswith(TREES) and path.endswith(".c") else {}
            lines[line] = lines.get(line, 0) | (masks[starts[at]] if at >= 0 else 0)
        return {path: lines for path, lines in found.items() if lines}

    def text_of(self, program):
        """Address, size and place in the file of its code."""
        words = output(f"objdump --headers --section=.text {program} | grep ' \\.text '", self.build).split()
        return int(words[3], 16), int(words[2], 16), int(words[5], 16)

    def rows_of(self, program):
        """Addresses with their files and lines. -w: the first file of an object with its directory."""
        path = ""
        for line in output(f"objdump --dwarf=decodedline -w {program}", self.build).splitlines():
            words = line.split()
            if line.endswith(":") and words[0] in ("CU:", line):
                path = os.path.relpath(os.path.join(self.build, words[-1][:-1]), self.source)
            elif len(words) > 2 and words[1].isdigit() and words[2].startswith("0x") and path.endswith("/" + words[0]):
                yield int(words[2], 16), path, int(words[1])

    def tests_for(self, row, text):
        """{program: names of tests} that execute the mutant's lines; None for all of the programs with its file."""
        lines = text.split("\n")
        first, last = row["line"], row["line"] + row["was"].count("\n")
        for begin, end in ((first, last), (self.last_before(lines, first, "{"), self.first_after(lines, last, "}")),
                           (1, len(lines))):
            found = {}
            for name, known in self.programs.items():
                masks = [mask for line, mask in known["lines"].get(row["file"], {}).items() if begin <= line <= end]
                if masks:
                    found[name] = functools.reduce(operator.or_, masks)
            if found:
                return {name: [test for number, test in enumerate(self.programs[name]["tests"]) if mask >> number & 1]
                        for name, mask in found.items() if mask}
        return None

    @staticmethod
    def last_before(lines, at, brace):
        """Of a function's braces, which stand alone at the start of a line; the line itself outside of functions."""
        above = next((n for n in range(at, 0, -1) if lines[n - 1] in ("{", "}")), 0)
        return above if above and lines[above - 1] == brace else at

    @staticmethod
    def first_after(lines, at, brace):
        below = next((n for n in range(at, len(lines) + 1) if lines[n - 1] in ("{", "}")), 0)
        return below if below and lines[below - 1] == brace else at

    def seconds(self, name, tests):
        known = self.programs[name]
        return sum(known["seconds"][known["tests"].index(test)] for test in tests)

    def within(self, name, tests, seconds, word):
        """Those with the word in their names, then the quickest of them that take no longer together; at least one."""
        tests = sorted(tests, key=lambda test: (word not in test, self.seconds(name, [test])))
        totals = itertools.accumulate(self.seconds(name, [test]) for test in tests)
        return tests[:max(1, sum(total <= seconds for total in totals))]


class Tree:
    """The copy, its build, and the programs in it."""

    def __init__(self, out, patience):
        self.out, self.source, self.build = out, os.path.join(out, "source"), os.path.join(out, "source", "build")
        self.patience = patience
        self.copy()
        self.configure()
        silent = "make --silent --no-print-directory "
        listed = re.findall(r"tests/(?:unit|engine)/\S+", output(silent + "print-tests", self.build))
        # Some draw digits, with a program of the build.
        output(f"make --quiet -j$(nproc) check TESTS= bin_PROGRAMS= noinst_PROGRAMS=fsdpd-digits "
               f"check_PROGRAMS='{' '.join(listed)}'", self.build)
        environment = output(silent + "--eval='environment:; @$(AM_TESTS_ENVIRONMENT) env' environment", self.build)
        self.environment = dict(line.split("=", 1) for line in environment.splitlines() if "=" in line)
        # A line for each test as it ends, so that the first failure suffices.
        self.environment.update(CK_TAP_LOG_FILE_NAME="-", CK_VERBOSITY="silent")
        self.objects = self.find_objects()
        self.texts = {name: read(path) if os.path.exists(path) else ""  # of some for CUDA the text is another's
                      for name in listed for path in [os.path.join(SOURCE, name + ".c")]}
        self.symbols = {name: self.symbols_of(name) for name in listed}
        self.coverage = Coverage(self.source, self.build, listed, self.environment, patience)
        self.clean = {name: {"limited": known["limited"], "tests": set(known["passed"])}
                      for name, known in self.coverage.programs.items()}
        for name, known in sorted(self.coverage.programs.items()):
            if self.coverage.is_broken(known):
                print(f"{name}: no test passes without a mutant", flush=True)

    def configure(self):
        os.makedirs(self.build, exist_ok=True)
        recorder = os.path.join(self.out, "recorder")
        write(recorder + ".c", RECORDER)
        output(f"cc -O2 -c {recorder}.c -o {recorder}.o", self.out)
        linker = next((f"-fuse-ld={name}" for name in ("lld", "gold") if shutil.which("ld." + name)), "")
        if not os.path.exists(os.path.join(self.build, "Makefile")):
            output(f"(test -e ../configure || (cd .. && ./autogen.sh)) && {self.source}/configure --quiet --without-cuda "
                   f"CFLAGS='-Og -g1 -fsanitize-coverage=trace-pc' CXXFLAGS=-O1 LDFLAGS={linker} LIBS={recorder}.o",
                   self.build)

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

    def make(self, *targets):
        """Programs without their lines, which takes less time."""
        command = ["make", "--quiet", "--keep-going", f"-j{os.cpu_count()}", "AM_LDFLAGS=-pthread -Wl,-S", *targets]
        return subprocess.run(command, cwd=self.build, check=False, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL).returncode == 0

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
        lines = output(f"nm --extern-only --defined-only --format=posix {binary}", self.build).splitlines()
        return {line.split()[0] for line in lines if " " in line} - {"main"}

    def code_of(self, name):
        """An object without its debugger's lines."""
        stripped = os.path.join(self.out, "stripped.o")
        output(f"objcopy --strip-debug {name} {stripped}", self.build)
        return read(stripped, "rb")

    def passes(self, program, tests):
        """Whether these pass without a mutant, with as much memory as others; forgets them if they fail."""
        failure = not self.make(program) or self.run(program, tests, 600, True) and self.run(program, tests, 600, False)
        if not failure:
            return self.clean[program]["limited"]
        print(f"{program} fails without a mutant: {failure}", flush=True)
        known = self.coverage.programs[program]
        for lines in known["lines"].values():  # the test, or all of these, executes nothing any more
            for line in lines:
                for test in [failure] if failure in known["tests"] else tests:
                    lines[line] &= ~(1 << known["tests"].index(test))
        return False

    def run(self, program, tests, patience, limited):
        """Returns what failed first. If nothing did, remembers that these tests pass, but for long ones, which end early:
        each round of a test in a loop may be quick."""
        running = subprocess.Popen([os.path.join(self.build, program), *tests], cwd=self.build, env=self.environment,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                   start_new_session=True, preexec_fn=lambda: run_limited(limited))
        began = last = time.monotonic()
        text, failed = b"", None
        try:
            while running.poll() is None and not failed:
                if time.monotonic() - last > patience:
                    return "hangs"
                if time.monotonic() - began > 3 * patience:
                    return None
                if not select.select([running.stdout], [], [], 0.1)[0]:
                    continue
                piece = os.read(running.stdout.fileno(), 1 << 16)
                if not piece:
                    time.sleep(0.05)
                elif b"ok " in piece:
                    last = time.monotonic()
                text = text[-1000:] + piece
                failed = FAILED.search(text)
        finally:
            end_children(running)
            failed = failed or FAILED.search(text + running.stdout.read())
            running.stdout.close()
        if failed or running.returncode not in (0, 77):
            return failed[1].decode() if failed else f"status {running.returncode}"
        clean = self.clean[program]
        clean.update(limited=clean["limited"] and limited, tests=clean["tests"].union(tests))
        return None

    def programs_for(self, row, text):
        """Pairs of a program and those of its tests that execute the mutant's lines, most relevant first: by name, by what
        they include, by their tests' names, by their time."""
        stem, word = os.path.basename(row["file"][:-len(".c")]), word_of(row)
        tests = self.coverage.tests_for(row, text)
        if tests is None:
            symbols = set().union(*map(self.symbols_of, self.objects[row["file"]]))
            tests = {name: self.coverage.programs[name]["tests"] for name in self.symbols if symbols & self.symbols[name]}

        def rank(name):
            return (not name.endswith("test_" + stem), re.search(rf'["/]{stem}\.h"', self.texts[name]) is None,
                    not any(word in test for test in tests[name]),
                    self.coverage.seconds(name, tests[name]))
        return [(name, tests[name]) for name in sorted(tests, key=rank)]

    def try_mutant(self, row):
        """Fills in the row: result, by, tests, of."""
        path = os.path.join(self.source, row["file"])
        objects = self.objects[row["file"]]
        text, times, code = read(path), os.stat(path), list(map(self.code_of, objects))
        clean = [read(os.path.join(self.build, name), "rb") for name in objects]
        mutated = apply(text, row)
        if mutated is None:
            row["result"] = "gone"
            return
        programs = self.programs_for(row, text)
        try:
            write(path, mutated)
            if not self.make(*objects):
                row["result"] = "does not compile"
            elif code == list(map(self.code_of, objects)):
                row["result"] = "same code"
            else:
                row.update(result="survived", tests=0, of=sum(len(tests) for _, tests in programs))
                failed = self.notice(row, programs)
        finally:
            for name, content in zip(objects, clean):
                write(os.path.join(self.build, name), content)
            write(path, text)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        if row["result"] == "noticed":
            program, tests = failed
            if not self.clean[program]["tests"].issuperset(tests) and not self.passes(program, tests):
                del row["by"]
                self.try_mutant(row)

    def notice(self, row, programs):
        """Returns the program that failed, and the tests of it that may have."""
        left, linked = self.patience, 0
        for number, (program, tests) in enumerate(programs):
            if left <= 0:
                return None
            if number >= linked:  # 1 program, then 2, 4, ... are linked
                linked = 2 * number + 1
                if not self.make(*(name for name, _ in programs[number:linked])):
                    row["result"] = "does not link"
                    return None
            tests = self.coverage.within(program, tests, left, word_of(row))
            seconds = self.coverage.seconds(program, tests)
            failure = self.run(program, tests, 4 * seconds + 15, self.clean[program]["limited"])
            if failure:
                row.update(result="noticed", by=f"{program} {failure}")
                return program, [failure] if failure in tests else tests
            row["tests"] += len(tests)
            left -= seconds + TO_LINK
        return None


def table(rows):
    lines = ["| room | mutants | noticed | survivors |", "| --- | --- | --- | --- |"]
    for room in rooms_in_order() + ["all"]:
        results = [row["result"] for row in rows if room in (row["room"], "all")]
        noticed, survived = results.count("noticed"), results.count("survived")
        if noticed + survived:
            lines.append(f"| {room} | {noticed + survived} | {noticed} | {survived} |")
    lines += [f"{row['file']}:{row['line']}: {row['change']} (in `{' '.join(row['was'].split())}`; "
              f"{row['tests']} of {row['of']} tests)" for row in rows if row["result"] == "survived"]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=300, help="mutants that compile and change the code")
    parser.add_argument("--rooms", default="", help="such as common/base,daemon/train; all by default")
    parser.add_argument("--time-limit", type=float, default=float("inf"), help="seconds; no mutant begins after that")
    parser.add_argument("--patience", type=float, default=20, help="seconds of tests that a mutant runs")
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
        tree.try_mutant(row)
        row["seconds"] = round(time.monotonic() - began, 1)
        rows[row["draw"]] = row
        with open(results, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        write(os.path.join(arguments.out, "table.md"), table(drawn()))
        print(f"{row['result']}: {row['file']}:{row['line']}: {row['change']} ({row.get('by', '')})", flush=True)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    become_parent()
    tree = Tree(arguments.out, arguments.patience)
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
