"""The Llama of the benchmarks' PyTorch peers: the logits, loss and gradients of transformers'."""

import pathlib
import sys
import unittest

import torch
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bench"))
from llama_peer import Llama  # noqa: E402

SHAPE = {"hidden": 64, "intermediate": 176, "layers": 2, "heads": 4, "kv_heads": 4, "vocab": 512, "sequence": 48}


def reference(shape):
    return LlamaForCausalLM(LlamaConfig(
        hidden_size=shape["hidden"], intermediate_size=shape["intermediate"], num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"], num_key_value_heads=shape["kv_heads"], vocab_size=shape["vocab"],
        max_position_embeddings=shape["sequence"], tie_word_embeddings=True))


class LlamaPeerTest(unittest.TestCase):
    def pair(self, expanded=False, **more):
        torch.manual_seed(1)
        theirs, ours = reference(SHAPE | more), Llama(SHAPE | more, expanded=expanded)
        ours.load_state_dict(theirs.model.state_dict())
        return ours, theirs

    def compare(self, **more):
        ours, theirs = self.pair(**more)
        tokens = torch.randint(0, SHAPE["vocab"], (3, SHAPE["sequence"]))
        expected = theirs(input_ids=tokens, labels=tokens)
        torch.testing.assert_close(ours.logits(tokens), expected.logits, rtol=0, atol=1e-5)
        loss = ours(tokens)
        torch.testing.assert_close(loss, expected.loss, rtol=0, atol=1e-5)
        loss.backward()
        expected.loss.backward()
        gradients = dict(theirs.model.named_parameters())
        for name, parameter in ours.named_parameters():
            torch.testing.assert_close(parameter.grad, gradients[name].grad, rtol=0, atol=1e-5, msg=name)

    def test_logits_loss_and_gradients_are_those_of_transformers(self):
        self.compare()

    def test_so_are_they_with_grouped_queries(self):
        self.compare(kv_heads=2)
        self.compare(kv_heads=2, expanded=True)

    def test_a_token_sees_none_that_comes_later(self):
        ours, _ = self.pair(kv_heads=1)
        tokens = torch.randint(0, SHAPE["vocab"], (1, SHAPE["sequence"]))
        changed = tokens.clone()
        changed[0, -1] = (changed[0, -1] + 1) % SHAPE["vocab"]
        torch.testing.assert_close(ours.logits(tokens)[:, :-1], ours.logits(changed)[:, :-1], rtol=0, atol=0)

    def test_recomputed_blocks_give_the_same_gradients(self):
        kept, _ = self.pair()
        again = Llama(SHAPE, recompute=True)
        again.load_state_dict(kept.state_dict())
        tokens = torch.randint(0, SHAPE["vocab"], (2, SHAPE["sequence"]))
        for network in (kept, again):
            network(tokens).backward()
        for one, other in zip(kept.parameters(), again.parameters()):
            torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=0)


if __name__ == "__main__":
    unittest.main()
