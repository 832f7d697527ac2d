#!/usr/bin/env python3
"""Man pages and completion: complete, and correct as far as their own tools can check."""

import glob
import os
import re
import shutil
import subprocess
import tempfile
import unittest

import harness
from harness import BUILD, FSDPCTL

PAGES = sorted(glob.glob(os.path.join(BUILD, "docs/man/*.[158]")))


def run(*command, **options):
    return subprocess.run(command, text=True, timeout=harness.PATIENCE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, **options)


def verbs():
    """{verb: [its options]} from fsdpctl's own help."""
    text = run(FSDPCTL, "--help").stdout
    groups, _, rest = text.partition("\nOptions of every verb:\n")
    option = re.compile(r"^  (?:-., )?--([a-z-]+)", re.M)
    return {name: option.findall(run(FSDPCTL, name, "--help").stdout) + option.findall(rest)
            for name in re.findall(r"^  ([a-z]+) ", groups, re.M)}


class Manual(unittest.TestCase):
    def test_every_program_verb_and_file(self):
        names = {os.path.basename(page) for page in PAGES}
        self.assertLessEqual({"fsdpd.8", "fsdpctl.1", "fsdpd.yaml.5", "fsdpd-job.5",
                              "fsdpd-model.5", "fsdpd-profile.5"}, names)
        self.assertGreater(len(verbs()), 10)
        self.assertEqual({f"fsdpctl-{verb}.1" for verb in verbs()},
                         {name for name in names if name.startswith("fsdpctl-")})

    def test_text(self):
        for page in PAGES:
            with open(page) as file:
                text = file.read()
            name = os.path.basename(page).rsplit(".", 1)[0]
            with self.subTest(page=name):
                self.assertTrue(text.startswith(f'.TH "{name.upper()}" {page[-1]} "2'), text[:80])
                self.assertIn("\n.SH NAME\n" + name.replace("-", r"\-") + r" \- ", text)
                # No Markdown is left.
                prose = re.sub(r"\n\.nf\n.*?\n\.fi\n", "", text, flags=re.S)
                left = re.findall(r"\]\([a-z./-]+\.[a-z]+\)|`|\n##.*|\n\| .*", prose)
                self.assertEqual(left, [])
                self.assertEqual(text.count("\n.nf\n"), text.count("\n.fi\n"))

    def test_man(self):
        if shutil.which("man") is None:
            self.skipTest("man is missing: apt-get install man-db")
        for page in PAGES:
            result = run("man", "--warnings", "-E", "UTF-8", "-l", os.path.abspath(page),
                         env=dict(os.environ, MANWIDTH="80", MANROFFOPT="", LC_ALL="C.UTF-8"))
            with self.subTest(page=page):
                # A line of an example may be wider than the screen.
                complaints = [line for line in result.stderr.splitlines()
                              if "cannot adjust line" not in line and "can't break line" not in line]
                self.assertEqual((result.returncode, complaints), (0, []))
                self.assertGreater(len(result.stdout.splitlines()), 8)

    def test_every_character_prints(self):
        """Also on a terminal that shows ASCII only."""
        for page in PAGES:
            result = run("groff", "-k", "-t", "-man", "-Tascii", "-ww", page)
            self.assertEqual((result.returncode, result.stderr), (0, ""), page)

    def test_mandoc(self):
        if shutil.which("mandoc") is None:
            self.skipTest("mandoc is missing: apt-get install mandoc")
        result = run("mandoc", "-Tlint", "-Wwarning", *PAGES)
        self.assertEqual((result.returncode, result.stdout), (0, ""))


def documented_commands(program):
    """(page, first word, the rest) of each command of a program in the documents' code."""
    pages = glob.glob(os.path.join(harness.SOURCE, "docs/*.md")) + [os.path.join(harness.SOURCE, "README.md")]
    for page in pages:
        with open(page, encoding="utf-8") as file:
            text = file.read()
        code = "\n".join(re.findall(r"^    .*|`[^`\n]+`", text, re.M))
        for first, rest in re.findall(rf"(?:^|[`;&(|]) *{program} +((?:--)?[a-z][a-z-]*)([^;|#`&\n]*)", code, re.M):
            yield os.path.basename(page), first, rest


class Documents(unittest.TestCase):
    def expect_options(self, page, command, text, known):
        for option in re.findall(r"(?<=\s)--([a-z][a-z-]*)", text):
            self.assertIn(option, known, f"{page}: {command} has no --{option}")

    def test_every_command_of_fsdpctl_exists_with_its_options(self):
        known, count = verbs(), 0
        for page, verb, rest in documented_commands("fsdpctl"):
            self.assertIn(verb, known, f"{page}: fsdpctl {verb}{rest}")
            self.expect_options(page, f"fsdpctl {verb}", rest, known[verb])
            count += 1
        self.assertGreater(count, 100)

    def test_every_command_of_fsdpd_exists_with_its_options(self):
        roles = {role: run(harness.FSDPD, *([role] if role else []), "--help").stdout
                 for role in ("", "coordinator", "worker", "plan", "config", "backup", "restore", "scrub", "cert",
                              "devices", "calibrate", "token")}
        known, count = {role: re.findall(r"^ +(?:-., )?--([a-z-]+)", text, re.M) for role, text in roles.items()}, 0
        for page, first, rest in documented_commands("fsdpd"):
            role = "" if first.startswith("--") else first
            self.assertIn(role, known, f"{page}: fsdpd {first}{rest}")
            self.expect_options(page, f"fsdpd {role}", f" {first}{rest}", known[role])
            count += 1
        self.assertGreater(count, 50)


class Completion(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory(prefix="fsdpd-test-")
        self.addCleanup(self.directory.cleanup)
        path = os.path.join(self.directory.name, "fsdpctl")
        with open(path, "w") as file:  # a daemon with two jobs
            file.write('#!/bin/sh\ncase $1 in\n'
                       'list) printf "JOB STATE\\nmnist-1 RUNNING\\nmnist-2 QUEUED\\n" ;;\n'
                       'workers) printf "WORKER STATE\\na/cpu:0 idle\\na/cpu:1 busy\\n" ;;\n'
                       '*) exit 1 ;;\nesac\n')
        os.chmod(path, 0o755)
        self.environment = dict(os.environ, HOME=self.directory.name,
                                PATH=self.directory.name + ":" + os.environ["PATH"])

    def script(self, shell):
        path = os.path.join(self.directory.name, "completion." + shell)
        with open(path, "w") as file:
            file.write(run(FSDPCTL, "completion", shell).stdout)
        return path

    def bash(self, *words):
        """Bash's completions of the last word."""
        quoted = " ".join(f"'{word}'" for word in words)
        result = run("bash", "-c", f"source {self.script('bash')}; COMP_WORDS=({quoted}); "
                     f"COMP_CWORD={len(words) - 1}; _fsdpctl; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
                     env=self.environment)
        self.assertEqual(result.stderr, "")
        return sorted(result.stdout.split())

    def fish(self, line):
        result = run("fish", "--no-config", "-c",
                     f"source {self.script('fish')}; complete -C '{line}'", env=self.environment)
        self.assertEqual(result.stderr, "")
        return sorted(entry.split("\t")[0] for entry in result.stdout.splitlines())

    def check(self, complete):
        known = verbs()
        self.assertLessEqual(set(known), set(complete("fsdpctl", "")))
        for verb, options in known.items():
            offered = complete("fsdpctl", verb, "--")
            self.assertEqual({"--" + option for option in options}, set(offered), verb)
        self.assertEqual(complete("fsdpctl", "show", ""), ["mnist-1", "mnist-2"])
        self.assertEqual(complete("fsdpctl", "drain", ""), ["a", "a/cpu:0", "a/cpu:1"])
        self.assertIn("queued", complete("fsdpctl", "list", "--state", ""))
        self.assertEqual(complete("fsdpctl", "list", "-o", ""), ["json", "table"])
        self.assertIn("hf", complete("fsdpctl", "pull", "--format", ""))
        self.assertEqual(complete("fsdpctl", "completion", ""), ["bash", "fish", "zsh"])
        keys = complete("fsdpctl", "submit", "job.yaml", "--set", "")
        self.assertEqual(len(keys), len(set(keys)))
        self.assertLessEqual({"train.epochs=", "fsdp.wrap.policy=", "workers="}, set(keys))

    def test_bash(self):
        self.check(self.bash)
        self.assertEqual(self.bash("fsdpctl", "pull", "mnist-1", "-o", ""), [])  # files: bash's own
        self.assertEqual(self.bash("fsdpctl", "-o", "json", "can"), ["cancel"])
        self.assertEqual(self.bash("fsdpctl", "canc"), ["cancel"])

    def test_fish(self):
        if shutil.which("fish") is None:
            self.skipTest("fish is missing: apt-get install fish")
        self.check(lambda *words: self.fish(" ".join(words)))

    def test_zsh(self):
        if shutil.which("zsh") is None:
            self.skipTest("zsh is missing: apt-get install zsh")
        path = self.script("zsh")
        result = run("zsh", "-n", path)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        # The completion itself: zsh's _arguments completes the line, and prints its offers.
        probe = ("autoload -U compinit; compinit -u -D; "
                 f"source {path}; print -r -- $_comps[fsdpctl]; whence -w _fsdpctl _fsdpctl_jobs")
        result = run("zsh", "-fc", probe, env=self.environment)
        self.assertEqual(result.stdout.split("\n")[:3],
                         ["_fsdpctl", "_fsdpctl: function", "_fsdpctl_jobs: function"],
                         result.stderr)
        with open(path) as file:
            text = file.read()
        for verb, options in verbs().items():
            part = re.search(rf"\n        {verb}\)\n(.*?);;", text, re.S).group(1)
            for option in options:
                self.assertIn("--" + option, part, verb)


if __name__ == "__main__":
    harness.main()
