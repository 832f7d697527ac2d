#!/usr/bin/env python3
"""Three hosts, each a network namespace, and the coordinator on a fourth: two of the hosts cannot reach each other,
while both reach everyone else. No job fails that any of the workers could train: an elastic one continues without one
end of the pair, one that needs both waits, others are placed apart from the pair; it is remembered until it is seen
to connect.

FSDPD_CUT_SECONDS is how long each pair is cut at least; without it, until something of theirs was lost."""

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(__file__))
import harness
import test_tls
import test_two_hosts
from test_two_hosts import ip

SECONDS = float(os.environ.get("FSDPD_CUT_SECONDS", "0"))
NOWHERE = "02:00:00:00:00:99"  # a frame to this address reaches the other host, which drops it
PORT = 9437
# Whether a connection is answered, be it by a refusal.
REACH = ("import errno, socket, sys\n"
         "with socket.socket() as asked:\n"
         "    asked.settimeout(2)\n"
         "    sys.exit(asked.connect_ex((sys.argv[1], 9)) not in (0, errno.ECONNREFUSED))\n")


class Hosts(test_two_hosts.Hosts):
    """node0 to node3, each pair joined by a cable of its own, each host with one address."""

    def __init__(self):
        tag = f"{os.getpid() % 100000}"
        nodes = [f"node{n}" for n in range(4)]
        self.names = {node: f"fsdpd-{tag}-{node}" for node in nodes}
        self.addresses = {node: f"10.213.79.{n + 1}" for n, node in enumerate(nodes)}
        self.made = []
        self.cables = {}
        try:
            for node, name in self.names.items():
                ip("netns", "add", name)
                self.made.append(name)
                ip("-n", name, "link", "set", "lo", "up")
                ip("-n", name, "address", "add", f"{self.addresses[node]}/32", "dev", "lo")
            for number, pair in enumerate(itertools.combinations(nodes, 2)):
                self.join(pair, f"fs{tag}{number}")
        except (OSError, subprocess.CalledProcessError) as error:
            self.close()
            raise OSError(str(getattr(error, "stderr", None) or error)) from error

    def join(self, pair, link):
        one, other = pair
        ends = {one: link + "a", other: link + "b"}
        ip("link", "add", ends[one], "netns", self.names[one], "type", "veth",
           "peer", "name", ends[other], "netns", self.names[other])
        for node, end in ends.items():
            ip("-n", self.names[node], "link", "set", end, "up")
        for node, peer in (pair, pair[::-1]):
            ip("-n", self.names[node], "route", "add", self.addresses[peer], "dev", ends[node],
               "src", self.addresses[node])
        self.cables[pair] = ends

    def cut(self, node, peer):
        """What node sends to peer is lost from now on."""
        ends = self.cables[min(node, peer), max(node, peer)]
        ip("-n", self.names[node], "neigh", "replace", self.addresses[peer], "lladdr", NOWHERE, "dev", ends[node],
           "nud", "permanent")

    def mend(self, node, peer):
        ends = self.cables[min(node, peer), max(node, peer)]
        ip("-n", self.names[node], "neigh", "del", self.addresses[peer], "dev", ends[node])

    def sent_again(self, pair):
        """Segments that both hosts have sent again, as nothing answered them."""
        def count(node):
            shown = subprocess.run(self.on(node, "cat", "/proc/net/snmp"), check=True, stdout=subprocess.PIPE, text=True)
            names, values = [line.split() for line in shown.stdout.splitlines() if line.startswith("Tcp:")]
            return int(values[names.index("RetransSegs")])
        return sum(map(count, pair))

    def connects(self, node, peer):
        return subprocess.run(self.on(node, sys.executable, "-c", REACH, self.addresses[peer]), check=False).returncode == 0


class CutPairs(test_two_hosts.TwoHosts):
    test_across = test_cable_out_for_ten_seconds = None

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
        os.mkdir(os.path.join(self.data, "checkpoints"))
        authority = test_tls.Authority(os.path.join(self.root, "ca"))
        self.address = f"{self.hosts.addresses['node0']}:{PORT}"
        server = authority.issue("server", "node0", "--host", self.hosts.addresses["node0"])
        self.ann = authority.issue("user", "ann")
        self.log = open(os.path.join(self.root, "log"), "ab")
        self.addCleanup(self.log.close)
        self.start("node0", harness.FSDPD, "--workers", "none", "--runtime-dir", self.root + "/run",
                   "--state-dir", self.root + "/state", "--data-root", self.data, "--listen", self.address,
                   "--metrics-listen", "127.0.0.1:9438", *test_tls.tls_flags(server))
        self.wait(lambda: self.ctl("node0", "version").returncode == 0, 20, "fsdpd to serve")
        for node in ("node1", "node2", "node3"):
            self.start(node, harness.FSDPD, "worker", "--coordinator", self.address, "--address",
                       self.hosts.addresses[node], "--data-root", self.data, "--threads", "1",
                       *test_tls.tls_flags(authority.issue("worker", node)))
        self.wait(lambda: len(self.workers()) == 3, 20, "three workers to attach")

    def json(self, *arguments, node="node0"):
        return super().json(*arguments, node=node)

    def workers(self):
        found = self.json("workers")
        return found["workers"] if isinstance(found, dict) else found

    def show(self, job):
        shown = self.json("show", job)
        self.assertNotEqual(shown["state"], "FAILED", shown["reason"])
        return shown

    def unreachable(self):
        return {row["host"]: sorted(row["unreachable"]) for row in self.workers() if row.get("unreachable")}

    def hosts_of(self, job):
        return sorted(worker.split("/")[0] for worker in self.show(job)["workers"])

    def wait_world(self, job, workers):
        """It trains on that many hosts; returns them."""
        def reached():
            shown = self.show(job)
            begun = shown["reason"]["code"] == "RUNNING" and len(shown["workers"]) == workers
            return begun and self.hosts_of(job)
        return self.wait(reached, 60, f"{job} to train on {workers} workers")

    def train(self, job, *settings):
        self.submit(job, 1000000, "retry.machine_failures=0", "train.global_batch=24", *settings)

    def elastic(self, job):
        self.train(job, "workers=3", "elastic={min_workers: 2, max_workers: 3}",
                   "checkpoint.directory=" + os.path.join(self.data, "checkpoints"))  # that all hosts have

    def cancel(self, *jobs):
        for job in jobs:
            self.assertEqual(self.ctl("node0", "cancel", job).returncode, 0)
        for job in jobs:
            self.assertEqual(self.wait_over(job, 60)["state"], "CANCELLED")

    def cut(self, *pair):
        self.hosts.cut(*pair)
        self.hosts.cut(*pair[::-1])

    def mend(self, *pair):
        self.hosts.mend(*pair)
        self.hosts.mend(*pair[::-1])

    def lose(self, pair, begin=lambda: None):
        """Cuts the pair before something begins, until what they send is lost and sent again."""
        self.cut(*pair)
        before, until = self.hosts.sent_again(pair), time.monotonic() + SECONDS
        begin()
        self.wait(lambda: time.monotonic() >= until and self.hosts.sent_again(pair) > before + 1, 60 + SECONDS,
                  "segments that are sent again")

    def test_every_pair(self):
        """Before jobs of both kinds begin. When the pair is back, both train on all hosts."""
        for pair in itertools.combinations(("node1", "node2", "node3"), 2):
            with self.subTest(pair=pair):
                name = "-".join(pair)
                self.lose(pair, lambda: self.elastic(name))
                self.show(name)
                self.mend(*pair)
                self.wait_world(name, 3)
                self.assertEqual(self.unreachable(), {})
                self.lose(pair)  # in the middle of a step: nothing happens, except that the job waits
                self.mend(*pair)
                step = int(self.show(name)["step"])
                self.wait(lambda: int(self.show(name)["step"]) > step + 1, 60, "another step")
                self.cancel(name)
                self.lose(pair, lambda: self.train(name + "-all", "workers=3"))
                self.show(name + "-all")
                self.mend(*pair)
                self.wait_world(name + "-all", 3)
                self.cancel(name + "-all")

    def test_while_a_pair_is_cut(self):
        """An elastic job trains without one end, and with it when both are seen to connect; others are placed apart."""
        self.cut("node1", "node3")
        self.elastic("most")
        two = self.wait_world("most", 2)
        self.assertIn(two, (["node1", "node2"], ["node2", "node3"]))
        self.assertEqual(self.unreachable(), {"node1": ["node3"], "node3": ["node1"]})
        table = self.ctl("node0", "workers").stdout
        self.assertIn("CANNOT REACH", table)
        metrics = subprocess.run(self.hosts.on("node0", sys.executable, "-c", "from urllib.request import urlopen; print("
                                               "urlopen('http://127.0.0.1:9438/metrics').read().decode())"),
                                 stdout=subprocess.PIPE, text=True, check=True).stdout
        self.assertRegex(metrics, r'fsdpd_unreachable\{from="node[13]",to="node[13]"\} 1')
        why = [entry["reason"]["message"] for entry in self.json("history", "most")
               if entry["reason"]["code"] == "RETRYING"]
        self.assertRegex(why[0], r"rank (\d) cannot reach rank (?!\1)\d")
        self.cancel("most")
        self.train("all", "workers=3")
        self.wait(lambda: "node1 and node3 cannot reach each other" in self.show("all")["reason"]["message"]
                  or "node3 and node1 cannot reach each other" in self.show("all")["reason"]["message"], 60, "a reason")
        self.train("pair", "workers=2")
        self.assertIn("node2", self.wait_world("pair", 2))
        self.assertEqual(self.show("pair")["attempt"], 1)
        self.cancel("pair")
        self.mend("node1", "node3")
        self.wait_world("all", 3)
        self.assertEqual(self.unreachable(), {})

    def test_one_direction(self):
        """What one end sends is lost: the pair is blamed, and no other host."""
        self.hosts.cut("node1", "node2")
        self.elastic("one-way")
        self.wait_world("one-way", 2)
        self.assertEqual(self.unreachable(), {"node1": ["node2"], "node2": ["node1"]})
        self.hosts.mend("node1", "node2")
        self.wait_world("one-way", 3)

    def test_flapping(self):
        """The pair comes and goes: no job fails, and no other host is blamed."""
        for number in range(2):
            job = f"flapping-{number}"
            self.elastic(job)
            for _ in range(4):
                self.lose(("node2", "node3"))
                self.assertLessEqual(set(self.unreachable()), {"node2", "node3"})
                self.mend("node2", "node3")
                self.wait(lambda: self.hosts.connects("node2", "node3"), 20, "the pair to connect")
            self.wait_world(job, 3)
            step = int(self.show(job)["step"])
            self.wait(lambda: int(self.show(job)["step"]) > step + 1, 60, "another step")
            self.cancel(job)


if __name__ == "__main__":
    harness.main()
