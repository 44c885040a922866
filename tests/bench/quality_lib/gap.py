"""The figure of M sites' loss above data parallel training by tokens a parameter, as docs/codecs.md's table. Needs matplotlib.

    cd tests/bench; python3 -m quality_lib.gap ../../docs/data/quality.jsonl ../../docs/figures/gap_by_tokens.svg
"""

import json
import pathlib
import statistics
import sys

from .setups import DEFAULTS

PLAIN = {"up": "float32", "H": 30, "P": 4, "tau": 1, "alpha": 0.5, "assignment": "strided", "hidden": 80, "layers": 3, "lr": 0.0015}
SAME = ("sites", "steps", "seed", "batch", "eval_windows")


def points(rows, sites, eta=0.7):
    """{tokens a parameter: (mean, standard error, seeds) of the percent above}, in order."""
    plain = [row for row in rows if row["sites"] == sites and all(row[key] == value for key, value in PLAIN.items())]
    bases = {tuple(row[key] for key in SAME): row["loss"] for row in plain if row["method"] == "data_parallel"}
    found = {}
    for row in plain:
        base = bases.get(tuple(row[key] for key in SAME))
        if base and row["method"] == "sites" and (row["eta"], row["mu"]) == (eta, 0.9):
            tokens = row["steps"] * sites * row["batch"] * row["sequence"] / row["parameters"]
            found.setdefault(round(tokens, 1), {})[row["seed"]] = 100 * (row["loss"] / base - 1)
    return {tokens: (statistics.mean(of.values()), statistics.stdev(of.values()) / len(of)**0.5 if len(of) > 1 else 0, len(of))
            for tokens, of in sorted(found.items())}


if __name__ == "__main__":
    import matplotlib.pyplot as plt
    read = [{**DEFAULTS, **json.loads(line)} for line in pathlib.Path(sys.argv[1]).read_text().splitlines()]
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "gap", "font.family": "sans-serif"})
    figure, axes = plt.subplots(figsize=(7.8, 4.2))
    for sites in (1, 2, 4, 8):
        if at := points(read, sites):
            means, errors, _ = zip(*at.values())
            axes.errorbar(list(at), means, errors, marker="o", capsize=3, label=f"M = {sites}")
    axes.axhline(0, color="#999", linewidth=0.8)
    axes.set(xscale="log", xlabel="tokens of all sites a parameter", ylabel="held-out loss above data parallel, percent")
    axes.set_xticks([2, 5, 10, 20], ["2", "5", "10", "20"])
    axes.minorticks_off(), axes.legend()
    figure.savefig(sys.argv[2], metadata={"Date": None}, bbox_inches="tight")
