#!/usr/bin/env python3
"""fsdpd-prepare for labelled texts, pictures and preferences: what it reads gives the expected arrays in
every format, a preparation that was killed continues to the same bytes, and pictures from a directory
train to the losses of the same pictures as CIFAR's binary files."""

import bz2
import csv
import gzip
import json
import lzma
import os
import pty
import random
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness
from test_prepare import ENVIRONMENT, WORDS, Prepare, line

harness.need("pyarrow", "PIL")
import numpy
import pyarrow
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet
from PIL import Image
from tokenizers import Tokenizer, processors

CNN = """name: Net
input: [3, 32, 32]
classes: 10
modules:
  conv1: Conv2d(3, 8, 3, 2)
  fc1: Linear(1800, 10)
forward:
  - x = relu(conv1(x))
  - x = flatten(x, 1)
  - x = fc1(x)
  - output = log_softmax(x, dim=1)
loss: nll_loss(output, target, reduction="mean")
"""


class Kinds(Prepare):
    def make(self, kind, source, output, *arguments, code=0):
        tokens = () if kind == "images" else ("--tokenizer", self.tokenizer)
        return self.prepare(kind, *([source] if isinstance(source, str) else source), *tokens, "-o",
                            self.path(output), "--processes", "1", *arguments, code=code)

    def array(self, output, name, split="train"):
        return numpy.load(self.path(output, f"{split}.{name}.npy"))

    def root_of(self, output):
        with open(self.path(output, "dataset.json"), encoding="utf-8") as file:
            return json.load(file)

    def same(self, one, other, *ignored):
        """The same arrays, and the same dataset.json but for these parts of the origin."""
        for name in sorted(os.listdir(self.path(one))):
            if name.endswith(".npy"):
                with open(self.path(one, name), "rb") as mine, open(self.path(other, name), "rb") as theirs:
                    self.assertEqual(mine.read(), theirs.read(), name)
        roots = [self.root_of(one), self.root_of(other)]
        for root in roots:
            for key in ignored:
                root["origin"].pop(key, None)
        self.assertEqual(*roots)


class Formats(Kinds):
    def test_every_format_gives_the_same_arrays(self):
        choice = random.Random(4)
        records = [{"text": line(choice), "label": choice.choice(("bad", "fair", "good"))} for _ in range(120)]
        table = pyarrow.Table.from_pylist(records)
        lines = "".join(json.dumps(record) + "\n" for record in records)
        for name, opened in (("a.jsonl", open), ("b.jsonl.gz", gzip.open), ("c.jsonl.bz2", bz2.open),
                             ("d.jsonl.xz", lzma.open)):
            with opened(self.path(name), "wt") as file:
                file.write(lines)
        # Two frames, as zstd appends them.
        with open(self.path("e.jsonl.zst"), "wb") as file:
            for part in (lines[:1000], lines[1000:]):
                file.write(pyarrow.compress(part.encode(), "zstd", asbytes=True))
        with open(self.path("f.json"), "w") as file:
            json.dump(records, file)
        for name, delimiter in (("g.csv", ","), ("h.tsv", "\t")):
            with open(self.path(name), "w", newline="") as file:
                rows = csv.DictWriter(file, ["text", "label"], delimiter=delimiter)
                rows.writeheader()
                rows.writerows(records)
        pyarrow.parquet.write_table(table, self.path("i.parquet"), row_group_size=50)
        with pyarrow.ipc.new_file(self.path("j.arrow"), table.schema) as file:
            file.write_table(table, max_chunksize=50)
        with pyarrow.ipc.new_stream(self.path("k.arrow"), table.schema) as file:
            file.write_table(table, max_chunksize=50)
        pyarrow.feather.write_feather(table, self.path("l.feather"))
        pyarrow.orc.write_table(table, self.path("m.orc"))
        for name in ("b.jsonl.gz", "c.jsonl.bz2", "d.jsonl.xz", "e.jsonl.zst", "f.json", "g.csv", "h.tsv", "i.parquet",
                     "j.arrow", "k.arrow", "l.feather", "m.orc"):
            if not os.path.exists(self.path("from-a.jsonl")):
                self.make("classify", self.path("a.jsonl"), "from-a.jsonl")
            with self.subTest(name):
                self.make("classify", self.path(name), "from-" + name)
                self.same("from-a.jsonl", "from-" + name, "sources", "tables")
        numbers = [["bad", "fair", "good"].index(record["label"]) for record in records]
        both = [*self.array("from-a.jsonl", "labels"), *self.array("from-a.jsonl", "labels", "validation")]
        self.assertEqual(sorted(both), sorted(numbers))
        root = self.root_of("from-a.jsonl")
        self.assertEqual((root["kind"], root["classes"], root["origin"]["names"]), ("tokens", 3, ["bad", "fair", "good"]))
        self.assertEqual(root["splits"]["train"]["labels"]["type"], "uint8")

    def save(self, records, directory):
        """As Dataset.save_to_disk() of Hugging Face's datasets, whose own files the live comparison reads."""
        os.makedirs(directory)
        table, name = pyarrow.Table.from_pylist(records), "data-00000-of-00001.arrow"
        with pyarrow.ipc.new_stream(os.path.join(directory, name), table.schema) as stream:
            stream.write_table(table)
        for other, text in (("state.json", {"_data_files": [{"filename": name}]}), ("dataset_info.json", {"features": {}})):
            with open(os.path.join(directory, other), "w", encoding="utf-8") as file:
                json.dump(text, file)

    def test_directories_of_datasets(self):
        records = [{"text": f"red {word}", "label": number % 2} for number, word in enumerate(WORDS)]
        self.save(records, self.path("saved"))
        self.make("classify", self.path("saved"), "from-saved", "--validation", "0")
        self.assertEqual(list(self.array("from-saved", "labels")), [record["label"] for record in records])

    def test_directories_as_labels(self):
        for word in WORDS[:6]:
            os.makedirs(self.path("reviews", word[0]), exist_ok=True)
            with open(self.path("reviews", word[0], word + ".txt"), "w") as file:
                file.write(word)
        self.make("classify", self.path("reviews"), "reviews-data", "--validation", "0")
        self.assertEqual(self.root_of("reviews-data")["origin"]["names"], sorted({word[0] for word in WORDS[:6]}))

    def test_what_is_no_such_file(self):
        self.write("cut.jsonl.gz", [{"text": line(random.Random(n)), "label": 0} for n in range(99)])
        with open(self.path("cut.jsonl.gz"), "rb") as whole, open(self.path("part.jsonl.gz"), "wb") as part:
            part.write(whole.read()[:-40])
        for name, text, words in (("no.parquet", "no table", "no.parquet: "), ("no.json", "{", "no.json: it is not JSON"),
                                  ("no.csv", None, "no.csv: No such file"), ("no.dat", "", "no.dat: expected a file"),
                                  ("part.jsonl.gz", None, "part.jsonl.gz: ")):
            if text is not None:
                with open(self.path(name), "w") as file:
                    file.write(text)
            error = self.make("classify", self.path(name), "none", code=2)
            self.assertIn(words, error)
            self.assertNotIn("Traceback", error)


class Tables(Kinds):
    """Rows of .csv and .tsv, in which a quote may be around a field or text."""

    def table(self, name, text):
        with open(self.path(name), "w", encoding="utf-8", newline="") as file:
            file.write(text)
        return self.path(name)

    def texts(self, output):
        tokens, borders = self.array(output, "tokens"), self.array(output, "documents").astype(int)
        tokenizer = Tokenizer.from_file(os.path.join(self.tokenizer, "tokenizer.json"))
        return [tokenizer.decode(tokens[begin:end].tolist()) for begin, end in zip(borders, borders[1:])]

    def test_a_lone_quote_is_noticed(self):
        """It would take the rows up to the next one into its own."""
        for number, (name, text, line) in enumerate((
                ("lone.tsv", 'text\tlabel\nred\t0\n"green\t1\nblue\t0\nsmall"\t1\nlarge\t0\n', 3),
                ("open.csv", 'text,label\nred,0\n\ngreen,1\n"blue,0\nsmall,1\n', 5),
                ("more.csv", 'text,label\nred,0\n"green" blue,1\n', 3),
                ("said.tsv", 'text\tlabel\n"red\t0\nblue "green"\t1\n', 2))):
            source, output = self.table(name, text), f"quotes-{number}"
            error = self.make("classify", source, output, "--validation", "0", code=2)
            self.assertIn(f"{source}:{line}: a quote ", error)
            self.assertIn("; --quotes none reads quotes as text, --quotes csv as around a field", error)
            self.make("classify", source, output, "--validation", "0", "--quotes", "none")
            lines = [row.replace("\t", ",").rsplit(",", 1) for row in text.split("\n")[1:] if row]
            self.assertEqual(self.texts(output), [text for text, _ in lines])
            self.assertEqual(self.array(output, "labels").tolist(), [int(label) for _, label in lines])
            shown = self.prepare("show", self.path(output))
            self.assertIn(f"read {source}: columns text, label; a {'tab' if name.endswith('tsv') else 'comma'} between them, "
                          "quotes are text\n", shown)
            self.assertIn("labels: the numbers of the records\n", shown)
        self.make("classify", self.path("lone.tsv"), "merged", "--validation", "0", "--quotes", "csv")
        self.assertEqual(self.texts("merged"), ["red", "green\t1\nblue\t0\nsmall", "large"])

    def test_fields_of_several_lines(self):
        """They are usual where something else shows that quotes are around fields, and noted."""
        for name, text in (("long.csv", 'text,label\n"red, blue",a\n"red, green\nblue",b\n'),
                           ("three.csv", 'text,label\n"red\ngreen\nblue",a\n"red, ""green""",b\n')):
            source = self.table(name, text)
            result = self.prepare_all("classify", source, "--tokenizer", self.tokenizer, "-o", self.path(name + "-data"),
                                      "--validation", "0")
            with open(source, newline="", encoding="utf-8") as file:
                self.assertEqual(self.texts(name + "-data"), [row["text"] for row in csv.DictReader(file)])
            self.assertIn("quotes are around fields; 1 rows have several lines, the first at line ", result.stderr)
            self.assertIn("labels: 0 a, 1 b\n", self.prepare("show", self.path(name + "-data")))

    def test_a_field_of_a_book(self):
        source = self.table("book.csv", "text,label\n" + "red " * 50000 + ",1\nblue,0\n")
        self.make("classify", source, "book-field", "--validation", "0")
        self.assertEqual([len(text) for text in self.texts("book-field")], [200000, 4])

    def test_columns(self):
        source = self.table("columns.csv", "text,label\nred, blue,1\nred,0,\nred\nblue,1\n")
        error = self.make("classify", source, "columns", "--validation", "0", "--strict", code=2)
        self.assertIn(f"{source}:2: it has 3 columns, and the first row has 2", error)
        self.make("classify", source, "columns", "--validation", "0")
        self.assertEqual((self.texts("columns"), self.array("columns", "labels").tolist()), (["red", "blue"], [0, 1]))
        source = self.table("twice.csv", "text,label,label\nred,0,1\n")
        self.assertIn(f"{source}:1: two columns are called label", self.make("classify", source, "twice", code=2))


class Hostile(Kinds):
    """Whatever a record has, it is malformed, and the others are used."""

    VALUES = (None, True, 7, -1, 1e400, "", "\ud800", "\0", [], [None], [[]], {}, {"a": 1}, {"role": "user"},
              [{"role": "assistant"}], [{"role": [], "content": {}}], [{"role": "assistant", "content": [{"text": 3}]}],
              [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": "b"}],
              [{"role": "assistant", "content": "a", "tool_calls": [{"function": 3}, 7]}])
    KEYS = {"chat": ("messages", "conversations", "instruction", "output", "input", "system", "prompt", "completion", "tools"),
            "text": ("text",), "classify": ("text", "label"), "preference": ("prompt", "chosen", "rejected", "tools"),
            "tags": ("tokens", "ner_tags"), "images": ("image", "label")}
    GOOD = {"chat": {"prompt": "red", "completion": "blue"}, "text": {"text": "red"}, "classify": {"text": "red", "label": 1},
            "preference": {"prompt": "red", "chosen": "blue", "rejected": "green"},
            "tags": {"tokens": ["red"], "ner_tags": [1]}, "images": {"image": "dot.png", "label": 1}}

    def test_odd_records(self):
        Image.new("RGB", (2, 2)).save(self.path("dot.png"))
        for kind, keys in self.KEYS.items():
            good = self.GOOD[kind]
            lines = [json.dumps({**base, key: value}) for key in keys for value in self.VALUES for base in ({}, good)]
            lines += ["[" * 100000, '{"text": 1' + "0" * 5000 + "}", "\x00", '"red"', "null", json.dumps(good)]
            if kind == "chat":
                lines += [json.dumps({**good, "tools": "{"}), json.dumps({"messages": [good]})]
            source = self.path(kind + "-odd.jsonl")
            with open(source, "wb") as file:
                file.write(b"\n".join(text.encode() for text in lines) + b"\n\xff\xfe\n")
            more = ("--template", "chatml") if kind in ("chat", "preference") else ()
            more = ("--classes", "0,1,7") if kind in ("classify", "images", "tags") else more
            with self.subTest(kind):
                self.make(kind, source, kind + "-odd", "--validation", "0", *more)
                counts = self.root_of(kind + "-odd")["origin"]["records"]
                self.assertEqual(counts["read"], len(lines) + 1)
                self.assertGreater(counts["malformed"], len(lines) // 4)
                self.prepare("show", self.path(kind + "-odd"), "--check")

    def test_damaged_archives(self):
        choice = random.Random(9)
        text = "".join(json.dumps({"text": line(choice), "label": 1}) + "\n" for _ in range(400)).encode()
        packed = {"gz": gzip.compress(text), "bz2": bz2.compress(text), "xz": lzma.compress(text),
                  "zst": pyarrow.compress(text, "zstd", asbytes=True)}
        for suffix, data in packed.items():
            for at in (0, 20, len(data) // 2, len(data) - 5):
                damaged = bytearray(data)
                damaged[at] ^= 0x5a
                source = self.path("damaged.jsonl." + suffix)
                with open(source, "wb") as file:
                    file.write(damaged)
                result = subprocess.run(
                    [sys.executable, "-m", "fsdpd_prepare", "classify", source, "--tokenizer", self.tokenizer, "-o",
                     self.path("damaged"), "--processes", "1", "--force"], env=ENVIRONMENT, text=True, capture_output=True)
                with self.subTest(suffix=suffix, at=at):
                    self.assertNotIn("Traceback", result.stderr)
                    self.assertIn(result.returncode, (0, 2))
                    if result.returncode == 2:
                        self.assertIn(source, result.stderr)


class Pairs(Kinds):
    def test_texts_that_belong_together(self):
        rows = [{"question": f"red {color}", "answer": "blue red green", "other": "green", "left": "out"}
                for color in ("blue", "green", "red")] + [{"question": "red", "answer": 3}, {"question": ""}]
        source = self.write("questions.jsonl", rows)
        self.make("pairs", source, "questions", "--field", "question,answer", "--validation", "0")
        root = self.root_of("questions")
        self.assertEqual((root["kind"], root["texts"]), ("tokens", 2))
        self.assertEqual(root["origin"]["records"], {"read": 5, "malformed": 2})
        borders, tokens = self.array("questions", "documents"), self.array("questions", "tokens")
        self.assertEqual(len(borders), 2 * 3 + 1)
        documents = [tokens[int(begin):int(end)].tolist() for begin, end in zip(borders, borders[1:])]
        self.assertEqual(documents[1], documents[3])
        self.assertNotEqual(documents[0], documents[2])
        shown = self.prepare("show", self.path("questions"), "-n", "1")
        for words in ("6 documents (3 pairs)", "--- pair 0, question: ", "--- pair 0, answer: "):
            self.assertIn(words, shown)
        self.assertNotIn("pair 1", shown)
        self.make("pairs", source, "three", "--field", "question,answer,other", "--validation", "0", "--max-length", "2")
        self.assertEqual(self.root_of("three")["texts"], 3)
        self.assertEqual(self.root_of("three")["origin"]["records"], {"read": 5, "cut": 3, "malformed": 2})
        self.assertLessEqual(numpy.diff(self.array("three", "documents").astype(int)).max(), 2)
        self.make("pairs", source, "short", "--field", "question,answer", "--validation", "0", "--max-length", "2",
                  "--long", "drop", code=2)
        for fields in ("question", "question,question", "question,"):
            refused = self.make("pairs", source, "none", "--field", fields, code=2)
            self.assertIn("--field: expected 2 to 16 different fields", refused)


class Classify(Kinds):
    def test_numbers_and_names(self):
        source = self.write("numbers.jsonl", [{"text": "red", "label": label} for label in (7, "3", 300, True)])
        self.make("classify", source, "numbers", "--validation", "0")
        self.assertEqual(list(self.array("numbers", "labels")), [7, 3, 300, 1])
        self.assertEqual(self.root_of("numbers")["classes"], 301)
        self.make("classify", source, "floats", "--validation", "0", "--targets", "float")
        self.assertEqual(self.array("floats", "targets").dtype, numpy.float32)
        self.assertEqual(list(self.array("floats", "targets")), [7, 3, 300, 1])
        source = self.write("names.jsonl", [{"text": "red", "label": label} for label in ("no", "yes", "maybe", "no")])
        error = self.make("classify", source, "names", "--validation", "0", "--classes", "yes,no", "--strict", code=2)
        self.assertIn(f"{source}:3: its label is maybe, which is not among --classes", error)
        self.make("classify", source, "names", "--validation", "0", "--classes", "yes,no")
        self.assertEqual(list(self.array("names", "labels")), [1, 0, 1])
        shown = self.prepare("show", self.path("names"), "-n", "1")
        for words in ("   no         2  ####", "--- document 0, no: 2 tokens, 1 count", "1 malformed, 4 read",
                      "1 malformed: its label is maybe", f"skipped {source}:3: its label is maybe"):
            self.assertIn(words, shown)
        mixed = self.write("mixed.jsonl", [{"text": "red", "label": label} for label in ("no", 3)])
        self.assertIn("both names and numbers", self.make("classify", mixed, "mixed", "--validation", "0", code=2))

    def test_numbers_that_were_written_as_floats(self):
        """In numeric order, in tables and in JSON; -1 and -100 are no labels, unless --classes has them."""
        given = [11.0, 0.0, 10.0, 2.0, 1.0, -1.0, -100.0, 9.0, 0]
        rows = "".join(f"red {number},{label}\n" for number, label in enumerate(given))
        with open(self.path("column.csv"), "w") as file:
            file.write("text,label\n" + rows + "red, 3 \nred,4e0\nred,1.5\nred,123456789\nred,-2\n")
        self.write("column.jsonl", [{"text": f"red {number}", "label": label} for number, label in enumerate(given)] +
                   [{"text": "red", "label": label} for label in (3, 4, 1.5, 123456789, -2)])
        for name in ("column.csv", "column.jsonl"):
            result = self.prepare_all("classify", self.path(name), "--tokenizer", self.tokenizer, "-o",
                                      self.path(name + "-data"), "--validation", "0")
            self.assertEqual(self.array(name + "-data", "labels").tolist(), [11, 0, 10, 2, 1, 9, 0, 3, 4])
            root = self.root_of(name + "-data")
            self.assertEqual((root["classes"], root["origin"].get("names")), (12, None))
            self.assertEqual(root["origin"]["records"], {"read": 14, "malformed": 3, "unlabelled": 2})
            self.assertIn("records with the label -1 or -100, which is none, and which do not count: 2;", result.stderr)
            self.assertIn("its label is 1.5: a class is a whole number", result.stderr)
        self.make("classify", self.path("column.csv"), "signs", "--validation", "0", "--classes=-1,0.0,2,1.5")
        self.assertEqual(self.array("signs", "labels").tolist(), [1, 2, 0, 1, 3])
        self.assertEqual(self.root_of("signs")["origin"]["records"], {"read": 14, "malformed": 8, "unlabelled": 1})
        error = self.make("classify", self.path("column.csv"), "none", "--classes", "1,1.0", code=2)
        self.assertIn("--classes: expected different names", error)
        os.makedirs(self.path("halves"))
        Image.new("RGB", (2, 2)).save(self.path("halves/dot.png"))
        self.write("halves/metadata.jsonl", [{"file_name": "dot.png", "label": label} for label in (1.0, -1, 10.0)])
        self.make("images", self.path("halves"), "dots", "--validation", "0")
        self.assertEqual(self.array("dots", "targets").tolist(), [1, 10])

    def test_several_labels(self):
        records = [{"text": "red", "topics": topics} for topics in (["b", "a"], [], "c, a", ["d"], None, [None])]
        source = self.write("topics.jsonl", records)
        several = ("--targets", "labels", "--label", "topics", "--validation", "0")
        error = self.make("classify", source, "topics", *several, code=2)
        self.assertIn("--targets labels: --classes lists the labels in order", error)
        self.make("classify", source, "topics", *several, "--classes", "a,b,c")
        targets = self.array("topics", "targets")
        self.assertEqual((targets.dtype, targets.tolist()), (numpy.float32, [[1, 1, 0], [0, 0, 0], [1, 0, 1]]))
        root = self.root_of("topics")
        self.assertEqual((root["origin"]["names"], root["origin"]["records"]), (["a", "b", "c"], {"read": 6, "malformed": 3}))
        self.assertNotIn("classes", root)
        shown = self.prepare("show", self.path("topics"), "--check")
        for words in ("  a: from 0 to 1, mean 0.666667", "--- document 0, a, b: 2 tokens", "--- document 1, none: 2 tokens",
                      "malformed: its label is d, which is not among --classes", "malformed: its topics is not a list of labels"):
            self.assertIn(words, shown)

    def test_several_numbers(self):
        source = self.write("sizes.jsonl", [{"text": "red", "wide": 1.5, "high": "-2"}, {"text": "red", "wide": 3}])
        error = self.make("classify", source, "sizes", "--label", "wide,high", code=2)
        self.assertIn("--label: expected one field, or different ones with --targets float", error)
        self.make("classify", source, "sizes", "--label", "wide,high", "--targets", "float", "--validation", "0")
        self.assertEqual(self.array("sizes", "targets").tolist(), [[1.5, -2]])
        self.assertEqual(self.root_of("sizes")["origin"]["names"], ["wide", "high"])
        shown = self.prepare("show", self.path("sizes"))
        for words in ("  high: from -2 to -2, mean -2", "--- document 0, 1.5, -2: 2 tokens", "its high is no number"):
            self.assertIn(words, shown)

    def test_a_source_for_validation(self):
        train = self.write("train.jsonl", [{"text": "red", "label": "b"}] * 3)
        other = self.write("other.jsonl", [{"text": "red", "label": "a"}] * 2)
        self.make("classify", train, "two", "--validation", other)
        self.assertEqual(list(self.array("two", "labels")), [1, 1, 1])
        self.assertEqual(list(self.array("two", "labels", "validation")), [0, 0])


    def test_tokens_of_the_tokenizer_itself(self):
        """They are around every text, and the last of them stays where a text is cut."""
        tokenizer = Tokenizer.from_file(os.path.join(self.tokenizer, "tokenizer.json"))
        first, last = tokenizer.token_to_id("<s>"), tokenizer.token_to_id("</s>")
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", first), ("</s>", last)])
        os.makedirs(self.path("ends"))
        tokenizer.save(self.path("ends", "tokenizer.json"))
        source = self.write("ends.jsonl", [{"text": text, "label": 0} for text in ("red", "red green blue what is")])
        for most, lengths in ((0, None), (4, [3, 4])):
            result = subprocess.run(
                [sys.executable, "-m", "fsdpd_prepare", "classify", source, "--tokenizer", self.path("ends"), "-o",
                 self.path("ends-data"), "--validation", "0", "--force", "--max-length", str(most), "--processes", "1"],
                env=ENVIRONMENT, text=True, capture_output=True)
            self.assertEqual(result.returncode, 0, result.stderr)
            tokens, borders = self.array("ends-data", "tokens"), self.array("ends-data", "documents").astype(int)
            for begin, end in zip(borders, borders[1:]):
                self.assertEqual((tokens[begin], tokens[end - 1]), (first, last))
                self.assertNotIn(last, tokens[begin:end - 1])
            self.assertTrue(lengths is None or list(numpy.diff(borders)) == lengths)


class Tags(Kinds):
    def test_the_first_token_of_a_word_has_its_label(self):
        records = [{"tokens": ["red", "zzyzx"], "ner_tags": ["O", "B"]}, {"tokens": ["green"], "ner_tags": ["A"]}]
        self.make("tags", self.write("tags.jsonl", records), "tags", "--validation", "0")
        root = self.root_of("tags")
        self.assertEqual((root["kind"], root["classes"], root["origin"]["names"]), ("tokens", 3, ["A", "B", "O"]))
        labels, borders = self.array("tags", "token_labels"), self.array("tags", "documents").astype(int)
        self.assertEqual(labels.dtype, numpy.int32)
        self.assertEqual([int(label) for label in labels if label != -100], [2, 1, 0])
        self.assertGreater(borders[1], 3)  # a word of several tokens
        self.assertEqual(labels[borders[1]], 0)
        self.assertEqual(len(labels), len(self.array("tags", "tokens")))
        self.assertIn("  O         1  ####", self.prepare("show", self.path("tags"), "-n", "1"))
        records = [{"tokens": ["red", "blue", "red"], "ner_tags": [10.0, -100, 2.0]}, {"tokens": ["red"], "ner_tags": [-1]}]
        result = self.prepare_all("tags", self.write("gaps.jsonl", records), "--tokenizer", self.tokenizer, "-o",
                                  self.path("gaps"), "--validation", "0")
        self.assertEqual([int(label) for label in self.array("gaps", "token_labels")], [10, -100, 2])
        self.assertEqual(self.root_of("gaps")["origin"]["records"], {"read": 2, "unlabelled": 1, "unlabelled words": 1})
        for words in ("fsdpd-prepare: records with the label -1 or -100", "fsdpd-prepare: words with the label -1 or -100"):
            self.assertIn(words, result.stderr)
        wrong = self.write("wrong.jsonl", [{"tokens": ["red", "blue"], "ner_tags": [1]}])
        error = self.make("tags", wrong, "wrong", "--validation", "0", "--strict", code=2)
        self.assertIn(f"{wrong}:1: its ner_tags are not a list with a label for each of its 2 words", error)


class Preference(Kinds):
    def test_forms(self):
        user, good, bad = [{"role": role, "content": text} for role, text in
                           (("user", "red"), ("assistant", "blue"), ("assistant", "green"))]
        forms = [{"prompt": "red", "chosen": "blue", "rejected": "green"},
                 {"prompt": [user], "chosen": [good], "rejected": [bad]},
                 {"chosen": [user, good], "rejected": [user, bad]},
                 {"prompt": "red", "chosen": [user, good], "rejected": [user, bad]}]
        for number, form in enumerate(forms):
            self.make("preference", self.write(f"pairs{number}.jsonl", [form] * 2), f"pairs{number}",
                      "--validation", "0", "--template", "chatml")
            for mine, first in zip(self.arrays(f"pairs{number}"), self.arrays("pairs0")):
                numpy.testing.assert_array_equal(mine, first)
        self.assertEqual(self.root_of("pairs0")["kind"], "pairs")
        shown = self.prepare("show", self.path("pairs0"), "-n", "1")
        for words in ("4 documents (2 pairs)", "--- pair 0, chosen", "[[blue<|im_end|>]]", "--- pair 0, rejected",
                      "[[green<|im_end|>]]"):
            self.assertIn(words, shown)

    def test_what_is_too_long_goes_with_its_pair(self):
        source = self.write("long-pairs.jsonl", [
            {"prompt": "red", "chosen": "blue", "rejected": "green"},
            {"prompt": "red", "chosen": "blue", "rejected": "green " * 200},
            {"prompt": "red " * 200, "chosen": "blue", "rejected": "green"},
            {"prompt": "red", "chosen": "blue", "rejected": "blue"},
            {"prompt": "red", "chosen": "blue"}])
        arguments = ("--validation", "0", "--template", "chatml", "--max-length", "40")
        self.make("preference", source, "dropped", *arguments, "--long", "drop")
        self.assertEqual(self.root_of("dropped")["origin"]["records"], {"read": 5, "dropped": 2, "malformed": 2})
        self.assertEqual(len(self.arrays("dropped")[1]), 3)
        self.make("preference", source, "cut-pairs", *arguments)
        self.assertEqual(self.root_of("cut-pairs")["origin"]["records"], {"read": 5, "cut": 1, "malformed": 3})
        self.assertEqual(len(self.arrays("cut-pairs")[1]), 5)
        shown = self.prepare("show", self.path("cut-pairs"))
        self.assertIn("1 malformed: chosen and rejected are the same", shown)
        self.assertIn("cut: longer than 40 tokens", shown)


class Images(Kinds):
    def draw(self, directory, count, seed, side=32):
        """Pictures in a directory for each class, and their pixels and classes in the order of the names."""
        choice, samples = numpy.random.default_rng(seed), []
        for number in range(count):
            label = int(choice.integers(10))
            # Brightness by class, so that there is something to learn.
            pixels = (choice.integers(0, 80, (side, side, 3)) + 17 * label).astype("uint8")
            os.makedirs(self.path(directory, str(label)), exist_ok=True)
            Image.fromarray(pixels).save(self.path(directory, str(label), f"{number:04}.png"))
            samples.append((str(label), number, pixels))
        samples.sort(key=lambda sample: sample[:2])
        return numpy.stack([pixels for _, _, pixels in samples]), numpy.array([int(label) for label, _, _ in samples])

    def test_pictures_train_as_binary_files(self):
        pixels, labels = self.draw("data/png/train", 320, 1)
        test_pixels, test_labels = self.draw("data/png/test", 64, 2)
        self.make("images", self.path("data/png/train"), "data/pictures", "--validation", self.path("data/png/test"))
        numpy.testing.assert_array_equal(self.array("data/pictures", "images"), pixels)
        numpy.testing.assert_array_equal(self.array("data/pictures", "targets"), labels)
        numpy.testing.assert_array_equal(self.array("data/pictures", "images", "validation"), test_pixels)
        os.makedirs(self.path("data/binary"))
        rows = numpy.concatenate([labels[:, None].astype("uint8"), pixels.transpose(0, 3, 1, 2).reshape(len(labels), -1)], 1)
        for batch in range(5):
            rows[64 * batch:64 * (batch + 1)].tofile(self.path("data/binary", f"data_batch_{batch + 1}.bin"))
        numpy.concatenate([test_labels[:, None].astype("uint8"),
                           test_pixels.transpose(0, 3, 1, 2).reshape(len(test_labels), -1)], 1).tofile(
                               self.path("data/binary/test_batch.bin"))
        with open(self.path("net.yaml"), "w") as file:
            file.write(CNN)
        with open(self.path("job.yaml"), "w") as file:
            file.write("name: pictures\nmodel: {file: net.yaml}\ndata: {format: images, dir: pictures, "
                       "normalize: {mean: 0.5, std: 0.25}, augment: {crop_padding: 4, flip: true}}\n"
                       "train: {epochs: 3, batch_size: 16, test_batch_size: 32, log_interval: 1}\n"
                       "optimizer: {type: adam, lr: 0.002}\nworkers: 2\n")
        losses = []
        with harness.Daemon(data=self.path("data")) as daemon:
            for number, directory in enumerate(("pictures", "binary"), 1):
                result = daemon.ctl("submit", self.path("job.yaml"), "--set", f"data.dir={directory}", "--wait")
                self.assertEqual(result.returncode, 0, result.stdout + result.stderr + daemon.text())
                losses.append(daemon.losses(f"pictures-{number}"))
        self.assertEqual(losses[0], losses[1])
        self.assertLess(losses[0][-1][1], losses[0][0][1] - 0.3)

    def test_tables_of_pictures(self):
        """Paths in a table beside the pictures, and encoded pictures in Parquet, as datasets writes them."""
        pixels, labels = self.draw("plain", 20, 3, side=8)
        files = sorted(os.path.relpath(os.path.join(directory, name), self.path("plain"))
                       for directory, _, names in os.walk(self.path("plain")) for name in names)
        self.write("plain/metadata.jsonl", [{"file_name": name, "label": int(label)} for name, label in zip(files, labels)])
        encoded = []
        for name in files:
            with open(self.path("plain", name), "rb") as file:
                encoded.append({"image": {"bytes": file.read(), "path": name}, "label": int(name.split("/")[0])})
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(encoded), self.path("encoded.parquet"))
        for source, output in ((self.path("plain"), "listed"), (self.path("encoded.parquet"), "encoded")):
            self.make("images", source, output, "--validation", "0")
            numpy.testing.assert_array_equal(self.array(output, "images"), pixels)
            numpy.testing.assert_array_equal(self.array(output, "targets"), labels)
        self.make("images", self.path("plain"), "grey", "--validation", "0", "--mode", "L", "--size", "6x4")
        self.assertEqual(self.array("grey", "images").shape, (20, 6, 4))
        self.assertNotIn("layout", self.root_of("grey"))
        self.make("images", self.path("plain"), "measured", "--validation", "0", "--targets", "float")
        self.assertEqual(self.array("measured", "targets").dtype, numpy.float32)

    def test_malformed_pictures(self):
        self.draw("odd", 6, 5, side=8)
        os.makedirs(self.path("odd/more"))
        Image.new("RGB", (9, 8)).save(self.path("odd/more/a.png"))
        with open(self.path("odd/more/b.jpg"), "w") as file:
            file.write("no picture")
        error = self.make("images", self.path("odd"), "odd-data", "--strict", "--validation", "0", code=2)
        self.assertIn("odd/more/a.png: it has 8 x 9 pixels, the first one 8 x 8; --size resizes", error)
        picture = Image.fromarray(numpy.random.default_rng(6).integers(0, 255, (8, 8, 3)).astype("uint8"))
        picture.save(self.path("odd/more/c.png"))
        os.truncate(self.path("odd/more/c.png"), 120)
        self.make("images", self.path("odd"), "odd-data", "--validation", "0", "--classes", "0,1,2,3,4,5,6,7,8,9,more")
        shown = self.prepare("show", self.path("odd-data"), "-n", "1")
        self.assertIn("train: 6 images of 8 x 8 x 3, uint8", shown)
        self.assertIn("3 malformed, 9 read", shown)
        self.assertIn("odd/more/b.jpg: it is no image", shown)
        self.assertIn("odd/more/c.png: its image cannot be read: ", shown)


class Restart(Kinds):
    def test_a_killed_preparation_continues(self):
        """Its source ends in the middle of a record at first: a pipe."""
        choice = random.Random(7)
        lines = [json.dumps({"text": line(choice), "label": choice.choice(WORDS)}) + "\n" for _ in range(9000)]
        lines[5] = "{no\n"
        source = self.path("piped.jsonl")
        with open(source, "w") as file:
            file.writelines(lines)
        self.make("classify", source, "whole")
        os.remove(source)
        os.mkfifo(source)
        command = [sys.executable, "-m", "fsdpd_prepare", "classify", source, "--tokenizer", self.tokenizer, "-o",
                   self.path("continued"), "--processes", "2"]
        process = subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.DEVNULL, start_new_session=True)
        state = self.path("continued.partial", "state.json")
        with open(source, "w") as pipe:
            pipe.writelines(lines[:8500])
            pipe.flush()
            while not os.path.exists(state):  # harness.PATIENCE ends the wait below
                self.assertIsNone(process.poll())
                try:
                    process.wait(0.05)
                except subprocess.TimeoutExpired:
                    pass
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(harness.PATIENCE)
        os.remove(source)
        self.assertFalse(os.path.exists(self.path("continued")))
        with open(source, "w") as file:
            file.writelines(lines)
        result = subprocess.run(command, env=ENVIRONMENT, text=True, capture_output=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("continuing after 4096 records", result.stderr)
        self.assertIn("piped.jsonl:6: it is not JSON", result.stderr)
        self.same("whole", "continued")
        self.assertFalse(os.path.exists(self.path("continued.partial")))

    def test_other_records_start_over(self):
        lines = [{"text": f"red {number}", "label": number % 3} for number in range(5000)]
        source = self.write("changing.jsonl", [*lines, "{no"])
        self.make("classify", source, "changing", "--strict", code=2)
        self.assertTrue(os.path.exists(self.path("changing.partial/state.json")))
        lines[17]["text"] = "blue"
        self.write("changing.jsonl", lines)
        result = self.prepare_all("classify", source, "--tokenizer", self.tokenizer, "-o", self.path("changing"))
        self.assertIn("the records have changed", result.stderr)
        self.make("classify", source, "fresh")
        self.same("changing", "fresh")

    def test_a_bar_on_a_terminal(self):
        source = self.write("bar.jsonl", [{"text": "red", "label": 1}] * 300)
        terminal, other = pty.openpty()
        command = [sys.executable, "-m", "fsdpd_prepare", "classify", source, "--tokenizer", self.tokenizer, "-o",
                   self.path("bar"), "--processes", "1"]
        result = subprocess.run(command, env=ENVIRONMENT, stderr=other, stdout=subprocess.DEVNULL)
        os.close(other)
        shown = os.read(terminal, 65536).decode()
        os.close(terminal)
        self.assertEqual(result.returncode, 0, shown)
        self.assertIn("[########################] 100 %  300 records", shown)


if __name__ == "__main__":
    harness.main()
