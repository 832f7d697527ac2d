#!/usr/bin/env python3
"""The examples for several hosts, as far as one host can run them."""

import os
import re
import shutil
import socket
import subprocess
import tempfile
import unittest

import harness
from harness import BUILD, FSDPD, JOB, SOURCE, free_port

SRUN = """#!/bin/bash
# A stand-in: $SLURM_NTASKS tasks on this host, ended together.
while [[ $1 == --* ]]; do shift; done
trap 'kill $(jobs -p); wait; exit 143' TERM
for ((i = 0; i < SLURM_NTASKS; i++)); do SLURM_LOCALID=$i "$@" & done
wait
"""


class Examples(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory(prefix="fsdpd-test-")
        self.addCleanup(self.directory.cleanup)
        self.root = self.directory.name
        self.script = os.path.join(SOURCE, "examples/slurm/fsdpd.sbatch")
        os.mkdir(os.path.join(self.root, "bin"))
        with open(os.path.join(self.root, "bin/srun"), "w") as file:
            file.write(SRUN)
        os.chmod(os.path.join(self.root, "bin/srun"), 0o755)
        path = f"{self.root}/bin:{os.path.abspath(BUILD)}:{os.environ['PATH']}"
        self.environment = dict(os.environ, PATH=path, SLURM_NTASKS="2", SLURM_CPUS_PER_TASK="1",
                                FSDPD_DATA=self.root, FSDPD_PORT=str(free_port()),
                                TMPDIR=self.root)

    def sbatch(self, *arguments):
        return subprocess.run(["bash", self.script, *arguments], env=self.environment, text=True,
                              timeout=120, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)

    def left_over(self):
        """Daemons that still run, and directories that still exist."""
        running = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    with open(f"/proc/{entry}/cmdline", "rb") as file:
                        if self.environment["FSDPD_PORT"].encode() in file.read():
                            running.append(entry)
                except OSError:
                    pass
        return running + [name for name in os.listdir(self.root) if name.startswith("fsdpd-")]

    def test_slurm(self):
        try:
            socket.getaddrinfo(socket.gethostname(), None)
        except OSError:
            self.skipTest("this host does not know its own name")
        data = os.path.join(self.root, "digits")
        harness.draw_digits(data, train=500, test=100)
        weights = os.path.join(self.root, "weights.safetensors")
        result = self.sbatch(JOB, weights, "--set", f"data.dir={data}", "--set",
                             "train.epochs=1")
        self.assertEqual(result.returncode, 0, result.stdout[-3000:])
        tensors, _ = harness.read_safetensors(weights)
        self.assertIn("conv1.weight", tensors)
        self.assertEqual(self.left_over(), [])
        # An invalid job: its exit code, and again nothing left behind.
        result = self.sbatch(JOB, weights, "--set", "data.dir=/nonexistent")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("nonexistent", result.stdout)
        self.assertEqual(self.left_over(), [])

    def test_slurm_usage(self):
        self.assertEqual(self.sbatch(JOB).returncode, 2)
        if shutil.which("shellcheck"):
            result = subprocess.run(["shellcheck", self.script], stdout=subprocess.PIPE, text=True)
            self.assertEqual(result.stdout, "")

    def test_kubernetes(self):
        try:
            import yaml
        except ImportError:
            self.skipTest("python3-yaml is missing")
        with open(os.path.join(SOURCE, "examples/kubernetes/fsdpd.yaml")) as file:
            objects = {(entry["kind"], entry["metadata"]["name"]): entry
                       for entry in yaml.safe_load_all(file)}
        self.assertEqual(len(objects), 7)
        # The pods get valid input: the file, and the flags.
        os.mkdir(os.path.join(self.root, "data"))
        text = objects["ConfigMap", "fsdpd"]["data"]["fsdpd.yaml"]
        path = os.path.join(self.root, "fsdpd.yaml")
        with open(path, "w") as file:
            file.write(text.replace("[/data]", f"[{self.root}/data]"))
        for name in ("coordinator", "worker"):
            entry = objects["StatefulSet" if name == "worker" else "Deployment", "fsdpd-" + name]
            pod = entry["spec"]["template"]["spec"]
            self.assertTrue(pod["securityContext"]["runAsNonRoot"])
            volumes = {volume["name"] for volume in pod["volumes"]}
            (container,) = pod["containers"]
            self.assertEqual({mount["name"] for mount in container["volumeMounts"]}, volumes)
            arguments = [argument.replace("/etc/fsdpd/fsdpd.yaml", path)
                         for argument in container["args"]]
            self.assertEqual(arguments[0], name)
            result = subprocess.run(
                [FSDPD, "config", "check", *arguments[1:]], text=True, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={"PATH": os.environ["PATH"]})
            self.assertEqual((result.returncode, result.stdout), (0, f"{path}: ok\n"))
        ports = {port["port"] for port in objects["Service", "fsdpd"]["spec"]["ports"]}
        self.assertEqual(ports, {int(port) for port in re.findall(r"0\.0\.0\.0:(\d+)", text)})


if __name__ == "__main__":
    harness.main()
