#!/usr/bin/env python3
"""Every family of families/ against transformers: a tiny model with odd sizes of its own
configuration class, saved by transformers and read like a job's. Logits and all gradients, with
both libraries of kernels; a round trip through a job: from_pretrained() finds every tensor, with
the same values; and the losses of AdamW steps on one to three workers. Needs a transformers with
its torch, which need not be the system's: run it with that Python."""

import filecmp
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../system"))
import harness

SOURCE, BUILD = os.environ.get("srcdir", "."), os.environ.get("builddir", ".")

try:
    import numpy
    import torch
    from torch.nn import functional as F
    from safetensors.torch import load_file
    import transformers
except ImportError as missing:
    print("SKIP: transformers is not installed:", missing)
    sys.exit(77)

VOCABULARY, CONTEXT, BATCH, PADDING = 61, 23, 4, 3
BOUND = 1e-5  # of the largest element

DECODER = dict(vocab_size=VOCABULARY, hidden_size=20, intermediate_size=37, num_hidden_layers=2,
               num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=CONTEXT,
               pad_token_id=None, bos_token_id=None, eos_token_id=None)
ENCODER = dict(vocab_size=VOCABULARY, hidden_size=24, intermediate_size=39, num_hidden_layers=2,
               num_attention_heads=3, max_position_embeddings=CONTEXT, hidden_dropout_prob=0.0,
               attention_probs_dropout_prob=0.0, pad_token_id=PADDING)
# the first position is that of padding plus 1
ROBERTA = dict(ENCODER, max_position_embeddings=CONTEXT + PADDING + 1, bos_token_id=0,
               eos_token_id=2)
MODERN = dict(vocab_size=VOCABULARY, hidden_size=24, intermediate_size=39, num_hidden_layers=3,
              num_attention_heads=3, max_position_embeddings=CONTEXT, local_attention=8,
              global_attn_every_n_layers=2, pad_token_id=PADDING, bos_token_id=None,
              eos_token_id=None, cls_token_id=None, sep_token_id=None)
NEOX = dict(vocab_size=VOCABULARY, hidden_size=48, intermediate_size=39, num_hidden_layers=2,
            num_attention_heads=3, max_position_embeddings=CONTEXT, bos_token_id=None,
            eos_token_id=None)

OPT = dict(vocab_size=VOCABULARY, hidden_size=24, ffn_dim=39, num_hidden_layers=2, dropout=0.0,
           num_attention_heads=3, max_position_embeddings=CONTEXT, pad_token_id=PADDING,
           bos_token_id=None, eos_token_id=None)

# name, or name and variant: the model's class, its configuration
FAMILIES = {
    "gpt2": ("GPT2LMHeadModel", dict(
        vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=24, n_layer=2, n_head=3, n_inner=50,
        embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0)),
    "llama": ("LlamaForCausalLM", dict(DECODER, head_dim=16, attention_bias=True)),
    "llama-scaled": ("LlamaForCausalLM", dict(
        DECODER, head_dim=16, tie_word_embeddings=True, rope_parameters={
            "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 16})),
    "llama-yarn": ("LlamaForCausalLM", dict(
        DECODER, head_dim=16, rope_parameters={
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 2.0,
            "beta_slow": 0.5, "original_max_position_embeddings": 9})),
    "llama-mscale": ("LlamaForCausalLM", dict(
        DECODER, head_dim=16, rope_parameters={
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "mscale": 1.5,
            "mscale_all_dim": 0.6, "original_max_position_embeddings": 9})),
    "llama-dynamic": ("LlamaForCausalLM", dict(
        DECODER, head_dim=16, rope_parameters={
            "rope_type": "dynamic", "rope_theta": 1000.0, "factor": 4.0})),
    "mistral": ("MistralForCausalLM", dict(DECODER, head_dim=6, sliding_window=None)),
    "mistral-window": ("MistralForCausalLM", dict(DECODER, head_dim=6, sliding_window=7)),
    "qwen2": ("Qwen2ForCausalLM", dict(DECODER, hidden_size=24)),
    "qwen2-tied": ("Qwen2ForCausalLM", dict(DECODER, hidden_size=24, tie_word_embeddings=True)),
    "qwen2-window": ("Qwen2ForCausalLM", dict(
        DECODER, hidden_size=24, use_sliding_window=True, sliding_window=5, max_window_layers=1)),
    "qwen3": ("Qwen3ForCausalLM", dict(DECODER, head_dim=6)),
    "qwen3-yarn": ("Qwen3ForCausalLM", dict(
        DECODER, head_dim=16, rope_parameters={
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "attention_factor": 1.5,
            "original_max_position_embeddings": 6})),
    "qwen3-window": ("Qwen3ForCausalLM", dict(
        DECODER, head_dim=6, attention_bias=True, tie_word_embeddings=True,
        use_sliding_window=True, sliding_window=5,
        layer_types=["sliding_attention", "full_attention"])),
    "gemma": ("GemmaForCausalLM", dict(DECODER, head_dim=6, hidden_act="gelu")),
    "gemma2": ("Gemma2ForCausalLM", dict(
        DECODER, head_dim=6, sliding_window=7, query_pre_attn_scalar=9,
        attn_logit_softcapping=1.5, final_logit_softcapping=3.0)),
    "gemma2-plain": ("Gemma2ForCausalLM", dict(
        DECODER, head_dim=6, num_hidden_layers=1, attn_logit_softcapping=None,
        final_logit_softcapping=None, layer_types=["full_attention"], pad_token_id=2)),
    "gemma3_text": ("Gemma3ForCausalLM", dict(
        DECODER, head_dim=6, num_hidden_layers=3, sliding_window=5, query_pre_attn_scalar=5,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={
            "full_attention": {"rope_type": "linear", "rope_theta": 100000.0, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0}})),
    "phi3": ("Phi3ForCausalLM", dict(DECODER, hidden_size=24)),
    "phi3-partial": ("Phi3ForCausalLM", dict(
        DECODER, hidden_size=32, sliding_window=6, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0,
                         "partial_rotary_factor": 0.75})),
    "phi3-longrope": ("Phi3ForCausalLM", dict(
        DECODER, hidden_size=32, original_max_position_embeddings=9, rope_parameters={
            "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
            "short_factor": [1.0, 1.1, 1.5], "long_factor": [1.0, 2.5, 7]})),
    "phi3-short": ("Phi3ForCausalLM", dict(
        DECODER, hidden_size=24, original_max_position_embeddings=CONTEXT, rope_parameters={
            "rope_type": "longrope", "rope_theta": 500.0, "attention_factor": 1.3, "factor": 4.0,
            "short_factor": [1.25, 3.0, 0.5], "long_factor": [9.0, 9.5, 9.9]})),
    "granite": ("GraniteForCausalLM", dict(
        DECODER, hidden_size=24, embedding_multiplier=3.0, logits_scaling=2.5,
        residual_multiplier=0.4, attention_multiplier=0.3, mlp_bias=True)),
    "stablelm": ("StableLmForCausalLM", dict(DECODER, hidden_size=32, use_qkv_bias=True)),
    "stablelm-parallel": ("StableLmForCausalLM", dict(
        DECODER, hidden_size=32, use_parallel_residual=True, rope_parameters={
            "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5})),
    "stablelm-norms": ("StableLmForCausalLM", dict(DECODER, hidden_size=32, qk_layernorm=True)),
    "phi": ("PhiForCausalLM", dict(DECODER, hidden_size=32)),
    "phi-norms": ("PhiForCausalLM", dict(
        DECODER, hidden_size=32, qk_layernorm=True, tie_word_embeddings=True, hidden_act="relu",
        rope_parameters={"rope_type": "default", "rope_theta": 500.0,
                         "partial_rotary_factor": 0.75})),
    "gpt_neox": ("GPTNeoXForCausalLM", dict(NEOX)),
    "gpt_neox-serial": ("GPTNeoXForCausalLM", dict(
        NEOX, use_parallel_residual=False, attention_bias=False, tie_word_embeddings=True)),
    "olmo2": ("Olmo2ForCausalLM", dict(DECODER, hidden_size=24)),
    "olmo": ("OlmoForCausalLM", dict(DECODER, hidden_size=24)),
    "smollm3": ("SmolLM3ForCausalLM", dict(DECODER, hidden_size=24, num_hidden_layers=3,
                                           no_rope_layers=[1, 0, 1])),
    "smollm3-window": ("SmolLM3ForCausalLM", dict(
        DECODER, hidden_size=24, num_hidden_layers=3, no_rope_layer_interval=2,
        use_sliding_window=True, sliding_window=6)),
    "arcee": ("ArceeForCausalLM", dict(DECODER, hidden_size=24, head_dim=6, mlp_bias=True)),
    "exaone4": ("Exaone4ForCausalLM", dict(
        DECODER, head_dim=6, num_hidden_layers=3, sliding_window=6, sliding_window_pattern=2)),
    "exaone4-full": ("Exaone4ForCausalLM", dict(
        DECODER, head_dim=6, sliding_window=None, sliding_window_pattern=None,
        layer_types=["full_attention"] * 2, tie_word_embeddings=True)),
    "nemotron": ("NemotronForCausalLM", dict(DECODER, head_dim=12, attention_bias=True)),
    "opt": ("OPTForCausalLM", dict(OPT)),
    "opt-after": ("OPTForCausalLM", dict(
        OPT, do_layer_norm_before=False, word_embed_proj_dim=16, activation_function="gelu",
        tie_word_embeddings=False)),
    "opt-plain": ("OPTForCausalLM", dict(
        OPT, enable_bias=False, layer_norm_elementwise_affine=False, _remove_final_layer_norm=True)),
    "starcoder2": ("Starcoder2ForCausalLM", dict(DECODER, hidden_size=24)),
    "distilbert": ("DistilBertForMaskedLM", dict(
        vocab_size=VOCABULARY, dim=24, hidden_dim=39, n_layers=2, n_heads=3, dropout=0.0,
        max_position_embeddings=CONTEXT, attention_dropout=0.0, pad_token_id=PADDING)),
    "bert": ("BertForMaskedLM", dict(ENCODER)),
    "electra": ("ElectraForMaskedLM", dict(ENCODER, embedding_size=17, type_vocab_size=1)),
    "electra-wide": ("ElectraForMaskedLM", dict(
        ENCODER, embedding_size=24, hidden_act="relu", tie_word_embeddings=False)),
    "mpnet": ("MPNetForMaskedLM", dict(
        ROBERTA, pad_token_id=1, max_position_embeddings=CONTEXT + 2)),
    "mpnet-buckets": ("MPNetForMaskedLM", dict(
        ROBERTA, pad_token_id=1, max_position_embeddings=CONTEXT + 2, num_attention_heads=2,
        relative_attention_num_buckets=40, hidden_act="silu")),
    "modernbert": ("ModernBertForMaskedLM", dict(MODERN)),
    "modernbert-biased": ("ModernBertForMaskedLM", dict(
        MODERN, norm_bias=True, attention_bias=True, mlp_bias=True, classifier_bias=True,
        decoder_bias=False, tie_word_embeddings=False, hidden_activation="silu",
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 500.0},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 90.0}})),
    "roberta": ("RobertaForMaskedLM", dict(ROBERTA)),
    "xlm_roberta": ("XLMRobertaForMaskedLM", dict(ROBERTA, type_vocab_size=2)),
}
IMAGES = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=39,
              image_size=14, patch_size=4, num_channels=1, num_labels=7)
# The same for images.
PICTURES = {
    "vit": ("ViTForImageClassification", dict(IMAGES)),
    "deit": ("DeiTForImageClassification", dict(IMAGES, qkv_bias=False, hidden_act="gelu_new")),
    "resnet": ("ResNetForImageClassification", dict(
        image_size=14, num_channels=1, num_labels=7, embedding_size=6, hidden_sizes=[16, 24],
        depths=[1, 2])),
    "resnet-basic": ("ResNetForImageClassification", dict(
        image_size=14, num_channels=1, num_labels=7, embedding_size=6, hidden_sizes=[6, 10],
        depths=[2, 1], layer_type="basic", downsample_in_first_stage=True)),
    "resnet-sync": ("ResNetForImageClassification", dict(
        image_size=14, num_channels=1, num_labels=7, embedding_size=6, hidden_sizes=[16, 24],
        depths=[1, 2], sync_batch_norm=True)),
    "convnext": ("ConvNextForImageClassification", dict(
        image_size=14, patch_size=2, num_channels=1, num_labels=7, hidden_sizes=[12, 20],
        depths=[1, 2], num_stages=2, layer_scale_init_value=0.5)),
    "convnext-plain": ("ConvNextForImageClassification", dict(
        image_size=14, patch_size=1, num_channels=1, num_labels=7, hidden_sizes=[6, 10, 14],
        depths=[2, 1, 1], num_stages=3, layer_scale_init_value=0.0, hidden_act="gelu_new")),
}
FAMILIES.update(PICTURES)
# The names of modules in transformers 5, by those in files, which it writes as it always has.
MODULES = {"encoder.layer.": "layers.", "attention.attention.query": "attention.q_proj",
           "attention.attention.key": "attention.k_proj",
           "attention.attention.value": "attention.v_proj",
           "attention.output.dense": "attention.o_proj", "intermediate.dense": "mlp.fc1",
           "output.dense": "mlp.fc2", "embed_out.": "lm_head."}
FAMILIES_OF_FILES = {name.partition("-")[0] for name in FAMILIES}


def make_model(name):
    """With values that make every part matter."""
    torch.manual_seed(5)
    kind, settings = FAMILIES[name]
    architecture = getattr(transformers, kind)
    config = architecture.config_class(**settings, attn_implementation="eager")
    model = architecture(config).eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if "norm" in path.lower() or "ln_" in path:
                one = path.endswith("weight") and not kind.startswith("Gemma")  # theirs is 1 + weight
                parameter.copy_((1 if one else 0) +
                                0.2 * torch.randn_like(parameter))
            else:
                parameter.copy_(0.25 * torch.randn_like(parameter))
        for path, buffer in model.named_buffers():
            if path.endswith("running_mean"):
                buffer.normal_(0, 0.5)
            if path.endswith("running_var"):
                buffer.uniform_(0.5, 2)
    return model


def module_name(path, modules):
    """Of a tensor in a file."""
    if path in modules:
        return path
    for old, new in MODULES.items():
        path = path.replace(old, new)
    return path


def make_inputs(name):
    """The argument of a model, its targets, and both as a batch."""
    generator = torch.Generator().manual_seed(1)
    if name in PICTURES:
        inputs = torch.randn(BATCH, 1, 14, 14, generator=generator)
        targets = torch.randint(0, 7, (BATCH,), generator=generator)
        data = inputs.numpy().astype("<f4").tobytes() + targets.numpy().astype("<i4").tobytes()
        return {"pixel_values": inputs.double()}, targets, data
    tokens = torch.randint(PADDING + 1, VOCABULARY, (BATCH, CONTEXT), generator=generator)
    targets = torch.randint(0, VOCABULARY, (BATCH, CONTEXT), generator=generator)
    data = torch.stack([tokens, targets]).numpy().astype("<i4").tobytes()
    return {"input_ids": tokens}, targets, data


def largest(values):
    return float(values.detach().abs().max())


class Families(unittest.TestCase):
    def compare(self, what, found, expected, scale):
        difference = largest(found - expected)
        self.worst = max(self.worst, difference / scale)
        self.assertLessEqual(difference, BOUND * scale, what)

    def check(self, name, library):
        model = make_model(name)
        inputs, targets, data = make_inputs(name)
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "model")
            model.save_pretrained(path)
            batch = os.path.join(directory, "batch")
            with open(batch, "wb") as file:
                file.write(data)
            result = subprocess.run(
                [os.path.join(BUILD, "tests/parity/dump_transformer"), os.path.realpath(path), "-",
                 batch, str(BATCH), "0" if name in PICTURES else str(CONTEXT), library],
                capture_output=True)
        self.assertEqual(result.returncode, 0, result.stderr.decode())
        model = model.double()  # keeps f32 rounding out of the comparison
        logits = model(**inputs).logits
        if any(isinstance(module, torch.nn.BatchNorm2d) for module in model.modules()):
            trained = model.train()(**inputs).logits  # by the batch's statistics
        else:
            trained = logits
        loss = F.cross_entropy(trained.flatten(0, -2), targets.flatten())
        loss.backward()
        found = torch.from_numpy(numpy.frombuffer(result.stdout, dtype="<f4").astype("f8"))
        self.worst = 0.0
        at = logits.numel()
        self.compare("logits", found[:at].view_as(logits), logits, largest(logits))
        self.compare("loss", found[at], loss, float(loss))
        at += 1
        # a tied parameter under all of its names: the order of modules decides which is the first
        gradients = dict(model.named_parameters(remove_duplicate=False))
        names = [module_name(path, gradients) for path in result.stderr.decode().split()]
        self.assertEqual(sorted(id(gradients[name]) for name in names),
                         sorted(map(id, model.parameters())))
        for path in names:
            expected = gradients[path].grad
            gradient = found[at:at + expected.numel()].view_as(expected)
            # Softmax ignores a key's bias: its gradient is only rounding.
            measure = path.replace("key.bias", "key.weight").replace("k_proj.bias", "k_proj.weight")
            measure = measure.replace("k_lin.bias", "k_lin.weight")
            measure = measure.replace("attn.k.bias", "attn.k.weight")
            self.compare(f"d({path})", gradient, expected, largest(gradients[measure].grad))
            at += expected.numel()
        self.assertEqual(at, found.numel())
        print(f"{name}, {library} kernels: within {self.worst:.1e}")

    def test_every_file_is_here(self):
        files = {name[:-5] for name in os.listdir(os.path.join(SOURCE, "families"))
                 if name.endswith(".yaml")}
        self.assertEqual(files, FAMILIES_OF_FILES)


JOB = f"""
name: tiny
data: {{format: tokens, path: tokens.bin, encoding: uint16, context: {CONTEXT}}}
train: {{max_steps: 1, batch_size: 2, evaluate: false}}
optimizer: {{type: adamw, lr: 0, weight_decay: 0}}
workers: 2
"""


def write_idx(path, values):
    with open(path, "wb") as file:
        file.write(bytes([0, 0, 8, values.dim()]))
        for size in values.shape:
            file.write(size.to_bytes(4, "big"))
        file.write(values.numpy().astype("u1").tobytes())


class RoundTrip(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp(prefix="fsdpd-test-")
        cls.addClassCleanup(shutil.rmtree, cls.root, True)
        cls.data = os.path.join(cls.root, "data")
        os.mkdir(cls.data)
        (numpy.arange(2000) % VOCABULARY).astype("<u2").tofile(
            os.path.join(cls.data, "tokens.bin"))
        for part in ("train", "t10k"):
            write_idx(os.path.join(cls.data, f"{part}-images-idx3-ubyte"),
                      torch.arange(8 * 14 * 14).view(8, 14, 14) % 256)
            write_idx(os.path.join(cls.data, f"{part}-labels-idx1-ubyte"), torch.arange(8) % 7)
        cls.job = os.path.join(cls.root, "job.yaml")
        cls.pictures = os.path.join(cls.root, "pictures.yaml")
        with open(cls.pictures, "w", encoding="utf-8") as file:
            file.write(re.sub("data: .*", "data: {format: idx, dir: .}", JOB))
        with open(cls.job, "w", encoding="utf-8") as file:
            file.write(JOB)
        cls.daemon = harness.Daemon(data=cls.data)
        cls.addClassCleanup(cls.daemon.close)

    def through_a_job(self, directory, out):
        arguments = ["--set", f"model.hf={directory}"]
        if FAMILIES[directory.removesuffix("-1")][0].endswith("MaskedLM"):
            arguments += ["--set", "data.objective=masked", "--set", "data.mask_token=1"]
        job = self.pictures if directory.partition("-")[0] in PICTURES else self.job
        result = self.daemon.ctl("submit", job, "--wait", *arguments, timeout=300)
        self.assertEqual(result.returncode, 0, result.stderr)
        job = self.daemon.json("list")[-1]["id"]
        path = os.path.join(self.data, out)
        result = self.daemon.ctl("pull", job, "--format", "hf", "-o", path)
        self.assertEqual(result.returncode, 0, result.stderr)
        return path

    def compare_but_buffers(self, model, buffers, first, second):
        """Everything but these is what it was, and the count is of steps. Gives the model those
        that the first job left."""
        before, after = (load_file(os.path.join(path, "model.safetensors"))
                         for path in (first, second))
        self.assertEqual(list(before), list(after))
        state = model.state_dict()
        for path, values in before.items():
            if path not in buffers:
                self.assertTrue(torch.equal(values, after[path]), path)
                self.assertTrue(torch.equal(values, state[path]), path)
            elif path.endswith("num_batches_tracked"):
                self.assertEqual((int(values), int(after[path])), (1, 2))
            else:
                self.assertFalse(torch.equal(values, after[path]), path)
        model.load_state_dict({**state, **{path: before[path] for path in buffers}})

    def test_every_family(self):
        for name in FAMILIES:
            with self.subTest(name):
                model = make_model(name)
                model.save_pretrained(os.path.join(self.data, name))
                first = self.through_a_job(name, f"{name}-1")
                second = self.through_a_job(f"{name}-1", f"{name}-2")
                buffers = [path for path, _ in model.named_buffers() if "normalization." in path]
                if buffers:  # a step moves them
                    self.compare_but_buffers(model, buffers, first, second)
                else:
                    self.assertTrue(filecmp.cmp(os.path.join(first, "model.safetensors"),
                                                os.path.join(second, "model.safetensors"), False))
                again, info = type(model).from_pretrained(first, output_loading_info=True,
                                                          attn_implementation="eager")
                for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
                    self.assertFalse(info[what], what)
                inputs = make_inputs(name)[0]
                with torch.no_grad():
                    self.assertTrue(torch.equal(model.double()(**inputs).logits,
                                                again.eval().double()(**inputs).logits))

    def test_images_without_a_head(self):
        """A checkpoint of the body alone: its tensors are those of the job, and the classifier is drawn."""
        for name in ("vit", "deit", "resnet", "convnext"):
            with self.subTest(name):
                whole, directory = make_model(name), os.path.join(self.data, f"{name}-body")
                FAMILIES[f"{name}-body"] = FAMILIES[name]
                self.addCleanup(FAMILIES.pop, f"{name}-body")
                body = getattr(whole, whole.base_model_prefix)
                body.save_pretrained(directory)
                with open(os.path.join(directory, "config.json"), encoding="utf-8") as file:
                    self.assertNotIn("ForImageClassification", file.read())
                self.assertIn("classifier.", self.daemon.ctl(
                    "plan", self.pictures, "--set", f"model.hf={name}-body").stdout)
                again, info = type(whole).from_pretrained(
                    self.through_a_job(f"{name}-body", f"{name}-body-out"), output_loading_info=True)
                for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
                    self.assertFalse(info[what], what)
                buffers = {path for path, _ in body.named_buffers()}
                found = getattr(again, whole.base_model_prefix).state_dict()
                for path, values in body.state_dict().items():
                    if path not in buffers and not path.startswith("pooler."):
                        self.assertTrue(torch.equal(values, found[path]), path)

    def test_images_of_another_size(self):
        """A checkpoint of larger and of smaller images: positions as F.interpolate makes them, logits as transformers'
        interpolation in the forward pass, and a directory that from_pretrained takes without it."""
        for name in ("vit", "deit"):
            kind, settings = FAMILIES[name]
            for size in (9, 22, 33):
                with self.subTest(name, size=size):
                    FAMILIES[f"{name}-{size}"] = kind, dict(settings, image_size=size)
                    self.addCleanup(FAMILIES.pop, f"{name}-{size}")
                    model, directory = make_model(f"{name}-{size}"), os.path.join(self.data, f"{name}-{size}")
                    model.save_pretrained(directory)
                    with open(os.path.join(directory, "config.json"), "r+", encoding="utf-8") as file:
                        config = dict(json.load(file), image_size=14)
                        file.seek(0)
                        json.dump(config, file)
                        file.truncate()
                    self.assertIn("which are interpolated", self.daemon.ctl(
                        "plan", self.pictures, "--set", f"model.hf={name}-{size}").stdout)
                    out = self.through_a_job(f"{name}-{size}", f"{name}-{size}-out")
                    again, info = type(model).from_pretrained(out, output_loading_info=True, attn_implementation="eager")
                    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
                        self.assertFalse(info[what], what)
                    self.assertEqual(again.config.image_size, 14)
                    path = f"{name}.embeddings.position_embeddings"
                    old = load_file(os.path.join(directory, "model.safetensors"))[path].double()
                    new = load_file(os.path.join(out, "model.safetensors"))[path].double()
                    first = 1 if name == "vit" else 2
                    grid = old[:, first:].view(1, size // 4, size // 4, -1).permute(0, 3, 1, 2)
                    grid = F.interpolate(grid, size=(3, 3), mode="bicubic", align_corners=False)
                    expected = torch.cat([old[:, :first], grid.permute(0, 2, 3, 1).reshape(1, 9, -1)], 1)
                    worst = largest(new - expected) / largest(expected)
                    self.assertLessEqual(worst, BOUND)
                    inputs = make_inputs(name)[0]
                    with torch.no_grad():
                        logits = model.double()(**inputs, interpolate_pos_encoding=True).logits
                        found = again.eval().double()(**inputs).logits
                    self.assertLessEqual(largest(found - logits), BOUND * largest(logits))
                    print(f"{name}, from {size // 4} x {size // 4} to 3 x 3: positions within {worst:.1e}, "
                          f"logits within {largest(found - logits) / largest(logits):.1e}")


STEPS, WINDOWS, LEARNING_RATE, WEIGHT_DECAY = 20, 6, 1e-3, 0.01
CURVE_BOUND = 1e-4  # of the loss
CURVE = f"""
name: curve
data: {{format: tokens, path: stream.bin, encoding: uint16, context: {CONTEXT}, validation_fraction: 0}}
train: {{max_steps: {STEPS}, shuffle: false, evaluate: false, log_interval: 1}}
optimizer: {{type: adamw, lr: {LEARNING_RATE}, weight_decay: {WEIGHT_DECAY}}}
"""


class Curves(unittest.TestCase):
    """The losses of AdamW steps, with a step's windows on one worker and divided among several."""

    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp(prefix="fsdpd-test-")
        cls.addClassCleanup(shutil.rmtree, cls.root, True)
        cls.data = os.path.join(cls.root, "data")
        os.mkdir(cls.data)
        generator = torch.Generator().manual_seed(3)
        # a step takes WINDOWS of CONTEXT tokens, and each window's last target is one further
        cls.stream = torch.randint(PADDING + 1, VOCABULARY, (STEPS * WINDOWS * CONTEXT + 1,),
                                   generator=generator)
        cls.stream.numpy().astype("<u2").tofile(os.path.join(cls.data, "stream.bin"))
        cls.job = os.path.join(cls.root, "job.yaml")
        with open(cls.job, "w", encoding="utf-8") as file:
            file.write(CURVE)
        cls.daemon = harness.Daemon(3, data=cls.data)
        cls.addClassCleanup(cls.daemon.close)

    def expected(self, model):
        optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE,
                                      weight_decay=WEIGHT_DECAY)
        tokens = self.stream[:-1].view(STEPS, WINDOWS, CONTEXT)
        targets = self.stream[1:].view(STEPS, WINDOWS, CONTEXT)
        losses = []
        for step in range(STEPS):
            optimizer.zero_grad()
            logits = model(input_ids=tokens[step]).logits
            loss = F.cross_entropy(logits.flatten(0, 1), targets[step].flatten())
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    def test_every_family_of_text(self):
        for name in FAMILIES:
            if "-" in name or name in PICTURES:
                continue
            model = make_model(name)
            model.save_pretrained(os.path.join(self.data, name))
            expected = self.expected(model)
            for workers in (1, 2, 3):
                with self.subTest(name, workers=workers):
                    result = self.daemon.ctl(
                        "submit", self.job, "--wait", "--set", f"model.hf={name}", "--set",
                        f"workers={workers}", "--set", f"train.batch_size={WINDOWS // workers}",
                        timeout=300)
                    self.assertEqual(result.returncode, 0, result.stderr)
                    found = self.daemon.losses(self.daemon.json("list")[-1]["id"])
                    self.assertEqual([step for step, _ in found], list(range(1, STEPS + 1)))
                    worst = max(abs(loss - e) / e for (_, loss), e in zip(found, expected))
                    self.assertLessEqual(worst, CURVE_BOUND)
                    self.assertGreater(max(expected) - min(expected), 100 * CURVE_BOUND)
                    print(f"{name}, {workers} workers: losses within {worst:.1e}")


def add_tests():
    for name in FAMILIES:
        for library in ("reference", "cpu"):
            setattr(Families, f"test_{name}_{library}".replace("-", "_"),
                    lambda self, case=(name, library): self.check(*case))


add_tests()
if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main(verbosity=2)
