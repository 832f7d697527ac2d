#!/usr/bin/env python3
"""watch and top on a terminal of their own: curves, sizes, Ctrl-C, and a coordinator that dies
meanwhile."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import termios
import time
import unittest

import harness
from harness import DONE, FSDPCTL, JOB_CANCELLED, JOB_FAILED, UNREACHABLE, USAGE, Daemon, main

BRAILLE = re.compile("[\u2801-\u28ff]")
INTERRUPTED = 130


class Terminal:
    """fsdpctl in the foreground of a terminal; `text` is its whole output. It does not outlive the
    test."""

    def __init__(self, test, daemon, *arguments, columns=100, rows=30, **environment):
        settings = {"FSDPD_ADDRESS": daemon.address, "TERM": "xterm", "LC_ALL": "C.UTF-8",
                    "NO_COLOR": "", **environment}
        self.text, self.code = "", None
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(FSDPCTL, [FSDPCTL, *arguments], dict(os.environ, **settings))
        test.addCleanup(self.end)
        self.before = termios.tcgetattr(self.fd)
        self.resize(columns, rows)

    def resize(self, columns, rows):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self, seconds):
        """Reads what arrives within that time, if anything; False at the end."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.fd, 65536)
        except OSError:  # Linux says so once every process has closed the other side
            data = b""
        self.text += data.decode("utf-8", "replace")
        return bool(data)

    def wait_for(self, pattern, seconds=harness.PATIENCE, start=0):
        """A match in the output from `start` on."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            match = re.compile(pattern).search(self.text, start)
            if match:
                return match
            if not self.read(0.1):
                break
        raise AssertionError(f"no {pattern!r} in {self.text[start:]!r}")

    def press(self, keys):
        os.write(self.fd, keys.encode())

    def finish(self, seconds=harness.PATIENCE):
        """Waits for the end; the exit code. The terminal's settings must be restored."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.read(0.1):
            pass
        while time.monotonic() < until and self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
            else:
                time.sleep(0.02)
        assert self.code is not None, f"it continues: {self.text[-2000:]!r}"
        assert termios.tcgetattr(self.fd) == self.before, "the terminal's settings have changed"
        assert self.text.count("\033[?1049h") == self.text.count("\033[?1049l"), self.text[-200:]
        assert self.text.count("\033[?25l") == self.text.count("\033[?25h"), self.text[-200:]
        os.close(self.fd)
        return self.code

    def end(self):
        """Cleans up if a test has failed before finish()."""
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self.fd)


def widths(text):
    """Widths of all lines, without what a terminal does not show."""
    shown = re.sub(r"\033\[[0-9;?]*[A-Za-z]", "", text)
    return [len(line) for line in re.split(r"[\r\n]+", shown)]


class ViewsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(workers=2)

    @classmethod
    def tearDownClass(cls):
        cls.daemon.close()

    def start(self, *settings):
        job = self.daemon.submit("train.epochs=1000", "train.batch_size=16", "train.log_interval=1",
                                 *settings)
        self.daemon.wait_step(job, 2)
        self.addCleanup(self.daemon.ctl, "cancel", job)
        return job

    def test_watch(self):
        job = self.start()
        terminal = Terminal(self, self.daemon, "watch", job, columns=100)
        terminal.wait_for(BRAILLE)
        terminal.wait_for(r"epoch \d+/1000 ")
        terminal.wait_for(r"\d+/\d+  .*loss \d")
        terminal.wait_for("\u2588|\u258f")
        self.assertIn("\033[32m", terminal.text)
        # narrower: from then on no line is wider than that
        mark = len(terminal.text)
        terminal.resize(60, 30)
        terminal.wait_for("\033\\[J", start=mark)
        mark = len(terminal.text)
        terminal.wait_for(BRAILLE, start=mark)
        terminal.wait_for(r"loss \d", start=mark)
        mark = terminal.text.index("\r", mark)
        self.assertLess(max(widths(terminal.text[mark:])), 60)
        # too small for a curve: the bar alone
        mark = len(terminal.text)
        terminal.resize(30, 10)
        terminal.wait_for("\033\\[J", start=mark)
        mark = len(terminal.text)
        terminal.wait_for(r"\d+/\d+", start=mark)
        terminal.press("\x03")
        self.assertEqual(terminal.finish(), INTERRUPTED)
        self.assertIsNone(BRAILLE.search(terminal.text, mark))
        self.assertIn(f"detached; {job} continues", terminal.text)
        self.assertEqual(self.daemon.show(job)["state"], "RUNNING")

    def test_echo_does_not_wrap(self):
        """The terminal's own ^C must not add a row beyond fsdpctl's count: the lines fill 80
        columns."""
        job = self.start()
        terminal = Terminal(self, self.daemon, "watch", job, columns=80)
        terminal.wait_for(BRAILLE)
        terminal.wait_for(r"\d+/\d+  .*loss \d")
        terminal.press("\x03")
        self.assertEqual(terminal.finish(), INTERRUPTED)
        before = terminal.text[:terminal.text.index("^C")]
        line = before[before.rindex("\r") + 1:]
        self.assertLess(max(widths(line)), 8, line)

    def test_watch_plain(self):
        """ASCII where the locale is not UTF-8, and no colour where it is not wanted."""
        job = self.start()
        terminal = Terminal(self, self.daemon, "watch", job, LC_ALL="C", NO_COLOR="1")
        terminal.wait_for(r"\|.*\*")
        terminal.wait_for(r"\[=*>")
        self.daemon.ctl("cancel", job)
        self.assertEqual(terminal.finish(), JOB_CANCELLED)
        self.assertTrue(terminal.text.isascii(), terminal.text)
        self.assertNotRegex(terminal.text, r"\033\[\d*m")
        self.assertRegex(terminal.text, f"{job} CANCELLED")

    def test_watch_dumb(self):
        job = self.start()
        terminal = Terminal(self, self.daemon, "watch", job, TERM="dumb")
        terminal.wait_for(r"step \d+/\d+  .*loss")
        self.daemon.ctl("cancel", job)
        self.assertEqual(terminal.finish(), JOB_CANCELLED)
        self.assertNotIn("\033", terminal.text)

    def test_top(self):
        job = self.start()
        terminal = Terminal(self, self.daemon, "top", "--interval", "0.3", columns=120)
        terminal.wait_for(f"{job}  .*RUNNING.*  .*\u2588?.*\\d+/\\d+")
        self.assertIn("\033[1;32mRUNNING\033[0m ", terminal.text)
        terminal.wait_for("2 workers, 2 busy, 1 RUNNING")
        terminal.wait_for("WORKER  ")
        mark = len(terminal.text)
        terminal.resize(50, 12)
        terminal.wait_for("more lines|RESTARTS|WORKER", start=mark)
        mark = terminal.text.rindex("\033[H")
        terminal.wait_for("\033\\[J", start=mark)
        self.assertLess(max(widths(terminal.text[mark:])), 50)
        terminal.press("xq")
        self.assertEqual(terminal.finish(), DONE)
        self.assertEqual(self.daemon.show(job)["state"], "RUNNING")

    def test_list(self):
        """A table fits the terminal, and states have colours unless they are not wanted."""
        job = self.start()
        for columns, options, environment, style in (
                (80, (), {}, "\033[1;32m"), (80, (), {"NO_COLOR": "1"}, ""),
                (80, ("--color", "always"), {"NO_COLOR": "1"}, "\033[1;32m"),
                (60, ("--color=never",), {}, "")):
            terminal = Terminal(self, self.daemon, "list", "--state", "running", *options,
                                columns=columns, **environment)
            self.assertEqual(terminal.finish(), DONE)
            self.assertRegex(terminal.text, f"{job}  [^\033\n]*{re.escape(style)}RUNNING")
            self.assertEqual("\033" in terminal.text, bool(style), terminal.text)
            self.assertLessEqual(max(widths(terminal.text)), columns)
        self.assertNotIn("\033", self.daemon.ctl("list").stdout)
        self.assertIn("\033[1;32mRUNNING", self.daemon.ctl("list", "--color", "always").stdout)

    def test_top_is_interrupted(self):
        for keys, number, code in (("\x03", None, INTERRUPTED), (None, signal.SIGTERM, 143),
                                   (None, signal.SIGHUP, 129)):
            terminal = Terminal(self, self.daemon, "top", "--interval", "60")
            terminal.wait_for("2 workers")
            if keys:
                terminal.press(keys)
            else:
                os.kill(terminal.pid, number)
            self.assertEqual(terminal.finish(), code)

    def test_top_is_stopped(self):
        terminal = Terminal(self, self.daemon, "top", "--interval", "60")
        terminal.wait_for("2 workers")
        os.kill(terminal.pid, signal.SIGTSTP)
        terminal.wait_for("\033\\[\\?1049l")
        mark = len(terminal.text)
        until = time.monotonic() + harness.PATIENCE  # it may be about to stop then
        while "2 workers" not in terminal.text[mark:] and time.monotonic() < until:
            os.kill(terminal.pid, signal.SIGCONT)
            terminal.read(0.2)
        terminal.wait_for("\033\\[\\?1049h", start=mark)
        terminal.wait_for("2 workers", start=mark)
        terminal.press("q")
        self.assertEqual(terminal.finish(), DONE)

    def test_top_in_a_pipe(self):
        job = self.start()
        result = self.daemon.ctl("top", "--interval", "0.2", "--rounds", "3")
        self.assertEqual(result.returncode, DONE, result.stderr)
        lines = result.stdout.splitlines()
        self.assertEqual(len([line for line in lines if "2 workers, 2 busy, 1 RUNNING" in line]), 3)
        self.assertEqual(len([line for line in lines if f" {job} RUNNING step " in line]), 3)
        self.assertNotIn("\033", result.stdout)
        result = self.daemon.ctl("top", "--interval", "0.2", "--rounds", "2", "-o", "json")
        looks = [json.loads(line) for line in result.stdout.splitlines()]
        self.assertEqual([[one["id"] for one in look["jobs"]] for look in looks], [[job]] * 2)
        for arguments in (("top", "--interval", "0"), ("top", "--rounds", "x"), ("top", "job")):
            self.assertEqual(self.daemon.ctl(*arguments).returncode, USAGE, arguments)


class RestartTest(unittest.TestCase):
    def test_killed_coordinator(self):
        with Daemon(workers=1) as daemon:
            job = daemon.submit("train.epochs=1000", "workers=1", "train.log_interval=1")
            daemon.wait_step(job, 2)
            watch = Terminal(self, daemon, "watch", job, "--timeout", "40")
            top = Terminal(self, daemon, "top", "--interval", "0.2")
            watch.wait_for(BRAILLE)
            top.wait_for(job)
            daemon.kill()
            watch.wait_for("waiting for it")
            top.wait_for("trying again")
            mark = len(top.text)
            daemon.start()
            top.wait_for("1 worker, ", start=mark)
            top.press("q")
            self.assertEqual(top.finish(), DONE)
            # whatever happened to the job, the watch continues, or ends with it
            daemon.ctl("cancel", job)
            self.assertIn(watch.finish(40), (JOB_FAILED, JOB_CANCELLED))

    def test_unreachable_daemon(self):
        with Daemon(workers=1) as daemon:
            daemon.kill(signal.SIGTERM)
            terminal = Terminal(self, daemon, "top")
            self.assertEqual(terminal.finish(), UNREACHABLE)
            self.assertNotIn("\033[?1049h", terminal.text)
            daemon.start()


if __name__ == "__main__":
    main()
