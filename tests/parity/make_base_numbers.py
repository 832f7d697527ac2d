"""Writes tests/parity/base.txt: what bitsandbytes makes of parameters in 8 and in 4 bits on a CPU.

    python tests/parity/make_base_numbers.py > tests/parity/base.txt

Of tensors of fractions that tests/unit/test_base.c makes, too: the SHA-256 of the codes, of the
scales, and of the values that they stand for, as f32 and as bf16; of NF4 also that of the scales'
own scales, and the bits of the scales' mean. Then the error of each for normal values, relative to
their root mean square, which docs/job-file.md states. Versions: those in the file's first line.
"""
import bitsandbytes
import torch
from bitsandbytes import functional

from make_block_numbers import Draws, sha

SIZES = (7000, 4096, 40008, 262144)


def values_of(size):
    """Of many magnitudes, in blocks: every 500 values a power of two less, in a cycle of 7."""
    scales = torch.tensor([2.0 ** -(i // 500 % 7) for i in range(size)])
    return Draws(size).fractions(size) * scales


def both(values, unpack):
    return sha(unpack(torch.float32)), sha(unpack(torch.bfloat16).view(torch.int16))


def int8(values):
    codes, state = functional.quantize_blockwise(values, blocksize=256)

    def unpack(dtype):
        return torch.ops.bitsandbytes.dequantize_blockwise(codes, state.absmax, state.code, 256,
                                                           dtype)

    return codes, state, unpack


def nf4(values):
    codes, state = functional.quantize_4bit(values, blocksize=64, compress_statistics=True,
                                            quant_type="nf4")

    def unpack(dtype):
        state.dtype = dtype
        return functional.dequantize_4bit(codes, state)

    return codes, state, unpack


def main():
    torch.set_num_threads(1)
    print(f"# bitsandbytes {bitsandbytes.__version__}, torch {torch.__version__}")
    for size in SIZES:
        values = values_of(size)
        codes, state, unpack = int8(values)
        print("int8", size, sha(codes), sha(state.absmax), *both(values, unpack))
        codes, state, unpack = nf4(values)
        mean = int(state.offset.view(torch.int32)) & 0xffffffff
        print("nf4", size, sha(codes), sha(state.absmax), *both(values, unpack),
              sha(state.state2.absmax), f"{mean:08x}")
    torch.manual_seed(1)
    values = torch.randn(1 << 20)
    for name, made in (("bf16", values.bfloat16().float()), ("int8", int8(values)[2](torch.float32)),
                       ("nf4", nf4(values)[2](torch.float32))):
        error = made - values
        relative = float(error.pow(2).mean().sqrt() / values.pow(2).mean().sqrt())
        print("error", name, f"{relative:.6f}")


if __name__ == "__main__":
    main()
