"""The state of OffloadedAdamW: what a parameter has, of which type and shape, and on which side it lies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from causeway._log import LOGGER
from causeway.errors import mismatch
from causeway.torch._host_arrays import slices

DTYPES = {torch.float32: 0, torch.bfloat16: 1}  # causeway_dtype
MOMENTS = ("exp_avg", "exp_avg_sq")
MASTER = "master_param"
_BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16}

State = dict[str, Any]


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The values that are here: of a DTensor its shard, in place."""
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def check(parameter: torch.Tensor) -> None:
    if nn.parameter.is_lazy(parameter):
        raise mismatch("params", "tensors with values", "those of a lazy module, which has seen no batch",
                       "run one batch through the model first")
    if parameter.layout != torch.strided:
        raise mismatch("params", "dense tensors", parameter.layout)
    if parameter.dtype not in DTYPES:
        raise mismatch("params", "float32 or bfloat16", str(parameter.dtype))
    if parameter.device.type == "meta":
        raise mismatch("params", "tensors with values", "one on the device meta", "materialise the model first")
    placements = getattr(parameter, "placements", ())
    if any(placement.is_partial() for placement in placements):
        raise mismatch("params", "shards or replicas", placements)


def needs_master(parameter: torch.Tensor, apart: bool) -> bool:
    """It is not float32 in the order of its indices where it is updated, which may be apart from where it lies."""
    return apart or parameter.dtype != torch.float32 or not local(parameter).is_contiguous()


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
    """Makes the state of parameters that have none, but for `step`. `moments`: their type."""

    def __init__(self, moments: torch.dtype) -> None:
        self.moments = moments

    def bytes_on_device(self, parameter: torch.Tensor) -> int:
        """The bytes of a value's state there, if it is resident."""
        return 2 * self.moments.itemsize + (4 if needs_master(parameter, apart=False) else 0)

    def on_device(self, parameter: torch.Tensor) -> State:
        here = local(parameter).detach()
        state = {name: as_of(parameter, torch.zeros(here.shape, dtype=self.moments, device=here.device)) for name in MOMENTS}
        if needs_master(parameter, apart=False):
            state[MASTER] = as_of(parameter, here.to(torch.float32, memory_format=torch.contiguous_format, copy=True))
        return state

    def on_host(self, parameters: Sequence[torch.Tensor], apart: bool) -> list[State]:
        """In arrays of one kind each. All parameters are of one device; `apart`: which is not the host."""
        if not parameters:
            return []
        pinned = parameters[0].device.type == "cuda"
        states: list[State] = [{} for _ in parameters]
        shapes = [local(parameter).shape for parameter in parameters]
        for place, name in enumerate(MOMENTS, 1):
            for parameter, state, values in zip(parameters, states, slices(shapes, self.moments, pinned, place)):
                state[name] = as_of(parameter, values)
        mastered = [i for i, parameter in enumerate(parameters) if needs_master(parameter, apart)]
        masters = slices([shapes[i] for i in mastered], torch.float32, pinned, 3)
        for i, values in zip(mastered, masters):
            states[i][MASTER] = as_of(parameters[i], values.copy_(local(parameters[i]).detach()))
        return states


class Placed:
    """The tensors of one parameter's state, as StateMaker has made them. They stay the same, whatever a script does to
    `state`: what it puts there is copied into them, and a master is known to a run by its tensor."""

    def __init__(self, parameter: torch.Tensor, tensors: State) -> None:
        here = local(parameter)
        self.shape, self.device = here.shape, here.device
        self.tensors: State = {}  # as they are in `state`
        self.values: dict[str, torch.Tensor] = {}  # what is here of them
        self._looks: list[tuple[str, torch.Tensor, int]] = []  # where they lie, of those that say so
        for name, tensor in tensors.items():
            self._add(name, tensor)

    def _add(self, name: str, tensor: torch.Tensor) -> None:
        self.tensors[name] = tensor
        self.values[name] = values = local(tensor).detach()
        self._looks.append((name, tensor, 0 if hasattr(tensor, "to_local") else values.data_ptr()))

    def begin(self, state: State) -> None:
        """As before the first step, but for the master, which stays."""
        for name in MOMENTS:
            self.values[name].zero_()
        state.update(step=torch.tensor(0.0, device="cpu"), **self.tensors)

    def fits(self, parameter: torch.Tensor) -> bool:
        here = local(parameter)
        return here.shape == self.shape and here.device == self.device

    def look(self, number: int, parameter: torch.Tensor, gradient: torch.Tensor, state: State) -> None:
        """Before each step, so that nothing is ever written by another tensor's size. Raises ConfigError."""
        here = local(parameter)
        if "step" not in state:
            raise mismatch(f"params[{number}]: state", "step and moments of an AdamW", f"only {', '.join(map(str, state))}")
        if here.shape != self.shape or here.device != self.device or here.dtype not in DTYPES:
            raise mismatch(f"params[{number}]", f"{list(self.shape)} on {self.device}, float32 or bfloat16, as its state is",
                           f"{list(here.shape)} on {here.device}, {here.dtype}",
                           "after such a change make the optimizer anew, or delete its state[parameter]")
        if gradient.layout != torch.strided or gradient.dtype not in DTYPES:
            raise mismatch(f"params[{number}]: gradient", "dense float32 or bfloat16", f"{gradient.layout} {gradient.dtype}")
        if gradient.shape != self.shape or gradient.device != self.device:
            raise mismatch(f"params[{number}]: gradient", f"{list(self.shape)} on {self.device}",
                           f"{list(gradient.shape)} on {gradient.device}")
        for name, tensor, address in self._looks:
            if state.get(name) is not tensor or (address and tensor.data_ptr() != address):
                self._take(f"params[{number}]", name, state)
        if MASTER not in self.tensors and needs_master(parameter, apart=False):
            master = slices([self.shape], torch.float32, False, 3)[0] if here.device.type == "cpu" else torch.empty(
                self.shape, dtype=torch.float32, device=here.device)
            self._add(MASTER, as_of(parameter, master.copy_(here.detach())))
            state[MASTER] = self.tensors[MASTER]

    def _take(self, where: str, name: str, state: State) -> None:
        """The script has another tensor in the place of ours, or other memory in ours."""
        check_values(f"{where}: state", name, self.shape, state)
        self.values[name].copy_(local(state[name]).detach())
        if state[name] is self.tensors[name]:
            state[name].data = self.values[name]
        state[name] = self.tensors[name]

    def load(self, parameter: torch.Tensor, state: State, saved: State) -> None:
        """Copies the values of a saved state, which was checked."""
        for name, values in self.values.items():
            there = local(saved[name] if name in saved else parameter).detach()
            if there.data_ptr() != values.data_ptr() or there.dtype != values.dtype:
                values.copy_(there)
        step = torch.as_tensor(saved["step"], dtype=torch.float32, device="cpu").clone()
        others = {name: value for name, value in saved.items() if name not in self.tensors}
        state.update({**others, **self.tensors, "step": step})

    def follow(self, parameter: torch.Tensor) -> bool:
        """Where the parameter is not its master rounded, something else has written it: the master takes its value. True: it
        has taken one."""
        master = self.values[MASTER]
        here = local(parameter).detach().to(master.device)
        written = master.to(here.dtype).view(_BITS[here.dtype]) != here.view(_BITS[here.dtype])
        if not written.any():
            return False
        torch.where(written, here, master, out=master)
        return True


def check_values(where: str, name: str, shape: torch.Size, state: State) -> None:
    """Raises ConfigError unless a state has a tensor of this name and shape."""
    if name not in state:
        raise mismatch(where, f"{name} of each parameter with state", f"only {', '.join(sorted(map(str, state)))}")
    there = local(state[name]) if isinstance(state[name], torch.Tensor) else None
    if there is None or there.shape != shape:
        raise mismatch(f"{where}: {name}", f"{tuple(shape)} on this rank",
                       type(state[name]).__name__ if there is None else tuple(there.shape),
                       "load another world's state by torch.distributed.checkpoint")


def have_shape(state: State, parameter: torch.Tensor) -> bool:
    return all(isinstance(state.get(name), torch.Tensor) and local(state[name]).shape == local(parameter).shape
               for name in MOMENTS)


def check_saved(parameter: torch.Tensor, saved: State) -> None:
    """Raises ConfigError for a saved state that the parameter cannot have. Masters are made of the parameter."""
    for name in (*MOMENTS, MASTER):
        if name != MASTER or name in saved:
            check_values("state_dict", name, local(parameter).shape, saved)
    if "step" not in saved:
        raise mismatch("state_dict", "step of each parameter with state", f"only {', '.join(sorted(map(str, saved)))}")


def say_followed(number: int) -> None:
    LOGGER.warning("params[%d] and maybe others were written by something other than their optimizer since its last step: "
                   "masters take those values (said once)", number)
