"""Values of many parameters in few arrays of host memory, on huge pages, pinned where a GPU's copies come and go."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterable, Sequence

import torch

from causeway.errors import mismatch
from causeway._memory import available_bytes

_ALIGNED = 64  # bytes, at which each parameter's values begin
# Bytes by which each array begins later in its page than the one before: arrays at one offset push each other out of the
# processor's first cache.
_STAGGER = 17 * _ALIGNED


class _Pages(mmap.mmap):
    """Anonymous memory, zero at first. `pin` holds until the last tensor over it is gone."""

    _pinned = 0

    def pin(self, address: int) -> None:
        error = int(torch.cuda.cudart().cudaHostRegister(address, len(self), 0))  # type: ignore[no-untyped-call]
        if error:
            raise mismatch("memory", f"{len(self) / 1e9:.2f} GB of the host that can be pinned", f"CUDA error {error}")
        self._pinned = address

    def __del__(self) -> None:
        if self._pinned:
            with contextlib.suppress(Exception):  # the process ends, and CUDA may be gone
                torch.cuda.cudart().cudaHostUnregister(self._pinned)  # type: ignore[no-untyped-call]


def _pages(count: int, dtype: torch.dtype, pinned: bool, place: int) -> tuple[_Pages, int]:
    """Memory with room for `count` values, and where the first of them begins."""
    begin = place * _STAGGER
    size = begin + count * dtype.itemsize
    available = available_bytes() if pinned else None
    if available is not None and size > available:
        raise mismatch("memory", f"{size / 1e9:.2f} GB of the host for the optimizer's state",
                       f"{available / 1e9:.2f} GB available", "a greater fraction stays on the GPU")
    pages = _Pages(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them
        pages.madvise(mmap.MADV_HUGEPAGE)
    if pinned and size > 0:
        pages.pin(torch.frombuffer(pages, dtype=torch.uint8).data_ptr())
    return pages, begin


def host_array(count: int, dtype: torch.dtype, pinned: bool, place: int = 0) -> torch.Tensor:
    """Zeros. `place`: another for each array that is used with others. Raises ConfigError if the host lacks the memory."""
    return _tensor(*_pages(count, dtype, pinned, place), dtype, count)


def slices(shapes: Sequence[torch.Size], dtype: torch.dtype, pinned: bool, place: int) -> list[torch.Tensor]:
    """A tensor of zeros of each shape, all in one array; each has a storage of its own, so that saving one saves no other."""
    step = _ALIGNED // dtype.itemsize
    firsts = list(starts((shape.numel() for shape in shapes), step))
    pages, begin = _pages(firsts[-1], dtype, pinned, place)
    return [_tensor(pages, begin + first * dtype.itemsize, dtype, shape.numel()).view(shape)
            for first, shape in zip(firsts, shapes)]


def _tensor(pages: _Pages, begin: int, dtype: torch.dtype, count: int) -> torch.Tensor:
    if count == 0:
        return torch.empty(0, dtype=dtype, device="cpu")
    return torch.frombuffer(pages, dtype=dtype, count=count, offset=begin)


def starts(counts: Iterable[int], step: int) -> Iterable[int]:
    """Where each of these begins, at multiples of `step`, and where all end."""
    at = 0
    for count in counts:
        yield at
        at += -(-count // step) * step
    yield at
