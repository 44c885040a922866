"""The live view of a run: a table that is redrawn in place on a terminal, a line for each change elsewhere."""

import shutil

SITE_COLUMNS = "{:<10} {:<9} {:>6} {:>9} {:>7} {:>8} {:>19} {:>19}  {}"


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


def site_line(site):
    return SITE_COLUMNS.format(site_name(site), site["state"], site["step"], number(site["tokens_per_s"] or None, 0),
                               number(site["loss"]), f"{site['stall_s'] or 0:.1f} s",
                               with_rate(site["up_bytes"], site["up_bytes_per_s"]),
                               with_rate(site["down_bytes"], site["down_bytes_per_s"]),
                               ", ".join(site.get("in_flight") or ["–"]))


def render(status, training_s, total_steps):
    """The table, as lines."""
    header = SITE_COLUMNS.format("site", "state", "step", "tokens/s", "loss", "stall", "up", "down", "in flight")
    return head_lines(status, training_s, total_steps) + [header] + [site_line(site) for site in status["sites"]]


def change_key(status):
    """What makes a new line where there is no terminal."""
    return status["state"], least_version(status), status["eval_loss"]["latest"], len(status["sites"])


def change_line(status, training_s, total_steps):
    left = time_left(status, training_s, total_steps)
    sites = "".join(f"  | {site_name(site)} step {site['step']} {number(site['tokens_per_s'] or None, 0)} tokens/s"
                    f" loss {number(site['loss'])}"
                    f" up {with_rate(site['up_bytes'], site['up_bytes_per_s'])}"
                    f" down {with_rate(site['down_bytes'], site['down_bytes_per_s'])}"
                    f" in flight {', '.join(site.get('in_flight') or ['–'])}" for site in status["sites"])
    remaining = "" if left is None else f"  left {duration(left)}"
    return (f"{duration(training_s):>10}  {status['state']}  versions {versions(status)}"
            f"  eval loss {number(status['eval_loss']['latest'])}{remaining}{sites}")


class LiveTable:
    """Shows each status on `out`, as its kind wants it."""

    def __init__(self, out, total_steps):
        self._out = out
        self._total_steps = total_steps
        self._drawn = 0  # lines on the terminal that the next table replaces
        self._last_key = None

    def show(self, status, training_s):
        if self._out.isatty():
            self._redraw(render(status, training_s, self._total_steps))
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
