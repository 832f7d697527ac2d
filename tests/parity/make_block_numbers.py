"""Writes tests/parity/blocks.txt: what bitsandbytes' AdamW8bit computes on a CPU.

    python tests/parity/make_block_numbers.py > tests/parity/blocks.txt

Both maps, bit for bit, and 50 steps of two tensors, whose gradients and first values are fractions
that tests/unit/test_blocks.c makes, too. Of each step: the SHA-256 of the codes and of the scales of
both averages. Of the last one also the first values of the tensor: PyTorch's square root is rounded
otherwise in one of 170 values, so these are equal to rounding only. Versions: those in the file's
first line.
"""
import hashlib

import bitsandbytes
import torch

MASK = (1 << 64) - 1
STEPS = 50
SIZES = (7000, 4096)  # 27 blocks and 88 elements; whole blocks


class Draws:
    """Knuth's MMIX generator; its upper 24 bits as a fraction of [-1, 1)."""

    def __init__(self, seed):
        self.state = seed

    def bits(self):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) & MASK
        return self.state >> 40

    def fractions(self, count):
        return torch.tensor([(self.bits() - (1 << 23)) / (1 << 23) for _ in range(count)])

    def gradients(self, count):
        """Of many magnitudes, each a power of two less than the one before; a fifth is 0."""
        values = self.fractions(count)
        scales = torch.tensor([0.0 if i % 5 == 4 else 2.0 ** -(i % 17) for i in range(count)])
        return values * scales


def sha(tensor):
    return hashlib.sha256(tensor.detach().contiguous().numpy().tobytes()).hexdigest()


def main():
    torch.set_num_threads(1)
    print(f"# bitsandbytes {bitsandbytes.__version__}, torch {torch.__version__}")
    for signed in (True, False):
        bits = bitsandbytes.functional.create_dynamic_map(signed=signed).view(torch.int32)
        for i in range(0, 256, 16):
            print("map", int(signed), *(f"{int(b) & 0xffffffff:08x}" for b in bits[i:i + 16]))
    for size in SIZES:
        draws = Draws(size)
        parameter = torch.nn.Parameter(draws.fractions(size))
        optimizer = bitsandbytes.optim.AdamW8bit([parameter], lr=0.01, weight_decay=0.1)
        for step in range(STEPS):
            parameter.grad = draws.gradients(size)
            optimizer.step()
            state = optimizer.state[parameter]
            print("step", size, step, *(sha(state[key]) for key in
                                        ("state1", "absmax1", "state2", "absmax2")))
        print("values", size, *(f"{value:.9g}" for value in parameter[:32].tolist()))


if __name__ == "__main__":
    main()
