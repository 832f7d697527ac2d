#!/usr/bin/env python3
"""Counts the model types of transformers' own tables (models/auto/modeling_auto.py) that fsdpd trains, and writes
docs/model-types.md: which, and why the others are not. A type counts if tests/parity/families has numbers of transformers for
the very class of the table, with which tests/parity/test_family_numbers.py compares.

    scripts/model_types.py                    compares the page with the tables of this Python's transformers
    scripts/model_types.py --write            writes the page

Reads the sources of transformers and imports nothing of it."""

import ast
import glob
import importlib.util
import json
import os
import re
import sys

PAGE = "docs/model-types.md"
# of each table: what it is, the least number of types that are to train
TABLES = {"MODEL_FOR_CAUSAL_LM_MAPPING_NAMES": ("Causal language models", 50),
          "MODEL_FOR_MASKED_LM_MAPPING_NAMES": ("Masked language models", 15),
          "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES": ("Image classification", 12)}
DECODER = "its masked language model trains; the same layers as a decoder (`is_decoder`) do not"
EXPERTS = "its layers choose experts for each token"
STATE = "layers with a state: state spaces, linear attention, gated delta rules"
LATENT = "multi-head latent attention: keys are a part with positions and one without"
CROSS = "a decoder whose layers read an encoder, alone or with it"
SENSES = "reads images or sound besides text, in the language model itself"
REASONS = {
    EXPERTS: """afmoe aria_text axk1 axk2 bailing_hybrid beam cohere2_moe dbrx deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v4
        doge dots1 dots3_note dots3_note_text ernie4_5_moe exaone_moe flex_olmo flint glm4_moe glm4_moe_lite glm_moe_dsa gpt_oss
        granitemoe granitemoe_swa granitemoehybrid granitemoeshared hunyuan_v1_moe hy_v3 hy_v4 inkling2_loop_text inkling2_text
        inkling_text jamba jetmoe kimi_linear kolibri1 laguna lara_mini lfm2_moe llama4 llama4_text longcat_flash mellum
        mimo_v2_flash minimax minimax_m2 minimax_m3_vl_text mixtral nemotron_h olmoe phimoe qwen2_moe qwen3_5_moe
        qwen3_5_moe_text qwen3_moe qwen3_next qwen4_exp qwen4_exp_text sarvam_mla sarvam_moe solar_open zaya""",
    STATE: """bamba falcon_h1 falcon_mamba lfm2 lfm3 mamba mamba2 olmo_hybrid qwen3_5 qwen3_5_text recurrent_gemma rwkv xlstm
        zamba zamba2""",
    LATENT: "minicpm3 youtu",
    CROSS: """bart bigbird_pegasus blenderbot blenderbot-small marian mbart mvp pegasus plbart prophetnet trocr whisper""",
    SENSES: """fuyu git got_ocr2 mllama moshi moss_transcribe_diarize musicgen musicgen_melody phi4_multimodal perceiver
        modernvbert ultravbert""",
    "inputs of each layer, keys and values that layers share": """gemma3n gemma3n_text gemma4 gemma4_text gemma4_assistant
        gemma4_unified gemma4_unified_text gemma4_unified_assistant""",
    "xIELU's constants are tensors without dimensions in its files": "apertus apertus1p5_text",
    "weights or sums in few bits": "bitnet ibert",
    "a sink for attention in each head": "granite_swa",
    "queries scaled by their positions": "ministral3",
    "positions from a table of sines, which files leave out or keep as weights": "ctrl xglm roformer",
    "attention is the difference of two": "diffllama",
    "attention that is sparse, approximate, or none": """big_bird longformer reformer mra nystromformer yoso fnet""",
    "disentangled attention: scores of contents with relative positions": "deberta deberta-v2",
    "loops over its layers, whose number depends on the input or an option": "dory hrm_text",
    "bytes in patches, whose length depends on the input": "blt",
    "two streams of attention, or memory of other windows": "xlnet",
    "segments, and relative positions between them": "cpmant",
    "embeddings of languages and adapters that each text chooses": "xlm xmod flaubert",
    "other inputs than tokens: entities, tables, boxes, shapes of letters": "luke tapas layoutlm roc_bert",
    "pools tokens in between": "funnel",
    "convolutions of tokens whose weights depend on them": "convbert",
    "tokens that a text has masked change the others (`token_dropout`)": "esm",
    "weights in files are joined, under names of the first code": "nomic_bert gte jina_embeddings_v3",
    "a decoder for pairs of sequences, with weights of an encoder": "bert-generation",
    "not looked at": """cohere_compass_text emu3 esmc hgnet_v2 mobilebert neomme pp_lcnet squeezebert textnet ultrabert""",
    "windows of attention that are shifted": "swin swinv2 donut-swin",
    "attention to neighbours in two dimensions": "dinat",
    "relative positions in two dimensions": "beit data2vec-vision levit",
    "keys and values at another resolution than queries": "cvt hiera pvt pvt_v2 segformer mobilevit mobilevitv2 swiftformer",
    "padding that differs between sides, as TensorFlow pads": "bit efficientnet mobilenet_v1 mobilenet_v2",
    "modulation by contexts of several sizes": "focalnet",
    "a pixel at a time, as tokens of clusters": "imagegpt",
    "a language model that classifies": "shieldgemma2",
    "images of any shape, as patches with a mask": "siglip2",
    "a wrapper of timm's models": "timm_wrapper",
    "transformers 5 writes a part of its tensors without the prefix of the others": "vit_msn",
}


def tables():
    """{table: {type: [classes]}}, and what version they are of."""
    found = importlib.util.find_spec("transformers")
    if found is None:
        sys.exit(f"{sys.argv[0]}: {sys.executable} has no transformers")
    directory = found.submodule_search_locations[0]
    with open(os.path.join(directory, "__init__.py"), encoding="utf-8") as file:
        version = re.search(r'__version__ = "(.*?)"', file.read())[1]
    with open(os.path.join(directory, "models/auto/modeling_auto.py"), encoding="utf-8") as file:
        tree = ast.parse(file.read())
    made = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and node.targets[0].id in TABLES:
            pairs = (entry.elts for entry in node.value.args[0].elts)
            made[node.targets[0].id] = {
                kind.value: [classes.value] if isinstance(classes, ast.Constant) else [one.value for one in classes.elts]
                for kind, classes in pairs}
    return made, version


def trained():
    """Pairs of a type and a class that have numbers, and other names of such types."""
    pairs = set()
    for path in glob.glob("tests/parity/families/*.json"):
        with open(path, encoding="utf-8") as file:
            for key, record in json.load(file).items():
                if key.startswith("model/"):
                    pairs.add((record["config"]["model_type"], record["class"]))
    for path in glob.glob("families/*.yaml"):
        with open(path, encoding="utf-8") as file:
            kinds = re.search(r"^model_type: (.+)", file.read(), re.MULTILINE)[1].strip("[]").split(", ")
        pairs |= {(kind, name) for kind in kinds[1:] for first, name in set(pairs) if first == kinds[0]}
    return pairs


def code(words):
    return ", ".join(f"`{word}`" for word in words)


def page():
    """The page, and what contradicts it."""
    (found, version), pairs, wrong = tables(), trained(), []
    masked = {kind for kind, _ in pairs if (kind, *found["MODEL_FOR_MASKED_LM_MAPPING_NAMES"].get(kind, [""])) in pairs}
    reasons = {}
    for reason, kinds in REASONS.items():
        for kind in kinds.split():
            if kind in reasons:
                wrong.append(f"{kind} has two reasons")
            reasons[kind] = reason
    text = (f"# Model types\n\nThe types of models (`model_type` of a config.json) that transformers {version} knows in three of its own\n"
            "tables, and which of them fsdpd trains: those for whose class `tests/parity/families` has numbers of transformers.\n"
            "`scripts/model_types.py` wrote this page. [hugging-face.md](hugging-face.md) says what is read of each, and\n"
            "[families.md](families.md) how to add one.\n\n| table | types | trained |\n| --- | --- | --- |\n")
    rest, used = "", set()
    for table, (title, least) in TABLES.items():
        kinds = found[table]
        have = sorted(kind for kind in kinds if any((kind, name) in pairs for name in kinds[kind]))
        text += f"| {title} | {len(kinds)} | {len(have)} |\n"
        if len(have) < least:
            wrong.append(f"{title}: {len(have)} types are trained, expected at least {least}")
        rest += f"\n## {title}\n\nTrained: {code(have)}.\n\n| not trained | why |\n| --- | --- |\n"
        lacking = {}
        for kind in sorted(set(kinds) - set(have)):
            reason = DECODER if table.startswith("MODEL_FOR_CAUSAL") and kind in masked else reasons.get(kind)
            used.add(kind)
            if reason is None:
                wrong.append(f"{title}: {kind} has no reason")
            lacking.setdefault(reason, []).append(kind)
        for reason, names in sorted(lacking.items(), key=lambda item: (-len(item[1]), item[1])):
            rest += f"| {code(names)} | {reason} |\n"
    wrong += [f"{kind} is in no table, or is trained" for kind in sorted(reasons.keys() - used)]
    return text + rest, wrong


def main():
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    text, wrong = page()
    for problem in wrong:
        print(problem)
    if "--write" in sys.argv[1:]:
        with open(PAGE, "w", encoding="utf-8") as file:
            file.write(text)
    elif not os.path.exists(PAGE) or open(PAGE, encoding="utf-8").read() != text:
        wrong.append(f"{PAGE} is not what the tables say: {sys.argv[0]} --write")
        print(wrong[-1])
    print("\n".join(re.findall(r"^\| [A-Z].*", text, re.MULTILINE)))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
