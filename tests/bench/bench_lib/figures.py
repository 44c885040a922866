"""Reports of benchmarks: a figure beside its goal, and columns."""

import statistics
import sys


def goal(value, *, least=None, most=None, within=None):
    """"0.912 (goal 0.9: reached)": at least, at most, or no farther from 1 than that."""
    if within is not None:
        return f"{value:.3f} (goal within {within:.0%}: {'reached' if abs(value - 1) <= within else 'missed'})"
    reached = value >= least if most is None else value <= most
    return f"{value:.3g} (goal {least if most is None else most:g}: {'reached' if reached else 'missed'})"


def median_of(rows, *keys):
    """The median of a figure of the rows; more keys go down into objects."""
    values = []
    for row in rows:
        for key in keys:
            row = row[key]
        values.append(row)
    return statistics.median(values)


def print_columns(lines):
    widths = [max(map(len, column)) for column in zip(*lines)]
    for line in lines:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip())


def say(text):
    print(text, file=sys.stderr, flush=True)
