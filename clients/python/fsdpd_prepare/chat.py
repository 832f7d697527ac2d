"""Conversations as text, and which parts of it the assistant says."""
import datetime
import json
import os

import jinja2
import jinja2.ext
import jinja2.sandbox

from .records import Malformed, UsageError, parse_json

NAMED = os.path.join(os.path.dirname(__file__), "templates")
# Around what a template puts into {% generation %}: characters that no text has.
BEGIN, END, MARK = "\ue0f0", "\ue0f1", "\ue0f2"
ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "model": "assistant",
         "system": "system", "developer": "system", "tool": "tool", "function": "tool", "observation": "tool"}


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        mark = jinja2.nodes.Output([jinja2.nodes.TemplateData(BEGIN)]).set_lineno(line)
        end = jinja2.nodes.Output([jinja2.nodes.TemplateData(END)]).set_lineno(line)
        return [mark, *body, end]


def raise_exception(message):
    raise Malformed(f"the template refuses it: {message}")


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def names():
    return sorted(name[:-len(".jinja")] for name in os.listdir(NAMED) if name.endswith(".jinja"))


def load_template(tokens, name, use="default"):
    """The text of a named template, of a file, or of the tokenizer itself, which may have one for each use."""
    if name in names():
        name = os.path.join(NAMED, name + ".jinja")
    if name is not None:
        try:
            with open(name, encoding="utf-8") as file:
                return file.read()
        except OSError:
            raise UsageError(f"--template {name}: expected {', '.join(names())} or a file") from None
    template = tokens.config.get("chat_template")
    if isinstance(template, list):
        template = next((item["template"] for item in template if item.get("name") == use), None)
    if not template:
        raise UsageError(f"the tokenizer has no chat template; expected --template {', '.join(names())} or a file")
    return template


class Chat:
    def __init__(self, tokens, template=None, use="default"):
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
        environment.filters["tojson"] = to_json
        environment.globals["raise_exception"] = raise_exception
        # A date in a template would make other bytes every day.
        environment.globals["strftime_now"] = lambda form: datetime.date(2024, 7, 26).strftime(form)
        text = load_template(tokens, template, use)
        uses = tokens.config.get("chat_template") if template is None and use == "default" else None
        tooled = isinstance(uses, list) and any(item.get("name") == "tool_use" for item in uses)
        self.for_tools = Chat(tokens, use="tool_use") if tooled else None
        try:
            self.template = environment.from_string(text)
        except jinja2.TemplateError as error:
            raise UsageError(f"the chat template: {error}") from None
        self.marks = "endgeneration" in text
        self.names = {name: tokens.special(name) for name in ("bos_token", "eos_token", *tokens.config)
                      if name in ("bos_token", "eos_token") or name.endswith("_token") and tokens.special(name)}
        self.specials = [text for text in tokens.special_texts() if text]

    def render(self, messages, tools, prompt=False):
        try:
            return self.template.render(messages=messages, tools=tools or None, documents=None,
                                        add_generation_prompt=prompt, **self.names)
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise Malformed(f"the template fails: {error}") from None

    def spans(self, messages, tools):
        """The text of a conversation, and where the assistant's turns begin and end in it."""
        if tools and self.for_tools:
            return self.for_tools.spans(messages, tools)
        if any(mark in str(message) for message in messages for mark in (BEGIN, END)):
            raise Malformed("its text has characters U+E0F0 or U+E0F1")
        text = self.render(messages, tools)
        self.check_written(text, messages, tools)
        return self.marked_spans(text) if self.marks else (text, self.found_spans(text, messages, tools))

    def check_written(self, text, messages, tools):
        """Refuses a conversation of which the template leaves something out, as a second system turn."""
        if tools and self.render(messages, None) == text:
            raise Malformed("the template does not write its tools")
        every = [with_marks(turn, f"{MARK}{number}{MARK}") for number, turn in enumerate(messages)]
        try:
            marked = self.render(every, tools)
        except Malformed:
            marked = ""
        for number, turn in enumerate(messages):
            for what in ("content", "tool_calls"):
                mark = f"{MARK}{number}{MARK}{what}"
                if every[number].get(what) != turn.get(what) and mark not in marked:
                    self.check_changes(text, messages, tools, number, {**turn, what: every[number][what]})

    def check_changes(self, text, messages, tools, number, turn):
        try:
            same = self.render([*messages[:number], turn, *messages[number + 1:]], tools) == text
        except Malformed:
            return
        if same:
            raise Malformed(f"the template does not write all of turn {number + 1}, {turn['role']}'s")

    @staticmethod
    def marked_spans(text):
        plain, spans, length = [], [], 0
        for number, piece in enumerate(text.split(BEGIN)):
            inside, end, rest = piece.partition(END)
            if number == 0:
                inside, rest = "", piece
            elif not end:
                raise Malformed("the template does not end a generation")
            else:
                spans.append((length, length + len(inside)))
            plain.append(inside + rest)
            length += len(inside) + len(rest)
        return "".join(plain), spans

    def found_spans(self, text, messages, tools):
        """What each of the assistant's turns adds, up to the token that ends the turn."""
        spans, at = [], 0
        for number, message in enumerate(messages):
            if message["role"] == "assistant":
                span = self.turn_span(text, messages, tools, number, at)
                if span is None or span[0] < at or span[1] <= span[0]:
                    raise Malformed(f"the template does not show which text is that of turn {number + 1}: one with "
                                    "{% generation %} does")
                spans.append(span)
                at = span[1]
        return spans

    def turn_span(self, text, messages, tools, number, at):
        before, said, prompt = self.added(messages, tools, number)
        if said is not None and text.startswith(before + said):
            return len(before), len(before) + len(said)
        # The template writes earlier turns otherwise when others follow: without their reasoning, for instance.
        if prompt:
            return self.replaced_span(text, messages, tools, number)
        # Nothing is in front of a turn, so that only the end tells it from others: Mistral's.
        begin = text.find(said, at) if said else -1
        return (begin, begin + len(said)) if begin >= 0 else self.replaced_span(text, messages, tools, number)

    def added(self, messages, tools, number):
        """The conversation before a turn, what the turn adds to it (None: it changes that), and the prompt in front."""
        plain, whole = self.render(messages[:number], tools), self.render(messages[:number + 1], tools)
        before = self.render(messages[:number], tools, prompt=True)
        prompt = before[len(plain):] if before.startswith(plain) else ""
        before = before if whole.startswith(before) else plain
        said = self.until_end(whole[len(before):]) if whole.startswith(before) else None
        return before, said, prompt

    def replaced_span(self, text, messages, tools, number):
        """What differs from the conversation in which a turn says something else, with the token that ends it."""
        other = {"role": "assistant", "content": BEGIN}
        try:
            changed = self.render([*messages[:number], other, *messages[number + 1:]], tools)
        except Malformed:
            return None
        begin, sign, rest = changed.partition(BEGIN)
        if not sign or not text.startswith(begin) or not text.endswith(rest) or len(begin) + len(rest) > len(text):
            return None
        end = len(text) - len(rest)
        special = max((special for special in self.specials if text.startswith(special, end)), key=len, default="")
        return len(begin), end + len(special)

    def until_end(self, text):
        """Without what the template writes behind the turn's end: the last special token."""
        end = max((text.rfind(special) + len(special) for special in self.specials if special in text),
                  default=len(text.rstrip("\n")))
        return text[:end]


def with_marks(turn, mark):
    """A turn of which each part that a template should write has a mark of its own."""
    turn = dict(turn)
    if turn["content"].strip():
        turn["content"] += mark + "content"
    if turn.get("tool_calls"):
        turn["tool_calls"] = [with_name(call, f"{mark}tool_calls") for call in turn["tool_calls"]]
    return turn


def with_name(call, more):
    function = call.get("function", call)
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return call
    function = {**function, "name": function["name"] + more}
    return {**call, "function": function} if "function" in call else function


def counts(turn):
    """Whether a turn's tokens count: not with a weight of 0 (OpenAI's) or train: false."""
    given = [turn[key] for key in ("weight", "train") if turn.get(key) is not None]
    if any(isinstance(value, str) or value not in (0, 1) for value in given):
        raise Malformed(f"a turn's weight or train is {given!r}; expected 0 or 1, false or true")
    return all(given) if given else None


def with_object(call):
    """A call whose arguments are an object, as templates expect them: OpenAI's are JSON in a text."""
    function = call.get("function", call)
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = parse_json(function["arguments"])
    except Malformed:
        arguments = None
    if not isinstance(arguments, dict):
        raise Malformed("the arguments of a turn's tool call are a text that is no JSON object")
    function = {**function, "arguments": arguments}
    return {**call, "function": function} if "function" in call else function


def normalise_turn(turn):
    if not isinstance(turn, dict):
        raise Malformed("a turn is not a mapping")
    role = turn.get("role", turn.get("from"))
    if not isinstance(role, str) or role not in ROLES:
        raise Malformed(f"a turn's role is {role!r}; expected one of {', '.join(sorted(ROLES))}")
    content = turn.get("content", turn.get("value"))
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        if not all(isinstance(part, str) for part in parts) or len(parts) < len(content):
            raise Malformed("a turn's content has parts that are no text")
        content = "".join(parts)
    calls = turn.get("tool_calls")
    if turn.get("function_call"):  # OpenAI's form of one call, before tool_calls
        calls = [*(calls or []), {"type": "function", "function": turn["function_call"]}]
    if calls and not (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
        raise Malformed("a turn's tool_calls are no list of mappings")
    if not isinstance(content, str) and not (content is None and calls):
        raise Malformed("a turn's content is no text")
    message = {key: value for key, value in turn.items() if key not in ("from", "value", "function_call") and value is not None}
    message.update(role=ROLES[role], content=content or "")
    counts(message)
    if calls:
        message["tool_calls"] = [with_object(call) for call in calls]
    # Reasoning has several names; templates read the first or the second, as in transformers.
    reasoning = next((message[name] for name in ("reasoning_content", "thinking", "reasoning") if name in message), None)
    if reasoning is not None:
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    return message


def tools_of(record):
    """The functions that the assistant may call; some files have them as JSON in a text."""
    if record.get("chat_template_kwargs"):
        raise Malformed("it has chat_template_kwargs, which are not used")
    tools = record.get("tools") or None
    tools = parse_json(tools) if isinstance(tools, str) else tools
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise Malformed("its tools are no list of mappings")
    return tools


def messages_of(record):
    """The turns of a record in any of the usual forms, and its tools."""
    turns = record.get("messages") or record.get("conversations")
    if isinstance(turns, list) and record.get("system"):
        turns = [{"role": "system", "content": record["system"]}, *turns]
    if turns is None and "instruction" in record and "output" in record:
        extra = record.get("input") or ""
        question = record["instruction"] + ("\n\n" + extra if extra else "") if isinstance(
            record["instruction"], str) else None
        turns = [{"role": "user", "content": question}, {"role": "assistant", "content": record["output"]}]
        if record.get("history"):
            raise Malformed("it has a history, which is not used; messages can have it")
        if record.get("system"):
            turns.insert(0, {"role": "system", "content": record["system"]})
    if turns is None and "prompt" in record and "completion" in record:
        prompt, completion = record["prompt"], record["completion"]
        prompt = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
        completion = completion if isinstance(completion, list) else [{"role": "assistant", "content": completion}]
        turns = prompt + completion
    if not isinstance(turns, list) or not turns:
        raise Malformed("expected messages, conversations, instruction and output, or prompt and completion")
    messages = [normalise_turn(turn) for turn in turns]
    if not any(message["role"] == "assistant" for message in messages):
        raise Malformed("the assistant says nothing")
    return messages, tools_of(record)


def pairs_of(record):
    """Two conversations that begin alike, the better one first, and their tools."""
    if not all(record.get(name) for name in ("chosen", "rejected")):
        raise Malformed("expected chosen and rejected")
    prompt, pair = record.get("prompt", record.get("question")), []
    for name in ("chosen", "rejected"):
        answer = record[name]
        if isinstance(answer, str) and not prompt:
            raise Malformed(f"expected a prompt, as {name} is a text")
        if isinstance(answer, list):
            answer = [normalise_turn(turn) for turn in answer]
            # Many files repeat the prompt in both.
            whole = any(turn["role"] == "user" for turn in answer)
        else:
            whole = False
        pair.append(messages_of({"messages": answer} if whole else {"prompt": prompt or [], "completion": answer})[0])
    if pair[0] == pair[1]:
        raise Malformed("chosen and rejected are the same")
    if any(turns[-1]["role"] != "assistant" for turns in pair):
        raise Malformed("chosen and rejected do not end with the assistant's turn")
    return *pair, tools_of(record)
