#!/usr/bin/env python3
"""The measurement of bench/state_loss.sh; see there."""

import argparse
import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tests/system"))
import harness

JOB = os.path.join(harness.SOURCE, "examples/shakespeare/job.yaml")


CASES = (("`state_dtype: f32`", ["optimizer.state_dtype=f32"]),
         ("`state_dtype: bf16`", ["optimizer.state_dtype=bf16"]),
         ("`state_dtype: int8`", ["optimizer.state_dtype=int8"]),
         ("`param_dtype: bf16`", ["precision.param_dtype=bf16"]),
         ("`param_dtype: bf16`, `master_dtype: bf16`",
          ["precision.param_dtype=bf16", "precision.master_dtype=bf16"]),
         ("`param_dtype: bf16`, `master_dtype: bf16`, `state_dtype: bf16`",
          ["precision.param_dtype=bf16", "precision.master_dtype=bf16",
           "optimizer.state_dtype=bf16"]))


def validation(daemon, path, steps, seed, more):
    """The loss on the whole validation part."""
    settings = [f"data.path={path}", f"train.max_steps={steps}", f"train.evaluate_interval={steps}",
                f"train.seed={seed}", "save_model=false"] + more
    sets = [word for setting in settings for word in ("--set", setting)]
    daemon.ctl("submit", JOB, *sets, "--wait", timeout=1800, check=True)
    job = daemon.show(daemon.json("list")[-1]["id"])
    return job["metrics"]["val_loss"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1337, 1, 2])
    options = parser.parse_args()
    text = harness.find_shakespeare()
    if not text:
        sys.exit("tiny Shakespeare is missing: set FSDPD_SHAKESPEARE")
    with tempfile.TemporaryDirectory(prefix="fsdpd-bench-") as data:
        path = os.path.join(data, "text.txt")
        shutil.copy(text, path)
        print(f"| settings | validation loss after {options.steps} steps, of seeds "
              f"{', '.join(map(str, options.seeds))} | mean |")
        print("| --- | --- | --- |")
        with harness.Daemon(data=data) as daemon:
            for words, settings in CASES:
                losses = [validation(daemon, path, options.steps, seed, settings)
                          for seed in options.seeds]
                print(f"| {words} | {', '.join(f'{loss:.5f}' for loss in losses)} | "
                      f"{sum(losses) / len(losses):.5f} |", flush=True)


if __name__ == "__main__":
    main()
