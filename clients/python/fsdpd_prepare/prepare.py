"""From the command line's settings to a dataset directory."""
import hashlib
import itertools
import os
import sys

import numpy

from .labels import Classes, columns_of
from .progress import Progress
from .records import Malformed, Reader, UsageError, digest_of
from .work import run
from .writer import IGNORED, Writer

NAMED_MAX = 5       # malformed records that are named
TABLES_MAX = 20     # files that are described
REASONS_MAX = 20    # reasons that are counted apart
SAVE_EVERY = 4096   # records
MESSAGE_MAX = 300   # characters


def settings_of(options):
    """What the dataset's bytes depend on, besides the records."""
    names = ("template", "loss", "field", "label", "targets", "mode", "size", "max_length", "long", "classes", "seed",
             "quotes")
    settings = {name: getattr(options, name, None) for name in names}
    path = getattr(options, "tokenizer", None)
    settings.update(kind=options.verb, tokenizer=path and os.path.abspath(path), validation=options.share)
    return settings


class Preparation:
    def __init__(self, options):
        self.options, self.settings = options, settings_of(options)
        self.vocabulary = None
        if self.settings["tokenizer"]:
            from .tokens import Tokens
            self.vocabulary = Tokens(self.settings["tokenizer"]).vocabulary
        self.numbers = self.settings["targets"] in ("float", "labels")
        self.writer = Writer(options.output, self.settings, options.force)
        self.label = next((name for name in ("labels", "targets", "token_labels") if name in self.shapes_of(None)), None)
        self.load(self.writer.state or {})

    def load(self, state):
        self.records, self.digest = state.get("records", 0), state.get("digest", "")
        self.counts = state.get("counts", {"read": 0})
        self.malformed, self.reasons = state.get("malformed", []), state.get("reasons", {})
        fixed = self.settings["classes"]
        self.classes = Classes(fixed or state.get("classes", ()), bool(fixed))

    def save(self):
        self.writer.save({"records": self.records, "digest": self.digest, "counts": self.counts,
                          "malformed": self.malformed, "reasons": self.reasons, "classes": self.classes.labels})

    def shapes_of(self, entry):
        """The arrays of a split. Of images, the first one decides the size."""
        label = ("float32", columns_of(self.settings)) if self.numbers else ("uint32", ())
        if self.settings["kind"] == "images":
            return {"images": ("uint8", entry["images"].shape if entry else ()), "targets": label}
        shapes = {"tokens": ("uint16" if self.vocabulary <= 1 << 16 else "uint32", ()),
                  "documents": ("uint64", ()), "mask": ("uint8", ())}
        if self.settings["kind"] == "classify":
            shapes["targets" if self.numbers else "labels"] = label
        if self.settings["kind"] == "tags":
            shapes["token_labels"] = ("int32", ())
        return shapes

    def check(self, entry):
        """The entry as it is written; Malformed if it does not fit the others."""
        self.count("unlabelled words", entry.pop("unlabelled words", 0))
        if self.writer.shapes is None:
            self.writer.shapes = {name: (kind, list(item)) for name, (kind, item) in self.shapes_of(entry).items()}
        if "images" in entry:
            size, expected = list(entry["images"].shape), self.writer.shapes["images"][1]
            if size != expected:
                raise Malformed(f"it has {size[0]} x {size[1]} pixels, the first one {expected[0]} x {expected[1]}; "
                                "--size resizes")
        if self.label and not self.numbers:
            entry[self.label] = self.number(entry[self.label])
        return entry

    def number(self, label):
        if not isinstance(label, list):
            return self.classes.add(label)
        return [IGNORED if one is None else self.classes.add(one) for one in label]

    def count(self, what, number=1):
        if number:
            self.counts[what] = self.counts.get(what, 0) + number

    def chain(self, digest):
        self.digest = hashlib.sha256(self.digest.encode() + digest).hexdigest()

    def reader(self):
        self.source = Reader(self.options.sources, self.options.validation_sources, self.settings["kind"] == "images",
                             self.settings["quotes"])
        return self.source

    def skip_done(self, reader):
        """The records that an ended run has not done yet; None if it read others."""
        numbered = enumerate(reader)
        done, digest, self.digest = self.records, self.digest, ""
        for _ in range(done):
            item = next(numbered, None)
            if item is None:
                return None
            self.chain(digest_of(item[1]))
        return numbered if self.digest == digest else None

    def start(self):
        reader = self.reader()
        numbered = self.skip_done(reader)
        if numbered is None:
            print(f"fsdpd-prepare: the records have changed since {self.writer.partial} was begun: it starts over",
                  file=sys.stderr)
            self.writer.start_over()
            self.load({})
            reader = self.reader()
            numbered = enumerate(reader)
        elif self.records:
            print(f"fsdpd-prepare: continuing after {self.records} records", file=sys.stderr)
        return reader, numbered

    def refuse(self, place, wrong):
        place, wrong = printable(place), printable(wrong)
        if self.options.strict:
            raise UsageError(f"{place}: {wrong}")
        self.count("malformed")
        if len(self.malformed) < NAMED_MAX:
            self.malformed.append(f"{place}: {wrong}")
        reason = wrong if wrong in self.reasons or len(self.reasons) < REASONS_MAX else "other reasons"
        self.reasons[reason] = self.reasons.get(reason, 0) + 1

    def take(self, result):
        self.records += 1
        self.counts["read"] += 1
        self.chain(result.digest)
        wrong = result.wrong
        if not wrong:
            try:
                for entry in result.entries:
                    self.writer.add(result.split, self.check(entry))
            except Malformed as error:
                wrong = str(error)
        if wrong:
            self.refuse(result.record, wrong)
        elif result.done:
            self.count(result.done)
        if self.records % SAVE_EVERY == 0:
            self.save()

    def run(self):
        reader, numbered = self.start()
        progress = Progress()
        for result in run(numbered, self.settings, self.options.processes):
            self.take(result)
            progress.tell(reader.share(), self.records)
        progress.end(self.records)
        for line in self.malformed:
            print(f"fsdpd-prepare: skipped {line}", file=sys.stderr)
        if self.counts.get("malformed", 0) > len(self.malformed):
            print(f"fsdpd-prepare: and {self.counts['malformed'] - len(self.malformed)} more", file=sys.stderr)
        for what, things in (("unlabelled", "records"), ("unlabelled words", "words")):
            if what in self.counts:
                print(f"fsdpd-prepare: {things} with the label -1 or -100, which is none, and which do not count: "
                      f"{self.counts[what]}; --classes=-1,... makes it a class", file=sys.stderr)
        for table in self.source.tables.values():
            if table.several:
                print(f"fsdpd-prepare: {table}", file=sys.stderr)
        if "train" not in self.writer.splits:
            raise UsageError("no record is left to train on")
        self.finish()

    def validate(self):
        """Something to validate with, where no record was chosen: of texts the last tokens."""
        held = self.writer.hold_out(self.options.share) if self.settings["kind"] == "text" else 0
        print("fsdpd-prepare: no record was chosen for validation: " + (
            f"the last {held} tokens are held out" if held else "expected a larger share or a source as --validation, or "
            "train.evaluate: false in the job"), file=sys.stderr)
        return held

    def finish(self):
        kind = self.settings["kind"]
        self.writer.end()
        root = {"kind": {"images": "images", "preference": "pairs"}.get(kind, "tokens")}
        origin = {**self.settings, "sources": self.options.sources, "records": self.counts}
        if self.options.share and "validation" not in self.writer.splits:
            origin["held_out"] = self.validate()
        if self.source.tables:
            origin["tables"] = [str(table) for table in itertools.islice(self.source.tables.values(), TABLES_MAX)]
        if self.malformed:
            origin.update(skipped=self.malformed, reasons=self.reasons)
        if self.vocabulary:
            root["vocabulary"] = self.vocabulary
        if kind == "pairs":
            root["texts"] = len(self.settings["field"].split(","))
        if self.settings["targets"] == "labels":
            origin["names"] = self.settings["classes"]
        elif self.label and self.numbers and columns_of(self.settings):
            origin["names"] = self.settings["label"].split(",")
        elif self.label and not self.numbers:
            numbers, names = self.classes.final()
            self.writer.renumber(self.label, numbers)
            root["classes"] = max(numbers) + 1
            if names:
                origin["names"] = names
        if kind == "images" and len(self.writer.shapes["images"][1]) == 3:
            root["layout"] = "NHWC"
        sizes = {name: describe(split) for name, split in sorted(self.writer.splits.items())}
        self.writer.finish({**root, "origin": origin})
        for name, text in sizes.items():
            print(f"{self.options.output}: {name}: {text}")


def printable(text):
    """A message with what a record has in it, which a terminal and a JSON file can hold."""
    text = text if len(text) <= MESSAGE_MAX else text[:MESSAGE_MAX] + "..."
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def describe(split):
    counts = split.counts()
    if "images" in counts:
        return f"{counts['images']} images of {' x '.join(map(str, split.arrays['images'].item))}"
    mask, documents = split.arrays["mask"].values(), split.arrays["documents"].values().astype(numpy.int64)
    # The first token of a document is no target.
    counted = int(numpy.count_nonzero(mask)) - int(numpy.count_nonzero(mask[documents[:-1]]))
    return f"{counts['documents'] - 1} documents, {counts['tokens']} tokens, {counted} count"
