"""The codecs' cost in learning quality: trains one small model many times, in pairs, and compares held-out loss.

    tests/bench/run quality --settings=FILE.jsonl [--resume]     an object a line: what differs from quality_lib/setups.py

A run is one process: the real sync engines, rules, merge and trainer without a network between them, on one core. Equal
settings give equal bits. With --resume, settings that are in the rows already are not run again; --resume --minutes=0 only
prints the table. Figures are losses, not speeds: the machine need not be quiet. Every row of docs/data/quality.jsonl is such
a line of settings, and one of {} is the reference.
"""

import argparse
import json
import pathlib

from bench_lib import processes
from quality_lib import report as tables
from quality_lib import setups

FILE, MINUTES = "quality", 60
OPTIONS = {"settings": (None, "file of them; default: float32, int4 and 1 bit at H = 30, seed 1"), "data": (None, "a text file"),
           "metric": ("loss", "of the table: loss, loss_tail or loss_half"), "rounds": (setups.ROUNDS, "of each fragment")}
QUICK = {"rounds": 3}
DEFAULT = [{}, {"up": "int4", "down": "int4", "beta_up": 1.0, "beta_down": 1.0},
           {"up": "rotated_sign", "down": "rotated_sign"}]


def read_settings(path):
    for number, line in enumerate(pathlib.Path(path).read_text().splitlines(), 1):
        try:
            yield json.loads(line)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{path}:{number}: {error}") from error


def cases(options):
    for row in options.rows:  # settings that came later had their default
        row |= {**setups.DEFAULTS, **row}
    setups.ROUNDS = options.rounds
    return [setups.setup(**given) for given in (read_settings(options.settings) if options.settings else DEFAULT)]


def measure(settings, bench):
    config = bench.folder / "run.yaml"
    config.write_text(setups.run_yaml(settings))
    result = bench.rows_of("quality", config=config, data=bench.options.data or processes.corpus(),
                           data_parallel=settings["method"] == "data_parallel",
                           **{name: settings[name] for name in ("eval_windows", "tail_rounds", "link_phase_rounds", "curve_rounds")})[0]
    result.pop("config")  # it is what settings stand for
    return {name: value for name, value in result.items() if name not in settings}


def report(rows, bench):
    print("\n".join(tables.report(rows, bench.options.metric)))
