"""pi-quant's encoding in the Python that has it; prints a line of JSON.

    encode_peer.py int8|int4 MEGABYTES 0|1     1: the scale is given, and finding it does not count
"""

import json
import statistics
import sys
import time
from importlib import metadata

import numpy
from piquant import Context, DataType, RoundMode

SECONDS = 2


def main(codec, megabytes, scale_given):
    context = Context(1)
    kind = {"int8": DataType.UINT8, "int4": DataType.UINT4}[codec]
    values = numpy.random.default_rng(1).standard_normal(int(megabytes) * 250_000, dtype=numpy.float32)
    encoded = numpy.empty(values.size, numpy.uint8)
    scale, zero_point = context.compute_quant_params_ptr_float32(values.ctypes.data, kind, values.size)
    seconds, end = [], time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        begin = time.perf_counter()
        if scale_given == "0":
            scale, zero_point = context.compute_quant_params_ptr_float32(values.ctypes.data, kind, values.size)
        context.quantize_ptr(values.ctypes.data, DataType.F32, encoded.ctypes.data, kind, numel=values.size,
                             scale=scale, zero_point=zero_point, round_mode=RoundMode.NEAREST)
        seconds.append(time.perf_counter() - begin)
    print(json.dumps({"gigabytes_per_s": values.nbytes / 1e9 / statistics.median(seconds),
                      "version": metadata.version("pypiquant")}))


if __name__ == "__main__":
    main(*sys.argv[1:])
