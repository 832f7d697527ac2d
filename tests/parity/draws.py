"""The random numbers of dropout and randn_like, as common/ops/op.h has them."""

import numpy

MULTIPLIERS, WEYL, LOW = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85), 0xFFFFFFFF


def philox(seed, stream, step, rank, blocks):
    """Philox4x32-10: the four words of each block."""
    counter = [numpy.arange(blocks, dtype=numpy.uint64)]
    counter += [numpy.full(blocks, word & LOW, dtype=numpy.uint64) for word in (stream, step, rank)]
    key = [seed & LOW, seed >> 32 & LOW]
    for _ in range(10):
        first, second = counter[0] * numpy.uint64(MULTIPLIERS[0]), counter[2] * numpy.uint64(MULTIPLIERS[1])
        high, low = numpy.uint64(32), numpy.uint64(LOW)
        counter = [second >> high ^ counter[1] ^ numpy.uint64(key[0]), second & low,
                   first >> high ^ counter[3] ^ numpy.uint64(key[1]), first & low]
        key = [(word + weyl) & LOW for word, weyl in zip(key, WEYL)]
    return numpy.stack(counter, 1).reshape(-1)


def normal(seed, stream, step, shape, rank=0):
    """The draws of randn_like() for the step's samples, in f64."""
    count = int(numpy.prod(shape))
    blocks = (count + 15) // 16
    fractions = ((philox(seed, stream, step, rank, 4 * blocks) >> numpy.uint64(8)) / 2.0**24).reshape(blocks, 2, 8)
    radius, angle = numpy.sqrt(-2 * numpy.log(1 - fractions[:, 0])), 2 * numpy.pi * fractions[:, 1]
    both = numpy.stack([radius * numpy.cos(angle), radius * numpy.sin(angle)], 1)
    return both.reshape(-1)[:count].reshape(shape)
