#!/usr/bin/env python3
"""systemd's units as far as they can be checked without starting them; test_package.py starts them.
"""

import os
import re
import shutil
import subprocess
import tempfile
import unittest

import harness
from harness import BUILD, FSDPD, SOURCE

UNITS = {"fsdpd.service": 25, "fsdpd-worker@.service": 25}  # highest exposure, times ten


def run(*command):
    return subprocess.run(command, text=True, timeout=harness.PATIENCE, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)


class Units(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory(prefix="fsdpd-test-")
        self.addCleanup(self.directory.cleanup)
        self.root = self.directory.name
        for unit in UNITS:
            with open(os.path.join(BUILD, "systemd", unit)) as file:
                text = file.read()
            self.assertNotIn("@bindir@", text)
            # The program that was built, wherever it will be installed.
            text = re.sub(r"^ExecStart=\S+/fsdpd", f"ExecStart={os.path.abspath(FSDPD)}", text,
                          flags=re.M)
            with open(os.path.join(self.root, unit), "w") as file:
                file.write(text)
        shutil.copy(os.path.join(SOURCE, "systemd/fsdpd.socket"), self.root)

    def need(self, program, package="systemd"):
        if shutil.which(program) is None:
            self.skipTest(f"{program} is missing: apt-get install {package}")

    def path(self, name):
        return os.path.join(self.root, name)

    def test_verify(self):
        self.need("systemd-analyze")
        for unit in ("fsdpd.service", "fsdpd-worker@cpu:0.service", "fsdpd.socket"):
            if "@" in unit:
                shutil.copy(self.path("fsdpd-worker@.service"), self.path(unit))
            result = run("systemd-analyze", "verify", "--man=no", self.path(unit))
            with self.subTest(unit=unit):
                # Complaints about other units of this machine are not ours to fix.
                ours = [line for line in result.stdout.splitlines() if "fsdpd" in line]
                self.assertEqual(ours, [])

    def test_exposure(self):
        self.need("systemd-analyze")
        for unit, threshold in UNITS.items():
            result = run("systemd-analyze", "security", "--no-pager", "--offline=true",
                         f"--threshold={threshold}", self.path(unit))
            if "unrecognized option" in result.stdout:
                self.skipTest("this systemd cannot judge a file")
            with self.subTest(unit=unit):
                self.assertEqual(result.returncode, 0, result.stdout[-300:])
                self.assertIn("Overall exposure level", result.stdout)

    def test_user_and_directories(self):
        self.need("systemd-sysusers")
        self.need("systemd-tmpfiles")
        if os.geteuid() != 0:
            self.skipTest("only root can make users and their directories")
        root = self.path("root")
        for directory in ("etc", "run", "var/lib", "usr/lib/sysusers.d", "usr/lib/tmpfiles.d"):
            os.makedirs(os.path.join(root, directory))
        for kind in ("sysusers.d", "tmpfiles.d"):
            shutil.copy(os.path.join(SOURCE, "systemd", kind, "fsdpd.conf"),
                        os.path.join(root, "usr/lib", kind))
        result = run("systemd-sysusers", f"--root={root}", "fsdpd.conf")
        self.assertEqual(result.returncode, 0, result.stdout)
        with open(os.path.join(root, "etc/passwd")) as file:
            entry = [line for line in file if line.startswith("fsdpd:")]
        self.assertEqual(len(entry), 1)
        self.assertIn("/nologin", entry[0])
        uid = int(entry[0].split(":")[2])
        result = run("systemd-tmpfiles", f"--root={root}", "--create", "fsdpd.conf")
        self.assertEqual(result.returncode, 0, result.stdout)
        for path, mode in (("run/fsdpd", 0o755), ("var/lib/fsdpd", 0o750),
                           ("var/lib/fsdpd/data", 0o755)):
            status = os.stat(os.path.join(root, path))
            self.assertEqual((status.st_mode & 0o7777, status.st_uid), (mode, uid), path)

    def test_paths_agree(self):
        """The unit's directories are those that fsdpd uses with the unit's environment."""
        with open(self.path("fsdpd.service")) as file:
            unit = file.read()
        environment = dict(entry.split("=", 1) for entry in
                           re.search(r"^Environment=(.*)$", unit, re.M).group(1).split())
        command = [os.path.abspath(FSDPD), "config", "dump"]
        if os.geteuid() == 0:  # as any other user
            self.need("setpriv", "util-linux")
            command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *command]
            probe = run(*command)
            if probe.returncode == 127 or "Permission denied" in probe.stdout:
                self.skipTest("another user cannot run what was built here")
        dump = subprocess.run(command, env=dict(environment, HOME="/nonexistent"), text=True,
                              stdout=subprocess.PIPE, timeout=harness.PATIENCE).stdout
        self.assertRegex(dump, r"(?m)^runtime_dir: /run/fsdpd ")
        self.assertRegex(dump, r"(?m)^state_dir: /var/lib/fsdpd ")
        with open(self.path("fsdpd.socket")) as file:
            socket_unit = file.read()
        self.assertIn("\nListenStream=/run/fsdpd/fsdpd.sock\n", socket_unit)
        self.assertRegex(dump, r"(?m)^  coordinator: unix:/run/fsdpd/fsdpd.sock ")


if __name__ == "__main__":
    harness.main()
