#!/usr/bin/python3
"""Files of tokens, read and written with numpy by their published descriptions alone: an independent witness.

    token_files.py FILE          prints its tokens, one a line
    token_files.py --write DIR   writes the files of tests/golden/tokens
"""
import json
import pathlib
import sys

import numpy

HEADERS = {(20240520, 1): "<u2", (20240801, 7): "<u4"}  # llm.c: dev/data/data_common.py
WIDE = [128000, 9906, 11, 65535, 65536, 0, 1, 128255, 4194, 70000]
NARROW = [50256, 464, 7850, 318, 0, 1, 65535, 198]
TEXTS = ["It rains.", "The sea\nrises: 3 °C\t\"and\" more", ""]


def read_tokens(path, raw="<u2"):
    path = pathlib.Path(path)
    data = path.read_bytes()
    if path.suffix == ".jsonl":
        data = b"".join((json.loads(line)["text"] + "\n").encode() for line in data.splitlines())
    if path.suffix != ".bin":
        return numpy.frombuffer(data, numpy.uint8)
    fields = numpy.frombuffer(data[:1024], "<i4")
    dtype = HEADERS.get(tuple(fields[:2]))
    if dtype is None:
        return numpy.frombuffer(data, raw)
    tokens = numpy.frombuffer(data[1024:], dtype)
    assert len(tokens) == fields[2], path
    return tokens


def with_header(tokens, magic, version):
    header = numpy.zeros(256, "<i4")
    header[:3] = magic, version, len(tokens)
    return header.tobytes() + numpy.array(tokens, HEADERS[magic, version]).tobytes()


def write(directory):
    directory = pathlib.Path(directory)
    directory.mkdir(exist_ok=True)
    (directory / "nanogpt.bin").write_bytes(numpy.array(NARROW, "<u2").tobytes())
    (directory / "raw_uint32.bin").write_bytes(numpy.array(WIDE, "<u4").tobytes())
    (directory / "llmc_gpt2.bin").write_bytes(with_header(NARROW, 20240520, 1))
    (directory / "llmc_llama3.bin").write_bytes(with_header(WIDE, 20240801, 7))
    lines = [json.dumps({"text": text, "id": i}, ensure_ascii=i == 1) for i, text in enumerate(TEXTS)]
    (directory / "texts.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    if sys.argv[1] == "--write":
        write(sys.argv[2])
    else:
        raw = "<u4" if "uint32" in sys.argv[1] else "<u2"
        print(*read_tokens(sys.argv[1], raw), sep="\n")
