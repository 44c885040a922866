"""How much of the time sites compute, while a wide-area link carries what they exchange.

30.8 M parameters, steps of 25 ms, H = 128, P = 8, four sites, 50 ms round trip, all five datacenters behind links of
the same rate (tests/bench/wanemu: real TCP through network namespaces). Real coordinator and workers; the synthetic model
computes by waiting, so that five machines' worth of sites fit on one.

    table   10, 50, 200 and 1000 Mbit/s x int4 and rotated_sign at tau = 1 and auto, float32 at tau = 1
    peak    peak / mean rate of a site's link at 1 Gbit/s for 1, 4 and 24 fragments, in windows of 250 ms and 1 s
    delay   the delays that `auto` chooses for the quickstart's run (three sites that train on text) at the same rates

Utilization is computing / wall time of each site over whole rounds, after every fragment has been applied once and
before the last is sent. 5 rounds; fewer where that would take more than --budget_s, and where not one round fits,
single fragments (--budget_s again, 2 at least; the row says how many). Bytes are those of the whole run, which ends
with nothing in flight.
The bound is the round's computing / the larger of that and of the payload's time on the coordinator's link; of what a
link carries at most 94 % is payload (1448 of 1538 bytes on the wire), which `after framing` takes into account.

A row whose emulator took more than half a core or delivered packets 2 ms late on average, or in which a site lost its
lease, is not valid. The table takes about 40 minutes on a machine that does nothing else. Needs root, ip and
/dev/net/tun: without them it says so and ends with 0.
"""

import fnmatch
import json
import subprocess

from bench_lib import processes
from bench_lib.figures import print_columns
from wan_lib import delays, figures, network, run

FILE, MINUTES = "wan", 40
OPTIONS = {"part": (["table", "peak", "delay"], "some of these"), "cells": (["*"], "patterns of RATE/CODEC/TAU"),
           "budget_s": (float(figures.BUDGET_S), "for the measured rounds of a cell"),
           "auto_delay": ("auto", "fragment_sync_delay of the auto cells"),
           "congestion_control": (None, "of TCP; default: what the system uses"),
           "queue_ms": (0.0, "of each access link; 0: one round trip")}
QUICK = {"part": ["table"], "cells": ["1000/int4/auto"], "budget_s": 7.0}
PEAK_FRAGMENTS = (1, 4, 24)
PEAK_WINDOWS_S = (0.25, 1.0)
BYTES_OFF = 0.005  # payload at the meters against theory
COUNTERS_OFF = 0.03  # interfaces against meters


def prediction(bench, cell):
    """The cell's plan by causewayctl plan; {} where it has none."""
    path = bench.folder / "plan.yaml"
    run.write_config(path, run.run_config(cell, 0, auto_delay(bench.options)))
    command = [str(bench.build / "causewayctl"), "plan", f"--config={path}", f"--link_mbit={cell.rate_mbit}",
               f"--hub_mbit={cell.rate_mbit}", f"--rtt_ms={figures.RTT_MS}", f"--step_ms={figures.STEP_S * 1000:.0f}",
               f"--sites={len(figures.SITES)}", "--json"]
    plan = subprocess.run(command, capture_output=True, text=True, check=False)
    if plan.returncode != 0:
        return {}
    try:
        return {"planned_utilization": json.loads(plan.stdout)["utilization"]}
    except (ValueError, KeyError, TypeError):
        return {}


def auto_delay(options):
    return int(options.auto_delay) if options.auto_delay.isdigit() else options.auto_delay


def row_of(bench, cell):
    options = bench.options
    window = figures.window_of(cell, options.budget_s)
    return run.measure(bench.build, bench.folder, cell, window, auto_delay(options), options.queue_ms)


def table_row(bench, cell):
    row, _ = row_of(bench, cell)
    return row | {"bound": cell.bound, "bound_after_framing": cell.bound_after_framing, "goal": cell.goal,
                  **prediction(bench, cell)}


def peak_row(bench, cell):
    """The sites' links up; the worst of the four."""
    row, samples = row_of(bench, cell)
    peaks = {f"peak_to_mean_{round(1000 * window_s)}_ms": max(figures.peak_to_mean(sent, window_s) for sent in samples)
             for window_s in PEAK_WINDOWS_S}
    return row | peaks | {"goal": None}


def delay_row(bench, cell):
    return delays.measure(bench.build, bench.folder, cell.rate_mbit, processes.corpus())


PARTS = {
    "table": (figures.CELLS, table_row),
    "delay": ([figures.Cell(rate, "int4", "auto", delays.FRAGMENTS) for rate in (1000, 200, 50, 10)], delay_row),
    "peak": ([figures.Cell(1000, "int4", "auto", fragments) for fragments in PEAK_FRAGMENTS], peak_row),
}


def number(value, digits=3):
    return "–" if value is None else f"{value:.{digits}f}"


def verdict(row):
    if not row["valid"]:
        return "INVALID: emulator"
    if row["dropped"]:
        return "DROPPED: " + "; ".join(row["dropped"])
    faults = [name for name, off, most in (
        ("bytes", max(abs(row["up_to_theory"] - 1), abs(row["down_to_theory"] - 1)), BYTES_OFF),
        ("counters", abs(row["interfaces_to_meters"] - 1), COUNTERS_OFF)) if off > most]
    if row["goal"] is not None:
        faults.insert(0, "reached" if row["utilization_least"] >= row["goal"] else "MISSED")
    return ", ".join(faults)


def print_table(rows):
    columns = ["cell", "rounds", "least", "mean", "stall", "bound", "÷ bound", "after framing", "goal", "planned",
               "error", "up ÷ th.", "down ÷ th.", "wan0 ÷ meters", "emulator", "late ms", ""]
    lines = [columns]
    for row in rows:
        least, planned = row["utilization_least"], row.get("planned_utilization")
        lines.append([row["cell"], f"{row['rounds']:g}", number(least), number(row["utilization_mean"]),
                      number(row["stall_share"]), number(row["bound"]), number(least / row["bound"]),
                      number(least / row["bound_after_framing"]), number(row["goal"]), number(planned),
                      "–" if planned is None else f"{100 * (planned / row['utilization_mean'] - 1):+.1f} %",
                      number(row["up_to_theory"], 4), number(row["down_to_theory"], 4),
                      number(row["interfaces_to_meters"]), number(row["emulator_cores"], 2),
                      number(row["emulator_late_ms"], 2), verdict(row)])
    print_columns(lines)


def print_peaks(rows):
    print_columns([["fragments", "rounds", "least", "peak ÷ mean 250 ms", "1 s", ""]] +
                  [[str(row["fragments"]), f"{row['rounds']:g}", number(row["utilization_least"]),
                    number(row["peak_to_mean_250_ms"], 1), number(row["peak_to_mean_1000_ms"], 1), verdict(row)]
                   for row in rows])


def print_delays(rows):
    lines = [["Mbit/s", "step ms", "delays from", "to", ""]]
    for row in rows:
        lines.append([str(row["rate_mbit"]), f"{1000 * row['step_s']:.0f}", str(row["delays"][0]), str(row["delay"]),
                      "" if row["valid"] else "INVALID: emulator"])
    print_columns(lines)


def why_not(options):
    return network.why_not(options.build)


def cases(options):
    return [{"part": part, "cell": cell.name, "fragments": cell.fragments} for part in options.part for cell in PARTS[part][0]
            if any(fnmatch.fnmatch(cell.name, pattern) for pattern in options.cells)]


def measure(case, bench):
    cells, row_of_cell = PARTS[case["part"]]
    cell = next(cell for cell in cells if (cell.name, cell.fragments) == (case["cell"], case["fragments"]))
    with network.congestion_control(bench.options.congestion_control) as control:
        return row_of_cell(bench, cell) | {"congestion_control": control, "queue_ms": bench.options.queue_ms}


def report(rows, bench):
    for part, print_rows in (("table", print_table), ("peak", print_peaks), ("delay", print_delays)):
        chosen = [row for row in rows if row["part"] == part]
        if chosen:
            print()
            print_rows(chosen)
