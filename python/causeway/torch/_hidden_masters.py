"""Optimizers that train copies of their own and write them over θ, so that what the run has moved is undone.

    θ after an own step ─► moved (v) ─► θ after the next own step:  own = u      an optimizer that trains θ
                                                                    own = u − v  one that trains a copy

The own step u is not known, but those before it are, and they are like it. The share of v in `own` that those do not
explain, by least squares, is about 0 or −1. A move that the latest own steps explain, as where one site alone has taken
part, shows nothing. Several signs in a row are needed, and none to the contrary.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping

import torch

from causeway._log import LOGGER
from causeway.errors import ConfigError
from causeway.torch._model import first_values, local

SAMPLE = 4096  # values
LEAST = 256  # values, of which an error may be made
SIGNS = 3  # in a row

_KEPT = 2  # moves that stayed, after which nothing more is looked at
_HISTORY = 8  # own steps that are kept
_CLEAR = 0.25  # from −1 or 0
_MOVED = 0.1  # of the move must not be explained by own steps
_BESIDE = {True: 0.5, False: 4.0}  # of an own step, where some are known, and where none is


class HiddenMasters:
    """Looks at a sample of θ until it has seen twice that moves stay. On each rank for itself."""

    def __init__(self, tensors: Mapping[int, torch.Tensor], may_end: bool) -> None:
        """`tensors`: those that are synced and are no masters themselves, by their numbers. `may_end`: signs may end the site, since the optimizer's hooks
        tell its work from what the script itself does to θ."""
        self._may_end = may_end
        self._parts: list[tuple[int, torch.Tensor, int]] = []
        self._left = SAMPLE
        by_size = sorted(tensors.items(), key=lambda item: -local(item[1]).numel())
        for index, tensor in by_size:
            count = min(local(tensor).numel(), self._left)
            if count > 0:
                self._parts.append((index, tensor, count))
                self._left -= count
        self.settled = not self._parts
        self.signs = 0
        self._kept = 0
        self.forget()

    @property
    def values(self) -> int:
        """The number of values in the sample."""
        return SAMPLE - self._left

    def forget(self) -> None:
        """θ is another one: after joining anew."""
        self._theta: torch.Tensor | None = None
        self._move: torch.Tensor | None = None
        self._own: collections.deque[torch.Tensor] = collections.deque(maxlen=_HISTORY)

    def _sample(self) -> torch.Tensor:
        return first_values((tensor, count) for _, tensor, count in self._parts)

    def stepped(self) -> bool:
        """θ is as an own step has left it. True: this is one more sign that the latest move was undone."""
        if self.settled:
            return False
        theta, before, move = self._sample(), self._theta, self._move
        self._theta, self._move = theta, None
        if before is None:
            return False
        own = theta - before
        if move is None:
            self._own.append(own)
            return False
        share = _share(own, move, list(self._own))
        self._own.append(own + move if share is not None and share < -0.5 else own)
        if share is None:
            return False
        if share > -_CLEAR:
            self._kept, self.signs = self._kept + 1, 0
        undone = share < _CLEAR - 1
        self.signs += undone
        self.settled = self._kept >= _KEPT
        return undone

    def check(self, name_of: Callable[[int], str]) -> None:
        """As `stepped`: warns of the first sign, and raises ConfigError when there are enough."""
        if not self.stepped():
            return
        name = name_of(self._parts[0][0])
        if self._may_end and self.signs >= SIGNS and self.values >= LEAST:
            raise ConfigError(f"parameter {name}: expected the optimizer to go on from what the run wrote, got the values of "
                              f"before, {self.signs} times in a row: it has masters of its own: pass params={{name: master}}",
                              expected="the values that were written", got="the values of before", tensor=name)
        if self.signs == 1:
            LOGGER.warning("parameter %s: after the run wrote it the optimizer went on from the values of before, as one with "
                           "masters of its own does, and would undo each update: pass params={name: master}", name)

    def moved(self) -> None:
        """The run has moved θ since the last call of either."""
        if self.settled:
            return
        theta = self._sample()
        if self._theta is not None:
            self._move = theta - self._theta
        self._theta = theta

    def begins(self) -> None:
        """A step begins. A move that the script itself has changed since, as one that clips θ does, shows nothing."""
        if self._move is not None and not self.settled and self._theta is not None:
            if not torch.equal(self._sample(), self._theta):
                self.forget()

    def joins(self) -> None:
        """θ is as it was made, or loaded, before the run moves it."""
        self.forget()
        if not self.settled:
            self._theta = self._sample()


def _share(own: torch.Tensor, move: torch.Tensor, history: list[torch.Tensor]) -> float | None:
    """The share of a move in what followed it. None: own steps explain it, or it is too small beside them."""
    target, v = own.double().cpu(), move.double().cpu()
    if not (torch.isfinite(target).all() and torch.isfinite(v).all()):
        return None
    size = float(v.norm())
    step = min(float(target.norm()), float((target + v).norm()))
    if history:
        basis, _ = torch.linalg.qr(torch.stack([each.double().cpu() for each in history], dim=1))
        v = v - basis @ (basis.T @ v)
        target = target - basis @ (basis.T @ target)
    rest = float(v.norm())
    if rest == 0 or rest < _MOVED * size or rest < _BESIDE[bool(history)] * step:
        return None
    return float(target @ v) / rest**2
