#!/usr/bin/env python3
"""fsdpctl diagnose on two hosts that are joined by two cables, one between the ranks and one to the
coordinator: it names which of them is cut."""

import os
import sys
import time

sys.path.insert(0, os.path.dirname(__file__))
import diagnosing
import harness
import test_two_hosts


class Cables(test_two_hosts.TwoHosts):
    limits = diagnosing.PATIENT
    test_across = test_cable_out_for_ten_seconds = None

    def worker_address(self, node):
        """The ranks' own cable, laid when the first one asks for it."""
        addresses = {"node1": "10.213.78.1", "node2": "10.213.78.2"}
        if node == "node1":
            self.links = {name: link + "r" for name, link in self.hosts.links.items()}
            self.hosts.lay_cable(self.links, addresses)
        return addresses[node]

    def cut(self, links):
        test_two_hosts.ip("-n", self.hosts.names["node2"], "link", "set", links["node2"], "down")

    def train(self):
        self.submit("cut", 1000000)
        self.wait(lambda: int(self.json("show", "cut")["step"]) >= 5, 60, "step 5")
        self.assertEqual([worker.split("/")[0] for worker in self.json("show", "cut")["workers"]],
                         ["node1", "node2"])

    def expect(self, cause, *words):
        began, seen = time.monotonic(), []

        def judged():
            found = self.json("diagnose", "cut")
            seen[:] = [found]
            return found["cause"] == cause and all(word in found["verdict"] for word in words)
        try:
            self.wait(judged, 30, f"the cause {cause}")
        except AssertionError as error:
            raise AssertionError(f"the last verdict: {seen[0]['verdict']}") from error
        print(f"{time.monotonic() - began:.1f} s: {seen[0]['verdict']}")
        return seen[0]

    def test_between_the_ranks(self):
        """All answer, and all wait for each other: a connection is to blame."""
        self.train()
        self.cut(self.links)
        found = self.expect("LINK", "all ranks have entered ", " gets no answer from 10.213.78.")
        self.assertEqual([rank["answered"] for rank in found["ranks"]], [True, True])

    def test_to_the_coordinator(self):
        """The job trains on; the coordinator does not hear its second rank."""
        self.train()
        self.cut(self.hosts.links)
        found = self.expect("SILENT", "rank 1 (node2/cpu) has been silent for ",
                            "its host, its process or the network between does not answer",
                            "; the last step that was heard of is ")
        self.assertEqual(found["ranks_to_blame"], [1])
        before = int(self.json("show", "cut")["step"])
        self.wait(lambda: int(self.json("show", "cut")["step"]) > before, 30, "another step")


if __name__ == "__main__":
    harness.main()
