#!/usr/bin/env python3
"""Jobs of different priorities share four workers with queue.preempt and queue.shrink_elastic: an order of
submissions that a seed draws, and meanwhile drains, killed workers, and a killed coordinator. Every job succeeds. One
of fixed size has the bits of a run that was left alone, an elastic one the curve. One of fixed size is sampled and
evaluated meanwhile, with the answers of that run (calls_under_kills.py). A job is preempted only for one of higher
priority, and not again within queue.preempt_seconds.

A line per order goes to the log. A seed whose line is in the log is not run again.

usage: preemptions.py --log FILE [--first SEED] [--orders N] [--summary]"""

import argparse
import collections
import contextlib
import datetime
import json
import os
import random
import re
import shutil
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import calls_under_kills
import harness
from elastic_jobs import RedundancyTestCase, read_log

WORKERS = 4
STEPS = 150
SETTINGS = (f"train.max_steps={STEPS}", "train.log_interval=1", "train.global_batch=8", "train.batch_size=2",
            *calls_under_kills.CAN_EVALUATE, "data.context=32", "schedule.warmup_steps=10", "optimizer.lr=3.0e-4",
            "checkpoint.every_steps=40", "retry.machine_failures=1000")
ELASTIC = ("workers=4", "elastic={min_workers: 2, max_workers: 4}")
PREEMPT_SECONDS = 2
CALLERS, CALLS = 2, 8  # with that many answers each
TROUBLES = ("drain", "killed worker", "killed coordinator")
FOR = re.compile(r"preempted for ([\w-]+), which has a higher priority; continues from step (\d+)")


class Draw:
    """What a seed means: jobs with the seconds until each is submitted, and troubles with theirs."""

    def __init__(self, seed):
        self.seed = seed
        self.chance = chance = random.Random(f"preemptions {seed}")
        self.jobs = [{"workers": chance.choice((1, 2, 2, 3, 4)), "priority": chance.randrange(10),
                      "elastic": chance.random() < 0.25, "after": chance.random()}
                     for _ in range(chance.randint(4, 6))]
        self.jobs[0]["priority"] = min(self.jobs[0]["priority"], 3)  # so that others may preempt it
        self.troubles = [(chance.choice(TROUBLES), chance.uniform(0.5, 2)) for _ in range(chance.randint(1, 3))]


class Preemptions(RedundancyTestCase):
    """Not run by unittest itself: an order at a time, by its seed."""

    alone = None  # the weights of runs that were left alone, by workers
    watched = None  # and their events
    callers = None
    curve = None  # and the losses of one of them

    def runTest(self):
        pass

    def serve(self):
        self.port = harness.free_port()
        self.daemon = harness.Daemon(
            workers=WORKERS, data=self.data,
            arguments=["--shrink-elastic", "--preempt", "--http-listen", f"127.0.0.1:{self.port}"],
            environment={"FSDPD_QUEUE_PREEMPT_SECONDS": str(PREEMPT_SECONDS), "FSDPD_LIMITS_SETTLE_SECONDS": "1"})

    def learn(self, called):
        """Trains a job of each size alone, once for all seeds; those of these sizes also answer after each step."""
        if self.alone is not None:
            return
        calls_under_kills.write_held_out(self.data)
        jobs = {workers: self.submit(*SETTINGS, *calls_under_kills.WATCHED * (workers in called), f"workers={workers}")
                for workers in range(1, WORKERS + 1)}
        for job in jobs.values():
            self.succeed(job)
        Preemptions.alone = {workers: self.daemon.tensors(job) for workers, job in jobs.items()}
        Preemptions.watched = {workers: self.daemon.events(job) for workers, job in jobs.items()}
        Preemptions.curve = self.last_losses(jobs[3])

    # ---- troubles ----

    def attached(self):
        """None may be, for a moment, after the coordinator was killed."""
        return self.daemon.wait_for(self.daemon.worker_list, 60, "a worker to attach")

    def drain(self, chance):
        """A worker is drained at once, and is back soon afterwards."""
        name = chance.choice(sorted(worker["id"] for worker in self.attached()))
        self.daemon.ctl("drain", name, "--now")
        time.sleep(chance.random())
        self.assertEqual(self.daemon.ctl("undrain", name).returncode, harness.DONE)

    def killed_worker(self, chance):
        os.kill(int(chance.choice(self.attached())["pid"]), signal.SIGKILL)

    def killed_coordinator(self, chance):
        self.daemon.kill()
        time.sleep(chance.random())
        self.daemon.start(attach=False)

    # ---- an order ----

    def order(self, draw, called):
        """Submits and troubles, as their times come. Returns the drawn jobs by their ids."""
        at, jobs = 0, {}
        plan = []
        for job in draw.jobs:
            at += job["after"]
            plan.append((at, job))
        at = 0
        for name, after in draw.troubles:
            at += after
            plan.append((at, name))
        began = time.monotonic()
        for when, what in sorted(plan, key=lambda entry: entry[0]):
            time.sleep(max(0, began + when - time.monotonic()))
            if isinstance(what, str):
                getattr(self, what.replace(" ", "_"))(draw.chance)
            else:
                size = ELASTIC if what["elastic"] else (f"workers={what['workers']}",)
                job = self.submit(*SETTINGS, *size, f"priority={what['priority']}")
                jobs[job] = what
                if self.callers is None and not what["elastic"] and what["workers"] in called:
                    self.called = job
                    self.callers = calls_under_kills.Callers(self.daemon, self.port, job, draw.seed, CALLERS, CALLS)
        return jobs

    def judge(self, job, drawn, jobs):
        """The number of preemptions of the job."""
        # A job that waits after that says so, too, without the step.
        entries = [entry for entry in self.daemon.json("history", job)
                   if entry["reason"]["code"] == "PREEMPTED" and FOR.match(entry["reason"]["message"])]
        times = [datetime.datetime.fromisoformat(entry["time"]).timestamp() for entry in entries]
        for entry in entries:
            other, step = FOR.match(entry["reason"]["message"]).groups()
            self.assertGreater(jobs[other]["priority"], drawn["priority"], entry)
            self.assertLessEqual(int(step), STEPS)
        for before, after in zip(times, times[1:]):  # of entries, which are written when the checkpoint is there
            self.assertGreater(after - before, PREEMPT_SECONDS / 2, entries)
        self.assertEqual(sorted(self.last_losses(job)), list(range(1, STEPS + 1)))
        if drawn["elastic"]:
            self.expect_curve(job, self.curve)
        else:
            self.assertTrue(self.daemon.tensors(job) == self.alone[drawn["workers"]], f"{job}: other bits")
        return len(entries)

    def judge_calls(self, jobs):
        """Their line. Steps that were trained once more had the same bits before."""
        if self.callers is None:
            return {}
        self.callers.judge(self.watched[jobs[self.called]["workers"]], (), STEPS)
        self.assertEqual(self.callers.wrong, [])
        return self.callers.line()

    def run_order(self, draw, called):
        self.learn(called)
        try:
            jobs = self.order(draw, called)
            for job in jobs:
                self.succeed(job)
        finally:
            if self.callers:
                self.callers.end(any(name == "killed coordinator" for name, _ in draw.troubles))
        return {**self.judge_calls(jobs), "jobs": len(jobs),
                "elastic": sum(drawn["elastic"] for drawn in jobs.values()),
                "preempted": sum(self.judge(job, drawn, jobs) for job, drawn in jobs.items()),
                "shrunk": sum(entry["reason"]["message"].startswith("shrunk") for job in jobs
                              for entry in self.daemon.json("history", job)),
                "troubles": [name for name, _ in draw.troubles]}


def run_seed(seed, path=None, called=range(1, WORKERS + 1)):
    """The line of this order. Of one that fails, the daemon's log is kept beside the path."""
    preemptions = Preemptions()
    try:
        preemptions.serve()
        return {"seed": seed, **preemptions.run_order(Draw(seed), called)}
    except Exception as error:
        if path is None:
            raise
        with contextlib.suppress(OSError):
            shutil.copy(os.path.join(preemptions.daemon.root, "fsdpd.log"), f"{path}-seed-{seed}")
        return {"seed": seed, "failed": f"{type(error).__name__}: {error}"[:400]}
    finally:
        preemptions.daemon.close()


def summarize(lines):
    held = [line for line in lines if "failed" not in line]
    troubles = collections.Counter(name for line in held for name in line["troubles"])
    print(f"{len(lines)} orders, {sum(line['jobs'] for line in held)} jobs ({sum(line['elastic'] for line in held)} "
          f"elastic), {sum(line['preempted'] for line in held)} preemptions, "
          f"{sum(line['shrunk'] for line in held)} shrunk, {sum(line.get('calls', 0) for line in held)} calls with "
          f"{sum(line.get('right', 0) for line in held)} right answers, " +
          ", ".join(f"{number} × {name}" for name, number in sorted(troubles.items())) +
          f", {len(lines) - len(held)} failed")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", required=True)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--orders", type=int, default=200)
    parser.add_argument("--summary", action="store_true")
    arguments = parser.parse_args()
    done = {line["seed"] for line in read_log(arguments.log)}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # with its daemon
    Preemptions.setUpClass()
    try:
        with open(arguments.log, "a") as log:
            for seed in range(arguments.first, arguments.first + arguments.orders * (not arguments.summary)):
                if seed not in done:
                    print(json.dumps(run_seed(seed, arguments.log)), file=log, flush=True)
    finally:
        Preemptions.tearDownClass()
    lines = read_log(arguments.log)
    summarize(lines)
    return 1 if any("failed" in line for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
