"""How figures become text: the rules of server/status/page/format.js a second time, in exact decimal arithmetic.

    text("rate", 155_300.0)     '155 kB/s'
    text("loss", None)          '–'
"""

import math
from decimal import ROUND_HALF_UP, Decimal

DASH = "–"
THIN = "\u202f"
BYTES = ["B", "kB", "MB", "GB", "TB", "PB", "EB"]


def rounded(value, exponent):
    """`value` as a Decimal that is a multiple of 10^exponent; halves away from zero."""
    return Decimal(value).quantize(Decimal(1).scaleb(exponent), rounding=ROUND_HALF_UP)


def three_digits(size):
    """A positive number to three digits: ('1.23', 1.23)."""
    exponent = Decimal(size).adjusted() - 2
    number = rounded(size, exponent)
    if number.adjusted() - 2 > exponent:  # 9.996 is 10.0, not 10.00
        number = rounded(size, exponent + 1)
    return number


def grouped(value):
    whole = math.floor(Decimal(value) + Decimal("0.5"))  # as Math.round
    return ("−" if whole < 0 else "") + f"{abs(whole):,}".replace(",", THIN)


def significant(value):
    if value == 0:
        return "0"
    size, sign = abs(value), "−" if value < 0 else ""
    number = three_digits(size)
    if size < 0.001:
        exponent = number.adjusted()
        return f"{sign}{number.scaleb(-exponent):.2f}e−{-exponent}"
    return sign + (grouped(size) if number >= 1000 else f"{number:f}")


def scaled(value, units):
    unit = 0
    while unit + 1 < len(units) and value and three_digits(abs(value)) >= 1000:
        value /= 1000
        unit += 1
    return f"{grouped(value) if unit == 0 else significant(value)} {units[unit]}"


def duration(seconds):
    size = abs(seconds)
    if size == 0:
        return "0 s"
    if size < 0.9995:
        return f"{significant(seconds * 1000)} ms"
    if size < 59.95:
        return f"{significant(seconds)} s"
    whole = math.floor(size + 0.5)
    minutes, hours, days = [(60, "min"), (1, "s")], [(3600, "h"), (60, "min")], [(86400, "d"), (3600, "h")]
    (a, first), (b, second) = minutes if whole < 3600 else hours if whole < 86400 else days
    return f"{'−' if seconds < 0 else ''}{whole // a} {first} {whole % a // b} {second}"


def fixed(value, digits):
    return f"{rounded(value, -digits):.{digits}f}"


RULES = {
    "bytes": lambda value: scaled(value, BYTES),
    "rate": lambda value: scaled(value, [f"{unit}/s" for unit in BYTES]),
    "count": grouped,
    "size": lambda value: scaled(value, ["", "k", "M", "G", "T"]).strip(),
    "seconds": duration,
    "percent": lambda value: f"{fixed(value * 100, 1)} %",
    "loss": lambda value: fixed(value, 3),
    "number": significant,
    "times": lambda value: f"{significant(value)}×",
}


def text(kind, value):
    finite = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return RULES[kind](value) if finite else DASH
