"""Requests and responses of /v1/completions with texts, and the same with token ids, as fsdpd has them. Pure."""


class Wrong(Exception):
    """What the client asked is not possible."""


def as_list(value):
    return value if isinstance(value, list) else [] if value is None else [value]


def encode(tokenizer, request):
    """The request for fsdpd, and the texts that end a sequence, which only we can find."""
    if not isinstance(request, dict):
        raise Wrong("the body: expected an object")
    request = dict(request)
    prompt = request.get("prompt")
    if isinstance(prompt, str):
        request["prompt"] = tokenizer.encode(prompt, add_special_tokens=False).ids
    elif isinstance(prompt, list) and prompt and all(isinstance(text, str) for text in prompt):
        request["prompt"] = [tokenizer.encode(text, add_special_tokens=False).ids for text in prompt]
    stops = as_list(request.get("stop"))
    texts = [stop for stop in stops if isinstance(stop, str)]
    if any(text == "" for text in texts):
        raise Wrong("stop: expected texts that are not empty")
    request["stop"] = [tokenizer.token_to_id(text) if isinstance(text, str) else text for text in stops
                       if not isinstance(text, str) or tokenizer.token_to_id(text) is not None]
    if not request["stop"]:
        del request["stop"]
    return request, texts


def text_of(tokenizer, name):
    """The text of a token that fsdpd calls token_id:17."""
    return tokenizer.decode([int(name.partition(":")[2])], skip_special_tokens=False)


def decode(tokenizer, response, request, stops):
    """Adds the texts to fsdpd's response; what follows a text of `stops` is left out of `text`."""
    prompts = request["prompt"]
    if prompts and isinstance(prompts[0], int):
        prompts = [prompts]
    for choice in response["choices"]:
        ids = choice["token_ids"]
        count = len(prompts[choice["index"]]) if request.get("echo") else 0
        made = tokenizer.decode(ids[count:], skip_special_tokens=True)
        ends = [made.find(stop) for stop in stops if stop in made]
        if ends:
            made, choice["finish_reason"] = made[:min(ends)], "stop"
        choice["text"] = tokenizer.decode(ids[:count], skip_special_tokens=True) + made if count else made
        if choice["logprobs"] is None:
            continue
        scores, at, offsets = choice["logprobs"], 0, []
        scores["tokens"] = [text_of(tokenizer, name) for name in scores["tokens"]]
        for text in scores["tokens"]:
            offsets.append(at)
            at += len(text)
        scores["text_offset"] = offsets
        for i, top in enumerate(scores["top_logprobs"]):
            if top is not None:  # several ids may have one text: the most probable one counts
                texts = {}
                for name, value in top.items():
                    text = text_of(tokenizer, name)
                    texts[text] = max(value, texts.get(text, value))
                scores["top_logprobs"][i] = texts
    return response
