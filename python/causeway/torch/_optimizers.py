"""The optimizers of a script: which one really steps, and how a step is noticed.

    wrapper.step ─► before ─► optimizer.step: pre-hook ─► θ changes ─► post-hook ─► the wrapper's own work ─► after

Several optimizers make an inner step when each has stepped since the last one: in whatever order they step, and however
often one of them steps before another.
"""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from causeway import names
from causeway._log import LOGGER
from causeway.errors import mismatch
from causeway.torch.offload import OffloadedAdamW

Hook = Callable[[], None]

# Wrappers whose own work is not on θ, and which may leave a step out: accelerate's AcceleratedOptimizer, torchtitan's
# OptimizersContainer, Lightning's LightningOptimizer.
_TRANSPARENT = frozenset({"accelerate", "torchtitan", "lightning", "lightning_fabric", "pytorch_lightning"})
_INNER = ("optimizers", "optimizer", "base_optimizer", "_base_optimizer", "optim")

# Steps of one optimizer after which another is not waited for: one that has not begun, and one that rests. The critics of a
# GAN step five times before the generator does, in some papers a hundred times.
_NOT_BEGUN, _RESTS = 8, 128


def _steps_itself(given: object) -> bool:
    """Calls its hooks; also one that steps others, whose own step ends last. One that has not called PyTorch's __init__ has
    no hooks around its step."""
    return (isinstance(given, torch.optim.Optimizer) and "_optimizer_step_post_hooks" in vars(given)
            and hasattr(type(given).step, "hooked"))


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
        raise mismatch("optimizer", "a torch.optim.Optimizer or several", type(given).__name__,
                       "of another kind pass None, and call diloco.after_step() after each step")
    return unwrapped(inner)


def wrappers(given: object) -> Iterator[Any]:
    """Those around the optimizers that are not known, and optimizers whose step the script has replaced: what they do after
    the step that they wrap is a part of it."""
    if isinstance(given, (list, tuple)):
        for each in given:
            yield from wrappers(each)
    elif _steps_itself(given):
        if _replaces_step(given):
            yield given
    elif given is not None:
        if type(given).__module__.split(".")[0] in _TRANSPARENT or not callable(getattr(given, "step", None)):
            yield from wrappers(_inner_of(given))
        else:
            yield given


def _replaces_step(optimizer: object) -> bool:
    """By a function of its own, and not by that of a learning-rate scheduler, which counts calls."""
    own = vars(optimizer).get("step")
    return own is not None and not hasattr(own, "_wrapped_by_lr_sched") and getattr(own, "__self__", None) is not optimizer


def _levels(optimizer: torch.optim.Optimizer) -> int:
    """How many of the optimizer's step methods are in progress: of a subclass, and of the class whose step it calls. PyTorch
    calls the hooks at each of them, in a function around the method."""
    count, frame = 0, sys._getframe(1)
    hooks = torch.optim.Optimizer.profile_hook_step.__code__.co_filename
    while frame is not None:
        code = frame.f_code
        if code.co_name == "wrapper" and code.co_filename == hooks and frame.f_locals.get("self") is optimizer:
            count += 1
        frame = frame.f_back  # type: ignore[assignment]
    return count


def masters_of(optimizers: Iterable[torch.optim.Optimizer], module: nn.Module,
               trained_later: Sequence[str]) -> dict[str, torch.Tensor]:
    """{name: master} of the optimizers that tell, as OffloadedAdamW does: of parameters that are not trained themselves."""
    named = {names.plain(name): parameter for name, parameter in module.named_parameters()}
    return {name: master for optimizer in optimizers if isinstance(optimizer, OffloadedAdamW)
            for name, master in optimizer.masters(named.items(), trained_later).items() if master is not named[name]}


def settle(optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Waits for updates that go on behind a step (OffloadedAdamW's overlap)."""
    for optimizer in optimizers:
        if isinstance(optimizer, OffloadedAdamW):
            optimizer.wait()


def check_own_masters(optimizers: Iterable[torch.optim.Optimizer], mastered: Collection[torch.Tensor]) -> None:
    """Raises ConfigError for an optimizer that trains hidden copies of what it was given. `mastered`: the parameters whose
    masters are known. OffloadedAdamW's follow their parameters."""
    known = set(map(id, mastered))
    for optimizer in optimizers:
        states = (state for parameter, state in optimizer.state.items() if isinstance(state, dict) and id(parameter) not in known)
        if isinstance(optimizer, OffloadedAdamW):
            continue
        if (getattr(optimizer, "master_weights", False) and not known) or any("master_param" in state for state in states):
            raise mismatch(f"optimizer {type(optimizer).__name__}", "one that trains the parameters that it was given",
                           'masters of its own in state["master_param"]', "pass params={name: master}")


def _has_closure(arguments: tuple[Any, ...], named: dict[str, Any]) -> bool:
    return any(callable(each) and not isinstance(each, torch.optim.Optimizer) for each in (*arguments, *named.values()))


class _Counted:
    """Which steps of several optimizers make an inner step."""

    def __init__(self, optimizers: int) -> None:
        self._steps = [0] * optimizers
        self._seen = [list(self._steps) for _ in self._steps]  # the steps of all at each one's last
        self._since = set[int]()  # those that have stepped since the last inner step
        self._resting = set[int]()

    def stepped(self, at: int) -> bool:
        """True: an inner step is done with this one's."""
        self._steps[at] += 1
        self._seen[at] = list(self._steps)
        self._since.add(at)
        resting = {each for each, seen in enumerate(self._seen)
                   if max(now - then for now, then in zip(self._steps, seen)) >= (_RESTS if self._steps[each] else _NOT_BEGUN)}
        for each in resting - self._resting:
            LOGGER.warning("optimizer %d of %d has not stepped in %d steps of optimizer %d: inner steps are counted without it "
                           "until it does", each + 1, len(self._steps), _RESTS if self._steps[each] else _NOT_BEGUN, at + 1)
        self._resting = resting
        if not self._since | resting >= set(range(len(self._steps))):
            return False
        self._since.clear()
        return True


class StepHooks:
    """Calls `before` ahead of each optimizer's step, and `after` behind that which ends an inner step, with that of its
    wrapper."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], around: Iterable[Any], before: Callable[[bool, bool], None],
                 after: Hook) -> None:
        """`before`: whether the optimizer has stepped since `taken`, and whether a closure is to make its gradients. Raises
        ConfigError for a wrapper whose step cannot be noticed."""
        self._before, self._after = before, after
        self._depth = 0  # of wrappers' steps that are in progress
        self._stepped = self._removed = False
        self._counted = _Counted(len(optimizers))
        self._again = set[int]()  # optimizers that have stepped since θ was taken
        self._around = [self._notice(wrapper) for wrapper in around]
        self._handles = [self._hook(at, optimizer) for at, optimizer in enumerate(optimizers)]

    def _hook(self, at: int, optimizer: torch.optim.Optimizer) -> tuple[Any, Any]:
        def begin(_: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            if self._depth == 0 and _levels(optimizer) <= 1:
                self._before(at in self._again, _has_closure(arguments, named))
            hooks: Any = optimizer._optimizer_step_post_hooks
            hooks.move_to_end(after.id)  # behind those that the script has registered since

        def stepped(*_: Any) -> None:
            if _levels(optimizer) <= 1:
                self._again.add(at)
                self._stepped |= self._counted.stepped(at)
                self._end()
        after = optimizer.register_step_post_hook(stepped)
        return optimizer.register_step_pre_hook(begin), after

    def taken(self) -> None:
        """θ is as the run has left it: each optimizer's next step belongs to another inner one."""
        self._again.clear()

    def _end(self) -> None:
        if self._depth == 0 and self._stepped:
            self._stepped = False
            self._after()

    def _notice(self, wrapper: Any) -> tuple[Any, Any, Any]:
        """Has the wrapper's step call the hooks, too, until `remove`. Returns it, its new step, and the one that the script
        had put there."""
        replaced = vars(wrapper).get("step") if hasattr(wrapper, "__dict__") else None
        of_class = type(wrapper).step

        def original(this: Any, *arguments: Any, **named: Any) -> Any:
            return of_class(this, *arguments, **named) if replaced is None else replaced(*arguments, **named)

        def step(this: Any, *arguments: Any, **named: Any) -> Any:
            if self._removed or this is not wrapper:  # a copy of it has this method, too
                return original(this, *arguments, **named)
            self._before(bool(self._again), _has_closure(arguments, named))
            self._depth += 1
            try:
                result = original(this, *arguments, **named)
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
        return wrapper, method, replaced

    def remove(self) -> None:
        for handle in itertools.chain.from_iterable(self._handles):
            handle.remove()
        self._handles, self._removed = [], True
        for wrapper, method, replaced in self._around:
            if vars(wrapper).get("step") is method:
                del wrapper.step
                if replaced is not None:
                    wrapper.step = replaced
