#!/usr/bin/env python3
"""Models of Hugging Face's transformers: directories in, directories out, and errors in them."""

import json
import os
import random
import shutil
import struct
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness

VOCABULARY = 257
CONFIGS = {
    "gpt2": {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 24, "n_layer": 2,
             "n_head": 3, "n_positions": 32, "vocab_size": VOCABULARY, "layer_norm_epsilon": 1e-05},
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32,
              "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
              "num_key_value_heads": 2, "max_position_embeddings": 64, "vocab_size": VOCABULARY,
              "rope_theta": 500000.0, "dtype": "bfloat16",
              "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "bert": {"architectures": ["BertForMaskedLM"], "model_type": "bert", "hidden_size": 24,
             "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2,
             "max_position_embeddings": 48, "vocab_size": VOCABULARY, "pad_token_id": 0},
}
LEFT_OUT = {"gpt2": "lm_head.weight", "llama": None, "bert": "cls.predictions.decoder.weight"}
JOB = """
name: tiny
model: {hf: gpt2}
data: {format: text, path: text.txt, context: 16}
train: {max_steps: 2, batch_size: 2, seed: 3, evaluate: false}
optimizer: {type: adamw, lr: 0.01, weight_decay: 0}
workers: 2
"""


def write_safetensors(path, tensors):
    """tensors: {name: (dtype, shape, bytes)}"""
    header, end = {}, 0
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(raw)]}
        end += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, raw in tensors.values():
            file.write(raw)


def read_directory(path):
    """All tensors, whichever file they are in, checked against the index."""
    index = os.path.join(path, "model.safetensors.index.json")
    if not os.path.exists(index):
        return harness.read_safetensors(os.path.join(path, "model.safetensors"))[0]
    with open(index) as file:
        index = json.load(file)
    tensors = {}
    for name in sorted(set(index["weight_map"].values())):
        of_file, metadata = harness.read_safetensors(os.path.join(path, name))
        assert metadata == {"format": "pt"}, metadata
        assert of_file.keys() == {t for t, f in index["weight_map"].items() if f == name}, name
        tensors.update(of_file)
    assert index["metadata"]["total_size"] == sum(len(raw) for _, _, raw in tensors.values())
    return tensors


def to_bf16(raw):
    """Rounded to nearest, ties to even: 32-bit words to 16-bit words."""
    words = struct.unpack(f"<{len(raw) // 4}I", raw)
    return struct.pack(f"<{len(words)}H", *((word + 0x7fff + (word >> 16 & 1)) >> 16 & 0xffff
                                            for word in words))


def from_bf16(raw):
    return b"".join(b"\0\0" + raw[i:i + 2] for i in range(0, len(raw), 2))


class HuggingFace(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp(prefix="fsdpd-test-")
        cls.addClassCleanup(shutil.rmtree, cls.root, True)
        cls.data = os.path.join(cls.root, "data")
        os.mkdir(cls.data)
        letters = random.Random(5)
        with open(os.path.join(cls.data, "text.txt"), "w") as file:
            file.write("".join(letters.choice("etaoin shrdlu\n") for _ in range(4000)))
        for name, config in CONFIGS.items():
            cls.make(name, config)
        cls.job = os.path.join(cls.root, "job.yaml")
        with open(cls.job, "w") as file:
            file.write(JOB)
        cls.daemon = harness.Daemon(data=cls.data)

    @classmethod
    def tearDownClass(cls):
        cls.daemon.close()

    @classmethod
    def make(cls, name, config, tensors=None):
        """Creates a directory below the data root."""
        path = os.path.join(cls.data, name)
        os.makedirs(path, exist_ok=True)
        with open(os.path.join(path, "config.json"), "w") as file:
            json.dump(config, file)
        if tensors is not None:
            write_safetensors(os.path.join(path, "model.safetensors"), tensors)
        return path

    def out(self, name):
        return os.path.join(self.data, f"{self.id().rsplit('.', 1)[1]}-{name}")

    def submit(self, *settings, code=0):
        arguments = [word for setting in settings for word in ("--set", setting)]
        result = self.daemon.ctl("submit", self.job, "--wait", *arguments, timeout=300)
        self.assertEqual(result.returncode, code, result.stderr)
        return self.daemon.json("list")[-1]["id"] if code == 0 else result.stderr

    def pull(self, job, path, *arguments):
        result = self.daemon.ctl("pull", job, "--format", "hf", "-o", path, *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return read_directory(path)

    def keep(self, path, *settings):
        """Runs a job that starts with these weights and changes none of them."""
        return self.submit(f"model.hf={path}", "optimizer.lr=0", "train.max_steps=1", *settings)

    def settings_of(self, name):
        if name != "bert":
            return [f"model.hf={name}"]
        return ["model.hf=bert", "data.objective=masked", "data.mask_token=256"]

    def test_ignored_frozen_and_untied(self):
        """A head of its own is kept, and untied when pulled; what is frozen keeps its values; what
        the model does not have is left out by a pattern."""
        first = os.path.join(self.data, "first")
        tensors = self.pull(self.submit("model.hf=gpt2"), first)
        word = "transformer.wte.weight"
        dtype, shape, raw = tensors[word]
        tensors["lm_head.weight"] = (dtype, shape, bytes(4) + raw[4:])
        tensors["v_head.weight"] = (dtype, [1], bytes(4))
        self.make("untied", CONFIGS["gpt2"], tensors)
        error = self.submit("model.hf=untied", code=1)
        self.assertIn("1 that the model does not have (v_head.weight); model.ignore", error)
        job = self.submit("model.hf=untied", "model.ignore=[v_head.*]",
                          f"model.freeze=[{word}, 'transformer.h.0.*']")
        notes = json.dumps(self.daemon.json("show", job))
        self.assertIn("the weights have a lm_head.weight of its own", notes)
        self.assertIn("1 tensor that model.ignore leaves out: v_head.weight", notes)
        self.assertIn("elements are frozen", notes)
        pulled = self.pull(job, self.out("pulled"))
        for name, tensor in tensors.items():
            if name == word or name.startswith("transformer.h.0."):
                self.assertEqual(pulled[name], tensor, name)
        self.assertNotEqual(pulled["lm_head.weight"], tensors["lm_head.weight"])
        with open(os.path.join(self.out("pulled"), "config.json")) as file:
            self.assertIs(json.load(file)["tie_word_embeddings"], False)

    def test_frozen_memory(self):
        """The plan says what freezing saves, and has that much less."""
        frozen = 24 * VOCABULARY + 12 * 24 * 24 + 13 * 24  # the word embedding and a block
        for optimizer, values, size in (("adamw", 2, "107 kB"), ("lion", 1, "53.6 kB"), ("sgd", 0, "0 B")):
            plans = []
            for freeze in ([], ["--set", "model.freeze=[transformer.wte.weight, 'transformer.h.0.*']"]):
                planned = self.daemon.ctl("plan", self.job, "--set", f"optimizer.type={optimizer}", *freeze, "-o", "json")
                self.assertEqual(planned.returncode, 0, planned.stderr)
                plans.append(json.loads(planned.stdout))
            state = [sum(int(part["bytes"]) for part in plan["memory"] if part["name"] == "optimizer state")
                     for plan in plans]
            saved = 2 * (state[0] - state[1])  # on two ranks, whose shards are padded
            self.assertLess(abs(saved - 4 * values * frozen), 2048)
            self.assertNotIn("frozen", " ".join(plans[0]["notes"]))
            self.assertIn(f"{frozen} of 21432 elements are frozen: 53.6 kB of gradients and {size} of optimizer state",
                          " ".join(plans[1]["notes"]))
            self.assertLess(int(plans[1]["peak_bytes"]), int(plans[0]["peak_bytes"]))

    def test_pulled_and_loaded_again(self):
        """Trained, pulled, loaded by a job that changes nothing, pulled: bit for bit the same."""
        for name, config in CONFIGS.items():
            with self.subTest(name):
                settings = self.settings_of(name)
                job = self.submit(*settings)
                plain = os.path.join(self.root, "plain.safetensors")
                self.assertEqual(self.daemon.ctl("pull", job, "-o", plain).returncode, 0)
                whole, _ = harness.read_safetensors(plain)
                first = self.pull(job, self.out(f"{name}-1"))
                names = {name: "cls.predictions.bias" if name == "cls.predictions.decoder.bias"
                         else name for name in whole}
                left_out = LEFT_OUT[name]
                self.assertEqual({names[t] for t in whole} - {left_out}, set(first))
                for tensor, value in whole.items():
                    if tensor != left_out:
                        self.assertEqual(first[names[tensor]], value, tensor)
                with open(os.path.join(self.out(f"{name}-1"), "config.json")) as file:
                    exported = json.load(file)
                wanted = dict(config)
                wanted["dtype" if "dtype" in config else "torch_dtype"] = "float32"
                if "rope_scaling" in config:  # in the spelling of version 5, too
                    wanted["rope_parameters"] = dict(config["rope_scaling"],
                                                     rope_theta=config["rope_theta"])
                self.assertEqual(exported, wanted)

                rest = settings[1:]
                for turn, options in enumerate((
                        ["--max-shard-size", "9KB"], [], ["--dtype", "bf16"])):
                    strategy = ("full_shard", "no_shard", "shard_grad_op")[turn]
                    job = self.keep(self.out(f"{name}-1"), f"workers={1 + turn % 2}",
                                    f"fsdp.strategy={strategy}", *rest)
                    again = self.pull(job, self.out(f"{name}-2-{turn}"), *options)
                    if "--dtype" not in options:
                        self.assertEqual(again, first)
                        continue
                    self.assertEqual(again, {tensor: ("BF16", shape, to_bf16(raw))
                                             for tensor, (_, shape, raw) in first.items()})
                files = os.listdir(self.out(f"{name}-2-0"))
                self.assertIn("model.safetensors.index.json", files)
                self.assertGreater(len(files), 4)
                self.assertEqual(sorted(os.listdir(self.out(f"{name}-2-1"))),
                                 ["config.json", "model.safetensors"])

                # fsdpd reads the sharded directory and the rounded one, too
                job = self.keep(self.out(f"{name}-2-0"), *rest)
                self.assertEqual(self.pull(job, self.out(f"{name}-3")), first)
                job = self.keep(self.out(f"{name}-2-2"), *rest)
                self.assertEqual(self.pull(job, self.out(f"{name}-4")),
                                 {tensor: ("F32", shape, from_bf16(to_bf16(raw)))
                                  for tensor, (_, shape, raw) in first.items()})

    def test_tied_or_not(self):
        for name in ("gpt2", "llama"):
            tied = name != "gpt2"
            self.make(f"other-{name}", dict(CONFIGS[name], tie_word_embeddings=tied))
            job = self.submit(f"model.hf=other-{name}")
            tensors = self.pull(job, self.out(name))
            self.assertEqual("lm_head.weight" in tensors, not tied)
            self.assertEqual(self.pull(self.keep(self.out(name)), self.out(name + "2")), tensors)

    def test_weights_beside_the_model(self):
        """model.weights overrides the directory's weights: a plain pull, and a file of
        transformers."""
        job = self.submit("model.hf=gpt2")
        first = self.pull(job, self.out("1"))
        self.make("others", CONFIGS["gpt2"], {name: (dtype, shape, bytes(len(raw)))
                                              for name, (dtype, shape, raw) in first.items()})
        plain = self.out("plain.safetensors")
        self.assertEqual(self.daemon.ctl("pull", job, "-o", plain).returncode, 0)
        for turn, path in enumerate((plain, os.path.join(self.out("1"), "model.safetensors"))):
            again = self.keep("others", f"model.weights={path}")
            self.assertEqual(self.pull(again, self.out(f"2-{turn}")), first)

    def test_names_of_the_bare_model(self):
        """Names as GPT2Model and BertModel write them, with buffers, old names and another head."""
        first = self.pull(self.submit("model.hf=gpt2"), self.out("1"))
        bare = {name.removeprefix("transformer."): value for name, value in first.items()}
        bare["h.0.attn.bias"] = ("U8", [1, 1, 4, 4], bytes(16))
        self.make("bare-gpt2", dict(CONFIGS["gpt2"], architectures=["GPT2Model"]), bare)
        job = self.keep("bare-gpt2")
        self.assertEqual(self.pull(job, self.out("2")), first)
        with open(os.path.join(self.out("2"), "config.json")) as file:
            self.assertEqual(json.load(file)["architectures"], ["GPT2LMHeadModel"])

        masked = self.settings_of("bert")[1:]
        first = self.pull(self.submit(*self.settings_of("bert")), self.out("3"))
        old = {name.removeprefix("bert.").replace("LayerNorm.weight", "LayerNorm.gamma")
               .replace("LayerNorm.bias", "LayerNorm.beta"): value for name, value in first.items()}
        old["pooler.dense.bias"] = ("F32", [24], bytes(96))
        self.make("old-bert", CONFIGS["bert"], old)
        job = self.keep("old-bert", *masked)
        self.assertEqual(self.pull(job, self.out("4")), first)
        notes = self.daemon.show(job)["plan"]["notes"]
        self.assertIn("the weights have 1 tensor of another head, which are left out: "
                      "pooler.dense.bias", notes)

    def test_initial_values(self):
        """Without weights: the architecture's own initial values."""
        tensors = self.pull(self.submit("model.hf=gpt2", "optimizer.lr=0", "train.max_steps=1"),
                            self.out("1"))
        ones = struct.pack("<24f", *[1] * 24)
        self.assertEqual(tensors["transformer.h.1.ln_2.weight"][2], ones)
        self.assertEqual(tensors["transformer.h.1.attn.c_attn.bias"][2], bytes(72 * 4))
        for name, deviation in (("transformer.wte.weight", 0.02),
                                ("transformer.h.0.mlp.c_proj.weight", 0.01)):
            raw = tensors[name][2]
            values = struct.unpack(f"<{len(raw) // 4}f", raw)
            spread = (sum(value * value for value in values) / len(values)) ** 0.5
            self.assertAlmostEqual(spread / deviation, 1, delta=0.1, msg=name)
        tensors = self.pull(self.submit(*self.settings_of("bert"), "optimizer.lr=0",
                                        "train.max_steps=1"), self.out("2"))
        name = "bert.embeddings.word_embeddings.weight"
        self.assertEqual(tensors[name][2][:96], bytes(96)) # the padding's row
        self.assertNotEqual(tensors[name][2][96:192], bytes(96))

    def test_the_configuration_stays(self):
        """A job keeps the configuration that it was planned with."""
        path = self.make("changing", CONFIGS["gpt2"])
        job = self.submit("model.hf=changing")
        shown = self.daemon.show(job)["spec"]["model"]
        self.assertEqual(json.loads(shown["hf_config"]), CONFIGS["gpt2"])
        self.assertIn("name: GPT2LMHeadModel", shown["text"].splitlines())
        self.assertEqual(self.daemon.json("list")[-1]["spec"]["model"]["hf_config"], "")
        self.beside(path, job)
        shutil.rmtree(path)
        self.pull(job, self.out("1"))

    def beside(self, path, job):
        """A pull copies the tokenizer's files beside the weights, also of a job that began with this one's weights; no
        others, and none from outside of the data roots. Without any it says so."""
        def pull(job, name):
            result = self.daemon.ctl("pull", job, "--format", "hf", "-o", self.out(name))
            self.assertEqual(result.returncode, 0, result.stderr)
            files = {os.path.relpath(os.path.join(place, file), self.out(name))
                     for place, _, files in os.walk(self.out(name)) for file in files}
            return files - {"config.json", "model.safetensors"}, result.stderr

        files, note = pull(job, "without")
        self.assertEqual(files, set())
        self.assertIn("changing, the model of " + job + ", has no tokenizer's files", note)
        wanted = {"tokenizer.json": random.Random(3).randbytes(2500000), "generation_config.json": b"{}", "vocab.txt": b"",
                  "additional_chat_templates/tools.jinja": b"{{ messages }}"}
        os.mkdir(os.path.join(path, "additional_chat_templates"))
        for name, content in dict(wanted, **{"notes.txt": b"-", "additional_chat_templates/.x.jinja": b"-"}).items():
            with open(os.path.join(path, name), "wb") as file:
                file.write(content)
        later = self.keep("gpt2", f"model.weights.job={job}")
        for turn, of in enumerate((job, later)):
            files, note = pull(of, f"with-{turn}")
            self.assertEqual((files, note), (set(wanted), ""))
            for name, content in wanted.items():
                with open(os.path.join(self.out(f"with-{turn}"), name), "rb") as file:
                    self.assertEqual(file.read(), content, name)
        os.symlink("/etc/hostname", os.path.join(path, "merges.txt"))
        files, note = pull(job, "outside")
        self.assertEqual(files, set())
        self.assertIn("the tokenizer's files were not copied: model.hf: ", note)
        self.assertIn("outside", note)

    def test_running(self):
        """A running job gives its weights, changes its units, and gives its weights again."""
        result = self.daemon.ctl("submit", self.job, "--set", "train.max_steps=1000000")
        self.assertEqual(result.returncode, 0, result.stderr)
        job = result.stdout.strip()
        self.daemon.wait_step(job, 2)
        shapes = {name: shape for name, (_, shape, _) in self.pull(job, self.out("1")).items()}
        self.assertEqual(len(self.daemon.show(job)["units"]), 3) # the blocks, and the root
        changed = self.daemon.ctl("wrap", "set", job, "--policy", "none")
        self.assertEqual(changed.returncode, 0, changed.stderr)
        self.assertEqual(len(self.daemon.show(job)["units"]), 1)
        again = self.pull(job, self.out("2"), "--max-shard-size", "20KB")
        self.assertEqual({name: shape for name, (_, shape, _) in again.items()}, shapes)
        self.assertEqual(self.daemon.ctl("cancel", job).returncode, 0)
        self.daemon.wait_state(job, "CANCELLED")

    def test_restarted(self):
        """The files kept with a job suffice, also for another fsdpd."""
        root = tempfile.mkdtemp(prefix="fsdpd-test-")
        self.addCleanup(shutil.rmtree, root, True)
        with harness.Daemon(workers=1, data=self.data, root=root) as daemon:
            result = daemon.ctl("submit", self.job, "--wait", "--set", "workers=1", "--id", "kept")
            self.assertEqual(result.returncode, 0, result.stderr)
        with harness.Daemon(workers=1, data=self.data, root=root) as daemon:
            result = daemon.ctl("pull", "kept", "--format", "hf", "-o", self.out("1"))
            self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("transformer.wte.weight", read_directory(self.out("1")))

    def test_submitted_again(self):
        arguments = ("submit", self.job, "--id", "again-1", "--set", "train.max_steps=1")
        for _ in range(2):
            self.assertEqual(self.daemon.ctl(*arguments, "--wait").returncode, 0)
        other = self.daemon.ctl(*arguments, "--set", "model.hf=llama")
        self.assertEqual(other.returncode, harness.CONFLICT, other.stderr)

    def refuse(self, words, *settings, code=harness.FAILED):
        error = self.submit(*settings, code=code)
        self.assertIn(words, error)
        self.assertEqual(error.count("\n"), 1, error)

    def test_refused(self):
        before = len(self.daemon.json("list"))
        self.make("rwkv", dict(CONFIGS["llama"], model_type="rwkv"))
        self.refuse("rwkv/config.json: model_type: 'rwkv' is not supported; albert, arcee, bert, ",
                    "model.hf=rwkv")
        self.make("longrope", dict(CONFIGS["llama"], rope_scaling={"type": "longrope", "factor": 2}))
        self.refuse("longrope/config.json: rope_scaling.type: 'longrope' is not supported",
                    "model.hf=longrope")
        self.make("heads", dict(CONFIGS["gpt2"], n_head=5))
        self.refuse("n_head: expected a divisor of n_embd (24), found 5", "model.hf=heads")
        self.refuse("nowhere", "model.hf=nowhere", code=harness.NOT_FOUND)
        self.refuse("is outside the root", "model.hf=/etc", code=harness.NOT_PERMITTED)
        self.refuse("is not a directory", "model.hf=text.txt")
        os.makedirs(os.path.join(self.data, "empty"), exist_ok=True)
        self.refuse("config.json", "model.hf=empty", code=harness.NOT_FOUND)
        os.symlink("/etc/passwd", os.path.join(self.data, "empty/config.json"))
        self.refuse("is outside the root", "model.hf=empty", code=harness.NOT_PERMITTED)
        self.assertEqual(len(self.daemon.json("list")), before)

    def test_refused_weights(self):
        first = self.pull(self.submit("model.hf=gpt2"), self.out("1"))
        wrong = dict(first)
        del wrong["transformer.ln_f.bias"]
        wrong["transformer.h.2.ln_1.weight"] = ("F32", [24], bytes(96))
        dtype, _, raw = wrong["transformer.wpe.weight"]
        wrong["transformer.wpe.weight"] = (dtype, [24, 32], raw)
        path = self.make("wrong", CONFIGS["gpt2"], wrong)
        self.refuse("1 missing (transformer.ln_f.bias); 1 that the model does not have "
                    "(transformer.h.2.ln_1.weight); 1 of another shape (transformer.wpe.weight: "
                    "(24, 32), expected (32, 24))", "model.hf=wrong")
        file = os.path.join(path, "model.safetensors")
        os.truncate(file, os.path.getsize(file) - 100)
        self.refuse("model.safetensors: safetensors:", "model.hf=wrong")
        os.unlink(file)
        os.symlink(os.path.join(self.root, "job.yaml"), file)
        self.refuse("is outside the root", "model.hf=wrong", code=harness.NOT_PERMITTED)

    def test_pull_refused(self):
        path = os.path.join(self.root, "net.yaml")
        with open(path, "w") as file:
            file.write("name: Net\ninput: tokens\nvocabulary: 256\ncontext: 32\n"
                       "modules:\n  a: Embedding(256, 8)\n  b: Linear(8, 256)\n"
                       "forward:\n  - output = b(a(x))\nloss: cross_entropy(output, target)\n")
        job = self.submit(f"model.file={path}")
        result = self.daemon.ctl("pull", job, "--format", "hf", "-o", self.out("1"))
        self.assertEqual(result.returncode, harness.CONFLICT)
        self.assertIn("does not have a model of Hugging Face's transformers", result.stderr)
        self.assertFalse(os.path.exists(self.out("1")))
        # another dtype is possible
        plain, half = self.out("plain"), self.out("half")
        for arguments in ((plain,), (half, "--dtype", "bf16")):
            result = self.daemon.ctl("pull", job, "-o", *arguments)
            self.assertEqual(result.returncode, 0, result.stderr)
        whole, metadata = harness.read_safetensors(plain)
        rounded, rounded_metadata = harness.read_safetensors(half)
        self.assertEqual(rounded, {name: ("BF16", shape, to_bf16(raw))
                                   for name, (_, shape, raw) in whole.items()})
        self.assertEqual(rounded_metadata, metadata)

        job = self.submit("model.hf=gpt2")
        for words, arguments in (
                ("is not empty; expected a new directory", (self.data, "--format", "hf")),
                ("expected -o DIR", ("--format", "hf")),
                ("--dtype: expected f32 or bf16, found 'f16'", (path, "--dtype", "f16")),
                ("--format: expected safetensors, hf or peft", (path, "--format", "pt")),
                ("--max-shard-size: expected bytes", (path, "--max-shard-size", "5 GB")),
                ("belongs to --format hf", (path, "--max-shard-size", "5GB"))):
            output = ["-o"] if not arguments[0].startswith("--") else []
            result = self.daemon.ctl("pull", job, *output, *arguments)
            self.assertEqual(result.returncode, harness.USAGE, result.stderr)
            self.assertIn(words, result.stderr)

    def test_families_of_ones_own(self):
        """A directory of family files adds to those installed with fsdpd, and a job keeps its own
        copy."""
        root = tempfile.mkdtemp(prefix="fsdpd-test-")
        self.addCleanup(shutil.rmtree, root, True)
        families = os.path.join(root, "families")
        os.mkdir(families)
        with open(os.path.join(harness.SOURCE, "families", "llama.yaml")) as file:
            text = file.read()
        file_name = os.path.join(families, "mine.yaml")
        with open(file_name, "w") as file:
            file.write(text.replace("name: llama\n", "name: mine\n")
                       .replace("model_type: llama", "model_type: mine")
                       .replace("LlamaForCausalLM", "MyForCausalLM"))
        self.make("mine", dict(CONFIGS["llama"], model_type="mine",
                               architectures=["MyForCausalLM"]))
        self.refuse("model_type: 'mine' is not supported", "model.hf=mine")
        with harness.Daemon(workers=1, data=self.data, root=root,
                            arguments=("--families", families)) as daemon:
            submit = ("submit", self.job, "--wait", "--set", "workers=1", "--set", "model.hf=mine")
            result = daemon.ctl(*submit, "--id", "own", timeout=300)
            self.assertEqual(result.returncode, 0, result.stderr)
            listed = {family["path"]: family for family in daemon.json("families")}
            self.assertEqual(list(listed)[0], file_name)
            self.assertEqual(listed[file_name]["model_types"], ["mine"])
            self.assertEqual(listed[file_name]["architectures"][0], "MyForCausalLM")
            self.assertIn("hidden_size", listed[file_name]["keys"])
            self.assertIn("gpt2", [family["name"] for family in listed.values()])
            os.unlink(file_name)
            result = daemon.ctl("pull", "own", "--format", "hf", "-o", self.out("1"))
            self.assertEqual(result.returncode, 0, result.stderr)
            with open(os.path.join(self.out("1"), "config.json")) as file:
                self.assertEqual(json.load(file)["architectures"], ["MyForCausalLM"])
            self.assertIn("lm_head.weight", read_directory(self.out("1")))
            with open(file_name, "w") as file:
                file.write("name: mine\nmodel_type: [mine\n")
            result = daemon.ctl(*submit, "--id", "other", timeout=300)
            self.assertEqual(result.returncode, harness.FAILED, result.stderr)
            self.assertIn("mine.yaml:", result.stderr)
            result = daemon.ctl("families")
            self.assertEqual(result.returncode, 0, result.stderr)
            lines = result.stdout.splitlines()
            self.assertTrue(lines[-1].startswith(f"cannot be used: {file_name}:"), lines[-1])
            self.assertTrue(any(line.startswith("gpt2 ") and "GPT2LMHeadModel" in line
                                for line in lines), result.stdout)

    def test_offline_plan(self):
        import subprocess
        command = [harness.FSDPD, "plan", self.job, "--data-root", self.data]
        result = subprocess.run(command, text=True, capture_output=True, timeout=harness.PATIENCE)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("(_fsdp_wrapped_module): GPT2LMHeadModel(", result.stdout)
        self.assertIn("there are no weights in model.hf: initial values are drawn", result.stdout)
        # possible without the data, but not without the model
        result = subprocess.run([*command, "--set", "data.path=nowhere"], text=True,
                                capture_output=True, timeout=harness.PATIENCE)
        self.assertEqual(result.returncode, 0, result.stderr)
        result = subprocess.run([*command, "--set", "model.hf=nowhere"], text=True,
                                capture_output=True, timeout=harness.PATIENCE)
        self.assertEqual(result.returncode, harness.NOT_FOUND, result.stderr)
        self.assertIn("model.hf", result.stderr)


if __name__ == "__main__":
    harness.main()
