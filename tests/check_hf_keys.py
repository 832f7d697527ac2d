#!/usr/bin/env python3
"""The tables of docs/hugging-face.md of the keys of config.json are the lists in families/*.yaml and common/hf/known.c.
With --write it writes them."""
import os
import re
import sys

PAGE, KNOWN = "docs/hugging-face.md", "common/hf/known.c"
BEGIN, END = "<!-- keys: tests/check_hf_keys.py --write -->\n", "<!-- end of keys -->\n"
ENTRY = re.compile(r"^ +(\w+): (\{type: .*\}) *(?:#.*)?$", re.MULTILINE)


def items(flow, name):
    """The items of a list in a flow mapping, or None."""
    found = re.search(rf"\b{name}: \[(.*?)\]", flow)
    return found and [item.strip().strip("'\"") for item in found[1].split(",") if item.strip()]


def code(words):
    return ", ".join(f"`{word}`" for word in words) or "-"


def family_row(text):
    """| model_type | applied | those of which some values are | harmless |"""
    applied, limited = [], []
    entries = ENTRY.findall(text)
    for name, flow in entries:
        places = items(flow, "at")
        keys = [name] if places is None else places
        values = items(flow, "supported")
        if values is None:
            applied += keys
        elif keys:
            limited.append(" or ".join(f"`{key}`" for key in keys) + f" ({', '.join(values)})")
    kind = re.search(r"^model_type: (\S+)", text, re.MULTILINE)[1]
    harmless = re.search(r"^harmless: \[(.*?)\]", text, re.MULTILINE | re.DOTALL)
    named = re.search(r"^harmless:(.*)", text, re.MULTILINE)
    if bool(named) != bool(harmless) or len(entries) < 3:
        sys.exit(f"{kind}: the file has a form that {sys.argv[0]} does not read")
    words = [word.strip() for word in harmless[1].split(",")] if harmless else []
    return f"| `{kind}` | {code(dict.fromkeys(applied))} | {', '.join(dict.fromkeys(limited)) or '-'} | {code(words)} |\n"


def array(text, name):
    """The body of an array of known.c, without comments."""
    body = re.search(rf"\b{name}\[\] = \{{\n(.*?)\n\}};", text, re.DOTALL)[1]
    return re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL)


def tables():
    rows = []
    for name in sorted(os.listdir("families")):
        if name.endswith(".yaml"):
            with open(os.path.join("families", name), encoding="utf-8") as file:
                rows.append(family_row(file.read()))
    with open(KNOWN, encoding="utf-8") as file:
        known = file.read()
    refused = re.findall(r'\{"(\w+)", \w+,\s*"([^"]+)"\}', array(known, "refused"))
    harmless = re.findall(r'"(\w+)"', array(known, "harmless"))
    if len(rows) < 20 or len(refused) < 5 or len(harmless) < 50:
        sys.exit(f"found only {len(rows)} families, {len(refused)} refused and {len(harmless)} harmless keys")
    return ("| `model_type` | applied | applied, with these values alone | harmless |\n| --- | --- | --- | --- |\n" +
            "".join(rows) + "\nIn every family whose row lacks them, these are refused:\n\n| key | why |\n| --- | --- |\n" +
            "".join(f"| `{key}` | {why} |\n" for key, why in refused) +
            f"\nand these are harmless: {code(harmless)}.\n")


def main():
    os.chdir(os.environ.get("srcdir", "."))
    with open(PAGE, encoding="utf-8") as file:
        page = file.read()
    before, rest = page.split(BEGIN)
    present, after = rest.split(END)
    expected = tables()
    if "--write" in sys.argv[1:]:
        with open(PAGE, "w", encoding="utf-8") as file:
            file.write(before + BEGIN + expected + END + after)
        return 0
    if present == expected:
        print(f"{PAGE} has the keys of {len(os.listdir('families')) - 1} families")
        return 0
    lines = set(present.splitlines()) ^ set(expected.splitlines())
    for line in sorted(lines, key=lambda line: line.split("|")[1:2]):
        print(("only in the page: " if line in present.splitlines() else "not in the page: ") + line)
    print(f"{PAGE}: its tables of keys are not the lists of families and {KNOWN}: tests/check_hf_keys.py --write")
    return 1


if __name__ == "__main__":
    sys.exit(main())
