"""Lightning's Trainer as a site of a run.

    trainer = Trainer(max_steps=-1, callbacks=[CausewayCallback("hub:7077", site="eu")])
    trainer.fit(module, loader)                                    # or with ckpt_path=…

    on_train_start: joins ─► optimizer.step: counts, syncs ─► on_train_batch_end: global_step ─► on_train_end: leaves
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback

from causeway._log import LOGGER
from causeway.torch import DiLoCo
from causeway.torch._framework import FrameworkSite


class CausewayCallback(Callback):
    """Takes part in a run while `fit` trains: from the entry step on, until `run.steps` or the Trainer's own end.

    `global_step` is the run's inner step: steps that gradient scaling skips are none, and a site that joins late
    begins at the run's step. Lightning's checkpoints hold the site's state, too. Figures of the run (causeway/stall_s,
    …) go to the Trainer's loggers.
    """

    def __init__(self, coordinator: str | None = None, *, site: str | None = None, **settings: Any) -> None:
        """Args: those of causeway.torch.DiLoCo but model, optimizer and schedulers, which the Trainer has."""
        self._site = FrameworkSite(coordinator, site, settings)
        self._resumed: Mapping[str, Any] | None = None
        self._codecs: dict[str, str] = {}
        self._did_other_things = False

    @property
    def diloco(self) -> DiLoCo:
        """While the Trainer trains. Raises FailedError before and afterwards."""
        return self._site.diloco

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        resumed, self._resumed = self._resumed, None
        schedulers = [each.scheduler for each in trainer.lr_scheduler_configs
                      if each.interval == "step" and each.frequency == 1]
        diloco = self._site.begin(pl_module, trainer.optimizers, schedulers, resumed)
        self._follow(trainer)
        steps = int(diloco.config["run"]["steps"])
        if 0 <= trainer.max_steps < steps:
            LOGGER.warning("the Trainer ends after %d steps, the run has %d: this site leaves early; max_steps=%d takes "
                           "part to the end", trainer.max_steps, steps, steps)

    def _follow(self, trainer: Any) -> None:
        """The Trainer's steps are the run's, of each of its optimizers."""
        steps = self._site.diloco.step * len(trainer.optimizers)
        loop = trainer.fit_loop.epoch_loop
        for progress in (loop.automatic_optimization.optim_progress.optimizer.step.total,
                         loop.manual_optimization.optim_step_progress.total):
            progress.ready = progress.completed = steps
        trainer.should_stop |= self._site.diloco.over

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if self._did_other_things:
            self._site.waited()
            self._did_other_things = False

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._follow(trainer)
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if loss is not None:
            self._site.diloco.report(loss=loss)
        pl_module.log_dict(self._site.figures(), on_step=True, on_epoch=False)
        self._note_codecs(trainer)
        self._site.may_wait()

    def _note_codecs(self, trainer: Any) -> None:
        codecs = self._site.codecs()
        if codecs == self._codecs:
            return
        self._codecs = codecs
        for logger in trainer.loggers:
            add_text = getattr(logger.experiment, "add_text", None)  # of TensorBoard
            if add_text is None:
                logger.log_hyperparams(codecs)
                continue
            for name, codec in codecs.items():
                add_text(name, codec, trainer.global_step)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._did_other_things = self._site.joined  # not in the check before training

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        self._did_other_things = self._site.joined

    def state_dict(self) -> dict[str, Any]:
        return dict(self._site.diloco.state_dict()) if self._site.joined else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._resumed = state_dict or None

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._site.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._site.end(exception)
