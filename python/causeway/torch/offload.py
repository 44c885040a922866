"""AdamW whose state lies in host memory: a torch optimizer, for parameters on the CPU and on a GPU.

    optimizer = causeway.OffloadedAdamW(model.parameters(), lr=3e-4, k="auto")

On the CPU a step is one pass over memory, on all cores (causeway_adamw_step of causeway.h). On a GPU masters and moments
lie in pinned host memory, in subgroups of whole tensors; every k-th subgroup is updated on the GPU, its state coming and
going beside the CPU's share of the work (Deep Optimizer States, arXiv 2410.21316):

    backward   gradients of the CPU's subgroups go to the host as they are accumulated
    step       copy in ─► update ─► copy out, of the GPU's subgroups, on streams of their own; the CPU's beside them

`state` and `state_dict()` are torch.optim.AdamW's: `step`, `exp_avg`, `exp_avg_sq`, so that either loads the other's.
Where the parameter itself is not float32 in host memory, `master_param` is beside them: pass it to DiLoCo, as
`params=optimizer.masters(model.named_parameters())` (docs/python.md).
"""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import torch
from torch.optim.adamw import adamw

from causeway import _library
from causeway.errors import mismatch

_DTYPES = {torch.float32: 0, torch.bfloat16: 1}  # causeway_dtype
_MOST_K = 8  # that `auto` considers
_TRIED = 1 << 22  # values of which bandwidths are measured

Group = dict[str, Any]
State = dict[str, Any]
# A parameter, its state and group; on the host also its gradient, and what gets the parameter in its own type.
Update = tuple[torch.Tensor, State, Group]
HostUpdate = tuple[torch.Tensor, State, Group, torch.Tensor, torch.Tensor]


class OffloadedAdamW(torch.optim.Optimizer):
    """Arguments as torch.optim.AdamW's. `k`: every k-th subgroup on the GPU, "cpu" none, "auto" by measured bandwidths;
    on the CPU it means nothing. `subgroup`: values of one, of which two are on the GPU at a time, 12 bytes each.

    Raises ConfigError for parameters that are not float32 or bfloat16, or not contiguous. One thread.
    """

    def __init__(self, params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 1e-2, *, k: int | str = "auto", subgroup: int = 100_000_000) -> None:
        if not (k in ("auto", "cpu") or (isinstance(k, int) and k >= 1)):
            raise mismatch("k", '"auto", "cpu" or an integer from 1 on', repr(k))
        if subgroup < 1:
            raise mismatch("subgroup", "1 or more values", subgroup)
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": False,
                                  "maximize": False, "foreach": None, "capturable": False, "differentiable": False,
                                  "fused": None, "decoupled_weight_decay": True})
        self._library = _library.load()
        self._given_k = k
        self._subgroup = subgroup
        self._interleaved: dict[torch.device, Interleaved] = {}
        for parameter in itertools.chain.from_iterable(group["params"] for group in self.param_groups):
            _check(parameter)
            if parameter.device.type != "cpu":
                self._of(parameter.device).watch(parameter)

    def _of(self, device: torch.device) -> Interleaved:
        if device not in self._interleaved:
            self._interleaved[device] = Interleaved(self._library, device, self._given_k, self._subgroup)
        return self._interleaved[device]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of every parameter that has a gradient; done when it returns, on the CPU."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        on_host: list[Update] = []
        elsewhere: dict[torch.device, list[Update]] = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state.update(_new_state(parameter))
                state["step"] += 1
                work = (parameter, state, group)
                if parameter.device.type == "cpu":
                    on_host.append(work)
                else:
                    elsewhere.setdefault(parameter.device, []).append(work)
        for device, works in elsewhere.items():
            self._of(device).step(works)
        if on_host:
            step_on_host(self._library, [(*work, cast(torch.Tensor, work[0].grad), work[0]) for work in on_host])
        return loss

    def masters(self, named: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """The trained tensors by the parameters' names: the float32 master, or the parameter where it has none. For
        DiLoCo's `params`, before the first step; they stay the same tensors."""
        found = {}
        for name, parameter in named:
            state = self.state[parameter]
            if not state:
                state.update(_new_state(parameter))
            found[name] = state.get("master_param", parameter)
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Also takes the state of a torch.optim.AdamW. Masters that it lacks are made from the parameters."""
        before = {parameter: state.get("master_param") for parameter, state in self.state.items()}
        super().load_state_dict(state_dict)
        for parameter, state in self.state.items():
            if not state:
                continue
            # The base class brings state to the parameter's device and type.
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = _hosted(state[name], parameter.device)
            if _needs_master(parameter):
                master = _hosted(state.get("master_param", parameter.detach()), parameter.device)
                kept = before.get(parameter)
                state["master_param"] = master if kept is None else kept.detach().copy_(master)
            state["step"] = torch.as_tensor(state["step"], dtype=torch.float32, device="cpu")


def _check(parameter: torch.Tensor) -> None:
    if parameter.dtype not in _DTYPES:
        raise mismatch("params", "float32 or bfloat16", str(parameter.dtype))
    if not parameter.is_contiguous():
        raise mismatch("params", "contiguous tensors", f"one of shape {tuple(parameter.shape)}, "
                       f"strides {parameter.stride()}")


def _needs_master(parameter: torch.Tensor) -> bool:
    return parameter.device.type != "cpu" or parameter.dtype != torch.float32


def _hosted(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """As contiguous float32 in host memory, pinned where a device's copies go there."""
    host = tensor.detach().to(device="cpu", dtype=torch.float32, copy=True).contiguous()
    return host.pin_memory() if device.type == "cuda" else host


def _new_state(parameter: torch.Tensor) -> State:
    zeros = torch.zeros(parameter.shape, dtype=torch.float32, device="cpu")
    state = {"step": torch.tensor(0.0, device="cpu"), "exp_avg": _hosted(zeros, parameter.device),
             "exp_avg_sq": _hosted(zeros, parameter.device)}
    if _needs_master(parameter):
        state["master_param"] = _hosted(parameter, parameter.device)
    return state


def step_on_host(library: _library.Library, works: list[HostUpdate]) -> None:
    """One pass over memory for all of them. A float32 `out` that is not the master is copied to afterwards."""
    tensors = (_library.AdamWTensor * len(works))()
    size = ctypes.sizeof(_library.AdamWTensor)
    kept: list[torch.Tensor] = []  # until the call is over
    for tensor, (parameter, state, group, gradient, out) in zip(tensors, works):
        if gradient.layout != torch.strided or gradient.dtype not in _DTYPES:
            raise mismatch("gradient", "dense float32 or bfloat16", f"{gradient.layout} {gradient.dtype}")
        gradient = gradient.contiguous()
        kept.append(gradient)
        master = state.get("master_param", parameter)
        beta1, beta2 = group["betas"]
        tensor.struct_size = size
        tensor.gradient_dtype = _DTYPES[gradient.dtype]
        tensor.count = parameter.numel()
        tensor.parameters = master.data_ptr()
        tensor.first_moment = state["exp_avg"].data_ptr()
        tensor.second_moment = state["exp_avg_sq"].data_ptr()
        tensor.gradient = gradient.data_ptr()
        tensor.bfloat16_copy = out.data_ptr() if out.dtype == torch.bfloat16 else None
        tensor.lr = float(group["lr"])
        tensor.beta1, tensor.beta2 = beta1, beta2
        tensor.epsilon = group["eps"]
        tensor.weight_decay = group["weight_decay"]
        tensor.step = int(state["step"])
    library.check(library.adamw_step(tensors, len(works)))
    for _, state, _, _, out in works:
        if out.dtype == torch.float32 and "master_param" in state:
            out.copy_(state["master_param"])


class _Streams:
    """Streams of a GPU beside the current one; on anything else nothing runs beside, and all of this is nothing."""

    def __init__(self, device: torch.device) -> None:
        self.gpu = device.type == "cuda"
        self.copy_in, self.copy_out = (self._new(device), self._new(device))

    def _new(self, device: torch.device) -> Any:
        return torch.cuda.Stream(device) if self.gpu else None  # type: ignore[no-untyped-call]

    def on(self, stream: Any) -> Any:
        return torch.cuda.stream(stream)  # of None: nothing

    def after(self, stream: Any, other: Any = None) -> None:
        """`stream` goes on when what is queued on `other`, or on the current stream, is done."""
        if self.gpu:
            stream.wait_stream(torch.cuda.current_stream() if other is None else other)

    def current_after(self, stream: Any) -> None:
        if self.gpu:
            torch.cuda.current_stream().wait_stream(stream)

    def event(self, stream: Any) -> Callable[[], None]:
        """A wait of the host for what is queued on it."""
        if not self.gpu:
            return lambda: None
        return cast(Callable[[], None], stream.record_event().synchronize)


class Interleaved:
    """The parameters of one device, by subgroups."""

    def __init__(self, library: _library.Library, device: torch.device, k: int | str, subgroup: int) -> None:
        self._library = library
        self._device = device
        self._given_k = k
        self._subgroup = subgroup
        self._streams = _Streams(device)
        self._k = -1 if k == "auto" else 0 if k == "cpu" else int(k)
        self._gradients: dict[torch.Tensor, tuple[torch.Tensor, int, Callable[[], None]]] = {}
        self._on_device: set[torch.Tensor] = set()  # whose gradients need not come

    def watch(self, parameter: torch.Tensor) -> None:
        """Brings its gradients to the host as they are accumulated."""
        parameter.register_post_accumulate_grad_hook(self._bring)  # type: ignore[no-untyped-call]

    def _bring(self, parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        if gradient is None or parameter in self._on_device or self._k == 1:
            return
        held = self._gradients.get(parameter)
        host = held[0] if held is not None else torch.empty(gradient.shape, dtype=gradient.dtype, device="cpu",
                                                            pin_memory=self._streams.gpu)
        self._streams.after(self._streams.copy_out)
        with self._streams.on(self._streams.copy_out):
            host.copy_(gradient, non_blocking=True)
        self._gradients[parameter] = (host, gradient._version, self._streams.event(self._streams.copy_out))

    def _gradient(self, parameter: torch.Tensor) -> torch.Tensor:
        """In host memory, as it is now: something may have clipped it since it was brought."""
        held = self._gradients.get(parameter)
        assert parameter.grad is not None
        if held is None or held[1] != parameter.grad._version:
            self._bring(parameter)
        host, _, wait = self._gradients[parameter]
        wait()
        return host

    def _subgroups(self, works: list[Update]) -> Iterator[list[Update]]:
        current: list[Update] = []
        values = 0
        for work in works:
            if current and values + work[0].numel() > self._subgroup:
                yield current
                current, values = [], 0
            current.append(work)
            values += work[0].numel()
        if current:
            yield current

    def step(self, works: list[Update]) -> None:
        if self._k < 0:
            self._k = measured_k(self._library, self._device)
        subgroups = list(self._subgroups(works))
        on_device = [i for i in range(len(subgroups)) if self._k > 0 and i % self._k == 0]
        self._on_device = {work[0] for i in on_device for work in subgroups[i]}
        for i in on_device:
            self._step_on_device(subgroups[i])
        for i, group in enumerate(subgroups):
            if i not in on_device:
                self._step_on_cpu(group)
        self._streams.current_after(self._streams.copy_in)
        wait = self._streams.event(self._streams.copy_out)
        wait()  # state on the host is whole when step returns

    def _step_on_device(self, works: list[Update]) -> None:
        names = ("master_param", "exp_avg", "exp_avg_sq")
        self._streams.after(self._streams.copy_in)
        with self._streams.on(self._streams.copy_in):
            arrays = [[state[name].to(self._device, non_blocking=True, copy=True) for name in names]
                      for _, state, _ in works]
        self._streams.current_after(self._streams.copy_in)
        for (parameter, state, group), (master, first, second) in zip(works, arrays):
            assert parameter.grad is not None
            adamw([master], [parameter.grad.to(torch.float32)], [first], [second], [],
                                    [state["step"] - 1], foreach=False, capturable=False, differentiable=False,
                                    fused=False, amsgrad=False, beta1=group["betas"][0], beta2=group["betas"][1],
                                    lr=float(group["lr"]), weight_decay=group["weight_decay"], eps=group["eps"],
                                    maximize=False)
            parameter.copy_(master)
        self._streams.after(self._streams.copy_out)
        with self._streams.on(self._streams.copy_out):
            for (_, state, _), moved in zip(works, arrays):
                for name, array in zip(names, moved):
                    state[name].copy_(array, non_blocking=True)
                    if self._streams.gpu:
                        array.record_stream(self._streams.copy_out)

    def _step_on_cpu(self, works: list[Update]) -> None:
        outs = [torch.empty(parameter.shape, dtype=parameter.dtype, device="cpu", pin_memory=self._streams.gpu)
                for parameter, _, _ in works]
        step_on_host(self._library, [(*work, self._gradient(work[0]), out) for work, out in zip(works, outs)])
        self._streams.after(self._streams.copy_in)  # backward may still read the parameters
        with self._streams.on(self._streams.copy_in):
            for (parameter, _, _), out in zip(works, outs):
                parameter.copy_(out, non_blocking=True)


def _seconds(work: Callable[[], Any], device: torch.device) -> float:
    best = float("inf")
    for _ in range(4):
        begin = time.monotonic()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.monotonic() - begin)
    return best


def measured_k(library: _library.Library, device: torch.device) -> int:
    """The k of least predicted time, from measured bandwidths of bus and CPU: offload/subgroup_plan.h without the term of
    host memory, which the CPU's own rate has in it."""
    host = torch.zeros(_TRIED, device="cpu", pin_memory=device.type == "cuda")
    there = host.to(device)
    state = {"step": torch.tensor(1.0, device="cpu"), "exp_avg": torch.zeros(_TRIED, device="cpu"),
             "exp_avg_sq": torch.zeros(_TRIED, device="cpu")}
    group = {"lr": 0.0, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}
    parameter, gradient = torch.zeros(_TRIED, device="cpu"), torch.ones(_TRIED, device="cpu")
    to_device = _seconds(lambda: there.copy_(host, non_blocking=True), device) / (4 * _TRIED)
    to_host = _seconds(lambda: host.copy_(there, non_blocking=True), device) / (4 * _TRIED)
    on_cpu = _seconds(lambda: step_on_host(library, [(parameter, state, group, gradient, parameter)]),
                      torch.device("cpu")) / _TRIED

    def predicted(k: int) -> float:
        share = 1 / k
        return max((12 * share + 2 * (1 - share)) * to_device, (12 * share + 4 * (1 - share)) * to_host,
                   (1 - share) * on_cpu)

    return min(range(1, _MOST_K + 1), key=predicted)
