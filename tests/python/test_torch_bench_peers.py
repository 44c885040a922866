"""The benchmarks' PyTorch peers on the CPU, tiny: every variant trains, and they agree on the loss."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

BENCH = pathlib.Path(__file__).resolve().parents[1] / "bench"
sys.path.insert(0, str(BENCH))
from gpu_models import MODELS, write_tokens  # noqa: E402

SHAPE = MODELS["tiny"]


class PeersTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        write_tokens(self.folder / "tokens.bin", SHAPE)

    def lines(self, script, *flags):
        done = subprocess.run([sys.executable, BENCH / script, "--device=cpu", f"--data={self.folder}/tokens.bin",
                               f"--shape={json.dumps(SHAPE)}", "--steps=2", *flags], capture_output=True, text=True)
        self.assertEqual(0, done.returncode, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def test_both_precisions_train_alike_and_the_faster_is_the_best(self):
        masters, autocast, best = self.lines("gpu_train_peer.py")
        self.assertEqual(("masters/math/none", "autocast/math/none"), (masters["variant"], autocast["variant"]))
        self.assertAlmostEqual(masters["loss"], autocast["loss"], delta=2e-3)
        self.assertIn("aten::_scaled_dot_product_attention_math", masters["attention"])
        self.assertEqual(max((masters, autocast), key=lambda row: row["tokens_per_s"])["variant"], best["best"])

    def test_a_variant_that_fails_is_a_row_and_the_others_run(self):
        cudnn, math, best = self.lines("gpu_train_peer.py", "--variants=masters/cudnn/none,masters/math/none", "--micro_batches=2")
        self.assertIn("error", cudnn)
        self.assertGreater(math["tokens_per_s"], 0)
        self.assertEqual("masters/math/none", best["best"])

    @unittest.skipUnless(pathlib.Path(os.environ.get("CAUSEWAY_LIBRARY", "")).is_file(), "libcauseway.so is not built")
    def test_offload_by_torch_and_by_causeway_train_alike(self):
        [torch], [causeway] = (self.lines("offload_peer_steps.py", f"--peer={peer}") for peer in ("torch", "causeway:1"))
        for ours, theirs in zip(causeway["losses"], torch["losses"], strict=True):
            self.assertAlmostEqual(ours, theirs, delta=1e-3)
        self.assertLess(torch["losses"][-1], torch["losses"][0])


if __name__ == "__main__":
    unittest.main()
