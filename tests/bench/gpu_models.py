"""The models that benchmarks train on a GPU, what a token costs each, and tokens for them.

Floating-point operations of a token, forward and backward (a multiply-add is two, recomputation counts for nothing):

    6 · (matrix parameters, the tied head among them) + 6 · layers · hidden · sequence        attention, causal: half of all pairs

MFU, the share of the card's peak, is tokens a second times that, divided by the peak.
"""

import array
import itertools
import random
import sys

MODELS = {  # with rows and micro-batches that should fit a card of 80 GB, also PyTorch's activations
    "tiny": {"hidden": 64, "intermediate": 176, "layers": 2, "heads": 4, "kv_heads": 2, "vocab": 512, "sequence": 64, "rows": 4},
    # These learn bytes: as many as fit a few minutes.
    "5m": {"hidden": 256, "intermediate": 688, "layers": 6, "heads": 4, "kv_heads": 4, "vocab": 256, "sequence": 256, "rows": 64},
    "17m": {"hidden": 384, "intermediate": 1024, "layers": 10, "heads": 6, "kv_heads": 6, "vocab": 256, "sequence": 256, "rows": 64},
    "35m": {"hidden": 512, "intermediate": 1408, "layers": 11, "heads": 8, "kv_heads": 8, "vocab": 256, "sequence": 256, "rows": 64},
    "124m": {"hidden": 768, "intermediate": 2048, "layers": 12, "heads": 12, "kv_heads": 12, "vocab": 50304, "sequence": 1024,
             "rows": 64},
    "350m": {"hidden": 1024, "intermediate": 2816, "layers": 24, "heads": 16, "kv_heads": 16, "vocab": 50304, "sequence": 1024,
             "rows": 32},
    "774m": {"hidden": 1280, "intermediate": 3456, "layers": 36, "heads": 20, "kv_heads": 20, "vocab": 50304, "sequence": 1024,
             "rows": 16},
    "1.06b": {"hidden": 2048, "intermediate": 5632, "layers": 22, "heads": 32, "kv_heads": 8, "vocab": 32000, "sequence": 2048,
              "rows": 16, "micro_batches": 2},
    "llama-3.2-1b": {"hidden": 2048, "intermediate": 8192, "layers": 16, "heads": 32, "kv_heads": 8, "vocab": 128256,
                     "sequence": 2048, "rows": 16, "micro_batches": 2},
    "4.6b": {"hidden": 3072, "intermediate": 8192, "layers": 42, "heads": 24, "kv_heads": 8, "vocab": 128256, "sequence": 4096,
             "rows": 1, "recompute": "block"},
}
TOKENS = 1_000_000
PEAK = 989e12  # dense bfloat16 operations a second of an H100 or H200 SXM
BANDWIDTH = 3.7e12  # bytes a second that kernels reach on an H200
KINDS = ("zipf", "uniform")
HEADERS = {2: (20240520, 1), 4: (20240801, 7)}  # bytes of a token ─► magic and version of llm.c's header, 256 int32


def shape_of(name):
    if name not in MODELS:
        raise SystemExit(f"expected a model of {', '.join(MODELS)}, got '{name}'")
    return MODELS[name]


def matrix_parameters(shape):
    hidden, keys = shape["hidden"], shape["hidden"] // shape["heads"] * shape["kv_heads"]
    layer = 2 * hidden * hidden + 2 * hidden * keys + 3 * hidden * shape["intermediate"]
    return shape["layers"] * layer + shape["vocab"] * hidden


def parameters(shape):
    return matrix_parameters(shape) + (2 * shape["layers"] + 1) * shape["hidden"]


def attention_flops(shape):
    return 6 * shape["layers"] * shape["hidden"] * shape["sequence"]


def flops_per_token(shape):
    return 6 * matrix_parameters(shape) + attention_flops(shape)


def mfu(tokens_per_s, shape, peak=PEAK):
    return tokens_per_s * flops_per_token(shape) / peak


def predicted_tokens_per_s(shape, bandwidth=BANDWIDTH):
    """Where all state lies on the device and nothing is recomputed. Matrix products near 720 TF, attention near 330 TF, each
    less where the hidden size or the sequence is small; reads and writes of the other kernels and of AdamW (30 bytes a
    parameter and step) at `bandwidth`. The rates are assumed, not measured."""
    hidden, sequence = shape["hidden"], shape["sequence"]
    products = 720e12 * hidden / (hidden + 150)
    attention = 330e12 * sequence / (sequence + 620)
    moved = shape["layers"] * (66 * hidden + 11 * shape["intermediate"]) + 6 * shape["vocab"]
    update = 30 * parameters(shape) / (shape["rows"] * sequence)
    return 1 / (6 * matrix_parameters(shape) / products + attention_flops(shape) / attention + (moved + update) / bandwidth)


def write_tokens(path, shape, kind="zipf"):
    """A .bin with llm.c's header. Zipf's law: token r has a share ∝ 1/(r + 2.7), as words of a text have, so that some
    tokens come often and most hardly ever; uniform: all alike."""
    if kind not in KINDS:
        raise SystemExit(f"expected tokens of {' or '.join(KINDS)}, got '{kind}'")
    vocab, draws = shape["vocab"], random.Random(1)
    weights = (1 / (rank + 2.7) if kind == "zipf" else 1.0 for rank in range(vocab))
    tokens = draws.choices(range(vocab), cum_weights=list(itertools.accumulate(weights)), k=TOKENS)
    width = 2 if vocab <= 1 << 16 else 4
    values = [array.array("i", [*HEADERS[width], TOKENS] + [0] * 253), array.array("H" if width == 2 else "I", tokens)]
    for part in values if sys.byteorder == "big" else []:
        part.byteswap()
    path.write_bytes(b"".join(part.tobytes() for part in values))


def read_tokens(path):
    """The tokens of a .bin with llm.c's header, as an array of 2 or 4 bytes each."""
    content = path.read_bytes()
    head = array.array("i", content[:1024])
    for width, header in HEADERS.items():
        if tuple(head[:2]) == header:
            tokens = array.array("H" if width == 2 else "I", content[1024:])
            if len(tokens) != head[2]:
                raise SystemExit(f"{path}: expected {head[2]} tokens, as its header says, got {len(tokens)}")
            return tokens
    raise SystemExit(f"{path}: expected llm.c's header of magic and version {' or '.join(map(str, HEADERS.values()))}, "
                     f"got {tuple(head[:2])}")
