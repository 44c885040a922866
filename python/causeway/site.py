"""A site whose parameters are numpy arrays.

    parameters = {"weight": numpy.zeros((10, 4), numpy.float32)}
    with causeway.Site(parameters, coordinator="hub:7077", site="eu") as site:      # joined: the arrays are the run's
        while not site.over:
            …                                                                       # train: change the arrays in place
            site.after_step(tokens=512, loss=2.3)

The arrays are read and written in place, in calls of this object alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy
from numpy.typing import NDArray

from causeway import _library, _options
from causeway._handles import DRAIN_S, SiteHandle
from causeway._library import Work
from causeway._participant import Participant, open_site
from causeway.errors import mismatch

Array = NDArray[numpy.float32]


class _ArrayStore:
    """Pieces between the library and flat views of the arrays."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._flat = [array.reshape(-1) for array in arrays]
        self.anchor: list[Array] | None = None  # where pieces of the anchor go

    def carry_out(self, pieces: list[Work], site: SiteHandle) -> None:
        while pieces:
            try:
                self._carry_out(pieces[0], site)
            except BaseException:
                for piece in pieces:
                    site.work_failed(piece)
                raise
            pieces.pop(0)

    def _carry_out(self, piece: Work, site: SiteHandle) -> None:
        arrays = self._flat
        if piece.flags & _library.ANCHOR:
            assert self.anchor is not None
            arrays = self.anchor
        array = arrays[piece.tensor]
        site.do_work(piece, array.ctypes.data + piece.first * array.itemsize)


class Site(Participant):
    """Takes part in a run with numpy arrays. All calls except `stop` and `progress` come from the thread that made it.

    Attributes:
        run_id, config: the run's name, and run.yaml with every key, as nested dictionaries.
    """

    def __init__(self, parameters: Mapping[str, Array], *, coordinator: str | None = None, site: str | None = None,
                 kinds: Mapping[str, str] | None = None, layers: Mapping[str, int] | None = None,
                 data: Mapping[str, object] | None = None, **settings: Any) -> None:
        """Asks the coordinator for the run's description, and declares the model.

        Args:
            parameters: the model's tensors by name, in the order that all sites have. float32, C-contiguous, writeable.
            coordinator, site: HOST:PORT (several shards, with commas; with a standby, "a:7077|b:7077") and this site's
                name; else the environment variables CAUSEWAY_COORDINATOR and CAUSEWAY_SITE.
            kinds, layers: for tensors whose kind (matrix, embedding, norm, head, expert, buffer) or layer (−1: none) does
                not follow from name and shape by the rules of docs/python.md.
            data: {"tokens": number, "digest": 16 hexadecimal digits} of the site's training data.
            settings: keys of _options.Connection and _options.Expectations, such as tls_ca="ca.pem", sync_every=20.

        Raises: ConfigError, RefusedError, UnreachableError.
        """
        connection, expectations = _options.split(settings)
        options = _options.run_options(coordinator, site, connection)
        self._arrays = {name: _checked(name, array) for name, array in parameters.items()}
        self._store = _ArrayStore(list(self._arrays.values()))
        super().__init__(open_site(options, expectations, self._tensors(kinds or {}, layers or {}), data, self._store))

    def _tensors(self, kinds: Mapping[str, str], layers: Mapping[str, int]) -> list[dict[str, object]]:
        for what, given in (("kinds", kinds), ("layers", layers)):
            for name in given:
                if name not in self._arrays:
                    raise mismatch(what, "names of parameters", name, tensor=name)
        tensors: list[dict[str, object]] = []
        for name, array in self._arrays.items():
            tensor: dict[str, object] = {"name": name, "shape": list(array.shape), "dtype": "float32"}
            if name in kinds:
                tensor["kind"] = kinds[name]
            if name in layers:
                tensor["layer"] = layers[name]
            tensors.append(tensor)
        return tensors

    # ---- Taking part ----

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resumes from a state that `capture` gave, with the arrays as they were then. Before `join`, once."""
        self._site.restore(state)

    def join(self) -> int:
        """Takes part. The first site of a new run gives its values to the run; all others get the run's.

        Returns the site's current step. Raises RefusedError, RestoreError, NonFiniteError.
        """
        self._step = self._site.join()
        self._joined = True
        self._stays = 1
        return self._step

    def after_step(self, *, tokens: int = 0, loss: float = float("nan"), step_s: float = float("nan")) -> int:
        """The next inner step is done: sends and applies what is due, and waits only for a late update or a pause.

        Args:
            tokens, loss: trained on in this step, and its loss in nats per token (NaN: not known).
            step_s: seconds that the step took; NaN: measured from call to call.

        Returns `step`, which is one more, or the step to continue from, if the site had to join anew: then `stays` has
        risen, and the arrays are the run's. Raises NonFiniteError, RefusedError, FailedError.
        """
        done = self._step + 1
        self._step = self._site.after_step(done, tokens=tokens, loss=loss, step_s=step_s)
        if self._site.moved or self._step != done:
            self._stays = int(self._site.progress().get("stays", self._stays))
        return self._step

    def read_anchor(self) -> dict[str, Array]:
        """The anchor W, which all sites hold alike, in new arrays: one version of each fragment."""
        anchor = {name: numpy.empty_like(array) for name, array in self._arrays.items()}
        self._store.anchor = list(anchor.values())
        try:
            self._site.read_anchor()
        finally:
            self._store.anchor = None
        return anchor

    def report_eval(self, loss: float) -> None:
        """The mean loss on held-out data, nats per token, of the W that `read_anchor` gave last."""
        self._site.report_eval(loss)

    def capture(self) -> dict[str, bytearray]:
        """The state that `restore` needs in another process, beside the arrays: after a step, before the next."""
        return self._site.capture()

    # ---- Leaving ----

    def complete(self) -> None:
        """Waits for the rounds that are open, after the last step; the arrays stay as they are."""
        self._site.complete()

    def drain(self, timeout_s: float = DRAIN_S) -> bool:
        """Waits until nothing that was sent can be lost. False: not in time."""
        return self._site.drain(timeout_s)


def _checked(name: str, array: Any) -> Array:
    if not isinstance(array, numpy.ndarray):
        raise mismatch(f"parameter {name}", "a numpy array", type(array).__name__, tensor=name)
    if array.dtype != numpy.float32:
        raise mismatch(f"parameter {name}", "dtype float32", array.dtype, tensor=name)
    if not array.flags.c_contiguous or not array.flags.writeable:
        state = "one that is read-only" if array.flags.c_contiguous else "one that is not contiguous"
        raise mismatch(f"parameter {name}", "a C-contiguous array that can be written", state, tensor=name)
    return array
