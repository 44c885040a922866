"""The scripts of docs/offload.md as they stand there, and again with torch.optim.AdamW: the same parameters."""

import contextlib
import os
import pathlib
import re
import tempfile
import types
import unittest

import torch
import torch.distributed as dist

import causeway.torch as causeway
from test_torch_offload import OnStandIn

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "offload.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BATCHES, ROWS, LENGTH = 8, 2, 12
LEAST = 12  # scripts that train


def new_model():
    from transformers import Qwen2Config, Qwen2ForCausalLM
    torch.manual_seed(1)
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=LENGTH))


def batches():
    generator = torch.Generator().manual_seed(2)
    return [{"input_ids": tokens, "labels": tokens}
            for tokens in torch.randint(0, 64, (BATCHES, ROWS, LENGTH), generator=generator)]


def distance(a, b):
    """Over all parameters. Where a gradient is near 0, as a key's bias has it, its last bit decides where Adam's step goes."""
    return sum((x - y).double().square().sum().item() for x, y in zip(a, b, strict=True)) ** 0.5


class DocsTest(unittest.TestCase):
    def trained(self, block, package=causeway):
        """The parameters that the script ends with."""
        torch.manual_seed(3)
        rows = [{name: values[row] for name, values in batch.items()} for batch in batches() for row in range(ROWS)]
        names = {"torch": torch, "causeway": package, "model": new_model(), "batches": batches(), "dataset": rows}
        package.names = names  # what it has by then
        exec(compile(block, str(DOCS), "exec"), names)
        return [getattr(p, "full_tensor", lambda p=p: p)().detach().float().cpu() for p in names["model"].parameters()]

    @contextlib.contextmanager
    def scripts(self):
        blocks = [block for block in BLOCK.findall(DOCS.read_text()) if "causeway.DiLoCo(" not in block]
        self.assertGreaterEqual(len(blocks), LEAST)
        before = pathlib.Path.cwd()
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            os.chdir(folder)
            stack.callback(os.chdir, before)
            os.environ.setdefault("ACCELERATE_USE_CPU", "1")
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
            stack.callback(dist.destroy_process_group)
            yield blocks

    def test_each_script_has_the_same_bits_where_updates_go_on_behind_the_next_forward(self):
        made = []

        def optimizer(overlap):
            def make(parameters, **settings):
                model = package.names["model"]
                settings = {**settings, "k": "cpu", "overlap": model if overlap else None}
                made.append(OnStandIn(parameters, **{name: value for name, value in settings.items() if value is not None}))
                return made[-1]
            package = types.SimpleNamespace(OffloadedAdamW=make)
            return package

        with self.scripts() as blocks:
            for block in blocks:
                with self.subTest(block[:60]):
                    made.clear()
                    block = block.replace("import causeway.torch as causeway\n", "")
                    now, late = self.trained(block, optimizer(False)), self.trained(block, optimizer(True))
                    self.assertTrue(all(torch.equal(a, b) for a, b in zip(now, late, strict=True)))
                    self.assertEqual("fully_shard" not in block, sum(each.handed for each in made) > 0)

    def test_each_script_ends_with_the_parameters_of_torchs_optimizer(self):
        with self.scripts() as blocks:
            for block in blocks:
                with self.subTest(block[:60]):
                    narrow = "model = model.to(torch.bfloat16)\n"  # torch's has no masters: beside it float32
                    ours = self.trained(block)
                    plain = block.replace(narrow, "").replace(", overlap=model", "")
                    theirs = self.trained(plain.replace("causeway.OffloadedAdamW", "torch.optim.AdamW"))
                    start = self.trained("")
                    if len(start) == len(ours):  # not with adapters
                        moved = distance(theirs, start)
                        self.assertGreater(moved, 0)
                        self.assertLess(distance(ours, theirs) / moved, 0.1 if narrow in block else 2e-2)  # Muon is in bfloat16
                    else:
                        self.assertLess(distance(ours, theirs), 1e-4)


if __name__ == "__main__":
    unittest.main()
