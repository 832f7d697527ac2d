"""Odd records for fsdpd-prepare, each drawn by its number: conversations in all forms with all templates, tables with quotes,
labels of every spelling, words, pairs and preferences. tests/system/test_prepare_odd.py prepares some and compares with
numbers, tests/parity/test_prepare_live.py all of them with transformers and datasets."""
import csv
import io
import json
import os
import random

COUNT, SAMPLE = 500, 120  # how many there are, and how many have committed numbers
KINDS = ("chat", "classify", "chat", "text", "chat", "tags", "preference", "classify", "pairs", "chat")
WORDS = "red green blue small large cat dog river what is the of a and five seven yes no tell".split()
# Templates that use what the named ones do not: names of special tokens, reasoning, arguments of tojson.
ODD = {"reasons": "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}<think>"
                  "{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}"
                  "{{ c | tojson(separators=(',', ':'), sort_keys=true) }}{% endfor %}{{ pad_token }}<|im_end|>\n{% endfor %}"
                  "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
       "thinks": "{% if tools %}{{ tools | tojson(ensure_ascii=true) }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
                 "{% if m.thinking is defined %}{{ m.thinking | trim }}|{% endif %}{{ m.content }}{% if m.tool_calls %}"
                 "{% for c in m.tool_calls %}{{ (c.function or c).name }}({% for k, v in (c.function or c).arguments.items() %}{{ k }}={{ v | tojson }}"
                 "{% endfor %}){% endfor %}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"}
TOOLS = [{"type": "function", "function": {"name": "look_up", "description": "né", "parameters": {"type": "object", "properties": {}}}}]
QUOTED = ('"red" cat', '"red cat"', 'a "red" cat', 'red, blue', 'red "', '"', '"red', 'red\nblue', 'red, a\nblue', '""', "it's")
SPELLINGS = (  # of labels in a column
    ("0", "1", "10", "2"), ("0.0", "1.0", "11.0", "2.0"), ("pos", "neg", "Neutral", "neg"), ("1", "-1", "0", "3"), ("0", " 1", "2 ", "10"),
    ("-100", "3.0", "2", "0"), ("True", "False", "True", "False"), ("0.5", "1.5", "1", "2"), ("b", "", "a", "B"), ("1e0", "2", "03", "0"),
    ("red cat", "a,b", "z", "é"), ("-2", "-1", "0", "1"), ("12345678901", "1", "2", "3"), ("NA", "null", "x", "y"))
VALUES = ((0, 1, 10, 2), (0.0, 1.0, 11.0, 2.0), ("b", "a", "é", "B"), (True, False, True, False), (1, -1, 0, -100), (0, 0.0, 2, 1.0),
          ("1", "10", "2", "0"), (0.5, 1, 2, 3), (None, 1, 2, 3), (1, "a", 2, 3), (-1.0, 2.0, 0.0, 1.0), ("1.0", "2.0", "0", "3"), (3, 3, 3, 3))


def line(choice, most=6):
    return " ".join(choice.choice(WORDS) for _ in range(choice.randint(1, most)))


def content(choice):
    text = line(choice)
    return choice.choice((text, text, text, text, f"  {text}\n", f"{text} é 漢 🙂", f"a\n\n{text}", "<|im_end|> " + text, "",
                          [{"type": "text", "text": text}], [{"type": "text", "text": text}, {"type": "text", "text": "b"}]))


def call(choice):
    arguments = {"word": choice.choice(WORDS), "é": [1, {"b": None, "a": 2.5}]} if choice.random() < 0.6 else {}
    function = {"name": "look_up", "arguments": arguments}
    if choice.random() < 0.5:
        function["arguments"] = choice.choice((json.dumps(arguments), json.dumps(arguments, indent=2), "{", "3", ""))
    return choice.choice(({"type": "function", "function": function}, {"id": "id1234567", "type": "function", "function": function}, function))


def turn(choice, role):
    message = {"role": role, "content": content(choice)}
    if role == "assistant":
        if choice.random() < 0.2:
            message.update(tool_calls=[call(choice) for _ in range(choice.randint(1, 2))],
                           content=choice.choice((None, "", line(choice))))
        elif choice.random() < 0.15:
            message[choice.choice(("reasoning_content", "thinking", "reasoning"))] = choice.choice((line(choice), "", None))
    if choice.random() < 0.1:
        message.update(choice.choice(({"weight": 0}, {"weight": 1}, {"train": False}, {"train": True}, {"weight": 0.5})))
    if choice.random() < 0.1:
        message.update(choice.choice(({"name": "x"}, {"weight": None}, {"tool_calls": None}, {"tool_calls": []}, {"id": 7})))
    return message


def conversation(choice):
    roles = choice.choice(("ua", "sua", "uaua", "suaua", "uata", "sa", "a", "usa", "suasua", "ssua", "uua", "uaa", "au"))
    names = {"u": "user", "a": "assistant", "s": choice.choice(("system", "system", "developer")), "t": "tool"}
    record = {"messages": [turn(choice, names[role]) for role in roles]}
    if choice.random() < 0.2:
        others = {"user": "human", "assistant": "gpt"}
        record = {"conversations": [{**{key: value for key, value in message.items() if key not in ("role", "content")},
                                     "from": others.get(message["role"], message["role"]), "value": message["content"]}
                                    for message in record["messages"]]}
    if choice.random() < 0.2:
        record["tools"] = choice.choice((TOOLS, json.dumps(TOOLS), [], None, "null"))
    if choice.random() < 0.08:
        record["system"] = line(choice)
    if choice.random() < 0.05:
        record["chat_template_kwargs"] = {"enable_thinking": False}
    return record


def table(choice):
    """A .csv or .tsv as programs and people write it."""
    delimiter = choice.choice((",", "\t"))
    labels = list(choice.choice(SPELLINGS)) * 2
    texts = [choice.choice(QUOTED) if choice.random() < 0.15 else line(choice) for _ in labels]
    out = io.StringIO()
    if choice.random() < 0.6:
        rows = csv.writer(out, delimiter=delimiter, quoting=choice.choice((csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC)),
                          lineterminator=choice.choice(("\n", "\r\n")))
        rows.writerows([("text", "label"), *zip(texts, labels)])
        text = out.getvalue()
    else:
        text = "".join(delimiter.join(row) + "\n" for row in [("text", "label"), *zip(texts, labels)])
    if choice.random() < 0.1:
        text = choice.choice(("\ufeff" + text, text.replace("\n", "\n\n", 2), text + "red\n", text + delimiter.join("abc") + "\n"))
    return ("odd.csv" if delimiter == "," else "odd.tsv"), text


def lines(choice, records):
    """The records as JSON lines, or as one list."""
    text = json.dumps(records, ensure_ascii=choice.random() < 0.5)
    return ("odd.json", text) if choice.random() < 0.2 else (
        "odd.jsonl", "".join(json.dumps(record, ensure_ascii=choice.random() < 0.5) + "\n" for record in records))


def case(number):
    """Kind, the name and the text of a file, and further arguments; the template of conversations is their last."""
    choice, kind = random.Random(f"odd {number}"), KINDS[number % len(KINDS)]
    if kind == "chat":
        return kind, *lines(choice, [conversation(choice)]), ["--loss", choice.choice(("assistant", "assistant", "all", "last"))]
    if kind == "preference":
        prompt, answers = line(choice), [turn(choice, "assistant") for _ in range(2)]
        record = choice.choice(({"prompt": prompt, "chosen": line(choice), "rejected": line(choice) + " no"},
                                {"prompt": [turn(choice, "user")], "chosen": answers[:1], "rejected": answers[1:]}))
        return kind, *lines(choice, [record]), []
    if kind == "classify" and choice.random() < 0.6:
        return kind, *table(choice), ["--quotes", choice.choice(("auto", "auto", "none"))]
    if kind == "classify":
        return kind, *lines(choice, [{"text": line(choice), "label": label} for label in choice.choice(VALUES)]), []
    if kind == "text":
        if choice.random() < 0.3:
            return kind, *table(choice), []
        return kind, *lines(choice, [{"text": value if isinstance(value, str) else line(choice), "other": 1}
                                     for value in (content(choice), content(choice))]), []
    if kind == "tags":
        words = [choice.sample(WORDS, choice.randint(1, 4)) for _ in range(3)]
        values = choice.choice(((0, 1, 10, 2), (0.0, 2.0, 11.0, 3.0), ("O", "B-x", "I-x", "O"), (0, -100, 1, -1), (-100, -100, -100, -100)))
        return kind, *lines(choice, [{"tokens": some, "ner_tags": list(values[:len(some)])} for some in words]), []
    return kind, *lines(choice, [{"anchor": line(choice), "positive": choice.choice((line(choice), line(choice) + " é", "", 3))}
                                 for _ in range(2)]), []


def write(directory, name, text):
    path = os.path.join(directory, name)
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(text)
    return path


# ---- files that are no text, and several of them ----

MORE, MORE_SAMPLE = 150, 50
MORE_KINDS = ("images", "table", "several", "images", "table")
MODES = {"RGB": (".png", ".bmp", ".tiff", ".ppm", ".PNG"), "L": (".png", ".bmp", ".pgm", ".gif"), "RGBA": (".png", ".webp"), "LA": (".png",),
         "P": (".png", ".gif"), "1": (".png", ".bmp"), "I;16": (".png", ".tif"), "CMYK": (".tiff",)}


def picture(choice, size, number):
    """A suffix, and the bytes of a file."""
    import numpy
    from PIL import Image
    mode = choice.choice(sorted(MODES) + ["RGB", "L"] * 3)
    suffix = choice.choice(MODES[mode])
    pixels = numpy.array([choice.randrange(256) for _ in range(size[0] * size[1] * 4)], "u1")
    if mode == "I;16":
        image = Image.fromarray(pixels.view("<u2")[:size[0] * size[1]].reshape(size))
    else:
        image = Image.fromarray(pixels.reshape(*size, 4), "RGBA" if mode in ("RGBA", "LA") else "CMYK").convert(mode)
    more = {"lossless": True} if suffix == ".webp" else {}
    if suffix == ".png" and choice.random() < 0.2:
        more["exif"] = Image.Exif()
        more["exif"][0x0112] = choice.randint(1, 8)
    if number >= COUNT + MORE_SAMPLE and mode in ("RGB", "L") and choice.random() < 0.3:
        suffix = ".jpg"  # whose pixels depend on the library
    out = io.BytesIO()
    image.save(out, {".jpg": "jpeg", ".pgm": "ppm", ".tif": "tiff"}.get(suffix, suffix[1:].lower()), **more)
    raw = out.getvalue()
    return suffix, choice.choice((raw[:len(raw) // 2], b"", b"red")) if choice.random() < 0.04 else raw


def put(directory, name, content):
    path = os.path.join(directory, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content if isinstance(content, bytes) else content.encode())
    return path


def pictures(choice, directory, number):
    import pyarrow
    import pyarrow.parquet
    size = choice.choice(((4, 5), (6, 6), (1, 3)))
    form = choice.choice(("folders", "folders", "metadata.csv", "metadata.jsonl", "odd.parquet", "odd.jsonl"))
    names = choice.choice((("b", "a", "é"), ("0", "1", "10"), ("2", "0", "1"), ("a b", "B", "b")))
    records = []
    for n in range(5):
        suffix, raw = picture(choice, size if choice.random() < 0.9 else size[::-1], number)
        label = choice.choice(names)
        name = f"{label}/{n}{suffix}" if form == "folders" else f"{n}{suffix}"
        if form != "odd.parquet":
            put(directory, name, raw)
        image = {"bytes": raw, "path": choice.choice((None, name))} if form == "odd.parquet" else os.path.join(directory, name)
        records.append({"file_name": name, "label": label} if form.startswith("metadata") else {"image": image, "label": label})
    arguments = ["--mode", choice.choice(("RGB", "L")), *(["--size", "4x3"] if choice.random() < 0.5 else [])]
    if form == "folders":
        return "images", [directory], arguments
    if form == "metadata.csv":
        put(directory, form, "file_name,label\n" + "".join(f"{record['file_name']},{record['label']}\n" for record in records))
        return "images", [directory], arguments
    path = os.path.join(directory, form)
    if form == "odd.parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), path, row_group_size=2)
    else:
        put(directory, form, "".join(json.dumps(record) + "\n" for record in records))
    return "images", [directory if form.startswith("metadata") else path], arguments


def typed_table(choice, directory):
    """A table with columns of types that a text does not have."""
    import decimal
    import pyarrow
    import pyarrow.parquet
    kind = choice.choice(("classify", "classify", "classify", "text", "pairs", "tags"))
    name = choice.choice(("odd.parquet", "odd.parquet", "odd.arrow"))
    texts = pyarrow.array([line(choice) + choice.choice(("", " é", "\n")) for _ in range(4)])
    types = [pyarrow.string(), pyarrow.large_string(), pyarrow.dictionary(pyarrow.int8(), pyarrow.string())]
    text = texts.dictionary_encode() if (form := choice.choice(types)) == types[2] else texts.cast(form)
    columns = {"text": text}
    if kind == "classify":
        values, of = choice.choice((
            ([0, 1, 2, 10], "int8"), ([0, 1, 2, 10], "int64"), ([2, 0, 1, 1], "uint64"), ([0.0, 1.0, 2.0, 11.0], "float64"), ([0.0, 1, 2, 3], "float32"),
            ([0.5, 1, 2, 3], "float64"), (["b", "a", "b", "c"], "string"), (["b", "a", "b", "c"], "large_string"), ([True, False, True, True], "bool"),
            ([0, None, 1, 2], "int64"), ([-1, 0, 1, -100], "int32"), (["1", "0", "10", "2"], "string"), ([float("nan"), 1, 0, 2], "float64"),
            (["a", None, "b", "c"], "string"), ([1, 2, 0, 3], "decimal"), ([1, 0, 2, 1], "float16"), ([b"a", b"b", b"a", b"c"], "binary")))
        if of == "decimal":
            columns["label"] = pyarrow.array(list(map(decimal.Decimal, values)), pyarrow.decimal128(5, 2))
        else:
            columns["label"] = pyarrow.array(values).cast(of) if of == "float16" else pyarrow.array(values, getattr(pyarrow, of + "_" * (of == "bool"))())
        if of == "string" and choice.random() < 0.5:
            columns["label"] = columns["label"].dictionary_encode()
    elif kind == "pairs":
        columns = {"positive": text, "other": pyarrow.array([1.5, None, 2, 3]), "anchor": pyarrow.array([line(choice) for _ in range(4)])}
    elif kind == "tags":
        words = [choice.sample(WORDS, choice.randint(1, 4)) for _ in range(4)]
        of = choice.choice(("int64", "int8", "float64"))
        columns = {"ner_tags": pyarrow.array([[n % 3 for n in range(len(some))] for some in words], pyarrow.list_(getattr(pyarrow, of)())),
                   "tokens": pyarrow.array(words, choice.choice((pyarrow.list_, pyarrow.large_list))(pyarrow.string()))}
    table, path = pyarrow.table(columns), os.path.join(directory, name)
    if choice.random() < 0.1:
        table = table.slice(0, 0)
    if name.endswith(".arrow"):
        with choice.choice((pyarrow.ipc.new_stream, pyarrow.ipc.new_file))(path, table.schema) as file:
            file.write_table(table, max_chunksize=choice.choice((1, 3, 100)))
    else:
        pyarrow.parquet.write_table(table, path, row_group_size=choice.choice((1, 3, 100)), compression=choice.choice(("snappy", "gzip", "zstd", "none")))
    if choice.random() < 0.05:
        os.truncate(path, os.path.getsize(path) - 7)
    return kind, [path], []


def several(choice, directory):
    """Files of several forms, whose columns and spellings differ."""
    import pyarrow
    import pyarrow.parquet
    sources, labels = [], choice.choice(((0, 1, 2), (0, 1, 10), ("b", "a", "é"), (0, -1, 1), (0.0, 1.0, 2.0)))
    for number in range(choice.choice((2, 3))):
        records = [{"text": line(choice), "label": choice.choice(labels)} for _ in range(choice.choice((0, 1, 3, 3)))]
        if choice.random() < 0.3:
            records = [{"label": record["label"], "other": number, "text": record["text"]} for record in records]
        suffix = choice.choice((".jsonl", ".csv", ".tsv", ".json", ".parquet"))
        path = os.path.join(directory, choice.choice(("", "a/", "b/"))) + f"{choice.choice('xyz')}-{number}{suffix}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if suffix == ".parquet":
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records or [{"text": "red", "label": labels[0]}]), path)
        elif suffix in (".csv", ".tsv"):
            with open(path, "w", encoding="utf-8", newline="") as file:
                rows = csv.DictWriter(file, list(records[0]) if records else ["text", "label"], delimiter="," if suffix == ".csv" else "\t")
                rows.writeheader()
                rows.writerows(records)
        else:
            write("", path, json.dumps(records) if suffix == ".json" else "".join(json.dumps(record) + "\n" for record in records))
        sources.append(path)
    return "classify", [directory] if choice.random() < 0.3 else sources, []


def more_case(number, directory):
    """Writes the files of a case from COUNT on: kind, sources, and further arguments."""
    choice, kind = random.Random(f"odd {number}"), MORE_KINDS[number % len(MORE_KINDS)]
    os.makedirs(directory)
    if kind == "images":
        return pictures(choice, directory, number)
    return typed_table(choice, directory) if kind == "table" else several(choice, directory)
