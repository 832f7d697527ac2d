#!/usr/bin/env python3
"""Bad input gets one sentence that names the place, the right exit code, and a daemon that keeps
running."""

import gzip
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness

NET = os.path.join(harness.SOURCE, "examples/mnist/net.yaml")


class BadInput(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = harness.Daemon()

    @classmethod
    def tearDownClass(cls):
        # After all of this fsdpd still trains.
        result = cls.daemon.submit("train.max_steps=2", wait=True)
        cls.daemon.close()
        assert result.returncode == 0, result.stderr

    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="fsdpd-test-")
        self.addCleanup(shutil.rmtree, self.directory)

    def refused(self, arguments, code, *words):
        before = len(self.daemon.json("list"))
        result = self.daemon.ctl(*arguments)
        self.assertEqual(result.returncode, code, f"{arguments}: {result.stderr}")
        for word in words:
            self.assertIn(word, result.stderr)
        sentences = [line for line in result.stderr.splitlines() if line.strip()]
        self.assertLessEqual(len(sentences), 3, f"more than a sentence: {result.stderr}")
        self.assertEqual(len(self.daemon.json("list")), before, "a job was accepted")

    def refused_setting(self, setting, code, *words):
        self.refused(["submit", harness.JOB, "--set", f"data.dir={self.daemon.data}", "--set",
                      setting], code, *words)

    def job_file(self, text, name="job.yaml"):
        path = os.path.join(self.directory, name)
        with open(path, "w") as file:
            file.write(text)
        return path

    def job_with_net(self, net):
        """A job whose model is the example's, changed by `net` (a function of its text)."""
        with open(NET) as file:
            text = file.read()
        changed = net(text)
        self.assertNotEqual(changed, text, "the change did not change the network")
        with open(os.path.join(self.directory, "net.yaml"), "w") as file:
            file.write(changed)
        with open(harness.JOB) as file:
            return self.job_file(file.read())

    def test_settings(self):
        for setting, words in (
                ("train.epoch=3", ("train.epoch", "epochs")),
                ("train.epochs=many", ("train.epochs", "many")),
                ("train.epochs=0", ("train.epochs",)),
                ("train.epochs=-1", ("train.epochs",)),
                ("train.batch_size=99999999999999999999", ("train.batch_size",)),
                ("train.batch_size=0", ("train.batch_size",)),
                ("train.accumulation_steps=0", ("train.accumulation_steps", "1 to 1000000")),
                ("train.clip_grad_norm.norm_type=3", ("norm_type", "2 or inf")),
                ("train.non_finite=ignore", ("train.non_finite", "fail or skip")),
                ("optimizer.groups=[{match: a, decay: 1}]", ("optimizer.groups", "group 1", "decay")),
                ("schedule.warmup_step=3", ("did you mean", "schedule.warmup_steps")),
                ("optimizer.type=adamax", ("optimizer.type", "adamax")),
                ("optimizer.lr=nan", ("optimizer.lr",)),
                ("optimizer.momentum=0.9", ("optimizer.momentum",)),
                ("data.normalize.std=0", ("data.normalize.std",)),
                ("fsdp.strategy=half_shard", ("fsdp.strategy", "half_shard")),
                ("fsdp.wrap.min_num_params=0", ("min_num_params",)),
                ("workers=0", ("workers",)),
                ("workers=100000", ("workers",)),
                ("name=Not A Name", ("name",)),
                ("nonsense", ("nonsense",))):
            self.refused_setting(setting, harness.USAGE, *words)

    def test_places(self):
        """What a worker finds wrong has the line of the job file, or the setting."""
        text = (f"name: net\nmodel: {{file: {NET}}}\ndata: {{dir: {self.daemon.data}}}\n"
                "fsdp:\n  wrap:\n    policy: type\n    types: [Linera]\n")
        path = self.job_file(text)
        self.refused(["plan", path], harness.FAILED,
                     f"{path}:7: fsdp.wrap.types: Net has no module type 'Linera'; did you mean 'Linear'?")
        self.refused(["submit", path, "--set", "fsdp.wrap.types=[Linear]", "--set", "data.dir=/nowhere"],
                     harness.NOT_PERMITTED, "--set data.dir=/nowhere: data.dir: ")
        path = self.job_file(f"name: net\nmodel:\n  hf: org/network\ndata: {{path: {self.daemon.data}, format: text}}\n"
                             "train: {max_steps: 3}\n")
        self.refused(["plan", path], harness.NOT_FOUND, f"{path}:3: model.hf: ", "hf download org/network --local-dir ")

    def test_job_files(self):
        with open(harness.JOB) as file:
            good = file.read()
        shutil.copy(NET, self.directory)
        for text, words in (
                (good + "colour: red\n", ("job.yaml:", "colour")),
                (good.replace("epochs:", "epochz:"), ("job.yaml:", "epochz", "epochs")),
                (good.replace("seed: 1", "seed: [1]"), ("job.yaml:", "seed")),
                (good + "workers: 3\n", ("job.yaml:", "workers")),
                ("- a\n- b\n", ("job.yaml:",)),
                ("a: [b\n", ("job.yaml:",)),
                ("", ("job.yaml",)),
                (good.replace("net.yaml", "nowhere.yaml"), ("nowhere.yaml",))):
            self.assertNotEqual(text, good)
            result = self.daemon.ctl("submit", self.job_file(text))
            self.assertIn(result.returncode, (harness.FAILED, harness.USAGE, harness.NOT_FOUND))
            for word in words:
                self.assertIn(word, result.stderr)
        self.refused(["submit", os.path.join(self.directory, "missing.yaml")], harness.NOT_FOUND,
                     "missing.yaml")

    def test_models(self):
        for change, words in (
                (lambda text: text.replace("Linear(9216, 128)", "Linear(9000, 128)"),
                 ("fc1", "9216", "9000")),
                (lambda text: text.replace("Conv2d(32, 64", "Conv2d(16, 64"),
                 ("conv2", "32", "16")),
                (lambda text: text.replace("Conv2d(1, 32", "Conv3d(1, 32"),
                 ("net.yaml:", "Conv3d", "Conv2d")),
                (lambda text: text.replace("relu(conv1(x))", "relu(conv9(x))"),
                 ("net.yaml:", "conv9")),
                (lambda text: text.replace("Linear(9216, 128)", "Linear(9216, 999999999999999)"),
                 ("net.yaml:", "fc1")),
                (lambda text: text.replace("Linear(9216, 128)", "Linear(-1, 128)"),
                 ("net.yaml:", "fc1")),
                (lambda text: text.replace("relu(conv1(x))", "relu(conv1(x)"), ("net.yaml:",))):
            job = self.job_with_net(change)
            self.refused(["submit", job, "--set", f"data.dir={self.daemon.data}"], harness.FAILED,
                         *words)

    def test_policies(self):
        self.refused_setting("fsdp.wrap.min_num_params=100000000", harness.FAILED, "min_num_params")
        result = self.daemon.ctl(
            "submit", harness.JOB, "--set", f"data.dir={self.daemon.data}",
            "--set", "fsdp.wrap.policy=units", "--set", "fsdp.wrap.units=[[fc9]]")
        self.assertEqual(result.returncode, harness.FAILED, result.stderr)
        self.assertIn("fc9", result.stderr)
        self.refused_setting("optimizer.groups=[{match: nothing.*}]", harness.FAILED,
                             "optimizer.groups", "nothing.*", "matches no parameter")
        self.refused_setting("fsdp.activation_checkpointing=[conv1, fc9.*]", harness.FAILED, "fc9.*",
                             "no module matches")
        self.refused_setting("fsdp.activation_checkpointing=fc1", harness.USAGE,
                             "activation_checkpointing", "list")

    def test_does_not_fit(self):
        for arguments in (["submit"], ["plan"]):
            result = self.daemon.ctl(*arguments, harness.JOB, "--set",
                                     f"data.dir={self.daemon.data}", "--set",
                                     "train.batch_size=1000000", timeout=harness.PATIENCE)
            self.assertEqual(result.returncode, harness.DOES_NOT_FIT, result.stderr)
            self.assertIn("GB", result.stderr)

    def test_paths(self):
        outside = os.path.join(self.directory, "outside")
        harness.draw_digits(outside, train=100, test=100)
        link = os.path.join(self.daemon.data, "link")
        os.symlink(outside, link)
        self.addCleanup(os.unlink, link)
        for path in (outside, link, "link", "../..", "/etc"):
            self.refused(["submit", harness.JOB, "--set", f"data.dir={path}"],
                         harness.NOT_PERMITTED, "data.dir")
        self.refused(["submit", harness.JOB, "--set", "data.dir=nowhere"], harness.NOT_FOUND,
                     "nowhere")

    def broken_data(self, change):
        """A directory below the data root with digits that `change` has modified."""
        path = tempfile.mkdtemp(prefix="broken-", dir=self.daemon.data)
        self.addCleanup(shutil.rmtree, path)
        harness.draw_digits(path, train=256, test=128)
        change(path)
        return path

    def fails(self, change, *words):
        """Refused at once or FAILED when the data is read: never trained on, always named."""
        path = self.broken_data(change)
        result = self.daemon.ctl("submit", harness.JOB, "--set", f"data.dir={path}", "--set",
                                 "train.epochs=1", "--wait", timeout=120)
        self.assertIn(result.returncode, (harness.FAILED, harness.NOT_FOUND, harness.JOB_FAILED),
                      result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)

    def test_data(self):
        images, labels = harness.MNIST_FILES[:2]

        def edit(name, function):
            def change(path):
                file = os.path.join(path, name)
                with open(file, "rb") as source:
                    raw = source.read()
                with open(file, "wb") as target:
                    target.write(function(raw))
            return change

        def compress(name, function):
            def change(path):
                file = os.path.join(path, name)
                with open(file, "rb") as source:
                    raw = gzip.compress(source.read())
                os.unlink(file)
                with open(file + ".gz", "wb") as target:
                    target.write(function(raw))
            return change

        self.fails(edit(images, lambda raw: raw[:-10]), images)
        self.fails(edit(images, lambda raw: raw + b"more"), images)
        self.fails(edit(images, lambda raw: raw[:8]), images)
        self.fails(edit(images, lambda raw: b""), images)
        self.fails(edit(images, lambda raw: b"\x00\x00\x08\x01" + raw[4:]), images)
        self.fails(edit(images, lambda raw: raw[:4] + struct.pack(">I", 0xffffffff) + raw[8:]),
                   images)
        self.fails(edit(images, lambda raw: raw[:8] + struct.pack(">II", 14, 56) + raw[16:]),
                   "28")
        self.fails(edit(labels, lambda raw: raw[:20] + b"\x0a" + raw[21:]), labels, "10")
        self.fails(edit(labels, lambda raw: raw[:4] + struct.pack(">I", 255) + raw[8:-1]), labels)
        self.fails(compress(images, lambda raw: raw[:len(raw) // 2]), images)
        self.fails(compress(images, lambda raw: raw[:200] + bytes([raw[200] ^ 255]) + raw[201:]),
                   images)
        self.fails(lambda path: os.unlink(os.path.join(path, labels)), labels)
        # and the same file, compressed but whole, is fine
        path = self.broken_data(compress(images, lambda raw: raw))
        result = self.daemon.ctl("submit", harness.JOB, "--set", f"data.dir={path}", "--set",
                                 "train.epochs=1", "--wait", timeout=120)
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_command_line(self):
        for arguments, code in ((["nonsense"], harness.USAGE), (["list", "--nonsense"],
                                                                harness.USAGE),
                                (["show"], harness.USAGE),
                                (["show", "no-such-job"], harness.NOT_FOUND),
                                (["cancel", "no-such-job"], harness.NOT_FOUND),
                                (["watch", "no-such-job"], harness.NOT_FOUND),
                                (["--address", "unix:/nonexistent.sock", "list"],
                                 harness.UNREACHABLE)):
            result = self.daemon.ctl(*arguments)
            self.assertEqual(result.returncode, code, f"{arguments}: {result.stderr}")
            self.assertTrue(result.stderr.strip())

    def test_control_characters(self):
        """fsdpctl never prints U+0080 to U+009F, which some terminals obey like an escape."""
        path = os.path.join(self.directory, "job.yaml")
        with open(path, "w") as file:
            file.write("name: \"\\x9b31m\"\nmodel: \"\\x9b\"\n\u00a0: 1\n")
        environment = dict(os.environ, FSDPD_CONFIG="", FSDPD_ADDRESS=self.daemon.address)
        for command in ([harness.FSDPCTL, "show", "\u009b31m"],
                        [harness.FSDPCTL, "submit", "\u009b31m.yaml"],
                        [harness.FSDPCTL, "submit", path],
                        [harness.FSDPCTL, "logs", "\u009b31m"],
                        [harness.FSDPCTL, "\u009b31m"],
                        [harness.FSDPD, "--log-level", "\u009b31m"],
                        [harness.FSDPD, "--state-dir", path + "/\u009b31m"],
                        [harness.FSDPD, "plan", "\u009b31m.yaml"],
                        [harness.FSDPD, "config", "check", "\u009b31m.yaml"]):
            result = subprocess.run(command, env=environment, capture_output=True, timeout=harness.PATIENCE)
            self.assertNotEqual(result.returncode, 0, command)
            text = (result.stdout + result.stderr).decode()
            self.assertTrue(text)
            self.assertNotRegex(text, "[\x00-\x08\x0b-\x1f\x7f-\x9f]", command)

    def test_empty_and_strange_arguments(self):
        """A script's unset variable never means "all" or "none", and never reaches fsdpd."""
        before = self.daemon.json("list")
        for arguments in (["submit", harness.JOB, "--after", ""], ["submit", harness.JOB, "--after", "a,"],
                          ["submit", harness.JOB, "--id", "Foo Bar"], ["list", "--state", ""],
                          ["list", "--user", ""], ["drain", ""], ["show", ""], ["cancel", ""],
                          ["wrap", "show", ""], ["show", b"\xff"], ["list", "--name", b"\xff"]):
            result = self.daemon.ctl(*arguments)
            self.assertEqual(result.returncode, harness.USAGE, f"{arguments}: {result.stderr}")
        self.assertIn("show: JOB is not valid UTF-8", self.daemon.ctl("show", b"\xff").stderr)
        self.assertEqual(self.daemon.json("list"), before)
        result = subprocess.run([harness.FSDPCTL, "list"], text=True, timeout=harness.PATIENCE, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, env=dict(os.environ, FSDPD_ADDRESS=self.daemon.address,
                                                                 FSDPD_INSECURE_TCP="yes"))
        self.assertEqual(result.returncode, harness.USAGE, result.stderr)
        self.assertIn("FSDPD_INSECURE_TCP: expected true or false, found 'yes'", result.stderr)
        for verb in ("trace", "pull", "report"):
            result = self.daemon.ctl(verb, "no-such-job", "-o", "/nonexistent/directory/file")
            self.assertEqual(result.returncode, harness.NOT_FOUND, f"{verb}: {result.stderr}")


if __name__ == "__main__":
    harness.main()
