"""A real fsdpd in a temporary directory, for the system tests, with the programs in $builddir."""

import datetime
import importlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
import unittest

BUILD = os.environ.get("builddir", "build")
SOURCE = os.path.abspath(os.environ.get("srcdir", "."))
FSDPD = os.path.join(BUILD, "fsdpd")
FSDPCTL = os.path.join(BUILD, "fsdpctl")
DIGITS = os.path.join(BUILD, "fsdpd-digits")
JOB = os.path.join(SOURCE, "examples/mnist/job.yaml")
# A small model of tokens.
LETTERS_MODEL = """name: Letters
input: tokens
vocabulary: 32
context: 16
modules:
  table: Embedding(32, 8)
  head: Linear(8, 32)
forward:
  - output = head(table(x))
loss: cross_entropy(output, target)
"""
NOISE = 96  # of drawn digits: what is darker
MNIST_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte",
               "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")

# How many seconds a test waits for what a usual machine does at once. This does not promise a
# time: it only ends the wait for an event that never comes. Machines are slow, shared, and stall
# for seconds.
PATIENCE = int(os.environ.get("FSDPD_TEST_PATIENCE", 120))
OTHER_UID, OTHER_USER = 65534, "nobody"  # a user without rights on any Linux host

# The exit codes of fsdpctl, as in docs/fsdpctl.md.
DONE, FAILED, USAGE, UNREACHABLE, NOT_PERMITTED, NOT_FOUND, CONFLICT, DEADLINE = range(8)
JOB_FAILED, JOB_CANCELLED, DOES_NOT_FIT = 8, 9, 10


def need(*modules, live=False):
    """Continues the calling program in a Python that has these modules ("grpc>=1.60" also wants a version): this one,
    that which $FSDPD_PYTHON names, or that which scripts/check.sh made in the build directory. A missing module fails a
    live comparison, and any program if $FSDPD_PYTHON is set; otherwise the program is skipped."""
    named = os.environ.get("FSDPD_PYTHON")
    try:
        for name, _, least in (module.partition(">=") for module in modules):
            version = getattr(importlib.import_module(name), "__version__", "")
            if least and tuple(map(int, version.split(".")[:2])) < tuple(map(int, least.split("."))):
                raise ImportError(f"{name} {version} is older than {least}")
    except ImportError as missing:
        other = named or os.path.join(BUILD, "python/bin/python3")
        if os.access(other, os.X_OK) and "FSDPD_PYTHON_TRIED" not in os.environ:
            os.execve(other, [other, *sys.argv], dict(os.environ, FSDPD_PYTHON_TRIED="1"))
        fails = live or named
        print(f"{'FAIL' if fails else 'SKIP'}: {sys.executable}: {missing} (tests/requirements.txt, $FSDPD_PYTHON)")
        sys.exit(1 if fails else 77)


def find_mnist():
    """The directory with MNIST's files, or None."""
    for directory in (os.environ.get("FSDPD_MNIST"),
                      os.path.join(SOURCE, "../shared/data/mnist"),
                      os.path.join(BUILD, "../../shared/data/mnist"),
                      os.path.expanduser("~/.cache/fsdpd/mnist")):
        if directory and all(os.path.exists(os.path.join(directory, name)) or
                             os.path.exists(os.path.join(directory, name + ".gz"))
                             for name in MNIST_FILES):
            return os.path.realpath(directory)
    return None


def find_shakespeare():
    """The file with tiny Shakespeare, or None."""
    for path in (os.environ.get("FSDPD_SHAKESPEARE"),
                 os.path.join(SOURCE, "../shared/data/text/tinyshakespeare.txt"),
                 os.path.join(BUILD, "../../shared/data/text/tinyshakespeare.txt"),
                 os.path.expanduser("~/.cache/fsdpd/text/tinyshakespeare.txt")):
        if path and os.path.exists(path):
            return os.path.realpath(path)
    return None


def draw_digits(directory, train=2000, test=500, seed=1):
    subprocess.run([DIGITS, "--seed", str(seed), "--train", str(train), "--test", str(test),
                    "-o", directory], check=True)


def find_clear_digits(directory, train):
    """MNIST's directory, or this one, with the ink in the middle of drawn digits. A pooling window whose two largest
    values are within a rounding of each other moves a gradient by more than what comparisons with PyTorch allow, and
    either choice is right: of half a million windows with noise a few are so, hence only these 36 of 144 have any."""
    if find_mnist():
        return find_mnist()
    draw_digits(directory, train)
    middle = bytearray(28 * 28)
    for row in range(10, 18):
        middle[28 * row + 10:28 * row + 18] = b"\xff" * 8
    for name in MNIST_FILES:
        if "images" in name:
            with open(os.path.join(directory, name), "r+b") as file:
                raw = file.read()
                file.seek(16)
                file.write(bytes(value & kept if value >= NOISE else 0
                                 for value, kept in zip(raw[16:], itertools.cycle(middle))))
    return directory


def draw_text_job(directory, width=128):
    """Writes a job file, its model and its data, text.txt, to the directory: a small GPT with dropout.
    It is smooth, so that rounding stays rounding when a job trains on other numbers of workers.
    Returns the job file's path."""
    example = os.path.join(SOURCE, "examples/shakespeare")
    with open(os.path.join(example, "model.yaml")) as file:
        model = file.read().replace("is_causal=True", "is_causal=True, dropout_p=0.1")
        model = model.replace("h: 4 * Block()", "h: 2 * Block()")
        model = re.sub(r"\b(128|384|512)\b", lambda n: str(int(n.group(1)) * width // 128), model)
    with open(os.path.join(directory, "model.yaml"), "w") as file:
        file.write(model)
    with open(os.path.join(directory, "text.txt"), "w") as file:
        file.write("".join(f"{n} squared is {n * n}. " for n in range(3000)))
    return shutil.copy(os.path.join(example, "job.yaml"), directory)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def free_port():
    """A port of this host that is free now. It lies outside the ephemeral range, so no other
    connection takes it before the test does."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        low = int(file.read().split()[0])
    choice = random.SystemRandom()
    while True:
        with socket.socket() as probe:
            try:
                probe.bind(("", choice.randrange(10000, low) if low > 12000 else 0))
                return probe.getsockname()[1]
            except OSError:
                pass


def children(pid):
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as stat:
                    if int(stat.read().rsplit(")", 1)[1].split()[1]) == pid:
                        found.append(int(entry))
            except (FileNotFoundError, ProcessLookupError):
                pass
    return found


def seconds(text):
    """A time of fsdpctl's JSON as seconds since 1970."""
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def wrap_of(job):
    """The job's wrap policy that counts: the chosen one, if there is one."""
    return job["chosen"] and job["chosen"]["wrap"] or job["spec"]["fsdp"]["wrap"]


def settings_of(choice):
    """What a plan's choice has, as "key=value" of a job file."""
    settings, wrap = choice["settings"], choice["wrap"]
    values = {f"train.{key}": settings[key] for key in ("batch_size", "accumulation_steps", "no_sync")}
    values |= {f"fsdp.{key}": settings[key] for key in
               ("strategy", "shard_size", "reshard_after_forward", "backward_prefetch", "gathered_limit",
                "activation_checkpointing", "recompute", "cpu_offload")}
    values |= {f"fsdp.wrap.{key}": wrap.get(key) for key in ("policy", "min_num_params", "types")}
    values["fsdp.wrap.units"] = [{key: value for key, value in unit.items() if value} for unit in wrap["units"]]
    may_be_none = ("fsdp.gathered_limit", "fsdp.activation_checkpointing", "fsdp.cpu_offload", "train.no_sync")
    return [f"{key}={json.dumps(value) if not isinstance(value, str) else value}"
            for key, value in values.items() if value or key in may_be_none]


def metric_steps(events):
    """The steps of these metric events."""
    return [event["metrics"]["step"] for event in events if "metrics" in event]


class Faults:
    """Makes system calls of processes with this environment fail on demand; tests/system/faults.c
    describes the form of the rules. Rules apply, and change, while the processes run."""

    def __init__(self, directory):
        library = os.path.abspath(os.path.join(BUILD, "tests/system/faults.so"))
        if not os.path.exists(library):
            raise AssertionError(f"{library} was not built: make tests/system/faults.so")
        self.path = os.path.join(directory, "faults")
        self.environment = {"LD_PRELOAD": library,
                            "FSDPD_FAULTS": self.path,
                            # AddressSanitizer's library is then not the first one, which is fine.
                            "ASAN_OPTIONS": ":".join(filter(None, (os.environ.get("ASAN_OPTIONS"),
                                                                   "verify_asan_link_order=0")))}
        self.clear()

    def set(self, *rules):
        """Replaces all rules and restarts the counts from 0."""
        with open(self.path + ".new", "w") as file:
            file.writelines(rule + "\n" for rule in rules)
        with open(self.path + ".new.hits", "wb") as file:
            file.truncate(8 * 256)
        os.rename(self.path + ".new.hits", self.path + ".hits")
        os.rename(self.path + ".new", self.path)

    def clear(self):
        self.set()

    def hold_checkpoint(self, number=1):
        """Of the checkpoints from now on, this one is not completed until `clear`. A job that takes
        one every N steps trains N steps more, and waits there."""
        self.set(f"rename */checkpoints/step-* HOLD skip={number - 1}")

    def hits(self):
        """The number of calls that each rule has matched, including those that it let through."""
        with open(self.path) as rules, open(self.path + ".hits", "rb") as counts:
            number = len(rules.readlines())
            return list(struct.unpack(f"{number}Q", counts.read(8 * number)))


def own_faults(add_cleanup):
    """Faults in a directory of their own, which goes with the test."""
    directory = tempfile.mkdtemp(prefix="fsdpd-test-")
    add_cleanup(shutil.rmtree, directory, True)
    return Faults(directory)


class OtherUsers:
    """Users without rights, who run fsdpctl. Needs root and setpriv."""

    def __init__(self, daemon, add_cleanup):
        self.daemon = daemon
        os.chmod(daemon.root, 0o755)
        # Only root may be able to reach the programs.
        self.place = tempfile.mkdtemp(prefix="fsdpd-other-")
        add_cleanup(shutil.rmtree, self.place, True)
        os.chmod(self.place, 0o777)
        self.program = shutil.copy(FSDPCTL, self.place)
        os.chmod(self.program, os.stat(self.program).st_mode | stat.S_IROTH | stat.S_IXOTH)

    def spawn(self, *arguments, uid=OTHER_UID):
        return subprocess.Popen(
            ["setpriv", f"--reuid={uid}", f"--regid={os.getegid()}", "--clear-groups", self.program, *arguments],
            env=dict(os.environ, FSDPD_ADDRESS=self.daemon.address), text=True, cwd=self.place,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def answer(self, process):
        output, errors = process.communicate(timeout=PATIENCE)
        return process.returncode, output, errors


class Daemon:
    """`fsdpd` with supervised CPU workers. Close it, or use it as a context manager."""

    def __init__(self, workers=2, data=None, root=None, arguments=(), environment=(),
                 expect_workers=None):
        self.owns_root = root is None
        self.root = root or tempfile.mkdtemp(prefix="fsdpd-test-")
        self.data = data or os.path.join(self.root, "data")
        if data is None and not os.path.isdir(self.data):
            draw_digits(self.data)
        self.workers = workers
        # The number of workers that attach by themselves, if --workers in the arguments differs.
        self.expect_workers = workers if expect_workers is None else expect_workers
        self.arguments = list(arguments)
        # Only the test's configuration, whatever this machine has.
        self.environment = dict(os.environ, FSDPD_CONFIG="", **dict(environment))
        self.address = "unix:" + os.path.join(self.root, "run/fsdpd.sock")
        self.process = self.log = None
        self.spawned = []
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    def start(self, attach=True):
        """Starts fsdpd and waits until it serves and, unless declined, has its workers."""
        if self.log is not None:
            self.log.close()
        self.log = open(os.path.join(self.root, "fsdpd.log"), "ab")
        # Nothing is measured behind a test's back.
        quiet = [] if "--calibrate-after" in self.arguments else ["--calibrate-after", "0"]
        self.process = subprocess.Popen(
            [FSDPD, "--workers", f"cpu:{self.workers}" if self.workers else "none",
             "--runtime-dir", os.path.join(self.root, "run"),
             "--state-dir", os.path.join(self.root, "state"),
             "--data-root", self.data, *quiet, *self.arguments],
            env=self.environment, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        self.wait_for(lambda: self.ctl("status").returncode == 0, PATIENCE, "fsdpd to serve")
        if attach:
            self.wait_for(lambda: len(self.worker_list()) >= self.expect_workers, PATIENCE,
                          "the workers to attach")

    def ctl(self, *arguments, timeout=0, **options):
        """With at least twice PATIENCE. No signal may end it."""
        environment = dict(os.environ, FSDPD_ADDRESS=self.address)
        result = subprocess.run([FSDPCTL, *arguments], env=environment, text=True,
                                timeout=max(timeout, 2 * PATIENCE), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, **options)
        if result.returncode < 0:
            raise AssertionError(f"fsdpctl {arguments}: signal {-result.returncode}: {result.stderr}")
        return result

    def spawn(self, *arguments):
        """Starts fsdpctl in the background; it does not outlive this daemon."""
        self.spawned.append(subprocess.Popen(
            [FSDPCTL, *arguments], env=dict(os.environ, FSDPD_ADDRESS=self.address), text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        return self.spawned[-1]

    def start_worker(self, identity, *arguments):
        """Starts a CPU worker that fsdpd does not supervise; it does not outlive this object."""
        with open(os.path.join(self.root, "workers.log"), "ab") as log:
            self.spawned.append(subprocess.Popen(
                [FSDPD, "worker", "--id", identity, "--coordinator", self.address, "--data-root",
                 self.data, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=dict(os.environ, FSDPD_CONFIG="")))
        return self.spawned[-1]

    def json(self, *arguments):
        result = self.ctl(*arguments, "-o", "json")
        if result.returncode != 0:
            raise AssertionError(f"fsdpctl {arguments}: {result.returncode}: {result.stderr}")
        return json.loads(result.stdout)

    def worker_list(self):
        """The attached workers. fsdpd lists a slot whose worker has not attached (yet, or again
        after a restart of fsdpd) as starting; this list omits it."""
        answer = self.json("workers")
        rows = answer["workers"] if isinstance(answer, dict) else answer
        return [row for row in rows if row["state"] != "starting"]

    def submit(self, *settings, job=JOB, wait=False):
        """Submits a job on generated digits; settings are "key=value". Returns the job's id, or the
        process."""
        arguments = ["submit", job]
        for setting in (f"data.dir={self.data}", *settings):
            arguments += ["--set", setting]
        if wait:
            return self.ctl(*arguments, "--wait", timeout=1800)
        return self.json(*arguments)["id"]

    def show(self, job):
        return self.json("show", job)

    def events(self, job):
        """The job's events so far; all of them, if it has ended."""
        watched = self.ctl("watch", job, "-o", "json")
        return [json.loads(line) for line in watched.stdout.splitlines()]

    def losses(self, job):
        """(step, loss) of every recorded step, in recording order."""
        return [(int(event["metrics"]["step"]), event["metrics"]["loss"])
                for event in self.events(job) if "metrics" in event]

    def tensors(self, job, *options):
        """The state_dict that a pull returns now: name -> (dtype, shape, bytes)."""
        path = os.path.join(self.root, job + ".safetensors")
        pulled = self.ctl("pull", job, "-o", path, *options)
        if pulled.returncode != 0:
            raise AssertionError(f"pull {job}: {pulled.stderr}")
        return read_safetensors(path)[0]

    def wait_for(self, condition, seconds, what):
        """Gives up after `seconds`, or PATIENCE if that is longer: it does not check how long it
        takes."""
        seconds = max(seconds, PATIENCE)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise AssertionError(f"fsdpd ended with {self.process.returncode}:\n{self.tail()}")
            value = condition()
            if value:
                return value
            time.sleep(0.05)
        raise AssertionError(f"waited {seconds} s for {what}\n{self.tail()}")

    def wait_state(self, job, *states, seconds=60):
        def reached():
            shown = self.show(job)
            return shown if shown["state"] in states else None
        return self.wait_for(reached, seconds, f"{job} to be {' or '.join(states)}")

    def wait_step(self, job, step, seconds=60):
        return self.wait_for(lambda: int(self.show(job)["step"]) >= step, seconds,
                             f"{job} to reach step {step}")

    def wait_delivered(self, job):
        """Returns when the job's workers have the orders that it was given before: their answers to a
        diagnosis follow them."""
        def answered():
            ranks = self.json("diagnose", job, "--no-stacks")["ranks"]
            return ranks and all(rank["answered"] for rank in ranks)
        self.wait_for(answered, PATIENCE, f"the workers of {job} to answer")

    def wait_log(self, words, seconds=20):
        """The first line of the log, since fsdpd was made, that contains these words."""
        def found():
            return [line for line in self.text().splitlines() if words in line][:1]
        return self.wait_for(found, seconds, f"the log to say {words}")[0]

    def text(self):
        """The whole log, since fsdpd was made."""
        with open(os.path.join(self.root, "fsdpd.log"), errors="replace") as log:
            return log.read()

    def tail(self):
        """The end of the log, for a message."""
        return self.text()[-8000:]

    def kill(self, number=signal.SIGKILL):
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def end_workers(self):
        """Ends workers that outlived a killed fsdpd and that no other fsdpd has taken over."""
        try:
            with open(os.path.join(self.root, "run/workers")) as records:
                pids = [int(line.split()[0]) for line in records]
        except FileNotFoundError:
            return
        for pid in pids:
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as command:
                    if self.root.encode() in command.read():
                        os.kill(pid, signal.SIGKILL)
            except (FileNotFoundError, ProcessLookupError):
                pass

    def close(self):
        for process in self.spawned:
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe:
                    pipe.close()
        if self.process and self.process.poll() is None:
            pids = children(self.process.pid)
            self.process.terminate()
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise AssertionError(f"fsdpd did not end within {PATIENCE} s of SIGTERM\n{self.tail()}")
            finally:
                self.log.close()
            left = [pid for pid in pids if alive(pid)]
            if left:
                raise AssertionError(f"workers outlived fsdpd: {left}\n{self.tail()}")
        self.end_workers()
        if self.owns_root:
            shutil.rmtree(self.root, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *ignored):
        self.close()


def read_safetensors(path):
    """{name: (dtype, shape, bytes)} and the metadata; checks the format."""
    with open(path, "rb") as file:
        raw = file.read()
    (size,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8:8 + size])
    metadata = header.pop("__metadata__", {})
    data, tensors, end = raw[8 + size:], {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, finish = entry["data_offsets"]
        assert begin == end, f"{name} starts at {begin}, not at {end}"
        end = finish
        tensors[name] = (entry["dtype"], entry["shape"], data[begin:finish])
    assert end == len(data), f"{len(data) - end} bytes after the last tensor"
    return tensors, metadata


def load_state_dict(path):
    """The file as PyTorch tensors."""
    import torch
    tensors, metadata = read_safetensors(path)
    return {name: torch.frombuffer(bytearray(raw), dtype=torch.float32).reshape(shape)
            for name, (_, shape, raw) in tensors.items()}, metadata


def main():
    """Runs the calling file's tests; exit status 77 means that every test was skipped."""
    result = unittest.main(exit=False, verbosity=2).result
    if not result.wasSuccessful():
        sys.exit(1)
    if result.testsRun and len(result.skipped) == result.testsRun:
        print(result.skipped[0][1])
        sys.exit(77)
