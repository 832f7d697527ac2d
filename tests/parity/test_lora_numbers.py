#!/usr/bin/env python3
"""Adapters against the numbers of peft in tests/parity/lora.json (make_lora_numbers.py): which modules
of tiny models get one, their initial values bit for bit, and the losses of 50 AdamW steps on one to three
workers under each strategy. Needs numpy; test_lora_live.py compares with peft itself."""

import json
import os
import shutil
import struct
import sys
import tempfile
import unittest

sys.path[:0] = [os.path.dirname(__file__), os.path.join(os.path.dirname(__file__), "../system")]
import harness
import numpy
import family_cases as cases
import family_numbers as numbers
import lora_cases

BOUND = 1e-5  # of a loss
CASES = lora_cases.CASES
RECORDS = lora_cases.load()
ADAPTERS = lora_cases.load(lora_cases.ADAPTERS_PATH)


class Lora(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp(prefix="fsdpd-test-")
        cls.addClassCleanup(shutil.rmtree, cls.root, True)
        cls.data = os.path.join(cls.root, "data")
        os.mkdir(cls.data)
        lora_cases.draw_stream().astype("<u2").tofile(os.path.join(cls.data, "stream.bin"))
        images, labels = lora_cases.draw_pictures()
        for part in ("train", "t10k"):
            cases.write_idx(os.path.join(cls.data, f"{part}-images-idx3-ubyte"), images)
            cases.write_idx(os.path.join(cls.data, f"{part}-labels-idx1-ubyte"), labels)
        cases.write_documents(os.path.join(cls.data, "labels"), "bert", lora_cases.STEPS * cases.WINDOWS, 4)
        for kind in cases.DATA:
            with open(os.path.join(cls.root, f"{kind}.yaml"), "w", encoding="utf-8") as file:
                file.write(cases.job_file(kind, lora_cases.STEPS))
        for name, (case, _, _) in CASES.items():
            if not os.path.exists(os.path.join(cls.data, case)):
                numbers.write_checkpoint(os.path.join(cls.data, case), RECORDS[name]["record"])
        cls.daemon = harness.Daemon(3, data=cls.data)
        cls.addClassCleanup(cls.daemon.close)

    def arguments(self, name, workers, *more):
        """`name` of CASES, or "adapter-" and one of ADAPTERS, which is written before."""
        if name in CASES:
            case, lora, _ = CASES[name]
            settings = lora_cases.settings(lora)
        else:
            case, settings = lora_cases.ADAPTERS[name.split("-", 1)[1]][0], [f"model.adapter={name}"]
        kind = "documents" if case.startswith("head/") else "pictures" if cases.is_picture(case) else "text"
        batch = cases.IMAGES_OF_A_STEP if kind == "pictures" else cases.WINDOWS
        words = [f"model.hf={case}", *settings, f"workers={workers}", "train.dropout=false",
                 f"train.batch_size={batch // workers}", f"train.seed={lora_cases.SEED}", *more]
        return [os.path.join(self.root, f"{kind}.yaml"), *(word for one in words for word in ("--set", one))]

    def run_job(self, *arguments):
        """The id of a job that has ended well."""
        result = self.daemon.ctl("submit", *self.arguments(*arguments), "--wait", timeout=300)
        self.assertEqual(result.returncode, 0, result.stderr)
        return self.daemon.json("list")[-1]["id"]

    def pull(self, job, *options):
        out = os.path.join(self.root, f"{job}.pulled")
        result = self.daemon.ctl("pull", job, "-o", out, *options)
        self.assertEqual(result.returncode, 0, result.stderr)
        return out

    def test_file_has_the_cases(self):
        self.assertEqual(sorted(RECORDS), sorted([*CASES, "versions"]))

    def test_initial_values_are_those_of_peft(self):
        """At any sharding: the digest is of all first matrices, in the order of the modules."""
        for name in CASES:
            with self.subTest(name):
                tensors, _ = harness.read_safetensors(self.pull(self.run_job(name, 3, *cases.STILL)))
                first = [raw for path, (_, _, raw) in tensors.items()
                         if path.endswith((".lora_A.weight", ".lora_embedding_B"))]
                self.assertEqual(len(first), RECORDS[name]["adapters"])
                self.assertEqual(lora_cases.digest(numpy.frombuffer(raw, "<f4") for raw in first),
                                 RECORDS[name]["initial"])
                for path, (_, _, raw) in tensors.items():
                    if path.endswith((".lora_B.weight", ".lora_embedding_A")):
                        self.assertFalse(any(raw), path)

    def test_plan_says_what_is_trained(self):
        for name, record in RECORDS.items():
            if name == "versions":
                continue
            plan = self.daemon.ctl("plan", *self.arguments(name, 2))
            self.assertEqual(plan.returncode, 0, plan.stderr)
            text = " ".join(plan.stdout.split())
            self.assertIn(f"LoRA adapts {record['adapters']} modules: ", text)
            self.assertIn(f"; {record['trained']} elements are trained, ", text)

    def test_losses(self):
        for name in CASES:
            expected = RECORDS[name]["losses"]
            ways = [(1,), (2,), (3, "fsdp.keep_frozen=true") if name == "llama" else (3,)]
            if name in lora_cases.FAMILIES:
                ways += lora_cases.STRATEGIES
            if name in lora_cases.GRAD_OP:
                ways.append((2, "fsdp.strategy=shard_grad_op"))
            for workers, *more in ways:
                with self.subTest(name, workers=workers, more=more):
                    found = self.daemon.losses(self.run_job(name, workers, *more))
                    self.assertEqual([step for step, _ in found], list(range(1, lora_cases.STEPS + 1)))
                    worst = max(abs(loss / e - 1) for (_, loss), e in zip(found, expected))
                    print(f"{name}, {workers} workers {' '.join(more)}: losses within {worst:.1e}")
                    self.assertLessEqual(worst, BOUND)

    def losses_of(self, *arguments):
        return [loss for _, loss in self.daemon.losses(self.run_job(*arguments))]

    def test_dropout(self):
        """The same elements are dropped whatever the number of workers, only in training, and others than
        without the adapters' dropout."""
        for name in lora_cases.FAMILIES:
            with self.subTest(name):
                batch = cases.IMAGES_OF_A_STEP if cases.is_picture(name) else cases.WINDOWS
                words = ["model.lora.dropout=0.5", "train.dropout=true", "train.max_steps=20", "optimizer.lr=0.01",
                         f"train.global_batch={batch}"]
                alone = self.losses_of(name, 1, *words)
                for workers, *more in ((2,), (3,)) if name == "gpt2" else ((3, *lora_cases.NO_SHARD),):
                    found = self.losses_of(name, workers, *words, *more)
                    worst = max(abs(a / b - 1) for a, b in zip(found, alone, strict=True))
                    print(f"{name}, with dropout, {workers} workers {' '.join(more)}: losses within {worst:.1e}")
                    self.assertLessEqual(worst, 1e-6)
                kept = self.losses_of(name, 1, *words, "train.dropout=false")
                self.assertGreater(max(abs(a - b) for a, b in zip(kept, alone)), 1e-4)
                if name == "gpt2":
                    self.assertEqual(kept[0], alone[0])  # the second matrix is 0

    def test_resumed_by_another_number_of_workers(self):
        job = self.run_job("llama", 3, "train.max_steps=20", "checkpoint.every_steps=20", "fsdp.keep_frozen=true")
        for change in ("model.lora.alpha=99", "model.lora.rank=2", "model.freeze=[lm_head.*]"):
            text = self.refused("resume", job, "--set", change, "--set", "train.max_steps=50")[0]
            self.assertRegex(text, change.partition("=")[0] + ": (cannot change when a job resumes|belongs to)")
        words = ["train.max_steps=50", "workers=2", "fsdp.keep_frozen=false", f"train.batch_size={cases.WINDOWS // 2}"]
        result = self.daemon.ctl("resume", job, *(word for one in words for word in ("--set", one)))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.daemon.wait_state(job, "SUCCEEDED", seconds=120)
        found = self.daemon.losses(job)
        self.assertEqual([step for step, _ in found], list(range(1, lora_cases.STEPS + 1)))
        worst = max(abs(loss / e - 1) for (_, loss), e in zip(found, RECORDS["llama"]["losses"]))
        self.assertLessEqual(worst, BOUND)

    def test_model_file(self):
        """Its adapters are trained, and its classifier; all else keeps its values."""
        with open(os.path.join(self.root, "net.yaml"), "w", encoding="utf-8") as file:
            file.write("name: Net\ninput: [1, 14, 14]\nclasses: 7\nmodules:\n  fc1: Linear(196, 24)\n"
                       "  fc2: Linear(24, 24)\n  classifier: Linear(24, 7)\nforward:\n  - x = flatten(x, 1)\n"
                       "  - x = relu(fc1(x))\n  - x = relu(fc2(x))\n  - output = classifier(x)\n"
                       "loss: cross_entropy(output, target)\n")
        words = ["model.file=net.yaml", "model.lora.rank=2", "train.max_steps=8", "optimizer.lr=0.01"]
        whole = ["--set", "model.lora.targets=[all-linear]"]
        losses, weights = [], []
        for workers, more in ((1, whole), (3, whole), (1, ["--set", "model.lora.targets=[fc1]", "--set",
                                                           "train.max_steps=1", "--set", "optimizer.lr=0"])):
            sets = [word for one in words for word in ("--set", one)]
            result = self.daemon.ctl("submit", os.path.join(self.root, "pictures.yaml"), *sets, *more, "--set",
                                     f"workers={workers}", "--set", f"train.batch_size={12 // workers}", "--wait",
                                     timeout=300)
            self.assertEqual(result.returncode, 0, result.stderr)
            job = self.daemon.json("list")[-1]["id"]
            losses.append([loss for _, loss in self.daemon.losses(job)])
            weights.append(self.arrays(self.pull(job)))
        self.assertLessEqual(max(abs(a / b - 1) for a, b in zip(*losses[:2])), 1e-6)
        trained, _, given = weights
        for path, values in trained.items():
            kept = path in ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")
            if path in given:
                self.assertEqual(numpy.array_equal(values, given[path]), kept, path)
        self.assertTrue(trained["fc2.lora_B.weight"].any())
        adapter = os.path.join(self.root, "net-adapter")
        result = self.daemon.ctl("pull", job, "-o", adapter, "--format", "peft")
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(os.path.join(adapter, "adapter_config.json"), encoding="utf-8") as file:
            config = json.load(file)
        self.assertEqual((config["target_modules"], config["modules_to_save"], config["base_model_name_or_path"]),
                         (["fc1"], ["classifier"], None))

    def refused(self, *arguments):
        """What standard error says, in one line, and the exit code."""
        result = self.daemon.ctl(*arguments)
        self.assertGreater(result.returncode, 0)
        return " ".join(result.stderr.split()), result.returncode

    def arrays(self, path):
        return {name: numpy.frombuffer(raw, "<f4").reshape(shape)
                for name, (_, shape, raw) in harness.read_safetensors(path)[0].items()}

    def test_pulled_directories(self):
        """Peft's names and configuration; merged, each matrix has its product added."""
        for name, expected in {
            "gpt2-all": {"r": 2, "lora_alpha": 3, "use_rslora": True, "fan_in_fan_out": True, "modules_to_save": None,
                         "task_type": "CAUSAL_LM", "target_modules": ["c_attn", "c_proj", "c_fc"]},
            "llama-layers": {"r": 5, "lora_alpha": 2.5, "fan_in_fan_out": False, "target_modules": [
                "model.layers.1.self_attn.q_proj", "model.layers.1.mlp.down_proj"]},
            "llama-embeddings": {"r": 3, "target_modules": ["embed_tokens", "q_proj"]},
            "bert-head": {"task_type": "SEQ_CLS", "target_modules": ["query", "value"],
                          "modules_to_save": ["classifier"], "base_model_name_or_path": "head/bert"},
        }.items():
            with self.subTest(name):
                job = self.run_job(name, 2, "train.max_steps=3", "optimizer.lr=0.05")
                whole, adapter = self.arrays(self.pull(job)), os.path.join(self.root, name + "-adapter")
                result = self.daemon.ctl("pull", job, "-o", adapter, "--format", "peft")
                self.assertEqual(result.returncode, 0, result.stderr)
                with open(os.path.join(adapter, "adapter_config.json"), encoding="utf-8") as file:
                    config = json.load(file)
                self.assertEqual({key: config[key] for key in expected}, expected)
                self.assertEqual(list(config), sorted(config))
                tensors = self.arrays(os.path.join(adapter, "adapter_model.safetensors"))
                embedding = "model.embed_tokens."  # peft has it in the file, and the matrix by tokens with a column each
                self.assertEqual(sorted(tensors), sorted(
                    f"base_model.model.{path}" for path in
                    [*whole, *[embedding + "base_layer.weight"] * (embedding + "lora_embedding_A" in whole)]
                    if "lora_" in path or path.startswith("classifier.") or "base_layer" in path))
                for path, values in tensors.items():
                    own = whole[path.removeprefix("base_model.model.").replace(".base_layer", "")]
                    self.assertTrue(numpy.array_equal(values.T if path.endswith("embedding_A") else values, own), path)
                merged = os.path.join(self.root, name + "-merged")
                result = self.daemon.ctl("pull", job, "-o", merged, "--format", "hf", "--merge")
                self.assertEqual(result.returncode, 0, result.stderr)
                found = self.arrays(os.path.join(merged, "model.safetensors"))
                self.assertEqual(sorted(found), sorted(RECORDS[name]["record"]["tensors"]))
                scale = config["lora_alpha"] / config["r"] ** (0.5 if config["use_rslora"] else 1)
                for path, values in found.items():
                    a, b = (whole.get(path.removesuffix("weight") + f"lora_{one}.weight") for one in "AB")
                    if path == embedding + "weight" and embedding + "lora_embedding_A" in whole:
                        b, a = whole[embedding + "lora_embedding_A"], whole[embedding + "lora_embedding_B"].T
                    sum_ = whole[path].astype("f8")
                    if a is not None:
                        product = scale * b.astype("f8") @ a.astype("f8")
                        self.assertGreater(numpy.abs(product).max(), 1e-3)
                        sum_ = sum_ + (product.T if config["fan_in_fan_out"] else product)
                    self.assertLessEqual(numpy.abs(values - sum_).max(), 2.0 ** -23 * numpy.abs(sum_).max(), path)
                proved = self.daemon.ctl("verify", job, merged)
                self.assertEqual(proved.returncode, 0, proved.stderr)
                self.assertIn("cannot be verified, yet", self.refused("verify", job, adapter)[0])

    def write_adapter(self, name, config=None, tensors=None):
        """A directory as peft wrote it; with changes of its configuration, which `None` removes, and of its
        tensors, by their names' ends."""
        record = ADAPTERS[name]
        values = lora_cases.draw_adapter(record["tensors"])
        for end, change in (tensors or {}).items():
            path = next(path for path in values if path.endswith(end))
            values[path] = change(values[path])
            if values[path] is None:
                del values[path]
        directory = os.path.join(self.data, "adapter-" + name)
        changed = {**record["config"], **(config or {})}
        numbers.write_checkpoint(directory, {"config": {k: v for k, v in changed.items() if v != "absent"}}, values)
        for old, new in (("config.json", "adapter_config.json"), ("model.safetensors", "adapter_model.safetensors")):
            os.rename(os.path.join(directory, old), os.path.join(directory, new))
        return values

    def test_adapters_of_peft_continue(self):
        """With peft's losses; what is pulled without a change is what was read, and continues likewise."""
        for name in lora_cases.ADAPTERS:
            given, expected = self.write_adapter(name), ADAPTERS[name]["losses"]
            steps = f"train.max_steps={lora_cases.ADAPTER_STEPS}"
            for workers, *more in ((1,), (2,), (3,), (2, "fsdp.strategy=no_shard")):
                with self.subTest(name, workers=workers, more=more):
                    found = self.losses_of("adapter-" + name, workers, steps, *more)
                    worst = max(abs(loss / e - 1) for loss, e in zip(found, expected, strict=True))
                    print(f"adapter {name}, {workers} workers {' '.join(more)}: losses within {worst:.1e}")
                    self.assertLessEqual(worst, BOUND)
            job = self.run_job("adapter-" + name, 2, *cases.STILL)
            shutil.rmtree(os.path.join(self.data, "adapter-" + name))
            out = os.path.join(self.data, "adapter-" + name)
            result = self.daemon.ctl("pull", job, "-o", out, "--format", "peft")
            self.assertEqual(result.returncode, 0, result.stderr)
            pulled = self.arrays(os.path.join(out, "adapter_model.safetensors"))
            self.assertEqual(sorted(pulled), sorted(given))
            for path, values in given.items():
                self.assertTrue(numpy.array_equal(pulled[path], values), path)
            again = self.losses_of("adapter-" + name, 1, steps)
            self.assertLessEqual(max(abs(a / b - 1) for a, b in zip(again, expected)), BOUND)

    def test_adapter_is_part_of_the_job(self):
        """The job has what the file says, and resumes from its checkpoint."""
        self.write_adapter("llama", {"use_newer": False, "fan_in_fan_out": True})
        words = self.arguments("adapter-llama", 2, "train.max_steps=6", "checkpoint.every_steps=6")
        plan = self.daemon.ctl("plan", *words)
        self.assertIn("adapter_config.json: use_newer is not known, and off", " ".join(plan.stdout.split()))
        job = self.run_job("adapter-llama", 2, "train.max_steps=6", "checkpoint.every_steps=6")
        shown = self.daemon.json("show", job)["spec"]["model"]["lora"]
        self.assertEqual((shown["rank"], shown["targets"], shown["layers"]), (4, ["absent", "down_proj", "q_proj"], ["1"]))
        self.assertEqual(shown["rankPattern"] if "rankPattern" in shown else shown["rank_pattern"],
                         [{"match": "down_proj", "value": 6}])
        result = self.daemon.ctl("resume", job, "--set", f"train.max_steps={lora_cases.ADAPTER_STEPS}")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.daemon.wait_state(job, "SUCCEEDED", seconds=120)
        worst = max(abs(loss / e - 1) for (_, loss), e in zip(self.daemon.losses(job), ADAPTERS["llama"]["losses"],
                                                             strict=True))
        self.assertLessEqual(worst, BOUND)

    def test_refusals_of_adapters(self):
        place = "adapter-llama/adapter_config.json: "
        rows = "layers.1.mlp.down_proj.lora_A.weight"
        for config, tensors, more, message in (
            ({"peft_type": "IA3"}, {}, (), place + 'peft_type: only "LORA" can be trained; found "IA3"'),
            ({"peft_type": "absent"}, {}, (), place + 'peft_type: is missing; expected "LORA"'),
            ({"use_dora": True}, {}, (), place + "use_dora: DoRA is not supported; found true"),
            ({"bias": "all"}, {}, (), place + 'bias: biases cannot be trained beside adapters; found "all"'),
            ({"init_lora_weights": "pissa"}, {}, (), "leave the model's own weights as they are; found \"pissa\""),
            ({"trainable_token_indices": [3]}, {}, (), place + "trainable_token_indices: single trained tokens"),
            ({"layer_replication": [[0, 1]]}, {}, (), place + "layer_replication: layers that are used twice"),
            ({"target_modules": ".*_proj"}, {}, (), place + "target_modules: a regular expression cannot be read"),
            ({"rank_pattern": {"(q|v)_proj": 2}}, {}, (), place + "rank_pattern: only names of modules can be read"),
            ({"wonder": {"on": 1}}, {}, (), place + 'wonder: the key is not known, and not off; found {"on":1}'),
            ({"r": 0}, {}, (), place + "r: expected an integer from 1 to 65536, found 0"),
            ({"lora_alpha": "8"}, {}, (), place + 'lora_alpha: expected a number from 1e-06 to 1000000, found "8"'),
            ({"lora_dropout": 1}, {}, (), place + "lora_dropout: expected a number from 0 and below 1, found 1"),
            ({"target_modules": ["nothing"]}, {}, (), "model.lora.targets: no Linear, Conv1D or Embedding module of "
                                                    "the model matches; there are embed_tokens, q_proj, k_proj"),
            ({"layers_to_transform": 9}, {}, (), "--set model.adapter=adapter-llama: model.adapter: model.lora.layers: no target "
                                                 "is in a layer '9'"),
            ({"r": 99}, {}, (), "model.lora.rank: expected an integer from 1 to 20"),
            ({"r": 5}, {}, (), "2 of another shape (base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight: "
                               "(4, 20), expected (5, 20)"),
            ({"layers_to_transform": "absent"}, {}, (), "missing (base_model.model.model.layers.0.self_attn.q_proj"),
            ({"target_modules": ["q_proj"]}, {}, (), "2 that the model does not have (base_model.model.model.layers.1"),
            ({}, {rows: lambda values: None}, (), "adapter_model.safetensors: tensors of the weights: 1 missing "
                                                  "(base_model.model.model." + rows + ")"),
            ({}, {rows: lambda values: values * numpy.float32("nan")}, ("train.max_steps=1",), "is NaN"),
            ({}, {}, ("model.lora.rank=3",), "model.lora.rank: is another one in adapter-llama/adapter_config.json"),
            ({}, {}, ("model.adapter=../llama",), "model.adapter: "),
            ({}, {}, ("model.adapter=llama",), "adapter_config.json"),
        ):
            with self.subTest(message):
                self.write_adapter("llama", config, tensors)
                verb = ("submit", "--wait") if "is NaN" in message else ("plan",)
                self.assertIn(message, self.refused(*verb, *self.arguments("adapter-llama", 1, *more))[0])
        large = (1 << 20) + 1
        os.truncate(os.path.join(self.data, "adapter-llama/adapter_config.json"), large)
        text, code = self.refused("plan", *self.arguments("adapter-llama", 1))
        self.assertIn(f"{place[:-2]} is larger than the {large - 1} bytes allowed", text)
        self.assertEqual(code, 1)  # it is no want of memory
        os.truncate(os.path.join(self.data, "adapter-llama/adapter_config.json"), 0)
        self.assertIn(place[:-2] + ":1: not JSON: ", self.refused("plan", *self.arguments("adapter-llama", 1))[0])

    def test_lying_headers_of_adapters(self):
        path = os.path.join(self.data, "adapter-llama/adapter_model.safetensors")
        for change, message in (
            (lambda raw: struct.pack("<Q", 2**60) + raw[8:],
             f"adapter_model.safetensors: safetensors: a header of {2**60} bytes in a file"),
            (lambda raw: raw[:-4], "ends at byte 2712 of the data, but the file has only 2708 bytes of it"),
            (lambda raw: raw[:8] + raw[8:].replace(b'"F32"', b'"F64"', 1),
             "its shape takes 640 bytes, its data_offsets give 320"),
        ):
            self.write_adapter("llama")
            with open(path, "rb") as file:
                raw = file.read()
            with open(path, "wb") as file:
                file.write(change(raw))
            with self.subTest(message):
                self.assertIn(message, self.refused("plan", *self.arguments("adapter-llama", 1))[0])

    def test_refusals_of_pull(self):
        job = self.run_job("llama", 1, *cases.STILL)
        out = os.path.join(self.root, "refused")
        self.assertEqual(self.refused("pull", job, "-o", out, "--format", "hf"), (
            f"fsdpctl: job {job} trains adapters (model.lora): --format peft writes these, and --format hf --merge the "
            "model with them added", 6))
        self.assertIn("--merge belongs to --format hf", self.refused("pull", job, "-o", out, "--merge")[0])
        tied = self.run_job("gpt2-embeddings", 1, *cases.STILL)
        self.assertIn("transformer.wte.weight and lm_head.weight share their memory, and only one of them has an adapter",
                      self.refused("pull", tied, "-o", out, "--format", "hf", "--merge")[0])
        words = [word for word in self.arguments("llama", 1, *cases.STILL) if not word.startswith("model.lora.")]
        words = [word for i, word in enumerate(words) if word != "--set" or words[i + 1:i + 2] not in ([], ["--set"])]
        result = self.daemon.ctl("submit", *words, "--wait", timeout=300)
        self.assertEqual(result.returncode, 0, result.stderr)
        plain = self.daemon.json("list")[-1]["id"]
        for options in (["--format", "peft"], ["--format", "hf", "--merge"]):
            text, code = self.refused("pull", plain, "-o", out, *options)
            self.assertEqual(code, 6)
            self.assertIn(f"job {plain} trains no adapters (model.lora)", text)
        self.assertFalse(os.path.exists(out))

    def test_refusals_of_jobs(self):
        for more, message in (
            (["model.lora.targets=[q_prj]"], "model.lora.targets: 'q_prj' matches no Linear, Conv1D or Embedding module "
                                             "of the model; did you mean 'q_proj'?"),
            (["model.lora.targets=[norm]"], "of the type RMSNorm; only Linear, Conv1D and Embedding can be adapted"),
            (["model.lora.rank=21"], "model.lora.rank: expected an integer from 1 to 20, the smaller side of "
                                     "model.layers.0.self_attn.q_proj"),
            (["model.lora.rank=0"], "model.lora.rank: expected an integer from 1 to 65536, found 0"),
        ):
            self.assertIn(message, self.refused("plan", *self.arguments("llama", 1, *more))[0])
        text = self.refused("plan", *self.arguments("vit", 1, "model.lora.targets=[]"))[0]
        self.assertIn("model.lora.targets: is missing, as PEFT has no default for this model", text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
