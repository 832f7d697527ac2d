#!/usr/bin/env python3
"""Samples, completions over HTTP and evaluations of the jobs of kills.py, while their workers and the coordinator are
killed, and while they are resized, drained, pulled and checkpointed. Some clients leave before their answer. No call
hangs; every other call has a right answer or an error that says why. The final weights have the bits of a run whose
number of workers changes at the same steps and which gets no calls. That run samples and evaluates itself after every
step, and an answer is compared with the one of its step.

A seed is one job. The log gets its lines of kills.py and one for its calls. A seed whose lines are in the log is not
run again.

usage: calls_under_kills.py --log FILE [--first SEED] [--calls N] [--summary]"""

import argparse
import collections
import http.client
import json
import os
import pwd
import random
import re
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness
import kills
from elastic_jobs import read_log

PROMPTS = ("27 squared is 729. 28", "9")
TOKENS = 3  # at most, after a prompt
HELD_OUT = 160  # bytes that evaluations read, all of them: that many windows with any number of ranks
CALLERS = 3
ANSWERS = 30  # at least, before each moment of kills.py
# Both runs can evaluate, and do so by themselves at their end only.
CAN_EVALUATE = ("train.evaluate=true", "train.evaluate_interval=1000000000", "train.evaluate_batches=1")
# Of the undisturbed run: its answers to the calls, after every step.
WATCHED = (f"train.sample={{prompts: {json.dumps(PROMPTS)}, every_steps: 1, max_tokens: {TOKENS}}}",
           "data.validation=[{name: held, path: held.txt, every_steps: 1, batches: 0}]")
# (weight, kind of a call)
KINDS = ((4, "sample"), (3, "completion"), (2, "evaluation"), (2, "leaver"), (1, "pull"), (1, "checkpoint"))
COUNTED = ("sample", "completion", "evaluation")
# Errors that say why there is no answer, and what to do or to expect.
NAMED = tuple(map(re.compile, (
    r"job \S+ is (QUEUED|STARTING|SAVING): ", r"job \S+ is ending", r"job \S+ waits for rank \d+ \(",
    r"job \S+ (lost a worker and )?starts again before ", r"job \S+ is being evaluated already",
    r"the link to rank \d+ of job \S+ broke before it was evaluated", r"the attempt of job \S+ ended \(\w+\) before ",
    r"the client is gone, or the job ends", r"job \S+: \d+ samples wait for their turn already",
    r"job \S+ is (over|SUCCEEDED|PREEMPTED)", r"^connection: ", r"fsdpd is shutting down",
)))


def write_held_out(directory):
    """The path of the data that evaluations read."""
    path = os.path.join(directory, "held.txt")
    with open(os.path.join(directory, "text.txt"), "rb") as text, open(path, "wb") as file:
        file.write(text.read(HELD_OUT))
    return path


class Answer:
    """Of a call: sequences, by prompt, or a loss; and their step."""

    def __init__(self, kind, step, prompts=(), sequences=(), loss=None):
        self.kind, self.step, self.prompts, self.sequences, self.loss = kind, int(step), prompts, sequences, loss

    def is_right(self, sampled, losses):
        """Whether the undisturbed run says the same. A loss is summed in the order of the ranks, and at the step of a
        change these may be those before it or after it."""
        if self.kind == "evaluation":
            return self.step in losses and abs(self.loss / losses[self.step] - 1) <= 1e-6
        return self.step in sampled and all(
            len(tokens) > 0 and tokens == sampled[self.step][prompt][:len(tokens)]
            for prompt, tokens in zip(self.prompts, self.sequences))


class Callers:
    """Threads that call, until `end`, or each until it has `most` answers."""

    def __init__(self, daemon, port, job, seed, count=CALLERS, most=None):
        self.daemon, self.port, self.job, self.most = daemon, port, job, most
        self.held = write_held_out(daemon.data)
        self.ending, self.lock = threading.Event(), threading.Lock()
        self.answers, self.wrong, self.counts, self.errors = [], [], collections.Counter(), collections.Counter()
        self.judged, self.answered = {}, [0] * count
        self.token = self.issue()
        self.threads = [threading.Thread(target=self.call_on, args=(number, random.Random(f"calls {seed} {number}")))
                        for number in range(count)]
        for thread in self.threads:
            thread.start()

    def issue(self):
        issued = subprocess.run([harness.FSDPD, "token", "issue", pwd.getpwuid(os.geteuid()).pw_name, "--days", "2",
                                 "--coordinator", self.daemon.address], text=True, env=self.daemon.environment,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=True)
        return issued.stdout.strip()

    def call_on(self, number, chance):
        made = 0
        while not self.ending.is_set() and (self.most is None or made < self.most):
            (kind,) = chance.choices([kind for _, kind in KINDS], [weight for weight, _ in KINDS])
            before = self.answered[number]
            try:
                getattr(self, kind)(chance, number)
            except Exception as error:  # of the thread; the test looks at it
                self.wrong.append(f"{kind}: {type(error).__name__}: {error}"[:400])
            with self.lock:
                self.counts[kind] += 1
            answered = self.answered[number] > before
            made += answered
            self.ending.wait((0.1 if answered or kind not in COUNTED else 0.5) * chance.random())  # as clients do

    def end(self, away):
        """`away`: fsdpd was, so that clients did not reach it."""
        self.ending.set()
        for thread in self.threads:
            thread.join()
        if not away:
            self.wrong += [f"fsdpd was there: {error}" for error in self.errors if ": connection: " in error]

    # ---- calls ----

    def refused(self, kind, message):
        message = " ".join(message.split())
        with self.lock:
            self.errors[f"{kind}: " + re.sub(r"\d+", "N", message)[:160]] += 1
        if kind in COUNTED and not any(name.search(message) for name in NAMED):
            self.wrong.append(f"{kind}: an error without a reason: {message}")

    def ctl(self, kind, *arguments):
        """What fsdpctl prints, or None: an error."""
        process = self.daemon.spawn(*arguments)
        try:
            out, error = process.communicate(timeout=2 * harness.PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            self.wrong.append(f"{kind}: no answer within {2 * harness.PATIENCE} s: {arguments}")
            return None
        if process.returncode == harness.DONE:
            return out
        if process.returncode not in (harness.FAILED, harness.UNREACHABLE, harness.CONFLICT):
            self.wrong.append(f"{kind}: exit code {process.returncode}: {error}")
        self.refused(kind, "connection: none" if process.returncode == harness.UNREACHABLE else error)
        return None

    def add(self, number, answer):
        self.answered[number] += 1
        with self.lock:
            self.answers.append(answer)

    def sample(self, chance, number):
        prompt = chance.randrange(len(PROMPTS))
        out = self.ctl("sample", "sample", self.job, "--prompt", PROMPTS[prompt], "-o", "json", "--max-tokens",
                       str(chance.randint(1, TOKENS)))
        if out is not None:
            said = json.loads(out)
            self.add(number, Answer("sample", said["step"], [prompt], [said["tokens"]]))

    def evaluation(self, _, number):
        out = self.ctl("evaluation", "eval", self.job, "--data", self.held, "--batches", "0", "-o", "json")
        if out is not None:
            said = json.loads(out)
            self.add(number, Answer("evaluation", said["step"], loss=said["loss"]))

    def completion(self, chance, number):
        prompts = chance.sample(range(len(PROMPTS)), chance.randint(1, len(PROMPTS)))
        body = {"model": self.job, "temperature": 0, "max_tokens": chance.randint(1, TOKENS),
                "prompt": [list(PROMPTS[prompt].encode()) for prompt in prompts]}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2 * harness.PATIENCE)
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), {
                "Authorization": f"Bearer {self.token}", "Content-Type": "application/json"})
            response = connection.getresponse()
            said = json.loads(response.read())
        except TimeoutError:
            self.wrong.append(f"completion: no answer within {2 * harness.PATIENCE} s")
        except (ConnectionError, http.client.HTTPException) as error:
            self.refused("completion", f"connection: {type(error).__name__}")
        else:
            if response.status != 200:
                self.refused("completion", f"{response.status} {said['error']['message']}")
            else:
                self.add(number, Answer("completion", said["step"], prompts,
                                        [choice["token_ids"] for choice in said["choices"]]))
        finally:
            connection.close()

    def leaver(self, chance, _):
        """A client that does not wait for its end."""
        process = self.daemon.spawn("sample", self.job, "--prompt", chance.choice(PROMPTS), "--max-tokens", "40",
                                    "--temperature", "1", "--seed", str(chance.randrange(1000)))
        time.sleep(0.1 * chance.random())
        process.send_signal(chance.choice((signal.SIGINT, signal.SIGKILL)))
        process.communicate(timeout=2 * harness.PATIENCE)

    def pull(self, _, number):
        path = os.path.join(self.daemon.root, f"called-{number}")
        if self.ctl("pull", "pull", self.job, "-o", path) is not None:
            harness.read_safetensors(path)
            os.unlink(path)

    def checkpoint(self, *_):
        self.ctl("checkpoint", "checkpoint", self.job)

    # ---- their answers ----

    def judge(self, events, lost, last):
        """Compares the answers with the events of the undisturbed run. Of `lost` steps, which were trained once more,
        an answer is that of weights which exist no more."""
        sampled, losses = {}, {}
        for event in events:  # a step's last one counts: earlier ones are of a run that was cut back
            if "sampled" in event:
                sampled[int(event["sampled"]["step"])] = [row["tokens"] for row in event["sampled"]["sequences"]]
            if event.get("validation", {}).get("set") == "held":
                losses[int(event["validation"]["step"])] = event["validation"]["loss"]
        right, gone = 0, 0
        for answer in self.answers:
            if answer.step > last:
                continue
            if answer.is_right(sampled, losses):
                right += 1
            elif answer.step in lost:
                gone += 1
            else:
                self.wrong.append(f"{answer.kind} of step {answer.step}: {answer.sequences or answer.loss}, but "
                                  f"{sampled.get(answer.step)}, {losses.get(answer.step)}; steps lost: {sorted(lost)}")
        self.judged = {"right": right, "of lost steps": gone}

    def line(self):
        """Of the log."""
        return {"calls": sum(self.counts[kind] for kind in COUNTED), "answers": len(self.answers), **self.judged,
                "kinds": dict(self.counts), "errors": dict(self.errors.most_common()),
                **({"failed": self.wrong[:5]} if self.wrong else {})}


def lost_steps(changes):
    """Steps that were trained once more after a change."""
    return {later for _, step, _, lost, _ in changes for later in range(step + 1, step + 1 + (lost or 0))}


class Calls(kills.Kills):
    """Not run by unittest itself: a job at a time, by its seed."""

    planned = kills.PLANNED + CAN_EVALUATE
    watched = WATCHED
    callers = log = None
    keep = None  # a path: the log of a job whose calls failed

    def serve(self, draw):
        self.port = harness.free_port()
        super().serve(draw, "--http-listen", f"127.0.0.1:{self.port}")

    def begin(self, job):
        self.callers = Callers(self.daemon, self.port, job, self.draw.seed)

    def end(self):
        self.callers.end(any("coordinator away" in troubles for _, troubles in self.draw.moments))

    def try_kill(self, job, moment, troubles):
        before = len(self.callers.answers)
        self.daemon.wait_for(lambda: self.callers.wrong or len(self.callers.answers) >= before + ANSWERS, 60,
                             f"{ANSWERS} answers")
        self.assertEqual(self.callers.wrong, [])
        return super().try_kill(job, moment, troubles)

    def path(self, job):
        self.lost, self.log = lost_steps(self.changes(job)), self.daemon.text()
        return super().path(job)

    def compare(self, path, step, weights):
        same = super().compare(path, step, weights)
        self.callers.judge(self.daemon.events(self.planned_job), self.lost, step)
        return same

    def train(self, compare, say):
        try:
            super().train(compare, say)
        finally:
            if self.callers:
                say({"seed": self.draw.seed, **self.callers.line()})
            if self.callers and self.callers.wrong and self.log and self.keep:
                with open(f"{self.keep}-seed-{self.draw.seed}-calls", "w") as file:
                    file.write(self.log)
        self.assertEqual(self.callers.wrong, [])


def summarize(lines):
    total = collections.Counter()
    for line in lines:
        total.update({key: line[key] for key in ("kills", "calls", "answers", "right", "of lost steps") if key in line})
        total["jobs compared"] += "compared" in line
        total["failed"] += "failed" in line
        total.update(line.get("kinds", {}))
    errors = collections.Counter()
    for line in lines:
        errors.update(line.get("errors", {}))
    print(", ".join(f"{number} {key}" for key, number in total.items()))
    print(*(f"{number:6d} × {error}" for error, number in errors.most_common()), sep="\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", required=True)
    parser.add_argument("--first", type=int, default=kills.SINGLES + 1)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--summary", action="store_true")
    arguments = parser.parse_args()
    lines = read_log(arguments.log)
    done = {line["seed"] for line in lines if "calls" in line}
    made, failed, seed = sum(line.get("calls", 0) for line in lines), 0, arguments.first
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # with its daemon
    Calls.keep = arguments.log
    Calls.setUpClass()
    try:
        with open(arguments.log, "a") as log:
            def say(line):
                nonlocal made
                made += line.get("calls", 0)
                print(json.dumps(line), file=log, flush=True)
            while made < arguments.calls and not arguments.summary:
                if seed not in done:
                    failed += not kills.run_seed(seed, True, say, arguments.log, Calls)
                seed += 1
    finally:
        Calls.tearDownClass()
    summarize(read_log(arguments.log))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
