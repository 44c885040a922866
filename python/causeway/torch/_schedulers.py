"""Learning-rate schedulers of a site that enters a run at another step than its own."""

from __future__ import annotations

import copy
import importlib
import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from causeway._log import LOGGER
from causeway.errors import ConfigError, mismatch

_LOOKS = 3  # after this many steps of a site it is known whether its schedulers follow


@dataclass
class _Followed:
    """One scheduler.

    Attributes:
        scheduler: without a wrapper.
        steps: its own steps at each call of the script's.
        given: inner steps from one call to the next, or what says so later; 0: it is not known.
        state, rates: as they were when it was given.
    """

    scheduler: Any
    steps: int
    given: int | Callable[[], int]
    state: dict[str, Any]
    rates: list[Any]

    @property
    def name(self) -> str:
        return type(self.scheduler).__name__

    @property
    def epoch(self) -> int:
        """How often it was stepped. A ChainedScheduler's own count is that of its parts."""
        counted = self.scheduler
        while not hasattr(counted, "last_epoch"):
            counted = counted._schedulers[0]
        return int(counted.last_epoch)

    @property
    def every(self) -> int:
        return self.given if isinstance(self.given, int) else self.given()

    def at(self, step: int) -> int:
        """`epoch` after an inner step."""
        return step // self.every * self.steps if self.every else self.epoch


class Schedulers:
    """Moved to a step: they take the steps that others have taken.

    They can be moved back as far as where they stood when this was made: make it before a checkpoint is loaded.
    """

    def __init__(self, given: Any) -> None:
        """One or several, each as the script steps it after each inner step, or with the number of inner steps between two
        of its own: (scheduler, 500). Raises ConfigError."""
        self._followed: list[_Followed] = []
        self._fixed: list[str] = []  # those that need a metric stay where they are
        self._looked = 0
        self._at_step: list[int] = []  # of the latest inner step, before the script has stepped them for it
        one = hasattr(given, "step") or (isinstance(given, tuple) and len(given) == 2 and not hasattr(given[1], "step"))
        for each in [given] if one else given or ():
            scheduler, every = each if isinstance(each, (tuple, list)) and len(each) == 2 else (each, 1)
            if not callable(every) and (type(every) is not int or every < 1):
                raise mismatch("schedulers", "(scheduler, inner steps between two of its own, from 1 on)", f"{every!r}")
            self._add(scheduler, every)

    def _add(self, given: Any, every: int | Callable[[], int]) -> None:
        inner = getattr(given, "scheduler", given)
        known = hasattr(inner, "last_epoch") or hasattr(inner, "_schedulers")
        if not known or not all(hasattr(inner, name) for name in ("state_dict", "step", "optimizer")):
            raise mismatch("schedulers", "learning-rate schedulers of torch.optim", type(inner).__name__)
        if _needs_metric(inner):
            self._fixed.append(type(inner).__name__)
        else:
            self._followed.append(_Followed(inner, _steps_of_wrapper(given), every, copy.deepcopy(inner.state_dict()),
                                            _rates(inner)))

    def move_to(self, step: int) -> None:
        """As if the script had stepped each of them in all inner steps up to this one. Raises ConfigError for one that
        does not go so far."""
        if step > 0 and self._fixed:
            LOGGER.warning("at step %d the learning rate of %s stays where it is: it follows from a metric", step,
                           ", ".join(self._fixed))
            self._fixed = []
        unknown = [followed.name for followed in self._followed if step > 0 and not followed.every]
        if unknown:
            LOGGER.warning("at step %d the learning rate of %s stays where it is: it goes by epochs of unknown length", step,
                           ", ".join(unknown))
        for followed in self._followed:
            scheduler, target = followed.scheduler, followed.at(step)
            if followed.epoch > target:
                scheduler.load_state_dict(copy.deepcopy(followed.state))
                for group, rate in zip(scheduler.optimizer.param_groups, followed.rates):
                    group["lr"] = copy.deepcopy(rate)
            most = getattr(scheduler, "total_steps", None)
            if isinstance(most, int) and target > most:
                raise ConfigError(f"schedulers: {followed.name}: expected total_steps of at least {target}, as the run is at "
                                  f"step {step}, got {most}: make it with the run's steps", expected=target, got=most)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # "lr_scheduler.step() before optimizer.step()": others have stepped
                while followed.epoch < target:
                    scheduler.step()
        self._looked = 0

    def rejoin(self, step: int) -> None:
        """As move_to, after an inner step of the script, which steps them once more for it if it has not yet."""
        stepped = any(each.epoch > before for each, before in zip(self._followed, self._at_step))
        self.move_to(step if stepped else step - 1)

    def look(self, step: int) -> None:
        """At a step of the optimizer, after which the script may step them: warns of those that do not follow."""
        self._at_step = [each.epoch for each in self._followed]
        if self._looked > _LOOKS or not self._followed:
            return
        self._looked += 1
        if self._looked == _LOOKS:
            for followed in self._followed:
                expected, got = followed.at(step), followed.epoch
                if expected > got + followed.steps:  # ahead is one that is stepped where gradient scaling skips a step
                    LOGGER.warning("schedulers: %s: expected to be stepped once in %d inner steps, got %d steps of its own "
                                   "after inner step %d: a site that joins late would have another learning rate; pass "
                                   "(scheduler, inner steps between two of its own)", followed.name, followed.every, got, step)


def _needs_metric(scheduler: Any) -> bool:
    """ReduceLROnPlateau and its like, whose step has an argument without a default."""
    try:
        parameters = inspect.signature(scheduler.step).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(each.default is each.empty and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
               for each in parameters)


def _steps_of_wrapper(given: Any) -> int:
    """accelerate steps a prepared scheduler once for each of its processes, as if each had a batch of a common loader."""
    if not (hasattr(given, "split_batches") and hasattr(given, "step_with_optimizer")):
        return 1
    if given.split_batches or not given.step_with_optimizer:
        return 1
    state: Any = importlib.import_module("accelerate.state")
    return int(state.AcceleratorState().num_processes)


def _rates(scheduler: Any) -> list[Any]:
    return [copy.deepcopy(group["lr"]) for group in scheduler.optimizer.param_groups]
