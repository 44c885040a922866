"""The anchor W in place of θ, and in a folder."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from causeway import names
from causeway.torch._model import Model, local
from causeway.torch._store import TensorStore


def read(model: Model, store: TensorStore, read_anchor: Callable[[], None]) -> dict[int, torch.Tensor]:
    """W of each synced tensor by its index, flat, float32, on the host."""
    store.anchor = {index: torch.empty(local(tensor).numel(), dtype=torch.float32)
                    for index, tensor in model.synced.items()}
    try:
        read_anchor()
        return store.anchor
    finally:
        store.anchor = None


def swap(model: Model, values: dict[int, torch.Tensor]) -> None:
    """The synced tensors take the values, and the other way round."""
    for index, tensor in model.synced.items():
        held = local(tensor)
        own = held.clone()
        held.copy_(values[index].view(held.shape))
        values[index] = own


def export(module: nn.Module, directory: str | os.PathLike[str], tokenizer: Any) -> None:
    """Hugging Face's models by their save_pretrained; of others the state_dict, as model.pt."""
    folder = pathlib.Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    inner: Any = module
    while (wrapped := _wrapped(inner)) is not None:
        inner = wrapped
    if hasattr(inner, "save_pretrained"):
        inner.save_pretrained(folder)
    else:
        torch.save({names.plain(name): value for name, value in inner.state_dict().items()}, folder / "model.pt")
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)


def _wrapped(module: nn.Module) -> Any:
    if isinstance(module, nn.parallel.DistributedDataParallel):
        return module.module
    return getattr(module, "_orig_mod", None)
