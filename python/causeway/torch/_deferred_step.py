"""The end of an inner step, put off until the script has done with θ what it does after `optimizer.step()`: masks again, a
clamp, rows set back, weights normalised. Values that no site has trained with would be sent otherwise.

    optimizer.step ─► begin ─► the script's own work on θ ─► the first of these: end
                                 the loop's next batch, or the framework's next step
                                 a forward in training mode, with gradients
                                 the next step of an optimizer that has stepped
                                 the end of the site, or work on the anchor
                                 an evaluation, where θ is as the step has left it: no averaged weights in its place

Batches that a loader draws ahead count for nothing: they were drawn before the step.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from causeway.torch._model import first_values

_HOOKS = r"Using `torch.compile\(module\)` when there are global hooks"  # which fires one twice: it ends one step
_WATCHED, _VALUES = 4, 64  # tensors, and values of each, that tell whether θ is as it was


class DeferredStep:
    """One thread, which made it."""

    def __init__(self, module: nn.Module, tensors: Iterable[torch.Tensor], end: Callable[[], None],
                 settle: Callable[[], object]) -> None:
        """`tensors`: θ, as it is behind `settle`; `end`: what is put off."""
        self._module, self._end, self._settle = module, end, settle
        self._thread = threading.get_ident()
        self._by_batches = False  # the latest step was ended by the next batch: no forward needs to be noticed
        self._hook: Any = None
        self._unseen = False  # forwards of this script cannot be noticed
        self._parts = [(tensor, _VALUES) for tensor, _ in zip(tensors, range(_WATCHED))]
        self._pauses = False
        self._left: torch.Tensor | None = None  # by the step, in a script that pauses
        self.pending = False

    def begin(self) -> None:
        self.pending = True
        self._left = self._look() if self._pauses else None
        if not self._by_batches:
            self._unseen |= any(getattr(each, "_compiled_call_impl", None) is not None for each in self._module.modules())
            if self._unseen:
                return self.end()
            # In no module, so that a copy of the model, or a pickle, has no part of it.
            if getattr(warnings.filters[0][1], "pattern", "") != _HOOKS:  # each filter has it forget what it has said once
                warnings.filterwarnings("ignore", _HOOKS)
            self._hook = nn.modules.module.register_module_forward_pre_hook(self._forward)

    def _look(self) -> torch.Tensor:
        self._settle()
        return first_values(self._parts)

    def end(self) -> None:
        """Does what was put off, if something was."""
        if self.pending:
            self.drop()
            self._end()

    def next_batch(self) -> None:
        """The script or its framework goes on to the next batch. (A thread that draws ahead goes on by itself.)"""
        if threading.get_ident() == self._thread:
            self._by_batches = True
            self.end()

    def pause(self) -> None:
        """Something other than training begins, which may take long: what is due is sent before, unless θ is other values'
        place for it. (In the first pause of a script that is not known.)"""
        self._pauses = True
        if self.pending and self._left is not None and torch.equal(self._left, self._look()):
            self.end()

    def next_step(self, with_closure: bool) -> None:
        """As `end`. The gradients are those of θ as it was, unless a closure is still to make them."""
        if self.pending and not with_closure:
            self._unseen |= self._hook is not None
            self._by_batches = False
        self.end()

    def drop(self) -> None:
        self.pending = False
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    @torch._disable_dynamo  # type: ignore[attr-defined]
    def _forward(self, module: nn.Module, _: Any) -> None:
        if module.training and torch.is_grad_enabled() and threading.get_ident() == self._thread:
            self.end()
