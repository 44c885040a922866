"""How the quickstart evaluates what its sites trained with PyTorch."""

import importlib.util
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "deploy" / "quickstart_lib" / "torch_evaluation.py"


@unittest.skipUnless(importlib.util.find_spec("transformers"), "transformers is not installed")
class EvaluationTest(unittest.TestCase):
    def setUp(self):
        sys.path.insert(0, str(ROOT / "examples"))
        from safetensors.torch import save_file
        from small_qwen import new_model
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        for name in ("start", "export"):
            (self.folder / name).mkdir()
            torch.manual_seed(len(name))
            values = {name: parameter.detach().clone() for name, parameter in new_model().named_parameters()}
            if name == "export":  # no byte is likelier than another
                values["model.embed_tokens.weight"].zero_()
            save_file(values, self.folder / name / "model.safetensors")

    def evaluate(self, text, held_out, *arguments):
        for name, content in (("text.txt", text), ("held_out.txt", held_out)):
            (self.folder / name).write_bytes(content)
        return subprocess.run([sys.executable, SCRIPT, f"--export={self.folder / 'export'}", *arguments,
                               f"--held_out={self.folder / 'held_out.txt'}", self.folder / "text.txt"],
                              capture_output=True, text=True, timeout=240)

    def test_the_losses_are_those_of_both_models_and_of_a_table_of_pairs(self):
        done = self.evaluate(b"ab" * 1001, b"ab" * 64, f"--start={self.folder / 'start'}")
        self.assertEqual(0, done.returncode, done.stderr)
        result = json.loads(done.stdout)
        self.assertAlmostEqual(math.log(256), result["eval_loss"], places=4)
        self.assertNotAlmostEqual(result["eval_loss"], result["eval_loss_start"], places=4)
        # 1001 times ab and 1000 times ba, and half a pair more of each of 256 pairs. A row of 64 asks for 32 and 31.
        expected = -(32 * math.log(1001.5 / 1129) + 31 * math.log(1000.5 / 1128)) / 63
        self.assertAlmostEqual(expected, result["bigram_loss"], places=6)
        self.assertAlmostEqual(8, result["bits_per_byte"], places=4)
        self.assertTrue(result["sample"])

    def test_an_export_of_another_model_is_refused_by_the_tensors_name(self):
        from safetensors.numpy import save_file
        save_file({"model.embed_tokens.weight": numpy.zeros((4, 4), numpy.float32)},
                  self.folder / "export" / "model.safetensors")
        done = self.evaluate(b"ab" * 1000, b"ab" * 64)
        self.assertEqual(1, done.returncode)
        self.assertIn("expected a tensor model.embed_tokens.weight of shape (256, 64), got (4, 4)", done.stderr)


if __name__ == "__main__":
    unittest.main()
