"""Encoding float32 values: ours, whose blocks of 256 have a scale each, and pi-quant, which has one scale for all.

pi-quant finds its scale in a pass of its own over the values, and quantizes in another; both count as encoding.
Rounding is to nearest, on one thread, from buffers that stay the same. A figure is float32 bytes read a second.
"""

import json
import pathlib

from bench_lib import processes
from peers_lib.measured import Case, Entry

PROGRAM = pathlib.Path(__file__).parent / "encode_peer.py"
MEGABYTES = 16  # of values: a fragment of the model of `round` and `wan`
CODECS = ("int8", "int4")
LIMIT_S = 300


def ours_encode(build, codec):
    """The fastest of the instruction sets that this machine has, which is the one that runs."""
    rows = processes.bench_rows(build, "codecs", {"codecs": codec, "sizes": MEGABYTES, "threads": 1})
    encoded = {row["target"]: row["gigavalues_per_s"] * 4 for row in rows if row["operation"] == "encode"}
    target = max(encoded, key=encoded.get)
    return encoded[target], {"target": target}


def peer_encode(environment, codec, scale_given):
    environment.require("piquant")
    answer = json.loads(environment.answer(PROGRAM, codec, MEGABYTES, int(scale_given), limit_s=LIMIT_S))
    return answer["gigabytes_per_s"], {"version": answer["version"]}


def cases(environment, options):
    def entries(codec):
        return [Entry(f"pi-quant u{codec}", lambda: peer_encode(environment, codec, False), baseline=True),
                Entry(f"pi-quant u{codec}, quantize alone", lambda: peer_encode(environment, codec, True),
                      note="the scale is given"),
                Entry(f"Causeway {codec}", lambda: ours_encode(options.build, codec), ours=True)]

    return [Case("encode", f"{codec} encode, {MEGABYTES} MB, 1 thread", "GB/s", entries(codec), options.turns)
            for codec in CODECS]
