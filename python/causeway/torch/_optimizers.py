"""The optimizers of a script: which one really steps, how a step is noticed, and the schedulers beside them."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from causeway.errors import mismatch

Hook = Callable[[], None]


def unwrapped(given: object) -> list[torch.optim.Optimizer]:
    """The optimizers whose step() changes parameters and calls hooks: without accelerate's wrapper, out of containers."""
    if given is None:
        return []
    if isinstance(given, (list, tuple)):
        return [inner for each in given for inner in unwrapped(each)]
    if isinstance(given, torch.optim.Optimizer) and "_optimizer_step_post_hooks" in vars(given):
        return [given]  # also one that steps others: its own step ends last
    for attribute in ("optimizers", "optimizer"):  # torchtitan's OptimizersContainer, accelerate's AcceleratedOptimizer
        if getattr(given, attribute, None):
            return unwrapped(getattr(given, attribute))
    raise mismatch("optimizer", "a torch.optim.Optimizer or several", type(given).__name__)


def check_own_masters(optimizers: Iterable[torch.optim.Optimizer], has_masters: bool) -> None:
    """Raises ConfigError for an optimizer that trains hidden copies of what it was given, unless they were passed."""
    if has_masters:
        return
    for optimizer in optimizers:
        states = (state for state in optimizer.state.values() if isinstance(state, dict))
        if getattr(optimizer, "master_weights", False) or any("master_param" in state for state in states):
            raise mismatch(f"optimizer {type(optimizer).__name__}", "one that trains the parameters that it was given",
                           'masters of its own in state["master_param"]', "pass params={name: master}")


class StepHooks:
    """Calls `before` ahead of each optimizer's step, and `after` behind the last one's."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], before: Hook, after: Hook) -> None:
        self._handles = [optimizer.register_step_pre_hook(lambda *_: before()) for optimizer in optimizers]
        if optimizers:
            self._handles.append(optimizers[-1].register_step_post_hook(lambda *_: after()))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []


class Schedulers:
    """Learning-rate schedulers that are moved to a step: they take the steps that others have taken.

    They can be moved back as far as where they stood when this was made: make it before a checkpoint is loaded.
    """

    def __init__(self, given: Iterable[Any]) -> None:
        self._schedulers = [getattr(each, "scheduler", each) for each in given]  # without accelerate's wrapper
        for scheduler in self._schedulers:
            if not all(hasattr(scheduler, name) for name in ("last_epoch", "state_dict", "step", "optimizer")):
                raise mismatch("schedulers", "learning-rate schedulers of torch.optim", type(scheduler).__name__)
        self._begin = [(copy.deepcopy(scheduler.state_dict()), _rates(scheduler)) for scheduler in self._schedulers]

    def move_to(self, step: int) -> None:
        """As if each had been stepped once after each of `step` inner steps."""
        for scheduler, (state, rates) in zip(self._schedulers, self._begin):
            if scheduler.last_epoch > step:
                scheduler.load_state_dict(copy.deepcopy(state))
                for group, rate in zip(scheduler.optimizer.param_groups, rates):
                    group["lr"] = copy.deepcopy(rate)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # "lr_scheduler.step() before optimizer.step()": others have stepped
                while scheduler.last_epoch < step:
                    scheduler.step()


def _rates(scheduler: Any) -> list[Any]:
    return [copy.deepcopy(group["lr"]) for group in scheduler.optimizer.param_groups]


class HiddenMasters:
    """Notices an optimizer that writes copies of its own over what a move wrote.

    After a move a few written values are kept beside those before it. After the next step θ must be nearer to what was
    written: if it is back at the old values, the optimizer has masters. Looks until it once was near.
    """

    SAMPLE = 4096
    CLEAR = 0.25  # of the other distance; between the two nothing is said

    def __init__(self) -> None:
        self._sample: tuple[int, torch.Tensor, torch.Tensor] | None = None
        self.settled = False

    def watch(self, index: int, old: torch.Tensor, new: torch.Tensor) -> None:
        """Before a write of tensor `index`'s first values."""
        if self._sample is None and not self.settled:
            count = min(self.SAMPLE, new.numel())
            self._sample = index, old[:count].float().cpu().clone(), new[:count].float().cpu().clone()

    def forget(self) -> None:
        self._sample = None

    def suspect(self, values: Callable[[int], torch.Tensor]) -> int | None:
        """After a step: the tensor whose write was undone, by its index; None: no sign of it."""
        if self._sample is None:
            return None
        index, old, new = self._sample
        self._sample = None
        now = values(index)[:old.numel()].float().cpu()
        from_old, from_new = float((now - old).norm()), float((now - new).norm())
        if from_old < self.CLEAR * from_new:
            return index
        self.settled = from_new < self.CLEAR * from_old
        return None
