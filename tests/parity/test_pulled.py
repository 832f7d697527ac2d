#!/usr/bin/env python3
"""Directories that `fsdpctl pull --format hf` writes, of every family and head, in versions 4 and 5 of transformers: both
load every tensor of them, and answer alike. A job begins once with what version 5 wrote, and once with what version 4 makes
of the pulled directory, whose config.json is spelled in its own way. With --write FILE, the changes of config.json that both
have read are written: tests/parity/pulled.json, with which test_family_numbers.py compares. $FSDPD_LIVE_PYTHON and $FSDPD_LIVE_PYTHON_4 name a Python with each (make check-live)."""

import json
import os
import subprocess
import sys
import unittest

sys.path[:0] = [os.path.dirname(__file__), os.path.join(os.path.dirname(__file__), "../system")]
import harness
import numpy
import family_cases as cases
import test_family_numbers
from test_family_numbers import RECORDS, changes_of

FILE = sys.argv[sys.argv.index("--write") + 1] if "--write" in sys.argv else None
LOADER = os.path.join(os.path.dirname(__file__), "load_directories.py")
BOUND = 1e-5  # of the largest logit
# What the classes of version 4 cannot say, whatever is written
FIVE_ALONE = {"model/modernbert-biased": "version 4 has no layer_types: full layers are at equal distances",
              "model/exaone": "version 4 has no EXAONE: LlamaForCausalLM has other names",
              "model/modernbert_decoder": "version 4 computes its local layers otherwise",
              "model/regnet-x": "version 4 always makes images smaller in the first stage",
              "model/phi3-short": "version 4 refuses a longrope with more than its three keys"}


def kind_and_inputs(key, record):
    """The kind of data of a job, and what a model is asked."""
    kind, _, name = key.partition("/")
    if kind == "model" and cases.is_picture(name):
        return "pictures", {"pixel_values": cases.draw_inputs(name)[0].tolist()}
    if kind == "model":
        return "text", {"input_ids": cases.draw_inputs(name)[0].tolist()}
    if kind == "head":
        tokens = cases.draw_documents(name, cases.HEAD_BATCH, 1)[0]
    else:
        tokens = cases.draw_pairs(cases.padding_of(cases.EMBEDDINGS[name][2]))[:cases.HEAD_BATCH, 0]
    padding = record["config"].get("pad_token_id")
    return "documents", {"input_ids": tokens.tolist(), "attention_mask": (tokens != padding).astype(int).tolist()}


class Pulled(test_family_numbers.Jobs):
    def through_a_job(self, key, directory):
        """What is pulled of a job that begins with the directory and changes nothing."""
        (form, _, name), record = key.partition("/"), RECORDS[key]
        kind, _ = kind_and_inputs(key, record)
        more = ["data.objective=masked", "data.mask_token=1"] if kind == "text" and record["class"].endswith("MaskedLM") else []
        if kind == "documents":
            data = os.path.join(self.data, f"{form}-{name}-data")
            if not os.path.exists(data) and form == "head":
                cases.write_documents(data, name)
            elif not os.path.exists(data):
                padding = cases.padding_of(cases.EMBEDDINGS[name][2])
                cases.write_texts(data, {"train": cases.draw_pairs(padding)}, padding, cases.VOCABULARY)
            more.append(f"data.path={form}-{name}-data")
        job = self.run_job(kind, 2, f"model.hf={directory}", *cases.STILL, *more)
        self.pull(job, directory if record["class"].endswith("ForConditionalGeneration") else None)
        return os.path.join(self.root, job)

    def write_beside(self, directory):
        """A tokenizer of words, and how to generate."""
        words = {"<end>": 0, **{f"w{i}": i for i in range(1, 20)}}
        for name, content in (
                ("tokenizer.json", {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
                                    "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
                                    "model": {"type": "WordLevel", "vocab": words, "unk_token": "<end>"}}),
                ("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<end>"}),
                ("generation_config.json", {"max_new_tokens": 7})):
            with open(os.path.join(self.data, directory, name), "w", encoding="utf-8") as file:
                json.dump(content, file)

    def load(self, python, loaded, save=None):
        """What a version makes of directories, by key."""
        lists = os.path.join(self.root, "list")
        with open(lists, "w", encoding="utf-8") as file:
            for key, path in loaded.items():
                case = {"path": path, "class": RECORDS[key]["class"], "inputs": kind_and_inputs(key, RECORDS[key])[1]}
                if save:
                    case["save"] = os.path.join(self.data, save, key.replace("/", "-"))
                file.write(json.dumps(case) + "\n")
        result = subprocess.run([python, LOADER, lists], stdout=subprocess.PIPE, text=True, check=True)
        made = [json.loads(line) for line in result.stdout.splitlines()]
        self.assertEqual(len(made), len(loaded))
        return dict(zip(loaded, made))

    def alike(self, key, one, other):
        for made in (one, other):
            self.assertNotIn("problem", made, f"{key}, transformers {made['version']}")
        first, second = numpy.array(one["logits"]), numpy.array(other["logits"])
        mask = kind_and_inputs(key, RECORDS[key])[1].get("attention_mask")
        if mask is not None and first.shape[:2] == numpy.shape(mask):  # nothing asks for the logits of padding
            first, second = (logits * numpy.array(mask)[..., None] for logits in (first, second))
        distance = float(abs(first - second).max() / abs(first).max())
        self.assertLessEqual(distance, BOUND, key)
        return distance

    def test_both_versions_load_what_is_pulled(self):
        keys = [key for key in RECORDS if key.partition("/")[0] in ("model", "head", "embeddings")]
        given, pulled, written = {}, {}, {}
        for key in keys:
            directory = key.replace("/", "-")
            self.write(directory, RECORDS[key])
            self.write_beside(directory)
            given[key] = os.path.join(self.data, directory)
            with self.subTest(key):
                pulled[key] = self.through_a_job(key, directory)
        five = self.load(sys.executable, pulled)
        four = self.load(os.environ["FSDPD_LIVE_PYTHON_4"], pulled, "four")
        whole, worst, lacking = self.load(sys.executable, given), 0, []
        for key in pulled:
            with self.subTest(key):
                if not any("running_mean" in name for name in RECORDS[key]["tensors"]):  # a step moves them
                    worst = max(worst, self.alike(key, whole[key], five[key]))
                for made in (five[key], four[key]):
                    if "logits" in made:
                        self.assertEqual((made["tokens"], made["most"]), ([3, 1, 2], 7), made["version"])
                written[key] = changes_of(given[key], pulled[key])
                if "lacks" in four[key]:
                    lacking.append(key)
                    continue
                if key in FIVE_ALONE:
                    with self.assertRaises(AssertionError):
                        self.alike(key, five[key], four[key])
                    continue
                worst = max(worst, self.alike(key, five[key], four[key]))
                self.assertEqual(four[key]["names"], sorted(RECORDS[key]["tensors"]))
        again = {}
        for key in pulled:
            if key not in lacking and key not in FIVE_ALONE and "problem" not in four[key]:
                with self.subTest(key, begun="with a directory of version 4"):
                    again[key] = self.through_a_job(key, os.path.join("four", key.replace("/", "-")))
        one, other = self.load(sys.executable, again), self.load(os.environ["FSDPD_LIVE_PYTHON_4"], again)
        for key in again:
            with self.subTest(key, begun="with a directory of version 4"):
                worst = max(worst, self.alike(key, one[key], other[key]))
                if not any("running_mean" in name for name in RECORDS[key]["tensors"]):
                    worst = max(worst, self.alike(key, five[key], one[key]))
        versions = {made[key]["version"] for made in (five, four) for key in keys[:1]}
        print(f"{len(pulled)} directories in transformers {' and '.join(sorted(versions))}: logits within {worst:.1e}; "
              f"the older lacks the classes of {', '.join(lacking) or 'none'}, and cannot say "
              f"{', '.join(FIVE_ALONE)}")
        if FILE:
            with open(FILE, "w", encoding="utf-8") as file:
                lines = {"versions": sorted(versions), **written}
                file.write("{\n" + ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in lines.items()) + "\n}\n")


def load_tests(loader, tests, pattern):
    """Not what the class has of make check."""
    return loader.suiteClass([Pulled("test_both_versions_load_what_is_pulled")])


if __name__ == "__main__":
    del sys.argv[1:]
    if "FSDPD_LIVE_PYTHON_4" not in os.environ:
        sys.exit("FAIL: FSDPD_LIVE_PYTHON_4 is not set: it names a Python with version 4 of transformers and its torch")
    unittest.main(verbosity=2)
