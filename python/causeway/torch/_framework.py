"""A DiLoCo in a training framework, which begins and ends it with calls instead of a `with` block.

    begin (a checkpoint is loaded) ─► the framework's steps ─► end
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any

from causeway import _log
from causeway._log import LOGGER
from causeway.errors import FailedError, RankError
from causeway.torch._anchor import Export
from causeway.torch._schedulers import Schedulers
from causeway.torch._state import SiteState
from causeway.torch.diloco import DiLoCo


class FrameworkSite:
    """One site, as often as the framework trains with it: each `begin` joins anew."""

    def __init__(self, coordinator: str | None, site: str | None, settings: Mapping[str, Any]) -> None:
        self._connection = {"coordinator": coordinator, "site": site, **settings}
        self._diloco: DiLoCo | None = None
        self._kept: Export | None = None  # of the last training
        self._assets: Any = None  # the framework's
        self._waits_since = 0.0
        self._said_over = self._said_early = False

    @property
    def diloco(self) -> DiLoCo:
        """Raises FailedError before training has begun and after its end."""
        if self._diloco is None:
            raise FailedError("expected a site in its run, got one that has left: training has ended; export(folder) writes W"
                              if self._kept else "expected training to have begun: the site joins then")
        return self._diloco

    def export(self, directory: str | os.PathLike[str], tokenizer: Any) -> None:
        """Writes W: while the framework trains, as it is then; afterwards as it was at the end. On all ranks."""
        tokenizer = self._assets if tokenizer is None else tokenizer
        if self._diloco is None and self._kept is not None:
            self._kept(directory, tokenizer)
        else:
            self.diloco.export(directory, tokenizer)

    @property
    def joined(self) -> bool:
        return self._diloco is not None

    def begin(self, model: Any, optimizer: Any, schedulers: Iterable[Any] | Schedulers,
              state: Mapping[str, SiteState] | None, assets: Any = None) -> DiLoCo:
        """Joins, with model, optimizer and schedulers as they are after loading; `state`: of the same checkpoint; `assets`:
        the framework's, where the script names none."""
        self.end(FailedError("training began anew"))  # an error may have ended it without notice
        diloco = DiLoCo(model, optimizer, schedulers=schedulers, **{"assets": assets, **self._connection})
        _log.shows_steps, self._kept, self._assets = False, None, assets
        try:
            if state is not None:
                diloco.load_state_dict(state)
        except BaseException:
            diloco.close()
            raise
        self._diloco, self._said_over, self._said_early = diloco.__enter__(), False, False
        self.may_wait()
        atexit.register(self._end_with_process)
        return diloco

    def warn_of_early_end(self, steps: int, setting: str) -> None:
        """Where the framework ends after fewer steps than the run; `setting` is its name for them."""
        of_run = int(self.diloco.config["run"]["steps"])
        if steps < of_run:
            self._said_early = True
            LOGGER.warning("the trainer ends after %d steps, the run has %d: this site leaves early; %s=%d takes part to "
                           "the end", steps, of_run, setting, of_run)

    def is_over(self, steps: int) -> bool:
        """Training has to end for the run's sake. The first time it is logged why, as a warning where the framework would
        have gone on to `steps`; −1: it has no end of its own."""
        diloco = self.diloco
        if diloco.over and diloco.step != steps and not self._said_over:
            self._said_over = True
            LOGGER.log(logging.INFO if steps < 0 else logging.WARNING, "training ends here: %s",
                       "the site has to stop" if diloco.should_stop else f"the run's {diloco.step} steps are done")
        return diloco.over

    def end(self, error: BaseException | None = None) -> None:
        """Leaves the run: with open rounds completed, or with the error as the reason. A second call does nothing."""
        diloco, self._diloco = self._diloco, None
        atexit.unregister(self._end_with_process)
        if diloco is not None:
            if error is None and not self._said_early and 0 <= diloco.step < int(diloco.config["run"]["steps"]) and not diloco.over:
                LOGGER.warning("the trainer has ended after step %d, the run has %d: this site leaves early, and the run waits "
                               "for others to finish it", diloco.step, diloco.config["run"]["steps"])
            if error is None:
                self._kept = diloco.keep_anchor()
            diloco.__exit__(type(error) if error else None, error, None)

    def _end_with_process(self) -> None:
        self.end(getattr(sys, "last_value", None) or FailedError("the program ends inside training"))

    def state(self) -> SiteState | None:
        """For a checkpoint, after a step, on all ranks. None: there is none, as while the coordinator has dropped the
        site, and on all ranks but the leader."""
        try:
            return self.diloco.state_dict().get("state")
        except RankError:
            raise
        except FailedError as error:  # what ends the site raises at the next step, too
            LOGGER.warning("a checkpoint without the site's state, from which it joins anew: %s", error)
            return None

    # ---- Waits that are no training ----

    def may_wait(self) -> None:
        """A step is done: until `waited`, the framework may do something else."""
        self._waits_since = time.monotonic()
        self.diloco.waits("what the trainer does between two steps")

    def trains(self) -> None:
        """A step begins: `may_wait` is over."""
        self.diloco.next_batch()
        self.diloco.waits("")

    def waited(self) -> None:
        """Something other than training was done since `may_wait`, or since the last call."""
        now = time.monotonic()
        self.diloco.was_busy(now - self._waits_since)
        self._waits_since = now

    # ---- Figures ----

    def figures(self) -> dict[str, float]:
        """For charts; names begin with causeway/. Seconds and bytes are sums since the site has entered."""
        progress = self.diloco.progress()
        names = ("stall_s", "slack_s", "up_bytes", "down_bytes", "merged_weight", "rounds", "sites")
        values = {name: progress[name] for name in names}
        values["sites"] = len(progress["sites"])
        values["delay"] = max((fragment["delay"] for fragment in progress["fragments"]), default=0)  # tau
        return {f"causeway/{name}": float(value) for name, value in values.items()}

    def codecs(self) -> dict[str, str]:
        """The names of the codecs of the last contribution and the last update."""
        progress = self.diloco.progress()
        return {f"causeway/{name}": str(progress[name]) for name in ("codec_up", "codec_down")}
