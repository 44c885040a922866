"""python -m causeway.fit: what it counts, beside what PyTorch allocated on a card, and its lines."""

import contextlib
import io
import json
import pathlib
import struct
import tempfile
import unittest

from causeway import fit

MEASURED = pathlib.Path(__file__).parents[2] / "docs" / "data" / "gpu.jsonl"
LLAMA = fit.Shape(1057581056, 22, 2048, 32000, 32000 * 2048)  # and 32,768 tokens a step


def output(*arguments):
    shown, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(errors):
        try:
            code = fit.main(arguments)
        except SystemExit as end:
            code = end.code
    return code, shown.getvalue() + errors.getvalue()


class FitTest(unittest.TestCase):
    def test_bytes_on_the_card_are_those_that_were_measured_there(self):
        rows = [json.loads(line) for line in MEASURED.read_text().splitlines()]
        measured = {row["peer"]: row for row in rows if row.get("model") == "1.06b" and "device_peak_mb" in row}
        for peer, fraction in (("causeway:cpu", 0.0), ("causeway:auto:auto", 1.0)):
            needed = fit.memory(LLAMA, fraction, "float32", 32768, "bfloat16")
            expected = measured[peer]["device_peak_mb"] * 1e6
            self.assertLess(abs((needed.gpu - fit.GPU_RESERVE) / expected - 1), 0.03, peer)
            self.assertLess(abs(needed.host / 1e6 / measured[peer]["host_peak_mb"] - 1) if fraction == 0 else 0, 0.1)

    def test_an_iteration_is_the_one_that_was_measured(self):
        self.assertAlmostEqual(0.899, fit.iteration(LLAMA, 0.0, 0.652, 0.247, False), 3)
        hidden = [fit.iteration(LLAMA, fraction, 0.652, 0.247, True) for fraction in (0.0, 0.3, 1.0)]
        self.assertEqual(sorted(hidden, reverse=True), hidden)
        self.assertAlmostEqual(0.652, hidden[-1], 3)

    def test_the_greatest_fraction_that_fits_is_found_and_moments_are_narrow_only_where_the_host_lacks_room(self):
        shape = fit.usual(7e9, 128256)
        for gpu, host, expected in ((80e9, 200e9, (True, 0.55, "float32")), (48e9, 128e9, (True, 0.2, "float32")),
                                    (48e9, 70e9, (True, 0.3, "bfloat16")), (48e9, 40e9, (False, 0.3, "bfloat16")),
                                    (24e9, 500e9, (False, 0.0, "bfloat16")), (200e9, 4e9, (True, 1.0, "float32"))):
            found = fit.fit(shape, gpu, host, 4096, "bfloat16")
            self.assertEqual(expected, found[:3], (gpu, host))
            if found.fits:
                self.assertLessEqual(found.memory.gpu, gpu)
                self.assertLessEqual(found.memory.host, host)

    def test_the_table_of_the_page_is_what_it_finds(self):
        def cell(parameters, gpu):
            found = fit.fit(fit.usual(parameters, 128256), gpu * 1e9, 1e15, 4096, "bfloat16")
            return (f"`fraction={found.fraction:g}`, {found.memory.host / 1e9:.0f} GB of the host" if found.fits
                    else f"no: {found.memory.gpu / 1e9:.1f} GB at least")

        page = (MEASURED.parents[1] / "offload.md").read_text()
        for billions in (1, 3, 7, 13):
            self.assertIn(f"| {billions} B | {' | '.join(cell(billions * 1e9, gpu) for gpu in (24, 48, 80))} |", page)

    def test_it_says_whether_it_fits_and_what_to_write(self):
        code, text = output("--parameters=0.6b", "--gpu_gb=10", "--host_gb=16", "--compute_ms=1000")
        self.assertEqual(0, code, text)
        self.assertIn("fits: OffloadedAdamW(model.parameters(), fraction=", text)
        self.assertIn("an iteration, overlap=model", text)
        code, text = output("--parameters=7e9", "--gpu_gb=24", "--host_gb=128")
        self.assertEqual(1, code)
        self.assertRegex(text, r"does not fit, .*\n  6\.\d GB too much for the GPU")

    def test_parameters_of_a_folder_are_counted_in_its_weights_or_by_its_config(self):
        config = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 512, "intermediate_size": 176,
                  "num_attention_heads": 4, "tie_word_embeddings": True}
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            (path / "config.json").write_text(json.dumps(config))
            shape = fit.of_folder(path)
            self.assertEqual((2 * (4 * 64 * 64 + 3 * 64 * 176) + 512 * 64, 2, 64), shape[:3])
            header = json.dumps({"w": {"dtype": "BF16", "shape": [3, 5], "data_offsets": [0, 30]}}).encode()
            (path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(30))
            self.assertEqual(15, fit.of_folder(path).parameters)
            (path / "consolidated.safetensors").write_bytes(b"the same weights once more")
            self.assertEqual(15, fit.of_folder(path).parameters)
            (path / "model-2.safetensors").write_text("version https://git-lfs.github.com/spec/v1")
            code, text = output(f"--model={path}", "--gpu_gb=1", "--host_gb=1")
            self.assertEqual(2, code)
            self.assertRegex(text, r"got \w+: .* in .*model-2\.safetensors")

    def test_wrong_arguments_are_named(self):
        for arguments, words in (((), "one of the arguments --parameters --model is required"),
                                 (("--parameters=big",), "expected a number above 0, such as 7e9 or 7b, got 'big'"),
                                 (("--parameters=-1",), "got '-1'"),
                                 (("--model=/nowhere", "--gpu_gb=1", "--host_gb=1"), "--model: expected a Hugging Face model's config.json")):
            code, text = output(*arguments)
            self.assertEqual(2, code)
            self.assertIn(words, text)


if __name__ == "__main__":
    unittest.main()
