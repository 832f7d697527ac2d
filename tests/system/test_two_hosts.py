#!/usr/bin/env python3
"""Two hosts, each a network namespace with its own address: the coordinator on one, workers on
both, mutual TLS between them, a job across them; the cable between them unplugged for ten seconds,
and for good."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness
import test_tls

PORT = 9436
SILENCE_S = 5  # shorter than the ten seconds without the cable, so that the break is noticed


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


class Hosts:
    """node1 and node2, joined by a cable; gone when closed. Raises OSError where that is not
    permitted."""

    def __init__(self):
        tag = f"{os.getpid() % 100000}"
        self.names = {"node1": f"fsdpd-{tag}-1", "node2": f"fsdpd-{tag}-2"}
        self.links = {"node1": f"fsd{tag}a", "node2": f"fsd{tag}b"}
        self.addresses = {"node1": "10.213.77.1", "node2": "10.213.77.2"}
        self.made = []
        try:
            for name in self.names.values():
                ip("netns", "add", name)
                self.made.append(name)
            for name in self.names.values():
                ip("-n", name, "link", "set", "lo", "up")
            self.lay_cable(self.links, self.addresses)
        except (OSError, subprocess.CalledProcessError) as error:
            self.close()
            raise OSError(str(getattr(error, "stderr", None) or error)) from error

    def lay_cable(self, links, addresses):
        ip("link", "add", links["node1"], "netns", self.names["node1"], "type", "veth",
           "peer", "name", links["node2"], "netns", self.names["node2"])
        for node, name in self.names.items():
            ip("-n", name, "address", "add", f"{addresses[node]}/24", "dev", links[node])
            ip("-n", name, "link", "set", links[node], "up")

    def on(self, node, *arguments):
        """The command line that runs on this host, under the host's name."""
        return ["ip", "netns", "exec", self.names[node], "unshare", "--uts", "sh", "-c",
                'hostname "$0"; exec "$@"', node, *arguments]

    def cable(self, plugged):
        ip("-n", self.names["node2"], "link", "set", self.links["node2"],
           "up" if plugged else "down")

    def sent(self, node):
        """Bytes that the host has sent over the cable."""
        shown = subprocess.run(["ip", "-n", self.names[node], "-j", "-s", "link", "show",
                                self.links[node]], check=True, stdout=subprocess.PIPE, text=True)
        return json.loads(shown.stdout)[0]["stats64"]["tx"]["bytes"]

    def end_processes(self):
        """Ends what still runs on the hosts, such as the steps of a Slurm job."""
        for name in self.made:
            found = subprocess.run(["ip", "netns", "pids", name], stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, text=True)
            for pid in found.stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)

    def close(self):
        self.end_processes()
        for name in self.made:  # the cable goes with them
            subprocess.run(["ip", "netns", "delete", name], stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
        self.made = []


class TwoHosts(unittest.TestCase):
    reattach_seconds = 60  # the default
    limits = {"FSDPD_LIMITS_SILENCE_SECONDS": str(SILENCE_S)}

    def worker_address(self, node):
        """The address at which the worker of this host is reached by the other."""
        return self.hosts.addresses[node]

    def setUp(self):
        if not shutil.which("ip") or not shutil.which("unshare"):
            self.skipTest("SKIP: needs iproute2's ip and util-linux's unshare")
        try:
            self.hosts = Hosts()
        except OSError as error:
            self.skipTest(f"SKIP: network namespaces are not permitted here: {error}")
        self.addCleanup(self.hosts.close)
        self.root = tempfile.mkdtemp(prefix="fsdpd-test-")
        self.addCleanup(shutil.rmtree, self.root, ignore_errors=True)
        self.data = os.path.join(self.root, "data")
        harness.draw_digits(self.data)
        authority = test_tls.Authority(os.path.join(self.root, "ca"))
        server = authority.issue("server", "node1", "--host", self.hosts.addresses["node1"])
        self.ann = authority.issue("user", "ann")
        self.address = f"{self.hosts.addresses['node1']}:{PORT}"
        self.log = open(os.path.join(self.root, "log"), "ab")
        self.addCleanup(self.log.close)
        self.start("node1", harness.FSDPD, "--workers", "none", "--runtime-dir", self.root + "/run",
                   "--state-dir", self.root + "/state", "--data-root", self.data, "--listen",
                   self.address, *test_tls.tls_flags(server), **self.limits,
                   FSDPD_LIMITS_REATTACH_SECONDS=str(self.reattach_seconds))
        self.wait(lambda: self.ctl("node2", "version").returncode == 0, 20, "fsdpd to serve")
        # One attaches over its host's socket, and gives the address at which the other reaches it.
        self.start("node1", harness.FSDPD, "worker", "--coordinator",
                   f"unix:{self.root}/run/fsdpd.sock", "--address", self.worker_address("node1"),
                   "--data-root", self.data, "--threads", "1")
        self.far = self.start("node2", harness.FSDPD, "worker", "--coordinator", self.address,
                              "--address", self.worker_address("node2"),
                              "--data-root", self.data, "--threads", "1",
                              *test_tls.tls_flags(authority.issue("worker", "node2")))
        self.wait(lambda: len(self.json("workers")) == 2, 20, "two workers to attach")

    def start(self, node, *arguments, **variables):
        process = subprocess.Popen(self.hosts.on(node, *arguments), stdin=subprocess.DEVNULL,
                                   env=dict(os.environ, FSDPD_CONFIG="", **variables),
                                   stdout=self.log, stderr=self.log)

        def end():
            process.terminate()
            try:
                process.wait(harness.PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.addCleanup(end)
        return process

    def ctl(self, node, *arguments, timeout=harness.PATIENCE):
        return subprocess.run(
            self.hosts.on(node, harness.FSDPCTL, *arguments, "--address", self.address,
                          *test_tls.tls_flags(self.ann)),
            text=True, timeout=timeout, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE)

    def json(self, *arguments, node="node1"):
        result = self.ctl(node, *arguments, "-o", "json")
        self.assertEqual(result.returncode, 0, result.stderr + self.text())
        return json.loads(result.stdout)

    def text(self):
        with open(os.path.join(self.root, "log"), errors="replace") as log:
            return log.read()[-8000:]

    def wait(self, condition, seconds, what):
        seconds = max(seconds, harness.PATIENCE)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            value = condition()
            if value:
                return value
            time.sleep(0.1)
        raise AssertionError(f"waited {seconds} s for {what}\n{self.text()}")

    def wait_over(self, job, seconds):
        def over():
            shown = self.json("show", job)
            return shown if shown["state"] in ("SUCCEEDED", "FAILED", "CANCELLED") else None
        return self.wait(over, seconds, f"{job} to be over")

    def submit(self, job, steps, *settings):
        result = self.ctl("node2", "submit", harness.JOB, "--id", job, "--set", "workers=2", "--set",
                          f"data.dir={self.data}", "--set", "train.epochs=100000", "--set",
                          f"train.max_steps={steps}", "--set", "train.batch_size=8", "--set",
                          "train.log_interval=1", "--set", "train.evaluate=false",
                          *[word for setting in settings for word in ("--set", setting)])
        self.assertEqual(result.returncode, 0, result.stderr)

    def losses(self, job):
        """The curve: every step once, in order."""
        out = self.ctl("node2", "watch", job, "-o", "json").stdout
        events = [json.loads(line) for line in out.splitlines()]
        points = [(event["metrics"]["step"], event["metrics"]["loss"]) for event in events
                  if event.get("metrics")]
        self.assertEqual([step for step, _ in points], list(range(1, len(points) + 1)))
        return [loss for _, loss in points]

    def test_across(self):
        """A job over both; its gradients, and finally its weights, cross the cable."""
        self.assertEqual({worker["id"].split("/")[0] for worker in self.json("workers")},
                         {"node1", "node2"})
        before = self.hosts.sent("node2")
        self.submit("across", 20)
        shown = self.wait_over("across", 60)
        self.assertEqual((shown["state"], shown["step"]), ("SUCCEEDED", 20), self.text())
        self.assertEqual(sorted(worker.split("/")[0] for worker in shown["workers"]),
                         ["node1", "node2"])
        # Each of the 20 steps gathers and reduces 1.2 million parameters, half of them on node2.
        self.assertGreater(self.hosts.sent("node2") - before, 20 * 2_000_000)
        weights = os.path.join(self.root, "weights.safetensors")
        pulled = self.ctl("node2", "pull", "across", "-o", weights)
        self.assertEqual(pulled.returncode, 0, pulled.stderr)
        self.assertIn("conv1.weight", harness.read_safetensors(weights)[0])

    def test_cable_out_for_ten_seconds(self):
        """Nothing happens, except that the job waits."""
        self.submit("patient", 120)
        self.wait(lambda: int(self.json("show", "patient")["step"]) >= 5, 60, "step 5")
        self.hosts.cable(False)
        pulled_out = time.monotonic()
        # A client on the coordinator's host gets an answer meanwhile.
        while time.monotonic() < pulled_out + 10:
            self.assertEqual(self.json("show", "patient")["state"], "RUNNING", self.text())
            time.sleep(0.5)
        self.hosts.cable(True)
        shown = self.wait_over("patient", 90)
        self.assertEqual((shown["state"], shown["step"], shown["attempt"]), ("SUCCEEDED", 120, 1),
                         f"{shown['reason']}\n{self.text()}")
        self.assertEqual(len(self.losses("patient")), 120)


class ForGood(TwoHosts):
    """The cable is unplugged for longer than a worker may be away."""
    reattach_seconds = 5
    test_across = test_cable_out_for_ten_seconds = None

    def lose(self, job, *settings):
        self.submit(job, 100000, *settings)
        self.wait(lambda: int(self.json("show", job)["step"]) >= 5, 60, "step 5")
        self.hosts.cable(False)

    def test_job_that_may_not_fail(self):
        """The job ends with the lost host, and names it; the other host is free. When the cable is
        plugged in again, the lost worker gets the order to stop its job, and continues to serve."""
        self.lose("stuck", "retry.machine_failures=0")
        shown = self.wait_over("stuck", 60)
        self.assertEqual((shown["state"], shown["reason"]["code"]), ("FAILED", "WORKER_LOST"),
                         self.text())
        self.assertIn("node2", shown["reason"]["message"])
        self.wait(lambda: [worker["state"] for worker in self.json("workers")
                           if worker["id"].startswith("node1/")] == ["idle"], 30,
                  "the worker of node1 to be free")
        self.hosts.cable(True)
        self.wait(lambda: sorted(worker["state"] for worker in self.json("workers")) ==
                  ["idle", "idle"], 60, "the worker of node2 to be back, and free")
        self.submit("next", 10)
        self.assertEqual(self.wait_over("next", 60)["state"], "SUCCEEDED", self.text())

    def test_job_that_is_retried(self):
        """With budget left the job waits for two workers, and continues when there are two."""
        self.lose("stubborn")
        self.wait(lambda: self.json("show", "stubborn")["reason"]["code"] == "WAITING_FOR_WORKERS", 60,
                  "the job to wait for workers")
        self.hosts.cable(True)
        self.wait(lambda: (lambda shown: shown["state"] == "RUNNING" and shown["attempt"] == 2)(
            self.json("show", "stubborn")), 90, "its second attempt")
        self.assertEqual(self.ctl("node2", "cancel", "stubborn").returncode, 0)
        self.assertEqual(self.wait_over("stubborn", 60)["state"], "CANCELLED", self.text())


if __name__ == "__main__":
    harness.main()
