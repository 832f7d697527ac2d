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
           "losses": {}, "templates": {}, "bert": {}, "odd": [], "more": []}

import test_classify
import test_prepare
import test_prepare_kinds
import test_prepare_odd
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


class Odd(test_prepare_odd.Odd):
    """All odd records: what is not refused has the arrays that transformers and datasets make."""
    COUNT, MORE = test_prepare_odd.odd_records.COUNT, test_prepare_odd.odd_records.MORE
    ROLES = {"human": "user", "gpt": "assistant", "developer": "system"}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        datasets.disable_progress_bars()
        cls.fast = transformers.PreTrainedTokenizerFast(
            tokenizer_file=os.path.join(cls.tokenizer, "tokenizer.json"), bos_token="<s>", eos_token="</s>", pad_token="[INST]")

    def conversation(self, turns):
        """As a program makes it for apply_chat_template: as transformers serve reads OpenAI's form."""
        messages = []
        for turn in turns:
            turn = {"role": turn.get("from"), "content": turn.get("value"), **turn}
            if isinstance(turn["content"], list):
                turn["content"] = "".join(part["text"] for part in turn["content"])
            message = {**turn, "role": self.ROLES.get(turn["role"], turn["role"])}
            message["tool_calls"] = [self.call(call) for call in turn.get("tool_calls") or ()] or turn.get("tool_calls")
            messages.append({key: value for key, value in message.items() if key not in ("from", "value")})
        return messages

    @staticmethod
    def call(call):
        call = json.loads(json.dumps(call))
        function = call.get("function") or call
        if isinstance(function["arguments"], str):
            function["arguments"] = json.loads(function["arguments"])
        return call

    @staticmethod
    def has(turn, value):
        return any(turn.get(key) is not None and turn[key] == value for key in ("weight", "train"))

    def document(self, messages, tools, loss, template):
        """Ids, and the mask, if the template shows it."""
        tools = json.loads(tools) if isinstance(tools, str) else tools
        messages = [{**turn, "content": turn.get("content") or ""} for turn in messages]  # templates fail for null, if not for ""
        ids = self.fast.apply_chat_template(messages, tools=tools or None, chat_template=template)["input_ids"]
        marked = "endgeneration" in template
        (text,), (spans,) = render_jinja_template(
            [[{key: value for key, value in turn.items() if value is not None} for turn in messages]], tools=tools or None,
            chat_template=template, return_assistant_tokens_mask=True, **self.fast.special_tokens_map)
        encoding = self.fast(text, add_special_tokens=False, return_offsets_mapping=True)
        self.assertEqual(encoding["input_ids"], ids)
        said = [turn for turn in messages if turn["role"] == "assistant"]
        if not marked and (loss != "all" or any(self.has(turn, 0) for turn in said)):
            return ids, None
        spans = spans if marked else [None] * len(said)
        pairs = list(zip(spans, said, strict=True))
        if loss == "all":
            out = [span for span, turn in pairs if self.has(turn, 0)]
            return ids, [int(not any(begin < b and end > a for a, b in out)) for begin, end in encoding["offset_mapping"]]
        kept = [span for span, turn in (pairs[-1:] if loss == "last" else pairs) if not self.has(turn, 0)]
        return ids, [int(any(begin < b and end > a for a, b in kept)) for begin, end in encoding["offset_mapping"]]

    def rows(self, path):
        """The records as datasets reads them."""
        if not isinstance(path, str):
            paths = path
            if os.path.isdir(path[0]):
                paths = sorted((os.path.join(place, name) for place, _, names in os.walk(path[0]) for name in names), key=os.path.split)
            return [row for name in paths for row in self.rows(name)]
        if path.endswith((".parquet", ".arrow")):
            return list(datasets.load_dataset(path.rpartition(".")[2], data_files=path, split="train", cache_dir=self.path("cache")))
        if os.path.getsize(path) < 3 or path.endswith((".csv", ".tsv")) and b"\n" not in open(path, "rb").read().strip():
            return []  # datasets reads no empty file
        if path.endswith((".csv", ".tsv")):
            more = {"sep": "\t"} if path.endswith(".tsv") else {}
            return list(datasets.load_dataset("csv", data_files=path, split="train", cache_dir=self.path("cache"),
                                              keep_default_na=False, quoting=3 if "none" in self.arguments else 0, **more))
        with open(path, encoding="utf-8") as file:
            written = file.read()
        records = json.loads(written) if path.endswith(".json") else [json.loads(text) for text in written.split("\n") if text]
        if self.kind in ("chat", "preference"):
            return records  # Arrow adds the keys of other turns
        rows = list(datasets.load_dataset("json", data_files=path, split="train", cache_dir=self.path("cache")))
        self.assertEqual(len(rows), len(records))
        return rows

    def encoded(self, text):
        return self.fast(text, add_special_tokens=False)["input_ids"]

    @staticmethod
    def numbers(given, path):
        """Labels as numbers (-1 and -100: none) and the names of names."""
        def plain(label):
            try:
                return int(float(label))
            except ValueError:
                return label
            except TypeError:
                raise AssertionError(f"a label is {label!r}") from None
        labels = [plain(label) for label in given]
        names = sorted({label for label in labels if isinstance(label, str)})
        if names:
            assert all(isinstance(label, str) for label in labels if label not in (-1, -100)), labels
        if any(label is True or label is False for label in given) and isinstance(path, str) and path.endswith((".csv", ".tsv")):
            return labels, ["False", "True"]  # pandas' booleans are words in the table
        return [-100 if label in (-1, -100) else names.index(label) if names else label for label in labels], names or None

    def pictures(self, path, arguments):
        """As datasets' imagefolder reads a directory, and its Image a column."""
        if os.path.isdir(path):
            more = {} if any(name.startswith("metadata") for name in os.listdir(path)) else {"drop_labels": False}
            table = datasets.load_dataset("imagefolder", data_dir=path, split="train", cache_dir=self.path("cache"), **more)
        else:
            form = "parquet" if path.endswith(".parquet") else "json"
            table = datasets.load_dataset(form, data_files=path, split="train", cache_dir=self.path("cache"))
            table = table.cast_column("image", datasets.Image())
        label, made = table.features["label"], {"images": []}
        given = [label.names[number] for number in table["label"]] if hasattr(label, "names") else table["label"]
        made["targets"], made["names"] = self.numbers(given, path)
        for image in table["image"]:
            image = image.convert(arguments[1])
            made["images"].append(numpy.asarray(image.resize((3, 4), 2) if "--size" in arguments else image).tolist())
        return {**made, "classes": max(made["targets"]) + 1}

    def expected(self, kind, path, arguments, template):
        self.kind, self.arguments = kind, arguments
        if kind == "images":
            return self.pictures(path[0], arguments)
        rows, documents, made = self.rows(path), [], {"names": None, "classes": None}
        if kind == "chat":
            for row in rows:
                turns = row.get("messages", row.get("conversations"))
                turns = ([{"role": "system", "content": row["system"]}] if row.get("system") else []) + turns
                documents.append(self.document(self.conversation(turns), row.get("tools"), arguments[-1], template))
        elif kind == "preference":
            for row in rows:
                prompt = row["prompt"] if isinstance(row["prompt"], list) else [{"role": "user", "content": row["prompt"]}]
                for answer in (row["chosen"], row["rejected"]):
                    answer = answer if isinstance(answer, list) else [{"role": "assistant", "content": answer}]
                    documents.append(self.document(self.conversation(prompt + answer), None, "last", template))
        elif kind == "tags":
            labels = [label for row in rows for label in row["ner_tags"]]
            numbers, made["names"] = self.numbers(labels, path)
            made["classes"], made["token_labels"] = max(numbers) + 1, []
            for row in rows:
                mine, numbers = numbers[:len(row["tokens"])], numbers[len(row["tokens"]):]
                if set(mine) == {-100}:
                    continue
                encoding = self.fast(row["tokens"], is_split_into_words=True)
                places = encoding.word_ids()
                made["token_labels"] += [-100 if place is None or place in places[:at] else mine[place]
                                         for at, place in enumerate(places)]
                documents.append((encoding["input_ids"], [1] * len(places)))
        else:
            numbers = [0] * len(rows)
            if kind == "classify":
                numbers, made["names"] = self.numbers([row["label"] for row in rows], path)
                made.update(classes=max(numbers) + 1, labels=[number for number in numbers if number != -100])
            fields = ("anchor", "positive") if kind == "pairs" else ("text",)
            end = [self.fast.eos_token_id]
            documents = [(ids, [1] * len(ids)) for row, number in zip(rows, numbers) if number != -100
                         for ids in (self.encoded(row[field]) + end for field in fields)]
        borders = numpy.cumsum([0] + [len(ids) for ids, _ in documents]).tolist()
        masks = [mask for _, mask in documents]
        return {**made, "tokens": sum((ids for ids, _ in documents), []), "documents": borders,
                "mask": None if None in masks else sum(masks, [])}

    def compare(self, number, found, wrong, *case):
        if found is not None:
            expected = self.expected(*case)
            if expected.get("mask", 0) is None:
                expected["mask"] = found["mask"]  # test_published_templates has it
            self.assertEqual(found, expected)
        if test_prepare_odd.odd_records.COUNT <= number < test_prepare_odd.odd_records.COUNT + test_prepare_odd.odd_records.MORE_SAMPLE:
            WRITTEN["more"].append(found and test_prepare_odd.digest(found))
        if number < test_prepare_odd.odd_records.SAMPLE:
            WRITTEN["odd"].append(found and test_prepare_odd.digest(found))


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
        Kinds("test_directories_of_datasets"), *map(Odd, ("test_odd_records", "test_odd_files")), Client("test_the_program_of_the_readme")])


if __name__ == "__main__":
    del sys.argv[1:]
    harness.main()
    if FILE:
        with open(FILE, "w", encoding="utf-8") as file:
            file.write("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in WRITTEN.items()) + "\n}\n")
