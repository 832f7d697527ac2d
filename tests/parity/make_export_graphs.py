#!/usr/bin/env python3
"""Writes export.json: what torch.export captures of the networks of export_networks.py, with a PyTorch that has it. With --compare:
fails if the file says something else."""

import json
import os
import sys
import warnings

SOURCE = os.environ.get("srcdir", ".")
sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.path.join(SOURCE, "clients/python")]
import torch

import export_networks
from fsdpd.export.capture import capture
from fsdpd.export.refusal import Refusal

ALL = {**export_networks.NETWORKS, **export_networks.REFUSALS}
PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "export.json")


def graph_of(name):
    kind, shape, vocabulary = ALL[name]
    torch.manual_seed(1)
    parts = shape if isinstance(shape, dict) else {"text" if vocabulary else "image": shape}
    examples = {
        part: torch.randint(0, vocabulary, (3, *sizes)) if part == "text" else torch.randn(3, *sizes)
        for part, sizes in parts.items()
    }
    example = examples if isinstance(shape, dict) else next(iter(examples.values()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an LSTM's weights
        try:
            graph = capture(kind(), example)
        except Refusal as refusal:
            return {"refused": [refusal.place.replace(os.path.dirname(refusal.place) + "/", ""), refusal.reason]}
    for node in graph["nodes"]:
        node["place"] = os.path.basename(node["place"])
    return graph


def main():
    graphs = {name: graph_of(name) for name in ALL}
    lines = [f"{json.dumps(name)}: {json.dumps(graph, separators=(',', ':'))}" for name, graph in graphs.items()]
    text = "{" + ",\n".join(lines) + "}\n"
    if "--compare" not in sys.argv:
        with open(PATH, "w", encoding="utf-8") as file:
            file.write(text)
        return 0
    with open(PATH, encoding="utf-8") as file:
        known = json.load(file)
    differ = [name for name in graphs if known.get(name) != json.loads(json.dumps(graphs[name]))]
    for name in differ:
        print(f"{name}: torch.export captures another graph than {PATH} has")
    return int(bool(differ))


if __name__ == "__main__":
    sys.exit(main())
