"""The live view of a run: a table that is redrawn in place on a terminal, a line for each change elsewhere.

Both fit the available width, from 40 columns; a line of the latter has at most 80.
"""

import shutil

LINE_COLUMNS = 80
COLUMNS = ("site", "state", "step", "tokens/s", "loss", "stall", "up", "down", "in flight")
# These are left out one after the other, until the table fits.
NARROWER = ("in flight", "rates", "stall", "state", "down", "tokens/s")
LEFT_ALIGNED = ("site", "state", "in flight")


def size(count):
    """Bytes, in the units that networks use (1 kB = 1000 B)."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}" if count < 1000 * scale else f"{count / scale:.0f} {unit}"
    return f"{count:.0f} B"


def duration(seconds):
    minutes, seconds = divmod(int(round(seconds)), 60)
    return f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"


def number(value, digits=3):
    """A measured number, or – while there is none."""
    return "–" if value is None else f"{value:.{digits}f}"


def with_rate(count, rate):
    return f"{size(count)} {size(rate or 0)}/s"


def least_version(status):
    """How many rounds every fragment has been through."""
    return min((fragment["version"] for fragment in status["fragments"]), default=0)


def least_step(status):
    """The step of the slowest site, of those that are still there if any is."""
    present = [site for site in status["sites"] if site["state"] != "gone"]
    return min((site["step"] for site in present or status["sites"]), default=0)


def time_left(status, training_s, total_steps):
    """Seconds, from the mean speed so far; None before the first step."""
    step = least_step(status)
    if step <= 0 or training_s <= 0:
        return None
    return max(0.0, (total_steps - step) * training_s / step)


def versions(status):
    return " ".join(str(fragment["version"]) for fragment in status["fragments"])


def head_lines(status, training_s, total_steps):
    left = time_left(status, training_s, total_steps)
    reason = f" ({status['reason']})" if status.get("reason") else ""
    remaining = "" if left is None or status["state"] == "done" else f", about {duration(left)} left"
    loss, codec = status["eval_loss"], status["codec"]
    return [
        f"{status['state']}{reason}  step {least_step(status)} of {total_steps}  {duration(training_s)}{remaining}",
        f"eval loss {number(loss['start'])} → {number(loss['latest'])}  fragment versions {versions(status)}"
        f"  codec {codec['up']} up, {codec['down']} down",
    ]


def site_name(site):
    ranks = site.get("ranks", {}).get("ranks", 1)
    return f"{site['name']} ×{ranks}" if ranks > 1 else site["name"]


def site_cells(site, rates):
    """{column: text} of a site."""
    up, down = ((site[f"{way}_bytes"], site[f"{way}_bytes_per_s"]) for way in ("up", "down"))
    return {"site": site_name(site), "state": site["state"], "step": str(site["step"]),
            "tokens/s": number(site["tokens_per_s"] or None, 0), "loss": number(site["loss"]),
            "stall": f"{site['stall_s'] or 0:.1f} s", "up": with_rate(*up) if rates else size(up[0]),
            "down": with_rate(*down) if rates else size(down[0]), "in flight": ", ".join(site.get("in_flight") or ["–"])}


def site_lines(sites, columns):
    """Header and rows, with as many columns as fit."""
    dropped = set()
    for drop in (None, *NARROWER):
        dropped.add(drop)
        rows = [site_cells(site, "rates" not in dropped) for site in sites]
        names = [name for name in COLUMNS if name not in dropped]
        widths = {name: max([len(name), *(len(row[name]) for row in rows)]) for name in names}
        if columns is None or sum(widths.values()) + 2 * (len(names) - 1) <= columns:
            break
    align = {name: "<" if name in LEFT_ALIGNED else ">" for name in names}
    return ["  ".join(f"{row[name]:{align[name]}{widths[name]}}" for name in names).rstrip()
            for row in [{name: name for name in names}, *rows]]


def render(status, training_s, total_steps, columns=None):
    """The table, as lines of at most `columns`."""
    return head_lines(status, training_s, total_steps) + site_lines(status["sites"], columns)


def change_key(status):
    """A change of this key makes a new line where there is no terminal."""
    return status["state"], least_version(status), status["eval_loss"]["latest"], len(status["sites"])


def clock(seconds):
    minutes, seconds = divmod(int(round(seconds)), 60)
    return f"{minutes:02d}:{seconds:02d}"


def change_line(status, training_s, total_steps):
    """One line of at most 80 columns: the progress of all sites together."""
    left = time_left(status, training_s, total_steps)
    sites = status["sites"]
    tokens = sum(site["tokens_per_s"] or 0 for site in sites)
    losses = [site["loss"] for site in sites if site["loss"] is not None]
    evaluated = status["eval_loss"]["latest"]
    state, reason = status["state"], status.get("reason")
    parts = [clock(training_s)]
    if state != "training":
        parts.append(f"{state} ({reason})" if reason and state != "done" else state)
    parts.append(f"round {least_version(status)}")
    if evaluated is not None:
        parts.append(f"held-out {evaluated:.3f}")
    elif losses:
        parts.append(f"loss {sum(losses) / len(losses):.3f}")
    if tokens > 0:
        parts.append(f"{tokens:.0f} tokens/s")
    parts.append(f"{size(sum(site['up_bytes'] for site in sites))} up")
    if left is not None and status["state"] != "done":
        parts.append(f"{clock(left)} left")
    line = "  ".join(parts)
    return line if len(line) <= LINE_COLUMNS else line[:LINE_COLUMNS - 1] + "…"


class LiveTable:
    """Shows each status on `out`, as its kind wants it."""

    def __init__(self, out, total_steps):
        self._out = out
        self._total_steps = total_steps
        self._drawn = 0  # lines on the terminal that the next table replaces
        self._last_key = None

    def show(self, status, training_s):
        if self._out.isatty():
            columns = shutil.get_terminal_size().columns - 1
            self._redraw(render(status, training_s, self._total_steps, columns))
        elif change_key(status) != self._last_key:
            self._last_key = change_key(status)
            print(change_line(status, training_s, self._total_steps), file=self._out, flush=True)

    def _redraw(self, lines):
        # A line that wraps, or a table higher than the screen, would put the cursor in the wrong place.
        columns, rows = shutil.get_terminal_size()
        lines = [line[:columns - 1] for line in lines[:max(1, rows - 1)]]
        back = f"\x1b[{self._drawn}F\x1b[J" if self._drawn else ""
        self._out.write(back + "".join(line + "\n" for line in lines))
        self._out.flush()
        self._drawn = len(lines)
