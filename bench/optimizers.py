#!/usr/bin/env python3
"""The measurement of bench/optimizers.sh; see there."""

import argparse
import json
import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tests/system"))
import harness

JOB = os.path.join(harness.SOURCE, "examples/shakespeare/job.yaml")
PAGE = os.path.join(harness.SOURCE, "docs/optimizers.md")
BEGIN, END = "<!-- bench/optimizers.sh -->", "<!-- end -->"
ADAMW = "type: adamw, beta2: 0.99, weight_decay: 0.1, groups: [{match: '*ln_*.weight', weight_decay: 0}]"
CASES = (  # name, settings of `optimizer`, rates
    ("AdamW", ADAMW, (2e-3, 4e-3)),
    ("AdamW, 8 bits", ADAMW + ", state_dtype: int8", (2e-3, 4e-3)),
    ("Muon and AdamW", "type: muon, adjust_lr_fn: match_rms_adamw, weight_decay: 0.1, "
     "others: {type: adamw, beta2: 0.99, lr: LR}", (2e-3, 4e-3)),
    ("Adafactor", "type: adafactor", (0.05, 0.1)),
)
COLOURS = ("#1b6ac9", "#888888", "#2b9348", "#d9822b")


def curve(daemon, path, options, settings, rate):
    """The validation losses as [(step, loss)], and the plan's bytes of optimizer state."""
    optimizer = "optimizer={" + settings.replace("LR", f"{rate:g}") + f", lr: {rate:g}}}"
    sets = [optimizer, f"data.path={path}", f"train.max_steps={options.steps}",
            f"train.evaluate_interval={options.interval}", "train.evaluate_batches=20", "save_model=false"]
    words = [word for setting in sets for word in ("--set", setting)]
    daemon.ctl("submit", JOB, *words, "--wait", timeout=3600, check=True)
    job = daemon.json("list")[-1]["id"]
    watched = daemon.ctl("watch", job, "-o", "json", check=True)
    events = [json.loads(line) for line in watched.stdout.splitlines()]
    rows = sum(row["bytes"] for row in daemon.show(job)["plan"]["programs"][0]["memory"]
               if row["name"] == "optimizer state")
    return [(event["validation"]["step"], event["validation"]["loss"])
            for event in events if "validation" in event], rows


def measured(daemon, path, options):
    """By name: (rate, curve, bytes) of the rate whose last loss is the least."""
    found = {}
    for name, settings, rates in CASES:
        if options.only and name not in options.only:
            continue
        for rate in rates:
            points, kept = curve(daemon, path, options, settings, rate)
            print(f"{name}, lr {rate:g}: {points[-1][1]:.4f}", file=sys.stderr, flush=True)
            if name not in found or points[-1][1] < found[name][1][-1][1]:
                found[name] = (rate, points, kept)
    return found


def reached(points, loss):
    """The first evaluated step with at most that loss."""
    return next((step for step, value in points if value <= loss), None)


def table(found, options):
    rows = [f"| optimizer | better `lr` | loss after {options.steps // 4} | "
            f"{options.steps // 2} | {options.steps} steps | steps to AdamW's last loss | state per rank |",
            "| --- | --- | --- | --- | --- | --- | --- |"]
    goal = found["AdamW"][1][-1][1] if "AdamW" in found else None
    for name, (rate, points, kept) in found.items():
        at = dict(points)
        losses = " | ".join(f"{at[options.steps // part]:.3f}" if options.steps // part in at else "-"
                            for part in (4, 2, 1))
        steps = reached(points, goal) if goal is not None else None
        rows.append(f"| {name} | {rate:g} | {losses} | {steps if steps else 'not reached'} | "
                    f"{kept / 1e6:.2f} MB |")
    return "\n".join(rows)


def plot(found, options):
    width, height, edge = 640, 400, 48
    losses = [loss for _, points, _ in found.values() for _, loss in points]
    low, high = int(min(losses) * 5) / 5, int(max(losses) * 5 + 1) / 5

    def across(step):
        return edge + step / options.steps * (width - 2 * edge)

    def down(loss):
        return height - edge - (loss - low) / (high - low) * (height - 2 * edge)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
             'font-family="sans-serif" font-size="12">',
             f'<rect width="{width}" height="{height}" fill="white"/>']
    for k in range(round((high - low) * 5) + 1):
        loss = low + k / 5
        parts.append(f'<path d="M{edge} {down(loss):.1f}H{width - edge}" stroke="#ddd"/><text x="{edge - 6}" '
                     f'y="{down(loss) + 4:.1f}" text-anchor="end">{loss:.1f}</text>')
    for k in range(5):
        step = options.steps * k // 4
        parts.append(f'<text x="{across(step):.1f}" y="{height - edge + 18}" text-anchor="middle">{step}</text>')
    for row, (name, (rate, points, _)) in enumerate(found.items()):
        line = " ".join(f"{across(step):.1f},{down(loss):.1f}" for step, loss in points)
        parts.append(f'<polyline points="{line}" stroke="{COLOURS[row]}" stroke-width="2" fill="none"/>'
                     f'<text x="{width - edge - 150}" y="{edge + 16 + 18 * row}" fill="{COLOURS[row]}">'
                     f'{name}, lr {rate:g}</text>')
    parts.append(f'<text x="{width / 2}" y="{height - 12}" text-anchor="middle">steps</text>'
                 f'<text transform="translate(14 {height / 2}) rotate(-90)" text-anchor="middle">'
                 "validation loss</text></svg>")
    return "\n".join(parts) + "\n"


def update(found, options):
    with open(PAGE) as file:
        before, rest = file.read().split(BEGIN, 1)
    with open(PAGE, "w") as file:
        file.write(f"{before}{BEGIN}\n{options.steps} steps, evaluated every {options.interval} on 240 windows.\n\n"
                   f"{table(found, options)}\n{END}{rest.split(END, 1)[1]}")
    with open(PAGE[:-2] + "svg", "w") as file:
        file.write(plot(found, options))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--interval", type=int, default=25)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--print", action="store_true", help="change no files")
    options = parser.parse_args()
    text = harness.find_shakespeare()
    if not text:
        sys.exit("tiny Shakespeare is missing: set FSDPD_SHAKESPEARE")
    with tempfile.TemporaryDirectory(prefix="fsdpd-bench-") as data:
        path = os.path.join(data, "text.txt")
        shutil.copy(text, path)
        with harness.Daemon(data=data) as daemon:
            found = measured(daemon, path, options)
    if options.print or "AdamW" not in found:
        print(table(found, options))
    else:
        update(found, options)


if __name__ == "__main__":
    main()
