#!/usr/bin/env python3
"""load_directories.py LIST: what this Python's transformers makes of directories. LIST has a line of JSON for each: its
"path", the "class" that loads it, its "inputs" by name as nested lists; a "save" says where the model is
saved again. Prints a line of JSON for each: the logits in double, or "problem" if the class is not there, cannot load it, or
finds other tensors than its own; the names of the tensors that it saves; and what AutoTokenizer makes of a text. tests/parity/test_pulled.py compares versions."""

import json
import os
import struct
import sys

import torch
import transformers

from family_cases import attention_of

transformers.logging.set_verbosity(100)
transformers.utils.logging.disable_progress_bar()


def names_in(directory):
    with open(os.path.join(directory, "model.safetensors"), "rb") as file:
        header = json.loads(file.read(*struct.unpack("<Q", file.read(8))))
    return sorted(header.keys() - {"__metadata__"})


def load(case):
    architecture = getattr(transformers, case["class"], None)
    if architecture is None:
        return {"lacks": case["class"]}
    model, info = architecture.from_pretrained(case["path"], output_loading_info=True,
                                               attn_implementation=attention_of(case["class"]))
    wrong = {what: sorted(map(str, info[what])) for what in ("missing_keys", "unexpected_keys", "mismatched_keys") if info[what]}
    if wrong:
        return {"problem": json.dumps(wrong)}
    made = {}
    if "save" in case:
        model.save_pretrained(case["save"])
        made["names"] = names_in(case["save"])
    if os.path.exists(os.path.join(case["path"], "tokenizer.json")):
        made["tokens"] = transformers.AutoTokenizer.from_pretrained(case["path"])("w3 w1 w2")["input_ids"]
        made["most"] = transformers.GenerationConfig.from_pretrained(case["path"]).max_new_tokens
    inputs = {name: torch.tensor(values, dtype=torch.double if name == "pixel_values" else torch.long)
              for name, values in case["inputs"].items()}
    with torch.no_grad():
        output = model.double().eval()(**inputs)
    return {**made, "logits": (output.logits if "logits" in output else output.last_hidden_state).tolist()}


def main():
    torch.set_num_threads(1)
    with open(sys.argv[1], encoding="utf-8") as file:
        for line in file:
            try:
                made = load(json.loads(line))
            except Exception as error:  # whatever this version makes of it
                made = {"problem": f"{type(error).__name__}: {error}"}
            print(json.dumps({"version": transformers.__version__, **made}), flush=True)


if __name__ == "__main__":
    main()
