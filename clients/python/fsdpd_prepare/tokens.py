"""A tokenizer directory of transformers: tokenizer.json and tokenizer_config.json."""
import json
import os

from tokenizers import Tokenizer

from .records import Malformed, UsageError


def token_text(value):
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else ""


class Tokens:
    def __init__(self, directory):
        path = os.path.join(directory, "tokenizer.json")
        if not os.path.exists(path):
            raise UsageError(f"{directory}: there is no tokenizer.json")
        self.tokenizer = Tokenizer.from_file(path)
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.config = {}
        for name in ("special_tokens_map.json", "tokenizer_config.json"):
            if os.path.exists(os.path.join(directory, name)):
                with open(os.path.join(directory, name), encoding="utf-8") as file:
                    self.config.update(json.load(file))
        template = os.path.join(directory, "chat_template.jinja")
        if os.path.exists(template):
            with open(template, encoding="utf-8") as file:
                self.config["chat_template"] = file.read()
        self.vocabulary = max(self.tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    def special(self, name):
        """The text of bos_token, eos_token or another; "" if there is none."""
        return token_text(self.config.get(name))

    def special_texts(self):
        return [token.content for token in self.tokenizer.get_added_tokens_decoder().values()
                if token.special]

    def end(self):
        """The id that ends a document, or None."""
        return self.tokenizer.token_to_id(self.special("eos_token")) if self.special("eos_token") else None

    def completes(self):
        """Whether the tokenizer itself adds tokens to a text, as BERT's [CLS] and [SEP]."""
        return self.tokenizer.num_special_tokens_to_add(False) > 0

    def tail(self):
        """How many of these it adds at the end."""
        added = self.tokenizer.encode("a").special_tokens_mask
        return next((place for place, special in enumerate(reversed(added)) if not special), 0)

    def complete(self, text, words=False):
        """The ids of a text or a list of words, with what the tokenizer adds; for each the number of its word."""
        try:
            encoding = self.tokenizer.encode(text, is_pretokenized=words)
        except (TypeError, UnicodeError):
            raise Malformed("its text has half of a surrogate pair") from None
        return encoding.ids, encoding.word_ids

    def encode(self, text):
        """Ids, and for each the place in `text` where it begins and ends."""
        try:
            encoding = self.tokenizer.encode(text, add_special_tokens=False)
        except (TypeError, UnicodeError):
            raise Malformed("its text has half of a surrogate pair") from None
        return encoding.ids, encoding.offsets

    def decode(self, ids):
        return self.tokenizer.decode(ids, skip_special_tokens=False)
