"""Rows as tables: what each setting costs in loss, in pairs of runs with the same seed, and which goals are reached."""

import math
import statistics

from .setups import BASE_H, DEFAULTS, bits, group_key, setup

# (what, bits of both legs, H, compared with, percent of the loss that the difference stays below)
GOALS = [
    ("4 bits both legs ÷ float32, each at its best η", 4, BASE_H, "float32", 0.3),
    ("4 bits both legs ÷ data-parallel", 4, BASE_H, "data_parallel", 1.0),
    ("2 bits both legs ÷ float32, each at its best η", 2, BASE_H, "float32", 0.3),
    ("1 bit both legs ÷ float32, each at its best η", 1, BASE_H, "float32", 1.0),
    (f"1 bit at H = {BASE_H // 2} ÷ int4 at H = {BASE_H}", 1, BASE_H // 2, "int4", 0.0),
]
MODEL = ("sites", "lr", "warmup", "batch", "hidden", "intermediate", "layers", "heads", "sequence", "eval_windows",
         "tail_rounds")  # must agree in a pair
STEPS_APART = 0.03  # so much may the steps of a pair differ: 40 rounds without a delay or offset are 2 % shorter


class Difference:
    """Mean of a − b over common seeds, in percent of b, and its standard error."""

    def __init__(self, group, reference, metric):
        percents = [100 * (group[seed][metric] / reference[seed][metric] - 1)
                    for seed in sorted(group.keys() & reference.keys())
                    if group[seed][metric] is not None and reference[seed][metric] is not None]
        self.count = len(percents)
        self.mean = statistics.mean(percents) if percents else None
        self.error = statistics.stdev(percents) / math.sqrt(self.count) if self.count > 1 else None

    def __str__(self):
        if self.mean is None:
            return "–"
        return f"{self.mean:+.2f} ± {self.error:.2f} %" if self.error is not None else f"{self.mean:+.2f} %"

    def is_below(self, goal):
        return self.error is not None and self.mean + self.error <= goal


def grouped(rows):
    """{group key: {seed: row}}"""
    groups = {}
    for row in rows:
        groups.setdefault(group_key(row), {})[row["seed"]] = row
    return groups


def mean(group, field):
    values = [row[field] for row in group.values() if row[field] is not None]
    return statistics.mean(values) if values else None


def is_plain(row, **given):
    """Whether a row has these settings and the defaults elsewhere, but for η, seed and the model."""
    wanted = setup(**given)
    return all(row[name] == wanted[name] for name in DEFAULTS if name not in (*MODEL, "eta", "seed", "steps"))


class References:
    """The groups that a group is compared with: those of the same model, sites and steps."""

    def __init__(self, groups, metric):
        self._groups = list(groups.values())
        self._metric = metric

    def _candidates(self, group, **given):
        row = next(iter(group.values()))
        for other in self._groups:
            first = next(iter(other.values()))
            same = all(first[name] == row[name] for name in MODEL)
            as_long = abs(first["steps"] / row["steps"] - 1) < STEPS_APART
            if same and as_long and is_plain(first, **given) and mean(other, self._metric) is not None:
                yield other

    def best(self, group, **given):
        """Over η; among those with the most seeds in common with the group."""
        candidates = list(self._candidates(group, **given))
        if not candidates:
            return {}
        most = max(len(other.keys() & group.keys()) for other in candidates)
        return min((other for other in candidates if len(other.keys() & group.keys()) == most),
                   key=lambda other: mean(other, self._metric))

    def of(self, kind, group):
        if kind == "float32":
            return self.best(group)
        if kind == "int4":
            return self.best(group, up="int4", down="int4", beta_up=1.0, beta_down=1.0)
        return self.best(group, method="data_parallel")

    def same_eta(self, group):
        row = next(iter(group.values()))
        return next((other for other in self._candidates(group, H=row["H"])
                     if next(iter(other.values()))["eta"] == row["eta"]), {})


def cells(group, references, metric):
    row = next(iter(group.values()))
    loss = mean(group, metric)
    names = {"float32": references.of("float32", group), "same": references.same_eta(group),
             "parallel": references.of("data_parallel", group)}
    diverged = sum(member["diverged"] for member in group.values())
    if row["method"] == "data_parallel":
        what = ["data-parallel", "–", "–", "–"]
    else:
        legs = row["up"] if row["up"] == row["down"] else f"{row['up']}, {row['down']}"
        plain = (row["P"], row["tau"], row["alpha"]) == (DEFAULTS["P"], DEFAULTS["tau"], DEFAULTS["alpha"])
        legs += f", {row['exempt']} at bfloat16" if row["exempt"] else ""
        legs += f", μ = {row['mu']:g}" if row["mu"] != DEFAULTS["mu"] else ""
        legs += "" if plain else f" (P={row['P']}, τ={row['tau']}, α={row['alpha']:g})"
        what = [legs, f"{row['H']}", f"{row['beta_up']:g}, {row['beta_down']:g}", f"{row['eta']:g}"]
    return [f"{row['sites']}", *what, f"{len(group)}" + (f" ({diverged} diverged)" if diverged else ""),
            "–" if loss is None else f"{loss:.4f}",
            *(str(Difference(group, names[name], metric)) for name in ("float32", "same", "parallel")),
            f"{row['bytes_up'] / 1e6:.2f}", f"{row['error_up']:.2f}", f"{row['norm_ratio_up']:.2f}"]


def markdown(head, lines):
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)] + ["| " + " | ".join(line) + " |" for line in lines]


def goal_lines(groups, references, metric):
    """Each goal with the group that comes nearest to it: of those with the most seeds, the one with the lowest mean."""
    lines = []
    for sites in sorted({next(iter(group.values()))["sites"] for group in groups.values()}):
        for what, width, sync_every, kind, goal in GOALS:
            found = []
            for group in groups.values():
                row = next(iter(group.values()))
                concerned = row["method"] == "sites" and row["P"] > 1 and row["up"] == row["down"]
                if not concerned or (row["sites"], bits(row["up"]), row["H"]) != (sites, width, sync_every):
                    continue
                difference = Difference(group, references.of(kind, group), metric)
                if difference.mean is not None:
                    found.append((-difference.count, difference.mean, difference, row))
            if not found:
                lines.append([f"{sites}", what, f"{goal:+.1f} %", "–", "–", "not measured"])
                continue
            _, _, difference, row = min(found, key=lambda entry: entry[:2])
            setting = f"{row['up']}, feedback {row['beta_up']:g}, {row['beta_down']:g}, η = {row['eta']:g}"
            verdict = "reached" if difference.is_below(goal) else "one seed" if difference.count < 2 else "missed"
            lines.append([f"{sites}", what, f"{goal:+.1f} %", str(difference), setting, verdict])
    return lines


def report(rows, metric):
    """Lines of Markdown."""
    groups = grouped(rows)
    references = References(groups, metric)
    order = sorted(groups.values(), key=lambda group: (next(iter(group.values()))["sites"], mean(group, metric) or 99))
    return [
        f"Held-out `{metric}`, nats per byte. Differences are means over pairs of runs with the same seed, in percent of "
        "the loss, ± one standard error. A goal counts as reached only if the difference plus one standard error is below "
        "it; the setting shown is the best of those tried, picked on the same seeds.", "",
        *markdown(["M", "codec", "H", "feedback up, down", "η", "seeds", "loss", "÷ float32, its best η",
                   "÷ float32, same η and H", "÷ data-parallel", "MB up", "error up", "norm up"],
                  [cells(group, references, metric) for group in order]), "",
        *markdown(["M", "goal", "at most", "measured", "setting", ""], goal_lines(groups, references, metric))
    ]
