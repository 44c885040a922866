"""Batches without a step: a script that trains with another optimizer than DiLoCo was given.

SAM, whose two half steps are not `step`, or an optimizer that was made anew: no step counts, nothing is synced, and the
other sites wait. A long accumulation of gradients looks alike, but leaves θ as it is.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import torch

from causeway._log import LOGGER
from causeway.errors import ConfigError
from causeway.torch._model import first_values

BATCHES = 1000
SECONDS = 30.0
LAST_BATCHES = 10_000  # of which no accumulation is made

_WATCHED, _VALUES = 16, 64  # tensors, and values of each, that tell whether θ changes
_ADVICE = ("pass the optimizer whose step() runs (SAM's is its base_optimizer; one made anew needs a new DiLoCo), or None and "
           "call diloco.after_step() after each step")


class MissingSteps:
    """Counts batches since the last step. Times are of the machine's clock, in seconds."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._parts = [(tensor, _VALUES) for tensor, _ in zip(tensors, range(_WATCHED))]
        self._warned = False
        self.batches = 0  # in all
        self.joined()

    def joined(self) -> None:
        """θ is the run's, and no batch has been used since."""
        self._begin(self.batches)

    def stepped(self) -> None:
        """A step has counted in the batch that is in use, and the run has moved θ."""
        self._begin(self.batches + 1)

    def _begin(self, batch: int) -> None:
        self._since, self._begun = batch, time.monotonic()
        self._warned = False
        self._theta: torch.Tensor | None = None  # from the second batch without a step on

    def batch(self) -> None:
        """The script is done with a batch. Raises ConfigError once θ has changed and no step has counted."""
        self.batches += 1
        without = self.batches - self._since
        if without < 2:
            return
        if self._theta is None:
            self._theta = first_values(self._parts)
        if without < BATCHES and time.monotonic() - self._begun < SECONDS:
            return
        changed = not torch.equal(first_values(self._parts), self._theta)
        if not self._warned:
            self._warned = True
            LOGGER.warning("no step of the optimizer given to DiLoCo since batch %d, which is %d batches or %.0f s ago, though "
                           "the parameters have%s changed: %s", self._since, without, time.monotonic() - self._begun,
                           "" if changed else " not", _ADVICE)
        if (changed and without >= _least(self._begun)) or without >= LAST_BATCHES:
            raise ConfigError(f"expected a step of the optimizer given to DiLoCo, got none since batch {self._since}, in "
                              f"{without} batches: {_ADVICE}", expected="a step", got=f"none in {without} batches")


def _least(begun: float) -> int:
    """Batches before an error; a few are enough after twice the time."""
    return 2 if time.monotonic() - begun >= 2 * SECONDS else BATCHES
