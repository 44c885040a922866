"""The models that benchmarks train on a GPU: their sizes, costs and tokens."""

import collections
import pathlib
import tempfile
import unittest

import gpu_models
from gpu_models import MODELS


class ShapesTest(unittest.TestCase):
    def test_parameters_are_those_that_the_names_say(self):
        self.assertEqual(123_587_328, gpu_models.parameters(MODELS["124m"]))  # as train_run prints
        self.assertEqual(1_235_814_400, gpu_models.parameters(MODELS["llama-3.2-1b"]))  # as its own checkpoint has
        for name, millions in (("350m", 360), ("774m", 778), ("1.06b", 1058), ("4.6b", 4622)):
            self.assertAlmostEqual(millions, gpu_models.parameters(MODELS[name]) / 1e6, delta=1)

    def test_heads_divide_and_micro_batches_have_whole_rows(self):
        for name, shape in MODELS.items():
            self.assertEqual(0, shape["hidden"] % shape["heads"], name)
            self.assertEqual(0, shape["heads"] % shape["kv_heads"], name)
            self.assertEqual(0, shape["rows"] % shape.get("micro_batches", 1), name)

    def test_flops_count_the_tied_head_and_half_of_attentions_pairs(self):
        shape = {"hidden": 4, "intermediate": 6, "layers": 2, "heads": 2, "kv_heads": 1, "vocab": 10, "sequence": 8}
        layer = 4 * 4 + 4 * 2 + 4 * 2 + 4 * 4 + 3 * 4 * 6
        self.assertEqual(6 * (2 * layer + 40) + 6 * 2 * 4 * 8, gpu_models.flops_per_token(shape))

    def test_mfu_of_a_measured_row(self):
        self.assertAlmostEqual(0.385, gpu_models.mfu(477_579, MODELS["124m"]), delta=0.001)

    def test_predictions_follow_the_shape(self):
        predicted = {name: gpu_models.predicted_tokens_per_s(shape) for name, shape in MODELS.items()}
        self.assertAlmostEqual(71_000, predicted["llama-3.2-1b"], delta=1_000)
        self.assertAlmostEqual(541_000, predicted["124m"], delta=5_000)
        self.assertGreater(predicted["1.06b"], predicted["llama-3.2-1b"])
        self.assertLess(gpu_models.predicted_tokens_per_s(MODELS["124m"], 2.6e12), predicted["124m"])  # an H100's memory
        for name in ("124m", "350m", "774m", "1.06b", "llama-3.2-1b"):
            self.assertTrue(0.4 < gpu_models.mfu(predicted[name], MODELS[name]) < 0.6, name)

    def test_an_unknown_model_is_refused_with_the_names(self):
        with self.assertRaisesRegex(SystemExit, "expected a model of tiny, 17m.*, got '1.2b'"):
            gpu_models.shape_of("1.2b")


class TokensTest(unittest.TestCase):
    def written(self, shape, *kind):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "tokens.bin"
            gpu_models.write_tokens(path, shape, *kind)
            return gpu_models.read_tokens(path), path.stat().st_size

    def test_shares_are_zipfs(self):
        tokens, size = self.written({"vocab": 512})
        self.assertEqual((gpu_models.TOKENS, 1024 + 2 * gpu_models.TOKENS), (len(tokens), size))
        counts = collections.Counter(tokens)
        self.assertAlmostEqual((100 + 2.7) / 2.7, counts[0] / counts[100], delta=4)
        self.assertLess(max(counts), 512)

    def test_uniform_tokens_are_alike(self):
        counts = collections.Counter(self.written({"vocab": 512}, "uniform")[0])
        self.assertLess(max(counts.values()) / min(counts.values()), 1.3)

    def test_a_large_vocabulary_has_four_bytes_a_token(self):
        tokens, size = self.written({"vocab": 128256})
        self.assertEqual(1024 + 4 * gpu_models.TOKENS, size)
        self.assertTrue(65_536 < max(tokens) < 128_256)

    def test_the_seed_is_fixed(self):
        self.assertEqual(self.written({"vocab": 512}), self.written({"vocab": 512}))

    def test_other_files_and_kinds_are_refused(self):
        with self.assertRaisesRegex(SystemExit, "expected tokens of zipf or uniform, got 'normal'"):
            self.written({"vocab": 512}, "normal")
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "tokens.bin"
            path.write_bytes(bytes(2048))
            with self.assertRaisesRegex(SystemExit, r"expected llm.c's header of magic and version .*, got \(0, 0\)"):
                gpu_models.read_tokens(path)


if __name__ == "__main__":
    unittest.main()
