"""AdamW whose state lies in host memory: a torch optimizer, for parameters on the CPU and on a GPU.

    optimizer = causeway.OffloadedAdamW(model.parameters(), lr=3e-4)

On the CPU a step is one pass over memory, on all cores. On a GPU masters and moments lie in pinned host memory, in
subgroups of whole tensors; every k-th subgroup is updated on the GPU, its state coming and going beside the CPU's share of
the work (Deep Optimizer States, arXiv 2410.21316), and `fraction` of the state stays there (_interleaved.py).

`state` and `state_dict()` are torch.optim.AdamW's: `step`, `exp_avg`, `exp_avg_sq`, so that either loads the other's.
Where the parameter itself is not float32 where it is updated, `master_param` is beside them: pass it to DiLoCo, as
`params=optimizer.masters(model.named_parameters())`. With DTensors (fully_shard) each rank has its shard's state, as DTensors:
torch.distributed.checkpoint saves and loads it for any number of ranks. docs/offload.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from causeway import _library
from causeway.errors import mismatch
from causeway.torch._host_step import HostUpdate, step_on_host
from causeway.torch._interleaved import Interleaved, Update
from causeway.torch._placed_state import MASTER, State, StateMaker, check, forget, local, take
from causeway.torch._rounding import seed_of

_MOMENT_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class OffloadedAdamW(torch.optim.Optimizer):
    """Arguments as torch.optim.AdamW's, and on a GPU:

    `fraction`: of the state, what stays on the GPU, 0 to 1; "auto": what fits beside the first forward and backward.
    `k`: every k-th subgroup of the others is updated on the GPU, "cpu" none, "auto" by measured bandwidths.
    `subgroup`: values of one, of which two are on the GPU at a time.

    `moments`: "bfloat16" rounds both moments stochastically, anywhere: 4 bytes of a parameter instead of 8.

    Raises ConfigError for other arguments, and for parameters that are not float32 or bfloat16, or not contiguous. One
    thread.
    """

    def __init__(self, params: Any, lr: float | torch.Tensor = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 1e-2, *, fraction: float | str = 0.0, k: int | str = "auto",
                 moments: str = "float32", subgroup: int = 100_000_000) -> None:
        _check_hyperparameters(lr, betas, eps, weight_decay)
        if not (k in ("auto", "cpu") or (isinstance(k, int) and k >= 1)):
            raise mismatch("k", '"auto", "cpu" or an integer from 1 on', repr(k))
        if not (fraction == "auto" or (isinstance(fraction, (int, float)) and 0 <= fraction <= 1)):
            raise mismatch("fraction", '"auto" or a number from 0 to 1', repr(fraction))
        if moments not in _MOMENT_TYPES:
            raise mismatch("moments", " or ".join(f'"{name}"' for name in _MOMENT_TYPES), repr(moments))
        if not isinstance(subgroup, int) or subgroup < 1:
            raise mismatch("subgroup", "1 or more values", repr(subgroup))
        self._library = _library.load()
        self._maker = StateMaker(_MOMENT_TYPES[moments])
        self._interleave = (k, subgroup, fraction)
        self._interleaved: dict[torch.device, Interleaved] = {}
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": False,
                                  "maximize": False, "foreach": None, "capturable": False, "differentiable": False,
                                  "fused": None, "decoupled_weight_decay": True})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        for parameter in self.param_groups[-1]["params"]:
            check(parameter)
            if not self._lies_on_host(parameter):
                self._of(parameter.device).watch(parameter)
            elif self._interleave[2] not in (0, "auto"):
                raise mismatch("fraction", "0 or auto with parameters on the CPU, which has no other place for their state",
                               repr(self._interleave[2]))

    def _lies_on_host(self, parameter: torch.Tensor) -> bool:
        return parameter.device.type == "cpu"

    def _of(self, device: torch.device) -> Interleaved:
        if device not in self._interleaved:
            self._interleaved[device] = Interleaved(self._library, device, *self._interleave, self._maker)
        return self._interleaved[device]

    def _make_states(self, parameters: Sequence[torch.Tensor], after_backward: bool = False) -> None:
        """For those that have none."""
        new = [parameter for parameter in parameters if not self.state[parameter]]
        for device in dict.fromkeys(parameter.device for parameter in new):
            here = [parameter for parameter in new if parameter.device == device]
            states = (self._maker.on_host(here, apart=False) if self._lies_on_host(here[0])
                      else self._of(device).new_states(here, after_backward))
            for parameter, state in zip(here, states):
                self.state[parameter].update(state)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of every parameter that has a gradient; done when it returns, on the CPU."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        numbered = list(enumerate((parameter, group) for group in self.param_groups for parameter in group["params"]))
        self._make_states([parameter for _, (parameter, _) in numbered if parameter.grad is not None], True)
        on_host: list[Update] = []
        elsewhere: dict[torch.device, list[Update]] = {}
        for number, (parameter, group) in numbered:
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            state["step"] += 1
            update = Update(parameter, state, group, seed_of(int(state["step"]), number))
            (on_host if self._lies_on_host(parameter) else elsewhere.setdefault(parameter.device, [])).append(update)
        for device, updates in elsewhere.items():
            self._of(device).step(updates)
        step_on_host(self._library, [HostUpdate(update.parameter, update.state, update.group, update.seed, update.gradient,
                                                local(update.parameter)) for update in on_host])
        return loss

    def masters(self, named: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """The trained tensors by the parameters' names: the float32 master, or the parameter where it has none. For
        DiLoCo's `params`, before the first step; they stay the same tensors. With `fraction="auto"` none of the state stays
        on the GPU then, because nothing is known of the first backward."""
        mine = set(itertools.chain.from_iterable(group["params"] for group in self.param_groups))
        trained = {name: parameter for name, parameter in named if parameter in mine and parameter.requires_grad}
        self._make_states(list(trained.values()))
        return {name: self.state[parameter].get(MASTER, parameter) for name, parameter in trained.items()}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Also takes the state of a torch.optim.AdamW. Masters that it lacks are made from the parameters. Values are
        copied into the tensors that are there."""
        held = self.state
        super().load_state_dict({**state_dict, "state": {}})  # the groups; of state the base class would change the types
        self.state = held
        numbers = itertools.chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        parameters = itertools.chain.from_iterable(group["params"] for group in self.param_groups)
        saved: dict[torch.Tensor, State] = {parameter: state_dict["state"][number] for number, parameter
                                            in zip(numbers, parameters) if state_dict["state"].get(number)}
        self._make_states(list(saved))
        for parameter, state in self.state.items():
            take(parameter, state, saved[parameter]) if parameter in saved else forget(state)


def _check_hyperparameters(lr: Any, betas: Any, eps: Any, weight_decay: Any) -> None:
    for name, value in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)):
        if not (isinstance(value, (int, float, torch.Tensor)) and 0 <= float(value) < math.inf):
            raise mismatch(name, "a number of 0 or more", repr(value))
    if not (isinstance(betas, Sequence) and len(betas) == 2
            and all(isinstance(beta, (int, float)) and 0 <= beta < 1 for beta in betas)):
        raise mismatch("betas", "two numbers from 0 to below 1", repr(betas))
