#!/usr/bin/env python3
"""fsdpd as systemd sees it: notifications, the watchdog, activated sockets."""

import os
import signal
import socket
import subprocess
import tempfile
import time
import unittest

import harness
from harness import Daemon, FSDPCTL, FSDPD


class Manager:
    """The receiving end of NOTIFY_SOCKET."""

    def __init__(self, directory):
        self.path = os.path.join(directory, "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.heard = []  # (time, line)

    def __enter__(self):
        return self

    def __exit__(self, *ignored):
        self.socket.close()

    def listen(self, seconds, until=None):
        """Listens for a while, or until a line has this prefix; the lines, with their times."""
        end = time.monotonic() + seconds
        start = len(self.heard)
        while time.monotonic() < end:
            self.socket.settimeout(max(0.01, end - time.monotonic()))
            try:
                datagram = self.socket.recv(4096).decode()
            except socket.timeout:
                break
            now = time.monotonic()
            self.heard += [(now, line) for line in datagram.splitlines()]
            if until and any(line.startswith(until) for _, line in self.heard[start:]):
                break
        return self.heard[start:]

    def wait(self, words, seconds=harness.PATIENCE):
        lines = [line for _, line in self.listen(seconds, words)]
        assert any(line.startswith(words) for line in lines), f"no {words} in {lines[-20:]}"
        return lines


class Service(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory(prefix="fsdpd-test-")
        self.addCleanup(self.directory.cleanup)
        self.root = self.directory.name

    def test_notifications(self):
        manager = self.enterContext(Manager(self.root))
        environment = {"NOTIFY_SOCKET": manager.path, "WATCHDOG_USEC": "1900000"}
        with Daemon(workers=1, environment=environment) as daemon:
            lines = manager.wait("STATUS=1 worker, 0 jobs running, 0 queued")
            self.assertIn("READY=1", lines)
            # fsdpd feeds the watchdog at least twice per period; occasional stalls of the machine
            # do not count. It sends each state once.
            heard = [manager.wait("WATCHDOG=1") for _ in range(6)]
            fed = [at for at, line in manager.heard if line == "WATCHDOG=1"][-6:]
            gaps = sorted(b - a for a, b in zip(fed, fed[1:]))
            self.assertLess(gaps[len(gaps) // 2], 0.95, gaps)
            self.assertNotIn("STATUS=1 worker, 0 jobs running, 0 queued", sum(heard, []))
            job = daemon.submit("train.epochs=100000", "workers=1")
            manager.wait("STATUS=1 worker, 1 job running, 0 queued")
            # A stopped process feeds nothing.
            daemon.process.send_signal(signal.SIGSTOP)
            with open(f"/proc/{daemon.process.pid}/stat") as stat:
                while stat.read().rsplit(")", 1)[1].split()[0] != "T":
                    stat.seek(0)
            while manager.listen(0.1):
                pass  # sent before
            self.assertEqual(manager.listen(1), [])
            daemon.process.send_signal(signal.SIGCONT)
            manager.wait("WATCHDOG=1")
            daemon.process.send_signal(signal.SIGHUP)
            lines = manager.wait("READY=1")
            self.assertIn("RELOADING=1", lines)
            usec = [line for line in lines if line.startswith("MONOTONIC_USEC=")]
            self.assertAlmostEqual(int(usec[0].split("=")[1]) / 1e6, time.monotonic(), delta=harness.PATIENCE)
            self.assertEqual(daemon.ctl("cancel", job).returncode, 0)
            # Workers do not inherit variables meant for fsdpd.
            worker = harness.children(daemon.process.pid)[0]
            with open(f"/proc/{worker}/environ", "rb") as environ:
                names = [entry.split(b"=")[0] for entry in environ.read().split(b"\0")]
            self.assertFalse({b"NOTIFY_SOCKET", b"WATCHDOG_USEC", b"LISTEN_FDS"} & set(names))
            daemon.process.terminate()
            lines = manager.wait("STOPPING=1")
            self.assertIn("STATUS=stopping", lines)
            daemon.process.wait(harness.PATIENCE)
            self.assertEqual(daemon.process.returncode, 0)

    def test_no_watchdog_without_one(self):
        manager = self.enterContext(Manager(self.root))
        with Daemon(workers=1, environment={"NOTIFY_SOCKET": manager.path}):
            lines = [line for _, line in manager.listen(1.5)]
        self.assertIn("READY=1", lines)
        self.assertNotIn("WATCHDOG=1", lines)

    def activated(self, family, address, *arguments):
        """Starts fsdpd with a socket as systemd passes it."""
        listener = socket.socket(family, socket.SOCK_STREAM)
        self.addCleanup(listener.close)
        listener.bind(address)
        listener.listen(16)
        log = open(os.path.join(self.root, "log"), "ab")
        self.addCleanup(log.close)
        command = f'exec 3<&{listener.fileno()}; LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"'
        return subprocess.Popen(
            ["sh", "-c", command, "sh", FSDPD, "--workers", "cpu:1", "--runtime-dir",
             os.path.join(self.root, "run"), "--state-dir", os.path.join(self.root, "state"),
             *arguments], env=dict(os.environ, FSDPD_CONFIG=""), stdin=subprocess.DEVNULL,
            stdout=log, stderr=log, pass_fds=[listener.fileno()])

    def log(self):
        with open(os.path.join(self.root, "log")) as file:
            return file.read()

    def test_socket_activation(self):
        """Twice on one socket, which outlives fsdpd; clients that connect in between wait."""
        path = os.path.join(self.root, "given.sock")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.addCleanup(listener.close)
        listener.bind(path)
        listener.listen(16)
        for _ in range(2):
            client = subprocess.Popen([FSDPCTL, "status", "-o", "json", "--address",
                                       "unix:" + path], stdout=subprocess.PIPE, text=True)
            command = f'exec 3<&{listener.fileno()}; LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"'
            with open(os.path.join(self.root, "log"), "ab") as log:
                daemon = subprocess.Popen(
                    ["sh", "-c", command, "sh", FSDPD, "--workers", "cpu:1", "--runtime-dir",
                     os.path.join(self.root, "run"), "--state-dir",
                     os.path.join(self.root, "state")], env=dict(os.environ, FSDPD_CONFIG=""),
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    pass_fds=[listener.fileno()])
            try:
                client.communicate(timeout=harness.PATIENCE)
                self.assertEqual(client.returncode, 0, self.log())
                self.assertFalse(os.path.exists(os.path.join(self.root, "run/fsdpd.sock")))
                # Its own workers use the socket too.
                until = time.monotonic() + harness.PATIENCE
                attached = ""
                while "cpu:0" not in attached and time.monotonic() < until:
                    attached = subprocess.run([FSDPCTL, "workers", "--address", "unix:" + path],
                                              stdout=subprocess.PIPE, text=True).stdout
                self.assertIn("cpu:0", attached, self.log())
                daemon.terminate()
                self.assertEqual(daemon.wait(harness.PATIENCE), 0, self.log())
            finally:
                daemon.kill()
                daemon.wait()
            self.assertTrue(os.path.exists(path))

    def test_tcp_socket_is_refused(self):
        daemon = self.activated(socket.AF_INET, ("127.0.0.1", 0))
        self.assertEqual(daemon.wait(harness.PATIENCE), 4, self.log())
        self.assertIn("--insecure-tcp to serve it without encryption and authentication", self.log())


if __name__ == "__main__":
    harness.main()
