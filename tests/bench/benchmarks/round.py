"""Where the time of an outer round goes when the network is fast: real processes on this machine's loopback.

30.8 M parameters, four sites and a coordinator. For each codec and journal: seconds a round, its critical path, and
processor time a round, of the coordinator and of the sites together. Beside it `passes`: the memory passes that the round's
arithmetic needs, timed alone on the same cores. Both take turns; figures are medians of the turns; `system` is the kernel's
part of the processor time. The disk of --scratch is part of the figure.
"""

import statistics

from bench_lib.figures import median_of, print_columns
from round_lib import run

FILE, MINUTES = "round", 6
OPTIONS = {"codecs": (list(run.BITS), "of both legs"), "journal": (["strict", "relaxed"], "durability.journal"),
           "rounds": (12, "of a turn"), "turns": (3, "of all")}
QUICK = {"codecs": ["int4"], "journal": ["strict"], "rounds": 2, "turns": 1}


def cases(options):
    return [{"turn": turn, "codec": codec, "journal": journal} for turn in range(options.turns)
            for codec in options.codecs for journal in options.journal]


def measure(case, bench):
    row = run.measure(bench.build, case["codec"], bench.options.rounds, case["journal"], bench.folder)
    return row | {"passes": run.passes(bench.build, case["codec"], bench.log)}


def report(rows, bench):
    groups = {}
    for row in rows:
        groups.setdefault((row["codec"], row["journal"]), []).append(row)
    lines = [["codec", "journal", "s a round", "passes", "÷ passes", *(f"{stage} s" for stage in rows[0]["path"])]]
    processor = [["processor s a round", "journal", "of", "all", "system"]]
    for (codec, journal), group in groups.items():
        lines.append([codec, journal, f"{median_of(group, 'round_s'):.3f}", f"{median_of(group, 'passes', 'seconds'):.3f}",
                      f"{statistics.median(row['round_s'] / row['passes']['seconds'] for row in group):.2f}",
                      *(f"{median_of(group, 'path', stage):.3f}" for stage in group[0]["path"])])
        for who in ("sites", "coordinator"):
            user, system = (median_of(group, "cpu", who, part) for part in ("user", "system"))
            processor.append([codec, journal, who, f"{user + system:.3f}", f"{system:.3f}"])
    print_columns(lines)
    print_columns(processor)
