#!/usr/bin/env python3
"""examples/slurm under Slurm itself: Debian's munged, slurmctld and two slurmd, each slurmd on a host
of its own, which is a network namespace. A job trains on both nodes and leaves its weights; another
one is cancelled, and ends within its grace. An elastic one loses a node that is drained, later one
that is preempted, gets each back, and completes. None leaves anything behind."""

import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness
import test_two_hosts
from elastic_jobs import SETTINGS

PROGRAMS = ("ip", "unshare", "munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol")
SCRIPT = os.path.join(harness.SOURCE, "examples/slurm/fsdpd.sbatch")
NODES = ("node1", "node2")
ELASTIC_STEPS = 200

CONFIGURATION = """
ClusterName=fsdpd
SlurmctldHost=node1({addresses[node1]})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket
CredType=cred/munge
StateSaveLocation={root}/slurmctld
SlurmdSpoolDir={root}/%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=60
NodeName=node1 NodeAddr={addresses[node1]} CPUs=4 State=UNKNOWN
NodeName=node2 NodeAddr={addresses[node2]} CPUs=4 State=UNKNOWN
PartitionName=all Nodes=node1,node2 Default=YES State=UP
"""


class Cluster:
    """munged, slurmctld and two slurmd; gone when closed."""

    def __init__(self, root):
        self.root, self.started = root, []
        self.hosts = test_two_hosts.Hosts()
        self.environment = dict(
            os.environ, SLURM_CONF=os.path.join(root, "slurm.conf"),
            PATH=f"{os.path.abspath(harness.BUILD)}:{os.environ['PATH']}:/usr/sbin:/sbin")
        with open(self.environment["SLURM_CONF"], "w") as file:
            file.write(CONFIGURATION.format(root=root, addresses=self.hosts.addresses))
        with open(os.path.join(root, "cgroup.conf"), "w") as file:
            # Of these nodes no process is put into a control group; their /sys has none mounted.
            file.write("CgroupPlugin=cgroup/v1\n")
        with open(os.path.join(root, "hosts"), "w") as file:
            file.writelines(f"{address} {node}\n" for node, address in self.hosts.addresses.items())
        for name in ("slurmctld", *NODES):
            os.mkdir(os.path.join(root, name))

    def on(self, node, *arguments):
        """The command line that runs on this node, which knows both by name."""
        return self.hosts.on(node, "unshare", "--mount", "sh", "-c",
                             'mount --bind "$0" /etc/hosts && exec "$@"',
                             os.path.join(self.root, "hosts"), *arguments)

    def spawn(self, *command):
        with open(os.path.join(self.root, "daemons.log"), "ab") as log:
            self.started.append(subprocess.Popen(command, env=self.environment, stdout=log, stderr=log,
                                                 stdin=subprocess.DEVNULL))

    def start(self):
        key = os.path.join(self.root, "munge.key")
        with open(key, "wb") as file:
            file.write(os.urandom(1024))
        os.chmod(key, 0o400)
        self.spawn("munged", "--foreground", "--force", f"--key-file={key}",
                   f"--socket={self.root}/munge.socket", f"--pid-file={self.root}/munged.pid",
                   f"--log-file={self.root}/munged.log", f"--seed-file={self.root}/munged.seed")
        self.wait_for(lambda: os.path.exists(f"{self.root}/munge.socket"), "munged")
        self.spawn(*self.on("node1", "slurmctld", "-D"))
        for node in NODES:
            self.spawn(*self.on(node, "slurmd", "-D", "-N", node))
        self.wait_for(lambda: self.run("sinfo", "-h", "-o", "%T %D").strip() == "idle 2",
                      "both nodes to be idle")

    def run(self, *command):
        """What a command on the first node prints."""
        result = subprocess.run(self.on("node1", *command), env=self.environment, text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, timeout=harness.PATIENCE, cwd=self.root)
        return result.stdout

    def wait_for(self, condition, what):
        until = time.monotonic() + harness.PATIENCE
        while time.monotonic() < until:
            value = condition()
            if value:
                return value
            time.sleep(0.2)
        raise AssertionError(f"waited for {what}\n{self.text()}")

    def text(self):
        """The last lines of all logs."""
        texts = []
        for name in sorted(os.listdir(self.root)):
            if name.endswith((".log", ".out")):
                with open(os.path.join(self.root, name), errors="replace") as file:
                    texts.append(f"--- {name}\n{file.read()[-2000:]}")
        return "\n".join(texts)

    def submit(self, *arguments):
        number = self.run("sbatch", "--parsable", f"--output={self.root}/%j.out", SCRIPT,
                          *arguments).strip()
        if not number.isdigit():
            raise AssertionError(f"sbatch: {number}\n{self.text()}")
        return number

    def state(self, number):
        for word in self.run("scontrol", "show", "job", number).split():
            if word.startswith("JobState="):
                return word.split("=")[1]
        return ""

    def output(self, number):
        try:
            with open(f"{self.root}/{number}.out", errors="replace") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def close(self):
        for process in reversed(self.started):
            process.terminate()
        for process in self.started:
            try:
                process.wait(harness.PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.hosts.close()


class Slurm(unittest.TestCase):
    def setUp(self):
        missing = [name for name in PROGRAMS
                   if not shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/sbin")]
        if missing:
            self.skipTest(f"SKIP: needs {', '.join(missing)} (Debian: munge, slurmctld, slurmd)")
        if os.geteuid() != 0:
            self.skipTest("SKIP: network namespaces and slurmd need root")
        # Not below /tmp's sticky bit: munged refuses a key in a directory that others may write.
        directory = tempfile.TemporaryDirectory(prefix="fsdpd-test-", dir="/var/lib")
        self.addCleanup(directory.cleanup)
        self.root = directory.name
        try:
            self.cluster = Cluster(self.root)
        except OSError as error:
            self.skipTest(f"SKIP: network namespaces are not permitted here: {error}")
        self.addCleanup(self.cluster.close)
        self.cluster.environment.update(FSDPD_DATA=self.root, TMPDIR=self.root, FSDPD_CONFIG="")
        self.data = os.path.join(self.root, "digits")
        harness.draw_digits(self.data, train=500, test=100)
        self.cluster.start()

    def left_over(self):
        """Processes of fsdpd in this test's directory, and directories of runs."""
        running = []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    words = file.read().split(b"\0")
            except OSError:
                continue
            if words[0].endswith(b"fsdpd") and any(self.root.encode() in word for word in words):
                running.append(entry)
        return running + [name for name in os.listdir(self.root) if name.startswith((".fsdpd-tls", "fsdpd-"))]

    def wait_end(self, number, state):
        ends = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        found = self.cluster.wait_for(
            lambda: (now := self.cluster.state(number)) in ends and now, f"job {number} to end")
        self.assertEqual(found, state, self.cluster.output(number)[-3000:])
        self.cluster.wait_for(lambda: not self.left_over(), "its processes and directories to be gone")

    def test_train_and_cancel(self):
        weights = os.path.join(self.root, "weights.safetensors")
        settings = ("--set", f"data.dir={self.data}", "--set", "train.evaluate=false")
        number = self.cluster.submit(harness.JOB, weights, *settings, "--set", "train.epochs=1")
        self.wait_end(number, "COMPLETED")
        tensors, _ = harness.read_safetensors(weights)
        self.assertIn("conv1.weight", tensors)
        output = self.cluster.output(number)
        for node in NODES:
            self.assertIn(f"slurm/{node}/cpu:0", output)
        # scancel: SIGTERM with KillWait of grace.
        os.remove(weights)
        number = self.cluster.submit(harness.JOB, weights, *settings, "--set", "train.epochs=100000")
        self.cluster.wait_for(lambda: "training_started" in self.cluster.output(number),
                              "the job to train")
        self.cluster.run("scancel", number)
        self.wait_end(number, "CANCELLED")
        self.assertFalse(os.path.exists(weights))

    def ctl(self, *arguments):
        """fsdpctl at the coordinator of the only running job."""
        (socket,) = glob.glob(os.path.join(self.root, "fsdpd-*/run/fsdpd.sock"))
        result = subprocess.run([harness.FSDPCTL, "--address", "unix:" + socket, *arguments],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                timeout=harness.PATIENCE)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def wait_world(self, world, lead=3):
        """The job trains on that many nodes, and has done some steps there."""
        def trains():
            if not glob.glob(os.path.join(self.root, "fsdpd-*/run/fsdpd.sock")):
                return None
            if not json.loads(self.ctl("list", "-o", "json")):
                return None
            shown = json.loads(self.ctl("show", "train", "-o", "json"))
            self.assertIn(shown["state"], ("QUEUED", "STARTING", "RUNNING"), shown)
            if shown["state"] != "RUNNING" or len(shown["workers"]) != world:
                return None
            return shown
        first = int(self.cluster.wait_for(trains, f"the job to train on {world} nodes")["step"])
        self.cluster.wait_for(lambda: (shown := trains()) and int(shown["step"]) >= first + lead,
                              f"steps on {world} nodes")

    def worker_pid(self, name):
        for worker in json.loads(self.ctl("workers", "-o", "json")):
            if worker["id"] == name:
                return int(worker["pid"])
        return 0

    def end_worker(self, name):
        """SIGTERM, as processes of a node get before it goes down; the worker ends within its grace."""
        os.kill(self.worker_pid(name), signal.SIGTERM)
        self.cluster.wait_for(lambda: not self.worker_pid(name), f"{name} to leave")

    def give_back(self, number, node):
        """A worker on this node again, as a further step of the same allocation."""
        (tls,) = glob.glob(os.path.join(self.root, ".fsdpd-tls-*"))
        self.cluster.spawn(*self.cluster.on(
            "node1", "srun", f"--jobid={number}", "--overlap", f"--nodelist={node}", "--nodes=1",
            "--ntasks=1", "fsdpd", "worker", "--config=", "--coordinator", "node1:9436",
            "--data-root", self.root, "--threads", "1", "--id", f"slurm/{node}/cpu:0",
            "--tls-ca", f"{tls}/ca/ca.crt", "--tls-certificate", f"{tls}/worker-slurm.crt",
            "--tls-key", f"{tls}/worker-slurm.key"))

    def test_elastic(self):
        weights, lent = os.path.join(self.root, "weights.safetensors"), "slurm/node2/cpu:0"
        settings = (*SETTINGS, f"train.max_steps={ELASTIC_STEPS}", "train.log_interval=10",
                    "elastic={min_workers: 1, max_workers: 2}", "schedule.total_steps=100000",
                    f"data.path={self.root}/text.txt", f"checkpoint.directory={self.root}/checkpoints",
                    "checkpoint.every_steps=100")
        os.mkdir(os.path.join(self.root, "checkpoints"))
        number = self.cluster.submit(harness.draw_text_job(self.root), weights,
                                     *(word for setting in settings for word in ("--set", setting)))
        self.wait_world(2)
        # A node is drained: its worker first, which costs no step.
        self.cluster.run("scontrol", "update", "nodename=node2", "state=drain", "reason=maintenance")
        self.ctl("drain", lent, "--now")
        self.wait_world(1)
        self.end_worker(lent)
        self.cluster.run("scontrol", "update", "nodename=node2", "state=resume")
        self.ctl("undrain", lent)
        self.give_back(number, "node2")
        self.wait_world(2)
        # It is preempted without that: its worker has SIGTERM and its grace, no more.
        self.end_worker(lent)
        self.wait_world(1)
        self.give_back(number, "node2")
        self.wait_world(2)
        history = json.loads(self.ctl("history", "train", "-o", "json"))
        self.wait_end(number, "COMPLETED")
        self.assertTrue(harness.read_safetensors(weights)[0])
        running = [entry["reason"]["message"] for entry in history
                   if entry["reason"]["code"] == "RUNNING"]
        worlds = [int(re.match(r"training on (\d)", text).group(1)) for text in running]
        lost = [int(re.search(r"(\d+) steps? lost", text).group(1)) for text in running[1:]]
        self.assertEqual(worlds, [2, 1, 2, 1, 2], running)
        self.assertEqual(lost[:2] + lost[3:], [0, 0, 0], running)
        print(*running, sep="\n", file=sys.stderr)


if __name__ == "__main__":
    harness.main()
