"""Figures that a script reports: checked where it reports them, instead of a second later in its optimizer's step."""

from __future__ import annotations

from typing import Any

import torch

from causeway.errors import mismatch

MOST_TOKENS = 1 << 53  # of all steps together


def loss(what: str, value: Any) -> float | torch.Tensor:
    """The number, or a copy of a tensor of one value, which waits for no device. Raises ConfigError for anything else."""
    wanted = "a number, or a tensor of one value"
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            raise mismatch(what, wanted, f"a tensor of shape {list(value.shape)}", "the mean of a step, as loss.mean()")
        if value.is_complex() or value.device.type == "meta":
            raise mismatch(what, wanted, f"one of {value.dtype} on the device {value.device.type}")
        return value.detach().clone()
    try:
        return float(value.item() if getattr(value, "size", 0) == 1 else value)
    except (AttributeError, OverflowError, TypeError, ValueError):
        raise mismatch(what, wanted, f"{value!r}"[:100]) from None


def tokens(value: Any) -> int:
    """Raises ConfigError for what is no count."""
    try:
        count = int(value)
    except (OverflowError, RuntimeError, TypeError, ValueError):
        count = -1
    if not 0 <= count <= MOST_TOKENS:
        raise mismatch("report: tokens", f"a number from 0 to {MOST_TOKENS}", f"{value!r}"[:100])
    return count
