#!/usr/bin/env python3
"""Workers of elastic jobs with redundancy in memory are killed while one or two other troubles last: a
disk that is slow, a survivor that is stopped, a coordinator that is killed, too, `resize`, `drain`,
and a job of higher priority. At most elastic.every_steps steps may be done again, the processes that
were not killed stay, what was ordered is done in the end, and the weights have the bits of a run whose
number of workers changes at the same steps by way of checkpoints.

Each seed is one job with three moments of killing; a line per moment goes to the log. A seed whose
lines are in the log is not run again. The first SINGLES seeds have one trouble each, the others two.

With --adapter the jobs train adapters.

usage: kills.py --log FILE [--first SEED] [--jobs N] [--compare-every N] [--adapter] [--summary]"""

import argparse
import collections
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness
from elastic_jobs import ADAPTER, ELASTIC, SETTINGS, RedundancyTestCase, read_log

SINGLES = 40
KILLS_PER_JOB = 3  # fsdpd delays the start of workers that end again and again
MOMENTS = ("step", "step", "set up", "growth", "checkpoint", "pull", "units")
TWO_KILLS = ("set up", "growth")  # which may take a shard with its copy
ORDERS = ("resize", "drain", "priority")
TROUBLES = ("slow disk", "standing survivor", "coordinator away") + ORDERS
POLICIES = (("--policy", "none"), ("--policy", "size", "--min-num-params", "1000"),
            ("--policy", "type", "--types", "MLP"))
# Units do not change the bits, except through the norm of a clipped gradient.
ENDLESS = ("retry.machine_failures=1000", "schedule.total_steps=100000", "train.max_steps=1000000")
PLANNED = ("schedule.total_steps=100000", "train.clip_grad_norm.max_norm=0")
LEAST = 2  # elastic.min_workers


class Draw:
    """What a seed means: a job, and for each of its moments the troubles."""

    def __init__(self, seed):
        self.seed = seed
        self.chance = random.Random(f"kills {seed}")
        self.redundancy = ("mirror", "parity")[seed // 2 % 2]
        self.world = 3 + seed // 4 % 3
        self.checkpoint = seed // 12 % 2 == 1  # one is taken before the first kill
        self.settle = self.chance.choice((1, 3))  # seconds
        self.every = self.chance.choice((1, 1, 2))  # steps
        self.shrink = self.chance.random() < 0.75
        self.moments = [self.draw_moment(KILLS_PER_JOB * seed + number) for number in range(KILLS_PER_JOB)]

    def draw_moment(self, number):
        if self.seed <= SINGLES:
            return "step", [TROUBLES[number % len(TROUBLES)]]
        return self.chance.choice(MOMENTS), self.chance.sample(TROUBLES, self.chance.choice((1, 2, 2, 2)))


class Kill:
    """One moment: who is killed, and who must stay."""

    def __init__(self, job, draw, ranks, attempt, step):
        self.job, self.chance, self.world = job, draw.chance, draw.world
        self.left, self.attempt, self.step = dict(ranks), attempt, step
        self.kept = dict(ranks)  # which must stay although fsdpd itself ends
        self.spared = set()  # pids that are not killed
        self.victims, self.at, self.demands = 0, None, []
        self.others = 0  # workers that an order gives to others

    def leave(self, ranks):
        """These ranks leave by an order, perhaps before fsdpd is killed."""
        for rank in ranks:
            self.kept.pop(rank, None)

    def kill_one(self, seconds):
        choice = sorted(rank for rank, pid in self.left.items() if pid not in self.spared)
        if choice:
            rank = self.chance.choice(choice)
            time.sleep(self.chance.random() * seconds)
            os.kill(self.left.pop(rank), signal.SIGKILL)
            self.kept.pop(rank, None)
            self.victims += 1
            self.at = time.time()


class Kills(RedundancyTestCase):
    """Not run by unittest itself: one job at a time, by its seed."""

    planned = PLANNED
    watched = ()  # more settings of the run by plan

    def runTest(self):
        pass

    def begin(self, job):
        """The job trains, before its first kill."""

    def end(self):
        """After its last one."""

    def serve(self, draw, *arguments):
        self.draw, self.long = draw, draw.settle + 2
        self.faults = harness.Faults(self.data)
        self.daemon = harness.Daemon(
            workers=draw.world, data=self.data, arguments=["--shrink-elastic"] * draw.shrink + list(arguments),
            environment={**self.faults.environment, "FSDPD_LIMITS_SETTLE_SECONDS": str(draw.settle),
                         "FSDPD_LIMITS_KILL_SECONDS": "30"})  # a rank may be stopped, and then sync slowly

    # ---- troubles: each begins before the kill and ends after it ----

    @contextlib.contextmanager
    def slow_disk(self, kill):
        self.faults.set(f"fsync */checkpoints/* {self.long * 1000}")
        verb = self.daemon.spawn("checkpoint", kill.job)
        self.daemon.wait_for(lambda: sum(self.faults.hits()) > 0 or verb.poll() is not None, 60, "an fsync")
        yield
        verb.communicate(timeout=harness.PATIENCE)
        self.faults.clear()

    @contextlib.contextmanager
    def standing_survivor(self, kill):
        pid = kill.left[kill.chance.choice(sorted(kill.left))]
        kill.spared.add(pid)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
            time.sleep(max(0, kill.at + self.long - time.time()))
        finally:
            os.kill(pid, signal.SIGCONT)

    @contextlib.contextmanager
    def coordinator_away(self, kill):
        first = kill.chance.random() < 0.5
        if first:
            self.daemon.kill()
        yield
        if not first:
            time.sleep(kill.chance.random() * 0.25)
            self.daemon.kill()
        time.sleep(3 * kill.chance.random())
        self.daemon.start(attach=False)

    @contextlib.contextmanager
    def resize(self, kill):
        target = kill.chance.randrange(LEAST, kill.world)
        kill.leave(range(target, kill.world))
        verb = self.daemon.spawn("resize", kill.job, str(target))
        yield
        verb.communicate(timeout=harness.PATIENCE)
        if verb.returncode == harness.DONE:
            kill.demands.append((f"{target} workers",
                                 lambda: len(self.daemon.show(kill.job)["workers"]) <= target))

    @contextlib.contextmanager
    def drain(self, kill):
        rank = max(kill.left)
        kill.leave([rank])
        kill.spared.add(kill.left[rank])
        name = next(worker["id"] for worker in self.daemon.worker_list()
                    if int(worker["pid"]) == kill.left[rank])
        verb = self.daemon.spawn("drain", name, "--now")
        yield
        verb.communicate(timeout=harness.PATIENCE)
        kill.others += 1
        if verb.returncode == harness.DONE:
            kill.demands.append((f"{name} drained", lambda: name not in self.daemon.show(kill.job)["workers"]))

    @contextlib.contextmanager
    def priority(self, kill):
        workers = kill.chance.randrange(1, kill.world - LEAST + 1)
        kill.leave(range(kill.world - workers, kill.world))
        self.other = self.submit(*SETTINGS, f"workers={workers}", "priority=5", "train.max_steps=100000")
        yield
        kill.others += workers
        if self.draw.shrink:
            kill.demands.append((f"{self.other} on {workers} workers",
                                 lambda: self.daemon.show(self.other)["state"] == "RUNNING"))

    def undo(self, kill):
        """All workers are the job's again."""
        for name in [row["id"] for row in self.daemon.worker_list() if row.get("drained")]:
            self.expect_done("undrain", name)
        if self.other:
            self.expect_done("cancel", self.other)
            self.other = None
        self.daemon.wait_for(lambda: self.daemon.ctl("resize", kill.job, str(kill.world)).returncode
                             in (harness.DONE, harness.USAGE), 60, "the job to be resized")

    def running(self, job):
        """As in ElasticTestCase, but of a job that trains. A restarted fsdpd repeats that of the last attempt, and
        does not know from where it continued if that attempt had begun while it was away: left out."""
        texts = {entry["attempt"]: entry["reason"]["message"] for entry in self.daemon.json("history", job)
                 if entry["state"] == "RUNNING" and entry["reason"]["code"] == "RUNNING"}
        self.unknown = "training" in texts.values()
        return [text for text in texts.values() if text != "training"]

    # ---- moments ----

    def log_size(self):
        return os.path.getsize(os.path.join(self.daemon.root, "fsdpd.log"))

    def wait_logged(self, words, begin, seconds):
        """Returns when the log has these words after its first `begin` bytes, or when that takes too long."""
        until = time.monotonic() + seconds
        with open(os.path.join(self.daemon.root, "fsdpd.log"), errors="replace") as log:
            while time.monotonic() < until:
                log.seek(begin)
                if words in log.read():
                    return
                time.sleep(0.002)

    def kill_at(self, kill, moment, seconds):
        if moment in TWO_KILLS:
            begin = self.log_size()
            kill.kill_one(seconds)
            self.wait_logged("attempt_started" if moment == "set up" else "resized from", begin, 2)
            kill.kill_one(0.05 if moment == "set up" else 0.15)
        elif moment == "step":
            kill.kill_one(seconds)
        else:
            file = os.path.join(self.daemon.root, "pulled")
            options = {"checkpoint": (), "pull": ("-o", file), "units": kill.chance.choice(POLICIES)}[moment]
            self.verb = self.daemon.spawn(*(("wrap", "set") if moment == "units" else (moment,)), kill.job, *options)
            time.sleep(kill.chance.random() * 0.02)
            kill.kill_one(0.15)

    def expect_done(self, *verb):
        done = self.daemon.ctl(*verb)
        self.assertEqual(done.returncode, 0, f"{verb}: {done.stderr}")

    def expect_alive(self, pids):
        def alive():
            missing = set(pids) - {int(row["pid"]) for row in self.daemon.worker_list()}
            self.assertEqual([pid for pid in missing if not harness.alive(pid)], [], "a survivor ended")
            return not missing
        self.daemon.wait_for(alive, 60, "the other workers")

    def judge(self, kill, moment, changes):
        """The steps done again, the changes from memory, and those after two losses."""
        again, memory, two, known = 0, 0, 0, kill.step
        for _, step, from_memory, lost, text in changes:
            memory += from_memory
            if step >= known - self.draw.every and (lost or 0) <= self.draw.every:
                again = max(again, lost or 0)
                continue
            self.assertIn(moment, TWO_KILLS, f"went back, at step {known} at least: {text}")
            self.assertIn("were lost", text)
            known, two = step, two + 1
        return again, memory, two

    def try_kill(self, job, moment, troubles):
        ranks = self.wait_world(job, self.draw.world, self.step(job) + 2)
        shown, before = self.daemon.show(job), len(self.changes(job))
        kill = Kill(job, self.draw, ranks, shown["attempt"], int(shown["step"]))
        self.other = self.verb = None
        # Orders need fsdpd; a stopped one continues before what waits for it.
        troubles = sorted(troubles, key=("standing survivor", "coordinator away").__contains__)
        troubles.sort(key="coordinator away".__eq__)
        with contextlib.ExitStack() as stack:
            for trouble in troubles:
                stack.enter_context(getattr(self, trouble.replace(" ", "_"))(kill))
            self.kill_at(kill, moment, 2 * max(shown["metrics"]["step_seconds"], 0.025))
        away = "coordinator away" in troubles
        self.expect_alive((kill.kept if away else kill.left).values())
        if self.verb:
            _, error = self.verb.communicate(timeout=harness.PATIENCE)
            answers = (harness.DONE, harness.FAILED, harness.CONFLICT) + (harness.UNREACHABLE,) * away
            self.assertIn(self.verb.returncode, answers, error)
        self.wait_next(kill)
        # With fewer than it needs the job keeps all; a drained worker, too.
        for what, done in kill.demands if kill.world - kill.others >= LEAST else ():
            self.daemon.wait_for(done, 60, what)
        self.undo(kill)
        self.wait_world(job, self.draw.world)
        changes = self.changes(job)[before:]
        again, memory, two = self.judge(kill, moment, changes)
        return {"kills": kill.victims, "changes": len(changes), "memory": memory, "again": again, "two": two,
                "killed": (kill.attempt, kill.at)}

    def wait_next(self, kill):
        def reached():
            shown = self.daemon.show(kill.job)
            self.assertIn(shown["state"], ("QUEUED", "STARTING", "RUNNING"), shown["reason"])
            return shown["attempt"] > kill.attempt and shown["state"] == "RUNNING"
        self.daemon.wait_for(reached, 60, "another attempt")

    # ---- a job ----

    def path(self, job):
        """The worlds that the weights of the job come from, and since which step."""
        path = [(self.draw.world, 0)]
        for world, step, *_ in self.changes(job):
            while path and path[-1][1] >= step:  # of steps that were lost
                path.pop()
            path.append((world, step))
        return path

    def try_kills(self, job, say):
        """The lines of the job's moments."""
        draw, lines = self.draw, []
        for number, (moment, troubles) in enumerate(draw.moments):
            line = {"seed": draw.seed, "number": number, "mode": draw.redundancy, "world": draw.world,
                    "checkpoint": draw.checkpoint, "every": draw.every, "settle": draw.settle,
                    "shrink": draw.shrink, "moment": moment, "troubles": troubles}
            try:
                lines.append({**line, **self.try_kill(job, moment, troubles)})
            except Exception as error:
                say({**line, "failed": f"{type(error).__name__}: {error}"[:400]})
                raise
        return lines

    def compare(self, path, step, weights):
        """Whether a run whose number of workers changes at these steps has these weights."""
        self.daemon = harness.Daemon(workers=self.draw.world, data=self.data)
        return self.train_by_plan(path, step, self.planned + self.watched) == self.saved(weights)

    def train(self, compare, say):
        draw = self.draw
        job = self.submit(*ELASTIC, *ENDLESS, *self.planned, f"workers={draw.world}",
                          f"elastic.max_workers={draw.world}", f"elastic.redundancy={draw.redundancy}",
                          f"elastic.every_steps={draw.every}")
        self.wait_world(job, draw.world, 10)
        if draw.checkpoint:
            self.expect_done("checkpoint", job)
        self.begin(job)
        try:
            lines = self.try_kills(job, say)
        finally:
            self.end()
        weights, step = self.pull(job) if compare else (None, 0)
        self.expect_done("cancel", job)
        self.daemon.wait_state(job, "CANCELLED")
        path = self.path(job)
        times = self.seconds_to_step(job, [line.pop("killed") for line in lines])
        for line, seconds in zip(lines, times):
            say({**line, "seconds": round(seconds, 3)})
        self.daemon.close()
        if compare and not self.unknown:
            same = self.compare(path, step, weights)
            differ = {} if same else {"failed": f"bits differ: {path}, {step}"}
            say({"seed": draw.seed, "compared": len(path), **differ})
            self.assertTrue(same, f"seed {draw.seed}: {path}, {step}")
            self.daemon.close()


def summarize(lines):
    """The counts of each trouble, alone and with others, for docs/elastic-kills.txt."""
    groups = collections.defaultdict(list)
    for line in lines:
        if "kills" in line:
            for trouble in line["troubles"]:
                groups[trouble, "alone" if len(line["troubles"]) == 1 else "paired", line["mode"]].append(line)
    print("# trouble            how     mode    moments  kills  changes  memory  two  again  median   worst")
    for (trouble, how, mode), rows in sorted(groups.items()):
        total = {key: sum(row[key] for row in rows) for key in ("kills", "changes", "memory", "two")}
        seconds = [row["seconds"] for row in rows]
        print(f"  {trouble:18s} {how:7s} {mode:7s} {len(rows):7d} {total['kills']:6d} {total['changes']:8d} "
              f"{total['memory']:7d} {total['two']:4d} {max(row['again'] for row in rows):6d} "
              f"{statistics.median(seconds):7.3f} {max(seconds):7.3f}")
    print(f"# {sum(line.get('kills', 0) for line in lines)} kills, {len({line['seed'] for line in lines})} jobs, "
          f"{sum('compared' in line for line in lines)} compared, {sum('failed' in line for line in lines)} failed")


def run_seed(seed, compare, say, path, kind=Kills):
    """True if the job held. Otherwise the daemon's log is kept beside this one."""
    kills = kind()
    try:
        kills.serve(Draw(seed))
        kills.train(compare, say)
        return True
    except Exception as error:
        print(f"seed {seed}: {error}", file=sys.stderr, flush=True)
        with contextlib.suppress(OSError):
            shutil.copy(os.path.join(kills.daemon.root, "fsdpd.log"), f"{path}-seed-{seed}")
        return False
    finally:
        kills.daemon.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", required=True)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=334)
    parser.add_argument("--compare-every", type=int, default=6)
    parser.add_argument("--adapter", action="store_true")
    parser.add_argument("--summary", action="store_true")
    arguments = parser.parse_args()
    if arguments.summary:
        summarize(read_log(arguments.log))
        return 0
    done = {line["seed"] for line in read_log(arguments.log)
            if line.get("number") == KILLS_PER_JOB - 1 or "failed" in line}
    failed = 0
    Kills.planned = PLANNED + ADAPTER * arguments.adapter
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # with its daemon
    Kills.setUpClass()
    try:
        with open(arguments.log, "a") as log:
            def say(line):
                print(json.dumps(line), file=log, flush=True)
            for seed in range(arguments.first, arguments.first + arguments.jobs):
                if seed not in done:
                    failed += not run_seed(seed, seed % arguments.compare_every == 0, say,
                                               arguments.log)
    finally:
        Kills.tearDownClass()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
