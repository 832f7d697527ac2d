"""fsdpd-prepare: the command line."""
import argparse
import os
import signal
import sys

from .labels import named
from .records import UsageError

TEXTS_MAX = 16  # of a sample


def add_common(parser):
    parser.add_argument("sources", nargs="+", metavar="SOURCE", help="a file, or a directory of files")
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="the dataset directory")
    parser.add_argument("--force", action="store_true", help="replace a dataset that is there")
    parser.add_argument("--validation", default="0.05", metavar="SHARE|SOURCE",
                        help="a share of the records, chosen by the seed (default 0.05), or a source of its own")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quotes", choices=("auto", "csv", "none"), default="auto",
                        help="in .csv and .tsv: around fields (csv), or text (none); auto: csv, unless that merges rows")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--strict", action="store_true", help="stop at the first malformed record")


def add_tokens(parser, long):
    parser.add_argument("--tokenizer", required=True, metavar="DIR", help="a directory with tokenizer.json")
    parser.add_argument("--max-length", type=int, default=0, metavar="TOKENS", help="of a document; 0: any")
    parser.add_argument("--long", choices=long, default=long[0], help=f"what is done beyond --max-length (default {long[0]})")


def add_labels(parser):
    parser.add_argument("--label", default="label", metavar="FIELD,...",
                        help="of a record (default label); without it, the name of the file's directory. Several with "
                             "--targets float")
    parser.add_argument("--targets", choices=("class", "labels", "float"), default="class",
                        help="a class, any number of labels among --classes, or numbers to predict")
    add_classes(parser)


def add_classes(parser):
    parser.add_argument("--classes", type=lambda text: text.split(","), metavar="NAME,...",
                        help="the classes in order; without it, all that occur, sorted")


def add_conversations(parser, losses):
    parser.add_argument("--template", metavar="NAME", help="a chat template by name, or its file; without it the tokenizer's")
    parser.add_argument("--loss", choices=losses, default=losses[0],
                        help="which turns count: the assistant's, all, or the assistant's last")


def add_image_options(parser):
    def size(text):
        from .images import size_from
        return size_from(text)
    parser.add_argument("--size", type=size, metavar="HxW", help="resize all images; without it, all must have one size")
    parser.add_argument("--mode", choices=("RGB", "L"), default="RGB", help="colours (default), or shades of grey")
    parser.add_argument("--field", default="image", help="of a record in a table (default image)")


def make_parser():
    parser = argparse.ArgumentParser(prog="fsdpd-prepare",
                                     description="Makes dataset directories for fsdpd (docs/datasets.md).")
    verbs = parser.add_subparsers(dest="verb", required=True)
    chat = verbs.add_parser("chat", help="conversations, with a loss on what the assistant says")
    add_common(chat)
    add_tokens(chat, ("cut", "drop"))
    add_conversations(chat, ("assistant", "all", "last"))
    text = verbs.add_parser("text", help="texts, every token of which counts")
    add_common(text)
    add_tokens(text, ("split", "cut", "drop"))
    text.add_argument("--field", default="text", help="of a record (default text)")
    classify = verbs.add_parser("classify", help="texts with a label")
    add_common(classify)
    add_tokens(classify, ("cut", "drop"))
    add_labels(classify)
    classify.add_argument("--field", default="text", help="of a record (default text)")
    pairs = verbs.add_parser("pairs", help="texts that belong together, for embeddings")
    add_common(pairs)
    add_tokens(pairs, ("cut", "drop"))
    pairs.add_argument("--field", default="anchor,positive", metavar="FIELD,...",
                       help="of a record: its anchor, its positive and hard negatives (default anchor,positive)")
    tags = verbs.add_parser("tags", help="words with a label each, for token classification")
    add_common(tags)
    add_tokens(tags, ("cut", "drop"))
    tags.add_argument("--field", default="tokens", help="of a record: its words (default tokens)")
    tags.add_argument("--label", default="ner_tags", metavar="FIELD", help="of a record: its labels (default ner_tags)")
    add_classes(tags)
    images = verbs.add_parser("images", help="pictures with a label, for instance a directory for each class")
    add_common(images)
    add_labels(images)
    add_image_options(images)
    preference = verbs.add_parser("preference", help="pairs of a chosen and a rejected answer")
    add_common(preference)
    add_tokens(preference, ("cut", "drop"))
    add_conversations(preference, ("last", "assistant", "all"))
    show = verbs.add_parser("show", help="print a dataset as the model will see it")
    show.add_argument("directory", metavar="DIR")
    show.add_argument("-n", type=int, default=3, metavar="N", help="documents of each split (default 3)")
    show.add_argument("--tokenizer", metavar="DIR", help="instead of the one that the dataset names")
    show.add_argument("--check", action="store_true", help="compare the files with their digests")
    return parser


def check(options):
    """Splits --validation into a share and sources."""
    options.share, options.validation_sources = 0.0, []
    try:
        options.share = float(options.validation)
    except ValueError:
        if not os.path.exists(options.validation):
            raise UsageError(f"--validation {options.validation}: expected a share, a file or a directory") from None
        options.validation_sources = [options.validation]
    if not 0 <= options.share < 1:
        raise UsageError("--validation: expected a share from 0 to below 1")
    if getattr(options, "max_length", 0) < 0 or getattr(options, "max_length", 0) == 1:
        raise UsageError("--max-length: expected at least 2 tokens, or 0")
    texts = options.field.split(",") if options.verb == "pairs" else []
    if texts and ("" in texts or not 2 <= len(set(texts)) == len(texts) <= TEXTS_MAX):
        raise UsageError(f"--field: expected 2 to {TEXTS_MAX} different fields, such as question,answer")
    targets, label = getattr(options, "targets", "class"), getattr(options, "label", "label")
    if targets == "labels" and not options.classes:
        raise UsageError("--targets labels: --classes lists the labels in order")
    fields = label.split(",")
    if len(fields) > 1 and (targets != "float" or "" in fields or len(set(fields)) < len(fields)):
        raise UsageError("--label: expected one field, or different ones with --targets float")
    classes = getattr(options, "classes", None) or []
    if classes and (targets == "float" or len(named(tuple(classes))) < len(classes)):
        raise UsageError("--classes: expected different names, and --targets class or labels")


def main(arguments=None):
    options = make_parser().parse_args(arguments)
    try:
        if options.verb == "show":
            from .show import show
            show(options.directory, options.n, options.tokenizer, options.check)
        else:
            check(options)
            from .prepare import Preparation
            Preparation(options).run()
        sys.stdout.flush()
    except BrokenPipeError:  # for instance into head: end as other tools do, without a word
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except UsageError as error:
        print(f"fsdpd-prepare: {error}", file=sys.stderr)
        return 2
    except ImportError as error:
        print(f"fsdpd-prepare: {error}: pip install './clients/python[prepare]'", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
