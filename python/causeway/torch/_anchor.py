"""The anchor W in place of θ, and in a folder."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed, nn

from causeway import names
from causeway.errors import mismatch
from causeway.torch._assets import unwrapped
from causeway.torch._boxes import Table
from causeway.torch._model import Model, local
from causeway.torch._ranks import Ranks
from causeway.torch._store import TensorStore

Export = Callable[[str | os.PathLike[str], Any], None]  # of a W that is kept; takes folder and tokenizer


def read(model: Model, store: TensorStore, read_anchor: Callable[[], None]) -> dict[int, torch.Tensor]:
    """W of each synced tensor by its index, flat, float32, on the host."""
    store.anchor = {index: torch.empty(local(tensor).numel(), dtype=torch.float32, device="cpu")
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


def export(module: nn.Module, directory: str | os.PathLike[str], tokenizer: Any, ranks: Ranks,
           table: Table) -> None:
    """Hugging Face's models by their save_pretrained; of others the state_dict, as model.pt. On all ranks; rank 0 writes,
    with the shards and the stages of the others in its memory."""
    state = _whole_state(_innermost(module), ranks, table) if ranks.world > 1 else None
    if ranks.leads:
        write(module, directory, tokenizer, state)


def _innermost(module: nn.Module) -> Any:
    while (wrapped := unwrapped(module)) is not None:
        module = wrapped
    return module


def write(module: nn.Module, directory: str | os.PathLike[str], tokenizer: Any, state: dict[str, Any] | None) -> None:
    """The model with this state_dict; None: its own."""
    folder = pathlib.Path(directory)
    inner = _innermost(module)
    folder.mkdir(parents=True, exist_ok=True)
    if hasattr(inner, "save_pretrained"):
        inner.save_pretrained(folder, **({} if state is None else {"state_dict": state}))
        files = list(folder.glob("*.safetensors"))
        if files and not any(map(_has_tensors, files)):
            raise mismatch("export", "tensors of the model", f"none in {files[0].name}",
                           "adapters that were merged are in another model: pass that to save_pretrained within "
                           "anchor_parameters()")
    else:
        state = inner.state_dict() if state is None else state
        torch.save({names.plain(name): value for name, value in state.items()}, folder / "model.pt")
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)


def _whole_state(module: nn.Module, ranks: Ranks, table: Table) -> dict[str, Any]:
    """The state_dict with whole tensors, of all stages of a pipeline, on rank 0; elsewhere nothing of use."""
    state: dict[str, Any] = module.state_dict()
    for name, value in state.items():
        if hasattr(value, "full_tensor"):
            state[name] = value.full_tensor()
    assert ranks.host_group is not None
    stages: list[Any] | None = [None] * ranks.world if ranks.leads else None
    own = {name: value.cpu() for name, value in state.items()} if table.first_of_stage(ranks.rank) else {}
    distributed.gather_object({} if ranks.leads else own, stages, distributed.get_global_rank(ranks.host_group, 0),
                              ranks.host_group)
    for stage in stages or []:
        state.update(stage)
    aliases = {tensor["name"]: tensor["alias_of"] for tensor in table.tensors if tensor.get("alias_of")}
    by_name = {names.plain(name): value for name, value in state.items()}
    return {name: by_name.get(aliases.get(names.plain(name), names.plain(name)), value) for name, value in state.items()}


def _has_tensors(file: pathlib.Path) -> bool:
    """A file of safetensors has a header behind its length, and then values."""
    with open(file, "rb") as opened:
        return file.stat().st_size > 8 + int.from_bytes(opened.read(8), "little")
