#!/usr/bin/env python3
"""Ranks of elastic jobs with redundancy in memory are killed at seeded moments: of a step, while
the rest set up, while the job grows, and while a checkpoint, a pull or a change of units is under way.
The others keep their processes, lose at most elastic.every_steps steps, and train on with the bits
of planned changes. What was under way succeeds or fails with an error, and leaves nothing behind.
Every second job trains adapters.

The long form: FSDPD_REDUNDANCY_KILLS is the number of kills per kind of redundancy (a third more
follow, as some moments kill two ranks), FSDPD_REDUNDANCY_SEED draws the moments,
FSDPD_REDUNDANCY_WIDTH is the model's width, and FSDPD_REDUNDANCY_COMPARED the number of jobs whose
bits are compared. A job gets KILLS_PER_JOB of the kills."""

import collections
import glob
import os
import random
import re
import signal
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(__file__))
import harness
from elastic_jobs import ADAPTER, ELASTIC, RedundancyTestCase

KILLS = int(os.environ.get("FSDPD_REDUNDANCY_KILLS", "6"))
SEED = int(os.environ.get("FSDPD_REDUNDANCY_SEED", "1"))
WIDTH = int(os.environ.get("FSDPD_REDUNDANCY_WIDTH", "128"))
COMPARED = int(os.environ.get("FSDPD_REDUNDANCY_COMPARED", "1"))
KILLS_PER_JOB = 3  # fsdpd delays the start of workers that end again and again
# Units do not change the bits, except through the norm of a clipped gradient.
MEMORY = ("retry.machine_failures=1000", "schedule.total_steps=100000",
          "train.clip_grad_norm.max_norm=0")
POLICIES = (("--policy", "none"), ("--policy", "size", "--min-num-params", "1000"),
            ("--policy", "type", "--types", "MLP"))
# Each kind of moment once, in an order that the seed gives, before any of them again.
MOMENTS = ("step", "set up", "growth", "checkpoint", "pull", "units")
ANSWERS = (harness.DONE, harness.FAILED, harness.CONFLICT)
PLACE = re.compile(r'message="(?:(sending redundancy)|.*?: (\w+) number).*lost rank')


class Round:
    """The kills of a job, and what came of them."""

    def __init__(self, job):
        self.job, self.victims, self.killed_at, self.last = job, [], None, []
        self.moments, self.answers = collections.Counter(), collections.Counter()


class RedundancyKills(RedundancyTestCase):
    width = WIDTH

    def log_size(self):
        return os.path.getsize(os.path.join(self.daemon.root, "fsdpd.log"))

    def wait_logged(self, words, begin):
        """Sooner than by asking: the log has one of these words after its first `begin` bytes."""
        until = time.monotonic() + harness.PATIENCE
        with open(os.path.join(self.daemon.root, "fsdpd.log"), errors="replace") as log:
            while time.monotonic() < until:
                log.seek(begin)
                if words in log.read():
                    return
                time.sleep(0.001)
        self.fail(f"waited {harness.PATIENCE} s for the log to say {words}\n{self.daemon.text()}")

    def wait_next_attempt(self, job, attempt):
        def reached():
            shown = self.daemon.show(job)
            self.assertIn(shown["state"], ("QUEUED", "STARTING", "RUNNING"), shown["reason"])
            return shown["attempt"] > attempt and shown["state"] == "RUNNING"
        self.daemon.wait_for(reached, 60, "another attempt")

    def kill_one(self, own, chance, ranks, seconds):
        victim = chance.choice(sorted(ranks))
        time.sleep(chance.random() * seconds)
        os.kill(ranks.pop(victim), signal.SIGKILL)
        own.victims.append(victim)
        own.killed_at = time.time()

    def kill_in_set_up(self, own, chance, ranks, seconds):
        """A second rank dies while the rest set up."""
        begin = self.log_size()
        self.kill_one(own, chance, ranks, seconds)
        self.wait_logged("attempt_started", begin)
        self.kill_one(own, chance, ranks, 0.05)

    def kill_in_growth(self, own, chance, ranks, seconds):
        """A second rank dies while the job takes in the worker that replaces the first."""
        begin = self.log_size()
        self.kill_one(own, chance, ranks, seconds)
        self.wait_logged("resized from 3 to 4 workers: ", begin)
        self.kill_one(own, chance, ranks, 0.15)

    def begin_verb(self, own, chance, moment):
        file = os.path.join(self.daemon.root, f"pulled-{len(own.victims)}")
        options = {"checkpoint": (), "pull": ("-o", file), "units": chance.choice(POLICIES)}[moment]
        verb = ("wrap", "set") if moment == "units" else (moment,)
        return self.daemon.spawn(*verb, own.job, *options), file

    def kill_in_verb(self, own, chance, ranks, moment):
        verb, file = self.begin_verb(own, chance, moment)
        time.sleep(chance.random() * 0.02)
        self.kill_one(own, chance, ranks, 0.15)
        when = "during" if verb.poll() is None else "after"
        _, error = verb.communicate(timeout=harness.PATIENCE)
        self.assertIn(verb.returncode, ANSWERS, error)
        if verb.returncode != harness.DONE:
            self.assertRegex(error, r"^fsdpctl: .{10}", moment)
        said = re.sub(r"\d+", "N", error.strip()) if verb.returncode else "done"
        own.answers[f"{moment}, killed {when}: {said}"] += 1
        if moment == "pull" and verb.returncode == harness.DONE:
            harness.read_safetensors(file)
            os.unlink(file)
        self.assertEqual(glob.glob(file + "*"), [], error)

    def kill_at(self, own, moment, chance):
        """The processes of the other ranks stay."""
        job = own.job
        ranks = self.wait_world(job, 4, self.step(job) + 2)
        shown = self.daemon.show(job)
        seconds = 2 * max(shown["metrics"]["step_seconds"], 0.025)
        own.moments[moment] += 1
        if moment == "step":
            self.kill_one(own, chance, ranks, seconds)
        elif moment == "set up":
            self.kill_in_set_up(own, chance, ranks, seconds)
        elif moment == "growth":
            self.kill_in_growth(own, chance, ranks, seconds)
        else:
            self.kill_in_verb(own, chance, ranks, moment)
        own.last.append((shown["attempt"], own.killed_at))
        self.wait_next_attempt(job, shown["attempt"])
        alive = {int(worker["pid"]) for worker in self.daemon.worker_list()}
        self.assertLessEqual(set(ranks.values()), alive, f"seed {SEED}, {moment}")

    def check_nothing_is_left(self, own):
        """There are whole checkpoints only, and fsdpd lists them, also if their rank 0 died before
        it could say so."""
        directory = os.path.join(self.daemon.root, "state/jobs", own.job, "checkpoints")
        known = {os.path.basename(one["path"]) for one in self.daemon.json("checkpoints", own.job)}
        self.daemon.wait_for(lambda: set(os.listdir(directory)) == known, 60,
                             f"{known} to be in {directory}: {os.listdir(directory)}")

    def train(self, redundancy, moments, chance, more):
        """Trains a job in which ranks are killed at these moments. Returns what came of it, and its
        changes of workers."""
        job = self.submit(*ELASTIC, *MEMORY, *more, f"elastic.redundancy={redundancy}",
                          "train.max_steps=1000000")
        self.wait_world(job, 4, 40)
        taken = self.daemon.ctl("checkpoint", job)  # for two losses at once
        self.assertEqual(taken.returncode, 0, taken.stderr)
        own = Round(job)
        for moment in moments:
            self.kill_at(own, moment, chance)
        self.wait_world(job, 4, self.step(job) + 2)
        for verb in (("wrap", "set", job, "--policy", "auto"), ("checkpoint", job)):
            done = self.daemon.ctl(*verb)  # nothing of a verb before is in the way
            self.assertEqual(done.returncode, 0, done.stderr)
        return own

    def end(self, own):
        self.assertEqual(self.daemon.ctl("cancel", own.job).returncode, 0)
        self.daemon.wait_state(own.job, "CANCELLED")
        self.check_nothing_is_left(own)

    def restart_daemon(self):
        self.daemon.close()
        self.daemon = harness.Daemon(workers=4, data=self.data)
        self.addCleanup(self.daemon.close)

    def draw_moments(self, chance):
        moments = []
        while len(moments) < KILLS:
            moments += chance.sample(MOMENTS, len(MOMENTS))
        return [moments[first:min(first + KILLS_PER_JOB, KILLS)]
                for first in range(0, KILLS, KILLS_PER_JOB)]

    def kill_ranks(self, redundancy):
        chance = random.Random(f"{SEED} {redundancy}")
        rounds, changes, seconds, places = [], [], [], collections.Counter()
        for number, moments in enumerate(self.draw_moments(chance)):
            if number > 0:
                self.restart_daemon()
            more = ADAPTER if number % 2 == (redundancy == "mirror") else ()
            own = self.train(redundancy, moments, chance, more)
            weights, step = self.pull(own.job) if number < COMPARED else (None, 0)
            self.end(own)
            rounds.append(own)
            changes += self.changes(own.job)
            seconds += self.seconds_to_step(own.job, own.last)
            places += self.places()
            if number < COMPARED:
                self.expect_bits(weights, self.path(own.job), step, more)
        self.check_changes(redundancy, rounds, changes, seconds, places)

    def expect_bits(self, weights, changes, step, more):
        self.restart_daemon()
        planned = self.train_by_plan(changes, step, ("schedule.total_steps=100000", MEMORY[2], *more))
        self.assertEqual(self.saved(weights), planned, f"seed {SEED}: {changes}")

    def path(self, job):
        """The worlds that the weights of the job come from, and since which step."""
        path = [(4, 0)]
        for world, step, *_ in self.changes(job):
            while path and path[-1][1] >= step:  # of steps that were lost
                path.pop()
            path.append((world, step))
        return path

    def places(self):
        """What survivors were at when they noticed a loss."""
        with open(os.path.join(self.daemon.root, "fsdpd.log"), errors="replace") as log:
            return collections.Counter(
                found.group(1) or found.group(2) for found in map(PLACE.search, log) if found)

    def check_changes(self, redundancy, rounds, changes, seconds, places):
        again = [lost or 0 for _, _, memory, lost, _ in changes if memory]
        self.assertLessEqual(max(again), 1, changes)
        pairs = sum(own.moments["set up"] + own.moments["growth"] for own in rounds)
        for _, _, memory, _, text in changes:
            if not memory:  # ranks that were lost together had a shard and its copy
                self.assertIn("were lost", text)
        self.assertLessEqual(len(changes) - len(again), pairs, changes)
        moments, answers = collections.Counter(), collections.Counter()
        for own in rounds:
            moments += own.moments
            answers += own.answers
        print(f"{redundancy}, seed {SEED}: {sum(len(own.victims) for own in rounds)} kills, {len(again)} "
              f"of {len(changes)} changes from memory, the others after two losses; at most "
              f"{max(again)} steps done again; {statistics.median(seconds):.3f} s from a kill to "
              f"the next step in the median, {max(seconds):.3f} s at most; the bits of "
              f"{min(COMPARED, len(rounds))} of {len(rounds)} jobs compared\n"
              f"moments: {dict(moments)}\nsurvivors noticed in: {dict(places.most_common())}",
              *(f"{count} {answer}" for answer, count in sorted(answers.items())),
              sep="\n", file=sys.stderr)

    def test_mirror(self):
        self.kill_ranks("mirror")

    def test_parity(self):
        self.kill_ranks("parity")


if __name__ == "__main__":
    harness.main()
