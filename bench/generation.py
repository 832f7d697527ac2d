#!/usr/bin/env python3
"""The measurement of bench/generation.sh; see there."""

import argparse
import json
import os
import statistics
import tempfile
import time

import measure
import numpy
import table
import table_models

harness = measure.harness
MODELS = ("gpt2-124m", "llama-0.5b")
COLUMNS = ("model", "type", "sequences", "fsdpd", "transformers", "ratio", "prompts, tokens/s", "drawn, tokens/s")


def prompts(name, options, sequences):
    words = table_models.MODELS[name].config["vocab_size"]
    drawn = numpy.random.default_rng(1).integers(0, words, (sequences, options.prompt))
    return [",".join(map(str, row)) for row in drawn]


def our_run(job, name, dtype, sequences, options):
    """Seconds of the calls but the first, and the last report of the job."""
    sample = {"prompts": prompts(name, options, sequences), "every_steps": 1, "max_tokens": options.tokens}
    settings = ("workers=1", "fsdp.strategy=no_shard", f"precision.param_dtype={dtype}", "optimizer={type: sgd, lr: 0}",
                "train.batch_size=1", "data.context=16", f"train.sample={json.dumps(sample)}",
                f"train.max_steps={options.calls + 1}")
    with harness.Daemon(workers=1, data=os.path.dirname(job), arguments=["--threads", "1"]) as daemon:
        measure.share_priority(daemon)
        measure.run_bounded(
            [harness.FSDPCTL, "submit", job, "--wait", *(word for one in settings for word in ("--set", one))],
            options.limit, env=dict(os.environ, FSDPD_ADDRESS=daemon.address))
        events = daemon.events(daemon.json("list")[-1]["id"])
    calls = [event["sampled"] for event in events if "sampled" in event]
    assert [len(row["tokens"]) for row in calls[-1]["sequences"]] == [options.tokens] * sequences
    return [call["seconds"] for call in calls[1:]], [event["metrics"] for event in events if "metrics" in event][-1]


def their_run(name, dtype, sequences, options):
    argument = json.dumps([name, dtype, sequences, options.prompt, options.tokens, options.calls + 1])
    return json.loads(measure.run_bounded(
        [options.python, os.path.join(measure.here, "generation_torch.py"), argument], options.limit))


def measure_case(job, name, dtype, sequences, options):
    """A line of the table, and transformers' version."""
    ours, theirs, last, version = [], [], None, None
    for _ in range(options.rounds):
        seconds, last = our_run(job, name, dtype, sequences, options)
        ours += seconds
        result = their_run(name, dtype, sequences, options)
        theirs += result["seconds"][1:]
        version = result["version"]
    own, other = statistics.median(ours), statistics.median(theirs)
    cells = (name, dtype, sequences, f"{own:.3f} s", f"{other:.3f} s", f"{own / other:.2f}",
             f"{last['sample_prefill_tokens_per_second']:.1f}", f"{last['sample_tokens_per_second']:.1f}")
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    return version


def step_of(daemon, identity):
    return daemon.show(identity).get("metrics", {}).get("step", 0)


def call_meanwhile(daemon, identity, prompt, options):
    """A call every options.every seconds, for options.window seconds."""
    begin = time.monotonic()
    for call in range(int(options.window / options.every)):
        time.sleep(max(0, begin + call * options.every - time.monotonic()))
        sampled = daemon.ctl("sample", identity, "--tokens", prompt, "--max-tokens", str(options.tokens))
        assert sampled.returncode == 0, sampled.stderr
    time.sleep(max(0, begin + options.window - time.monotonic()))


def measure_cost(job, name, options):
    """What a step takes longer while there are calls, less the calls themselves: windows with and without, in turn."""
    settings = ("workers=1", "fsdp.strategy=no_shard", "train.batch_size=1", "data.context=128")
    prompt, seconds, shares = prompts(name, options, 1)[0], {False: [], True: []}, []
    with harness.Daemon(workers=1, data=os.path.dirname(job), arguments=["--threads", "1"]) as daemon:
        submitted = daemon.ctl("submit", job, *(word for one in settings for word in ("--set", one)))
        assert submitted.returncode == 0, submitted.stderr
        identity = daemon.json("list")[-1]["id"]
        daemon.wait_step(identity, 3, options.limit)
        daemon.ctl("sample", identity, "--tokens", prompt, "--max-tokens", "1")  # the first call plans a decoder
        turns = []
        for turn in range(2 * options.rounds):
            first = step_of(daemon, identity)
            if turn % 2 == 0:
                time.sleep(options.window)
            else:
                call_meanwhile(daemon, identity, prompt, options)
            turns.append((first + 1, step_of(daemon, identity), turn % 2 == 1))
        daemon.ctl("cancel", identity)
        daemon.wait_state(identity, "CANCELLED")
        rows = [event["metrics"] for event in daemon.events(identity) if "metrics" in event]
    for row, after in zip(rows, rows[1:]):
        for first, last, with_calls in turns:
            if first < after["step"] <= last:
                whole, share = after["train_seconds"] - row["train_seconds"], after.get("sample_share", 0)
                seconds[with_calls].append(whole * (1 - share))
                shares += [whole * share] if with_calls else []
    without, beside = (statistics.mean(seconds[key]) for key in (False, True))
    print(f"{name}: a step takes {without:.3f} s ({len(seconds[False])} steps), and {beside:.3f} s less the calls' "
          f"time ({len(seconds[True])} steps) with a call of {options.tokens} tokens every {options.every:.0f} s: "
          f"{100 * (beside / without - 1):+.1f} %; calls took {sum(shares):.1f} s; {measure.machine()}", flush=True)


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", help="needed without --cost")
    parser.add_argument("--models", type=table.choice(MODELS), default=MODELS)
    parser.add_argument("--dtypes", type=table.choice(("f32", "bf16")), default=["f32", "bf16"])
    parser.add_argument("--sequences", type=table.choice((1, 2, 4, 8, 16)), default=[1, 8])
    parser.add_argument("--prompt", type=int, default=64, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=64, help="tokens drawn after it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calls", type=int, default=3, help="of a round, besides the first")
    parser.add_argument("--cost", action="store_true", help="measure what calls cost a job that trains, instead")
    parser.add_argument("--window", type=float, default=40, help="seconds with or without calls, with --cost")
    parser.add_argument("--every", type=float, default=10, help="seconds from call to call, with --cost")
    parser.add_argument("--limit", type=float, default=600, help="of a run, in seconds; it is ended then")
    return parser.parse_args()


def main():
    options = parse()
    measure.require_quiet(False)
    for name in options.models if options.cost else ():
        with tempfile.TemporaryDirectory() as work:
            measure_cost(table.write_job(work, name), name, options)
    if options.cost:
        return
    print("| " + " | ".join(COLUMNS) + " |\n" + "| --- " * len(COLUMNS) + "|", flush=True)
    version = None
    for name in options.models:
        with tempfile.TemporaryDirectory() as work:
            job = table.write_job(work, name)
            for dtype in options.dtypes:
                for sequences in options.sequences:
                    version = measure_case(job, name, dtype, sequences, options)
    print(f"\n{options.prompt} tokens of prompts, {options.tokens} drawn; {version}; {measure.machine()}")


if __name__ == "__main__":
    main()
