"""The tensors that this rank holds of a model: whole ones, or the shards of DTensors, as one row of the ranks' table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from causeway._log import LOGGER
from causeway.errors import mismatch
from causeway.torch._boxes import Box, Listing
from causeway.torch._model import Model
from causeway.torch._store import TensorStore

_SHARED_BATCH = ("tp", "cp", "ep", "tensor_parallel", "context_parallel")  # dimensions of a mesh, by their usual names


def listing(module: nn.Module, model: Model) -> Listing:
    """For the table of all ranks. Raises ConfigError that names the first tensor whose shards cannot take part."""
    boxes = {index: box_of(_name(model, index), tensor) for index, tensor in {**model.synced, **model.frozen}.items()}
    return Listing(model.tensors, boxes, frozen_digests(model), _batch_of(module))


def frozen_digests(model: Model) -> dict[int, int]:
    """causeway_theta_digest of what this rank holds now of each frozen tensor that is compared."""
    store = TensorStore(model.frozen, {index: _name(model, index) for index in model.frozen})
    boxes = {index: box_of(_name(model, index), tensor) for index, tensor in model.frozen.items()}
    return {index: store.digest(index, box) if box else 0 for index, box in boxes.items()}


def warn_of_changes(model: Model, before: Mapping[int, int]) -> None:
    """When the site leaves: names frozen tensors of which `frozen_digests` was another one when it joined."""
    changed = [index for index, digest in frozen_digests(model).items() if digest != before[index]]
    if changed:
        LOGGER.warning("%d frozen parameters have other values than when the site joined, the first %s: they were not "
                       "synced, are in no export of the run, and a site that joins with them is refused", len(changed),
                       _name(model, changed[0]))


def _name(model: Model, index: int) -> str:
    return str(model.tensors[index]["name"])


def box_of(name: str, tensor: torch.Tensor) -> Box | None:
    """The box of a tensor on this rank: of a DTensor its shard; None: nothing. Raises ConfigError for a partial sum."""
    mesh: Any = getattr(tensor, "device_mesh", None)
    if mesh is None or mesh.size() == 1:
        return Box((0,) * tensor.dim(), tuple(tensor.shape))
    placements = getattr(tensor, "placements")
    if any(placement.is_partial() for placement in placements):
        raise mismatch(f"parameter {name}", "shards or replicas", placements, tensor=name)
    if mesh.get_coordinate() is None:
        return None
    chunks = tensor.__create_chunk_list__()  # type: ignore[attr-defined]  # what checkpoints of PyTorch go by
    if len(chunks) > 1:
        raise mismatch(f"parameter {name}", "one shard on each rank", f"{len(chunks)} with placements {placements}",
                       tensor=name)
    if not chunks or 0 in chunks[0].sizes:
        return None
    return Box(tuple(chunks[0].offsets), tuple(chunks[0].sizes))


def _batch_of(model: nn.Module) -> str:
    """The ranks that train on this rank's batch, if there are others: those along a mesh's dimensions that are no data
    parallelism. With fully_shard these have the names that frameworks give them; without it a mesh has no others."""
    meshes = [getattr(parameter, "device_mesh") for parameter in model.parameters() if hasattr(parameter, "device_mesh")]
    mesh: Any = max(meshes, key=lambda each: int(each.ndim), default=None)
    if mesh is None or mesh.get_coordinate() is None:
        return ""
    fully_sharded = any(type(module).__mro__[1].__name__ == "FSDPModule" or "FSDP" in type(module).__name__
                        for module in model.modules())
    names = mesh.mesh_dim_names or ("",) * mesh.ndim
    shared = [not fully_sharded or name in _SHARED_BATCH for name in names]
    place = tuple(slice(None) if common else at for common, at in zip(shared, mesh.get_coordinate()))
    return ",".join(map(str, mesh.mesh[place].flatten().tolist()))
