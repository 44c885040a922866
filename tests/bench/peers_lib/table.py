"""The rows as a Markdown table: each figure ÷ that of the peer it is compared with, wins and losses.

A row is {"part", "case", "name", "ours", "value", "unit", "note", "reason"}; a value of None has a reason. In each case
one row has "baseline": true: the peer by which the figures of the case are divided.
"""

EVEN = 0.02  # quotients this close to 1 are neither a win nor a loss
LOWER_IS_BETTER = {"s": True, "ms": True, "of the time": False, "tokens/s": False, "GB/s": False}


class Unavailable(Exception):
    """Why a figure is not there: what the machine lacks, in words for the table."""


def result_of(row, quotient):
    if not row["ours"] or quotient is None:
        return ""
    if abs(quotient - 1) <= EVEN:
        return "even"
    return "win" if (quotient < 1) == LOWER_IS_BETTER[row["unit"]] else "loss"


def number(value):
    """Three digits that count."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def cells_of(row, baseline):
    name = f"**{row['name']}**" if row["ours"] else row["name"]
    if row["note"]:
        name += f" ({row['note']})"
    if row["value"] is None:
        return [row["case"], name, "–", "–", "not measured: " + " ".join(row["reason"].split()).replace("|", "/")]
    base = baseline and baseline["value"]
    quotient = row["value"] / base if base else None
    return [row["case"], name, f"{number(row['value'])} {row['unit']}", "–" if quotient is None else f"{quotient:.2f}",
            result_of(row, quotient)]


def markdown(rows):
    """The table, a line a row in the order of the cases; the head names the processors."""
    processors = sorted({row["processor"] for row in rows})
    lines = [f"Processor: {', '.join(processors)}.", "", "| measured | program | figure | ÷ peer | result |",
             "|---|---|---|---|---|"]
    for case in dict.fromkeys((row["part"], row["case"]) for row in rows):
        of_case = [row for row in rows if (row["part"], row["case"]) == case]
        baseline = next((row for row in of_case if row["baseline"]), None)
        for row in sorted(of_case, key=lambda row: (not row["baseline"], row["ours"])):
            lines.append(f"| {' | '.join(cells_of(row, baseline))} |")
    return "\n".join(lines)
