"""The pieces that scripts of users are made of, in the tests of such scripts."""

import torch
from torch import nn

RATE = 0.1


class Net(nn.Module):
    def __init__(self, body=nn.Linear):
        super().__init__()
        self.body, self.head = body(6, 20), nn.Linear(20, 3)

    def forward(self, x):
        return self.head(self.body(x).tanh())


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=RATE)


def backward(model, batch):
    model(batch).square().mean().backward()


def train(site, model, optimizer, steps=None, before=lambda step: None, between=lambda step: None, replayed=None, **settings):
    """The three lines; `before` each step, `between` it and the next."""
    with site.diloco(model, optimizer, replayed, **settings) as diloco:
        for batch in diloco.loop(site.batches):
            before(diloco.step + 1)
            backward(model, batch)
            optimizer.step()
            site.done()
            optimizer.zero_grad()
            between(diloco.step)
