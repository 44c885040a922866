"""Hugging Face's Trainer as a site of a run.

    trainer = Trainer(model, args, train_dataset=data, callbacks=[CausewayCallback("hub:7077", site="eu")])
    trainer.train()                                             # or trainer.train(resume_from_checkpoint=True)

    on_train_begin: joins ─► optimizer.step: counts, syncs ─► on_step_end: global_step ─► on_train_end: leaves
"""

from __future__ import annotations

import os
import pathlib
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import torch
import transformers

from causeway._log import LOGGER
from causeway.torch import DiLoCo
from causeway.torch._framework import FrameworkSite
from causeway.torch._schedulers import Schedulers
from causeway.torch._state import SiteState

STATE_FILE = "causeway.pt"  # in the Trainer's checkpoint folders
_SHOWN = ("causeway/rounds", "causeway/sites", "causeway/stall_s")  # of the figures, on the terminal


class CausewayCallback(transformers.TrainerCallback):
    """Takes part in a run while the Trainer trains: from the entry step on, until `run.steps` or its own end.

    `global_step` is the run's inner step: steps that gradient scaling skips are none, and a site that joins late
    begins at the run's step. Checkpoints of the Trainer hold the site's state, too, in causeway.pt. Figures of the run
    (causeway/stall_s, …) are among what the Trainer logs, so in each chart that it reports to.
    """

    def __init__(self, coordinator: str | None = None, *, site: str | None = None, **settings: Any) -> None:
        """Args: those of causeway.torch.DiLoCo but model, optimizer and schedulers, which the Trainer has."""
        self._site = FrameworkSite(coordinator, site, settings)
        self._tokens = 0

    @property
    def diloco(self) -> DiLoCo:
        """While the Trainer trains. Raises FailedError before and afterwards."""
        return self._site.diloco

    def export(self, directory: str | os.PathLike[str], tokenizer: Any = None) -> None:
        """Writes the model with W, which all sites hold alike: during training, and, as it was then, after its end. The
        Trainer's own save writes the site's θ. On all ranks."""
        self._site.export(directory, tokenizer)

    def leave(self) -> None:
        """Leaves the run after an error that ended `train`, where the process goes on. Otherwise it is done for you."""
        self._site.end()

    def on_train_begin(self, args: Any, state: Any, control: Any, **trainer: Any) -> None:
        _follow_the_default_flow(self)
        resumed = _load(args, state) if state.global_step > 0 and args.process_index == 0 else None
        schedulers = _from_the_beginning(trainer.get("lr_scheduler"))
        assets = trainer.get("processing_class")
        diloco = self._site.begin(trainer["model"], trainer["optimizer"], schedulers, resumed,
                                  assets if hasattr(assets, "save_pretrained") else None)
        if diloco.step < state.global_step:
            LOGGER.warning("the Trainer goes on from a checkpoint of step %d, and the run is at step %d: it may end before the "
                           "run does, by its epochs", state.global_step, diloco.step)
        if diloco.step != state.global_step:
            LOGGER.info("global_step %d becomes the run's step %d", state.global_step, diloco.step)
        state.global_step = diloco.step
        self._tokens = int(state.num_input_tokens_seen)
        self._site.warn_of_early_end(state.max_steps, "max_steps")
        control.should_training_stop = self._site.is_over(state.max_steps) or state.global_step >= state.max_steps

    def on_step_begin(self, args: Any, state: Any, control: Any, **trainer: Any) -> None:
        self._site.trains()

    def on_step_end(self, args: Any, state: Any, control: Any, **trainer: Any) -> None:
        diloco = self._site.diloco
        state.global_step = diloco.step
        seen = int(state.num_input_tokens_seen)
        diloco.report(tokens=seen - self._tokens)
        self._tokens = seen
        control.should_training_stop |= self._site.is_over(state.max_steps)
        self._site.may_wait()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **trainer: Any) -> None:
        if logs is None or "loss" not in logs or not self._site.joined:  # of an evaluation
            return
        self._site.diloco.report(loss=float(logs["loss"]))
        figures = {**self._site.figures(), **self._site.codecs()}
        logs.update(figures)
        if state.log_history:
            state.log_history[-1].update(figures)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **trainer: Any) -> None:
        if self._site.joined:
            self._site.diloco.pause()

    def on_evaluate(self, args: Any, state: Any, control: Any, **trainer: Any) -> None:
        if self._site.joined:  # not for trainer.evaluate() outside of training
            self._site.waited()

    def on_save(self, args: Any, state: Any, control: Any, **trainer: Any) -> None:
        if not self._site.joined:
            return
        folder = pathlib.Path(args.output_dir, f"checkpoint-{state.global_step}")
        site_state = self._site.state()
        if site_state is not None and folder.is_dir():
            _save({"state": site_state}, folder / STATE_FILE)
        self._site.waited()

    def on_train_end(self, args: Any, state: Any, control: Any, **trainer: Any) -> None:
        self._site.end()


class _OnTheTerminal(transformers.TrainerCallback):
    """In front of the callback that prints what is logged: three figures are enough there."""

    def __init__(self) -> None:
        self.hidden: dict[str, Any] = {}

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **trainer: Any) -> None:
        hidden = [each for each in logs or {} if each.startswith("causeway/") and each not in _SHOWN]
        self.hidden = {name: logs.pop(name) for name in hidden}  # type: ignore[union-attr]


class _BehindTheTerminal(transformers.TrainerCallback):
    """Callbacks that a script adds later get everything again."""

    def __init__(self, before: _OnTheTerminal) -> None:
        self._before = before

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **trainer: Any) -> None:
        if logs is not None:
            logs.update(self._before.hidden)


def _follow_the_default_flow(callback: CausewayCallback) -> None:
    """Moves the callback behind the Trainer's own DefaultFlowCallback: before those that write what is logged.

    The Trainer calls its own callbacks first, and tells none of them where it keeps the others.
    """
    handler: Any = sys._getframe(2).f_locals.get("self")
    callbacks = getattr(handler, "callbacks", [])
    flow = [isinstance(each, transformers.DefaultFlowCallback) for each in callbacks]
    if callback in callbacks and any(flow):
        callbacks.remove(callback)
        callbacks.insert(flow.index(True) + 1, callback)
        printers = (transformers.ProgressCallback, transformers.PrinterCallback)
        printing = [isinstance(each, printers) for each in callbacks]
        if any(printing) and not any(isinstance(each, _OnTheTerminal) for each in callbacks):
            terminal = _OnTheTerminal()
            callbacks[printing.index(True):printing.index(True) + 1] = [
                terminal, callbacks[printing.index(True)], _BehindTheTerminal(terminal)]
    else:
        LOGGER.warning("the Trainer's callbacks are not where they were in transformers 5.23: figures of the run are in "
                       "trainer.state.log_history alone")


def _from_the_beginning(scheduler: Any) -> Schedulers:
    """Can be moved back before the checkpoint that the Trainer has loaded, where the rate follows from the step alone,
    as that of the Trainer's own schedules does."""
    if scheduler is None:
        return Schedulers(())
    inner = getattr(scheduler, "scheduler", scheduler)  # without accelerate's wrapper
    if not isinstance(inner, torch.optim.lr_scheduler.LambdaLR):
        return Schedulers([inner])
    loaded = inner.last_epoch
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a step with a number
        inner.step(0)
        schedulers = Schedulers([inner])
        inner.step(loaded)
    return schedulers


def _save(state: Mapping[str, SiteState], path: pathlib.Path) -> None:
    """All of it or nothing, whenever the process is killed. A link is followed, and stays one."""
    path = pathlib.Path(os.path.realpath(path))
    part = path.with_suffix(".part")
    with open(part, "wb") as file:
        torch.save(dict(state), file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def _load(args: Any, state: Any) -> Mapping[str, SiteState] | None:
    """The site's state beside what the Trainer has resumed from."""
    given = args.resume_from_checkpoint
    places = [pathlib.Path(given)] if isinstance(given, str) and os.path.isdir(given) else []
    places.append(pathlib.Path(args.output_dir, f"checkpoint-{state.global_step}"))
    for place in places:
        if (place / STATE_FILE).exists():
            loaded: Mapping[str, SiteState] = torch.load(place / STATE_FILE, map_location="cpu", weights_only=True)
            return loaded
    LOGGER.warning("no %s in %s: the site joins anew, with the run's parameters", STATE_FILE,
                   " or ".join(str(place) for place in places))
    return None
