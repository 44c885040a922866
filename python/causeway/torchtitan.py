"""torchtitan's Trainer as a site of a run, as it is.

    trainer = config.build()
    with causeway.torchtitan.Site(trainer, "hub:7077", site="eu"):
        trainer.train()

    checkpointer.load ─► joins ─► train_step: counts, syncs ─► trainer.step ─► should_continue_training: until run.steps
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from torch import distributed, nn

from causeway.errors import mismatch
from causeway.torch import DiLoCo
from causeway.torch._framework import FrameworkSite
from causeway.torch._schedulers import Schedulers
from causeway.torch._state import SiteState

_NEEDED = ("config", "model_parts", "optimizers", "lr_schedulers", "checkpointer", "metrics_processor", "train_step",
           "should_continue_training", "step")


class Site:
    """Takes part in a run while the trainer trains. A context manager around `trainer.train()`.

    The site joins when the trainer has loaded its checkpoint, which holds the site's state, too; `trainer.step` is the
    run's inner step. Figures of the run go where the trainer's metrics go.
    """

    def __init__(self, trainer: Any, coordinator: str | None = None, *, site: str | None = None,
                 **settings: Any) -> None:
        """Args: a torchtitan Trainer with one model part; the others are those of causeway.torch.DiLoCo.

        Raises ConfigError for anything else.
        """
        missing = [name for name in _NEEDED if not hasattr(trainer, name)]
        if missing:
            raise mismatch("trainer", "torchtitan's, with " + ", ".join(_NEEDED), "none of " + ", ".join(missing))
        if len(trainer.model_parts) != 1:
            raise mismatch("trainer", "one model part", len(trainer.model_parts), "pipelines are not supported")
        self._trainer = trainer
        self._site = FrameworkSite(coordinator, site, settings)
        self._state = _StateInCheckpoints(self._site)
        self._schedulers = Schedulers(())
        self._wrapped: list[tuple[Any, str]] = []

    @property
    def diloco(self) -> DiLoCo:
        """While the trainer trains. Raises FailedError before and afterwards."""
        return self._site.diloco

    def __enter__(self) -> Site:
        trainer = self._trainer
        self._schedulers = Schedulers(trainer.lr_schedulers.schedulers)  # before the checkpoint moves them
        if (states := self._states()) is not None:
            states["causeway"] = self._state
        self._wrap(trainer.checkpointer, "load", self._load)
        self._wrap(trainer, "train_step", self._train_step)
        self._wrap(trainer, "should_continue_training", self._should_continue)
        self._wrap(trainer.metrics_processor, "log", self._log)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: types.TracebackType | None) -> None:
        for owner, name in self._wrapped:
            delattr(owner, name)  # the class's own is back
        self._wrapped = []
        if (states := self._states()) is not None:
            states.pop("causeway", None)
        self._site.end(error)

    def _states(self) -> dict[str, Any] | None:
        """The contents of checkpoints, by name. None where the trainer writes none."""
        states: dict[str, Any] | None = getattr(self._trainer.checkpointer, "states", None)
        return states

    def _wrap(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        inner = getattr(owner, name)
        setattr(owner, name, lambda *args, **kwargs: around(inner, *args, **kwargs))
        self._wrapped.append((owner, name))

    # ---- Around the trainer's own ----

    def _load(self, load: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        loaded = load(*args, **kwargs)
        trainer = self._trainer
        model: nn.Module = trainer.model_parts[0]
        trainer.step = self._site.begin(model, trainer.optimizers, self._schedulers, self._state.taken()).step
        self._site.warn_of_early_end(int(trainer.config.training.steps), "training.steps")
        return loaded

    def _train_step(self, train_step: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self._site.waited()  # checkpoints and validation are no part of a step
        self._site.trains()
        train_step(*args, **kwargs)
        self._trainer.step = self._site.diloco.step
        self._site.may_wait()

    def _should_continue(self, should_continue: Callable[[], bool]) -> bool:
        return bool(should_continue()) and not self._site.diloco.over

    def _log(self, log: Callable[..., Any], step: int, loss: float, *args: Any, **kwargs: Any) -> None:
        self._site.diloco.report(loss=float(loss))
        kwargs["extra_metrics"] = {**(kwargs.get("extra_metrics") or {}), **self._site.figures()}
        log(step, loss, *args, **kwargs)


class _StateInCheckpoints:
    """The site's part of torchtitan's checkpoints: a Stateful from which the site is restored."""

    def __init__(self, site: FrameworkSite) -> None:
        self._site = site
        self._loaded: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """Rank 0's state alone: torch.distributed.checkpoint would take that of any one rank."""
        state = self._site.state() if self._site.joined else None
        leads = not distributed.is_initialized() or distributed.get_rank() == 0
        return {"state": state or SiteState()} if leads else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._loaded = state_dict if "state" in state_dict and state_dict["state"].parts else None

    def taken(self) -> dict[str, Any] | None:
        loaded, self._loaded = self._loaded, None
        return loaded
