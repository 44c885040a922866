"""Lightning's Trainer as a site of a run.

    trainer = Trainer(max_steps=-1, callbacks=[CausewayCallback("hub:7077", site="eu")])
    trainer.fit(module, loader)                                    # or with ckpt_path=…

    on_train_start: joins ─► optimizer.step: counts, syncs ─► on_train_batch_end: global_step ─► on_train_end: leaves
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback

from causeway._log import LOGGER
from causeway.errors import Error
from causeway.torch import DiLoCo
from causeway.torch._framework import FrameworkSite
from causeway.torch._schedulers import Schedulers
from causeway.torch._state import SiteState


class CausewayCallback(Callback):
    """Takes part in a run while `fit` trains: from the entry step on, until `run.steps` or the Trainer's own end.

    `global_step` is the run's inner step: steps that gradient scaling skips are none, and a site that joins late
    begins at the run's step. Lightning's checkpoints hold the site's state, too. Figures of the run (causeway/stall_s,
    …) go to the Trainer's loggers, every `log_every_n_steps` steps.
    """

    def __init__(self, coordinator: str | None = None, *, site: str | None = None, model: str = "",
                 **settings: Any) -> None:
        """Args:
            model: the attribute of the LightningModule that is the run's model; "": the LightningModule itself. Sites
                of a run call its parameters alike: without this name in front.
            coordinator, site, settings: of causeway.torch.DiLoCo, but optimizer and schedulers, which the Trainer has.
        """
        self._site = FrameworkSite(coordinator, site, settings)
        self._model = model
        self._schedulers = Schedulers(())
        self._resumed: dict[str, SiteState] | None = None
        self._kept: SiteState | None = None
        self._codecs: dict[str, str] = {}
        self._did_other_things = False

    @property
    def diloco(self) -> DiLoCo:
        """While the Trainer trains. Raises FailedError before and afterwards."""
        return self._site.diloco

    def export(self, directory: str | os.PathLike[str], tokenizer: Any = None) -> None:
        """Writes the model with W, which all sites hold alike: during training, and, as it was then, after its end. The
        Trainer's own save writes the site's θ. On all ranks."""
        self._site.export(directory, tokenizer)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Optimizers and schedulers are made, their state is not loaded yet."""
        def every(config: Any) -> Any:
            """Inner steps between two of the scheduler's; of one by epochs known when the loader is."""
            def of_epochs() -> int:
                batches = trainer.num_training_batches / trainer.accumulate_grad_batches
                return 0 if batches == float("inf") else max(1, math.ceil(batches)) * config.frequency
            return config.frequency if config.interval == "step" else of_epochs
        self._schedulers = Schedulers((each.scheduler, every(each)) for each in trainer.lr_scheduler_configs)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        resumed, self._resumed, self._kept = self._resumed, None, None
        if trainer.ckpt_path and resumed is None:
            LOGGER.warning("no site's state in %s: the site joins anew, with the run's parameters", trainer.ckpt_path)
        model = pl_module.get_submodule(self._model)
        self._site.begin(model, trainer.optimizers, self._schedulers, resumed)
        self._codecs, self._did_other_things = {}, False
        self._follow(trainer)
        if trainer.max_steps >= 0:
            self._site.warn_of_early_end(trainer.max_steps, "max_steps")

    def _follow(self, trainer: Any) -> None:
        """The Trainer's steps are the run's, of each of its optimizers."""
        steps = self._site.diloco.step * len(trainer.optimizers)
        loop = trainer.fit_loop.epoch_loop
        for progress in (loop.automatic_optimization.optim_progress.optimizer.step.total,
                         loop.manual_optimization.optim_step_progress.total):
            progress.ready = progress.completed = steps
        trainer.should_stop |= self._site.is_over(trainer.max_steps)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if self._did_other_things:
            self._site.waited()
            self._did_other_things = False
        self._site.trains()
        trainer.fit_loop.epoch_loop._batches_that_stepped = self._site.diloco.step  # the axis of the loggers' charts

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        diloco = self._site.diloco
        self._follow(trainer)
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if loss is not None:
            diloco.report(loss=loss)
        stepped_from = trainer.fit_loop.epoch_loop._batches_that_stepped
        if diloco.step > stepped_from and trainer.log_every_n_steps and diloco.step % trainer.log_every_n_steps == 0:
            self._log(trainer.loggers, stepped_from)
        self._site.may_wait()

    def _log(self, loggers: list[Any], step: int) -> None:
        figures, codecs = self._site.figures(), self._site.codecs()
        changed, self._codecs = codecs != self._codecs, codecs
        for logger in loggers:
            logger.log_metrics(figures, step)
            if not changed:
                continue
            add_text = getattr(logger.experiment, "add_text", None)  # of TensorBoard, whose metrics are numbers
            if add_text is None:
                logger.log_metrics(codecs, step)
                continue
            for name, codec in codecs.items():
                add_text(name, codec, step)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._did_other_things = self._site.joined  # not in the check before training
        if self._site.joined:
            self._site.diloco.pause()

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        self._did_other_things = self._site.joined

    def state_dict(self) -> dict[str, Any]:
        """Plain types: a script that loads Lightning's checkpoint needs no causeway."""
        state = self._site.state() if self._site.joined else self._kept
        return {"step": state.step, "parts": state.parts, "pending": state.pending} if state is not None else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._resumed = {"state": SiteState(**state_dict)} if state_dict else None

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._site.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Other callbacks write checkpoints now (OnExceptionCheckpoint), with the state that the site has left with."""
        if self._site.joined and not isinstance(exception, Error):
            with contextlib.suppress(Error):
                self._kept = self._site.state()
        self._site.end(exception)
