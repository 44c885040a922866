"""The product's random numbers (core/random.h) and its fused multiply-add, in numpy."""

import numpy

U64 = numpy.uint64


def splitmix64(x):
    x = x + U64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> U64(30))) * U64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> U64(27))) * U64(0x94D049BB133111EB)
    return x ^ (x >> U64(31))


def hash_combine(seed, value):
    """Either may be an array; a text is a seed's."""
    if isinstance(value, str):
        for byte in value.encode():
            seed = splitmix64(seed ^ U64(byte))
        return splitmix64(seed ^ U64(len(value.encode())))
    return splitmix64(seed ^ splitmix64(value))


def noise(stream, size):
    """`size` float32 values, uniform in [−1, 1): those of a synthetic model's tensor and step."""
    uniform = (hash_combine(stream, numpy.arange(size, dtype=U64)) >> U64(11)).astype(numpy.float64) * 2.0**-53
    return (2 * uniform - 1).astype(numpy.float32)


def fma(a, b, c):
    """float32 a·b + c, rounded once: the product is exact in 64 bits of mantissa, and so is nearly every sum."""
    wide = numpy.longdouble
    return (wide(a) * wide(b) + wide(c)).astype(numpy.float32)
