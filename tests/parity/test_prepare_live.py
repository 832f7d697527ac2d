#!/usr/bin/env python3
"""What the tests of fsdpd-prepare and of the Python client compare with numbers, or with a stand-in, against transformers,
datasets and PyTorch themselves. $FSDPD_PYTHON names a Python that has them (make check-live); without them it fails.
With --write FILE, it writes the numbers: tests/parity/prepare.json."""

import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../system"))
import harness

sys.dont_write_bytecode = True  # beside the sources
harness.need("setuptools", "grpc>=1.60", "torch", "transformers", "datasets", "pyarrow", live=True)
import datasets
import numpy
import torch
import transformers
from transformers.utils.chat_template_utils import render_jinja_template

FILE = sys.argv[sys.argv.index("--write") + 1] if "--write" in sys.argv else None
WRITTEN = {"made by": f"tests/parity/test_prepare_live.py: transformers {transformers.__version__}, torch {torch.__version__}",
           "losses": {}, "templates": {}, "bert": {}}

import test_classify
import test_prepare
import test_prepare_kinds
import test_published_templates
import test_python_client


class Training(test_prepare.Training):
    def expected(self, windows, rows, context):
        """Attention by blocks, positions from 0, labels -100."""
        model = transformers.LlamaForCausalLM.from_pretrained(self.path(self.data, "model")).float().eval()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
        losses = []
        for step in range(self.STEPS):
            tokens = torch.zeros(self.BATCH, context, dtype=torch.long)
            labels, positions = torch.full_like(tokens, -100), torch.zeros_like(tokens)
            seen = torch.eye(context, dtype=torch.bool).repeat(self.BATCH, 1, 1, 1)
            for row in range(self.BATCH):
                at = 0
                for ids, targets in rows[(step * self.BATCH + row) % len(rows)]:
                    end = at + len(ids)
                    tokens[row, at:end], labels[row, at:end] = torch.from_numpy(ids), torch.from_numpy(targets)
                    positions[row, at:end] = torch.arange(len(ids))
                    seen[row, 0, at:end, at:end] = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()
                    at = end
            mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
            logits = model(input_ids=tokens, attention_mask=mask, position_ids=positions).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        WRITTEN["losses"][windows] = [float(f"{loss:.7g}") for loss in losses]
        return losses


class Labels(test_classify.Labels):
    def predict(self, directory, documents):
        with open(os.path.join(directory, "config.json"), encoding="utf-8") as file:
            architecture = getattr(transformers, json.load(file)["architectures"][0])
        model, info = architecture.from_pretrained(directory, output_loading_info=True)
        for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            self.assertFalse(info[what], what)
        with torch.no_grad():
            return [model.eval()(input_ids=torch.from_numpy(ids)[None]).logits[0].numpy() for ids in documents]

    def test_predictions_are_those_of_transformers(self):
        for architecture, labels in (("BertForSequenceClassification", 3), ("BertForTokenClassification", 2)):
            config = dict(test_classify.draw.config_of(20, [f"label {n}" for n in range(labels)]), hidden_size=16,
                          intermediate_size=24, max_position_embeddings=8, architectures=[architecture])
            model = getattr(transformers, architecture)(transformers.BertConfig(**config)).float().eval()
            shapes = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
            tensors, ids = test_prepare.draw_tensors(shapes), [2, 7, 19, 11, 5, 3]
            model.load_state_dict({name: torch.from_numpy(array) for name, array in tensors.items()})
            with torch.no_grad():
                expected = model(input_ids=torch.tensor([ids])).logits[0].numpy()
            numpy.testing.assert_allclose(test_classify.bert(config, tensors, ids), expected, rtol=0, atol=2e-6)
            WRITTEN["bert"][architecture] = {"config": config, "ids": ids, "logits": expected.astype("f8").round(8).tolist(),
                                             "shapes": shapes}


class Published(test_published_templates.Published):
    def compare(self, name, template, cases):
        references = []
        for messages, tools, *found in cases:
            (text,), marks = render_jinja_template([messages], tools=tools, chat_template=template, bos_token="<s>",
                                                   eos_token="</s>", return_assistant_tokens_mask=len(found) > 1)
            references.append([text, *([tuple(mark) for mark in turns] for turns in marks)])
            self.assertEqual(found, references[-1], name)
        WRITTEN["templates"][name] = test_published_templates.digest(references)


class Kinds(test_prepare_kinds.Formats):
    def save(self, records, directory):
        datasets.disable_progress_bars()
        datasets.Dataset.from_list(records).save_to_disk(directory)


class Client(test_python_client.Client):
    def modules(self):
        model = torch.nn.Module()
        for name, module in (("conv1", torch.nn.Conv2d(1, 32, 3)), ("conv2", torch.nn.Conv2d(32, 64, 3)),
                             ("fc1", torch.nn.Linear(9216, 128)), ("fc2", torch.nn.Linear(128, 10))):
            model.add_module(name, module)
        return {}, model


def load_tests(loader, tests, pattern):
    """Not what these classes have of make check."""
    return loader.suiteClass([
        *(loader.loadTestsFromTestCase(case) for case in (Training, Labels)),
        *map(Published, ("test_counted_tokens_are_the_assistants", "test_marks_are_those_of_transformers")),
        Kinds("test_directories_of_datasets"), Client("test_the_program_of_the_readme")])


if __name__ == "__main__":
    del sys.argv[1:]
    harness.main()
    if FILE:
        with open(FILE, "w", encoding="utf-8") as file:
            file.write("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in WRITTEN.items()) + "\n}\n")
