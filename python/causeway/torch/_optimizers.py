"""The optimizers of a script: which one really steps, and how a step is noticed.

    wrapper.step ─► before ─► optimizer.step: pre-hook ─► θ changes ─► post-hook ─► the wrapper's own work ─► after
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from causeway.errors import mismatch

Hook = Callable[[], None]

# Wrappers whose own work is not on θ, and which may leave a step out: accelerate's AcceleratedOptimizer, torchtitan's
# OptimizersContainer, Lightning's LightningOptimizer.
_TRANSPARENT = frozenset({"accelerate", "torchtitan", "lightning", "lightning_fabric", "pytorch_lightning"})
_INNER = ("optimizers", "optimizer", "base_optimizer")


def _steps_itself(given: object) -> bool:
    """Calls its hooks; also one that steps others, whose own step ends last."""
    return isinstance(given, torch.optim.Optimizer) and "_optimizer_step_post_hooks" in vars(given)


def _inner_of(given: object) -> Any:
    return next((inner for name in _INNER if (inner := getattr(given, name, None))), None)


def unwrapped(given: object) -> list[torch.optim.Optimizer]:
    """The optimizers whose step() changes parameters and calls hooks: out of wrappers and containers."""
    if given is None:
        return []
    if isinstance(given, (list, tuple)):
        return [inner for each in given for inner in unwrapped(each)]
    if _steps_itself(given):
        assert isinstance(given, torch.optim.Optimizer)
        return [given]
    inner = _inner_of(given)
    if inner is None:
        raise mismatch("optimizer", "a torch.optim.Optimizer or several", type(given).__name__)
    return unwrapped(inner)


def wrappers(given: object) -> Iterator[Any]:
    """Those around the optimizers that are not known: what they do after the step that they wrap is a part of it."""
    if isinstance(given, (list, tuple)):
        for each in given:
            yield from wrappers(each)
    elif given is not None and not _steps_itself(given):
        if type(given).__module__.split(".")[0] in _TRANSPARENT or not callable(getattr(given, "step", None)):
            yield from wrappers(_inner_of(given))
        else:
            yield given


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
    """Calls `before` ahead of each optimizer's step, and `after` behind the last one's, with that of its wrapper."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], around: Iterable[Any], before: Hook,
                 after: Hook) -> None:
        """Raises ConfigError for a wrapper whose step cannot be noticed."""
        self._before, self._after = before, after
        self._depth = 0  # of wrappers' steps that are in progress
        self._stepped = self._removed = False
        self._handles = [optimizer.register_step_pre_hook(lambda *_: before()) for optimizer in optimizers]
        if optimizers:
            self._handles.append(optimizers[-1].register_step_post_hook(lambda *_: self._has_stepped()))
        self._around = [(wrapper, self._notice(wrapper)) for wrapper in around]

    def _has_stepped(self) -> None:
        self._stepped = True
        self._end()

    def _end(self) -> None:
        if self._depth == 0 and self._stepped:
            self._stepped = False
            self._after()

    def _notice(self, wrapper: Any) -> Any:
        """Has the wrapper's step call the hooks, too; the replaced one ends with `remove`."""
        original = wrapper.step

        def step(_: Any, *arguments: Any, **named: Any) -> Any:
            if self._removed:
                return original(*arguments, **named)
            self._before()
            self._depth += 1
            try:
                result = original(*arguments, **named)
            finally:
                self._depth -= 1
            self._end()
            return result
        method = types.MethodType(step, wrapper)
        try:
            wrapper.step = method
        except AttributeError:
            raise mismatch("optimizer", "one whose step can be noticed", type(wrapper).__name__,
                           "pass the optimizer that it wraps, if it does nothing to the parameters after its step, or None, "
                           "and call diloco.after_step() after each step") from None
        return method

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._removed = [], True
        for wrapper, method in self._around:
            if vars(wrapper).get("step") is method:
                del wrapper.step
