#!/usr/bin/env python3
"""fsdpd plan, which needs no daemon, and fsdpctl plan, which calls one, print the same plan."""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness


def plan(*arguments, job=harness.JOB, cwd="/", environment=None):
    return subprocess.run([harness.FSDPD, "plan", job, *arguments], text=True, timeout=120, cwd=cwd,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env={"PATH": os.environ["PATH"], **(environment or {})})


# As published: a config.json alone, no weights.
LLAMA_8B = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
            "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": False,
            "vocab_size": 128256, "attention_bias": False, "torch_dtype": "bfloat16"}
LLAMA_JOB = """
name: llama
model: {hf: llama}
data: {format: tokens, path: tokens.bin, context: 4096}
train: {max_steps: 1000, batch_tokens: 1048576, evaluate: false}
precision: {param_dtype: bf16}
optimizer: {type: adamw, lr: 0.0003}
workers: 8
"""

WIDE_JOB = """
name: wide
model: {file: net.yaml, args: {width: 16}}
data: {dir: .}
optimizer: {type: sgd, lr: 0.1}
workers: 1
"""
WIDE_NET = """
name: Wide
args: {width: 8}
input: [1, 28, 28]
classes: 10
modules: {up: "Linear(784, width)", down: "Linear(width, 10)"}
forward: ["output = down(relu(up(flatten(x, 1))))"]
loss: cross_entropy(output, target)
"""


class Offline(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="fsdpd-test-")
        self.addCleanup(shutil.rmtree, self.directory)

    def json(self, *arguments, **options):
        result = plan(*arguments, "-o", "json", **options)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr, "")
        return json.loads(result.stdout)

    def refused(self, code, arguments, *words, **options):
        result = plan(*arguments, **options)
        self.assertEqual(result.returncode, code, f"{arguments}: {result.stderr}")
        self.assertEqual(result.stdout, "")
        self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)

    def test_text(self):
        result = plan("--profile", "h200x8")
        self.assertEqual(result.returncode, 0, result.stderr)
        for words in ("(fc1): FullyShardedDataParallel(", "1,199,882 parameters", "over 8 workers",
                      "MEMORY PER RANK", "EVALUATE", "ESTIMATE FOR h200",
                      "of that exposed", "all_gather fc1", "Advice: fsdp.strategy=no_shard", "scratch memory"):
            self.assertIn(words, result.stdout)
        self.assertNotIn("plan of Net", result.stdout)
        self.assertIn("plan of Net", plan("--profile", "h200x8", "--dump").stdout)

    def test_place_of_a_mistake(self):
        """That shows only when the plan is made."""
        job = os.path.join(self.directory, "job.yaml")
        with open(harness.JOB) as file:
            text = re.sub(r"wrap: {[^}]*}", "wrap: {policy: type, types: [Blok]}", file.read())
        with open(job, "w") as file:
            file.write(text)
        shutil.copy(os.path.join(os.path.dirname(harness.JOB), "net.yaml"), self.directory)
        line = next(i + 1 for i, row in enumerate(text.splitlines()) if row.startswith("fsdp:"))
        for arguments, place in (((), f"{job}:{line}"),
                                 (("--set", "fsdp.wrap.types=[Blok]"), "--set fsdp.wrap.types=[Blok]")):
            result = plan(*arguments, job=job)
            self.assertEqual(result.stderr,
                             f"fsdpd: {place}: fsdp.wrap.types: Net has no module type 'Blok'\n")

    def test_size_of_a_resnets_images(self):
        """Its config.json need not have one."""
        os.mkdir(os.path.join(self.directory, "resnet"))
        with open(os.path.join(self.directory, "resnet/config.json"), "w") as file:
            json.dump({"architectures": ["ResNetForImageClassification"], "model_type": "resnet", "num_channels": 1,
                       "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic",
                       "hidden_act": "relu", "id2label": {str(i): str(i) for i in range(10)}}, file)
        harness.draw_digits(self.directory, train=64, test=64)
        job = os.path.join(self.directory, "job.yaml")
        with open(job, "w") as file:
            file.write("name: a\nmodel: {hf: resnet}\ndata: {dir: .}\noptimizer: {type: sgd}\n")
        result = plan("--data-root", self.directory, job=job)
        self.assertIn("the model's input is (1, 224, 224), but the training images in ", result.stderr)
        self.assertIn("; the model's size is image_size of its config.json, or its family's default", result.stderr)

    def test_arguments_of_the_model(self):
        job = os.path.join(self.directory, "job.yaml")
        for name, text in (("job.yaml", WIDE_JOB), ("net.yaml", WIDE_NET)):
            with open(os.path.join(self.directory, name), "w", encoding="utf-8") as file:
                file.write(text)
        for settings, width in (((), 16), (("--set", "model.args.width=32"), 32),
                                (("--set", "model.args={}"), 8)):
            result = plan(*settings, "--profile", "cpu", job=job)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn(f"{785 * width + 11 * width - width + 10:,} parameters", result.stdout)
        self.refused(1, ("--set", "model.args.width=wide"), "net.yaml: args.width: expected an "
                     "integer, as the file's 8, found 'wide'", job=job)
        self.refused(1, ("--set", "model.args.widht=8"), "did you mean 'width'?", job=job)

    def test_warmup_of_the_whole_job(self):
        """It is allowed with every schedule, and a note says so."""
        for kind in ("constant", "step", "linear", "cosine"):
            for steps, noted in ((9, False), (10, True), (50, True)):
                made = self.json("--profile", "a100", "--set", f"schedule.type={kind}", "--set", "train.max_steps=10",
                                 "--set", f"schedule.warmup_steps={steps}")
                self.assertEqual("schedule.warmup_steps: all 10 steps are warm-up" in " ".join(made["notes"]), noted)

    def test_recomputation(self):
        with open(os.path.join(self.directory, "job.yaml"), "w", encoding="utf-8") as file:
            file.write("name: llama\nmodel: {file: model.yaml}\noptimizer: {type: sgd}\ntrain: {max_steps: 9}\n"
                       "data: {format: text, path: a.txt, context: 128}\n")
        shutil.copy(os.path.join(harness.SOURCE, "examples/llama/model.yaml"), self.directory)
        nothing, cheap, everything = (
            self.json("--set", f"fsdp.activation_checkpointing={modules}", "--set", f"fsdp.recompute={what}",
                      job=os.path.join(self.directory, "job.yaml"))
            for modules, what in (([], "all"), (["model.layers.*"], "cheap"), (["model.layers.*"], "all")))
        memory = [answer["peak_bytes"] for answer in (everything, cheap, nothing)]
        times = [answer["programs"][0]["estimate"]["step_seconds"] for answer in (nothing, cheap, everything)]
        for ascending in (memory, times):
            self.assertEqual(ascending, sorted(set(ascending)))

    def test_choice(self):
        """The printed job file is valid, and its own plan has the figures of the choice."""
        answer = self.json("--profile", "t4x4", "--auto")
        best = answer["choices"][0]
        self.assertLessEqual(best["step_seconds"], answer["choices"][-1]["step_seconds"] * 1.01)
        text = plan("--profile", "t4x4", "--auto").stdout
        self.assertIn(best["description"], text)
        with tempfile.TemporaryDirectory() as root:
            for name in ("net.yaml",):
                shutil.copy(os.path.join(harness.SOURCE, "examples/mnist", name), root)
            job = os.path.join(root, "chosen.yaml")
            with open(job, "w") as file:
                file.write(text.split("The job file with these settings:", 1)[1])
            again = json.loads(plan("--profile", "t4x4", "-o", "json", job=job).stdout)
        self.assertEqual(int(again["peak_bytes"]), int(best["peak_bytes"]))
        train = again["programs"][0]["estimate"]["step_seconds"]
        self.assertAlmostEqual(train, best["step_seconds"], delta=1e-3 * train)

    def test_a_choice_divides_tokens_itself(self):
        """The file's batch_size, which does not divide train.batch_tokens, is one of the settings chosen."""
        job = os.path.join(harness.SOURCE, "examples/shakespeare/job.yaml")
        ask = ("--profile", "h100x4", "--set", f"train.batch_tokens={4 * 21 * 64}")  # batches of 6 windows
        self.refused(1, ask, "train.batch_tokens: expected a multiple", job=job)
        best = self.json(*ask, "--auto", job=job)["choices"][0]
        sets = [word for setting in harness.settings_of(best) for word in ("--set", setting)]
        again = self.json(*ask, *sets, job=job)
        self.assertEqual(int(again["peak_bytes"]), int(best["peak_bytes"]))
        self.assertEqual(21 % int(again["micro_steps"]), 0)

    def test_choice_for_llama_8b(self):
        """A million tokens per step: 80 GB suffice, 24 GB need the host, 4 GB suffice for nothing."""
        os.mkdir(os.path.join(self.directory, "llama"))
        for name, text in (("llama/config.json", json.dumps(LLAMA_8B)), ("job.yaml", LLAMA_JOB)):
            with open(os.path.join(self.directory, name), "w") as file:
                file.write(text)
        ask = ("--auto", "--families", os.path.join(harness.SOURCE, "families"))
        options = {"job": os.path.join(self.directory, "job.yaml"), "cwd": self.directory}
        large = self.json(*ask, "--profile", "h100x8", **options)
        best = large["choices"][0]
        self.assertEqual(int(best["host_bytes"]), 0)
        self.assertIn("limited by arithmetic", " ".join(large["notes"]))
        self.assertEqual(len(large["choices"]), 4)
        self.assertGreater(best["settings"]["batch_size"], 0)
        small = self.json(*ask, "--profile", "h100x4", "--memory", "24GB", **options)["choices"][0]
        self.assertLess(int(small["peak_bytes"]), 24e9)
        self.assertGreater(int(small["host_bytes"]), 0)
        self.assertGreater(small["step_seconds"], 2 * best["step_seconds"])  # on half of the ranks
        self.refused(10, (*ask, "--profile", "h100x4", "--memory", "4GB"), "no settings fit in 4.00 GB",
                     "blocks computed again", "parameters and optimizer on the host", "are gradients",
                     **options)

    def test_choice_that_cannot_fit(self):
        self.refused(10, ("--profile", "t4x4", "--memory", "1MB", "--auto"), "no settings fit in 1.00 MB",
                     "those that need least", "parameters")
        self.refused(2, ("--profile", "t4x4", "--memory", "lots"), "lots", "80GB")

    def test_numbers_of_workers_are_compared(self):
        whole = self.json("--profile", "t4", "--workers", "2..6", "--set", "train.batch_size=16")
        self.assertEqual([world["workers"] for world in whole["worlds"]], [2, 4, 6])
        rates = {world["workers"]: world["samples_per_second"] for world in whole["worlds"]}
        best = whole["world"]
        for workers, rate in rates.items():
            self.assertLessEqual(rate, rates[best] * 1.005, (workers, best))
            alone = self.json("--profile", "t4", "--workers", str(workers), "--set",
                              "train.batch_size=16")
            [estimate] = [program["estimate"] for program in alone["programs"]
                          if program["name"] == "train"]
            self.assertAlmostEqual(rate, estimate["samples_per_second"], delta=rate * 1e-3)
        text = plan("--profile", "t4", "--workers", "2..6", "--auto").stdout
        self.assertIn("PER WORKER", text)
        self.assertIn(f"workers: {self.json('--profile', 't4', '--workers', '2..6', '--auto')['world']}\n",
                      text)  # the chosen job file has it
        for bad in ("0", "4..2", "2..", "..4", "x", "2..99999"):
            self.refused(2, ("--profile", "t4", "--workers", bad), "8..64", f"'{bad}'")
        # what does not fit is listed; if nothing fits, the error is that of the largest
        self.refused(10, ("--profile", "t4", "--memory", "1kB", "--workers", "2..4"), "1.00 kB")

    def test_odd_requests_for_a_choice(self):
        """Each is refused with figures, or answered."""
        auto = ("--auto", "--profile", "h100x8")
        for memory in ("0", "0GB", "-5", "many"):
            self.refused(2, (*auto, f"--memory={memory}"), "--memory", "above 0", memory)
        # one op is larger than the memory
        self.refused(10, (*auto, "--memory", "1kB"), "no settings fit in 1.00 kB", "take",
                     "the operands of one op")
        # a world that nothing divides
        best = self.json("--auto", "--profile", "h100x7")["choices"][0]
        self.assertNotIn("hybrid_shard", best["description"])
        model = os.path.join(os.path.dirname(harness.JOB), "net.yaml")
        job = os.path.join(self.directory, "job.yaml")
        shutil.copy(harness.JOB, job)
        for frozen, code in (('["*"]', 1), ("[conv1.*, conv2.*]", 0)):
            with open(model) as file, open(os.path.join(self.directory, "net.yaml"), "w") as copy:
                copy.write(file.read() + f"\nfreeze: {frozen}\n")
            if code == 0:
                self.assertGreater(len(self.json(*auto, job=job)["choices"]), 0)
            else:
                self.refused(code, auto, "there is nothing to train", job=job)

    def test_documentation(self):
        """Each example of docs/plan.md matches the output of the last command above it; "..." omits
        lines."""
        with open(os.path.join(harness.SOURCE, "docs/plan.md")) as file:
            page = file.read()
        blocks = [[" ".join(line.split()) for line in block.splitlines()]
                  for block in page.split("\n\n") if block.startswith("    ")]
        printed, checked = None, []
        for block in blocks:
            if block[0].startswith("fsdpd plan examples/"):
                self.assertEqual(len(block), 1)
                command = block[0].split()[3:]
                result = plan(*command)
                self.assertEqual(result.returncode, 0, result.stderr)
                printed = [" ".join(line.split()) for line in result.stdout.splitlines()]
            elif printed is not None:
                self.find(block, printed)
                checked.append(block[0])
        self.assertEqual(len(checked), 7, checked)

    def find(self, block, printed):
        lines = []
        for line in block:  # the page wraps advice
            if lines and lines[-1].startswith("Advice:") and not line.startswith("Advice:"):
                lines[-1] += " " + line
            else:
                lines.append(line)
        starts = [i for i, line in enumerate(printed) if line == lines[0]]
        self.assertEqual(len(starts), 1, lines[0])
        at, skip = starts[0], False
        for line in lines:
            if line == "...":
                skip = True
                continue
            if skip:
                self.assertIn(line, printed[at:])
                at += printed[at:].index(line)
            self.assertEqual(line, printed[at])
            at, skip = at + 1, False

    def test_numbers_add_up(self):
        for arguments in (("--profile", "cpux2"), ("--profile", "h200x8"),
                          ("--profile", "t4", "--world", "3", "--set", "fsdp.strategy=no_shard"),
                          ("--set", "workers=1"), ("--set", "train.evaluate=false")):
            answer = self.json(*arguments)
            self.assertEqual(sum(row["bytes"] for row in answer["memory"]), answer["peak_bytes"])
            self.assertEqual(max(step["bytes"] for step in answer["programs"]),
                             answer["peak_bytes"])
            for step in answer["programs"]:
                self.assertEqual(sum(row["bytes"] for row in step["memory"]), step["bytes"])
                sent = sum(line["bytes"] for line in step["schedule"])
                self.assertEqual(sent, step["communicated_bytes"])
                self.assertEqual(sum(row["bytes"] for row in step["collectives"]), sent)
                estimate = step["estimate"]
                self.assertGreaterEqual(estimate["step_seconds"], estimate["compute_seconds"])
                self.assertLessEqual(estimate["exposed_seconds"],
                                     estimate["communication_seconds"])
                ends = [line["start_seconds"] + line["seconds"] for line in step["schedule"]]
                self.assertAlmostEqual(max(ends) / estimate["step_seconds"], 1, places=2)

    def test_world(self):
        self.assertEqual(self.json()["world"], 2)  # the job's
        self.assertEqual(self.json("--profile", "h200")["world"], 2)
        self.assertEqual(self.json("--profile", "h200x8")["world"], 8)
        self.assertEqual(self.json("--profile=h200x8", "--world=3")["world"], 3)
        # the shard size must divide the profile's workers, not the file's two
        dump = plan("--profile", "h200x8", "--set", "fsdp.strategy=hybrid_shard",
                    "--set", "fsdp.shard_size=4", "--set", "fsdp.reshard_after_forward=2",
                    "--set", "fsdp.wrap.min_num_params=100", "--dump").stdout
        self.assertIn("hybrid_shard over 8 ranks, in groups of 4", dump)
        self.assertRegex(dump, r"(?m)^ +2  fc1 .*, resharded to 2 ranks$")
        self.assertRegex(dump, r"(?m)^ +[0-9]+  compute  reshard +conv2 ")
        self.assertRegex(dump, r"(?m)^ +[0-9]+  comm +all_gather +conv2 .*, 2 ranks, sends 36,992")
        self.assertEqual(self.json("--set", "workers=5")["world"], 5)

    def test_a_large_world_takes_less_than_a_second(self):
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        answer = self.json("--profile", "h200x4096")
        taken = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
        self.assertEqual(answer["world"], 4096)
        self.assertLess(taken, 1 if "san" not in harness.BUILD else 20)

    def test_steps_are_counted_where_the_data_is(self):
        self.assertEqual(self.json()["steps"], 0)
        data = os.path.join(self.directory, "data/mnist")
        harness.draw_digits(data, train=640, test=10)
        settings = ("--set", "train.epochs=3")
        # 640 samples over 2 ranks in batches of 64
        self.assertEqual(self.json(*settings, "--data-root", self.directory)["steps"], 15)
        self.assertEqual(self.json(*settings, cwd=self.directory)["steps"], 15)
        self.assertEqual(self.json(*settings, "--set", f"data.dir={data}")["steps"], 15)
        # files that exist but are damaged are an error
        with open(os.path.join(data, "train-images-idx3-ubyte"), "r+b") as file:
            file.write(b"nonsense")
        self.refused(1, ("--set", f"data.dir={data}"), "train-images-idx3-ubyte")

    def test_profile_files(self):
        path = os.path.join(self.directory, "small.yaml")
        with open(path, "w") as file:
            file.write("name: small\nlike: t4\nworld: 16\nmemory: 25e6\n")
        self.refused(10, ("--profile", path), "fc1", "25.0 MB", "train.batch_size=")
        answer = self.json("--profile", path, "--set", "train.batch_size=8")
        self.assertEqual((answer["device"], answer["world"]), ("small", 16))
        self.assertEqual(answer["device_memory_bytes"], 25000000)
        with open(path, "a") as file:
            file.write("bandwidth: 3\n")
        self.refused(2, ("--profile", path), "small.yaml:5", "bandwidth")
        self.refused(5, ("--profile", path + ".missing"), "missing")

    def test_does_not_fit(self):
        large = ("--profile", "h200x8", "--set", "train.batch_size=1000000")
        self.refused(10, large, "GB", "141 GB", "fc1", "it would fit with train.batch_size=")
        # and the advised settings do fit
        result = plan(*large)
        size = result.stderr.split("train.batch_size=")[1].split()[0]
        self.assertEqual(plan("--profile", "h200x8", "--set",
                              f"train.batch_size={size}").returncode, 0)

    def test_advice_holds(self):
        answer = self.json("--profile", "h200x8")
        wanted = [text for text in answer["advice"] if "fsdp.strategy=no_shard" in text]
        self.assertEqual(len(wanted), 1, answer["advice"])
        better = self.json("--profile", "h200x8", "--set", "fsdp.strategy=no_shard")
        seconds = better["programs"][0]["estimate"]["step_seconds"]
        self.assertIn(f"would take {seconds * 1e6:.0f} us per step", wanted[0])
        self.assertLess(seconds, answer["programs"][0]["estimate"]["step_seconds"])
        more = (better["peak_bytes"] - answer["peak_bytes"]) / 1e6
        self.assertIn(f"{more:.1f} MB more memory", wanted[0])
        # one unit: the advised policy saves the promised memory
        settings = ("--profile", "h200x8", "--set", "train.evaluate=false")
        one = self.json(*settings, "--set", "fsdp.wrap.policy=none")
        wanted = [text for text in one["advice"] if "min_num_params=" in text]
        self.assertEqual(len(wanted), 1, one["advice"])
        size = wanted[0].split("min_num_params=")[1].split()[0]
        many = self.json(*settings, "--set", f"fsdp.wrap.min_num_params={size}")
        self.assertGreater(len(many["units"]), 1)
        saved = (one["peak_bytes"] - many["peak_bytes"]) / 1e6
        self.assertIn(f"{saved:.2f} MB", wanted[0])

    def test_processor_without_bf16(self):
        settings = ("--profile", "cpux1", "--set", "precision.param_dtype=bf16")
        answer = self.json(*settings, environment={"ONEDNN_MAX_CPU_ISA": "AVX2"})
        wanted = [text for text in answer["advice"] if "precision.param_dtype=f32" in text]
        self.assertEqual(len(wanted), 1, answer["advice"])
        self.assertIn("no instructions for products in bf16", wanted[0])

    def test_command_line(self):
        self.refused(2, ("--profile", "h20"), "h20", "h200")
        self.refused(2, ("--profile", "h200x5000"), "4096")
        self.refused(2, ("--world", "0"), "--world")
        self.refused(2, ("--world", "5000"), "4096")
        self.refused(2, ("--profil", "h200"), "--profile")
        self.refused(2, ("-o", "xml"), "json", "xml")
        self.refused(2, ("--runtime-dir", "x"), "--runtime-dir", "fsdpd plan")
        self.refused(2, ("--set", "train.epochz=1"), "epochz", "epochs")
        self.refused(2, ("another.yaml",), "unexpected argument", "another.yaml")
        self.refused(5, (), "missing.yaml", job="/missing.yaml")
        self.refused(1, ("--set", "fsdp.wrap.min_num_params=100000000"), "min_num_params")
        result = subprocess.run([harness.FSDPD, "plan"], text=True, capture_output=True)
        self.assertEqual(result.returncode, 2)
        self.assertIn("job file", result.stderr)
        result = subprocess.run([harness.FSDPD, "plan", "--help"], text=True, capture_output=True)
        self.assertEqual(result.returncode, 0)
        for flag in ("--profile", "--world", "--set", "--dump", "--output", "--data-root"):
            self.assertIn(flag, result.stdout)


class Asked(unittest.TestCase):
    def test_same_as_a_worker(self):
        with harness.Daemon(arguments=["--threads", "1"]) as daemon:
            settings = ["--set", f"data.dir={daemon.data}"]
            for more in ([], ["--dump"], ["--auto"], ["--set", "fsdp.strategy=no_shard"]):
                asked = daemon.ctl("plan", harness.JOB, *settings, *more, "-o", "json")
                self.assertEqual(asked.returncode, 0, asked.stderr)
                offline = plan(*settings, *more, "--profile", "cpu", "-o", "json", "--threads", "1")
                self.assertEqual(offline.returncode, 0, offline.stderr)
                pair = [json.loads(text) for text in (asked.stdout, offline.stdout)]
                for answer in pair:
                    del answer["device_memory_bytes"]  # the host's free memory changes all the time
                self.assertEqual(*pair)
            text = daemon.ctl("plan", harness.JOB, *settings).stdout
            for words in ("MEMORY PER RANK", "ESTIMATE FOR cpu", " steps, about "):
                self.assertIn(words, text)
            # a submitted job keeps its steps' memory, without the details
            job = daemon.show(daemon.submit("train.max_steps=1"))
            self.assertEqual([step["name"] for step in job["plan"]["programs"]],
                             ["train", "evaluate"])
            self.assertEqual(job["plan"]["programs"][0]["schedule"], [])
            self.assertEqual(daemon.json("list")[0]["plan"]["programs"], [])
            refused = daemon.ctl("plan", harness.JOB, *settings, "--set",
                                 "train.batch_size=1000000")
            self.assertEqual(refused.returncode, harness.DOES_NOT_FIT)
            self.assertIn("it would fit with", refused.stderr)


if __name__ == "__main__":
    harness.main()
