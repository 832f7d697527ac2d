#!/usr/bin/env python3
"""Draws images in the shape of CIFAR-10: one of ten figures, in random colours, at a random place and
size, on a background with noise. Writes them as CIFAR-10's binary files, and with --npy the same images
as NumPy arrays. The same arguments give the same bytes.

    draw.py [--train 2000] [--test 500] [--seed 1] [--npy DIR] DIR
"""

import argparse
import os
import random

SIDE = 32
BATCHES = 5
INSIDE = (
    lambda x, y: x * x + y * y < 1,                        # a disc
    lambda x, y: 0.35 < x * x + y * y < 1,                 # a ring
    lambda x, y: abs(x) < 0.85 and abs(y) < 0.85,          # a square
    lambda x, y: 0.5 < max(abs(x), abs(y)) < 0.9,          # a frame
    lambda x, y: -0.9 < y < 0.9 and abs(x) < (y + 0.9) / 2,  # a triangle
    lambda x, y: min(abs(x), abs(y)) < 0.3 and max(abs(x), abs(y)) < 1,  # a cross
    lambda x, y: abs(abs(x) - abs(y)) < 0.3 and max(abs(x), abs(y)) < 1,  # a diagonal cross
    lambda x, y: max(abs(x), abs(y)) < 1 and int((y + 1) * 2.5) % 2 == 0,  # rows
    lambda x, y: max(abs(x), abs(y)) < 1 and int((x + 1) * 2.5) % 2 == 0,  # columns
    lambda x, y: max(abs(x), abs(y)) < 1 and (int((x + 1) * 2) + int((y + 1) * 2)) % 2 == 0,  # a board
)


def draw(rng, label):
    """The bytes of one image, channel by channel."""
    size, angle = rng.uniform(9, 13), rng.uniform(-0.15, 0.15)
    left, top = rng.uniform(12, 20), rng.uniform(12, 20)
    back = [rng.randrange(40, 216) for _ in range(3)]
    front = [(value + rng.randrange(70, 186)) % 256 for value in back]
    inside = INSIDE[label]
    mask = [inside((x - left + angle * (y - top)) / size, (y - top - angle * (x - left)) / size)
            for y in range(SIDE) for x in range(SIDE)]
    noise = rng.randbytes(3 * SIDE * SIDE)
    image = bytearray()
    for channel in range(3):
        pair = (back[channel], front[channel])
        part = noise[channel * SIDE * SIDE:(channel + 1) * SIDE * SIDE]
        image += bytes(min(255, max(0, pair[is_in] + byte // 6 - 21))
                       for is_in, byte in zip(mask, part))
    return bytes(image)


def draw_set(seed, count):
    rng = random.Random(seed)
    labels = [i % len(INSIDE) for i in range(count)]
    rng.shuffle(labels)
    return [(label, draw(rng, label)) for label in labels]


def write_binary(path, samples):
    with open(path, "wb") as file:
        for label, image in samples:
            file.write(bytes([label]) + image)


def write_array(path, shape, data):
    """An .npy file of bytes, without NumPy."""
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (63 - (10 + len(header)) % 64) + b"\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data)


def write_arrays(directory, split, samples):
    write_array(os.path.join(directory, f"{split}.images.npy"), (len(samples), 3, SIDE, SIDE),
                b"".join(image for _, image in samples))
    write_array(os.path.join(directory, f"{split}.targets.npy"), (len(samples),),
                bytes(label for label, _ in samples))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("--train", type=int, default=2000)
    parser.add_argument("--test", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--npy", metavar="DIR")
    options = parser.parse_args()
    train = draw_set(options.seed, options.train)
    test = draw_set(options.seed + 1, options.test)
    os.makedirs(options.directory, exist_ok=True)
    each = -(-len(train) // BATCHES)
    for batch in range(BATCHES):
        write_binary(os.path.join(options.directory, f"data_batch_{batch + 1}.bin"),
                     train[batch * each:(batch + 1) * each])
    write_binary(os.path.join(options.directory, "test_batch.bin"), test)
    if options.npy:
        os.makedirs(options.npy, exist_ok=True)
        write_arrays(options.npy, "train", train)
        write_arrays(options.npy, "validation", test)


if __name__ == "__main__":
    main()
