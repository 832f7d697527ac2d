"""Writes a dataset directory; docs/datasets.md has the format."""
import hashlib
import json
import math
import os
import shutil

import numpy

from .records import UsageError

HEADER = 128  # bytes, so that the number of elements can be written last
STATE = "state.json"


def hash_file(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            digest.update(piece)
    return digest.hexdigest()


PER_TOKEN = ("tokens", "mask", "token_labels")
IGNORED = -100  # the label of a token that does not count


class Array:
    """An .npy that grows along its first dimension; `count` of its elements are there already."""

    def __init__(self, path, kind, item=(), count=0):
        self.path, self.kind, self.item, self.count = path, numpy.dtype(kind).newbyteorder("<"), tuple(item), count
        self.file = open(path, "r+b" if count else "w+b")
        self.file.truncate(HEADER + count * self.kind.itemsize * int(numpy.prod(self.item, dtype=int)))
        self.file.seek(0, os.SEEK_END)

    def add(self, values):
        array = numpy.asarray(values, dtype=self.kind)
        self.file.write(array.tobytes())
        self.count += len(array)

    def cut(self, count):
        """Removes what is behind the first elements, and returns it; of an array with one dimension."""
        rest, self.count = numpy.array(self.values()[count:]), count
        self.file.truncate(HEADER + count * self.kind.itemsize)
        self.file.seek(0, os.SEEK_END)
        return rest

    def save(self):
        self.file.flush()
        os.fsync(self.file.fileno())

    def values(self):
        """All of it, mapped, of an array with one dimension."""
        self.file.flush()
        return numpy.memmap(self.path, self.kind, "r", HEADER, (self.count,))

    def replace(self, values, kind):
        """The same elements in another type."""
        self.file.close()
        self.__init__(self.path, kind)
        self.add(values)

    def close(self):
        shape = [self.count, *self.item]
        text = f"{{'descr': '{self.kind.str}', 'fortran_order': False, 'shape': {tuple(shape)}, }}"
        text = text.ljust(HEADER - 10 - 1) + "\n"
        self.file.seek(0)
        self.file.write(b"\x93NUMPY\x01\x00" + (HEADER - 10).to_bytes(2, "little") + text.encode("ascii"))
        self.save()
        self.file.close()
        return {"file": os.path.basename(self.path), "type": self.kind.name, "shape": shape,
                "sha256": hash_file(self.path)}


class Split:
    """The arrays of a split. `shapes`: for each array its type and the shape of an element."""

    def __init__(self, directory, name, shapes, counts=None):
        self.arrays = {what: Array(os.path.join(directory, f"{name}.{what}.npy"), kind, item, (counts or {}).get(what, 0))
                       for what, (kind, item) in shapes.items()}
        if "documents" in self.arrays and counts is None:
            self.arrays["documents"].add([0])

    def add(self, entry):
        for what, value in entry.items():
            self.arrays[what].add(value if what in PER_TOKEN else [value])
        if "documents" in self.arrays:
            self.arrays["documents"].add([self.arrays["tokens"].count])

    def counts(self):
        return {what: array.count for what, array in self.arrays.items()}

    def close(self):
        return {name: array.close() for name, array in self.arrays.items()}


class Writer:
    """Writes beside `directory`, which appears whole or not at all. What an ended run with the same settings
    wrote is continued: `state` is then what it saved last."""

    def __init__(self, directory, settings, force=False):
        self.directory, self.settings = directory.rstrip("/"), settings
        if os.path.exists(self.directory) and not force:
            raise UsageError(f"{self.directory} exists; --force replaces it")
        if os.path.exists(self.directory) and not os.path.exists(os.path.join(self.directory, "dataset.json")):
            raise UsageError(f"{self.directory} is no dataset: it is not replaced")
        self.partial = self.directory + ".partial"
        self.shapes, self.splits = None, {}
        self.state = self.read_state()
        if self.state:
            self.shapes = self.state["shapes"]
            self.splits = {name: Split(self.partial, name, self.shapes, counts)
                           for name, counts in self.state["splits"].items()}
        else:
            self.start_over()

    def start_over(self):
        shutil.rmtree(self.partial, ignore_errors=True)
        os.makedirs(self.partial)
        self.state, self.shapes, self.splits = None, None, {}

    def read_state(self):
        try:
            with open(os.path.join(self.partial, STATE), encoding="utf-8") as file:
                state = json.load(file)
        except (OSError, ValueError):
            return None
        return state if state["settings"] == self.settings else None

    def save(self, state):
        """Makes what was added until now, and `state`, survive the end of the process."""
        for split in self.splits.values():
            for array in split.arrays.values():
                array.save()
        path = os.path.join(self.partial, STATE)
        with open(path + ".new", "w", encoding="utf-8") as file:
            json.dump({**state, "settings": self.settings, "shapes": self.shapes,
                       "splits": {name: split.counts() for name, split in self.splits.items()}}, file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(path + ".new", path)

    def add(self, split, entry):
        if split not in self.splits:
            self.splits[split] = Split(self.partial, split, self.shapes)
        self.splits[split].add(entry)

    def renumber(self, what, numbers):
        """Replaces the numbers of labels, in the smallest type that holds them."""
        kind = "int32" if what == "token_labels" else numpy.min_scalar_type(max(numbers)).name
        for split in self.splits.values():
            values = split.arrays[what].values()
            counts = values >= 0
            split.arrays[what].replace(numpy.where(counts, numpy.asarray(numbers)[numpy.where(counts, values, 0)], IGNORED),
                                       kind)

    def hold_out(self, share):
        """Makes the last tokens of the training the validation; returns how many, 0 if there are too few."""
        train = self.splits["train"].arrays
        keep = train["tokens"].count - max(2, math.ceil(share * train["tokens"].count))
        if keep < 2:
            return 0
        documents = train["documents"]
        borders = documents.cut(int(numpy.searchsorted(documents.values(), keep)))
        documents.add([keep])
        self.splits["validation"] = Split(self.partial, "validation", self.shapes)
        for name, array in self.splits["validation"].arrays.items():
            array.add(borders[borders > keep] - numpy.uint64(keep) if name == "documents" else train[name].cut(keep))
        return self.splits["validation"].arrays["tokens"].count

    def end(self):
        """What follows is not continued, but done again."""
        if os.path.exists(os.path.join(self.partial, STATE)):
            os.remove(os.path.join(self.partial, STATE))

    def finish(self, root):
        splits = {name: self.splits[name].close() for name in sorted(self.splits)}
        with open(os.path.join(self.partial, "dataset.json"), "w", encoding="utf-8") as file:
            json.dump({"format": "fsdpd-dataset", "version": 1, "splits": splits, **root}, file, indent=1,
                      sort_keys=True, ensure_ascii=False)
            file.write("\n")
        if os.path.exists(self.directory):
            shutil.rmtree(self.directory)
        os.rename(self.partial, self.directory)
