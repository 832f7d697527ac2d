"""Records to entries of a dataset, in several processes; the result does not depend on how many."""
import collections
import concurrent.futures
import hashlib
import itertools
import multiprocessing
from typing import NamedTuple

from .labels import label_of, targets_of
from .records import Malformed, Record, UsageError, as_mapping, digest_of

CHUNK = 64  # records that a process takes at a time
work = None  # of this process


class Result(NamedTuple):
    record: str     # its place
    digest: bytes
    split: str
    entries: list   # mappings from an array's name to what the entry adds to it
    done: str       # with a record that is too long; "": nothing
    wrong: str      # "": nothing


def mask_of(offsets, spans):
    """1 for each token that has text of a span. Spans are in order, as tokens are."""
    mask, at = [], 0
    for begin, end in offsets:
        while at < len(spans) and spans[at][1] <= begin:
            at += 1
        mask.append(int(at < len(spans) and begin < spans[at][1] and end > spans[at][0]))
    return mask


def text_of(record, field):
    text = record.get(field)
    if not isinstance(text, str):
        raise Malformed(f"its {field} is no text")
    return text


class TokenWork:
    """What the kinds of documents share: the tokenizer, and what is done beyond the longest length."""

    counts_required = False  # whether a document in which nothing counts is malformed

    def __init__(self, settings):
        from .tokens import Tokens
        self.settings = settings
        self.tokens = Tokens(settings["tokenizer"])

    def documents(self, record):
        """Pairs of ids and mask of a record."""
        raise NotImplementedError

    def label(self, record):
        """What the label's array gets, if there is one."""
        return {}

    def fit(self, ids, mask):
        """The documents of one, and what was done to it."""
        most, how = self.settings["max_length"], self.settings["long"]
        if not most or len(ids) <= most:
            return [(ids, mask)], ""
        if how == "drop":
            return [], "dropped"
        if how == "split":
            return [(ids[at:at + most], mask[at:at + most]) for at in range(0, len(ids), most)], "split"
        return [(ids[:most], mask[:most])], "cut"

    def entries(self, record, path):
        found, done, label = [], "", self.label(record)
        if None in label.values():
            return [], "unlabelled"
        whole = self.documents(record)
        for ids, mask in whole:
            if not ids:
                raise Malformed("it is empty")
            parts, what = self.fit(ids, mask)
            done = done if done == "dropped" else what or done
            found += parts
        if self.counts_required and done != "dropped":
            kept = [pair for pair in found if any(pair[1][1:])]
            if len(kept) < len(whole):
                raise Malformed(f"nothing of it counts{' once it is ' + done if done else ''}")
            found = kept
        if done == "dropped":
            found = []  # also the other document of a pair
        return [{"tokens": ids, "mask": mask, **label} for ids, mask in found], done


def with_tail(whole, part, tail):
    """The beginning of `whole` that `part` is, with the last elements of `whole` as its last ones."""
    return part[:len(part) - tail] + whole[len(whole) - tail:] if 0 < tail < len(part) else part


class TextWork(TokenWork):
    def document(self, record, field):
        ids = list(self.tokens.encode(text_of(record, field))[0])
        if ids and self.tokens.end() is not None:
            ids.append(self.tokens.end())
        return ids, [1] * len(ids)

    def documents(self, record):
        return [self.document(record, self.settings["field"])]


class ClassifyWork(TextWork):
    def document(self, record, field):
        if not self.tokens.completes():
            return super().document(record, field)
        ids = self.tokens.complete(text_of(record, field))[0]
        return ids, [1] * len(ids)

    def fit(self, ids, mask):
        """What the tokenizer adds at the end stays there."""
        parts, what = super().fit(ids, mask)
        if what == "cut" and self.tokens.completes():
            parts = [(with_tail(ids, part, self.tokens.tail()), mask) for part, mask in parts]
        return parts, what

    def label(self, record):
        if self.settings["targets"] != "class":
            return {"targets": targets_of(record, self.settings)}
        return {"labels": label_of(record, self.settings["label"], self.settings["classes"])}


class PairsWork(ClassifyWork):
    """A document for each of several fields."""

    def documents(self, record):
        return [self.document(record, field) for field in self.settings["field"].split(",")]

    def label(self, record):
        return {}


class TagsWork(TokenWork):
    """Words with a label each: the first token of a word has it, and the others do not count."""

    def words(self, record):
        words, labels = record.get(self.settings["field"]), record.get(self.settings["label"])
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words) or not words:
            raise Malformed(f"its {self.settings['field']} are not a list of words")
        if not isinstance(labels, list) or len(labels) != len(words):
            raise Malformed(f"its {self.settings['label']} are not a list with a label for each of its {len(words)} words")
        return words, [label_of({"label": label}, "label", self.settings["classes"]) for label in labels]

    def entries(self, record, path):
        words, labels = self.words(record)
        ids, places = self.tokens.complete(words, words=True)
        tags = [labels[place] if place is not None and place not in places[:at] else None
                for at, place in enumerate(places)]
        if labels.count(None) == len(labels):
            return [], "unlabelled"
        if not any(tag is not None for tag in tags):
            raise Malformed("it is empty")
        parts, done = self.fit(ids, tags)
        if done == "cut":
            tail = self.tokens.tail()
            parts = [(with_tail(ids, part, tail), with_tail(tags, kept, tail)) for part, kept in parts]
        return [{"tokens": part, "mask": [1] * len(part), "token_labels": kept, "unlabelled words": labels.count(None)}
                for part, kept in parts], done


class ChatWork(TokenWork):
    counts_required = True

    def __init__(self, settings):
        from .chat import Chat
        super().__init__(settings)
        self.chat = Chat(self.tokens, settings["template"])

    def converse(self, messages, tools):
        text, spans = self.chat.spans(messages, tools)
        if not spans:
            raise Malformed("the template writes nothing of the assistant's")
        ids, offsets = self.tokens.encode(text)
        return ids, self.mask(offsets, spans, messages)

    def mask(self, offsets, spans, messages):
        from .chat import counts
        loss = self.settings["loss"]
        said = [counts(turn) for turn in messages if turn["role"] == "assistant"]
        if (loss != "all") in [counts(turn) for turn in messages if turn["role"] != "assistant"]:
            raise Malformed(f"a turn of which {'no' if loss == 'all' else 'every'} token is to count is not the assistant's")
        if (loss == "last" or False in said) and len(spans) != len(said):
            raise Malformed("the template does not show which text is which turn's: one with {% generation %} for each does")
        if loss == "all":
            return [1 - left for left in mask_of(offsets, [span for span, count in zip(spans, said) if count is False])]
        if loss == "last":
            spans, said = spans[-1:], said[-1:]
        return mask_of(offsets, [span for span, count in zip(spans, said) if count is not False] if False in said else spans)

    def documents(self, record):
        from .chat import messages_of
        return [self.converse(*messages_of(record))]


class PreferenceWork(ChatWork):
    """Two documents for each record: the chosen conversation, then the rejected one."""

    def documents(self, record):
        from .chat import pairs_of
        chosen, rejected, tools = pairs_of(record)
        return [self.converse(chosen, tools), self.converse(rejected, tools)]


class ImageWork:
    def __init__(self, settings):
        from . import images
        self.settings, self.images = settings, images

    def entries(self, record, path):
        field = next((name for name in (self.settings["field"], "file_name") if record.get(name)), None)
        if field is None:
            raise Malformed(f"it has no {self.settings['field']}")
        if self.settings["targets"] != "class":
            target = targets_of(record, self.settings)
        else:
            target = label_of(record, self.settings["label"], self.settings["classes"])
            if target is None:
                return [], "unlabelled"
        data = self.images.bytes_of(record[field], path)
        return [{"images": self.images.decode(data, self.settings["mode"], self.settings["size"]),
                 "targets": target}], ""


KINDS = {"chat": ChatWork, "text": TextWork, "classify": ClassifyWork, "pairs": PairsWork, "tags": TagsWork,
         "preference": PreferenceWork, "images": ImageWork}


def split_of(settings, number):
    """Which split a record belongs to: by its number and the seed alone. The first one trains, as it may be the only one."""
    if number == 0:
        return "train"
    digest = hashlib.sha256(f"{settings['seed']} {number}".encode()).digest()
    share = int.from_bytes(digest[:8], "big") / 2**64
    return "validation" if share < settings["validation"] else "train"


def do_record(number: int, record: Record) -> Result:
    place, digest = record.path + record.where, digest_of(record)
    split = record.split or split_of(work.settings, number)
    try:
        entries, done = work.entries(as_mapping(record.value), record.path)
        return Result(place, digest, split, entries, done, "")
    except Malformed as error:
        return Result(place, digest, split, [], "", str(error))


def begin(settings):
    global work
    work = KINDS[settings["kind"]](settings)


def do_chunk(chunk):
    return [do_record(*item) for item in chunk]


def chunks(numbered):
    return iter(lambda: list(itertools.islice(numbered, CHUNK)), [])


def run(numbered, settings, processes):
    """The results of pairs of a number and a record, in their order."""
    begin(settings)  # also so that a wrong setting is reported once
    if processes <= 1:
        for chunk in chunks(numbered):
            yield from do_chunk(chunk)
        return
    pool = concurrent.futures.ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), begin, (settings,))
    pending = collections.deque()
    try:
        for chunk in chunks(numbered):
            pending.append(pool.submit(do_chunk, chunk))
            if len(pending) >= 4 * processes:  # what is read ahead stays small
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()
    except concurrent.futures.process.BrokenProcessPool:
        raise UsageError("a worker process was killed; with fewer --processes less memory is needed") from None
    finally:
        pool.shutdown(cancel_futures=True)
