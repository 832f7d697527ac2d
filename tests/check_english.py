#!/usr/bin/env python3
"""Fails when comments, messages, identifiers or documents use a phrase that tests/english.txt replaces.

In C and proto files the rows of [text] apply to comments and strings, those of [names] to the rest; all other files
are text.
"""
import os
import re
import sys

PHRASES = "tests/english.txt"
TREES = ("bench", "client", "common", "daemon", "debian", "docs", "examples", "kernels", "proto", "scripts", "systemd",
         "tests", "README.md", "CONTRIBUTING.md")
SUFFIXES_C = (".c", ".h", ".cc", ".cu", ".cuh", ".proto")
SUFFIXES = SUFFIXES_C + (".md", ".py", ".sh", ".mk", ".yaml", ".service")
NOT_TEXT = (PHRASES, "tests/check_english.py", "tests/test_rules.py")  # they quote the phrases
TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
VISIBLE = re.compile(r"\S")
BETWEEN_WORDS = str.maketrans("*#\"", "   ")  # in a comment or a split string


def required_letters(expression):
    """Letters and spaces that every match contains, so that most files need no search; "" if none are certain."""
    rest, outer = expression, None
    while rest != outer:  # innermost groups first
        outer, rest = rest, re.sub(r"\((?:[^()\\]|\\.)*\)[?*+]?", "#", rest)
    if "|" in rest:
        return ""
    certain = re.sub(r"\[[^]]*\]|\\.|.[?*]", "#", rest)
    return max(re.findall("[a-z ]*", certain.lower()), key=len)


def read_phrases():
    """The rows of each section: letters of every match, compiled expression, better wording."""
    sections, rows = {}, None
    with open(PHRASES, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            line = line.strip()
            if line in ("[text]", "[names]"):
                rows = sections.setdefault(line[1:-1], [])
            elif line and not line.startswith("#"):
                expression, arrow, better = line.partition(" => ")
                if not arrow or rows is None:
                    sys.exit(f"{PHRASES}:{number}: expected [text], [names] or EXPRESSION => WORDING")
                rows.append((required_letters(expression), re.compile(expression.replace(" ", r'[\s*#"]+'), re.I), better))
    return sections


def split_c(content):
    """The text of comments and strings, and the code, each blank where the other is."""
    text, code, end = [], [], 0
    for match in TOKEN.finditer(content):
        before = content[end:match.start()]
        text += [VISIBLE.sub("\0", before), match[0]]
        code += [before, VISIBLE.sub(" ", match[0])]
        end = match.end()
    return "".join(text), "".join(code) + content[end:]


def list_files():
    for tree in TREES:
        if os.path.isfile(tree):
            yield tree
        for folder, _, names in os.walk(tree):
            for name in sorted(names):
                path = os.path.join(folder, name)
                if name.endswith(SUFFIXES) and path not in NOT_TEXT:
                    yield path


def find(rows, text, original):
    for _, expression, better in rows:
        for match in expression.finditer(text):
            found = " ".join(re.sub(r'[\s*#"]+', " ", match[0]).split())
            yield original.count("\n", 0, match.start()) + 1, f'"{found}": better: {better}'


def check(path, phrases):
    with open(path, encoding="utf-8", errors="replace") as file:
        content = file.read()
    letters = f" {' '.join(content.lower().translate(BETWEEN_WORDS).split())} "

    def possible(section):
        return [row for row in phrases[section] if row[0] in letters and row[1].search(content)]

    rows = possible("text")
    if not path.endswith(SUFFIXES_C):
        return sorted(find(rows, content, content))
    names = possible("names")
    if not rows and not names:
        return []
    text, code = split_c(content)
    return sorted([*find(rows, text, content), *find(names, code, content)])


def main():
    os.chdir(os.environ.get("srcdir", "."))
    phrases, found, files = read_phrases(), 0, 0
    for path in list_files():
        files += 1
        for line, what in check(path, phrases):
            found += 1
            print(f"{path}:{line}: {what}")
    if not files:
        sys.exit("no files found")
    print(f"{files} files, {found or 'no'} phrase{'s' if found > 1 else ''} of {PHRASES}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
