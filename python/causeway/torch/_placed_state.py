"""The state of OffloadedAdamW: what a parameter has, of which type and shape, and on which side it lies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from causeway.errors import mismatch
from causeway.torch._host_arrays import slices

DTYPES = {torch.float32: 0, torch.bfloat16: 1}  # causeway_dtype
MOMENTS = ("exp_avg", "exp_avg_sq")
MASTER = "master_param"

State = dict[str, Any]


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The values that are here: of a DTensor its shard, in place."""
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def check(parameter: torch.Tensor) -> None:
    if parameter.dtype not in DTYPES:
        raise mismatch("params", "float32 or bfloat16", str(parameter.dtype))
    if not local(parameter).is_contiguous():
        raise mismatch("params", "contiguous tensors", f"one of shape {tuple(parameter.shape)}, "
                       f"strides {parameter.stride()}")
    placements = getattr(parameter, "placements", ())
    if any(placement.is_partial() for placement in placements):
        raise mismatch("params", "shards or replicas", placements)


def needs_master(parameter: torch.Tensor, apart: bool) -> bool:
    """It is not float32 where it is updated, which may be apart from where it lies."""
    return parameter.dtype != torch.float32 or apart


def as_of(parameter: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """A state's tensor: of a DTensor its shard, on any device, as FSDP's own offloaded parameters are made."""
    spec = getattr(parameter, "_spec", None)
    if spec is None:
        return values
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    meta = TensorMeta(spec.tensor_meta.shape, spec.tensor_meta.stride, values.dtype)
    return DTensor(values, DTensorSpec(spec.mesh, spec.placements, tensor_meta=meta), requires_grad=False)


class StateMaker:
    """Makes the state of parameters that have none. `moments`: their type."""

    def __init__(self, moments: torch.dtype) -> None:
        self.moments = moments

    def bytes_on_device(self, parameter: torch.Tensor) -> int:
        """The bytes of a value's state there, if it is resident."""
        return 2 * self.moments.itemsize + (4 if needs_master(parameter, apart=False) else 0)

    def on_device(self, parameter: torch.Tensor) -> State:
        here = local(parameter).detach()
        state = _step() | {name: as_of(parameter, torch.zeros_like(here, dtype=self.moments)) for name in MOMENTS}
        if needs_master(parameter, apart=False):
            state[MASTER] = as_of(parameter, here.float())
        return state

    def on_host(self, parameters: Sequence[torch.Tensor], apart: bool) -> list[State]:
        """In arrays of one kind each. All parameters are of one device; `apart`: which is not the host."""
        if not parameters:
            return []
        pinned = parameters[0].device.type == "cuda"
        states = [_step() for _ in parameters]
        shapes = [local(parameter).shape for parameter in parameters]
        for place, name in enumerate(MOMENTS, 1):
            for parameter, state, values in zip(parameters, states, slices(shapes, self.moments, pinned, place)):
                state[name] = as_of(parameter, values)
        mastered = [i for i, parameter in enumerate(parameters) if needs_master(parameter, apart)]
        masters = slices([shapes[i] for i in mastered], torch.float32, pinned, 3)
        for i, values in zip(mastered, masters):
            states[i][MASTER] = as_of(parameters[i], values.copy_(local(parameters[i]).detach()))
        return states


def _step() -> State:
    return {"step": torch.tensor(0.0, device="cpu")}


def forget(state: State) -> None:
    """As before the first step, but for the master."""
    for name in ("step", *MOMENTS):
        if name in state:
            local(state[name]).zero_()


def take(parameter: torch.Tensor, state: State, saved: State) -> None:
    """Copies a saved state's values into this one's tensors. Raises ConfigError for another shape."""
    for name in (*MOMENTS, MASTER):
        if name not in state:
            continue
        values = saved.get(name, parameter.detach() if name == MASTER else None)
        if values is None:
            raise mismatch("state_dict", f"{name} of each parameter with state", f"only {', '.join(sorted(saved))}")
        here, there = local(state[name]), local(values)
        if here.shape != there.shape:
            raise mismatch(f"state_dict: {name}", f"{tuple(here.shape)} on this rank", tuple(there.shape),
                           "load another world's state by torch.distributed.checkpoint")
        if here.data_ptr() != there.data_ptr() or here.dtype != there.dtype:
            here.copy_(there)
    state["step"] = torch.as_tensor(saved["step"], dtype=torch.float32, device="cpu").clone()
