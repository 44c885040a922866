"""The versions of PyTorch that this package needs."""

from __future__ import annotations

import re

import torch

from causeway.errors import mismatch

_OLDEST = (2, 4)
_OLDEST_SHARDED = (2, 6)  # has fully_shard in its public interface


def check_version() -> None:
    """Raises ConfigError if PyTorch is older than the oldest that takes part."""
    _check_at_least(_OLDEST, "torch")


def check_sharded_version() -> None:
    """Raises ConfigError if PyTorch is older than the oldest that takes part with parameters of fully_shard."""
    _check_at_least(_OLDEST_SHARDED, "torch, for sharded parameters")


def _check_at_least(oldest: tuple[int, int], what: str) -> None:
    numbers = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if numbers is not None and (int(numbers[1]), int(numbers[2])) < oldest:
        raise mismatch(what, ".".join(map(str, oldest)) + " or newer", torch.__version__)
