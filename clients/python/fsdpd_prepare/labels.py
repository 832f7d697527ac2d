"""Labels of records, and the numbers that they get."""
import functools
import re

from .records import Malformed, UsageError

MOST = 1 << 24
UNLABELLED = (-1, -100)  # as datasets and PyTorch mark what has no label


def plain(label):
    """A number as an int, also one that is a text or has .0 as of a column of floats; other labels as they are."""
    if isinstance(label, str) and re.fullmatch(r"\s*[-+]?\d+(\.\d*)?([eE][-+]?\d{1,2})?\s*", label, re.ASCII):
        label = float(label)
    if isinstance(label, bool) or isinstance(label, float) and label.is_integer():
        label = int(label)
    return label


@functools.lru_cache
def named(classes):
    """The names of classes by what they are as labels."""
    return {plain(name): name for name in classes}


def label_of(record, field, classes=None):
    """A name, a number, or None if it is one of those that mean no label. Without the field, the record's folder."""
    given = record.get(field, record.get("folder") if field == "label" else None)
    label = plain(given)
    if classes and isinstance(label, (int, float)):
        label = named(tuple(classes)).get(label, label if label in UNLABELLED else str(given).strip())
    if label in UNLABELLED:
        return None
    if isinstance(label, int):
        if not 0 <= label < MOST:
            raise Malformed(f"its {field} is {label}; expected 0 to {MOST - 1}")
        return label
    if isinstance(label, float):
        raise Malformed(f"its {field} is {given}: a class is a whole number, or a name among --classes; "
                        "--targets float predicts numbers")
    if not isinstance(label, str) or not label or not label.isprintable():
        raise Malformed(f"its {field} is neither a name nor a number")
    return label


def number_of(record, field):
    value = record.get(field)
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise Malformed(f"its {field} is no number") from None
    if number != number or abs(number) > 3.4028234e38:
        raise Malformed(f"its {field} is not finite")
    return number


def labels_of(record, field, classes):
    """1 for each of the classes that a list names, or a text in which commas separate them; 0 for the others."""
    labels = record.get(field)
    if isinstance(labels, str):
        labels = [name.strip() for name in labels.split(",") if name.strip()]
    if not isinstance(labels, list):
        raise Malformed(f"its {field} is not a list of labels")
    wanted = {label_of({"label": label}, "label", classes) for label in labels}
    for label in sorted(map(str, wanted.difference(classes))):
        raise Malformed(f"its label is {label}, which is not among --classes")
    return [float(name in wanted) for name in classes]


def columns_of(settings):
    """The shape of a record's numbers: a column for each field or class."""
    names = settings["classes"] if settings["targets"] == "labels" else settings["label"].split(",")
    return (len(names),) if settings["targets"] == "labels" or len(names) > 1 else ()


def targets_of(record, settings):
    """The numbers to predict."""
    if settings["targets"] == "labels":
        return labels_of(record, settings["label"], settings["classes"])
    numbers = [number_of(record, field) for field in settings["label"].split(",")]
    return numbers if columns_of(settings) else numbers[0]


class Classes:
    """Numbers labels as they come; in the end names are in order, and numbers are themselves."""

    def __init__(self, known=(), fixed=False):
        self.labels = list(known)
        self.places = {label: place for place, label in enumerate(self.labels)}
        self.fixed = fixed

    def add(self, label):
        if label not in self.places:
            if self.fixed:
                raise Malformed(f"its label is {label}, which is not among --classes")
            self.places[label] = len(self.labels)
            self.labels.append(label)
        return self.places[label]

    def final(self):
        """The number of each label in order of appearance, and the names of classes (None: numbers)."""
        if self.fixed:
            return list(range(len(self.labels))), self.labels
        kinds = {type(label) for label in self.labels}
        if len(kinds) > 1:
            names = [str(label) for label in sorted(self.labels, key=lambda label: (isinstance(label, int), str(label)))]
            raise UsageError(f"labels are both names and numbers: {', '.join(names[:1] + names[-1:])}; --classes "
                             "lists them in order")
        if kinds == {int}:
            return self.labels, None
        order = sorted(self.labels)
        return [order.index(label) for label in self.labels], order
