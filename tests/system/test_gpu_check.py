#!/usr/bin/env python3
"""scripts/gpu-check.sh without a GPU: every row gives the reason why it did not run. Over a stub
CUDA module: after a check that takes too long, or a script that is ended in the middle, the results
so far remain and no process is left."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

sys.path.insert(0, os.path.dirname(__file__))
import harness

SCRIPT = os.path.join(harness.SOURCE, "scripts/gpu-check.sh")
RESULTS = os.path.join(harness.SOURCE, "docs/gpu-results.md")
BUILD = os.path.abspath(harness.BUILD)
STUB = os.path.join(BUILD, "tests/emulation")
ONE = "MNIST, 10 epochs"
PARTS = "1234"


class GpuCheck(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory(prefix="fsdpd-test-")
        self.addCleanup(self.directory.cleanup)
        self.scratch = os.path.join(self.directory.name, "scratch")
        os.mkdir(self.scratch)

    def start(self, *arguments, backend):
        environment = dict(os.environ, TMPDIR=self.scratch, FSDPD_BACKEND_DIR=backend)
        return subprocess.Popen([SCRIPT, "--build", BUILD, "--out", self.directory.name, *arguments],
                                env=environment, text=True, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def rows(self, part):
        with open(os.path.join(self.directory.name, f"gpu-check-{part}.json")) as file:
            return {row["check"]: row for row in json.load(file)["checks"]}

    def results(self, parts=PARTS):
        """The tables' rows by name, at the end; both files of a part have the same rows."""
        found = {}
        for part in parts:
            rows = self.rows(part)
            with open(os.path.join(self.directory.name, f"gpu-check-{part}.md")) as file:
                text = file.read()
            for row in rows.values():
                self.assertIn(f"| {row['check']} | {row['result']} | {row['seconds']} | {row['note']} |", text)
            found.update(rows)
        return found

    def budget(self, *arguments):
        return subprocess.run([SCRIPT, "--budget", *arguments], text=True, capture_output=True, timeout=60)

    def test_the_limits_fit_the_budget(self):
        done = self.budget()
        self.assertEqual(done.returncode, 0, done.stdout)
        seconds = re.findall(r"^part [1-4]: at most ([0-9]+) s of 470 s$", done.stdout, re.M)
        self.assertEqual(len(seconds), 4, done.stdout)
        longest = max(map(int, seconds))
        self.assertLessEqual(longest, 8 * 60 - 10) # with what ends a row that is cut off
        done = self.budget("--seconds", str(longest - 1))
        self.assertEqual(done.returncode, 1, done.stdout)
        done = self.budget("--part", "4", "--seconds", "9")
        self.assertEqual((done.returncode, done.stdout.count("\n")), (1, 1))

    def assert_nothing_left(self):
        self.assertEqual(os.listdir(self.scratch), [])
        for process in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{process}/cmdline", "rb") as file:
                    self.assertNotIn(self.scratch.encode(), file.read(), process)
            except (FileNotFoundError, ProcessLookupError):
                pass  # it has ended in the meantime

    def test_no_device(self):
        empty = os.path.join(self.directory.name, "none")
        os.mkdir(empty)
        process = self.start(backend=empty)
        output, _ = process.communicate(timeout=110)
        self.assertEqual(process.returncode, 77, output)
        rows = self.results()
        for row in rows.values():
            self.assertEqual((row["result"], row["seconds"]), ("not run", 0))
            self.assertRegex(row["note"], "^there is no cuda:0 here: this fsdpd has no CUDA backend")
        self.assert_nothing_left()
        with open(RESULTS) as file:
            wanted = file.read().split("## With a GPU")[1].split("\nWhat takes two devices")[0]
        # The table of the documentation has a row for each check, and no other rows.
        for words in ("ops against the reference: ", "ops against the reference, tf32", "products",
                      "compute-sanitizer", ONE, "MNIST, 10 epochs, two workers", "losses of 50 steps, f32",
                      "losses of 50 steps, bf16", "batch 16: speed", "batch 64: speed",
                      "where the time", "choice", "two NCCL ranks", "memory", "graphs", "offload", "killed",
                      "profile", "brim", "nf4", "tokens drawn",
                      "illegal access"):
            self.assertTrue([name for name in rows if words in name], words)
        self.assertEqual(len(re.findall(r"^\| (?!what|---)", wanted, re.M)), 21)

    def test_libraries_of_wheels(self):
        """The bundle's wrapper finds what the module lacks in the wheels of any directory that Python searches, a
        user's own among them."""
        with open(os.path.join(harness.SOURCE, "scripts/bundle.sh")) as file:
            wrapper = file.read().split("<<'WRAPPER'\n")[1].split("WRAPPER\n")[0]
        here = self.directory.name
        wanted = [os.path.join(here, "site/nvidia", part, "lib") for part in ("cu13", "nccl")]
        for directory in (*wanted, os.path.join(here, "bin"), os.path.join(here, "fake")):
            os.makedirs(directory)
        for path, text in (("bin/with-libraries", wrapper), ("fake/ldd", "#!/bin/sh\necho 'libnccl.so.2 => not found'\n")):
            with open(os.path.join(here, path), "w") as file:
                file.write(text)
            os.chmod(os.path.join(here, path), 0o755)
        environment = dict(os.environ, PATH=f"{here}/fake:{os.environ['PATH']}", PYTHON=sys.executable,
                           PYTHONPATH=os.path.join(here, "site"), LD_LIBRARY_PATH="")
        environment.pop("FSDPD_WHEELS", None)
        found = subprocess.run([os.path.join(here, "bin/with-libraries"), "printenv", "FSDPD_WHEELS"], text=True,
                               env=environment, stdout=subprocess.PIPE, timeout=60, check=True).stdout
        self.assertEqual(found.strip().split(":")[:2], wanted)

    def need_stub(self):
        if not os.path.exists(os.path.join(STUB, "fsdpd-cuda.so")):
            self.skipTest("the CUDA backend was not built: nvcc or NCCL was not found, or was not wanted")

    def test_too_long(self):
        self.need_stub()
        # The stub would take hours; the daemon has 20 seconds to start.
        process = self.start("--part", "2", "--only", ONE, "--seconds", "30", backend=STUB)
        output, _ = process.communicate(timeout=110)
        rows = self.results("2")
        self.assertEqual(process.returncode, 0, output)
        self.assertEqual(rows[ONE]["result"], "not run")
        self.assertRegex(rows[ONE]["note"], "^cut off after [0-9]+ s; at the end: ")
        self.assertEqual({row["note"] for name, row in rows.items() if name != ONE}, {"not asked for"})
        self.assertFalse(os.path.exists(os.path.join(self.directory.name, "gpu-check-1.json")))
        self.assert_nothing_left()

    def test_attention_of_our_own(self):
        """The stub module has no cuDNN: a row about GPT-2's speed that our own attention ran must not pass."""
        self.need_stub()
        row = "GPT-2 124M, bf16, batch 16: where the time of a step goes"
        with unittest.mock.patch.dict(os.environ, GPU_CHECK_SIZE="tiny"):
            process = self.start("--part", "2", "--only", row, backend=STUB)
        output, _ = process.communicate(timeout=110)
        self.assertEqual(process.returncode, 1, output)
        found = self.rows("2")[row]
        self.assertEqual(found["result"], "FAILED", output)
        self.assertRegex(found["note"], "^attention.* is computed by fsdpd.s own kernel: ")
        self.assert_nothing_left()

    def test_lost_device(self):
        self.need_stub()
        row = "an illegal access, then another job"
        with unittest.mock.patch.dict(os.environ, GPU_CHECK_FAULT="", GPU_CHECK_TEST="8", GPU_CHECK_SLOW="6"):
            process = self.start("--part", "4", "--only", row, backend=STUB)
        output, _ = process.communicate(timeout=280)
        self.assertEqual(process.returncode, 0, output)
        self.assertEqual(self.rows("4")[row]["result"], "passed", output)
        self.assert_nothing_left()

    def test_cut_off(self):
        self.need_stub()
        process = self.start("--part", "2", "--only", ONE, backend=STUB)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        path = os.path.join(self.directory.name, "gpu-check-2.json")
        deadline = time.monotonic() + 100
        while not os.path.exists(path) or not self.rows("2")[ONE]["note"].endswith("its end"):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=100), 143)
        rows = self.results("2")
        self.assertEqual((rows[ONE]["result"], rows[ONE]["note"]), ("not run", "cut off before its end"))
        self.assertEqual(rows["steps captured as graphs, and not"]["note"], "cut off before it")
        self.assert_nothing_left()


if __name__ == "__main__":
    unittest.main(verbosity=2)
