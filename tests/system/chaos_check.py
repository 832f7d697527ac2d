"""Checks after the chaos of chaos.py: every job, the store, the machine."""

import collections
import json
import os
import signal
import sqlite3
import stat
import time

import harness

OVER = ("SUCCEEDED", "FAILED", "CANCELLED")

# The states that may follow each state.
FOLLOWS = {
    None: ("QUEUED",),
    "QUEUED": ("QUEUED", "STARTING", *OVER),
    "STARTING": ("STARTING", "RUNNING", "PAUSED", "QUEUED", *OVER),
    "RUNNING": ("RUNNING", "PAUSED", "QUEUED", *OVER),
    "PAUSED": ("PAUSED", "QUEUED", "STARTING", *OVER),
}

# The reasons with which a job may fail when machines are killed under it. Any other is a bug.
MACHINE_FAILURES = {"WORKER_LOST", "WORKER_DRAINED", "COORDINATOR_RESTARTED", "STATE_DICT_LOST",
                    "SHUTDOWN"}
LATE_S = 60  # an acknowledged order has taken effect by then
ROUNDING = 1e-5  # relative, between the losses of a step on different numbers of workers


def settle(world):
    """Undrains the workers, resumes and releases every job, and waits for all of them to end."""
    world.wait_for(world.serves, harness.PATIENCE, "fsdpd to serve")
    until = time.monotonic() + 240
    while True:
        listed = world.json("list") or []
        waiting = [job for job in listed if job["state"] not in OVER]
        if listed and not waiting or (not listed and not world.jobs):
            return []
        for worker in world.json("workers") or []:
            if worker.get("drained"):
                world.ctl("undrain", worker["id"])
        for job in waiting:
            if job["state"] == "PAUSED":
                world.ctl("resume", job["id"])
            elif "release" in world.verbs and job["state"] == "QUEUED":
                world.ctl("release", job["id"])
        if time.monotonic() > until:
            if not listed:
                return ["the jobs that were accepted are not listed"]
            return [f"{job['id']} is {job['state']} ({job['reason']}) and does not end"
                    for job in waiting]
        time.sleep(1)


def is_same(record, one, other):
    """Whether two losses of a step agree: in every bit, unless the number of workers may differ."""
    return abs(one - other) <= (ROUNDING * abs(one) if record["least"] else 0)


def curve_of(events, wrong, job, record):
    """{step: loss} of a job's events, which must be in order and without gaps."""
    state, attempt, last, over, starts = None, 0, 0, 0, {}
    curve, step = {}, None
    for event in events:
        dropped = event.get("dropped")
        if event["sequence"] != last + 1 and not dropped:
            wrong.append(f"{job}: event {event['sequence']} follows {last}")
        last = event["sequence"]
        change = event.get("state")
        resumed = state == "FAILED" and change and change["reason"]["code"] == "RESUMED"
        if resumed:  # by a user, who continues it from its last checkpoint
            over = 0
        if over:
            wrong.append(f"{job}: something happened after it was over: {event}")
        if dropped:
            step = None
        if change:
            if change["state"] not in FOLLOWS.get(state, ()) and not resumed:
                wrong.append(f"{job}: {change['state']} after {state}")
            if change["state"] == "STARTING" and state != "STARTING":
                starts[change["attempt"]] = starts.get(change["attempt"], 0) + 1
                step = 0
                if change["attempt"] != attempt + 1:
                    wrong.append(f"{job}: attempt {change['attempt']} after {attempt}")
            if change["attempt"] < attempt:
                wrong.append(f"{job}: attempt {change['attempt']} after {attempt}")
            state, attempt = change["state"], change["attempt"]
            over += state in OVER
        metrics = event.get("metrics")
        if metrics:
            now = metrics["step"]
            if step is not None and now != step + 1 and step != 0:
                wrong.append(f"{job}: step {now} follows {step} in attempt {attempt}")
            if step == 0 and now > 1 and now - 1 not in curve:
                wrong.append(f"{job}: attempt {attempt} began with step {now}, which nothing led to")
            if not is_same(record, curve.setdefault(now, metrics["loss"]), metrics["loss"]):
                wrong.append(f"{job}: step {now} had the losses {curve[now]} and {metrics['loss']}")
            step = now
    for number, count in starts.items():
        if count != 1:
            wrong.append(f"{job}: attempt {number} was started {count} times")
    return curve


def check_reason(world, job, record, shown, wrong):
    """Checks that the requests and faults of this job can explain its end."""
    state, reason = shown["state"], shown["reason"]
    asked = record.get("asked", [])
    cancels = [(code, at) for what, code, at in asked if what == "cancel"]
    if state == "SUCCEEDED" and shown["step"] != record["settings"]["train.max_steps"]:
        wrong.append(f"{job}: SUCCEEDED at step {shown['step']}")
    if state == "CANCELLED" and not cancels:
        wrong.append(f"{job}: CANCELLED without a request: {reason}")
    if state == "FAILED":
        # The job is retried as often as its budget of machine failures allows.
        budget = record["settings"].get("retry.machine_failures", 0)
        # A cancelling that the store could not keep is lost if fsdpd ends; its ranks have ended.
        lost = reason["code"] == "ABORTED" and any(code == harness.FAILED for code, _ in cancels)
        explained = lost or reason["code"] in MACHINE_FAILURES
        if not explained or not world.kills or shown["attempt"] <= budget:
            wrong.append(f"{job}: FAILED in attempt {shown['attempt']} of {budget + 1}: {reason}")
    for code, at in cancels:
        if code == 0 and state != "CANCELLED" and harness.seconds(shown["finish_time"]) > at + LATE_S:
            wrong.append(f"{job}: its cancelling was acknowledged, and {LATE_S} s later it still "
                         f"continued, to be {state}")


def check_jobs(world):
    wrong, curves, weights, worlds, checkpoints = [], {}, {}, collections.Counter(), 0
    listed = {job["id"]: job for job in world.json("list") or []}
    ends = {}
    for job, record in sorted(world.jobs.items()):
        if record.get("accepted") and job not in listed:
            wrong.append(f"{job}: was accepted and is lost")
        if job not in listed:
            continue
        shown = world.json("show", job)
        end = f"{shown['state']} {shown['reason']['code']}"
        ends[end] = ends.get(end, 0) + 1
        code, out, err = world.ctl("watch", job, "-o", "json")
        if code not in (0, harness.JOB_FAILED, harness.JOB_CANCELLED):
            wrong.append(f"{job}: watch: {code}: {err}")
        events = [json.loads(line) for line in out.splitlines()]
        curve = curve_of(events, wrong, job, record)
        if record["least"]:
            worlds.update(check_worlds(job, record, shown, events, wrong))
        if shown["state"] not in OVER:
            continue  # already reported
        check_reason(world, job, record, shown, wrong)
        if shown["state"] == "SUCCEEDED" and \
                sorted(curve) != list(range(1, record["settings"]["train.max_steps"] + 1)):
            wrong.append(f"{job}: SUCCEEDED, and its curve has the steps {sorted(curve)}")
        # Identical jobs have identical curves, whatever happened to them.
        for step, loss in curve.items():
            # A learning rate that follows a cosine depends on the number of steps.
            kind = record["kind"] if record["least"] else record["kind"][0]
            same = curves.setdefault((kind, step), (loss, job))
            if not is_same(record, same[0], loss):
                wrong.append(f"{job}: loss {loss} in step {step}; {same[1]} had {same[0]}")
        check_weights(world, job, record, shown, weights, wrong)
        checkpoints += check_checkpoints(world, job, wrong)
    for job in sorted(set(listed) - set(world.jobs)):
        wrong.append(f"{job}: no client submitted it")
    world.say("chaos", f"{len(listed)} jobs: {dict(sorted(ends.items()))}")
    kept = collections.Counter(record["settings"]["elastic.redundancy"] for job, record in world.jobs.items()
                               if job in listed and record["least"])
    world.say("chaos", f"elastic jobs, by redundancy: {dict(sorted(kept.items()))}; {checkpoints} checkpoints")
    world.say("chaos", f"attempts of elastic jobs, by workers: {dict(sorted(worlds.items()))}")
    return wrong


def check_worlds(job, record, shown, events, wrong):
    """The numbers of workers with which an elastic job trained: in its range, and finally wanting
    what was asked for last. Of calls at the same time, either may have been the last."""
    least = record["least"]
    texts = [event["state"]["reason"]["message"] for event in events
             if event.get("state", {}).get("reason", {}).get("code") == "RUNNING"]
    counts = collections.Counter(int(text.split()[2]) for text in texts if text.startswith("training on "))
    if not set(counts) <= set(range(least, 4)):
        wrong.append(f"{job}: trained with {dict(counts)} workers, least {least}, most 3")
    asked = [(record["settings"]["workers"], 0, 0, 0), *record.get("resizes", [])]
    begun = max(began for _, code, began, _ in asked if code == 0)
    # A call without an answer may have been carried out, and so is one that the full disk did not
    # take at first (1).
    possible = {workers for workers, code, _, ended in asked if ended >= begun and
                code in (0, harness.FAILED, harness.UNREACHABLE, harness.DEADLINE, 137)}
    wanted = int(shown["chosen"] and shown["chosen"]["workers"] or shown["spec"]["workers"])
    if wanted not in possible:
        wrong.append(f"{job}: wants {wanted} workers, asked for: {asked}")
    return counts


def check_checkpoints(world, job, wrong):
    """Those that are listed are on the disk, unless the last attempt's rank 0 was killed before it
    could report a newer one, for which it had removed them. Returns how many there are."""
    rows = world.json("checkpoints", job) or []
    directory = os.path.join(world.root, "state/jobs", job, "checkpoints")
    whole = {name for name in (os.listdir(directory) if os.path.isdir(directory) else ())
             if os.path.exists(os.path.join(directory, name, "manifest.json")) and name.startswith("step-")}
    known = {os.path.basename(row["path"]) for row in rows}
    for name in sorted(known - whole):
        if not (world.kills and max(whole - known, default="") > name):
            wrong.append(f"{job}: its checkpoint {name} is listed, but not on the disk: {sorted(whole)}")
    return len(rows)


def check_weights(world, job, record, shown, weights, wrong):
    if shown["state"] != "SUCCEEDED" or record["settings"]["save_model"] != "true":
        return
    path = os.path.join(world.scratch, "final.safetensors")
    code, _, err = world.ctl("pull", job, "-o", path)
    if code != 0:
        wrong.append(f"{job}: its weights cannot be pulled: {err.strip()}")
        return
    tensors, _ = harness.read_safetensors(path)
    os.unlink(path)
    same = weights.setdefault(record["kind"], (tensors, job))
    if same[0] != tensors and not record["least"]:
        wrong.append(f"{job}: its weights are not those of {same[1]}")


def check_end(world):
    """Stops fsdpd cleanly and checks what remains."""
    wrong = []
    world.coordinator.send_signal(signal.SIGTERM)
    world.worker.send_signal(signal.SIGTERM)
    for name, process in (("fsdpd", world.coordinator), ("the worker", world.worker)):
        try:
            code = process.wait(harness.PATIENCE)
        except Exception:
            wrong.append(f"{name} did not end within {harness.PATIENCE} s of SIGTERM")
            continue
        if code != 0:
            wrong.append(f"{name} ended with {code}")
    until = time.monotonic() + harness.PATIENCE
    while world.processes() and time.monotonic() < until:
        time.sleep(0.1)
    for pid, line in world.processes().items():
        wrong.append(f"process {pid} is left: {line}")
    with open("/proc/net/unix", errors="replace") as sockets:
        for line in sockets:
            if world.root in line:
                wrong.append(f"a socket is left: {line.strip()}")
    wrong += check_files(world)
    wrong += check_store(world)
    return wrong


def check_files(world):
    wrong = []
    for top in ("run", "state", "tmp", "scratch"):
        for directory, directories, names in os.walk(os.path.join(world.root, top)):
            for name in names + directories:
                path = os.path.join(directory, name)
                short = os.path.relpath(path, world.root)
                if stat.S_ISSOCK(os.lstat(path).st_mode):
                    wrong.append(f"a socket is left: {short}")
                elif top in ("tmp", "scratch") or name.startswith(".") or \
                        any(word in name for word in (".tmp", ".part", ".new")):
                    wrong.append(f"a temporary file is left: {short}")
    return wrong


def check_store(world):
    path = os.path.join(world.root, "state/store.db")
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        (answer,) = database.execute("PRAGMA integrity_check").fetchone()
        stray = database.execute("SELECT count(*) FROM events WHERE job NOT IN "
                                 "(SELECT id FROM jobs)").fetchone()[0]
    finally:
        database.close()
    return ([f"the store: {answer}"] if answer != "ok" else []) + \
        ([f"the store has {stray} events of jobs that it does not have"] if stray else [])
