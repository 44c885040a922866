"""Cases and the loop that measures them: programs of one case take turns, so that all see the same machine."""

import dataclasses
import statistics
import subprocess
from collections.abc import Callable

from ingest_lib import processes
from peers_lib.table import Unavailable
from wan_lib import reports

TURNS = 3
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
    """`turns`: how often each program is measured, medians count; with one, rows are written one by one."""
    part: str
    name: str
    unit: str
    entries: list[Entry]
    turns: int = TURNS


def figure_of(entry):
    """(figure or None, more, reason)"""
    try:
        result = entry.measure()
    except (Unavailable, OSError, RuntimeError, ValueError, subprocess.SubprocessError, SystemExit) as error:
        reports.say(f"{entry.name}: {error}")
        return None, {}, str(error) or type(error).__name__
    figure, more = result if isinstance(result, tuple) else (result, {})
    return figure, more, ""


def row_of(case, entry, figures):
    """The row of an entry by what figure_of gave turn by turn; one that failed has no value."""
    values = [value for value, _, _ in figures]
    reason = next((reason for _, _, reason in figures if reason), "")
    return {"part": case.part, "case": case.name, "name": entry.name, "ours": entry.ours, "baseline": entry.baseline,
            "value": None if reason else statistics.median(values), "unit": case.unit, "note": entry.note,
            "reason": reason, "turns": values, **figures[-1][1], **processes.machine()}


def measure(case, rows):
    """Appends the rows of the case that are missing; a case in turns is measured as a whole."""
    missing = [entry for entry in case.entries if not rows.have(case.part, case.name, entry.name)]
    if not missing:
        return
    reports.say(f"{case.part}: {case.name}")
    if case.turns == 1:
        for entry in missing:
            rows.append(row_of(case, entry, [figure_of(entry)]))
        return
    rows.keep(lambda row: (row["part"], row["case"]) != (case.part, case.name))
    figures = {entry.name: [] for entry in case.entries}
    for _ in range(case.turns):
        for entry in case.entries:
            of_entry = figures[entry.name]
            if not of_entry or not of_entry[-1][2]:  # after a failure it takes no more turns
                of_entry.append(figure_of(entry))
    for entry in case.entries:
        rows.append(row_of(case, entry, figures[entry.name]))
