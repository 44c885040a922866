"""Cases, and how they are measured: programs of one case take turns, so that all see the same machine."""

import dataclasses
import statistics
import subprocess
from collections.abc import Callable

from bench_lib.figures import say
from peers_lib.table import Unavailable

NO_STEP = "keeps nothing and takes no outer step"  # a note on peers that only sum


@dataclasses.dataclass(frozen=True)
class Entry:
    """One program of a case. `measure()` returns a figure, or a figure and a dictionary of more; Unavailable has the
    reason why there is none."""
    name: str
    measure: Callable
    ours: bool = False
    baseline: bool = False
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Case:
    part: str
    name: str
    unit: str
    entries: list[Entry]
    turns: int  # of each program; medians count


def figure_of(entry):
    """(figure or None, more, reason)"""
    try:
        result = entry.measure()
    except (Unavailable, OSError, RuntimeError, ValueError, subprocess.SubprocessError, SystemExit) as error:
        say(f"{entry.name}: {error}")
        return None, {}, str(error) or type(error).__name__
    figure, more = result if isinstance(result, tuple) else (result, {})
    return figure, more, ""


def rows_of(case):
    """A row of each entry; one that failed takes no more turns, and has no value."""
    figures = {entry.name: [] for entry in case.entries}
    for _ in range(case.turns):
        for entry in case.entries:
            of_entry = figures[entry.name]
            if not of_entry or not of_entry[-1][2]:
                of_entry.append(figure_of(entry))
    for entry in case.entries:
        values = [value for value, _, _ in figures[entry.name]]
        reason = next((reason for _, _, reason in figures[entry.name] if reason), "")
        yield {"name": entry.name, "ours": entry.ours, "baseline": entry.baseline,
               "value": None if reason else statistics.median(values), "unit": case.unit, "note": entry.note,
               "reason": reason, "turns": values, **figures[entry.name][-1][1]}
