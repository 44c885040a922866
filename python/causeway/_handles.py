"""The library's run and site as Python objects: calls, waits, errors and log lines; no arrays.

    RunHandle(options) ─► SiteHandle(run, model, store) ─► join ─► after_step … ─► complete ─► leave ─► close
                                     │ pieces of tensors
                                     ▼
                                 Store.carry_out ─► SiteHandle.do_work: the library copies, where θ is on the host

A wait is a loop of calls of at most POLL_MS. Python's signal handlers run between two of them, so Ctrl-C ends a wait at
once; log lines are passed on there, too. A site belongs to the thread that made it, unless a method says otherwise.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from causeway import _library, _log
from causeway._library import Work
from causeway.errors import ConfigError, Error, FailedError, RefusedError, RestoreError

POLL_MS = 100
_ALIGNMENT = 64  # of a state's parts
_PROGRESS_BYTES = 1 << 16
_LOOK_S = 0.1  # between two looks whether the coordinator has asked the site to stop
DRAIN_S = 10.0  # at most, before a site leaves that has not finished
_INTERRUPT_LEAVE_S = 0.2

_Handle = ctypes.c_void_p
_sites: weakref.WeakValueDictionary[Any, SiteHandle] = weakref.WeakValueDictionary()  # of this process that have joined
_talks = 0  # the process that has talked to a coordinator


class Store(Protocol):
    """Where the parameters are."""

    def carry_out(self, pieces: list[Work], site: SiteHandle) -> None:
        """Does each piece, by site.do_work, or itself and then calls site.work_done. Another thread may do so later.

        It calls site.work_failed for each piece that cannot be done, and raises."""


def _close(library: _library.Library, function: str, handle: int, pid: int) -> None:
    if os.getpid() == pid:  # a forked child has the parent's objects, but none of the library's threads
        getattr(library, function)(_Handle(handle))


class _Owner:
    """A handle of the library, closed when the process ends at the latest."""

    def __init__(self, library: _library.Library, close_function: str, handle: _Handle) -> None:
        self.library = library
        self._handle: _Handle | None = handle
        self._finalizer = weakref.finalize(self, _close, library, close_function, handle.value or 0, os.getpid())

    @property
    def handle(self) -> _Handle:
        if self._handle is None:
            raise FailedError("expected a site or run that is open, got one that was closed",
                              expected="open", got="closed")
        return self._handle

    @property
    def closed(self) -> bool:
        return self._handle is None

    def close(self) -> None:
        """Ends it within half a second. A second call does nothing."""
        self._handle = None
        self._finalizer()
        _log.pass_on(self.library)


def _check_process() -> None:
    """Raises FailedError in a child that was forked when its parent had talked to a coordinator: gRPC has no threads there,
    and would wait for them for ever."""
    global _talks
    _talks = _talks or os.getpid()
    if _talks != os.getpid():
        raise FailedError(f"expected a process of its own for a site, got a fork of process {_talks}, which has talked to a "
                          'coordinator before: start it with multiprocessing.get_context("spawn")', expected="spawn", got="fork")


class RunHandle(_Owner):
    """The run, as the coordinator describes it."""

    def __init__(self, options: Mapping[str, object]) -> None:
        """Asks the coordinator; waits up to connect_timeout_s, for ever if it is 0.

        Raises: ConfigError, RefusedError, UnreachableError.
        """
        library = _library.load()
        _check_process()
        text = json.dumps(options).encode()
        handle = _Handle()
        try:
            while True:
                status = library.run_open(text, POLL_MS, ctypes.byref(handle))
                if status != _library.AGAIN:
                    break
                _log.pass_on(library)
            if status == _library.STOP:
                raise FailedError("the run was stopped before it was known")
            library.check(status)
        except BaseException:
            if handle:
                library.run_close(handle)
            _log.pass_on(library)
            raise
        super().__init__(library, "run_close", handle)
        self.name = options.get("coordinator"), options.get("site")
        description = ctypes.c_char_p()
        library.check(library.run_json(self.handle, ctypes.byref(description)))
        self.description: dict[str, Any] = json.loads(description.value or b"{}")

    @property
    def config(self) -> dict[str, Any]:
        """run.yaml with every key."""
        config: dict[str, Any] = self.description["config"]
        return config


class Steps:
    """Every TELL_S seconds a line about the steps, for a person who has no page open."""

    TELL_S = 10.0

    def __init__(self, step: int) -> None:
        self._first = step
        self._begin = self._told = time.monotonic()

    def done(self, step: int, of: int, loss: float) -> None:
        now = time.monotonic()
        if now - self._told < self.TELL_S:
            return
        self._told = now
        text = f"step {step} of {of}" if of else f"step {step}"
        if not math.isnan(loss):
            text += f", loss {loss:.4g}"
        if of and step > self._first:
            left = (of - step) * (now - self._begin) / (step - self._first)
            text += f", {left / 3600:.1f} h left" if left >= 5400 else (
                f", {left / 60:.0f} min left" if left >= 90 else f", {left:.0f} s left")
        _log.tell(text)


class SiteHandle(_Owner):
    """One site, from its model until it leaves."""

    def __init__(self, run: RunHandle, model: Mapping[str, object], store: Store) -> None:
        """Raises ConfigError that names the first tensor that does not fit the run."""
        handle = _Handle()
        library = run.library
        library.check(library.site_open(run.handle, json.dumps(model).encode(), ctypes.byref(handle)))
        super().__init__(library, "site_close", handle)
        self._run = run
        self._store = store
        self._restored: list[object] | None = None
        self._joined = False
        self.stopping = False
        self.run_steps = 0  # run.yaml's run.steps, or as `causewayctl set` has changed it; 0: no end
        self._last_progress: dict[str, Any] = {}
        self._looked = 0.0
        self.moved = False  # the last call gave out work that changes θ
        self._steps: Steps | None = None  # since it has joined

    # ---- Waits ----

    def _wait(self, call: Callable[[], int], polls: int | None = None) -> bool:
        """Carries out work until the call has finished: True. False after `polls` polls of POLL_MS."""
        self.moved = False
        while True:
            status = call()
            if status == _library.WORK:
                self._carry_out()
                continue
            if status not in (_library.OK, _library.AGAIN, _library.STOP):
                failure = self.library.failure(status)
                _log.pass_on(self.library)
                raise failure
            _log.pass_on(self.library)
            if status == _library.STOP:
                self.stopping = True
            if status != _library.AGAIN:
                self._carry_out()  # copies of θ before it changes, which the call requested last
                return True
            if polls is not None:
                polls -= 1
                if polls <= 0:
                    return False

    def _carry_out(self) -> None:
        pieces = []
        while True:
            piece = Work()
            status = self.library.site_take_work(self.handle, ctypes.byref(piece))
            if status == _library.AGAIN:
                break
            self.library.check(status)
            if piece.kind not in (_library.READ, _library.DIGEST, _library.KEEP) and not piece.flags & _library.ANCHOR:
                self.moved = True
            pieces.append(piece)
        if pieces:
            self._store.carry_out(pieces, self)

    def do_work(self, piece: Work, theta: int) -> None:
        """Has the library do a piece whose first value is at the address `theta` in the host's memory. Any thread."""
        self.library.check(self.library.site_do_work(self.handle, piece.id, theta))

    def encode_on(self, device: int) -> str:
        """Has contributions encoded on a CUDA device that holds θ, before joining; returns why not, or ""."""
        try:
            self.library.check(self.library.site_encode_on(self.handle, device))
        except ConfigError as error:
            return str(error)
        return ""

    def keep(self, piece: Work, theta: int, stream: int) -> None:
        """Does a KEEP: its first value is at the address `theta` on the device, `stream` is a cudaStream_t."""
        self.library.check(self.library.site_keep(self.handle, piece.id, theta, stream))

    def work_done(self, piece: Work, event: int | None = None) -> None:
        """Says that the store has done a piece itself, once a cudaEvent_t has come. Any thread."""
        self.library.check(self.library.site_work_done(self.handle, piece.id, event, 0))

    def work_failed(self, piece: Work) -> None:
        """Says that a piece cannot be done, which ends the site. Any thread."""
        self.library.site_work_done(self.handle, piece.id, None, 1)

    # ---- Taking part ----

    def restore(self, parts: Mapping[str, Any]) -> None:
        """Resumes from a state that `capture` gave: {name: bytes-like}. Before join, once. Raises RestoreError."""
        kept = [(name.encode(), *_aligned(data)) for name, data in parts.items()]
        buffers = (_library.Buffer * len(kept))()
        for buffer, (name, address, size, _) in zip(buffers, kept):
            buffer.struct_size = ctypes.sizeof(_library.Buffer)
            buffer.name, buffer.data, buffer.bytes = name, address, size
        self._restored = [buffers, kept]  # until the site has joined
        try:
            self.library.check(self.library.site_restore(self.handle, buffers, len(kept)))
        except ConfigError as error:
            raise _restore_error(error) from None

    def join(self) -> int:
        """Takes part, and returns the site's current step. Also raises RestoreError, RefusedError."""
        if self._joined:
            raise FailedError("expected one call of join, got a second", expected="one call", got="a second")
        before = _sites.get(self._run.name)
        if before is not None and not before.closed:
            raise FailedError(f"expected one site {self._run.name[1]} in this process, got a second: close the one before, as "
                              "the end of its `with` does", expected="one", got="a second")
        step = ctypes.c_int64()
        told, page = self._run.description, self._run.description.get("page")
        _log.tell(f"joins run {told['run_id']} as {self._run.name[1]}" + (f"; page {page}" if page else ""))
        try:
            self._wait(lambda: int(self.library.site_join(self.handle, POLL_MS, ctypes.byref(step))))
        except ConfigError as error:
            raise (_restore_error(error) if self._restored else error) from None
        except RefusedError as error:
            if "the run is done" not in str(error):
                raise
            raise RefusedError(f"{error}: nothing is left to train; its model is written by: causewayctl export "
                               f"--coordinator={self._run.name[0]} --out=DIR") from None
        self._restored = None
        self._joined = True
        _sites[self._run.name] = self
        self._look()
        self._steps = Steps(step.value)
        return step.value

    def _in_the_run(self) -> _Handle:
        if not self._joined:
            raise FailedError("expected a site that has joined, got one that has not", expected="one that has joined",
                              got="one that has not")
        return self.handle

    def after_step(self, step: int, *, tokens: int = 0, loss: float = float("nan"),
                   step_s: float = float("nan")) -> int:
        """Sends and applies what is due after inner step `step`; returns the step to continue from."""
        report = _library.Report(tokens=tokens, loss=loss, step_s=step_s)
        following = ctypes.c_int64(step)
        self._wait(lambda: int(self.library.site_after_step(
            self._in_the_run(), step, ctypes.byref(report), POLL_MS, ctypes.byref(following))))
        if self.moved or time.monotonic() - self._looked >= _LOOK_S:  # a step that does not wait does not report a stop
            self._look()
        if self._steps is not None and _log.shows_steps:
            self._steps.done(following.value, self.run_steps, loss)
        return following.value

    def _look(self) -> None:
        progress = self.progress()
        self.stopping = self.stopping or bool(progress.get("stopping"))
        self.run_steps = int(progress["run_steps"])
        self._looked = time.monotonic()

    def read_anchor(self) -> None:
        """Has the store write the anchor W, as pieces with the flag ANCHOR."""
        self._wait(lambda: int(self.library.site_read_anchor(self._in_the_run(), POLL_MS)))

    def report_eval(self, loss: float) -> None:
        """The mean loss of the W that read_anchor gave last, nats per token."""
        self.library.check(self.library.site_report_eval(self.handle, loss))

    def capture(self) -> dict[str, bytearray]:
        """A copy of the state that a process needs to resume from here, beside θ and the inner optimizer."""
        state = _Handle()
        try:
            self._wait(lambda: int(self.library.site_capture(self._in_the_run(), POLL_MS, ctypes.byref(state))))
            if not state:
                raise FailedError("no state: the site has to stop")
            return self._parts(state)
        finally:
            if state:
                self.library.state_close(state)

    def _parts(self, state: _Handle) -> dict[str, bytearray]:
        count = ctypes.c_int()
        self.library.check(self.library.state_parts(state, None, ctypes.byref(count)))
        buffers = (_library.Buffer * count.value)()
        for buffer in buffers:
            buffer.struct_size = ctypes.sizeof(_library.Buffer)
        self.library.check(self.library.state_parts(state, buffers, ctypes.byref(count)))
        parts = {}
        for buffer in buffers:
            copy = bytearray(buffer.bytes)
            if buffer.bytes:
                ctypes.memmove((ctypes.c_char * buffer.bytes).from_buffer(copy), buffer.data or 0, buffer.bytes)
            parts[(buffer.name or b"").decode()] = copy
        return parts

    # ---- Leaving ----

    def complete(self) -> None:
        """Waits for the rounds that are open, after the last step."""
        self._wait(lambda: int(self.library.site_complete(self._in_the_run(), POLL_MS)))

    def drain(self, timeout_s: float) -> bool:
        """Waits until the coordinator has promised to merge everything that was sent. False: not in time."""
        return self._wait(lambda: int(self.library.site_drain(self._in_the_run(), POLL_MS)), _polls(timeout_s))

    def leave(self, finished: bool, reason: str, timeout_s: float = 10.0) -> bool:
        """Tells the coordinator that the site leaves; only close may follow. False: it was not received in time."""
        text = reason.encode(errors="replace").replace(b"\0", b" ")
        return self._wait(lambda: int(self.library.site_leave(self.handle, int(finished), text, POLL_MS)),
                          _polls(timeout_s))

    def close(self) -> None:
        """Ends the site and its run. A second call does nothing."""
        if not self.closed:
            with contextlib.suppress(Error):
                self._last_progress = self.progress()
        super().close()
        self._run.close()

    # ---- Any thread ----

    def stop(self) -> None:
        """Waits return from here on, and `stopping` is true. Any thread."""
        self.stopping = True
        self.library.check(self.library.site_stop(self.handle))

    def waits(self, what: str) -> None:
        """A wait begins that is not a step, and may take longer than rank_timeout_s; "": it is over. Any thread."""
        if not self.closed:
            self.library.check(self.library.site_waits(self.handle, what.encode()))

    def ranks(self, said: Mapping[str, object]) -> None:
        """Reports the site's processes, in the form of causeway_site_ranks. Any thread."""
        if not self.closed:
            self.library.check(self.library.site_ranks(self.handle, json.dumps(said).encode()))

    def progress(self) -> dict[str, Any]:
        """The site's reports to the coordinator; the last one where it is closed. Any thread."""
        if self.closed:
            return self._last_progress
        size = _PROGRESS_BYTES
        while True:
            text = ctypes.create_string_buffer(size)
            status = self.library.site_progress_json(self.handle, text, size)
            if status == _library.OK:
                result: dict[str, Any] = json.loads(text.value)
                return result
            error = self.library.failure(status)
            if not (isinstance(error, ConfigError) and error.expected.isdigit() and int(error.expected) > size):
                raise error
            size = int(error.expected)


def _polls(timeout_s: float) -> int:
    return max(1, round(timeout_s * 1000 / POLL_MS))


def _restore_error(error: ConfigError) -> RestoreError:
    return RestoreError(str(error), expected=error.expected, got=error.got, tensor=error.tensor, index=error.index)


def _aligned(data: Any) -> tuple[int, int, object]:
    """Address and size of the bytes, copied if they do not begin where the library wants; and what keeps them."""
    view = memoryview(data).cast("B")
    size = view.nbytes
    if size and not view.readonly:
        address = ctypes.addressof(ctypes.c_char.from_buffer(view))
        if address % _ALIGNMENT == 0:
            return address, size, view
    space = bytearray(size + _ALIGNMENT)
    start = -ctypes.addressof((ctypes.c_char * len(space)).from_buffer(space)) % _ALIGNMENT
    space[start:start + size] = view
    return ctypes.addressof((ctypes.c_char * len(space)).from_buffer(space)) + start, size, space


def part(site: Any, kind: type[BaseException] | None, error: BaseException | None) -> None:
    """The end of a `with` block: completes, or drains what was sent, or leaves at once; the error's text is the reason.

    `site` has over, should_stop, complete, drain, leave and close. The script's own error is the one that goes on: what
    fails here beside it is logged.
    """
    try:
        if kind is None:
            _part_cleanly(site)
        elif issubclass(kind, KeyboardInterrupt):
            site.leave(False, "KeyboardInterrupt", _INTERRUPT_LEAVE_S)
        else:
            with contextlib.suppress(Error):  # where a sync has failed, nothing can be drained
                site.drain()
            site.leave(False, f"{kind.__name__}: {error}")
    except Error as failure:
        if kind is None:
            raise
        _log.LOGGER.warning("the site could not leave: %s", failure)
    finally:
        site.close()


def _part_cleanly(site: Any) -> None:
    if site.over and not site.should_stop:
        site.complete()
    if site.should_stop or not site.over:
        site.drain()
    reason = "drained" if site.should_stop else "all steps are done" if site.over else "the program leaves early"
    site.leave(site.over and not site.should_stop, reason)
