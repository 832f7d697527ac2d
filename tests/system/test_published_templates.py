#!/usr/bin/env python3
"""fsdpd-prepare with chat templates in the forms that model families publish, which do not mark the assistant's
text: the counted tokens are exactly what the assistant says and the token that ends its turn. The text is what
transformers renders, and marked templates have its mask: their digests are in tests/parity/prepare.json."""

import hashlib
import json
import os
import random
import sys
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness
from test_prepare import NAMED, NUMBERS, TOOLS, Chat, Prepare, Tokens, draw, line, mask_of

from fsdpd_prepare.records import Malformed  # behind test_prepare, which finds it

# As published, without branches that these conversations do not reach.
CHATML = """{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' \
+ '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

LLAMA_3 = """{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' \
+ message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}\
{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}\
{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""

LLAMA_3_1 = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- if not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("Cannot put tools in the first user message when there's no first user message!") }}
    {%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\n' -}}
    {{- "Given the following functions, please respond with a JSON for a function call.\\n\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
    {{- first_user_message + "<|eot_id|>"}}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

QWEN_HEAD = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n\\n<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}\\n</tool_call><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
"""
QWEN_CALLS = """        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
QWEN_2_5 = QWEN_HEAD + """{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and \
not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
""" + QWEN_CALLS
# Qwen 3 writes the reasoning of a turn only behind the last question.
QWEN_3 = QWEN_HEAD + """{%- set ns = namespace(last_query_index=messages|length - 1) %}
{%- for message in messages %}
    {%- if message.role == "user" %}{%- set ns.last_query_index = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content %}
        {%- set reasoning_content = '' %}
        {%- if '</think>' in message.content %}
            {%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}
            {%- set reasoning_content = message.content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning_content) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + \
content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
""" + QWEN_CALLS.replace("""{{- '\\n<tool_call>""", """{%- if (loop.first and content) or (not loop.first) %}{{- '\\n' }}{%- endif %}
            {{- '<tool_call>""")

MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and \
message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS]" + (tools | tojson) + "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST]" + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST]" + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif (message.tool_calls is defined and message.tool_calls is not none) %}
        {{- "[TOOL_CALLS][" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- message["content"] + eos_token}}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {{- '[TOOL_RESULTS]{"content": ' + message.content|string + ', "call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported!") }}
    {%- endif %}
{%- endfor %}
"""

GEMMA_2 = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}\
{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}\
{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}\
{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}\
{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}"""

GEMMA_3 = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {{- message['content'] | trim }}
    {{- '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\\n'}}
{%- endif -%}
"""


def call_of(message):
    call, = message.get("tool_calls", [None])
    return call


def plain(end):
    """A family that knows no calls."""
    return lambda message, last: message["content"] + end


def in_qwen(message, last):
    call = call_of(message)
    if not call:
        return message["content"] + "<|im_end|>"
    return f"<tool_call>\n{json.dumps(call['function'])}\n</tool_call><|im_end|>"


def in_qwen_3(message, last):
    """Reasoning is written behind the last question only, and there also when it is empty in the last turn."""
    call, (thought, answer) = call_of(message), split_reasoning(message["content"])
    if call:
        return in_qwen(message, last) if not thought else None
    return (f"<think>\n{thought}\n</think>\n\n" if last else "") + answer + "<|im_end|>"


def split_reasoning(content):
    thought, sign, answer = content.partition("</think>")
    return (thought.replace("<think>", "").strip("\n"), answer.lstrip("\n")) if sign else ("", content)


def in_llama(message, last):
    call = call_of(message)
    if not call:
        return message["content"] + "<|eot_id|>"
    function = call["function"]
    return json.dumps({"name": function["name"], "parameters": function["arguments"]}) + "<|eot_id|>"


def in_mistral(message, last):
    call = call_of(message)
    return f"[TOOL_CALLS][{json.dumps({**call['function'], 'id': call['id']})}]</s>" if call else message["content"] + "</s>"


# Template, what it writes of the assistant's turns, whether it takes tools and system turns.
FAMILIES = {"chatml": (CHATML, plain("<|im_end|>"), False, True), "llama 3": (LLAMA_3, plain("<|eot_id|>"), False, True),
            "llama 3.1": (LLAMA_3_1, in_llama, True, True), "qwen 2.5": (QWEN_2_5, in_qwen, True, True),
            "qwen 3": (QWEN_3, in_qwen_3, True, True), "mistral": (MISTRAL, in_mistral, True, False),
            "gemma 2": (GEMMA_2, plain("<end_of_turn>"), False, False),
            "gemma 3": (GEMMA_3, plain("<end_of_turn>"), False, True)}


def draw_for(choice, name):
    """A conversation that the family's template takes: Mistral's calls have ids, Qwen 3 reasons."""
    _, _, tools, system = FAMILIES[name]
    messages = draw(choice, tools)[0]
    if not system and messages[0]["role"] == "system":
        del messages[0]
    for number, message in enumerate(messages):
        for call in message.get("tool_calls", []):
            call["id"] = f"id{choice.randrange(10**7):07}"
            messages[number + 1]["tool_call_id"] = call["id"]
        if name == "qwen 3" and message["role"] == "assistant" and "tool_calls" not in message and choice.random() < 0.5:
            message["content"] = f"<think>\n{line(choice)}\n</think>\n\n{message['content']}"
    return messages


def digest(cases):
    return hashlib.sha256(json.dumps(list(cases)).encode()).hexdigest()


class Published(Prepare):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tokens = Tokens(cls.tokenizer)

    def template(self, name, text):
        path = self.path(name.replace(" ", "-") + ".jinja")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return Chat(self.tokens, path)

    def compare(self, name, template, cases):
        """Cases are messages, tools, the text and, with marks, the assistant's spans, as transformers gives them."""
        self.assertEqual(digest(case[2:] for case in cases), NUMBERS["templates"][name], name)

    def test_counted_tokens_are_the_assistants(self):
        for name, (template, expect, takes_tools, _) in FAMILIES.items():
            chat, choice, cases = self.template(name, template), random.Random(name), []
            for number in range(200):
                messages, tools = draw_for(choice, name), TOOLS if takes_tools and number % 2 else None
                text, spans = chat.spans(messages, tools)
                last = max(at for at, message in enumerate(messages) if message["role"] == "assistant")
                expected = [expect(message, at == last) for at, message in enumerate(messages)
                            if message["role"] == "assistant"]
                with self.subTest(template=name, number=number, text=text):
                    self.assertEqual([text[begin:end] for begin, end in spans], expected)
                    ids, offsets = self.tokens.encode(text)
                    mask = mask_of(offsets, spans)
                    self.assertEqual(self.tokens.decode([one for one, counts in zip(ids, mask) if counts]).replace("\n", ""),
                                     "".join(expected).replace("\n", ""))
                cases.append((messages, tools, text))
            self.compare(name, template, cases)

    def test_marks_are_those_of_transformers(self):
        for name in sorted(os.listdir(NAMED)):
            with open(os.path.join(NAMED, name), encoding="utf-8") as file:
                template = file.read()
            chat, choice, cases = self.template("marked", template), random.Random(name), []
            for number in range(200):
                messages, tools = draw(choice)[0], TOOLS if number % 2 else None
                cases.append((messages, tools, *chat.spans(messages, tools)))
            self.compare(name, template, cases)

    def test_what_a_template_refuses(self):
        user, assistant = {"role": "user", "content": "red"}, {"role": "assistant", "content": "blue"}
        system = {"role": "system", "content": "green"}
        for name, messages, words in (("gemma 2", [system, user, assistant], "System role not supported"),
                                      ("gemma 3", [user, user, assistant], "roles must alternate"),
                                      ("mistral", [user, assistant, assistant], "roles must alternate")):
            with self.assertRaises(Malformed) as raised:
                self.template(name, FAMILIES[name][0]).spans(messages, None)
            self.assertIn(words, str(raised.exception))
        call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "look_up", "arguments": {}}}]}
        result = {"role": "tool", "content": "red"}
        for name, messages, tools, words in (
                ("mistral", [system, user, assistant], None, "write all of turn 1, system's"),
                ("chatml", [user, call, result, assistant], None, "write all of turn 2, assistant's"),
                ("llama 3", [user, assistant], TOOLS, "write its tools"),
                ("llama 3.1", [user, {**call, "content": "blue"}, result], None, "write all of turn 2, assistant's")):
            with self.assertRaises(Malformed) as raised:
                self.template(name, FAMILIES[name][0]).spans(messages, tools)
            self.assertIn("the template does not " + words, str(raised.exception))
        nothing = self.template("sorted", "{{ messages | map(attribute='content') | sort | join }}")
        with self.assertRaises(Malformed) as raised:
            nothing.spans([user, assistant], None)
        self.assertIn("does not show which text is that of turn 2", str(raised.exception))


if __name__ == "__main__":
    harness.main()
