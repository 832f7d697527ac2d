"""Records from files: JSON lines, JSON, CSV, Parquet, Arrow, plain text and pictures, also compressed."""
import bz2
import csv
import gzip
import hashlib
import io
import itertools
import json
import lzma
import os
import zlib
from typing import NamedTuple

PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
TABLES = (".parquet", ".arrow", ".feather", ".orc")
SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", *TABLES, ".txt", ".text", ".md")
PACKED = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": None}
# Of Hugging Face's datasets, beside their data.
NOT_DATA = ("state.json", "dataset_info.json", "dataset_dict.json")
TAB = "\t"
csv.field_size_limit(1 << 28)  # bytes; a field may be a book, and a quote that does not end is not the whole disk
METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")


class Malformed(Exception):
    """A record that cannot be used, and why."""


class UsageError(Exception):
    """What the user asked for cannot be done."""


class Record(NamedTuple):
    path: str    # the file
    where: str   # in the file: ":12"
    value: object  # a mapping, or bytes of JSON that are still to be parsed
    split: str   # "": by its number


def plain_name(path):
    base, suffix = os.path.splitext(path)
    return base if suffix in PACKED else path


def files_of(directory, names, pictures):
    """The files of one directory with records."""
    suffixes = SUFFIXES + PICTURES if pictures else SUFFIXES
    return [os.path.join(directory, name) for name in sorted(names)
            if plain_name(name).lower().endswith(suffixes) and name not in NOT_DATA]


def find_files(sources, pictures=False):
    """The files of files and directories, in a fixed order."""
    files = []
    for source in sources:
        if not os.path.isdir(source):
            files.append(source)
            continue
        for directory, directories, names in os.walk(source, followlinks=True):
            directories.sort()
            if pictures and any(name in METADATA for name in names):  # it names the pictures below
                directories[:], names = [], [name for name in names if name in METADATA]
            files += files_of(directory, names, pictures)
    if not files:
        raise UsageError(f"{', '.join(sources)}: no file ends with "
                         f"{', '.join(PICTURES + SUFFIXES if pictures else SUFFIXES)}")
    return files


def size_of(path):
    try:
        return os.path.getsize(path)
    except OSError:
        return 0  # reading it says why


class Reader:
    """Reads the records of sources in order, and knows which share of the bytes has been read."""

    def __init__(self, sources, validation=(), pictures=False, quotes="auto"):
        self.files = [(path, "") for path in find_files(sources, pictures)]
        if validation:
            self.files = [(path, "train") for path, _ in self.files]
            self.files += [(path, "validation") for path in find_files(validation, pictures)]
        self.total = sum(size_of(path) for path, _ in self.files)
        self.before, self.raw = 0, None
        self.quotes, self.tables = quotes, {}

    def share(self):
        at = self.before
        if self.raw is not None and not self.raw.closed and self.raw.seekable():
            at += self.raw.tell()
        return min(1.0, at / self.total) if self.total else 0.0

    def __iter__(self):
        for path, split in self.files:
            try:
                for where, value in self.read(path):
                    yield Record(path, where, value, split)
            except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
                raise UsageError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
            self.before += size_of(path)
            self.raw = None

    def open(self, path):
        self.raw = open(path, "rb")
        suffix = os.path.splitext(path)[1]
        if suffix == ".zst":
            try:
                import pyarrow
            except ImportError:
                raise UsageError(f"{path}: reading .zst needs Python's package pyarrow") from None
            return pyarrow.CompressedInputStream(self.raw, "zstd")
        return PACKED[suffix](self.raw, "rb") if suffix in PACKED else self.raw

    def text(self, path):
        with self.open(path) as file:
            try:
                return file.read().decode("utf-8-sig")
            except UnicodeDecodeError as error:
                raise UsageError(f"{path}: byte {error.start}: it is not UTF-8") from None

    def read(self, path):
        """Pairs of a place in the file and a record's value."""
        name = plain_name(path).lower()
        if name.endswith((".jsonl", ".ndjson")):
            return self.json_lines(path)
        if name.endswith(".json"):
            return self.json_list(path)
        if name.endswith((".csv", ".tsv")):
            return self.rows(path, TAB if name.endswith(".tsv") else ",")
        if name.endswith(TABLES):
            return self.table(path, name)
        if name.endswith((".txt", ".text", ".md")):
            return iter([("", {"text": self.text(path), "folder": folder_of(path)})])
        if name.endswith(PICTURES):
            return iter([("", {"image": os.path.abspath(path), "folder": folder_of(path)})])
        raise UsageError(f"{path}: expected a file that ends with {', '.join(SUFFIXES)}")

    def json_lines(self, path):
        with self.open(path) as file:
            for number, line in enumerate(io.BufferedReader(file), 1):
                if line.strip():
                    yield f":{number}", line

    def json_list(self, path):
        try:
            records = parse_json(self.text(path))
        except Malformed as error:
            raise UsageError(f"{path}: {error}") from None
        for number, record in enumerate(records if isinstance(records, list) else [records], 1):
            yield f": record {number}", record

    def rows(self, path, delimiter):
        with self.open(path) as file:
            table = Rows(path, io.TextIOWrapper(file, "utf-8-sig", newline=""), delimiter, self.quotes)
            self.tables[path] = table
            yield from table

    def table(self, path, name):
        try:
            import pyarrow
        except ImportError:
            raise UsageError(f"{path}: reading it needs Python's package pyarrow") from None
        with self.open(path) as file:
            source = file if file is self.raw else pyarrow.BufferReader(file.read())
            number = 0
            try:
                for batch in batches(source, name):
                    for record in batch.to_pylist():
                        number += 1
                        yield f": row {number}", record
            except pyarrow.ArrowException as error:
                raise UsageError(f"{path}: after row {number}: {error}") from None


class Rows:
    """The rows of a table in a text, each with its place, and what was decided about them.

    A quote that is text, and not around a field, takes the lines behind it into its field. With quotes "auto" this is
    refused: where such a quote does not end as a field does, and where all rows of several lines can also be as many
    rows of one line, if nothing else in the file shows that quotes are around fields."""

    def __init__(self, path, file, delimiter, quotes):
        self.path, self.delimiter, self.quotes = path, delimiter, quotes
        self.file, self.lines, self.line = file, [], 0
        self.columns, self.several, self.first = [], 0, 0
        self.doubtful, self.shown = 0, False

    def read_lines(self):
        for line in self.file:
            self.lines.append(line)
            yield line

    def refuse(self, line, why):
        raise UsageError(f"{self.path}:{line}: {why}; --quotes none reads quotes as text, --quotes csv as around a field")

    def read(self):
        reader = csv.reader(self.read_lines(), delimiter=self.delimiter, strict=self.quotes == "auto",
                            quoting=csv.QUOTE_NONE if self.quotes == "none" else csv.QUOTE_MINIMAL)
        try:
            for row in reader:
                yield row
                self.line += len(self.lines)
                self.lines.clear()
        except UnicodeDecodeError as error:
            raise UsageError(f"{self.path}:{self.line + len(self.lines) + 1}: {error}") from None
        except csv.Error as error:
            if self.quotes == "auto" and any('"' in line for line in self.lines):
                self.refuse(self.line + 1, f"a quote begins a field that does not end as one ({error})")
            raise UsageError(f"{self.path}:{self.line + 1}: {error}") from None

    def note(self, row):
        """What a row shows about quotes."""
        plain = all(line.count(self.delimiter) == len(self.columns) - 1 for line in self.lines)
        self.shown |= not plain and len(row) == len(self.columns)
        if len(self.lines) > 1:
            self.several += 1
            self.first = self.first or self.line + 1
            self.doubtful = self.doubtful or plain and self.line + 1

    def __iter__(self):
        for row in self.read():
            if not row:
                continue
            if not self.columns:
                self.begin(row)
                continue
            self.note(row)
            record = dict(itertools.zip_longest(self.columns, row[:len(self.columns)]))
            if any(row[len(self.columns):]):
                record[None] = f"it has {len(row)} columns, and the first row has {len(self.columns)}"
            yield f":{self.line + len(self.lines)}", record
        if self.quotes == "auto" and self.doubtful and not self.shown:
            self.refuse(self.doubtful, "a quote makes one row of several lines, each of which is a row without it")

    def begin(self, row):
        self.columns = row
        for name in row:
            if name and row.count(name) > 1:
                raise UsageError(f"{self.path}:{self.line + 1}: two columns are called {name}")

    def __str__(self):
        several = f"; {self.several} rows have several lines, the first at line {self.first}" if self.several else ""
        return (f"{self.path}: columns {', '.join(self.columns)}; {'a tab' if self.delimiter == TAB else 'a comma'} between "
                f"them, quotes {'are text' if self.quotes == 'none' else 'are around fields'}{several}")


def batches(source, name):
    if name.endswith(".parquet"):
        import pyarrow.parquet
        yield from pyarrow.parquet.ParquetFile(source).iter_batches(batch_size=256)
    elif name.endswith(".orc"):
        import pyarrow.orc
        opened = pyarrow.orc.ORCFile(source)
        yield from (opened.read_stripe(i) for i in range(opened.nstripes))
    else:
        import pyarrow
        try:
            yield from pyarrow.ipc.open_stream(source)
        except pyarrow.ArrowInvalid:
            source.seek(0)
            opened = pyarrow.ipc.open_file(source)
            yield from (opened.get_batch(i) for i in range(opened.num_record_batches))


def folder_of(path):
    return os.path.basename(os.path.dirname(os.path.abspath(path)))


def parse_json(text):
    try:
        return json.loads(text)
    except RecursionError:
        raise Malformed("its JSON is too deep") from None
    except ValueError as error:
        raise Malformed(f"it is not JSON: {error}") from None


def as_mapping(record):
    if isinstance(record, (bytes, str)):
        record = parse_json(record)
    if not isinstance(record, dict):
        raise Malformed("it is not a mapping")
    if None in record:  # of a row
        raise Malformed(record[None])
    return record


def digest_of(record):
    """Of the place and the content of a record, to recognise it in another run."""
    digest = hashlib.sha256(f"{record.path}{record.where}\0{record.split}\0".encode("utf-8", "surrogateescape"))
    value = record.value
    digest.update(value if isinstance(value, bytes) else repr(value).encode("utf-8", "surrogatepass"))
    if not record.where and isinstance(value, dict) and "image" in value:
        status = os.stat(record.path)
        digest.update(f"{status.st_size} {status.st_mtime_ns}".encode())
    return digest.digest()
