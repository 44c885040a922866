"""Megatron-LM's weak scaling (arXiv 2104.04473, Table 1 and section 5.1) by two counts of a step's operations.

    executed   96 B s l h² (1 + s/6h + V/16lh): the forward that is computed again counts, and all pairs of positions
    needed     as gpu_models.py counts, for the MFU of this project's rows: no recomputation, half of all pairs

The published figures are goldens of the arithmetic. `python3 -m unittest weak_scaling_test` prints the table, too.
"""

import unittest

import gpu_models

VOCAB, SEQUENCE, PEAK = 51200, 2048, 312e12
# Billions of parameters, heads, hidden, layers, GPUs, batch; published: TF a GPU, percent of the peak, PF together.
MODELS = (
    (1.7, 24, 2304, 24, 32, 512, 137, 44, 4.4), (3.6, 32, 3072, 30, 64, 512, 138, 44, 8.8),
    (7.5, 32, 4096, 36, 128, 512, 142, 46, 18.2), (18.4, 48, 6144, 40, 256, 1024, 135, 43, 34.6),
    (39.1, 64, 8192, 48, 512, 1536, 138, 44, 70.8), (76.1, 80, 10240, 60, 1024, 1792, 140, 45, 143.8),
    (145.6, 96, 12288, 80, 1536, 2304, 148, 47, 227.1), (310.1, 128, 16384, 96, 1920, 2160, 155, 50, 297.4),
    (529.6, 128, 20480, 105, 2520, 2520, 163, 52, 410.2), (1008.0, 160, 25600, 128, 3072, 3072, 163, 52, 502.0))


def counts(heads, hidden, layers):
    """(executed, needed) operations of a token. A GPT's two matrices of 4 h² are a gated one's three of 8/3 h²."""
    executed = 96 * layers * hidden**2 * (1 + SEQUENCE / (6 * hidden) + VOCAB / (16 * layers * hidden))
    return executed, gpu_models.flops_per_token({"hidden": hidden, "intermediate": 8 * hidden / 3, "layers": layers, "heads": heads,
                                                 "kv_heads": heads, "vocab": VOCAB, "sequence": SEQUENCE})


class WeakScalingTest(unittest.TestCase):
    def test_parameters_shares_and_days_are_the_published_ones_and_52_percent_are_39_counted_as_here(self):
        for billions, heads, hidden, layers, gpus, _, tf, percent, together in MODELS:
            executed, needed = counts(heads, hidden, layers)
            parameters = 12 * layers * hidden**2 * (1 + 13 / (12 * hidden) + (VOCAB + SEQUENCE) / (12 * layers * hidden))
            ours, days = percent * needed / executed, 450e9 * executed / (gpus * tf * 1e12) / 86400
            print(f"{billions} B on {gpus} GPUs: {together} PF, {percent} % of the peak executed, {ours:.0f} % needed; {days:.0f} days "
                  "for 450 B tokens")
            with self.subTest(billions=billions):
                self.assertAlmostEqual(parameters / 1e9, billions, delta=max(0.05, billions / 1000))  # as rounded there
                self.assertAlmostEqual(gpus * tf / 1000 / together, 1, delta=0.01)
                self.assertAlmostEqual(100 * tf * 1e12 / PEAK, percent, delta=0.6)
        self.assertEqual(39, round(ours))
        self.assertAlmostEqual(days, 84, delta=2)
