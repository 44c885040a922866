"""The common part of sites with numpy arrays and with PyTorch models: opening, going on or stopping, leaving; no arrays.

    Participant(…) ─► opened ─► join ─► the steps of its kind … ─► leave ─► closed
        __enter__ joins                     __exit__ completes or drains, and leaves
"""

from __future__ import annotations

import abc
import base64
import types
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from causeway import _options
from causeway._handles import DRAIN_S, RunHandle, SiteHandle, Store, part
from causeway.errors import FailedError

_Self = TypeVar("_Self", bound="Participant")


class SiteCalls(Protocol):
    """The calls of SiteHandle that a participant makes."""

    @property
    def moved(self) -> bool: ...
    @property
    def stopping(self) -> bool: ...
    @property
    def run_steps(self) -> int: ...
    def restore(self, parts: Mapping[str, Any]) -> None: ...
    def join(self) -> int: ...
    def after_step(self, step: int, *, tokens: int, loss: float, step_s: float) -> int: ...
    def read_anchor(self) -> None: ...
    def report_eval(self, loss: float) -> None: ...
    def capture(self) -> dict[str, bytearray]: ...
    def complete(self) -> None: ...
    def drain(self, timeout_s: float) -> bool: ...
    def leave(self, finished: bool, reason: str, timeout_s: float) -> bool: ...
    def stop(self) -> None: ...
    def waits(self, what: str) -> None: ...
    def progress(self) -> dict[str, Any]: ...
    def close(self) -> None: ...


class OpenedSite(NamedTuple):
    """A site that has not joined, and the coordinator's description of its run."""

    site: SiteCalls
    config: dict[str, Any]
    run_id: str


def open_site(options: Mapping[str, object], expectations: Mapping[str, Any], tensors: list[dict[str, object]],
              data: Mapping[str, object] | None, store: Store, files: Mapping[str, bytes] | None = None) -> OpenedSite:
    """Asks the coordinator for the run's description, and then declares the model.

    Args:
        options, expectations: of _options.run_options, and as _options.check_expectations takes them.
        tensors, data: what causeway.h's model has under these names; None: no data.
        store: where the tensors are.
        files: what loaders need beside the weights: {name: contents}.

    Raises: ConfigError, RefusedError, UnreachableError.
    """
    run = RunHandle(options)
    try:
        _options.check_expectations(run.config, expectations)
        model: dict[str, object] = {"tensors": tensors}
        if data is not None:
            model["data"] = dict(data)
        if files:
            model["files"] = {name: base64.b64encode(contents).decode() for name, contents in files.items()}
        return OpenedSite(SiteHandle(run, model, store), run.config, run.description["run_id"])
    except BaseException:
        run.close()
        raise


class Participant(abc.ABC):
    """One site of a run. All calls except `stop` and `progress` come from the thread that made it.

    Attributes:
        run_id, config: the run's name, and run.yaml with every key, as nested dictionaries.
    """

    def __init__(self, opened: OpenedSite) -> None:
        self._step = self._stays = 0
        self._joined = self._left = False
        self._site = opened.site
        self.config = opened.config
        self.run_id = opened.run_id

    @abc.abstractmethod
    def join(self) -> object:
        """Takes part."""

    @property
    def step(self) -> int:
        """The site's current inner step, as if just done."""
        return self._step

    @property
    def stays(self) -> int:
        """How often the site has joined, at first and after the coordinator had dropped it."""
        return self._stays

    @property
    def should_stop(self) -> bool:
        """True after `stop`, or a stop or drain by the coordinator; for a DiLoCo also after SIGTERM, unless the script
        handles it."""
        return self._site.stopping

    @property
    def over(self) -> bool:
        """No further step: the run's `run.steps` or `run.tokens` are done, or the site has to stop."""
        return self.should_stop or (0 < self._site.run_steps <= self.step)

    def progress(self) -> dict[str, Any]:
        """The site's reports to the coordinator. Any thread."""
        return self._site.progress()

    def stop(self) -> None:
        """Calls that wait return, and `should_stop` is true. Any thread."""
        self._site.stop()

    def waits(self, what: str) -> None:
        """A wait begins that is not a step, such as "evaluation", and may take longer than rank_timeout_s; "": it is
        over. Any thread."""
        self._site.waits(what)

    def leave(self, finished: bool = False, reason: str = "the program leaves", timeout_s: float = DRAIN_S) -> None:
        """Leaves the run and closes the site. A second call does nothing. `with` does it. `finished`: all steps of the
        run are done (`over`); steps of the program's own are no end of a run."""
        if self._left:
            return
        self._left = True
        try:
            if self._joined:
                self._before_leaving()
                self._site.leave(finished, reason, timeout_s)
        finally:
            self.close()

    def _before_leaving(self) -> None:
        """Ends what still works for the site."""

    def close(self) -> None:
        """Ends the site, whatever it waits for. The coordinator is notified that the program ends."""
        self._left = True
        self._site.close()

    def __enter__(self: _Self) -> _Self:
        if self._joined:
            raise FailedError("expected one `with` of a site, got a second inside it or behind it")
        try:
            self.join()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: types.TracebackType | None) -> None:
        if self._left:
            self.close()
        else:
            part(self, kind, error)
