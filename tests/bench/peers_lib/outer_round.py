"""One outer round of four sites on this machine, over loopback: the seconds from one round's end to the next's."""

import contextlib
import statistics

from peers_lib import sites
from peers_lib.measured import NO_STEP, Case, Entry
from round_lib import run
from wan_lib import figures

FIRST = 2  # rounds that are not timed
LIMIT_S = 120
CODECS = ("float32", "int4", "rotated_sign")


def ours_round(build, codec, rounds):
    row = run.measure(build, codec, rounds)
    return row["round_s"], {"path": row["path"], "cpu": row["cpu"]}


def peer_round(environment, kind, rounds):
    """The median of the sites' medians."""
    environment.require("torch", *(["torchft"] if kind == "torchft" else []))
    settings = {"tensors": figures.TENSORS, "values": figures.TENSOR_VALUES, "fragments": 1, "sync_every": 1,
                "delay": 0, "step_s": 0, "dtype": "float32", "first": FIRST, "fragments_timed": rounds}
    results = sites.run(environment, kind, settings,
                        [("127.0.0.1", "lo", contextlib.nullcontext)] * (1 + len(figures.SITES)), LIMIT_S)
    return statistics.median(statistics.median(result["rounds_s"]) for result in results)


def cases(environment, options):
    entries = [
        Entry("torchft DiLoCo, float32 over Gloo", lambda: peer_round(environment, "torchft", options.rounds),
              baseline=True),
        Entry("Gloo all-reduce, float32", lambda: peer_round(environment, "gloo", options.rounds),
              note=NO_STEP)]
    for codec in CODECS:
        entries.append(Entry(f"Causeway {codec}", lambda codec=codec: ours_round(options.build, codec, options.rounds),
                             ours=True))
    name = f"outer round, {figures.PARAMETERS / 1e6:.1f} M parameters, 4 sites, loopback"
    return [Case("round", name, "s", entries, options.turns)]
