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


# The API's version of each kind of object, and the fields that the API server requires of it.
KINDS = {
    "ConfigMap": ("v1", []),
    "Service": ("v1", ["spec.ports"]),
    "NetworkPolicy": ("networking.k8s.io/v1", ["spec.podSelector"]),
    "Deployment": ("apps/v1", ["spec.selector.matchLabels", "spec.template.metadata.labels",
                               "spec.template.spec.containers"]),
    "StatefulSet": ("apps/v1", ["spec.selector.matchLabels", "spec.template.metadata.labels",
                                "spec.template.spec.containers", "spec.serviceName"]),
    "PodDisruptionBudget": ("policy/v1", ["spec.selector.matchLabels", "spec.maxUnavailable"]),
    "PersistentVolumeClaim": ("v1", ["spec.accessModes", "spec.resources.requests.storage"]),
}


def field(entry, path):
    """The value at "spec.template"; None if it is not there."""
    for key in path.split("."):
        entry = entry.get(key) if isinstance(entry, dict) else None
    return entry


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
        self.assertGreater(result.returncode, 0)
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
        self.assertEqual(len(objects), 8)
        try:
            import kubernetes_validate
        except ImportError:  # not in Debian; pip install kubernetes-validate
            kubernetes_validate = None
        for entry in objects.values() if kubernetes_validate else ():
            kubernetes_validate.validate(entry, kubernetes_validate.latest_version(), strict=True)
        pods = [entry["spec"]["template"] for entry in objects.values() if field(entry, "spec.template")]
        for (kind, name), entry in objects.items():
            version, required = KINDS[kind]
            self.assertEqual(entry["apiVersion"], version)
            for path in required:
                self.assertIsNotNone(field(entry, path), f"{kind} {name}: {path} is missing")
            # Each selector is of pods that exist.
            wanted = field(entry, "spec.selector.matchLabels") or {}
            self.assertTrue(any(wanted.items() <= pod["metadata"]["labels"].items() for pod in pods),
                            f"{kind} {name}")
        config = subprocess.run([FSDPD, "config", "dump"], text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, env=dict(os.environ, FSDPD_CONFIG="")).stdout
        limits = {key: float(re.search(rf"^  {key}: ([\d.]+)", config, re.M).group(1))
                  for key in ("save_seconds", "kill_seconds")}
        grace = field(objects["Deployment", "fsdpd-coordinator"],
                      "spec.template.spec.terminationGracePeriodSeconds")
        self.assertGreater(grace, sum(limits.values()) + 5)
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
