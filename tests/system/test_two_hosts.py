#!/usr/bin/env python3
"""Two hosts, as two network namespaces with addresses of their own: the coordinator and a worker on one,
a worker on the other, mutual TLS between them, and a job across both. Then the link between them is cut."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness
from harness import FSDPCTL, FSDPD, JOB
from test_tls import Authority, tls_flags

SILENCE = 4
REATTACH = {"test_job_across_both": 60, "test_cut_of_ten_seconds": 60, "test_cut_for_good": 4}


def ip(*arguments, check=True):
    return subprocess.run(["ip", *arguments], check=check, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True)


class Host:
    """A network namespace, and the daemons in it."""

    def __init__(self, number):
        self.name = f"fsdpd-{os.getpid()}-{number}"
        self.address = f"10.93.7.{number}"
        ip("netns", "add", self.name)

    def command(self, *words):
        return ["ip", "netns", "exec", self.name, *words]

    def delete(self):
        ip("netns", "del", self.name, check=False)


def why_not():
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return "needs root and ip: apt-get install iproute2"
    name = f"fsdpd-{os.getpid()}-probe"
    if ip("netns", "add", name, check=False).returncode != 0:
        return "this machine does not let us make network namespaces"
    made = ip("-n", name, "link", "add", "name", "veth0", "type", "veth", "peer", "name",
              "veth1", check=False)
    ip("netns", "del", name, check=False)
    return None if made.returncode == 0 else "this kernel has no veth"


class TwoHosts(unittest.TestCase):
    def setUp(self):
        reason = why_not()
        if reason:
            self.skipTest(reason)
        self.root = tempfile.mkdtemp(prefix="fsdpd-test-")
        self.addCleanup(shutil.rmtree, self.root, ignore_errors=True)
        self.data = os.path.join(self.root, "data")
        harness.draw_digits(self.data)
        self.hosts = []
        for number in (1, 2):
            host = Host(number)
            self.addCleanup(host.delete)
            self.hosts.append(host)
        one, two = self.hosts
        ip("-n", one.name, "link", "add", "name", "veth0", "type", "veth", "peer", "name", "veth0",
           "netns", two.name)
        for host in self.hosts:
            ip("-n", host.name, "addr", "add", host.address + "/24", "dev", "veth0")
            ip("-n", host.name, "link", "set", "veth0", "up")
            ip("-n", host.name, "link", "set", "lo", "up")
        authority = Authority(os.path.join(self.root, "ca"))
        server = authority.issue("server", "node1", "--host", one.address)
        self.user = authority.issue("user", "ann")
        workers = [authority.issue("worker", f"node{number}") for number in (1, 2)]
        self.address = f"{one.address}:9436"
        config = os.path.join(self.root, "fsdpd.yaml")
        with open(config, "w") as file:
            file.write(f"limits: {{silence_seconds: {SILENCE}, heartbeat_seconds: 0.5, "
                       f"reattach_seconds: {REATTACH[self._testMethodName]}}}\n")
        self.run_in(one, "coordinator", [
            FSDPD, "coordinator", "--config", config, "--runtime-dir", self.root + "/run",
            "--state-dir", self.root + "/state", "--data-root", self.data, "--listen",
            self.address, *tls_flags(server)])
        self.wait_for(lambda: self.ctl("status").returncode == 0, 20, "the coordinator to serve")
        for number, host in enumerate(self.hosts, 1):
            self.run_in(host, f"node{number}", [
                FSDPD, "worker", "--config=", "--coordinator", self.address, "--id",
                f"node{number}/cpu:0", "--data-root", self.data, *tls_flags(workers[number - 1])])
        self.wait_for(lambda: len(self.workers()) == 2, 20, "both workers to attach")

    def run_in(self, host, name, words):
        log = open(os.path.join(self.root, name + ".log"), "wb")
        self.addCleanup(log.close)
        process = subprocess.Popen(host.command(*words), stdin=subprocess.DEVNULL, stdout=log,
                                   stderr=log, env=dict(os.environ, FSDPD_CONFIG=""))

        def end():
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.addCleanup(end)

    def ctl(self, *words):
        """As a person on the second host does."""
        return subprocess.run(self.hosts[1].command(FSDPCTL, *words, "--address", self.address,
                                                    *tls_flags(self.user)), text=True, timeout=60,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE)

    def local(self, *words):
        """On the coordinator's host, whatever became of the link."""
        result = subprocess.run([FSDPCTL, *words, "-o", "json"], text=True, timeout=60,
                                env=dict(os.environ,
                                         FSDPD_ADDRESS=f"unix:{self.root}/run/fsdpd.sock"),
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE)
        self.assertEqual(result.returncode, 0, result.stderr)
        return harness.json.loads(result.stdout)

    def workers(self):
        answer = self.local("workers")
        return answer["workers"] if isinstance(answer, dict) else answer

    def wait_for(self, condition, seconds, what):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            value = condition()
            if value:
                return value
            time.sleep(0.1)
        logs = ""
        for name in ("coordinator", "node1", "node2"):
            path = os.path.join(self.root, name + ".log")
            if os.path.exists(path):
                with open(path, errors="replace") as log:
                    logs += f"--- {name}\n{log.read()[-2500:]}\n"
        raise AssertionError(f"waited {seconds} s for {what}\n{logs}")

    def submit(self, *settings):
        words = ["submit", JOB, "--id", "both"]
        for setting in (f"data.dir={self.data}", "workers=2", *settings):
            words += ["--set", setting]
        result = self.ctl(*words)
        self.assertEqual(result.returncode, 0, result.stderr)

    def step(self):
        return int(self.local("show", "both")["step"])

    def wait_step(self, step, seconds=40):
        self.wait_for(lambda: self.step() >= step, seconds, f"step {step}")

    def cut(self, seconds=None):
        ip("-n", self.hosts[0].name, "link", "set", "veth0", "down")
        if seconds is not None:
            time.sleep(seconds)
            self.mend()

    def mend(self):
        ip("-n", self.hosts[0].name, "link", "set", "veth0", "up")

    def test_job_across_both(self):
        self.submit("train.epochs=1")
        shown = self.wait_for(lambda: (lambda job: job if job["state"] in
                                       ("SUCCEEDED", "FAILED") else None)(self.local("show", "both")),
                              60, "the job to end")
        self.assertEqual(shown["state"], "SUCCEEDED", shown["reason"])
        self.assertEqual(sorted(shown["workers"]), ["node1/cpu:0", "node2/cpu:0"])
        self.assertEqual(shown["owner"], "ann")
        weights = os.path.join(self.root, "weights.safetensors")
        result = self.ctl("pull", "both", "-o", weights)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("conv1.weight", harness.read_safetensors(weights)[0])

    def test_cut_of_ten_seconds(self):
        """Longer than a worker may be silent, shorter than a job waits for it: the worker attaches
        again, and the same attempt goes on."""
        self.submit("train.epochs=100000")
        self.wait_step(20)
        self.cut(10)
        after = self.step()
        self.wait_for(lambda: len(self.workers()) == 2, 30, "the worker to attach again")
        self.wait_step(after + 50, 60)
        shown = self.local("show", "both")
        self.assertEqual((shown["state"], int(shown["attempt"])), ("RUNNING", 1), shown["reason"])

    def test_cut_for_good(self):
        """The other host's worker is lost after limits.silence_seconds, and after
        limits.reattach_seconds more the job fails, by the worker's name; when the link is back, so is
        the worker."""
        self.submit("train.epochs=100000", "retry.machine_failures=0")
        self.wait_step(20)
        self.cut()
        began = time.monotonic()
        shown = self.wait_for(lambda: (lambda job: job if job["state"] == "FAILED" else None)
                              (self.local("show", "both")), 40, "the job to fail")
        self.assertGreater(time.monotonic() - began, SILENCE)
        self.assertIn("node2/cpu:0", str(shown["reason"]))
        self.assertEqual([worker["id"] for worker in self.workers()], ["node1/cpu:0"])
        self.mend()
        self.wait_for(lambda: len(self.workers()) == 2, 40, "the worker to attach again")


if __name__ == "__main__":
    harness.main()
