"""quality_run with a model that is trained in a second: the same settings twice, what differs with the codec, and the
same settings with the real programs over sockets.
"""

import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "e2e"))

from harness import EndToEndTest  # noqa: E402

BINARY = os.environ["QUALITY_RUN"]

CONFIG = {
    "run_id": "tiny",
    "run": {"steps": 101},
    "model": {"kind": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3,
              "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 16},
    "inner": {"lr": 3e-3, "warmup_steps": 10, "batch_size": 4},
    "data": {"mode": "shared"},
    "sync": {"sync_every": 10, "num_fragments": 4, "fragment_sync_delay": 1, "fragment_update_alpha": 0.5},
    "codec": {"up": "int4", "down": "int4", "feedback_up": 1.0, "feedback_down": 1.0},
    "membership": {"min_sites": 2},
}
NO_TIMES = {"wall_s", "cpu_s"}


def text():
    words = "the site sends what its codec keeps and the anchor moves by what all of them decode".split()
    draw = random.Random(1)
    return "\n".join(" ".join(draw.choices(words, k=8)) for _ in range(3000)) + "\n"


class QualityRun(EndToEndTest):
    def setUp(self):
        self.data = self.folder / "text"
        self.data.write_text(text())

    def run_once(self, *flags, **changes):
        config = self.folder / "run.yaml"
        config.write_text(json.dumps({**CONFIG, **changes}))
        output = subprocess.run([BINARY, f"--config={config}", f"--data={self.data}", "--eval_windows=64", *flags], check=True, stdout=subprocess.PIPE, text=True).stdout
        return json.loads(output)

    def without_times(self, result):
        return {name: value for name, value in result.items() if name not in NO_TIMES}

    def test_the_loss_falls_and_the_same_settings_give_the_same_bits(self):
        first, second = self.run_once(), self.run_once()
        self.assertEqual(self.without_times(first), self.without_times(second))
        self.assertFalse(first["diverged"])
        self.assertEqual(first["rounds"], 9)  # of every fragment; one makes a tenth
        self.assertLess(first["loss"], first["loss_half"])
        self.assertLess(first["loss_half"], first["loss_start"] - 0.5)

    def test_the_anchors_are_those_of_the_programs_over_sockets(self):
        run = self.new_run(CONFIG)
        run.start_coordinator()
        for site in ("eu", "us"):
            run.start_worker(site, f"--data={self.data}")
        run.await_done()
        self.assertEqual(self.run_once()["digests"], [fragment["digest"] for fragment in run.status()["fragments"]])
        run.stop_coordinator()

    def test_another_codec_starts_from_the_same_parameters_and_ends_elsewhere(self):
        int4 = self.run_once()
        exact = self.run_once(codec={"up": "float32", "down": "float32", "feedback_up": 0, "feedback_down": 0})
        self.assertEqual(int4["loss_start"], exact["loss_start"])
        self.assertNotEqual(int4["digests"], exact["digests"])
        self.assertEqual((exact["error_up"], exact["norm_ratio_up"]), (0, 1))
        self.assertGreater(int4["error_up"], 0.01)
        self.assertLess(int4["bytes_up"], exact["bytes_up"] / 3)

    def test_another_seed_is_another_run(self):
        self.assertNotEqual(self.run_once()["loss_start"], self.run_once(seed=2)["loss_start"])

    def test_data_parallel_repeats_itself_and_starts_like_the_sites(self):
        first, second = self.run_once("--data_parallel"), self.run_once("--data_parallel")
        self.assertEqual(self.without_times(first), self.without_times(second))
        self.assertEqual(first["loss_start"], self.run_once()["loss_start"])
        self.assertLess(first["loss"], first["loss_start"] - 0.5)

    def test_blocking_rounds_of_everything_do_not_stop_short(self):
        result = self.run_once(sync={"sync_every": 10, "num_fragments": 1, "fragment_sync_delay": 0,
                                     "fragment_update_alpha": 0}, membership={"min_sites": 3}, run={"steps": 50})
        self.assertEqual(result["rounds"], 5)
        self.assertLess(result["loss"], result["loss_start"])

    def test_a_run_that_diverges_is_a_result(self):
        result = self.run_once(inner={"lr": 1e30, "warmup_steps": 0, "batch_size": 4})
        self.assertTrue(result["diverged"])
        self.assertIsNone(result["loss"])

    def test_recorded_outer_gradients_are_whole(self):
        recorded = self.folder / "recorded"
        self.run_once(f"--record={recorded}", "--record_rounds=3")
        files = sorted(recorded.glob("*.safetensors"))
        self.assertEqual([file.name for file in files], [f"round_{base:04d}.safetensors" for base in (2, 5, 8)])
        content = files[0].read_bytes()
        size = struct.unpack("<Q", content[:8])[0]
        header = json.loads(content[8:8 + size])
        self.assertEqual(header.pop("__metadata__")["base"], "2")
        self.assertEqual(header["model.embed_tokens.weight"]["shape"], [256, 32])
        self.assertEqual(len(header), 1 + 3 * 9 + 1)
        floats = struct.unpack(f"<{(len(content) - 8 - size) // 4}f", content[8 + size:])
        self.assertGreater(sum(value != 0 for value in floats), len(floats) / 2)


if __name__ == "__main__":
    unittest.main()
