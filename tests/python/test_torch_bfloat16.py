"""PyTorch sites whose parameters are bfloat16: nothing moves untrained, and little is lost to rounding."""

import sys
import unittest

import torch
from transformers import LlamaForCausalLM

from llama_runs import SITES, LlamaTest, llama_config


class BFloat16Test(LlamaTest):
    def test_without_training_no_bit_of_the_anchor_moves(self):
        for codec in ("int4", "float32"):
            config = llama_config(codec, run={"steps": 510})
            config["inner"] |= {"batch_size": 1}
            run, _ = self.whole_run(config, *SITES, flags=("--dtype=bfloat16", "--untrained"))
            base = LlamaForCausalLM.from_pretrained(self.base, dtype=torch.bfloat16).state_dict()
            exported = LlamaForCausalLM.from_pretrained(run.folder / "export", dtype=torch.float32).state_dict()
            for name, values in base.items():
                self.assertTrue(torch.equal(values.float(), exported[name]), f"{codec}: {name}")

    def test_with_masters_it_trains_as_float32_does(self):
        _, expected = self.whole_run(llama_config("int4"), *SITES)
        _, loss = self.whole_run(llama_config("int4"), *SITES, flags=("--dtype=bfloat16", "--masters"))
        print(f"bfloat16 with masters {loss:.6f}, float32 {expected:.6f}, {loss / expected - 1:+.2e}", file=sys.stderr)
        self.assertLess(loss / expected, 1.003)

    def test_without_masters_it_does_too_where_the_optimizer_rounds_stochastically(self):
        for codec in ("float32", "int4"):
            _, expected = self.whole_run(llama_config(codec), *SITES)
            _, loss = self.whole_run(llama_config(codec), *SITES, flags=("--dtype=bfloat16", "--rounding=stochastic"))
            print(f"{codec}: bfloat16 without masters {loss:.6f}, float32 {expected:.6f}, {loss / expected - 1:+.2e}",
                  file=sys.stderr)
            self.assertLess(loss / expected, 1.003, codec)


if __name__ == "__main__":
    unittest.main()
