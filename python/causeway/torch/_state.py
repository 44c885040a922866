"""A site's state as one leaf of a checkpoint: torch.distributed.checkpoint and torch.save store it whole."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass
class SiteState:
    """The state that a process needs to resume as this site, beside θ and the inner optimizer.

    Attributes:
        step: the inner step after which it was taken.
        parts: named bytes of the library, as uint8 tensors.
        pending: the step's end is still to come (_deferred_step.py).
    """

    step: int = 0
    parts: dict[str, torch.Tensor] = field(default_factory=dict)
    pending: bool = False


torch.serialization.add_safe_globals([SiteState])
