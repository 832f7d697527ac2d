#!/usr/bin/env python3
"""Each system call of fsdpd and its workers fails, one at a time, as SQLite's tests do it: while a job trains with
checkpoints, continues from one, loses a worker, or writes its final weights; while they are pulled from the file,
from a checkpoint and from the workers; while logs are read and weights are verified; while fsdpd starts. The n-th
call of a kind on a kind of object fails once, or all from the n-th on fail until the job's reason says so. A job
must end with the weights of an undisturbed one, whatever it waited for; a refused call must say why, and be served
afterwards; nothing is FAILED, called damaged, or lost that was acknowledged.

Each seed is one trial; its line goes to the log. A seed whose line is in the log is not run again. A scenario's
calls are counted first, by a run without errors.

usage: failing_calls.py --log FILE [--first SEED] [--trials N] [--scenario NAME]... [--summary]"""

import argparse
import collections
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness

ROLES = ("worker", "fsdpd")
ERRORS = {"open": "EIO EACCES EMFILE ENOMEM ENOSPC ENOTDIR", "opendir": "EIO EACCES EMFILE ENOMEM", "readdir": "EIO",
          "read": "EIO EINTR ENOMEM", "write": "EIO ENOSPC EDQUOT EINTR", "fsync": "EIO ENOSPC", "rename": "EIO ENOSPC EACCES",
          "link": "EIO ENOSPC EACCES", "unlink": "EIO EACCES", "mkdir": "EIO ENOSPC EACCES ENOTDIR",
          "stat": "EIO EACCES ENOMEM", "mmap": "ENOMEM EAGAIN", "memfd": "EMFILE ENOMEM", "socket": "EMFILE ENOMEM",
          "connect": "ECONNREFUSED ECONNRESET ETIMEDOUT", "accept": "EMFILE ENOMEM", "bind": "ENOMEM EACCES",
          "listen": "ENOMEM", "send": "ECONNRESET EPIPE ENOMEM", "recv": "ECONNRESET ENOMEM EINTR",
          "eventfd": "EMFILE ENOMEM", "epoll": "EMFILE ENOMEM", "pipe": "EMFILE", "thread": "EAGAIN"}
ON_FILES = "open opendir readdir read write fsync rename link unlink mkdir stat mmap".split()
ON_SOCKETS = "bind connect recv send".split()
OBJECTS = {"checkpoints": "*/checkpoint*", "weights": "*/state_dict*", "logs": "*/jobs/*/log*", "store": "*/store.*",
           "state": "*/state/*", "run": "*/run/*"}
SOCKETS = {"link": "unix:*fsdpd.sock", "group": "unix:@*", "tcp": "127.0.0.1:*"}
KEPT = ("kept file", "checkpoint's", "from workers", "logs", "verify")  # calls about jobs that do not change
SCENARIOS = ("train", "resume", "loss", "gloo", *KEPT, "start")
STEPS, MORE = 6, 12
SETTINGS = ("workers=2", "train.log_interval=1", "train.evaluate=false", "train.global_batch=8", "train.batch_size=4",
            "data.context=16", f"schedule.total_steps={MORE}", "schedule.warmup_steps=0", "retry.failures=0",
            "fsdp.wrap.policy=none")
CHECKPOINTS = ("checkpoint.every_steps=2", "checkpoint.keep=2")
IN_LIBRARIES = ("epoll", "eventfd", "pipe", "thread")  # without these, libuv and gRPC abort when they are opened
LASTS = 4  # seconds, at most, that an error lasts, once a call has failed
DAMAGE = re.compile(r"\bdamaged?\b|DATA_LOSS|was removed")


def rows():
    """(call, name of its object, pattern)"""
    for call in ERRORS:
        names = OBJECTS if call in ON_FILES else SOCKETS if call in ON_SOCKETS else {"": "*"}
        for name, pattern in names.items():
            yield call, name, pattern
        if call == "mmap":
            yield call, "anonymous", "anonymous"


class Wrong(Exception):
    """What must not be."""


class Trials:
    def __init__(self):
        self.root = tempfile.mkdtemp(prefix="fsdpd-test-")
        self.data = os.path.join(self.root, "data")
        os.mkdir(self.data)
        self.file = harness.draw_text_job(self.data, 16)
        self.faults = harness.Faults(self.root)
        self.daemon = self.expected = None
        self.kept = {}
        self.stop = signal.SIGTERM  # before a start
        self.dirty = 0  # trials since fsdpd was new

    def close(self):
        self.faults.clear()
        if self.daemon:
            self.daemon.close()
        shutil.rmtree(self.root, ignore_errors=True)

    # ---- a daemon that serves ----

    def serve(self):
        """fsdpd runs, has its workers, and knows the weights of an undisturbed job after both numbers of steps."""
        self.faults.clear()
        if self.daemon and self.dirty >= 60:  # few jobs are listed, and the disk stays small
            self.daemon.close()
            self.daemon = None
        if self.daemon is None:
            limits = {"RETRY_SECONDS": "0.2", "RETRY_MAX_SECONDS": "1", "REATTACH_SECONDS": "20", "PLAN_WAIT_SECONDS": "60",
                      "SAVE_SECONDS": "20", "KILL_SECONDS": "3", "SILENCE_SECONDS": "5", "PEER_TIMEOUT_SECONDS": "20"}
            environment = {f"FSDPD_LIMITS_{name}": value for name, value in limits.items()}
            self.daemon = harness.Daemon(workers=3, data=self.data, environment={**self.faults.environment, **environment})
            self.kept, self.dirty = {}, 0
        self.daemon.process.poll()
        if self.daemon.process.returncode is not None:
            self.daemon.start()
        self.dirty += 1
        self.wait(lambda: len(self.daemon.worker_list()) == 3, "all workers")
        if self.expected is None:
            job = self.submit(f"train.max_steps={MORE}", f"checkpoint.every_steps={STEPS}", "checkpoint.keep=0")
            self.finish(job)
            self.expected = {step: self.daemon.tensors(job, "--checkpoint", str(step)) for step in (STEPS, MORE)}

    def wait(self, condition, what, seconds=60):
        seconds = max(seconds, harness.PATIENCE)
        until = time.monotonic() + seconds
        while not (value := condition()):
            if time.monotonic() > until:
                raise Wrong(f"waited {seconds} s for {what}")
            if self.daemon.process.poll() is not None:
                raise EOFError(f"fsdpd ended with {self.daemon.process.returncode}")
            time.sleep(0.03)
        return value

    def arguments(self, *settings):
        words = ["submit", self.file]
        for setting in ("data.path=" + os.path.join(self.data, "text.txt"), *SETTINGS, *settings):
            words += ["--set", setting]
        return words

    def submit(self, *settings):
        return self.ask(*self.arguments(*settings), "-o", "json", parse=lambda out: json.loads(out)["id"])

    def ask(self, *words, parse=lambda out: out):
        """The answer of a call that must be served."""
        done = self.daemon.ctl(*words, timeout=90)
        if done.returncode != 0:
            raise Wrong(f"{words[0]}: {done.returncode}: {done.stderr.strip()}")
        return parse(done.stdout)

    def show(self, job):
        """None while fsdpd does not answer."""
        done = self.daemon.ctl("show", job, "-o", "json", timeout=60)
        if done.returncode == harness.NOT_FOUND:
            raise Wrong(f"an acknowledged job is lost: {done.stderr}")
        return json.loads(done.stdout) if done.returncode == 0 else None

    def finish(self, job, seconds=60):
        shown = {}
        def over():
            shown.update(self.show(job) or {})
            if shown.get("state") in ("FAILED", "CANCELLED", "DAMAGED"):
                raise Wrong(f"{shown['state']}: {shown['reason']}")
            return shown.get("state") == "SUCCEEDED"
        try:
            self.wait(over, f"{job} to succeed", seconds)
        except Wrong as wrong:
            raise Wrong(f"{wrong}; {shown.get('state')}: {shown.get('reason')}") from None

    def restart_if_ended(self, seconds=0.3):
        """fsdpd may end, saying why; the next one must have all."""
        try:
            self.daemon.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        self.faults.clear()
        self.daemon.start()
        return True

    # ---- scenarios: each returns what is judged, once the fault is gone ----

    def job_of(self, scenario):
        """A job that the calls of KEPT are about; `from workers` needs one that cannot save its weights."""
        name = "from workers" if scenario == "from workers" else "kept file"
        if name in self.kept and self.show(self.kept[name]) is not None:
            if scenario in KEPT and scenario + " answer" not in self.kept:
                self.judge_kept(scenario, self.kept[name])
            return self.kept[name]
        if name == "from workers":
            self.faults.set(*self.holding())
        job = self.kept[name] = self.submit(f"train.max_steps={STEPS}", *(CHECKPOINTS if name == "kept file" else ()))
        if name == "from workers":
            self.wait(lambda: (self.show(job) or {"reason": {"code": ""}})["reason"]["code"] == "SAVING", "SAVING")
        else:
            self.finish(job)
        return self.job_of(scenario)

    def holding(self):
        return ["open */state_dict.safetensors.tmp EMFILE in=fsdpd"]

    def prepare(self, scenario):
        """What the scenario begins with, before any call fails."""
        if scenario == "resume":
            job = self.submit(f"train.max_steps={STEPS}", *CHECKPOINTS)
            self.finish(job)
            return job
        if scenario == "loss":
            # Held at a checkpoint, so that it does not end before its worker.
            job = self.submit(f"train.max_steps={MORE}", "checkpoint.every_steps=8", "workers=3",
                              "elastic={min_workers: 2, max_workers: 3, redundancy: mirror}")
            return job
        return self.job_of(scenario) if scenario in KEPT or scenario == "start" else None

    def run(self, scenario, job, rules, before=None):
        """Returns the outcome, and the number of calls that each rule matched. `before`: after how many calls an error
        lasts; None: it comes once."""
        others = self.holding() if scenario == "from workers" else []
        if scenario == "loss":
            self.faults.hold_checkpoint()
            self.wait(lambda: (self.show(job) or {}).get("state") == "RUNNING", "the job")
            self.wait(lambda: int((self.show(job) or {"step": 0})["step"]) >= 8, "a step")
            victim = [int(row["pid"]) for row in self.daemon.worker_list() if row.get("job") == job][-1]
        self.faults.set(*others, *rules)
        if scenario == "loss":
            os.kill(victim, signal.SIGKILL)
        if scenario in KEPT:
            outcome = self.try_kept(scenario, job)
        elif scenario == "start":
            outcome = self.try_start(rules[-1].split()[0])
        else:
            outcome = self.try_job(scenario, job, before)
        hits = self.faults.hits()[len(others) if scenario in KEPT else 0:]
        self.faults.set(*others) if scenario == "from workers" else self.faults.clear()
        restarted = self.restart_if_ended(0.05)
        if scenario == "from workers" and restarted:
            self.faults.set(*others)
        if scenario in KEPT:
            self.judge_kept(scenario, job)
        else:
            outcome["reasons"] = self.judge_job(scenario, outcome.pop("job"))
        if restarted:
            outcome["fsdpd"] = "ended, and started again"
        return outcome, hits

    def calls_of(self, scenario, job):
        out = os.path.join(self.root, "out.safetensors")
        return {"kept file": ("pull", job, "-o", out), "from workers": ("pull", job, "-o", out),
                "checkpoint's": ("pull", job, "--checkpoint", str(STEPS), "-o", out),
                "logs": ("logs", job), "verify": ("verify", job)}[scenario], out

    def read_kept(self, scenario, job):
        words, out = self.calls_of(scenario, job)
        if os.path.exists(out):
            os.unlink(out)
        done = self.daemon.ctl(*words, timeout=60)
        if done.returncode != 0:
            return None, done
        if words[0] == "pull" and harness.read_safetensors(out)[0] != self.expected[STEPS]:
            raise Wrong("the pulled weights are wrong")
        return done.stdout, done

    def try_kept(self, scenario, job):
        before = self.kept.get(scenario + " answer")
        answer, done = self.read_kept(scenario, job)
        if answer is not None:
            if scenario in ("logs", "verify") and before is not None and answer != before:
                raise Wrong(f"another answer: {answer[-300:]}")
            return {"outcome": "served"}
        if not done.stderr.strip() or done.returncode < 0:
            raise Wrong(f"no reason: {done.returncode}")
        if DAMAGE.search(done.stderr):
            raise Wrong(f"called damaged: {done.stderr.strip()}")
        return {"outcome": "refused", "code": done.returncode, "said": done.stderr.strip()[-300:]}

    def judge_kept(self, scenario, job):
        """Afterwards the call is served."""
        def served():
            answer, done = self.read_kept(scenario, job)
            if answer is None and done.returncode not in (harness.UNREACHABLE, harness.CONFLICT):
                raise Wrong(f"refused afterwards: {done.returncode}: {done.stderr.strip()}")
            self.kept[scenario + " answer"] = answer
            return answer is not None
        self.wait(served, "an answer afterwards")

    def try_start(self, call):
        self.daemon.kill(self.stop)
        begin = os.path.getsize(os.path.join(self.daemon.root, "fsdpd.log"))
        job = self.kept["kept file"]
        try:
            self.daemon.start(attach=False)
            return {"outcome": "served", "job": job}
        except AssertionError as error:
            if self.daemon.process.poll() is None:
                raise Wrong("fsdpd starts and does not serve") from error
        with open(os.path.join(self.daemon.root, "fsdpd.log"), errors="replace") as log:
            log.seek(begin)
            said = log.read()
        code = self.daemon.process.returncode
        if code == -signal.SIGABRT and call in IN_LIBRARIES:
            return {"outcome": "refused", "code": code, "said": "a library aborted", "job": job}
        if code < 0:
            raise Wrong(f"ended by signal {-code}: {said[-300:]}")
        return {"outcome": "refused", "code": code, "said": said.strip().splitlines()[-1][-300:] if said.strip() else "",
                "job": job}

    def order(self, scenario, job):
        """The call that begins what is tried. None, with the answer, if it was refused."""
        if scenario == "resume":
            done = self.daemon.ctl("resume", job, "--set", f"train.max_steps={MORE}", timeout=90)
            return (job if done.returncode == 0 else None), done
        transport = ("fsdp.transport=gloo",) if scenario == "gloo" else ()
        done = self.daemon.ctl(*self.arguments(f"train.max_steps={STEPS}", *CHECKPOINTS, *transport), "-o", "json",
                               timeout=90)
        return (json.loads(done.stdout)["id"] if done.returncode == 0 else None), done

    def try_job(self, scenario, job, before):
        if scenario != "loss":
            given, done = self.order(scenario, job)
            if given is None:
                if not done.stderr.strip() or done.returncode < 0:
                    raise Wrong(f"no reason: {done.returncode}")
                if DAMAGE.search(done.stderr):
                    raise Wrong(f"called damaged, or removed: {done.stderr.strip()}")
                return {"outcome": "refused", "code": done.returncode, "said": done.stderr.strip()[-300:],
                        "job": job if scenario == "resume" else None}
            job = given
        until, reached = time.monotonic() + harness.PATIENCE, False
        waited = None
        while time.monotonic() < until and self.daemon.process.poll() is None:
            if before is not None and not reached and self.faults.hits()[-1] > before:
                until, reached = time.monotonic() + LASTS, True
            shown = self.show(job)
            if shown and shown["state"] in ("SUCCEEDED", "FAILED", "CANCELLED"):
                break
            if shown and shown["reason"]["code"] not in ("RUNNING", "STARTING", "QUEUED", "WAITING", "PLACED"):
                waited = shown["reason"]
                if before is not None and waited["code"] in ("SAVING", "RETRYING") and until - time.monotonic() > 0.5:
                    until = time.monotonic() + 0.5
            time.sleep(0.03)
        return {"outcome": "served", "job": job, **({"waited": waited} if waited else {})}

    def judge_job(self, scenario, job):
        if job is None:  # refused: nothing may be left of it
            return None
        if scenario == "start":  # and it can record something
            def hold():
                done = self.daemon.ctl(*self.arguments(), "--hold", "-o", "json", timeout=90)
                return json.loads(done.stdout)["id"] if done.returncode == 0 else None
            held = self.wait(hold, "a job to be accepted")
            self.ask("cancel", held)
            self.ask("forget", held)
        resumed = scenario in ("resume", "loss")
        shown = self.show(job) or self.wait(lambda: self.show(job), "an answer")
        steps = int(shown["step"])
        if scenario == "resume" and shown["state"] == "SUCCEEDED" and steps == STEPS:
            resumed = False  # it was refused
        self.finish(job, 90)
        steps = MORE if resumed else STEPS
        if scenario != "loss" and self.daemon.tensors(job) != self.expected[steps]:
            raise Wrong("the weights are wrong")
        seen = {step for step, _ in self.daemon.losses(job)}
        if seen != set(range(1, steps + 1)):
            raise Wrong(f"steps without metrics: {sorted(set(range(1, steps + 1)) - seen)}")
        proved = self.daemon.ctl("verify", job)
        if proved.returncode != 0:
            raise Wrong(f"verify: {proved.stderr.strip()}")
        left = [name for name in os.listdir(os.path.join(self.daemon.root, "state/jobs", job)) if name.endswith(".tmp")]
        if left:
            raise Wrong(f"left behind: {left}")
        return sorted({f"{entry['reason']['code']}: {entry['reason']['message'][:300]}" for entry in
                       self.daemon.json("history", job)
                       if entry["reason"]["code"] not in ("RUNNING", "STARTING", "QUEUED", "SUCCEEDED", "SUBMITTED")})

    # ---- trials ----

    def count(self, scenario, role):
        """How often each row's call is made."""
        self.serve()
        job = self.prepare(scenario)
        chosen = list(rows())
        _, hits = self.run(scenario, job, [f"{call} {pattern} EIO skip=1000000000 in={role}" for call, _, pattern in chosen])
        return {f"{call} {name}": number for (call, name, _), number in zip(chosen, hits) if number}

    def attempt(self, draw):
        self.serve()
        self.stop = getattr(signal, draw["stop"])
        job = self.prepare(draw["scenario"])
        pattern = next(pattern for call, name, pattern in rows() if (call, name) == (draw["call"], draw["object"]))
        earlier = [row for row in rows() if row[0] == draw["call"]]
        # What an earlier row of the same call matches is not this one's.
        rules = []
        for call, name, other in earlier:
            if name == draw["object"]:
                break
            rules.append(f"{call} {other} EIO skip=1000000000 in={draw['role']}")
        once = "" if draw["lasting"] else " times=1"
        rules.append(f"{draw['call']} {pattern} {draw['error']} skip={draw['skip']}{once} in={draw['role']}")
        outcome, hits = self.run(draw["scenario"], job, rules, draw["skip"] if draw["lasting"] else None)
        if draw["scenario"] in SCENARIOS[:4] and outcome.get("reasons") is not None:
            forgotten = job or outcome.get("job")
            if forgotten:
                self.daemon.ctl("forget", forgotten)
        return {**outcome, "reached": hits[-1] > draw["skip"]}


def draw(seed, scenarios, counts):
    chance = random.Random(f"failing calls {seed}")
    scenario = scenarios[seed % len(scenarios)]
    choice = [(role, *key.split(" ", 1), number) for role in ROLES
              for key, number in sorted(counts[scenario][role].items())]
    role, call, name, number = choice[seed // len(scenarios) % len(choice)]
    error = chance.choice(ERRORS[call].split())
    begins = scenario == "start" and call in ("accept", "bind", "listen", "socket", *ON_SOCKETS)  # it would never serve
    once = begins or call in ("recv", "send") or error == "EINTR"  # programs call again and again
    return {"seed": seed, "scenario": scenario, "role": role, "call": call, "object": name,
            "skip": chance.randrange(number), "of": number, "error": error,
            "lasting": not once and chance.random() < 0.3,
            "stop": chance.choice(("SIGTERM", "SIGKILL"))}


def read_log(path):
    if not path or not os.path.exists(path):
        return []
    with open(path) as file:
        return [json.loads(line) for line in file]


def summarize(lines):
    table = collections.defaultdict(collections.Counter)
    for line in lines:
        if "seed" in line:
            kind = "failed" if "failed" in line else line["outcome"] if line["reached"] else "not reached"
            table[line["scenario"]][kind] += 1
            table[line["scenario"]]["waited"] += "waited" in line
            table[line["scenario"]]["ended"] += "fsdpd" in line
    heads = ("served", "refused", "failed", "not reached", "waited", "ended")
    print(f"# {'scenario':14s} {'trials':>7s}" + "".join(f" {head:>11s}" for head in heads))
    for scenario, counter in table.items():
        trials = sum(counter[head] for head in heads[:4])
        print(f"  {scenario:14s} {trials:7d}" + "".join(f" {counter[head]:11d}" for head in heads))


def run_trials(log, first, number, scenarios, out=sys.stderr):
    """Returns the lines of the trials that found something."""
    lines = read_log(log)
    counts = {line["scenario"]: line["counts"] for line in lines if "counts" in line}
    done = {line["seed"] for line in lines if "seed" in line}
    wrong, trials = [], Trials()
    file = open(log, "a") if log else None
    def say(line):
        if file:
            print(json.dumps(line), file=file, flush=True)
    try:
        for scenario in scenarios:
            if scenario not in counts:
                counts[scenario] = {role: trials.count(scenario, role) for role in ROLES}
                say({"scenario": scenario, "counts": counts[scenario]})
        for seed in range(first, first + number):
            if seed in done:
                continue
            drawn = draw(seed, scenarios, counts)
            begin = time.monotonic()
            try:
                line = {**drawn, **trials.attempt(drawn)}
            except (Wrong, EOFError, AssertionError, subprocess.TimeoutExpired) as error:
                line = {**drawn, "failed": f"{type(error).__name__}: {error}"[:1500]}
                wrong.append(line)
                print(json.dumps(line), file=out, flush=True)
                if log:
                    shutil.copy(os.path.join(trials.daemon.root, "fsdpd.log"), f"{log}-seed-{seed}")
                with contextlib.suppress(AssertionError):  # it hangs, and was killed
                    trials.close()
                trials = Trials()
            say({**line, "seconds": round(time.monotonic() - begin, 2)})
    finally:
        trials.close()
        if file:
            file.close()
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", required=True)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--scenario", action="append", choices=SCENARIOS)
    parser.add_argument("--summary", action="store_true")
    arguments = parser.parse_args()
    if arguments.summary:
        summarize(read_log(arguments.log))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # with its daemon
    return 1 if run_trials(arguments.log, arguments.first, arguments.trials, arguments.scenario or SCENARIOS) else 0


if __name__ == "__main__":
    sys.exit(main())
