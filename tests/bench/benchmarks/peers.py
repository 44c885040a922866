"""Causeway beside its peers, on this machine: a Markdown table of the figures, wins and losses.

    round    one outer round of 30.8 M parameters, four sites on this machine: torchft DiLoCo, bare Gloo, ours
    wan      computing ÷ wall time of four sites behind links of 50 and 200 Mbit/s (the benchmark wan): the same peers
    trainer  tokens a second of a small Llama on one thread: torch.compile, ours
    encode   int8 and int4 on one thread: pi-quant, ours

AdamW on the CPU beside torch's and DeepSpeed's: the benchmark offloaded_adamw. Peers are installed into build/peers/python;
--python names an interpreter that has some of them, and installs nothing. Programs of a case take turns, and medians count;
cells of `wan` take minutes each, and are measured once. A program that cannot run here leaves its row with the reason;
--resume measures its case again. Figures within 2 % of the peer's are even.
"""

import pathlib

from bench_lib import processes
from peers_lib import encode, environment, measured, outer_round, table, trainer, wan

FILE, MINUTES = "peers", 60
PARTS = {"round": outer_round, "wan": wan, "trainer": trainer, "encode": encode}
OPTIONS = {"part": (list(PARTS), "some of these"), "python": (None, "an interpreter with the peers; default: one is made"),
           "peers": (str(processes.ROOT / "build" / "peers"), "where they are installed"), "turns": (3, "of a case"),
           "rounds": (10, "of a turn of `round`"), "rates_mbit": (list(wan.RATES_MBIT), "of `wan`"),
           "budget_s": (float(wan.figures.BUDGET_S), "for the measured rounds of a cell of `wan`")}
QUICK = {"part": ["round", "encode"], "turns": 1, "rounds": 1, "python": "/usr/bin/python3"}
CASES = {}


def cases(options):
    folder = pathlib.Path(options.peers)
    folder.mkdir(parents=True, exist_ok=True)
    peers = environment.Environment(options.python, folder)
    failed = {(row["part"], row["case"]) for row in options.rows if row["value"] is None}
    options.rows[:] = [row for row in options.rows if (row["part"], row["case"]) not in failed]
    for part in options.part:
        CASES.update({(case.part, case.name): case for case in PARTS[part].cases(peers, options)})
    return [{"part": part, "case": name} for part, name in CASES]


def measure(known, bench):
    return measured.rows_of(CASES[known["part"], known["case"]])


def report(rows, bench):
    print(f"\n{table.markdown(rows)}")
