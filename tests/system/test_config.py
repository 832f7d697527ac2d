#!/usr/bin/env python3
"""fsdpd.yaml: checked, dumped, and reloaded by a running daemon."""

import json
import os
import pty
import signal
import subprocess
import tempfile
import unittest

import harness
from harness import Daemon, FSDPD

# Without the variables that configure fsdpd and these tests.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("FSDPD_")}


def fsdpd(*arguments, **environment):
    return subprocess.run([FSDPD, *arguments], text=True, timeout=harness.PATIENCE, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env=dict(ENVIRONMENT, FSDPD_CONFIG="", **environment))


class Config(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory(prefix="fsdpd-test-")
        self.addCleanup(self.directory.cleanup)
        self.path = os.path.join(self.directory.name, "fsdpd.yaml")

    def write(self, text):
        with open(self.path, "w") as file:
            file.write(text)

    def test_check(self):
        self.write("log_level: debug\n")
        result = fsdpd("config", "check", self.path)
        self.assertEqual((result.returncode, result.stdout), (0, f"{self.path}: ok\n"))
        self.write("log_levle: debug\nlimits: {watchers: 0}\n")
        result = fsdpd("config", "check", self.path)
        self.assertEqual(result.returncode, 2)
        lines = result.stderr.splitlines()
        self.assertEqual(len(lines), 2, result.stderr)
        self.assertTrue(lines[0].startswith(f"fsdpd: {self.path}:1: log_levle: "), lines)
        self.assertIn("did you mean log_level?", lines[0])
        self.assertTrue(lines[1].startswith(f"fsdpd: {self.path}:2: limits.watchers: "), lines)
        result = fsdpd("--config", self.path)
        self.assertEqual(result.returncode, 2, "a daemon does not start with it either")

    def test_dump(self):
        self.write("limits: {watchers: 7}\n")
        result = fsdpd("config", "dump", self.path, "-o", "json", "--threads", "3",
                       FSDPD_LOG_LEVEL="error")
        entries = {entry["key"]: entry for entry in json.loads(result.stdout)}
        self.assertEqual(entries["limits.watchers"]["value"], "7")
        self.assertEqual(entries["limits.watchers"]["source"], f"{self.path}:1")
        self.assertEqual(entries["log_level"]["source"], "FSDPD_LOG_LEVEL")
        self.assertEqual(entries["threads"]["source"], "--threads")
        self.assertEqual(entries["workers"], {"key": "workers", "value": "cpu:2",
                                              "source": "default", "reload": False})

    def test_dump_is_read_again(self):
        """Also where the state directory, whose data root is a default, does not exist."""
        missing = os.path.join(self.directory.name, "missing")
        dump = fsdpd("config", "dump", "--state-dir", missing)
        self.assertEqual(dump.returncode, 0, dump.stderr)
        self.assertIn(f"# data_roots: [{missing}/data]", dump.stdout)
        self.write(dump.stdout)
        result = fsdpd("config", "check", self.path)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        again = fsdpd("config", "dump", self.path)
        self.assertIn(f"# data_roots: [{missing}/data]", again.stdout)

    def test_variables(self):
        """The check lists the variables of the environment, and warns of a misspelt one."""
        result = fsdpd("config", "check")
        self.assertEqual((result.returncode, result.stdout),
                         (0, "no configuration file; all settings have their defaults\n"))
        result = fsdpd("config", "check", "--threads", "2", FSDPD_LOG_LEVEL="debug", FSDPD_ADDRESS="unix:/x",
                       FSDPD_CUDA_SYNC="1")
        self.assertEqual((result.returncode, result.stdout, result.stderr),
                         (0, "no configuration file; given: --threads, FSDPD_LOG_LEVEL; all other settings have their defaults\n", ""))
        result = fsdpd("config", "check", FSDPD_LIMITS_WATCHRS="3")
        self.assertEqual(result.returncode, 0)
        self.assertEqual(result.stderr, "fsdpd: warning: the environment's FSDPD_LIMITS_WATCHRS is not a variable "
                                        "of fsdpd; did you mean FSDPD_LIMITS_WATCHERS?\n")
        result = fsdpd("config", "check", FSDPD_CUDA_GRAPH="off")  # FSDPD_CUDA_GRAPHS
        self.assertIn("the environment's FSDPD_CUDA_GRAPH is not a variable of fsdpd", result.stderr)

    def test_set_variables_are_logged(self):
        """Once by the coordinator, and once by its worker."""
        with Daemon(workers=1, environment={"FSDPD_CUDA_AHEAD": "off"}) as daemon:
            logged = daemon.text().count("switch_set name=FSDPD_CUDA_AHEAD kind=experiment value=off")
            self.assertEqual(logged, 2)

    def test_help_in_columns(self):
        for role in ([], ["coordinator"], ["worker"], ["plan"], ["config"], ["cert"]):
            text = fsdpd(*role, "--help").stdout
            flags = text[text.index("\nFlags"):]
            for line in flags.splitlines():
                self.assertLess(len(line), 81, line)
                if line.startswith("  -"):
                    self.assertRegex(line, r"^  --?[a-z][a-z-]*(, --?[a-z-]+)?( [A-Zcpux:N]+)?$|^.{25} ", line)

    def test_reload(self):
        self.write("limits: {watchers: 5}\n")
        with Daemon(workers=1, arguments=["--config", self.path]) as daemon:
            self.write("limits: {watchers: 6, jobs_active: 1}\nlog_level: debug\nthreads: 1\n")
            daemon.process.send_signal(signal.SIGHUP)
            line = daemon.wait_log("reloaded")
            self.assertIn('changed="log_level, limits.jobs_active, limits.watchers"', line)
            self.assertIn("needs_restart=threads", line)
            self.assertIn(self.path, line)
            # The limit applies from now on.
            first = daemon.submit("workers=2")  # waits for a second worker
            refused = daemon.ctl("submit", harness.JOB, "--set", f"data.dir={daemon.data}")
            self.assertGreater(refused.returncode, 0)
            self.assertIn("1 jobs are queued or running already", refused.stderr)
            # An error changes nothing.
            self.write("limits: {jobs_active: 5}\nlog_level: loud\n")
            daemon.process.send_signal(signal.SIGHUP)
            line = daemon.wait_log("reload_refused")
            self.assertIn("fsdpd.yaml:2: log_level", line)
            refused = daemon.ctl("submit", harness.JOB, "--set", f"data.dir={daemon.data}")
            self.assertGreater(refused.returncode, 0)
            self.assertEqual(daemon.ctl("cancel", first).returncode, 0)

    def test_a_configuration_that_is_no_file(self):
        """A FIFO, at the start and at a reload."""
        os.mkfifo(self.path)
        result = fsdpd("--config", self.path)
        self.assertEqual((result.returncode, result.stderr),
                         (2, f"fsdpd: {self.path} is not a regular file\n"))
        os.unlink(self.path)
        self.write("log_level: info\n")
        with Daemon(workers=1, arguments=["--config", self.path]) as daemon:
            os.unlink(self.path)
            os.mkfifo(self.path)
            daemon.process.send_signal(signal.SIGHUP)
            self.assertIn("is not a regular file", daemon.wait_log("reload_refused"))
            self.assertEqual(daemon.ctl("status").returncode, 0)

    def test_a_configuration_on_a_disk_that_hangs(self):
        """fsdpd serves, refuses the reload, and takes a later one when the disk answers again."""
        self.write("log_level: info\n")
        faults = harness.own_faults(self.addCleanup)
        with Daemon(workers=1, arguments=["--config", self.path], environment=faults.environment) as daemon:
            faults.set("open */fsdpd.yaml HOLD")
            daemon.process.send_signal(signal.SIGHUP)
            harness_wait(lambda: faults.hits()[0] == 1)
            self.assertEqual(daemon.ctl("status").returncode, 0)
            self.assertIn("was not read within", daemon.wait_log("reload_refused"))
            daemon.process.send_signal(signal.SIGHUP)
            daemon.wait_log("is still being read")
            faults.clear()
            self.write("limits: {watchers: 6}\n")

            def reloads():
                daemon.process.send_signal(signal.SIGHUP)
                return " reloaded " in daemon.text()
            harness_wait(reloads)

    def test_the_end_while_a_configuration_hangs(self):
        self.write("log_level: info\n")
        faults = harness.own_faults(self.addCleanup)
        with Daemon(workers=1, arguments=["--config", self.path], environment=faults.environment) as daemon:
            faults.set("open */fsdpd.yaml HOLD")
            daemon.process.send_signal(signal.SIGHUP)
            harness_wait(lambda: faults.hits()[0] == 1)
            daemon.process.send_signal(signal.SIGTERM)
            self.assertEqual(daemon.process.wait(harness.PATIENCE), 0)
            self.assertIn(" ended", daemon.text())

    def test_terminal_goes_away(self):
        """SIGHUP from a terminal that has closed ends fsdpd and its workers."""
        root = self.directory.name
        pid, terminal = pty.fork()
        if pid == 0:
            # The test may itself run under nohup, whose ignored SIGHUP fsdpd would respect.
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            log = os.open(os.path.join(root, "log"), os.O_WRONLY | os.O_CREAT, 0o600)
            for fd in (0, 1, 2):
                os.dup2(log, fd)
            os.execve(FSDPD, [FSDPD, "--config=", "--workers", "cpu:1",
                              "--runtime-dir", os.path.join(root, "run"),
                              "--state-dir", os.path.join(root, "state")], os.environ)
        try:
            harness_wait(lambda: "serving" in read(os.path.join(root, "log")))
            os.kill(pid, signal.SIGHUP)  # the terminal still exists
            harness_wait(lambda: "reloaded" in read(os.path.join(root, "log")))
            os.close(terminal)
            ended = {}

            def over():
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    ended["code"] = os.waitstatus_to_exitcode(status)
                return done
            harness_wait(over)
            self.assertEqual(ended["code"], 0, read(os.path.join(root, "log")))
        except BaseException:
            os.kill(pid, signal.SIGKILL)
            raise


def read(path):
    try:
        with open(path) as file:
            return file.read()
    except FileNotFoundError:
        return ""


def harness_wait(condition, seconds=harness.PATIENCE):
    import time
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise AssertionError("waited too long")
        time.sleep(0.05)


if __name__ == "__main__":
    harness.main()
