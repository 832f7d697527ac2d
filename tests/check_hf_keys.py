#!/usr/bin/env python3
"""The tables of docs/hugging-face.md of the keys of config.json are the lists in families/*.yaml and common/hf/known.c.
With --write it writes them."""
import os
import re
import sys

PAGE, KNOWN = "docs/hugging-face.md", "common/hf/known.c"
BEGIN, END = "<!-- keys: tests/check_hf_keys.py --write -->\n", "<!-- end of keys -->\n"


def items(flow, name):
    """The items of a list in a flow mapping, or None."""
    found = re.search(rf"\b{name}: \[(.*?)\]", flow)
    return found and [item.strip().strip("'\"") for item in found[1].split(",") if item.strip()]


def code(words):
    return ", ".join(f"`{word}`" for word in words) or "-"


def configs(text):
    """{"": {key: entry}} of a file, and of each of its heads under its name; a head that it takes away is None."""
    found, path, entries = {}, [], None
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip(" "))
        part = re.match(r" *(\w+):\s*(.*)$", line)
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if entries is not None and indent > 2 * len(path):  # a further line of an entry
            entries[last] += " " + line.strip()
            continue
        path, entries = path[:indent // 2], None
        if not part:
            continue
        if path == ["config"] or (len(path) == 3 and path[0] == "heads" and path[2] == "config"):
            entries, last = found.setdefault("".join(path[1:2]), {}), part[1]
            entries[last] = part[2]
        elif part[2] == "~" and (path + [part[1]])[0] == "heads":
            found["".join(path[1:] + [part[1]]) if path else None] = None
        if entries is None:
            path.append(part[1])
    return found


def inherit(base, changes):
    """The entries of a base with a file's changes, in the order of common/hf/like.c."""
    merged, at, place = list(base.items()), 0, False
    for key, entry in changes.items():
        found = [name for name, _ in merged].index(key) if key in dict(merged) else None
        before = found is not None and merged.pop(found)
        if entry == "~":
            at = found
        elif entry == "" or not (place or found is None):
            merged.insert(found, (key, entry) if entry else before)
            at = found + 1
        else:
            at -= found is not None and found < at
            merged.insert(at, (key, entry))
            at += 1
        place = entry == ""
    return dict(merged)


def read_family(name):
    """The configs and the harmless keys of a family, with those of the one that it is like."""
    with open(os.path.join("families", name + ".yaml"), encoding="utf-8") as file:
        text = file.read()
    own, like = configs(text), re.search(r"^like: (\w+)", text, re.MULTILINE)
    harmless = re.search(r"^harmless: \[(.*?)\]", text, re.MULTILINE | re.DOTALL)
    if bool(re.search(r"^harmless:", text, re.MULTILINE)) != bool(harmless) or not ("" in own or like):
        sys.exit(f"{name}: the file has a form that {sys.argv[0]} does not read")
    words = [word.strip() for word in harmless[1].split(",")] if harmless else []
    if like:
        base, inherited = read_family(like[1])
        pairs = re.search(r"^rename: \{(.*)\}", text, re.MULTILINE)
        for pair in pairs[1].split(", ") if pairs else []:
            before, after = pair.split(": ")
            base = {re.sub(r"^" + before, after, head): entries for head, entries in base.items()}
        if None in own:
            base = {"": base[""]}
        own = {head: own.get(head, {}) if head not in base else inherit(base[head], own.get(head, {}))
               for head in (*base, *(head for head in own if head not in base)) if own.get(head, {}) is not None}
        words = words or inherited
    return own, words


def family_row(name):
    """| model_type | applied | those of which some values are | harmless |"""
    applied, limited = [], []
    sections, words = read_family(name)
    for key, flow in ((key, flow) for entries in sections.values() for key, flow in entries.items()):
        places = items(flow, "at")
        keys = [key] if places is None else places
        values = items(flow, "supported")
        if values is None:
            applied += keys
        elif keys:
            limited.append(" or ".join(f"`{key}`" for key in keys) + f" ({', '.join(values)})")
    with open(os.path.join("families", name + ".yaml"), encoding="utf-8") as file:
        kinds = re.search(r"^model_type: (.+)", file.read(), re.MULTILINE)[1].strip("[]").split(", ")
    return f"| {code(kinds)} | {code(dict.fromkeys(applied))} | {', '.join(dict.fromkeys(limited)) or '-'} | {code(words)} |\n"


def array(text, name):
    """The body of an array of known.c, without comments."""
    body = re.search(rf"\b{name}\[\] = \{{\n(.*?)\n\}};", text, re.DOTALL)[1]
    return re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL)


def tables():
    rows = []
    for name in sorted(os.listdir("families")):
        if name.endswith(".yaml"):
            rows.append(family_row(name[:-5]))
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
