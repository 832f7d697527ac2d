"""The data of bench/table.sh, docs/benchmarks.json, and the page that is made of it. The data is a list of
cases: a model, type and number of processes on a machine, with what every program took. A newer
measurement of a case replaces the older one as a whole, because only programs of one run are compared."""

import json
import os
import re

PROGRAMS = {1: ("fsdpd", "eager", "compiled"), 2: ("fsdpd", "ddp", "fsdp2")}
BEGIN, END = "<!-- bench/table.sh -->", "<!-- end -->"
HEADER = ("| model | type | processes | program | step | rate | of the product rate | memory | fsdpd / it | date |\n"
          "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
OPS = 6  # that are named for a case that loses


def key(case):
    return case["machine"], case["model"], case["type"], case["processes"]


def load(path):
    if not os.path.exists(path):
        return []
    with open(path) as file:
        return json.load(file)


def store(path, cases):
    """One line per case, so that a change of one is a change of one line."""
    with open(path + ".new", "w") as file:
        file.write("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")
    os.rename(path + ".new", path)


def merge(cases, case):
    """Puts the case in the place of its older measurement, or at the end."""
    for index, older in enumerate(cases):
        if key(older) == key(case):
            cases[index] = case
            return
    cases.append(case)


def ratio(case, program):
    """fsdpd's step over the program's, or None."""
    steps = [case["programs"].get(name, {}).get("seconds") for name in ("fsdpd", program)]
    return steps[0] / steps[1] if all(steps) else None


def rows(case):
    for program in PROGRAMS[case["processes"]]:
        start = f"| {case['model']} | {case['type']} | {case['processes']} | {program} | "
        result = case["programs"].get(program, {"not_run": "not run"})
        if "not_run" in result:
            yield start + f"{result['not_run']} | | | | | {case['date']} |"
            continue
        seconds = result["seconds"]
        share = case["flops"] / seconds / case["product_rate"]
        compared = f"{ratio(case, program):.2f}" if program != "fsdpd" and ratio(case, program) else ""
        yield start + (f"{seconds * 1e3:,.1f} ms | {case['samples'] / seconds:,.0f} {case['unit']}/s | {share:.0%} | "
                       f"{result['resident'] / 1e6:,.0f} MB | {compared} | {case['date']} |")


def losses(case):
    """Lines for the programs that are faster than fsdpd: by how much, and fsdpd's longest ops."""
    for program in PROGRAMS[case["processes"]][1:]:
        compared = ratio(case, program)
        if compared and compared > 1:
            step = case["programs"]["fsdpd"]["seconds"]
            ops = ", ".join(f"{op} {seconds / step:.0%}" for op, seconds in case.get("ops", ())[:OPS])
            yield (f"- {case['model']}, {case['type']}, {case['processes']} × {program}: {compared:.2f}" +
                   (f"; of fsdpd's step: {ops}" if ops else ""))


def span(numbers):
    return " to ".join(map(str, sorted({min(numbers), max(numbers)})))


def conditions(cases):
    """How each model was measured."""
    for model in dict.fromkeys(case["model"] for case in cases):
        group = [case for case in cases if case["model"] == model]
        versions = " and ".join(dict.fromkeys(case["torch"] for case in group))
        rounds, steps = (span({case[name] for case in group}) for name in ("rounds", "steps"))
        rates = {case["type"]: case["product_rate"] for case in group}
        products = " and ".join(f"{rate / 1e9:,.0f} GFLOP/s in {dtype}" for dtype, rate in rates.items())
        yield (f"- {model}: PyTorch {versions}; rounds: {rounds}, of {steps} steps; load up to "
               f"{max(case['load'] for case in group):.1f}; products of one thread: {products}")


def render(cases):
    """The tables, a machine after the other."""
    parts = []
    for machine in dict.fromkeys(case["machine"] for case in cases):
        here = [case for case in cases if case["machine"] == machine]
        parts.append(f"## {machine}\n")
        parts.append("\n".join((HEADER, *(row for case in here for row in rows(case)))) + "\n")
        parts.append("\n".join(conditions(here)) + "\n")
        lost = [line for case in here for line in losses(case)]
        if lost:
            parts.append("Where fsdpd is slower:\n\n" + "\n".join(lost) + "\n")
    return "\n".join(parts)


def update(path, cases):
    with open(path) as file:
        page = file.read()
    with open(path, "w") as file:
        file.write(re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n{render(cases)}\n{END}", page, flags=re.S))
