#!/usr/bin/env python3
"""`fsdpd devices`, and the CUDA backend as a module: loaded where it was built, reported missing
elsewhere."""

import json
import os
import subprocess
import tempfile
import unittest
import unittest.mock

import harness
from harness import BUILD, FSDPD

MODULE = os.path.join(BUILD, "fsdpd-cuda.so")
STUB = os.path.join(os.path.abspath(BUILD), "tests/emulation")


def fsdpd(*arguments, backend):
    return subprocess.run([FSDPD, *arguments], text=True, timeout=harness.PATIENCE, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env=dict(os.environ, FSDPD_BACKEND_DIR=backend, FSDPD_CONFIG=""))


def devices(backend):
    result = fsdpd("devices", "-o", "json", backend=backend)
    if result.returncode != 0:
        raise AssertionError(result.stderr)
    return json.loads(result.stdout)


class Devices(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory(prefix="fsdpd-test-")
        self.addCleanup(self.directory.cleanup)

    def test_the_cpu_is_always_there(self):
        found = devices(self.directory.name)
        self.assertEqual([device["device"] for device in found["devices"]], ["cpu"])
        self.assertGreater(found["devices"][0]["memory_bytes"], 1 << 20)
        self.assertGreater(found["devices"][0]["free_bytes"], 1 << 20)
        self.assertEqual(found["devices"][0]["problem"], "")
        self.assertEqual(found["versions"], {})
        self.assertIn("no CUDA backend", found["cuda_problem"])
        self.assertIn(self.directory.name, found["cuda_problem"])

    def test_table(self):
        result = fsdpd("devices", backend=self.directory.name)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        lines = result.stdout.splitlines()
        self.assertRegex(lines[0], "^DEVICE +MEMORY +FREE +WHAT$")
        self.assertRegex(lines[1], r"^cpu +[0-9.]+ [KMGT]?i?B +[0-9.]+ [KMGT]?i?B +.*processors$")
        self.assertRegex(lines[-1], "^No cuda devices: ")

    def test_not_a_module(self):
        path = os.path.join(self.directory.name, "fsdpd-cuda.so")
        with open(path, "w") as file:
            file.write("no library at all\n")
        self.assertIn("cannot be loaded", devices(self.directory.name)["cuda_problem"])

    def test_module(self):
        if not os.path.exists(MODULE):
            self.skipTest("the CUDA backend was not built: nvcc was not found, or was not wanted")
        found = devices(BUILD)
        # It loads, with every symbol resolved, with or without a driver.
        self.assertIn("CUDA runtime", found["versions"])
        self.assertRegex(found["versions"]["cuBLASLt"], r"^\d+\.\d+\.\d+$")
        # Older versions have known faults, which it names.
        for part, last in (("NCCL", (2, 31, 2)), ("cuDNN", (9, 25, 0))):
            version = found["versions"][part]
            if version == "not built in":
                continue
            said = any(fault.startswith(f"{part} {version}: ") for fault in found["known_faults"])
            self.assertEqual(said, tuple(map(int, version.split("."))) < last)
        names = [device["device"] for device in found["devices"]]
        if names == ["cpu"]:
            self.assertRegex(found["cuda_problem"], "no NVIDIA driver|no device|older than")
        else:
            self.assertEqual(names[1], "cuda:0")
            self.assertEqual(found["cuda_problem"], "")

    def test_free_memory(self):
        """NVML reports it, without a context on the device; unknown where NVML is absent, fails, or speaks of all of
        a device that has parts. The device can be used all the same."""
        if not os.path.exists(os.path.join(STUB, "libnvidia-ml.so.1")):
            self.skipTest("the stub of NVML was not built")
        for path, said, wanted in ((STUB, "", 5 << 30), (STUB, "fails", None), (STUB, "whole", None),
                                   (self.directory.name, "", None)):
            with unittest.mock.patch.dict(os.environ, FSDPD_STUB_EXCLUSIVE="1", FSDPD_STUB_NVML=said,
                                          LD_LIBRARY_PATH=path):
                found = devices(STUB)
                table = fsdpd("devices", backend=STUB).stdout
            self.assertEqual(found["cuda_problem"], "")
            device = found["devices"][1]
            self.assertEqual((device["problem"], device["memory_bytes"], device["free_bytes"]), ("", 1 << 34, wanted))
            self.assertEqual("unknown" in table, wanted is None, table)

    def test_worker(self):
        """A worker whose device is unavailable reports why, and ends."""
        result = fsdpd("worker", "--device", "cuda:0", "--coordinator", "unix:/nowhere",
                       backend=self.directory.name)
        self.assertEqual(result.returncode, 1)
        self.assertIn("cuda:0", result.stderr)
        self.assertIn("no CUDA backend", result.stderr)
        result = fsdpd("worker", "--device", "cuda:x", "--coordinator", "unix:/nowhere",
                       backend=self.directory.name)
        self.assertEqual(result.returncode, 2)
        self.assertIn("--device: expected cpu or cuda:N", result.stderr)

    def test_worker_without_a_device(self):
        if not os.path.exists(MODULE) or len(devices(BUILD)["devices"]) > 1:
            self.skipTest("the CUDA backend was not built, or there is a device")
        result = fsdpd("worker", "--device", "cuda:0", "--coordinator", "unix:/nowhere",
                       backend=BUILD)
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, "cuda:0.*(no NVIDIA driver|no device|older than)")

    def test_flags(self):
        result = fsdpd("devices", "--workers", "cpu:1", backend=self.directory.name)
        self.assertEqual(result.returncode, 2)
        self.assertIn("--workers does not belong to fsdpd devices", result.stderr)


if __name__ == "__main__":
    harness.main()
