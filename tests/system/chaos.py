#!/usr/bin/env python3
"""Chaos: users submit, cancel, pause, resize, pull, trace, diagnose and watch at random while
coordinator and workers are killed, stopped and restarted at random, some of them within 100 ms of a
user's call, while connections between workers break and the disk is full for a while. At the end
every accepted job must have ended correctly, none lost, none run twice, nothing left behind
(chaos_check.py). One seed determines everything.

usage: chaos.py [--seconds N] [--seed N] [--keep]        (600 seconds by default)"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import chaos_check
import harness

UNFINISHED_MAX = 8  # active jobs; more would only wait
ELASTIC_SHARE = 0.4  # of the jobs


class World:
    """One fsdpd with two supervised workers and one separate worker, and a record of the faults."""

    def __init__(self, seed, log=sys.stdout):
        self.seed, self.out = seed, log
        self.random = random.Random(f"{seed}/world")
        self.root = tempfile.mkdtemp(prefix="fsdpd-chaos-")
        self.token = f"{os.getpid()}-{seed}-{os.path.basename(self.root)}"
        self.data = os.path.join(self.root, "data")
        self.scratch = os.path.join(self.root, "scratch")  # the users' files
        self.tmp = os.path.join(self.root, "tmp")  # $TMPDIR of every process
        for path in (self.scratch, self.tmp):
            os.mkdir(path)
        harness.draw_digits(self.data, train=640, test=64)
        self.elastic_job = harness.draw_text_job(self.data)
        self.address = "unix:" + os.path.join(self.root, "run/fsdpd.sock")
        # This variable identifies our processes, even after they have another parent.
        self.environment = dict(os.environ, FSDPD_CONFIG="", FSDPD_ADDRESS=self.address,
                                FSDPD_CHAOS=self.token, TMPDIR=self.tmp)
        self.faults = harness.Faults(self.root)  # faults of the daemons, not of the users' programs
        self.troubling = threading.Lock()  # one fault in the processes at a time
        self.lock = threading.RLock()
        self.began = time.monotonic()
        self.jobs = {}  # job id: the requests for it, and the faults
        self.kills = []
        self.counts = {}
        self.coordinator = self.worker = None
        self.servers = {}
        self.ending = threading.Event()
        verbs = subprocess.run([harness.FSDPCTL, "--help"], stdout=subprocess.PIPE, text=True)
        self.verbs = {line.split()[0] for line in verbs.stdout.splitlines()
                      if line[:2] == "  " and line[2:3].isalpha()}
        self.daemon_log = open(os.path.join(self.root, "fsdpd.log"), "ab")

    def say(self, who, what):
        with self.lock:
            print(f"{time.monotonic() - self.began:7.2f} {who:10} {what}", file=self.out, flush=True)

    def count(self, what):
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + 1

    # ---- processes ----

    def spawn(self, *arguments, environment=(), **options):
        return subprocess.Popen(arguments, env=dict(self.environment, **dict(environment)),
                                stdin=subprocess.DEVNULL, **options)

    def spawn_daemon(self, *arguments):
        return self.spawn(*arguments, environment=self.faults.environment, stdout=self.daemon_log,
                          stderr=self.daemon_log)

    def start_coordinator(self):
        with self.lock:
            self.coordinator = self.spawn_daemon(
                harness.FSDPD, "--workers", "cpu:2", "--runtime-dir", os.path.join(self.root, "run"),
                "--state-dir", os.path.join(self.root, "state"), "--data-root", self.data,
                "--threads", "1")

    def start_worker(self):
        with self.lock:
            self.worker = self.spawn_daemon(
                harness.FSDPD, "worker", "--coordinator", self.address, "--id", "guest/cpu:0",
                "--data-root", self.data, "--threads", "1")

    def ctl(self, *arguments, timeout=30):
        """(exit code, stdout, stderr); the code is above 128 if the process did not end."""
        process = self.spawn(harness.FSDPCTL, *arguments, "--timeout", str(timeout / 2), text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return 137, "", "did not end"
        return process.returncode, out, err

    def json(self, *arguments):
        code, out, _ = self.ctl(*arguments, "-o", "json")
        return json.loads(out) if code == 0 else None

    def processes(self):
        """{pid: command line} of every live process that this test started."""
        found = {}
        needle = f"FSDPD_CHAOS={self.token}".encode()
        for entry in os.listdir("/proc"):
            if not entry.isdigit() or int(entry) == os.getpid():
                continue
            try:
                with open(f"/proc/{entry}/environ", "rb") as file:
                    if needle not in file.read().split(b"\0"):
                        continue
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    line = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if harness.alive(int(entry)):
                found[int(entry)] = line
        return found

    def workers(self):
        return [pid for pid, line in self.processes().items()
                if line.startswith(harness.FSDPD + " worker")]

    def wait_for(self, condition, seconds, what):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            value = condition()
            if value:
                return value
            time.sleep(0.1)
        raise AssertionError(f"waited {seconds} s for {what}")

    def serves(self):
        return self.ctl("version", timeout=4)[0] == 0

    # ---- jobs ----

    def some_job(self, rng):
        with self.lock:
            alive = [job for job, record in self.jobs.items() if not record.get("over")]
        return rng.choice(alive) if alive else None

    def note(self, job, what, code):
        """Records that a user requested `what`; code 0 means that fsdpd acknowledged it."""
        with self.lock:
            self.jobs[job].setdefault("asked", []).append((what, code, time.time()))


# ---- user actions: (world, user name, the user's random numbers) -> outcome ----

def submit(world, who, rng):
    with world.lock:
        if sum(not record.get("over") for record in world.jobs.values()) >= UNFINISHED_MAX:
            return look(world, who, rng)
        job = f"chaos-{len(world.jobs) + 1}"
        world.jobs[job] = {}
    settings = {"workers": rng.choice((1, 1, 1, 2, 2, 3)), "train.max_steps": rng.choice((20, 60, 150)),
                "save_model": rng.choice(("true", "false"))}
    least = rng.randint(1, settings["workers"]) if rng.random() < ELASTIC_SHARE else 0
    if least:
        file, data = world.elastic_job, [f"data.path={os.path.join(world.data, 'text.txt')}",
                                         "data.context=32", "train.global_batch=9",
                                         "schedule.warmup_steps=5", "optimizer.lr=3.0e-4"]
        settings["elastic"] = f"{{min_workers: {least}, max_workers: 3}}"
        settings["elastic.redundancy"] = rng.choice(("none", "mirror", "parity"))
        kind = ("elastic", settings["train.max_steps"])
    else:
        file, data = harness.JOB, [f"data.dir={world.data}", "train.epochs=1000"]
        settings.update({"fsdp.wrap.policy": "size", "fsdp.wrap.min_num_params": 20000})
        kind = (settings["workers"], settings["train.max_steps"])
    if "history" in world.verbs:  # the queue exists by now
        settings["priority"] = rng.randint(-2, 2)
    if "checkpoint" in world.verbs:  # and retry with it; a small budget may be used up
        settings["retry.machine_failures"] = rng.choice((0, 1, 100, 100, 100))
        if rng.random() < 0.6:
            settings["checkpoint.every_steps"] = rng.choice((10, 25))
    arguments = ["submit", file, "--id", job]
    for setting in [*data, "train.batch_size=4", "train.evaluate=false", "train.log_interval=1",
                    *(f"{key}={value}" for key, value in settings.items())]:
        arguments += ["--set", setting]
    with world.lock:
        world.jobs[job].update(kind=kind, settings=settings, arguments=arguments, accepted=False,
                               least=least)  # 0: it is not elastic
    code = world.ctl(*arguments)[0]
    if code != 0 and rng.random() < 0.7:  # a user who tries again with the same id
        time.sleep(rng.uniform(0.1, 2))
        code = world.ctl(*arguments)[0]
    with world.lock:
        world.jobs[job]["accepted"] = code == 0
        world.jobs[job]["over"] = code != 0  # no user turns to a job that may not exist
    return f"{job} {settings}: {code}"


def on_job(verb, *more):
    """Runs a verb on a job and records its answer."""
    def act(world, who, rng):
        job = world.some_job(rng)
        if job is None:
            return "no job"
        arguments = [word(rng) if callable(word) else word for word in more]
        world.note(job, verb, None)
        code, _, err = world.ctl(verb, job, *arguments)
        world.note(job, verb, code)
        return f"{job}: {code} {err.strip()[:100] if code else ''}"
    return act


def pull(world, who, rng):
    job = world.some_job(rng)
    if job is None:
        return "no job"
    path = os.path.join(world.scratch, f"{who}.safetensors")
    code = world.ctl("pull", job, "-o", path)[0]
    if code == 0:
        harness.read_safetensors(path)  # raises unless the file is complete
        os.unlink(path)
    elif os.path.exists(path):
        raise AssertionError(f"a pull of {job} failed ({code}) and left a file")
    return f"{job}: {code}"


def trace(world, who, rng):
    job = world.some_job(rng)
    if job is None:
        return "no job"
    path = os.path.join(world.scratch, f"{who}.json")
    code = world.ctl("trace", job, "--steps", str(rng.randint(1, 5)), "-o", path)[0]
    if code == 0:
        with open(path) as file:
            json.load(file)
        os.unlink(path)
    elif os.path.exists(path):
        raise AssertionError(f"a trace of {job} failed ({code}) and left a file")
    return f"{job}: {code}"


def wrap(world, who, rng):
    job = world.some_job(rng)
    if job is None:
        return "no job"
    policy = rng.choice((["--policy", "none"], ["--policy", "size", "--min-num-params", "20000"]))
    return f"{job} {policy[1]}: {world.ctl('wrap', 'set', job, *policy)[0]}"


def resize(world, who, rng):
    """Another number of workers for a job; only an elastic one takes it, in its range."""
    with world.lock:
        jobs = [job for job, record in world.jobs.items() if record.get("kind") and
                not record.get("over") and (record["least"] or rng.random() < 0.1)]
    if not jobs:
        return "no job"
    job, workers, began = rng.choice(jobs), rng.randint(0, 4), time.time()
    code = world.ctl("resize", job, str(workers))[0]
    with world.lock:
        record = world.jobs[job]
        record.setdefault("resizes", []).append((workers, code, began, time.time()))
    if code == 0 and not 1 <= record["least"] <= workers <= 3:
        raise AssertionError(f"{job} was resized to {workers}, which its range does not contain")
    return f"{job} {workers}: {code}"


def diagnose(world, who, rng):
    job = world.some_job(rng)
    if job is None:
        return "no job"
    code, out, err = world.ctl("diagnose", job, "-o", "json", *rng.choice(([], ["--no-stacks"])))
    if code != 0:
        return f"{job}: {code} {err.strip()[:100]}"
    found = json.loads(out)
    ranks = [rank["rank"] for rank in found["ranks"]]
    if not found["verdict"] or ranks != list(range(len(ranks))) or \
            not set(found["ranks_to_blame"]) <= set(ranks):
        raise AssertionError(f"a diagnosis of {job}: {out}")
    world.count(f"diagnosed {found['cause']}")
    return f"{job}: {found['verdict']}"


def stalled_watch(world, who, rng):
    """A watcher that stops reading for a while; some watchers are killed instead of continuing."""
    job = world.some_job(rng)
    if job is None:
        return "no job"
    watcher = world.spawn(harness.FSDPCTL, "watch", job, "-o", "json", stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL)
    time.sleep(rng.uniform(0.1, 1))
    watcher.send_signal(signal.SIGSTOP)
    world.ending.wait(rng.uniform(1, 6))
    watcher.send_signal(signal.SIGCONT)
    if rng.random() < 0.5:
        time.sleep(rng.uniform(0.1, 1))
    watcher.kill()
    watcher.wait()
    return job


def look(world, who, rng):
    looks = [["list"], ["status"], ["workers"]]
    if "top" in world.verbs:
        looks.append(["top", "--rounds", "1"])
    verb = rng.choice(looks)
    return f"{verb[0]}: {world.ctl(*verb)[0]}"


def drain(world, who, rng):
    """An operator drains a worker, and returns it to service after a while."""
    ids = [worker["id"] for worker in world.json("workers") or []]
    if not ids:
        return "no worker"
    worker, now = rng.choice(ids), rng.choice(([], ["--now"]))
    with world.lock:
        world.kills.append(("drain", time.time()))  # --now ends what runs on the worker
    code = world.ctl("drain", worker, *now)[0]
    world.ending.wait(rng.uniform(0.5, 4))
    return f"{worker} {' '.join(now)}: {code}, {world.ctl('undrain', worker)[0]}"


def show(verb):
    def act(world, who, rng):
        job = world.some_job(rng)
        return "no job" if job is None else f"{job}: {world.ctl(verb, job)[0]}"
    return act


# (weight, the verb that must exist, name, what to do)
ACTIONS = (
    (12, "submit", "submit", submit),
    (3, "cancel", "cancel", on_job("cancel")),
    (4, "pull", "pull", pull),
    (2, "wrap", "wrap", wrap),
    (2, "trace", "trace", trace),
    (4, "resize", "resize", resize),
    (3, "diagnose", "diagnose", diagnose),
    (3, "watch", "watch", stalled_watch),
    (3, "list", "look", look),
    (1, "show", "show", show("show")),
    (3, "pause", "pause", on_job("pause")),
    (4, "resume", "resume", on_job("resume")),
    (2, "hold", "hold", on_job("hold")),
    (3, "release", "release", on_job("release")),
    (1, "priority", "priority", on_job("priority", lambda rng: str(rng.randint(-5, 5)))),
    (3, "checkpoint", "checkpoint", on_job("checkpoint")),
    (1, "drain", "drain", drain),
    (1, "history", "history", show("history")),
    (1, "logs", "logs", show("logs")),
    (1, "metrics", "metrics", show("metrics")),
)


# ---- faults in the processes: (world, its random numbers) -> what happened ----

def kill_worker(world, rng):
    pids = world.workers()
    if not pids:
        return "no worker"
    pid, own = rng.choice(pids), world.worker
    with world.lock:
        world.kills.append(("worker", time.time()))
    os.kill(pid, signal.SIGKILL)
    if pid == own.pid:
        own.wait()  # the last look at it, after the users have ended, restarts it only if it has ended
    return f"pid {pid}"


def kill_coordinator(world, rng):
    with world.lock:
        world.kills.append(("coordinator", time.time()))
    world.coordinator.kill()
    world.coordinator.wait()
    pause = rng.choice((0, 0, rng.uniform(0, 3)))
    time.sleep(pause)
    world.start_coordinator()
    return f"back after {pause:.1f} s"


def restart_coordinator(world, rng):
    if not world.serves():  # before fsdpd installs its handlers, SIGTERM ends it like any process
        return "not yet: it has just been started"
    with world.lock:
        world.kills.append(("restart", time.time()))
    began = time.monotonic()
    world.coordinator.terminate()
    try:
        code = world.coordinator.wait(harness.PATIENCE)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"fsdpd did not end within {harness.PATIENCE} s of SIGTERM") from None
    if code != 0:
        raise AssertionError(f"fsdpd ended with {code} after SIGTERM")
    seconds = time.monotonic() - began
    world.start_coordinator()
    return f"ended in {seconds:.1f} s"


def stop_for_a_while(target):
    def act(world, rng):
        pids = [world.coordinator.pid] if target == "coordinator" else world.workers()
        if not pids:
            return "no process"
        pid, seconds = rng.choice(pids), rng.uniform(0.2, 3)
        with world.lock:
            world.kills.append(("stop", time.time()))
        try:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(seconds)
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass
        return f"pid {pid} for {seconds:.1f} s"
    return act


def silence_worker(world, rng):
    """Stops a worker for longer than fsdpd tolerates silence: fsdpd, or the peers' deadline, ends
    its attempt."""
    pids = world.workers()
    if not pids:
        return "no worker"
    pid = rng.choice(pids)
    with world.lock:
        world.kills.append(("silence", time.time()))
    try:
        os.kill(pid, signal.SIGSTOP)
        world.ending.wait(SILENT_S)
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        return f"pid {pid} was killed"
    return f"pid {pid} for {SILENT_S} s"


def fail_calls(*rules):
    """Makes the daemons' calls fail for a while: each of `rules` is a function of the random
    numbers."""
    def act(world, rng):
        chosen, seconds = [rule(rng) for rule in rules], rng.uniform(0.3, 4)
        served = world.serves()
        with world.lock:
            world.kills.append(("fault", time.time()))
        world.faults.set(*chosen)
        world.ending.wait(seconds)
        hits = world.faults.hits()
        world.faults.clear()
        again = ""
        if world.coordinator.poll() is not None:
            if served:
                raise AssertionError(f"fsdpd ended with {world.coordinator.returncode} under {chosen}")
            world.start_coordinator()  # it could not start meanwhile; a service manager tries again
            again = "; fsdpd started again"
        return f"{chosen} for {seconds:.1f} s: matched {hits}{again}"
    return act


def reload_coordinator(world, rng):
    # Before fsdpd installs its handlers, SIGHUP ends it like any process.
    if world.serves():
        world.coordinator.send_signal(signal.SIGHUP)
    return ""


SILENT_S = 13  # seconds; fsdpd calls a worker silent after 10

TROUBLES = (
    (4, "kill -9 worker", kill_worker),
    (4, "kill -9 coordinator", kill_coordinator),
    (1, "restart", restart_coordinator),
    (2, "stop worker", stop_for_a_while("worker")),
    (1, "stop coordinator", stop_for_a_while("coordinator")),
    (1, "reload", reload_coordinator),
    (1, "silent worker", silence_worker),
    (3, "broken connects", fail_calls(*(
        lambda rng, where=where: f"connect {where} ECONNREFUSED skip={rng.randint(0, 3)} times={rng.randint(1, 4)}"
        for where in ("127.0.0.1:*", "unix:@fsdpd-*")))),
    (2, "full disk", fail_calls(lambda rng: "write */state/* ENOSPC", lambda rng: "mkdir */state/* ENOSPC")),
    (1, "no descriptors", fail_calls(lambda rng: "open */state/* EMFILE")),
)

# This share of the users' calls gets one of these faults within 100 ms.
AMBUSHES = TROUBLES[:2]
AMBUSH_SHARE = 0.1


def choose(rng, table):
    return rng.choices(table, [row[0] for row in table])[0]


def ambush(world, name, during, failures):
    """Causes a fault within 100 ms, in its own thread."""
    rng = random.Random(f"{world.seed}/{name}/ambush/{sum(world.counts.values())}")

    def act():
        time.sleep(rng.uniform(0, 0.1))
        _, what, trouble_of = choose(rng, AMBUSHES)
        try:
            with world.troubling:
                world.say("ambush", f"{what} during {during}: {trouble_of(world, rng)}")
        except Exception as error:
            failures.append(f"{what}: {error}")
            world.ending.set()
        world.count(what)

    thread = threading.Thread(target=act)
    thread.start()
    return thread


def user(world, name, failures):
    rng = random.Random(f"{world.seed}/{name}")
    actions = [row for row in ACTIONS if row[1] in world.verbs]
    try:
        while not world.ending.is_set():
            _, _, what, act = choose(rng, actions)
            hidden = ambush(world, name, what, failures) if rng.random() < AMBUSH_SHARE else None
            world.say(name, f"{what} {act(world, name, rng)}")
            world.count(what)
            if hidden:
                hidden.join()
            world.ending.wait(rng.uniform(0, 0.6))
    except Exception as error:  # reported at the end, with everything else
        failures.append(f"{name}: {what}: {error}")
        world.ending.set()


def trouble(world, failures):
    rng = random.Random(f"{world.seed}/trouble")
    try:
        while not world.ending.wait(rng.uniform(0.5, 4)):
            _, what, act = choose(rng, TROUBLES)
            with world.troubling:
                world.say("trouble", f"{what} {act(world, rng)}")
            world.count(what)
    except Exception as error:
        failures.append(f"{what}: {error}")
        world.ending.set()


def keep_worker(world):
    """Restarts the worker that fsdpd does not supervise, as a service manager would."""
    while not world.ending.wait(0.3):
        if world.worker.poll() is not None:
            world.start_worker()


def mark_over(world):
    """Marks the jobs that have ended, so that users turn to the others."""
    while not world.ending.wait(1):
        listed = world.json("list")
        with world.lock:
            for job in listed or []:
                if job["state"] in chaos_check.OVER and job["id"] in world.jobs:
                    world.jobs[job["id"]]["over"] = True


def run(world, seconds):
    failures = []
    world.start_coordinator()
    world.wait_for(world.serves, harness.PATIENCE, "fsdpd to serve")
    world.start_worker()
    threads = [threading.Thread(target=user, args=(world, f"user-{n}", failures)) for n in range(3)]
    threads.append(threading.Thread(target=trouble, args=(world, failures)))
    threads.append(threading.Thread(target=mark_over, args=(world,)))
    keeper = threading.Thread(target=keep_worker, args=(world,))
    for thread in (*threads, keeper):
        thread.start()
    world.ending.wait(seconds)
    world.ending.set()
    for thread in (*threads, keeper):
        thread.join()
    if world.worker.poll() is not None:
        world.start_worker()
    return failures


def close(world):
    """Ends every remaining process by its pid."""
    for process in (world.worker, world.coordinator):
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()
    for pid in world.processes():
        os.kill(pid, signal.SIGKILL)
    world.daemon_log.close()


def chaos(seconds, seed, log=sys.stdout, keep=False):
    """Runs the chaos and returns the problems found: a list of sentences."""
    world = World(seed, log)
    world.say("chaos", f"seed {seed}, {seconds} seconds, in {world.root}; verbs {sorted(world.verbs)}")
    wrong = []
    try:
        wrong += run(world, seconds)
        wrong += chaos_check.settle(world)
        wrong += chaos_check.check_jobs(world)
        wrong += chaos_check.check_end(world)
        for what in ("submit", "kill -9 coordinator", "kill -9 worker"):
            if not world.counts.get(what):
                wrong.append(f"nothing was shown: there was no {what}")
    except Exception as error:
        wrong.append(f"{type(error).__name__}: {error}")
    finally:
        close(world)
    world.say("chaos", f"done: {dict(sorted(world.counts.items()))}")
    for sentence in wrong:
        world.say("WRONG", sentence)
    if wrong or keep:
        world.say("chaos", f"seed {seed}; what there was is in {world.root}")
    else:
        shutil.rmtree(world.root)
    return wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 31)
    sys.exit(1 if chaos(options.seconds, seed, keep=options.keep) else 0)


if __name__ == "__main__":
    main()
