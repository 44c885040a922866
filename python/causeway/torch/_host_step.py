"""AdamW of tensors in host memory: one pass over memory, on all cores (causeway_adamw_step of causeway.h)."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import torch

from causeway import _library
from causeway.torch._placed_state import DTYPES


class HostUpdate(NamedTuple):
    """`trained`, float32, and two moments. `out` gets them in bfloat16; `follows`: and what something else has written
    there is taken first. `seed`: of the rounding of bfloat16 moments."""

    trained: torch.Tensor
    first: torch.Tensor
    second: torch.Tensor
    gradient: torch.Tensor
    out: torch.Tensor | None
    follows: bool
    group: dict[str, Any]
    step: int
    seed: int


def step_on_host(library: _library.Library, works: list[HostUpdate], beside: bool = False) -> list[int]:
    """The numbers of those whose masters have taken what something else had written. `beside`: other work goes on."""
    tensors = (_library.AdamWTensor * len(works))()
    followed = (ctypes.c_uint8 * len(works))()
    size, flags = ctypes.sizeof(_library.AdamWTensor), ctypes.addressof(followed)
    kept: list[torch.Tensor] = []  # until the call is over
    for number, (tensor, work) in enumerate(zip(tensors, works)):
        gradient, group = work.gradient.contiguous(), work.group
        kept.append(gradient)
        tensor.struct_size = size
        tensor.gradient_dtype = DTYPES[gradient.dtype]
        tensor.moment_dtype = DTYPES[work.first.dtype]
        tensor.seed = work.seed
        tensor.count = work.first.numel()
        tensor.parameters = work.trained.data_ptr()
        tensor.first_moment, tensor.second_moment = work.first.data_ptr(), work.second.data_ptr()
        tensor.gradient = gradient.data_ptr()
        tensor.bfloat16_copy = None if work.out is None else work.out.data_ptr()
        tensor.followed = flags + number if work.follows else None
        tensor.gradient_scale = -1.0 if group["maximize"] else 1.0
        tensor.lr = float(group["lr"])
        beta1, beta2 = group["betas"]
        tensor.beta1, tensor.beta2 = float(beta1), float(beta2)
        tensor.epsilon = float(group["eps"])
        tensor.weight_decay = float(group["weight_decay"])
        tensor.step = work.step
    library.check((library.adamw_step_beside if beside else library.adamw_step)(tensors, len(works)))
    return [number for number, flag in enumerate(followed) if flag]
