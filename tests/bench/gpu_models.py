"""The models that benchmarks train on a GPU, and random tokens for them."""

import array
import random

MODELS = {
    "tiny": {"hidden": 64, "intermediate": 176, "layers": 2, "heads": 4, "kv_heads": 2, "vocab": 512, "sequence": 64, "rows": 4},
    "124m": {"hidden": 768, "intermediate": 2048, "layers": 12, "heads": 12, "kv_heads": 12, "vocab": 50304, "sequence": 1024,
             "rows": 64, "micro_batches": 8},
    "1.2b": {"hidden": 2048, "intermediate": 5632, "layers": 22, "heads": 32, "kv_heads": 8, "vocab": 32000, "sequence": 2048,
             "rows": 16, "micro_batches": 8},
}
TOKENS = 1_000_000


def write_tokens(path, model):
    draws = random.Random(1)
    path.write_bytes(array.array("H", (draws.randrange(MODELS[model]["vocab"]) for _ in range(TOKENS))).tobytes())
