"""Four sites that compute while an emulated wide-area link carries what they exchange: computing ÷ wall time.

    dc1 coordinator or lighthouse ◄── a link of each datacenter, all of the same rate, 50 ms round trip ──► dc2 … dc5

H, P, tau, step and parameters are those of tests/bench/wan. Peers: 8 fragments, tau = 15 of the 16 steps between two
sends, the most that torchft allows. Ours chooses tau.
"""

import pathlib
import statistics
import tempfile

from peers_lib import sites
from peers_lib.measured import NO_STEP, Case, Entry
from peers_lib.table import Unavailable
from wan_lib import figures, network, placed, run

RATES_MBIT = (50, 200)
FRAGMENTS = 8
DELAY = figures.SYNC_EVERY // FRAGMENTS - 1
CODECS = ("int4", "rotated_sign")
BYTES = {"float32": 4, "bfloat16": 2}
START_S = 120
SLOWNESS = 5  # a peer may take this many times as long as predicted


def peer_window(rate_mbit, dtype, budget_s):
    """(fragments before the measured ones, fragments measured, predicted seconds of one): whole rounds, or as many
    fragments as the budget allows. A ring sends 2 (M - 1) / M of the values from each site."""
    count = len(figures.SITES)
    ring_s = 2 * (count - 1) / count * figures.PARAMETERS * BYTES[dtype] * 8 / (rate_mbit * 1e6 * figures.FRAMING)
    fragment_s = max(figures.COMPUTE_S, ring_s) / FRAGMENTS
    fitting = int(budget_s / fragment_s)
    rounds = min(figures.ROUNDS, fitting // FRAGMENTS)
    if rounds >= 1:
        return FRAGMENTS, rounds * FRAGMENTS, fragment_s
    return 1, max(2, fitting), fragment_s


def require_network(build):
    reason = network.why_not(build)
    if reason is not None:
        raise Unavailable(f"the emulator {reason}" if reason.startswith("needs") else reason)


def checked(row):
    if not row["valid"]:
        raise Unavailable(f"the emulator had no time: {row['emulator_late_ms']:.1f} ms late on average, "
                          f"{row['emulator_cores']:.2f} of a core")
    return row


def peer_utilization(environment, options, rate_mbit, kind, dtype):
    environment.require("torch", *(["torchft"] if kind == "torchft" else []))
    require_network(options.build)
    first, timed, fragment_s = peer_window(rate_mbit, dtype, options.budget_s)
    settings = {"tensors": figures.TENSORS, "values": figures.TENSOR_VALUES, "fragments": FRAGMENTS,
                "sync_every": figures.SYNC_EVERY, "delay": DELAY, "step_s": figures.STEP_S, "dtype": dtype,
                "first": first, "fragments_timed": timed}
    limit_s = START_S + SLOWNESS * fragment_s * (first + timed)
    with network.Network(options.build, 1 + len(figures.SITES), rate_mbit, figures.RTT_MS, ["--access=true"]) as net:
        places = [(network.address(dc), "wan0", lambda dc=dc: net.inside(dc))
                  for dc in range(1, 2 + len(figures.SITES))]
        reports = []
        results = sites.run(environment, kind, settings, places, limit_s, lambda: reports.append(net.report()))
        emulator = checked(network.emulator_figures(reports[0], net.report()))
    shares = [result["compute_s"] / result["wall_s"] for result in results]
    return statistics.fmean(shares), {"least": min(shares), "fragment_rounds": timed, **emulator,
                                      "fragment_s": statistics.median(results[0]["rounds_s"])}


def ours_utilization(options, rate_mbit, codec):
    require_network(options.build)
    cell = figures.Cell(rate_mbit, codec, "auto", FRAGMENTS)
    with tempfile.TemporaryDirectory(prefix="causeway-peers-wan-") as folder:
        window = figures.window_of(cell, options.budget_s)
        row, _ = run.measure(options.build, pathlib.Path(folder), cell, window, "auto")
    checked(row)
    if row["dropped"]:
        raise Unavailable("sites were dropped: " + "; ".join(row["dropped"]))
    return row["utilization_mean"], {"least": row["utilization_least"], **{key: row[key] for key in (
        "fragment_rounds", "emulator_cores", "emulator_late_ms", "up_bytes_per_round", "down_bytes_per_round")}}


def at_sites_utilization(options, rate_mbit, codec):
    require_network(options.build)
    cell = figures.Cell(rate_mbit, codec, "auto", FRAGMENTS)
    with tempfile.TemporaryDirectory(prefix="causeway-peers-wan-") as folder:
        row = placed.measure(options.build, pathlib.Path(folder), cell, figures.window_of(cell, options.budget_s))
    checked(row)
    if row["dropped"]:
        raise Unavailable("sites were dropped: " + "; ".join(row["dropped"]))
    return row["utilization_mean"], {"least": row["utilization_least"], **{key: row[key] for key in (
        "fragment_rounds", "emulator_cores", "emulator_late_ms", "bound_after_framing")}}


def entries_of(environment, options, rate_mbit):
    def peer(name, kind, dtype, **more):
        return Entry(name, lambda: peer_utilization(environment, options, rate_mbit, kind, dtype), **more)

    def hub(codec):
        return Entry(f"Causeway {codec}, hub", lambda: ours_utilization(options, rate_mbit, codec), ours=True)

    def at_sites(codec):
        return Entry(f"Causeway {codec}, shards at the sites", lambda: at_sites_utilization(options, rate_mbit, codec),
                     ours=True)

    return [peer("torchft Streaming DiLoCo, float32 over Gloo", "torchft", "float32", baseline=True),
            peer("Gloo all-reduce, float32, overlapped", "gloo", "float32", note=NO_STEP),
            peer("Gloo all-reduce, bfloat16, overlapped", "gloo", "bfloat16", note=NO_STEP),
            *(hub(codec) for codec in CODECS), *(at_sites(codec) for codec in CODECS)]


def cases(environment, options):
    return [Case("wan", f"computing ÷ wall time, 4 sites, {rate} Mbit/s", "of the time",
                 entries_of(environment, options, rate), turns=1) for rate in options.rates_mbit]
