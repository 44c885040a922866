"""CUDA graphs: a step of the optimizer is no part of one, since a replay calls no hooks and a sync cannot be captured."""

import torch

from causeway.errors import FailedError


def going_on() -> bool:
    """The current stream is being captured. Needs no GPU, and makes no context there."""
    return torch.cuda.is_initialized() and bool(torch.cuda.is_current_stream_capturing())  # type: ignore[no-untyped-call]


def refuse() -> None:
    """Raises FailedError where the current stream is being captured."""
    if going_on():
        raise FailedError("expected an optimizer step outside of a CUDA graph's capture, got one inside: a sync cannot be "
                          "captured; capture forward and backward, and call step() after the graph's replay")
