#!/usr/bin/env python3
"""Every command that README.md, docs/getting-started.md and docs/README.md print is run here as it is printed, in a directory with what it names,
or stands in a table with the program that runs it. Prints the time of each until it succeeded."""

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness
import printed

harness.need("grpc>=1.60", "grpc_tools.protoc", "numpy", "setuptools", "pip", "yaml", "tokenizers", "jinja2", "pyarrow", "PIL")
from tokenizers import Tokenizer, models, pre_tokenizers

STARTED = "docs/getting-started.md"
PAGES = ("README.md", STARTED, "docs/README.md")
PACKAGE, CHECK, FRESH = "scripts/check-package.sh", "scripts/check.sh", "scripts/check-fresh.sh"
# The pages that tell how to run by hand what needs a GPU, or an idle machine with PyTorch.
DEVELOPMENT, GPU = "docs/development.md", "docs/gpu-results.md"
# What is run elsewhere: by which file, and the words of it that do so.
ELSEWHERE = {
    "./scripts/quickstart.sh": (FRESH, "./scripts/quickstart.sh"),
    "./autogen.sh && mkdir -p build && cd build && ../configure && make && cd ..": (FRESH, 'docs/getting-started.md "Build and run it by hand"'),
    "sudo apt-get build-dep ./": (PACKAGE, "as_printed build-dep"),
    "./autogen.sh && mkdir -p build && cd build && ../configure && make deb": (PACKAGE, 'as_printed "make deb"'),
    "sudo apt-get install ./deb/fsdpd_*.deb ./deb/fsdpctl_*.deb": (PACKAGE, 'as_printed "apt-get install"'),
    "sudo usermod -aG fsdpd $USER": (PACKAGE, "as_printed usermod"),
    "systemctl status fsdpd": (PACKAGE, 'as_printed "systemctl status"'),
    "man fsdpd; man fsdpd.yaml; man fsdpctl": (PACKAGE, 'as_printed "man fsdpd"'),
    "systemctl restart fsdpd": (PACKAGE, "systemctl restart fsdpd"),
    "fsdpctl submit examples/shakespeare/job.yaml --set data.path=tinyshakespeare.txt --wait":
        ("tests/system/test_shakespeare.py", 'printed.block("docs/getting-started.md", "Train on text and tokens")'),
    "./scripts/check.sh": (FRESH, "./scripts/check.sh"),
    "scripts/check-package.sh --full": (CHECK, "scripts/check-package.sh"),  # without --full
    "./configure --with-cuda=DIR": (DEVELOPMENT, "--with-cuda=DIR"),
    "make bundle": (GPU, "make bundle"),
    "scripts/gpu-check.sh": (GPU, "scripts/gpu-check.sh"),
    "bench/mnist.sh": (DEVELOPMENT, "bench/mnist.sh"),
    "bench/gpt.sh": (DEVELOPMENT, "bench/gpt.sh"),
}
# The programs in Python, by page and heading, and what runs them.
PROGRAMS = {("README.md", "Try it"): "tests/system/test_mnist.py", ("README.md", "API"): "tests/system/test_python_client.py"}
# Names of verbs that take arguments: their help is printed.
NAMES = {"fsdpctl plan", "fsdpctl resume", "fsdpctl drain", "fsdpctl sample", "fsdpctl wrap set",
         *("fsdpd-prepare " + verb for verb in ("text", "chat", "preference", "classify", "tags", "pairs", "images"))}
# What names of the pages stand for here.
STAND_FOR = {"node7": socket.gethostname(), "JOB": "endless-1", "-o DIR": "-o directory"}
# They last until Ctrl-C.
LASTING = re.compile(r"fsdpctl (watch|top|logs .*-f)\b")
GPT2 = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 24, "n_layer": 2, "n_head": 3,
        "n_positions": 32, "vocab_size": 257}
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 48,
         "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
         "vocab_size": 512}
TEXT = """name: {name}
{model}
data: {{format: text, path: text.txt, context: 32}}
train: {{max_steps: {steps}, batch_size: 32, evaluate: false}}
optimizer: {{type: adamw}}
workers: {workers}
"""


def wanted():
    """The blocks of the pages, without the programs in Python, and the commands of sentences."""
    blocks = [block for page in PAGES for block in printed.blocks(page) if not printed.is_python(block)]
    return blocks, {page: [span for span in printed.spans(page) if span not in ELSEWHERE] for page in PAGES}


class Printed(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="fsdpd-test-")
        self.addCleanup(shutil.rmtree, self.root, True)
        for name in ("home/data/models", "tmp"):
            os.makedirs(self.path(name))
        for name, target in (("examples", os.path.join(harness.SOURCE, "examples")), ("build", os.path.abspath(harness.BUILD)),
                             ("models", "home/data/models"), ("DIR", "home/data")):
            os.symlink(target, self.path(name))
        self.write("fsdpd.yaml", "calibrate: {after_seconds: 0}\n")
        self.write("home/data/text.txt", "".join(random.Random(5).choice("etaoin shrdlu\n") for _ in range(4000)))
        self.exports = []
        self.environment = {name: value for name, value in os.environ.items()
                            if not name.startswith(("XDG_", "FSDPD_", "PIP_"))}
        self.environment.update(HOME=self.path("home"), TMPDIR=self.path("tmp"), FSDPD_CONFIG=self.path("fsdpd.yaml"),
                                PATH=os.path.abspath(harness.BUILD) + ":" + os.environ["PATH"])

    def path(self, name):
        return os.path.join(self.root, name)

    def write(self, name, text):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "w") as file:
            file.write(text)

    def digits(self):
        harness.draw_digits(self.path("home/mnist"), train=500, test=100)

    def serve(self, data, workers=2):
        """A daemon that the commands reach."""
        daemon = harness.Daemon(workers, self.path(data))
        self.addCleanup(daemon.close)
        self.environment["FSDPD_ADDRESS"] = daemon.address
        return daemon

    def shell(self, command, **options):
        return subprocess.Popen(["bash", "-ec", "\n".join([*self.exports, command])], cwd=self.root, env=self.environment,
                                stdin=subprocess.DEVNULL, start_new_session=True, **options)

    def run_printed(self, command):
        begin = time.monotonic()
        for name, value in STAND_FOR.items():
            command = command.replace(name, value)
        if command.startswith("export "):
            self.exports.append(command)
        with open(self.path("output"), "w+") as output:
            background = command.endswith("&")
            lasting = LASTING.match(command)
            line = f"{command} --help" if command in NAMES else f"{command}\necho $! >pid" if background else command
            process = self.shell(line, stdout=output, stderr=output)
            if lasting:
                self.until(lambda: os.fstat(output.fileno()).st_size or process.poll() is not None, command)
                spent = time.monotonic() - begin
                self.assertIsNone(process.poll(), f"{command} ended")
                os.killpg(process.pid, signal.SIGINT)
            self.assertIn(process.wait(4 * harness.PATIENCE), (130, -signal.SIGINT) if lasting else (0,),
                          f"{command}\n{self.read('output')}")
            if background:
                self.addCleanup(self.end, int(self.read("pid")))
        for name in re.findall(r"(?:-o|>) (\S+)", command):
            name = name.replace("~", "home")
            self.assertTrue(os.path.isdir(self.path(name)) or os.path.getsize(self.path(name)), f"{command}: {name} is empty")
        if command in NAMES:
            self.assertIn(f"usage: {command.split()[0]} {command.split()[1]}", self.read("output"))
        print(f"{(spent if lasting else time.monotonic() - begin):7.2f} s  {command}")

    def read(self, name):
        with open(self.path(name)) as file:
            return file.read()

    def until(self, condition, what):
        limit = time.monotonic() + harness.PATIENCE
        while not condition():
            self.assertLess(time.monotonic(), limit, f"waited for {what}\n{self.read('output')}")
            time.sleep(0.02)

    def end(self, pid):
        os.kill(pid, signal.SIGTERM)
        self.until(lambda: not harness.alive(pid), "fsdpd to end")

    def run_block(self, page, heading, number=0, before=lambda: None):
        for command in printed.commands(printed.block(page, heading, number)):
            if command not in ELSEWHERE:
                before()
                self.run_printed(command)

    def example(self, daemon):
        """The example's files, with the daemon's data."""
        shutil.copytree(os.path.join(harness.SOURCE, "examples/mnist"), self.root, dirs_exist_ok=True)
        self.write("job.yaml", re.sub("dir: [^,]*", "dir: " + daemon.data, self.read("job.yaml")))

    def jobs(self):
        """mnist-1 trains on two workers, mnist-2 on one, and mnist-3 waits. Returns what waits until
        mnist-1 trains."""
        self.digits()
        daemon = self.serve("home/mnist", workers=3)
        self.example(daemon)
        for workers in (2, 1, 2):
            daemon.submit(f"workers={workers}", "train.epochs=100000")
        daemon.wait_step("mnist-2", 1)
        return lambda: daemon.wait_state("mnist-1", "RUNNING") and daemon.wait_step("mnist-1", 1)

    def test_five_commands(self):
        self.digits()
        self.example(self.serve("home/mnist"))
        self.run_block("README.md", "Try it", 2)

    def test_build_and_run(self):
        self.digits()
        self.run_block(STARTED, "Build and run it by hand")

    def test_work_with_jobs(self):
        self.run_block(STARTED, "Work with jobs", 0, self.jobs())

    def test_schedule(self):
        self.run_block(STARTED, "Schedule jobs and manage workers", 0, self.jobs())

    def test_see(self):
        self.run_block(STARTED, "See what a job does", 0, self.jobs())

    def test_cost(self):
        self.digits()
        self.serve("home/mnist")
        self.run_block(STARTED, "See what a job costs before it runs")

    def hugging_face(self, model="model: {hf: models/gpt2}"):
        self.write("models/gpt2/config.json", json.dumps(GPT2))
        self.write("endless.yaml", TEXT.format(name="endless", model=model, steps=1000000, workers=1))
        self.write("job.yaml", TEXT.format(name="short", model=model, steps=5, workers=1))

    def test_hugging_face(self):
        model, = (line for line in printed.block(STARTED, "Train a Hugging Face model").lines if printed.YAML.match(line))
        self.hugging_face(model)
        daemon = self.serve("home/data")
        submitted = daemon.ctl("submit", self.path("job.yaml"), "--id", "finetune-1", "--wait")
        self.assertEqual(submitted.returncode, 0, submitted.stderr)
        self.run_block(STARTED, "Train a Hugging Face model")

    def prepare(self, where):
        """fsdpd-prepare can be installed, and there are a model with its tokenizer and conversations."""
        # The build reads and writes beside its sources; what it depends on is this Python's, there is no network.
        for part in ("clients", "proto"):
            shutil.copytree(os.path.join(harness.SOURCE, part), self.path(part))
        subprocess.run(["chmod", "-R", "u+w", self.path("clients"), self.path("proto")], check=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self.path("python")], check=True)
        site, = (os.path.join(at, "site-packages") for at, names, _ in os.walk(self.path("python")) if "site-packages" in names)
        self.write(os.path.join(site, "this.pth"), "\n".join(filter(os.path.isdir, sys.path[1:])))
        self.write("python/bin/pip", '#!/bin/sh\nexec python3 -m pip "$@"\n')
        os.chmod(self.path("python/bin/pip"), 0o755)
        self.environment.update(PATH=self.path("python/bin") + ":" + self.environment["PATH"], PIP_NO_INDEX="1",
                                PIP_NO_BUILD_ISOLATION="false", PIP_DISABLE_PIP_VERSION_CHECK="1")
        words = ["what is a b", "it is c d"]
        tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(["?", *" ".join(words).split()])}, "?"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        os.makedirs(self.path(f"{where}/llama"))
        tokenizer.save(self.path(f"{where}/llama/tokenizer.json"))
        template = os.path.join(harness.SOURCE, "clients/python/fsdpd_prepare/templates/chatml.jinja")
        with open(template) as file:
            self.write(f"{where}/llama/tokenizer_config.json", json.dumps({"chat_template": file.read()}))
        self.write(f"{where}/llama/config.json", json.dumps(LLAMA))
        turns = [{"role": role, "content": text} for role, text in zip(("user", "assistant"), words)]
        self.write("train.jsonl", "".join(json.dumps({"messages": turns}) + "\n" for _ in range(100)))
        pair = {"prompt": words[0], "chosen": words[1], "rejected": words[0]}
        self.write("pairs.jsonl", json.dumps(pair) + "\n")

    def test_conversations(self):
        self.prepare("models")
        self.write("job.yaml", TEXT.format(name="chat", model="model: {hf: models/llama}", steps=2, workers=2))
        daemon = self.serve("home/data")
        self.run_block(STARTED, "Train on conversations")
        daemon.wait_state(daemon.json("list")[-1]["id"], "SUCCEEDED")
        for span in sorted({span for page in PAGES for span in printed.spans(page) if span.startswith("fsdpd-prepare ")}):
            self.run_printed(span)

    def test_fine_tune(self):
        """With the job file as it is printed, but shorter."""
        self.prepare("home/data/models")
        page = "\n".join(printed.read("docs/README.md"))
        job = re.search(r"`finetune\.yaml`:\n\n   ```yaml\n(.*?)   ```", page, re.S).group(1)
        for long, short in (("max_steps: 500", "max_steps: 4"), ("evaluate_interval: 100", "evaluate_interval: 2"),
                            ("context: 1024", "context: 32"), ("warmup_steps: 20", "warmup_steps: 2")):
            self.assertIn(long, job)
            job = job.replace(long, short)
        self.write("finetune.yaml", textwrap.dedent(job))
        self.serve("home/data")
        self.run_block("docs/README.md", "Fine-tune a Hugging Face model")

    def test_sentences(self):
        """Those of docs/README.md start a daemon themselves. DIR is a directory of this name."""
        self.hugging_face()
        spans = [span for page in PAGES for span in wanted()[1][page]]
        first = [span for span in spans if span.startswith(("fsdpd --workers", "export "))]
        for span in first:
            self.run_printed(span)
        submit = "until fsdpctl status; do sleep 0.1; done; fsdpctl submit endless.yaml"
        self.assertEqual(self.shell(submit).wait(harness.PATIENCE), 0)
        self.until(self.job_trains, "the job to train")
        for span in spans:
            if span not in first and not span.startswith("fsdpd-prepare "):
                self.run_printed(span)

    def job_trains(self):
        with open(self.path("shown"), "w") as shown:
            self.shell("fsdpctl show endless-1 -o json", stdout=shown).wait(harness.PATIENCE)
        return int(json.loads(self.read("shown"))["step"]) > 0

    def test_nothing_is_left_out(self):
        """Each block has a test above, or is in the table; each row of the tables is printed, and run by what it names."""
        blocks, _ = wanted()
        lines = {line for block in blocks for line in printed.commands(block)}
        spans = {span for page in PAGES for span in printed.spans(page)}
        self.assertEqual(set(ELSEWHERE) - lines - spans, set(), "not printed any more")
        self.assertEqual(NAMES - spans, set(), "not printed any more")
        with open(__file__) as file:
            tests = re.findall(r'self\.run_block\((STARTED|"(?:docs/)?README\.md"), "(.*?)"(?:, (\d))?', file.read())
        here = {(STARTED if page == "STARTED" else page.strip('"'), heading, int(number or 0)) for page, heading, number in tests}
        self.assertEqual({(block.page, block.heading, block.number) for block in blocks
                          if not set(printed.commands(block)) <= set(ELSEWHERE)}, here)
        programs = {block[:2] for page in PAGES for block in printed.blocks(page) if printed.is_python(block)}
        self.assertEqual(programs, set(PROGRAMS))
        rows = list(ELSEWHERE.values()) + [(file, f'printed.block("{page}", "{heading}"')
                                           for (page, heading), file in PROGRAMS.items()]
        for path, words in rows:
            if os.path.exists(os.path.join(harness.SOURCE, path)) or not path.startswith("."):  # a release has no .ci
                self.assertTrue(any(words in line for line in printed.read(path)), f"{path} lacks {words}")


if __name__ == "__main__":
    harness.main()
