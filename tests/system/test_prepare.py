#!/usr/bin/env python3
"""fsdpd-prepare: conversations become datasets whose counted tokens are exactly the assistant's,
with the same bytes for any number of processes; errors in the input are named; and a tiny Llama
fine-tuned on such a dataset over two workers matches transformers, whose numbers are in
tests/parity/prepare.json (tests/parity/test_prepare_live.py)."""

import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness

sys.dont_write_bytecode = True  # beside the sources
CLIENT = os.path.join(harness.SOURCE, "clients/python")
ENVIRONMENT = dict(os.environ, PYTHONPATH=CLIENT, PYTHONDONTWRITEBYTECODE="1")
sys.path.insert(0, CLIENT)

harness.need("jinja2", "numpy", "tokenizers", "safetensors")
import numpy
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from fsdpd_prepare.chat import NAMED, Chat
from fsdpd_prepare.records import Malformed
from fsdpd_prepare.tokens import Tokens
from fsdpd_prepare.work import mask_of
from fsdpd_prepare.writer import Writer

with open(os.path.join(harness.SOURCE, "tests/parity/prepare.json"), encoding="utf-8") as published:
    NUMBERS = json.load(published)
WORDS = "red green blue small large cat dog house river what is the of a and five seven yes no tell".split()
SPECIALS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
            "<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]",
            "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"]
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]
# The marks of an assistant's turn in each template; Mistral's begins after [/INST] or a result.
TURNS = {"chatml": ("<|im_start|>assistant\n", "<|im_end|>"), "qwen": ("<|im_start|>assistant", "<|im_end|>"),
         "llama3": ("<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"),
         "gemma": ("<start_of_turn>model\n", "<end_of_turn>"), "mistral": (None, "</s>")}


def line(choice, most=9):
    return " ".join(choice.choice(WORDS) for _ in range(choice.randint(1, most)))


def make_tokenizer(directory):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIALS, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    choice = random.Random(1)
    tokenizer.train_from_iterator([line(choice) for _ in range(500)], trainer)
    os.makedirs(directory)
    tokenizer.save(os.path.join(directory, "tokenizer.json"))
    with open(os.path.join(directory, "tokenizer_config.json"), "w") as file:
        json.dump({"bos_token": "<s>", "eos_token": "</s>"}, file)


def draw_tensors(shapes):
    """Float32 weights that every NumPy draws alike; those of norms are about 1."""
    choice = numpy.random.RandomState(1)
    return {name: (choice.standard_normal(shape) / 50 + ("norm.weight" in name.lower())).astype("f4")
            for name, shape in shapes.items()}


def make_llama(directory, vocabulary, context=512, width=32, inner=64, keys=16, layers=2):
    os.makedirs(directory)
    with open(os.path.join(directory, "config.json"), "w", encoding="utf-8") as file:
        json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocabulary,
                   "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers,
                   "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": context,
                   "tie_word_embeddings": False}, file)
    shapes = {"model.embed_tokens.weight": (vocabulary, width), "model.norm.weight": (width,),
              "lm_head.weight": (vocabulary, width)}
    for layer in range(layers):
        for name, shape in (("self_attn.q_proj", (width, width)), ("self_attn.k_proj", (keys, width)),
                            ("self_attn.v_proj", (keys, width)), ("self_attn.o_proj", (width, width)),
                            ("mlp.gate_proj", (inner, width)), ("mlp.up_proj", (inner, width)),
                            ("mlp.down_proj", (width, inner)), ("input_layernorm", (width,)),
                            ("post_attention_layernorm", (width,))):
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
    save_file(draw_tensors(shapes), os.path.join(directory, "model.safetensors"))


def draw(choice, tools=True):
    """A conversation, and the assistant's text in each of its turns."""
    messages, said = [], []
    if choice.random() < 0.5:
        messages.append({"role": "system", "content": line(choice)})
    for _ in range(choice.randint(1, 4)):
        messages.append({"role": "user", "content": line(choice)})
        if tools and choice.random() < 0.3:
            call = {"name": "look_up", "arguments": {"word": choice.choice(WORDS)}}
            messages.append({"role": "assistant", "content": "",
                             "tool_calls": [{"type": "function", "function": call}]})
            said.append(json.dumps(call))
            messages.append({"role": "tool", "content": line(choice)})
        # sometimes repeat the user, so that the text alone does not show which role wrote it
        content = messages[-1]["content"] if choice.random() < 0.2 else line(choice)
        messages.append({"role": "assistant", "content": content})
        said.append(content)
    return messages, said


def pieces_by_turn(name, text):
    """The places of the assistant's turns, by the template's own marks."""
    begin, end = TURNS[name]
    found, at = [], 0
    if begin is not None:
        while (start := text.find(begin, at)) >= 0:
            start += len(begin)
            at = text.index(end, start) + len(end)
            found.append((start, at))
        return found
    while (stop := text.find(end, at)) >= 0:
        start = max(text.rfind(sign, at, stop) + len(sign) if sign in text[at:stop] else at
                    for sign in ("[/INST]", "[/TOOL_RESULTS]"))
        at = stop + len(end)
        found.append((start, at))
    return found


class Prepare(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp(prefix="fsdpd-test-")
        cls.tokenizer = os.path.join(cls.root, "tokenizer")
        make_tokenizer(cls.tokenizer)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.root)

    def path(self, *names):
        return os.path.join(self.root, *names)

    def write(self, name, lines):
        with (gzip.open if name.endswith(".gz") else open)(self.path(name), "wt", encoding="utf-8") as file:
            file.writelines((text if isinstance(text, str) else json.dumps(text)) + "\n" for text in lines)
        return self.path(name)

    def prepare(self, *arguments, code=0):
        result = subprocess.run([sys.executable, "-m", "fsdpd_prepare", *arguments], text=True,
                                capture_output=True, env=ENVIRONMENT)
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        return result.stdout if code == 0 else result.stderr

    def prepare_all(self, *arguments):
        result = subprocess.run([sys.executable, "-m", "fsdpd_prepare", *arguments], env=ENVIRONMENT, text=True,
                                capture_output=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def chat(self, source, output, *arguments, template="chatml", **options):
        return self.prepare("chat", source, "--tokenizer", self.tokenizer, "--template", template,
                            "-o", self.path(output), "--processes", "1", *arguments, **options)

    def arrays(self, output, split="train"):
        return [numpy.load(self.path(output, f"{split}.{name}.npy")) for name in ("tokens", "documents", "mask")]


class Masks(Prepare):
    def test_counted_tokens_are_the_assistants(self):
        tokens = Tokens(self.tokenizer)
        for name in TURNS:
            choice = random.Random(name)
            chat = Chat(tokens, name)
            for number in range(200):
                messages, said = draw(choice)
                tools = TOOLS if number % 2 else None
                text, spans = chat.spans(messages, tools)
                with self.subTest(template=name, number=number, text=text):
                    expected = pieces_by_turn(name, text)
                    self.assertEqual(len(expected), len(said))
                    for (start, stop), content in zip(expected, said):
                        self.assertIn(content, text[start:stop])
                    ids, offsets = tokens.encode(text)
                    mask = mask_of(offsets, spans)
                    counted = [tokens.decode(ids[at:at + 1]) for at in range(len(ids)) if mask[at]]
                    self.assertEqual("".join(counted).replace("\n", ""),
                                     "".join(text[a:b] for a, b in expected).replace("\n", ""))

    def test_templates_without_marks(self):
        """A tokenizer's own template has no {% generation %}: a turn is the text that it adds."""
        tokens = Tokens(self.tokenizer)
        for name in TURNS:
            with open(os.path.join(NAMED, name + ".jinja"), encoding="utf-8") as file:
                plain = self.path(name + ".jinja")
                with open(plain, "w", encoding="utf-8") as out:
                    out.write(file.read().replace("{%- generation -%}", "").replace("{%- endgeneration -%}", ""))
            marked, found = Chat(tokens, name), Chat(tokens, plain)
            choice = random.Random(name)
            for number in range(100):
                messages, _ = draw(choice)
                text, spans = marked.spans(messages, TOOLS if number % 2 else None)
                other, others = found.spans(messages, TOOLS if number % 2 else None)
                with self.subTest(template=name, number=number):
                    self.assertEqual(text, other)
                    self.assertEqual([text[a:b].strip() for a, b in spans], [text[a:b].strip() for a, b in others])
                    for (a, b), (c, d) in zip(spans, others):  # except a line break before a call
                        self.assertTrue(abs(a - c) <= 1 and b == d, (spans, others))


    def test_system_turns_that_have_no_place(self):
        """Gemma's and Mistral's are in the first question: a second one, one in the middle or one alone would be lost."""
        def turn(role):
            return {"role": role, "content": line(choice)}
        tokens, choice = Tokens(self.tokenizer), random.Random(2)
        for name in TURNS:
            chat = Chat(tokens, name)
            for roles, lost in (("suasua", 4), ("ssua", 2), ("usa", 2), ("sa", 1), ("sua", 0), ("suaua", 0)):
                lost = lost if name in ("gemma", "mistral") else 0
                messages = [turn({"s": "system", "u": "user", "a": "assistant"}[role]) for role in roles]
                with self.subTest(template=name, roles=roles):
                    if lost:
                        with self.assertRaisesRegex(Malformed, f"does not write all of turn {lost}, system's"):
                            chat.spans(messages, None)
                    else:
                        text = chat.spans(messages, None)[0]
                        self.assertTrue(all(message["content"] in text for message in messages))


    def test_a_template_for_tools(self):
        """A tokenizer may have one of its own for conversations with tools, which transformers takes for them."""
        tokens = Tokens(self.tokenizer)
        begin = "{% for message in messages %}{{ message.content }}{% endfor %}"
        tokens.config["chat_template"] = [{"name": "default", "template": begin},
                                          {"name": "tool_use", "template": "{{ tools | tojson }}" + begin}]
        chat, messages = Chat(tokens), [{"role": "user", "content": "red"}, {"role": "assistant", "content": "blue"}]
        self.assertEqual(chat.spans(messages, None), ("redblue", [(3, 7)]))
        self.assertEqual(chat.spans(messages, TOOLS)[0], json.dumps(TOOLS) + "redblue")
        del tokens.config["chat_template"][1]
        with self.assertRaisesRegex(Malformed, "does not write its tools"):
            Chat(tokens).spans(messages, TOOLS)


class Weights(Prepare):
    """weight: 0 and train: false of a turn."""

    def counted(self, output):
        ids, borders, mask = self.arrays(output)
        tokens = Tokens(self.tokenizer)
        return [tokens.decode([one for one, counts in zip(ids[begin:end], mask[begin:end]) if counts])
                for begin, end in zip(borders.astype(int), borders[1:].astype(int))]

    def test_turns_that_do_not_count(self):
        def conversation(keys, of_user=None):
            turns = [{"role": "user", "content": "red", **(of_user or {})}]
            for number, more in enumerate(keys):
                turns += [{"role": "assistant", "content": WORDS[number + 1], **more}, {"role": "user", "content": "what"}]
            return {"messages": turns[:-1]}
        no, yes = {"weight": 0}, {"weight": 1}
        records = [conversation([no, yes]), conversation([{"train": False}, {"train": True}]),
                   conversation([{}, {"weight": 0.0}]), conversation([{"weight": None}, {"weight": 1, "train": False}]),
                   conversation([{}, yes], {"train": False}), conversation([no, no]), conversation([{"weight": 0.5}, {}]),
                   conversation([{"train": "no"}, {}]), conversation([{}, {}], yes)]
        source = self.write("weights.jsonl", records)
        plain = self.path("plain.jinja")
        with open(os.path.join(NAMED, "chatml.jinja"), encoding="utf-8") as file, open(plain, "w", encoding="utf-8") as out:
            out.write(file.read().replace("{%- generation -%}", "").replace("{%- endgeneration -%}", ""))
        for number, template in enumerate(("chatml", plain)):
            output = f"weights-{number}"
            self.chat(source, output, "--validation", "0", template=template)
            self.assertEqual(self.counted(output), [
                "blue<|im_end|>", "blue<|im_end|>", "green<|im_end|>", "green<|im_end|>", "green<|im_end|>blue<|im_end|>"])
            shown = self.prepare("show", self.path(output))
            for words in ("4 malformed, 9 read", "1 malformed: nothing of it counts", "1 malformed: a turn's weight or train is "
                          "[0.5]; expected 0 or 1", "1 malformed: a turn of which every token is to count is not the assistant's"):
                self.assertIn(words, shown)
            self.chat(source, output, "--validation", "0", "--force", "--loss", "last", template=template)
            self.assertEqual(self.counted(output), ["blue<|im_end|>"] * 3)
            self.chat(source, output, "--validation", "0", "--force", "--loss", "all", template=template)
            counted = self.counted(output)
            self.assertEqual(len(counted), 6)
            self.assertNotIn("green<|im_end|>", counted[0])
            self.assertIn("<|im_start|>assistant\nblue<|im_end|>", counted[0])
            self.assertNotRegex(counted[4], r"(green|blue)<\|im_end\|>")
            self.assertEqual(counted[5].count("<|im_end|>"), 4)


class Files(Prepare):
    def test_bytes(self):
        choice = random.Random(1)
        records = [{"messages": draw(choice, tools=False)[0]} for _ in range(300)]
        source = self.write("many.jsonl.gz", records)
        self.chat(source, "one")
        self.chat(source, "three", "--processes", "3")
        for name in sorted(os.listdir(self.path("one"))):
            with open(self.path("one", name), "rb") as one, open(self.path("three", name), "rb") as three:
                self.assertEqual(one.read(), three.read(), name)
        self.assertIn("exists; --force replaces it", self.chat(source, "one", code=2))
        self.chat(source, "one", "--force")
        shown = self.prepare("show", self.path("one"), "-n", "1", "--check")
        ids, borders, mask = self.arrays("one")
        self.assertIn(f"train: {len(borders) - 1} documents, {len(ids)} tokens, {mask.sum()} count", shown)
        self.assertIn("<|im_start|>assistant\n[[", shown)
        # The process that reads it may leave early, as head does.
        command = [sys.executable, "-m", "fsdpd_prepare", "show", self.path("one"), "-n", str(len(borders))]
        read, write = os.pipe()
        os.close(read)
        result = subprocess.run(command, env=ENVIRONMENT, stdout=write, stderr=subprocess.PIPE, text=True)
        os.close(write)
        self.assertEqual((result.returncode, result.stderr), (128 + signal.SIGPIPE, ""))
        with open(self.path("one", "train.mask.npy"), "r+b") as file:
            file.seek(200)
            file.write(b"\x07")
        self.assertIn("train.mask.npy: it is not what was prepared",
                      self.prepare("show", self.path("one"), "--check", code=2))

    def test_forms(self):
        """The same conversation in every form gives the same tokens."""
        forms = [{"messages": [{"role": "user", "content": "red"}, {"role": "assistant", "content": "blue"}]},
                 {"conversations": [{"from": "human", "value": "red"}, {"from": "gpt", "value": "blue"}]},
                 {"instruction": "red", "input": "", "output": "blue"}, {"prompt": "red", "completion": "blue"}]
        for number, form in enumerate(forms):
            self.chat(self.write(f"form{number}.jsonl", [form] * 3), f"form{number}", "--validation", "0")
            for mine, first in zip(self.arrays(f"form{number}"), self.arrays("form0")):
                numpy.testing.assert_array_equal(mine, first)

    def test_calls_with_arguments_in_a_text(self):
        """OpenAI's form, and its older one of a single call, give the tokens of a call with an object."""
        def conversation(message):
            return {"messages": [{"role": "user", "content": "red"}, {"role": "assistant", **message},
                                 {"role": "tool", "content": "blue"}, {"role": "assistant", "content": "green"}]}
        function = {"name": "look_up", "arguments": {"word": "red", "deep": [{"a": None}]}}
        text = {**function, "arguments": json.dumps(function["arguments"], indent=1)}
        for name, message in (("object", {"content": "", "tool_calls": [{"type": "function", "function": function}]}),
                              ("text", {"content": None, "tool_calls": [{"type": "function", "function": text}]}),
                              ("bare", {"content": None, "tool_calls": [text]}),
                              ("old", {"content": None, "function_call": text})):
            self.chat(self.write(f"call-{name}.jsonl", [conversation(message)]), "call-" + name, "--validation", "0")
            for mine, first in zip(self.arrays("call-" + name), self.arrays("call-object")):
                numpy.testing.assert_array_equal(mine, first, name)
        self.assertIn('[[\n<tool_call>\n{"name": "look_up", "arguments": {"word": "red", "deep": [{"a": null}]}}\n</tool_call>',
                      self.prepare("show", self.path("call-text")))
        for wrong in ("", "red", "[1]", '"red"', '{"a": '):
            call = {"content": None, "tool_calls": [{"type": "function", "function": {"name": "a", "arguments": wrong}}]}
            error = self.chat(self.write("call-wrong.jsonl", [conversation(call)]), "call-wrong", "--strict", code=2)
            self.assertIn("call-wrong.jsonl:1: the arguments of a turn's tool call are a text that is no JSON object", error)

    def test_malformed(self):
        good = {"prompt": "red", "completion": "blue"}
        source = self.write("bad.jsonl", [good, "{no", {"messages": []}, {"messages": [{"role": "king"}]}, "[]",
                                          {"messages": [{"role": "user", "content": "a"}]}, good])
        result = subprocess.run([sys.executable, "-m", "fsdpd_prepare", "chat", source, "--tokenizer", self.tokenizer,
                                 "--template", "chatml", "-o", self.path("bad"), "--validation", "0"], text=True,
                                capture_output=True, env=ENVIRONMENT)
        self.assertEqual(result.returncode, 0, result.stderr)
        for words in (f"{source}:2: it is not JSON", f"{source}:3: expected messages",
                      f"{source}:4: a turn's role is 'king'", f"{source}:5: it is not a mapping",
                      f"{source}:6: the assistant says nothing"):
            self.assertIn(words, result.stderr)
        self.assertIn("5 malformed, 7 read", self.prepare("show", self.path("bad")))
        self.assertIn(f"{source}:2: it is not JSON", self.chat(source, "strict", "--strict", code=2))
        self.assertFalse(os.path.exists(self.path("strict")))

    def test_lengths(self):
        source = self.write("long.jsonl", [{"text": "red " * n} for n in (2, 30, 50)])
        for how, lengths in (("split", [4, 10, 10, 10, 2, 10, 10, 10, 10, 10, 2]), ("cut", [4, 10, 10]), ("drop", [4])):
            self.prepare("text", source, "--tokenizer", self.tokenizer, "--max-length", "10", "--long", how,
                         "--validation", "0", "--processes", "1", "-o", self.path(how))
            borders = self.arrays(how)[1]
            self.assertEqual(list(numpy.diff(borders.astype(int))), lengths, how)


class SingleText(Prepare):
    def test_its_end_is_held_out(self):
        """So that a job without any key about validation trains, whatever the seed."""
        os.makedirs(self.path("single"))
        choice = random.Random(8)
        text = "\n".join(line(choice) for _ in range(400))
        with open(self.path("book.txt"), "w") as file:
            file.write(text)
        whole = self.text("whole", "--validation", "0")[0]
        for seed in ("1", "2", "9"):  # 9 would take it for validation
            tokens, documents, mask = self.text("single/book", "--seed", seed, "--force")
            held, borders, counted = self.arrays("single/book", "validation")
            self.assertEqual(len(held), -(-len(whole) // 20))
            numpy.testing.assert_array_equal(numpy.concatenate([tokens, held]), whole)
            self.assertEqual((documents.tolist(), borders.tolist()), ([0, len(tokens)], [0, len(held)]))
            self.assertEqual((mask.tolist(), counted.tolist()), ([1] * len(tokens), [1] * len(held)))
        self.assertIn(f"validation: the last {len(held)} tokens, as no record was chosen\n",
                      self.prepare("show", self.path("single/book"), "--check"))
        make_llama(self.path("single/model"), Tokens(self.tokenizer).vocabulary, 32)
        with open(self.path("single.yaml"), "w") as file:
            file.write("name: single\nmodel: {hf: model}\ndata: {format: dataset, path: book}\ntrain: {max_steps: 4}\n")
        with harness.Daemon(data=self.path("single")) as daemon:
            result = daemon.ctl("submit", self.path("single.yaml"), "--wait", timeout=300)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr + daemon.text())
            self.assertEqual(daemon.show("single-1")["metrics"]["val_step"], 4)

    def text(self, output, *arguments):
        self.prepare("text", self.path("book.txt"), "--tokenizer", self.tokenizer, "-o", self.path(output), "--processes",
                     "1", *arguments)
        return self.arrays(output)

    def test_few_texts(self):
        """The border may be inside a text, and texts behind it are whole."""
        lengths = [3, 1, 4, 1, 5, 9, 2]
        for share in (1e-9, 0.08, 0.1, 0.4, 0.5, 0.9, 0.99):
            writer = Writer(self.path("held"), {}, force=True)
            writer.shapes = {"tokens": ("uint16", ()), "documents": ("uint64", ()), "mask": ("uint8", ())}
            for number, length in enumerate(lengths):
                writer.add("train", {"tokens": list(range(10 * number, 10 * number + length)), "mask": [1] * length})
            held = writer.hold_out(share)
            keep = sum(lengths) - held
            self.assertEqual(held, 0 if share == 0.99 else max(2, -(-sum(lengths) * share // 1)))
            writer.finish({})
            whole = [10 * number + at for number, length in enumerate(lengths) for at in range(length)]
            borders = numpy.cumsum([0, *lengths]).tolist()
            tokens, documents, mask = self.arrays("held")
            self.assertEqual((tokens.tolist(), mask.tolist()), (whole[:keep], [1] * keep))
            self.assertEqual(documents.tolist(), [border for border in borders if border < keep] + [keep])
            if held:
                tokens, documents, mask = self.arrays("held", "validation")
                self.assertEqual((tokens.tolist(), mask.tolist()), (whole[keep:], [1] * held))
                self.assertEqual(documents.tolist(), [0] + [border - keep for border in borders if border > keep])
        source, options = self.write("one.jsonl", [{"text": "red", "label": 1}]), ("--tokenizer", self.tokenizer)
        result = self.prepare_all("classify", source, "-o", self.path("one"), *options)
        self.assertIn("no record was chosen for validation: expected a larger share", result.stderr)


class Training(Prepare):
    STEPS, BATCH = 50, 4

    def documents(self, context):
        """Tokens and labels of each document, which is cut to the context; -100 does not count."""
        ids, borders, mask = self.arrays(self.data + "/chat")
        for begin, end in zip(borders, borders[1:]):
            end = min(int(end), int(begin) + context + 1)
            tokens = ids[int(begin):end].astype("int64")
            labels = numpy.where(mask[int(begin):end] != 0, tokens, -100)
            yield tokens[:-1], labels[1:]

    def padded(self, context):
        return [[document] for document in self.documents(context)]

    def packed(self, context):
        """Best fit: the longest first, each into the fullest row that has room, of equal ones the last used."""
        rows, room, used = [], [], []
        for number, document in enumerate(sorted(self.documents(context), key=lambda pair: -len(pair[0]))):
            fits = [row for row in range(len(rows)) if room[row] >= len(document[0])]
            row = min(fits, key=lambda row: (room[row], -used[row]), default=len(rows))
            if row == len(rows):
                rows.append([])
                room.append(context)
                used.append(0)
            rows[row].append(document)
            room[row] -= len(document[0])
            used[row] = number
        return rows

    def expected(self, windows, rows, context):
        """Losses of transformers on rows of documents."""
        return NUMBERS["losses"][windows]

    def compare(self, windows, context, make_rows, notes):
        self.data = "data-" + windows
        os.makedirs(self.path(self.data))
        choice = random.Random(3)
        self.chat(self.write("chat.jsonl", [{"messages": draw(choice)[0]} for _ in range(120)]), self.data + "/chat")
        make_llama(self.path(self.data, "model"), Tokens(self.tokenizer).vocabulary)
        job = self.path("job.yaml")
        with open(job, "w") as file:
            file.write("name: chat\nmodel: {hf: model}\n"
                       f"data: {{format: dataset, path: chat, windows: {windows}, context: {context}}}\n"
                       f"train: {{max_steps: {self.STEPS}, batch_size: {self.BATCH // 2}, shuffle: false, "
                       "log_interval: 1, evaluate_interval: 25}\n"
                       "optimizer: {type: adamw, lr: 0.001}\nworkers: 2\n")
        rows, mask = make_rows(context), self.path(self.data, "chat/train.mask.npy")
        with harness.Daemon(data=self.path(self.data)) as daemon:
            planned = daemon.ctl("plan", job)
            self.assertEqual(planned.returncode, 0, planned.stderr)
            for note in notes(rows):
                self.assertIn(note, planned.stdout)
            result = daemon.ctl("submit", job, "--wait", timeout=600)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr + daemon.text())
            losses = [loss for _, loss in daemon.losses("chat-1")]
            os.rename(mask, mask + ".gone")
            refused = daemon.ctl("submit", job)
            self.assertGreater(refused.returncode, 0)
            self.assertIn("train.mask.npy", refused.stderr)
            os.rename(mask + ".gone", mask)
        expected = self.expected(windows, rows, context)
        self.assertEqual(len(losses), self.STEPS)
        worst = max(abs(mine / theirs - 1) for mine, theirs in zip(losses, expected))
        print(f"loss {losses[0]:.4f} to {losses[-1]:.4f}, within {worst:.1e} of transformers")
        self.assertLess(worst, 1e-5)
        self.assertLess(losses[-1], losses[0] - 0.5)

    def test_padded_as_transformers(self):
        self.compare("document", 48, self.padded, lambda rows: [
            f"an epoch of the dataset is {len(rows)} documents with ",
            "documents are longer than a window, and are cut"])

    def test_packed_as_transformers(self):
        def notes(rows):
            filled = sum(len(ids) for row in rows for ids, _ in row)
            counted = sum(int((labels >= 0).sum()) for row in rows for _, labels in row)
            documents = sum(map(len, rows))
            self.assertGreater(documents, 2 * len(rows))
            return [f"an epoch of the dataset is {len(rows)} windows with {filled:,} targets, of which {counted:,} "
                    f"count ({100 * counted / filled:.1f} %); windows are {100 * filled / len(rows) / 512:.1f} % full",
                    f"{documents} documents are packed into {len(rows)} windows, {documents / len(rows):.1f} in each"]
        self.compare("packed", 512, self.packed, notes)


if __name__ == "__main__":
    harness.main()
