"""Prints what a safetensors file holds, read by its published description alone: an independent witness.

One line "key=value" for each metadata entry, one line "name dtype shape bits-in-hexadecimal" for each tensor, sorted.
"""
import json
import struct
import sys

import numpy

with open(sys.argv[1], "rb") as file:
    data = file.read()
(length,) = struct.unpack("<Q", data[:8])
header = json.loads(data[8 : 8 + length])
values = data[8 + length :]
assert (8 + length) % 8 == 0, "values are not aligned"
for key, value in sorted(header.pop("__metadata__", {}).items()):
    print(f"{key}={value}")
for name, tensor in sorted(header.items()):
    begin, end = tensor["data_offsets"]
    array = numpy.frombuffer(values[begin:end], dtype={"F32": "<f4"}[tensor["dtype"]]).reshape(tensor["shape"])
    print(name, array.dtype, list(array.shape), array.tobytes().hex())
