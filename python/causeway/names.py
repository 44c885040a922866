"""Names of tensors without what wrappers put into them, so that wrapped and plain models are the same model."""

from __future__ import annotations

from collections.abc import Iterable

_ANYWHERE = frozenset({"_orig_mod", "_checkpoint_wrapped_module"})  # torch.compile, activation checkpointing
# DistributedDataParallel and its like, Lightning Fabric; further inside these are the model's own names
_LEADING = frozenset({"module", "_forward_module", "_original_module"})
STRIPPED = ", ".join(f"{part}." for part in sorted(_ANYWHERE | _LEADING))


def is_among(name: str, given: Iterable[str]) -> bool:
    """One of these is the parameter's name, or that of a module it is below."""
    return any(name == each or name.startswith(f"{each}.") for each in given)


def plain(name: str) -> str:
    """The name that a tensor has in the unwrapped model: "module._orig_mod.layers.0.weight" is "layers.0.weight"."""
    parts = [part for part in name.split(".") if part not in _ANYWHERE]
    while len(parts) > 1 and parts[0] in _LEADING:
        parts.pop(0)
    return ".".join(parts)
