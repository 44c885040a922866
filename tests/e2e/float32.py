"""float32 arithmetic without float32 hardware: exact fractions, rounded once, to nearest even.

Numbers are Fractions whose value is a float32, so a test that uses this shares no code and no rounding with C++.
"""

import math
from fractions import Fraction

MIN_EXPONENT = -126  # of a normal number; below, the spacing stays
MANTISSA_BITS = 23


def rounded(x):
    """The float32 nearest to x, ties to even. No result here comes near overflow."""
    x = Fraction(x)
    if x == 0:
        return x
    exponent = max(math.frexp(float(x))[1] - 1, MIN_EXPONENT)
    spacing = Fraction(2) ** (exponent - MANTISSA_BITS)
    return round(x / spacing) * spacing


def fma(a, b, c):
    return rounded(a * b + c)


def multiply(a, b):
    return rounded(a * b)


def subtract(a, b):
    return rounded(a - b)
