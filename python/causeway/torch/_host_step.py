"""AdamW of tensors in host memory: one pass over memory, on all cores (causeway_adamw_step of causeway.h)."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import torch

from causeway import _library
from causeway.errors import mismatch
from causeway.torch._placed_state import DTYPES, MASTER, State, local


class HostUpdate(NamedTuple):
    """`out` gets the parameter in its own type, if that is bfloat16. `seed`: of the rounding of bfloat16 moments."""

    parameter: torch.Tensor
    state: State
    group: dict[str, Any]
    seed: int
    gradient: torch.Tensor
    out: torch.Tensor


def step_on_host(library: _library.Library, works: list[HostUpdate]) -> None:
    tensors = (_library.AdamWTensor * len(works))()
    size = ctypes.sizeof(_library.AdamWTensor)
    kept: list[torch.Tensor] = []  # until the call is over
    for tensor, work in zip(tensors, works):
        gradient, group, state = work.gradient, work.group, work.state
        if gradient.layout != torch.strided or gradient.dtype not in DTYPES:
            raise mismatch("gradient", "dense float32 or bfloat16", f"{gradient.layout} {gradient.dtype}")
        gradient = gradient.contiguous()
        kept.append(gradient)
        first, second = local(state["exp_avg"]), local(state["exp_avg_sq"])
        tensor.struct_size = size
        tensor.gradient_dtype = DTYPES[gradient.dtype]
        tensor.moment_dtype = DTYPES[first.dtype]
        tensor.seed = work.seed
        tensor.count = first.numel()
        tensor.parameters = local(state.get(MASTER, work.parameter)).data_ptr()
        tensor.first_moment, tensor.second_moment = first.data_ptr(), second.data_ptr()
        tensor.gradient = gradient.data_ptr()
        tensor.bfloat16_copy = work.out.data_ptr() if work.out.dtype == torch.bfloat16 else None
        tensor.lr = float(group["lr"])
        tensor.beta1, tensor.beta2 = group["betas"]
        tensor.epsilon = group["eps"]
        tensor.weight_decay = group["weight_decay"]
        tensor.step = int(state["step"])
    library.check(library.adamw_step(tensors, len(works)))
