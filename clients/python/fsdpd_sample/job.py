"""fsdpd-sample JOB: a running job continues a text, or answers in a chat."""
import json
import os
import sys

from fsdpd_prepare.chat import Chat
from fsdpd_prepare.records import Malformed, UsageError
from fsdpd_prepare.tokens import Tokens


def directory_of(spec, given):
    """The directory with the tokenizer: the one given, or the one that the job's model came from."""
    if given:
        return given
    source = spec.model.hf or spec.model.weights
    for place in (source, os.path.dirname(source)):
        if place and os.path.exists(os.path.join(place, "tokenizer.json")):
            return place
    raise UsageError(f"the job's model is from {source or 'a model file'}, which has no tokenizer.json here; expected --tokenizer DIR")


def stops_of(tokens, directory):
    """Ids that end an answer: the tokenizer's, and those of generation_config.json and config.json."""
    stops = [] if tokens.end() is None else [tokens.end()]
    for name in ("generation_config.json", "config.json"):
        path = os.path.join(directory, name)
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                ends = json.load(file).get("eos_token_id")
            stops += ends if isinstance(ends, list) else [] if ends is None else [ends]
    return sorted(set(stops))


def encode(tokens, options):
    """The prompt's ids: a text as the tokenizer completes it, or the turns of a chat by its template."""
    if options.chat is None:
        ids, _ = tokens.complete(options.prompt)
        return ids[:len(ids) - tokens.tail()]
    turns = [{"role": "system", "content": options.system}] if options.system is not None else []
    turns.append({"role": "user", "content": options.chat})
    return tokens.encode(Chat(tokens).render(turns, None, prompt=True))[0]


def pieces(tokenizer, ids):
    """The text of the ids, as it becomes known: half of a character waits for the rest."""
    seen, said = [], ""
    for id in ids:
        seen.append(id)
        text = tokenizer.decode(seen, skip_special_tokens=True)
        if not text.endswith("\ufffd") and len(text) > len(said):
            yield text[len(said):]
            said = text
    text = tokenizer.decode(seen, skip_special_tokens=True)
    yield text[len(said):]


def run(client, options, out=sys.stdout):
    directory = directory_of(client.job(options.job).spec, options.tokenizer)
    tokens = Tokens(directory)
    settings = {"temperature": options.temperature, "top_k": options.top_k, "min_p": options.min_p, "seed": options.seed,
                "stop": stops_of(tokens, directory)}
    if options.top_p is not None:
        settings["top_p"] = options.top_p
    ids = client.sample_tokens(options.job, encode(tokens, options), options.max_tokens, **settings)
    for text in pieces(tokens.tokenizer, ids):
        out.write(text)
        out.flush()
    out.write("\n")


def main(options):
    import fsdpd
    try:
        with fsdpd.connect(options.address) as client:
            run(client, options)
    except (fsdpd.Error, UsageError, Malformed) as error:
        raise SystemExit(f"fsdpd-sample: {error}") from None
