"""Carries out the library's work on PyTorch tensors, on the host and on a device.

    host     READ, WRITE: one copy, which converts. A READ that may be late is done by a helper thread while the next
             step computes; the optimizer's pre-hook awaits it.
    device   the same, in blocks of 64 MB through pinned memory on a stream of its own; MIX and ADD are computed there.

All but the helper's copies are on the thread of the site. On a GPU this is untried, see docs/python.md.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch

from causeway import _library
from causeway._library import Work
from causeway.torch._model import local

BLOCK_VALUES = 16 << 20  # 64 MB of float32

_cuda: Any = torch.cuda  # whose classes have no types

# A late copy: the work, what marks that θ is ready on the device.
_Copy = tuple[Work, Any]


class TensorStore:
    """Pieces between the library and the parameters of a model."""

    def __init__(self, tensors: Mapping[int, torch.Tensor]) -> None:
        self._tensors = dict(tensors)
        self.anchor: dict[int, torch.Tensor] | None = None  # where pieces of the anchor go: flat, float32
        self.may_be_late = False  # something awaits late copies before θ changes
        self.watch: Callable[[int, torch.Tensor, torch.Tensor], None] | None = None  # (index, old, new) before a write
        self._late = _LateCopies(self._read)

    # ---- What the site calls ----

    def set_work_done(self, work_done: Callable[..., int]) -> None:
        """How late copies are reported; before the first piece."""
        self._late.work_done = work_done

    def await_late(self) -> None:
        """Returns when no copy is late any more; raises what one of them raised."""
        self._late.wait()

    def close(self) -> None:
        """Ends the helper thread."""
        self._late.close()

    def carry_out(self, piece: Work) -> bool:
        """See _handles.Store."""
        if piece.kind == _library.READ:
            if piece.flags & _library.BEFORE_CHANGE and self.may_be_late:
                self._late.add(piece, self._ready_event(piece))
                return False
            self._read(piece, None)
            return True
        values = _values(piece)
        if piece.flags & _library.ANCHOR:
            assert self.anchor is not None
            self.anchor[piece.tensor][piece.first:piece.first + piece.count] = values
            return True
        self._write(piece, values)
        return True

    # ---- Copies ----

    def _ready_event(self, piece: Work) -> Any:
        if local(self._tensors[piece.tensor]).device.type != "cuda":
            return None
        event = _cuda.Event()
        event.record()
        return event

    def _read(self, piece: Work, ready: Any) -> None:
        tensor = local(self._tensors[piece.tensor])
        values = _values(piece)
        flat = tensor.reshape(-1)[piece.first:piece.first + piece.count]  # a view, or a copy if it is not contiguous
        if tensor.device.type == "cuda":
            _from_device(flat, values, ready)
        else:
            values.copy_(flat)

    def _write(self, piece: Work, values: torch.Tensor) -> None:
        tensor = local(self._tensors[piece.tensor])
        contiguous = tensor if tensor.is_contiguous() else tensor.contiguous()
        flat = contiguous.view(-1)[piece.first:piece.first + piece.count]
        if self.watch is not None and piece.kind == _library.WRITE and piece.first == 0:
            self.watch(piece.tensor, flat, values)
        for first in range(0, piece.count, BLOCK_VALUES):
            block = slice(first, min(first + BLOCK_VALUES, piece.count))
            _move(piece, flat[block], _to_device(values[block], flat.device))
        if contiguous is not tensor:
            tensor.copy_(contiguous)


def _values(piece: Work) -> torch.Tensor:
    return torch.frombuffer(piece.buffer(), dtype=torch.float32)


def _move(piece: Work, flat: torch.Tensor, values: torch.Tensor) -> None:
    """θ of one block, computed in float32 where its dtype has fewer bits."""
    if piece.kind == _library.WRITE:
        flat.copy_(values)
    elif piece.kind == _library.MIX:
        flat.copy_(flat.float().mul(piece.factor).add(values, alpha=1 - piece.factor))
    else:
        flat.copy_(flat.float().sub(values, alpha=piece.factor))


def _to_device(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    return values if device.type == "cpu" else values.to(device)


def _from_device(flat: torch.Tensor, values: torch.Tensor, ready: Any) -> None:
    """Through pinned memory, on a stream of its own: the host waits without the interpreter's lock."""
    side = _cuda.Stream(device=flat.device)
    if ready is None:
        side.wait_stream(_cuda.current_stream(flat.device))
    else:
        side.wait_event(ready)
    pinned = torch.empty(min(BLOCK_VALUES, flat.numel()), dtype=torch.float32, pin_memory=True)
    for first in range(0, flat.numel(), BLOCK_VALUES):
        block = flat[first:first + BLOCK_VALUES]
        with _cuda.stream(side):
            pinned[:block.numel()].copy_(block.float(), non_blocking=True)
            copied = _cuda.Event()
            copied.record(side)
        copied.synchronize()
        values[first:first + block.numel()].copy_(pinned[:block.numel()])


class _LateCopies:
    """One helper thread and its queue. It begins with the first late copy."""

    def __init__(self, copy: Callable[[Work, Any], None]) -> None:
        self.work_done: Callable[..., int] | None = None
        self._copy = copy
        self._queue: queue.SimpleQueue[_Copy | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        self._open = 0
        self._failure: BaseException | None = None

    def add(self, piece: Work, ready: Any) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="causeway-copy", daemon=True)
            self._thread.start()
        with self._changed:
            self._open += 1
        self._queue.put((piece, ready))

    def wait(self) -> None:
        with self._changed:
            while self._open > 0:
                self._changed.wait(0.1)  # in between, Python's signal handlers run
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (copy := self._queue.get()) is not None:
            piece, ready = copy
            failure: BaseException | None = None
            try:
                with torch.no_grad():
                    self._copy(piece, ready)
            except BaseException as error:
                failure = error
            assert self.work_done is not None
            self.work_done(piece.id, failed=failure is not None)
            with self._changed:
                self._open -= 1
                self._failure = self._failure or failure
                self._changed.notify_all()
