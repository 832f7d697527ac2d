#!/usr/bin/env python3
"""Strangers that connect and say nothing: thousands of connections, few descriptors, and fsdpd
still serves all others. fsdpd runs with 400 descriptors; the test opens silent connections, and
reopens closed ones, for its whole duration."""

import os
import resource
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.request

sys.path.insert(0, os.path.dirname(__file__))
import harness
from harness import FSDPCTL, Daemon, free_port
from test_tls import Authority, client, tls_flags

DESCRIPTORS, SILENT, AT_LEAST = 400, 800, 3000


class Strangers:
    """Keeps SILENT connections to an address open and reopens those that are closed. `opening` is
    what each of them sends before it falls silent."""

    def __init__(self, family, address, opening=b""):
        self.family, self.address, self.opening = family, address, opening
        self.made, self.enough, self.over = 0, threading.Event(), False
        self.error = None
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def connect(self, poller):
        stranger = socket.socket(self.family, socket.SOCK_STREAM)
        stranger.settimeout(harness.PATIENCE)
        stranger.connect(self.address)
        try:
            stranger.sendall(self.opening)
        except OSError:  # it was closed already
            pass
        poller.register(stranger, selectors.EVENT_READ)
        self.made += 1
        if self.made >= AT_LEAST:
            self.enough.set()

    def run(self):
        poller = selectors.DefaultSelector()
        try:
            while not self.over:
                while len(poller.get_map()) < SILENT and not self.over:
                    self.connect(poller)
                for key, _ in poller.select(0.1):
                    try:
                        gone = not key.fileobj.recv(4096)
                    except OSError:
                        gone = True
                    if gone:
                        poller.unregister(key.fileobj)
                        key.fileobj.close()
        except Exception as error:  # reported by the test
            self.error = error
        finally:
            self.enough.set()
            for key in list(poller.get_map().values()):
                key.fileobj.close()
            poller.close()

    def end(self):
        self.over = True
        self.thread.join()


class Limited(Daemon):
    """With DESCRIPTORS of them."""

    def start(self, attach=True):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wrapper = os.path.join(self.root, "limited")
        with open(wrapper, "w") as file:
            file.write(f"#!/bin/sh\nulimit -n {DESCRIPTORS}\nexec {harness.FSDPD} \"$@\"\n")
        os.chmod(wrapper, 0o755)
        program, harness.FSDPD = harness.FSDPD, wrapper
        try:
            super().start(attach)
        finally:
            harness.FSDPD = program


class Test(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="fsdpd-test-")
        self.addCleanup(shutil.rmtree, self.root, ignore_errors=True)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard < 2 * SILENT:
            self.skipTest("too few descriptors for these connections")
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    def start(self, *arguments, **options):
        daemon = Limited(arguments=arguments, **options)
        self.addCleanup(daemon.close)
        return daemon

    def strangers(self, *arguments):
        strangers = Strangers(*arguments)
        self.addCleanup(strangers.end)
        strangers.enough.wait(harness.PATIENCE)
        self.assertIsNone(strangers.error)
        self.assertGreaterEqual(strangers.made, AT_LEAST)
        return strangers

    def descriptors(self, daemon):
        return len(os.listdir(f"/proc/{daemon.process.pid}/fd"))

    def job(self, daemon, strangers):
        """Runs a job from its submission to its weights, on workers that have just started."""
        self.assertLess(self.descriptors(daemon), DESCRIPTORS - 96)
        for pid in harness.children(daemon.process.pid):
            os.kill(pid, harness.signal.SIGKILL)
        daemon.wait_for(lambda: len(daemon.worker_list()) == 2, harness.PATIENCE, "new workers")
        job = daemon.submit("train.max_steps=5", "train.evaluate=false", "workers=2")
        daemon.wait_state(job, "SUCCEEDED")
        self.assertTrue(daemon.tensors(job))
        self.assertIsNone(strangers.error)
        self.assertIn("silent_connections_closed", daemon.text())

    def test_plaintext(self):
        port = free_port()
        daemon = self.start("--listen", f"127.0.0.1:{port}", "--insecure-tcp")
        strangers = self.strangers(socket.AF_INET, ("127.0.0.1", port))
        for _ in range(5):
            result = subprocess.run([FSDPCTL, "status", "--address", f"127.0.0.1:{port}", "--insecure-tcp"],
                                    text=True, capture_output=True, timeout=harness.PATIENCE)
            self.assertEqual(result.returncode, 0, result.stderr)
        self.job(daemon, strangers)

    def tls(self, opening):
        authority = Authority(os.path.join(self.root, "ca"))
        server = authority.issue("server", "here", "--host", "127.0.0.1")
        ann = authority.issue("user", "ann")
        port = free_port()
        daemon = self.start("--listen", f"127.0.0.1:{port}", *tls_flags(server))
        strangers = self.strangers(socket.AF_INET, ("127.0.0.1", port), opening)
        for _ in range(5):
            result = client(f"127.0.0.1:{port}", ann, "status")
            self.assertEqual(result.returncode, 0, result.stderr)
        self.job(daemon, strangers)

    def test_tls(self):
        self.tls(b"")

    def test_tls_part_of_a_hello(self):
        self.tls(b"\x16\x03\x01\x02\x00\x01\x00")

    def test_unix_socket(self):
        """Processes of another user, with permission to open the socket."""
        if os.geteuid() != 0:
            self.skipTest("only root can be another user")
        daemon = self.start()
        os.chmod(daemon.root, 0o755)
        os.chmod(os.path.join(daemon.root, "run"), 0o755)
        path = os.path.join(daemon.root, "run/fsdpd.sock")
        os.chmod(path, 0o666)
        before = self.descriptors(daemon)
        script = ("import os, socket, sys\n"
                  "os.setuid(65534)\n"
                  "kept = []\n"
                  f"for i in range({SILENT}):\n"
                  "    s = socket.socket(socket.AF_UNIX)\n"
                  f"    s.connect({path!r})\n"
                  "    kept.append(s)\n"
                  "print('there', flush=True)\n"
                  "sys.stdin.read()\n")
        with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True) as other:
            self.assertEqual(other.stdout.readline(), "there\n")
            self.assertEqual(daemon.ctl("status").returncode, 0)
            self.assertLess(self.descriptors(daemon), before + 100)
            job = daemon.submit("train.max_steps=5", "train.evaluate=false")
            daemon.wait_state(job, "SUCCEEDED")
            other.stdin.close()

    def test_monitoring(self):
        port = free_port()
        daemon = self.start("--metrics-listen", f"127.0.0.1:{port}")
        strangers = self.strangers(socket.AF_INET, ("127.0.0.1", port), b"GET /metrics HT")
        for _ in range(5):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz",
                                        timeout=harness.PATIENCE) as answer:
                self.assertEqual(answer.read(), b"ok\n")
        self.job(daemon, strangers)


if __name__ == "__main__":
    harness.main()
