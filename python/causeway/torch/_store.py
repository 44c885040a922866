"""The values of θ that this rank holds, whole tensors or shards, and the operations on them.

    host     by the library, in place (causeway_move)
    device   in blocks of 64 MB, read through pinned memory on a stream of its own, moved by PyTorch; contributions are
             encoded there by a library that can

Every rank of a site moves its values by these functions, so replicas keep the same bits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import torch

from causeway import _library
from causeway.torch._boxes import Box, rows_of
from causeway.torch._model import SYNCED_DTYPES, local

BLOCK_VALUES = 16 << 20  # 64 MB of float32

DTYPES = {"float32": 0, "bfloat16": 1, "float16": 2}  # causeway_dtype

_cuda: Any = torch.cuda  # whose classes have no types


class TensorStore:
    """This rank's tensors by the site's numbers. A range of one is values [start, stop) of what this rank holds of it."""

    def __init__(self, tensors: Mapping[int, torch.Tensor], names: Mapping[int, str]) -> None:
        """`names`: of each tensor in the run."""
        self._tensors = dict(tensors)
        self._names = dict(names)
        self._library = _library.load()
        self.device = next((local(tensor).device for tensor in self._tensors.values()), torch.device("cpu"))
        self.anchor: dict[int, torch.Tensor] | None = None  # where values of the anchor go: flat, float32, on the host

    def encoding_device(self) -> int | None:
        """The CUDA device that holds all values, as whole float32 tensors; None: there is no such device."""
        held = [local(tensor) for tensor in self._tensors.values()]
        whole = all(part.device == self.device and part.dtype == torch.float32 and part.is_contiguous() for part in held)
        return _cuda_index(self.device) if held and whole else None

    def on_device(self, tensor: int, first: int) -> tuple[int, int]:
        """The address of a value, and the stream that computes there."""
        held = local(self._tensors[tensor])
        return held.data_ptr() + first * held.element_size(), int(_cuda.current_stream(held.device).cuda_stream)

    def of_device(self, address: int, count: int) -> torch.Tensor:
        """The library's float32 values on the device of θ."""
        return _view_on(self.device, address, count)

    def ready_event(self) -> Any:
        """An event that marks θ as it is now, on a device. None on the host."""
        if self.device.type == "cpu" and not _has_streams(torch.empty(0, device="cpu")):
            return None
        event = _cuda.Event()
        event.record()
        return event

    def take(self, tensor: int, values: slice, to: torch.Tensor) -> DeviceCopy | None:
        """`to` ← the values as float32, as many in any shape, on the host or where θ is. None: done. From a device to the
        host they are copied there first, and the result brings them."""
        held = local(self._tensors[tensor])
        part = held.contiguous().view(-1)[values]
        if _has_streams(held) and to.device.type == "cpu":
            copy = DeviceCopy.of(part)
            if copy is not None:
                return copy
        place = to if to.is_contiguous() else torch.empty_like(to, memory_format=torch.contiguous_format)
        if _has_streams(held) and to.device.type == "cpu":
            _from_device(part, place.view(-1), None)
        elif _on_host(held):
            self._on_host(_library.READ, 0.0, part, place)
        else:
            place.copy_(part.view(place.shape))
        if place is not to:
            to.copy_(place)
        return None

    def move(self, kind: int, factor: float, tensor: int, values: slice, by: torch.Tensor) -> None:
        """θ of the range moves by as many values, flat, float32."""
        held = local(self._tensors[tensor])
        contiguous = held.contiguous()  # itself, in most models
        part = contiguous.view(-1)[values]
        if _on_host(held):
            self._on_host(kind, factor, part, by.contiguous())
            torch.autograd.graph.increment_version(held)  # a graph that has saved it must not be used any more
        else:
            for first in range(0, part.numel(), BLOCK_VALUES):
                block = slice(first, min(first + BLOCK_VALUES, part.numel()))
                _move_on_device(kind, factor, part[block], by[block].to(part.device))
        if contiguous.data_ptr() != held.data_ptr():
            held.copy_(contiguous)

    def _on_host(self, kind: int, factor: float, theta: torch.Tensor, values: torch.Tensor) -> None:
        work = _library.Work(kind=kind, factor=factor, count=theta.numel(), values=values.data_ptr())
        dtype = DTYPES[SYNCED_DTYPES[theta.dtype]]
        self._library.check(self._library.move(ctypes.byref(work), dtype, theta.data_ptr()))

    def keep_anchor(self, tensor: int, values: slice, w: torch.Tensor) -> None:
        """`anchor` takes values of W."""
        assert self.anchor is not None
        self.anchor[tensor][values].copy_(w)

    def digest(self, tensor: int, box: Box) -> int:
        """The sum of causeway_theta_digest over what this rank holds of a tensor."""
        values = local(self._tensors[tensor]).cpu().contiguous()
        dtype = DTYPES[SYNCED_DTYPES[values.dtype]]
        place, total = values.data_ptr(), 0
        for rows in rows_of(box, tuple(self._tensors[tensor].shape)):
            block = _library.Block(tensor=self._names[tensor].encode(), first=rows.first, rows=rows.rows,
                                   columns=rows.columns, stride=rows.stride)
            digest = ctypes.c_uint64()
            self._library.check(self._library.theta_digest(ctypes.byref(block), dtype, place, ctypes.byref(digest)))
            place += rows.rows * rows.columns * values.element_size()
            total += digest.value
        return total & (1 << 64) - 1


def _on_host(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu"


def _has_streams(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cuda"


def _cuda_index(device: torch.device) -> int | None:
    if device.type != "cuda" or torch.version.hip:
        return None
    return int(_cuda.current_device() if device.index is None else device.index)


class _DeviceMemory:
    def __init__(self, address: int, count: int) -> None:
        self.__cuda_array_interface__ = {"shape": (count,), "typestr": "<f4", "data": (address, False), "version": 3}


def _view_on(device: torch.device, address: int, count: int) -> torch.Tensor:
    return torch.as_tensor(_DeviceMemory(address, count), device=device)


def _pinned(values: int) -> torch.Tensor:
    return torch.empty(values, dtype=torch.float32, device="cpu", pin_memory=True)


def _move_on_device(kind: int, factor: float, flat: torch.Tensor, values: torch.Tensor) -> None:
    """θ of one block, computed in float32 where its dtype has fewer bits."""
    if kind == _library.WRITE:
        flat.copy_(values)
    elif kind == _library.MIX:
        mixed = flat.float().mul(factor).add(values, alpha=1 - factor)
        flat.copy_(_round_mix(values, flat, mixed) if flat.dtype == torch.bfloat16 else mixed)
    else:
        flat.copy_(flat.float().sub(values, alpha=factor))


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


class DeviceCopy:
    """Values of θ copied on their device, at once in the order of what its stream does to θ."""

    def __init__(self, values: torch.Tensor, ready: Any) -> None:
        self._values, self._ready = values, ready

    @staticmethod
    def of(part: torch.Tensor) -> DeviceCopy | None:
        """None: the device has no memory for it."""
        try:
            values = part.clone()
        except torch.cuda.OutOfMemoryError:
            return None
        ready = _cuda.Event()
        ready.record()
        return DeviceCopy(values, ready)

    def bring(self, to: torch.Tensor) -> None:
        """`to` ← the values, as many in any shape, float32 on the host. Any thread."""
        _from_device(self._values, to, self._ready)


def _from_device(flat: torch.Tensor, values: torch.Tensor, ready: Any) -> None:
    """`values` on the host ← those on the device, after `ready`; None: after what the current stream has to do."""
    side = SideCopies(flat.device, flat.numel())
    side.await_event(ready)
    side.bring(flat, values)


class SideCopies:
    """Copies from a device to the host: through a pinned block, on a stream of their own, so that they wait for no training
    that is queued, and the host waits without the interpreter's lock. One thread."""

    def __init__(self, device: torch.device, most_values: int) -> None:
        self._device = device
        self._side = _cuda.Stream(device=device)
        self._pinned = _pinned(min(BLOCK_VALUES, most_values))

    @staticmethod
    def where_needed(like: torch.Tensor) -> SideCopies | None:
        """For all values of `like`; None: it is on the host."""
        return SideCopies(like.device, like.numel()) if _has_streams(like) else None

    def await_event(self, event: Any) -> None:
        """Later copies come after it; None: after what the current stream has to do."""
        if event is None:
            self._side.wait_stream(_cuda.current_stream(self._device))
        else:
            self._side.wait_event(event)

    def after(self, wait: Callable[[], object]) -> None:
        """Later copies come after what `wait` has the current stream wait for, as a collective's end does."""
        with _cuda.stream(self._side):
            wait()

    def bring(self, flat: torch.Tensor, to: torch.Tensor) -> None:
        """`to` ← the values, as many in any shape, float32 on the host; they are there when this returns."""
        place = to if to.is_contiguous() else torch.empty_like(to, memory_format=torch.contiguous_format)
        values = place.view(-1)
        for first in range(0, flat.numel(), BLOCK_VALUES):
            block = flat[first:first + BLOCK_VALUES]
            with _cuda.stream(self._side):
                self._pinned[:block.numel()].copy_(block.float(), non_blocking=True)
                copied = _cuda.Event()
                copied.record(self._side)
            copied.synchronize()
            values[first:first + block.numel()].copy_(self._pinned[:block.numel()])
        if place is not to:
            to.copy_(place)
