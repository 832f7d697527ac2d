#!/usr/bin/python3
"""Writes tests/parity/training.json for test_training.py: PyTorch's losses of 200 steps of MNIST's tutorial network on two
Gloo processes, for each of its optimizers. Needs MNIST's files; takes minutes.

tests/parity/make_training_numbers.py
"""
import json
import os
import sys
import tempfile

sys.path[:0] = [os.path.dirname(__file__), os.path.join(os.path.dirname(__file__), "../system")]
import harness
import reference
import torch

STEPS = 200


def main():
    directory = harness.find_mnist()
    if not directory:
        sys.exit("MNIST's files were not found: FSDPD_MNIST names their directory")
    numbers = {"versions": {"torch": torch.__version__}, "images": reference.digest(directory)}
    runs = [(STEPS, optimizer) for optimizer in reference.OPTIMIZERS.values()]
    with tempfile.TemporaryDirectory() as results:
        found = reference.train_ddp(directory, runs, os.path.join(results, "results.pt"))
    for name, trained in zip(reference.OPTIMIZERS, found):
        numbers[name] = [float(f"{loss:.8g}") for loss in trained["losses"]]
    with open(os.path.join(os.path.dirname(__file__), "training.json"), "w", encoding="utf-8") as file:
        json.dump(numbers, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
