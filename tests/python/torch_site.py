"""Shared by the tests of causeway.torch: a site over the stand-in for the library, and small models."""

import unittest

import torch
from torch import nn

import causeway.torch as causeway
from causeway._library import AGAIN, OK, READ, WORK, WRITE
from fake_library import CONFIG, FakeLibrary


class Tiny(nn.Module):
    """An embedding that is tied to the head, a block with a norm, and a buffer."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.embed = nn.Embedding(7, 4, dtype=dtype)
        self.layers = nn.ModuleList([nn.Linear(4, 4, dtype=dtype) for _ in range(2)])
        self.norm = nn.LayerNorm(4, dtype=dtype)
        self.head = nn.Linear(4, 7, bias=False, dtype=dtype)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = x + layer(x).relu()
        return self.head(self.norm(x))

    def loss(self, tokens):
        return nn.functional.cross_entropy(self(tokens).flatten(0, 1).float(), tokens.flatten())


TOKENS = torch.tensor([[1, 2, 3], [4, 5, 6]])


class FakeSiteTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)
        self.fake = FakeLibrary()
        loaded = self.fake.loaded()
        loaded.__enter__()
        self.addCleanup(loaded.__exit__, None, None, None)
        self.model = Tiny()

    def sgd(self, model=None, lr=0.1):
        return torch.optim.SGD((self.model if model is None else model).parameters(), lr=lr)

    def diloco(self, model=None, optimizer=None, **settings):
        diloco = causeway.DiLoCo(self.model if model is None else model, optimizer, coordinator="hub:1", site="eu",
                                 **settings)
        self.addCleanup(diloco.close)
        return diloco

    def listed(self):
        """{name: what the library was told of the tensor}."""
        return {tensor["name"]: tensor for tensor in self.fake.model["tensors"]}

    def indices(self):
        return {tensor["name"]: index for index, tensor in enumerate(self.fake.model["tensors"])}

    def after_step_gives(self, *pieces, flags=0):
        """Work of the next after_step: (kind, name, values or count)."""
        for kind, name, values in pieces:
            count = values if isinstance(values, int) else len(values)
            self.fake.give(kind, tensor=self.indices()[name], count=count, flags=flags,
                           values=None if isinstance(values, int) else values)
        self.fake.answers["site_after_step"] = [WORK, OK]

    def steps(self):
        """How many steps the library was told of; waits that were taken up again count once."""
        return self.fake.calls.count("site_after_step")


__all__ = ["AGAIN", "CONFIG", "OK", "READ", "TOKENS", "WORK", "WRITE", "FakeSiteTest", "Tiny", "causeway", "nn", "torch",
           "unittest"]
