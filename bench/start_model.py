"""The start of a job on a big model, for bench/start.py: a Hugging Face directory of 2 GB in bf16, drawn,
over two workers, against reading its file with cat."""

import json
import os
import statistics
import struct
import subprocess
import tempfile
import time

import measure
import numpy

harness = measure.harness
WIDTH, INNER, LAYERS, WORDS = 2048, 5632, 18, 32000  # 991 million parameters
CONTEXT = 8  # few tokens: the step itself is not what is measured
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": WORDS, "hidden_size": WIDTH,
          "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": 16,
          "num_key_value_heads": 16, "max_position_embeddings": 2048, "tie_word_embeddings": True}
JOB = """name: big
model: {{hf: {directory}}}
data: {{format: tokens, path: {directory}/tokens.bin, encoding: uint16, context: {context}}}
optimizer: {{type: sgd, lr: 1e-4}}
train: {{max_steps: 3, batch_size: 1, log_interval: 1, evaluate: false}}
workers: 2
save_model: false
"""


def shapes():
    square, up, down = (WIDTH, WIDTH), (INNER, WIDTH), (WIDTH, INNER)
    block = {"self_attn.q_proj": square, "self_attn.k_proj": square, "self_attn.v_proj": square,
             "self_attn.o_proj": square, "mlp.gate_proj": up, "mlp.up_proj": up, "mlp.down_proj": down,
             "input_layernorm": (WIDTH,), "post_attention_layernorm": (WIDTH,)}
    named = {"model.embed_tokens.weight": (WORDS, WIDTH), "model.norm.weight": (WIDTH,)}
    for layer in range(LAYERS):
        named.update({f"model.layers.{layer}.{name}.weight": shape for name, shape in block.items()})
    return named


def draw_model(directory):
    """Writes the model, its tokens and the job; returns the paths of the weights and of the job."""
    draw = numpy.random.default_rng(1)
    values = (draw.standard_normal(1 << 20, numpy.float32) * 0.02).view(numpy.uint32) >> 16
    values = values.astype(numpy.uint16)  # the upper halves of f32 are bf16
    header, at = {}, 0
    for name, shape in shapes().items():
        end = at + 2 * int(numpy.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}
        at = end
    weights = os.path.join(directory, "model.safetensors")
    with open(weights, "wb") as file:
        text = json.dumps(header).encode()
        file.write(struct.pack("<Q", len(text)) + text)
        for shape in shapes().values():
            count = int(numpy.prod(shape))
            if len(shape) == 1:
                numpy.full(count, 0x3f80, numpy.uint16).tofile(file)  # 1.0
            else:
                numpy.resize(values, count).tofile(file)
        os.fsync(file.fileno())
    with open(os.path.join(directory, "config.json"), "w") as file:
        json.dump(CONFIG, file)
    draw.integers(0, WORDS, 4096).astype(numpy.uint16).tofile(os.path.join(directory, "tokens.bin"))
    job = os.path.join(directory, "job.yaml")
    with open(job, "w") as file:
        file.write(JOB.format(directory=directory, context=CONTEXT))
    return weights, job


def forget(path):
    """Drops the file from the page cache."""
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cat_seconds(path):
    began = time.monotonic()
    with open(os.devnull, "wb") as nothing:
        subprocess.run(["cat", path], stdout=nothing, check=True)
    return time.monotonic() - began


def compare(run_job, rounds):
    """Alternates cat and a job on new workers, without the file in the page cache and with it. Prints a row
    for each: medians of cat, of the time until the first step begins, and of the first step's end."""
    print("| a model of 2 GB, bf16 | cat | to training | ratio | to the end of the first step | a step |")
    print("|" + " --- |" * 6, flush=True)
    with tempfile.TemporaryDirectory() as directory:
        weights, job = draw_model(directory)
        for cached in (False, True):
            rows = []
            for _ in range(rounds):
                if not cached:
                    forget(weights)
                cat = cat_seconds(weights)
                if not cached:
                    forget(weights)
                with harness.Daemon(data=directory, arguments=["--threads", "1"]) as daemon:
                    times, steps, _ = run_job(daemon, lambda: daemon.ctl("submit", job, "--wait", timeout=1800))
                rows.append((cat, times["training"], times["training"] / cat, times["first step"],
                             statistics.median(steps)))
            cat, training, ratio, first, step = (statistics.median(column) for column in zip(*rows))
            print(f"| {'in the page cache' if cached else 'on the disk'} | {cat:.2f} s | {training:.2f} s | "
                  f"{ratio:.2f} | {first:.2f} s | {step:.2f} s |", flush=True)
