"""Whether anything of a coordinator grows with its rounds: a year of rounds of five minutes, in some minutes.

Two sites train the synthetic model as fast as rounds go, with a snapshot every hundred rounds. The coordinator's resident
memory, its descriptors, the bytes of its state directory by folder, and the rows of its history are looked at as often as
that; a line through the last half of the samples gives each one's slope a round, with its standard error. A row for each is
written to OUT/long_run.jsonl. Asserts nothing: compare with docs/data/measurements.md.
"""

import math
import pathlib
import statistics
import time

from bench_lib.figures import print_columns, say
from harness import synthetic

FILE, MINUTES = "long_run", 30
OPTIONS = {"rounds": (100_000, "of all"), "samples": (200, "in all")}
QUICK = {"rounds": 200, "samples": 20}
SITES = {"a": 0.5, "b": -0.25}


def bytes_below(folder):
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_blocks * 512 if path.is_file() else 0
        except FileNotFoundError:
            pass  # pruned meanwhile
    return total


def sample(run):
    process = pathlib.Path("/proc") / str(run.coordinator.process.pid)
    resident = next(line for line in (process / "status").read_text().splitlines() if line.startswith("VmRSS"))
    found = {"memory (B)": 1024 * int(resident.split()[1]), "descriptors": len(list((process / "fd").iterdir())),
             "history (rows)": run.journal("SELECT count(*) FROM events")[0][0],
             "disk (B)": bytes_below(run.state_dir)}
    for folder in ("log", "segments", "snapshots"):
        found[f"disk: {folder} (B)"] = bytes_below(run.state_dir / folder)
    found["disk: journal.sqlite (B)"] = sum(path.stat().st_size for path in run.state_dir.glob("journal.sqlite*"))
    return found


def slope(rounds, values):
    """A round's share of a line through the values, and its standard error."""
    line = statistics.linear_regression(rounds, values)
    off = [value - line.intercept - line.slope * at for at, value in zip(rounds, values)]
    spread = statistics.pvariance(rounds) * len(rounds)
    return line.slope, math.sqrt(sum(each * each for each in off) / (len(off) - 2) / spread)


def cases(options):
    return [{}]  # one for all rows


def measure(case, bench):
    return bench.in_test(lambda test: sampled(test.new_run(synthetic(SITES, [[1000]], sync={"sync_every": 2},
                                                                     checkpoint={"every_rounds": 100})), bench.options))


def sampled(run, options):
    run.start_coordinator(environment={"CAUSEWAY_LOG": "warn"})
    for site in SITES:
        run.start_worker(site, environment={"CAUSEWAY_LOG": "warn"})
    run.await_rounds(10)
    rounds, samples, begun, said = [], [], time.monotonic(), 0
    while (done := run.rounds()) < options.rounds:
        if done * options.samples >= len(samples) * options.rounds:
            rounds.append(done)
            samples.append(sample(run))
        if time.monotonic() - said > 60:
            said = time.monotonic()
            say(f"{done} rounds, {done / (said - begun + 0.1):.0f} a second")
        time.sleep(0.1)
    half = len(rounds) // 2
    rows = []
    for name in samples[0]:
        values = [one[name] for one in samples]
        steepness, error = slope(rounds[half:], values[half:])
        rows.append({"what": name, "rounds": rounds[-1], "first": values[0], "half": values[half], "last": values[-1],
                     "slope": steepness, "error": error, "seconds": round(time.monotonic() - begun)})
    run.stop_all()
    return rows


def report(rows, bench):
    print_columns([["", "first", "at half", "last", "a round", "±"]] + [
        [row["what"], *(str(row[key]) for key in ("first", "half", "last")), f"{row['slope']:.4g}", f"{row['error']:.2g}"]
        for row in rows])
