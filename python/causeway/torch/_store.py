"""Carries out the library's work on PyTorch tensors, on the host and on a device.

    host     by the library, in place. A READ that may be late is done by a helper thread while the next step computes;
             the optimizer's pre-hook awaits it.
    device   in blocks of 64 MB, read through pinned memory on a stream of its own, moved by PyTorch.

All but the helper's reads are on the thread of the site. On a GPU this is untried, see docs/python.md.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch

from causeway import _library
from causeway._handles import SiteHandle
from causeway._library import Work
from causeway.torch._model import local

BLOCK_VALUES = 16 << 20  # 64 MB of float32

_cuda: Any = torch.cuda  # whose classes have no types

# A late read: the work, whose it is, and what marks that θ is ready on the device.
_Late = tuple[Work, SiteHandle, Any]


class TensorStore:
    """Pieces between the library and the parameters of a model."""

    def __init__(self, tensors: Mapping[int, torch.Tensor]) -> None:
        self._tensors = dict(tensors)
        self.anchor: dict[int, torch.Tensor] | None = None  # where pieces of the anchor go: flat, float32
        self.may_be_late = False  # something awaits late copies before θ changes
        self.watch: Callable[[int, torch.Tensor, torch.Tensor], None] | None = None  # (index, old, new) before a write
        self._late = _LateReads(self._read)

    # ---- What the site calls ----

    def await_late(self) -> None:
        """Returns when no read is late any more; raises what one of them raised."""
        self._late.wait()

    def close(self) -> None:
        """Ends the helper thread."""
        self._late.close()

    def carry_out(self, piece: Work, site: SiteHandle) -> None:
        """See _handles.Store."""
        if piece.flags & _library.ANCHOR:
            assert self.anchor is not None
            _do_on_host(piece, site, self.anchor[piece.tensor])
        elif piece.kind != _library.READ:
            self._move(piece, site)
        elif piece.flags & _library.BEFORE_CHANGE and self.may_be_late:
            self._late.add(piece, site, self._ready_event(piece))
        else:
            self._read(piece, site, None)

    # ---- Pieces ----

    def _ready_event(self, piece: Work) -> Any:
        if not _has_streams(local(self._tensors[piece.tensor])):
            return None
        event = _cuda.Event()
        event.record()
        return event

    def _read(self, piece: Work, site: SiteHandle, ready: Any) -> None:
        tensor = local(self._tensors[piece.tensor])
        if _on_host(tensor):
            return _do_on_host(piece, site, tensor.contiguous())
        if _has_streams(tensor):
            _from_device(_part(piece, tensor), _values(piece), ready)
        else:
            _values(piece).copy_(_part(piece, tensor))
        site.work_done(piece)

    def _move(self, piece: Work, site: SiteHandle) -> None:
        tensor = local(self._tensors[piece.tensor])
        contiguous = tensor.contiguous()  # itself, in most models
        part = _part(piece, contiguous)
        if self.watch is not None and piece.kind == _library.WRITE and piece.first == 0:
            self.watch(piece.tensor, part, _values(piece))
        if _on_host(tensor):
            _do_on_host(piece, site, contiguous)
            torch.autograd.graph.increment_version(tensor)  # a graph that has saved it must not be used any more
        else:
            for first in range(0, piece.count, BLOCK_VALUES):
                block = slice(first, min(first + BLOCK_VALUES, piece.count))
                _move_on_device(piece, part[block], _values(piece)[block].to(part.device))
            site.work_done(piece)
        if contiguous.data_ptr() != tensor.data_ptr():
            tensor.copy_(contiguous)


def _on_host(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu"


def _has_streams(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cuda"


def _pinned(values: int) -> torch.Tensor:
    return torch.empty(values, dtype=torch.float32, pin_memory=True)


def _do_on_host(piece: Work, site: SiteHandle, contiguous: torch.Tensor) -> None:
    site.do_work(piece, contiguous.data_ptr() + piece.first * contiguous.element_size())


def _part(piece: Work, tensor: torch.Tensor) -> torch.Tensor:
    """A flat view, or a copy if the tensor is not contiguous."""
    return tensor.reshape(-1)[piece.first:piece.first + piece.count]


def _values(piece: Work) -> torch.Tensor:
    return torch.frombuffer(piece.buffer(), dtype=torch.float32)


def _move_on_device(piece: Work, flat: torch.Tensor, values: torch.Tensor) -> None:
    """θ of one block, computed in float32 where its dtype has fewer bits."""
    if piece.kind == _library.WRITE:
        flat.copy_(values)
    elif piece.kind == _library.MIX:
        mixed = flat.float().mul(piece.factor).add(values, alpha=1 - piece.factor)
        flat.copy_(_round_mix(values, flat, mixed) if flat.dtype == torch.bfloat16 else mixed)
    else:
        flat.copy_(flat.float().sub(values, alpha=piece.factor))


def _hash_bits(bits: torch.Tensor) -> torch.Tensor:
    """core::HashBits of core/bfloat16.h, on int32, whose shifts keep the sign."""
    bits = (bits ^ (bits >> 16 & 0xFFFF)) * (0x85EBCA6B - (1 << 32))
    bits = (bits ^ (bits >> 13 & 0x7FFFF)) * (0xC2B2AE35 - (1 << 32))
    return bits ^ (bits >> 16 & 0xFFFF)


def _round_mix(anchor: torch.Tensor, theta: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
    """core::RoundMix of core/outer_step.h: stochastically; θ that is the anchor rounded to nearest stays."""
    bits = mixed.view(torch.int32)
    rounded = ((bits + (_hash_bits(bits) >> 16 & 0xFFFF)) & ~0xFFFF).view(torch.float32)
    rounded = torch.where(mixed.isnan(), mixed, rounded).bfloat16()
    return torch.where(theta == anchor.bfloat16(), theta, rounded)


def _from_device(flat: torch.Tensor, values: torch.Tensor, ready: Any) -> None:
    """Through pinned memory, on a stream of its own: the host waits without the interpreter's lock."""
    side = _cuda.Stream(device=flat.device)
    if ready is None:
        side.wait_stream(_cuda.current_stream(flat.device))
    else:
        side.wait_event(ready)
    pinned = _pinned(min(BLOCK_VALUES, flat.numel()))
    for first in range(0, flat.numel(), BLOCK_VALUES):
        block = flat[first:first + BLOCK_VALUES]
        with _cuda.stream(side):
            pinned[:block.numel()].copy_(block.float(), non_blocking=True)
            copied = _cuda.Event()
            copied.record(side)
        copied.synchronize()
        values[first:first + block.numel()].copy_(pinned[:block.numel()])


class _LateReads:
    """One helper thread and its queue. It begins with the first of them."""

    def __init__(self, read: Callable[[Work, SiteHandle, Any], None]) -> None:
        self._read = read
        self._queue: queue.SimpleQueue[_Late | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        self._open = 0
        self._failure: BaseException | None = None

    def add(self, piece: Work, site: SiteHandle, ready: Any) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="causeway-copy", daemon=True)
            self._thread.start()
        with self._changed:
            self._open += 1
        self._queue.put((piece, site, ready))

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
        while (late := self._queue.get()) is not None:
            failure: BaseException | None = None
            try:
                with torch.no_grad():
                    self._read(*late)
            except BaseException as error:
                failure = error
                piece, site, _ = late
                site.work_failed(piece)
            with self._changed:
                self._open -= 1
                self._failure = self._failure or failure
                self._changed.notify_all()
