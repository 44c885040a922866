"""AdamW whose state lies in host memory: a torch optimizer, for parameters on the CPU and on a GPU.

    optimizer = causeway.OffloadedAdamW(model.parameters(), lr=3e-4)

On the CPU a step is one pass over memory, on all cores. On a GPU masters and moments lie in pinned host memory, in
subgroups of whole tensors; every k-th subgroup is updated on the GPU, its state coming and going beside the CPU's share of
the work (Deep Optimizer States, arXiv 2410.21316), and `fraction` of the state stays there (_interleaved.py).

It is a torch.optim.AdamW: `state` and `state_dict()` are `step`, `exp_avg`, `exp_avg_sq`, so that either loads the
other's. Where the parameter itself is not float32 and contiguous where it is updated, `master_param` is beside them, and
follows what a script writes into the parameter. With DTensors (fully_shard) each rank has its shard's state, as DTensors:
torch.distributed.checkpoint saves and loads it for any number of ranks. docs/offload.md.
"""

from __future__ import annotations

import collections
import itertools
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from causeway import _library, names
from causeway._log import LOGGER, tell
from causeway._memory import available_bytes
from causeway.errors import mismatch
from causeway.torch import _capture
from causeway.torch._host_step import HostUpdate, step_on_host
from causeway.torch._interleaved import Interleaved, Update
from causeway.torch._overlap import Overlap, WatchedGroup
from causeway.torch._placed_state import MASTER, Placed, State, StateMaker, check, check_saved, have_shape, say_followed
from causeway.torch._rounding import seed_of

_MOMENT_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class OffloadedAdamW(torch.optim.AdamW):
    """Arguments as torch.optim.AdamW's (`foreach` and `fused` choose nothing here), and on a GPU:

    `fraction`: of the state, what stays on the GPU, 0 to 1; "auto": what fits beside the first forward and backward.
    `k`: every k-th subgroup of the others is updated on the GPU, "cpu" none, "auto" by measured bandwidths.
    `subgroup`: values of one, of which two are on the GPU at a time.

    `moments`: "bfloat16" rounds both moments stochastically, anywhere: 4 bytes of a parameter instead of 8.
    `overlap`: the model: the CPU's updates of its layers go on behind the next forward, each until its layer is read; with the
    same bits (_overlap.py). Scripts that read or write parameters by other ways than the model call `wait()` before.

    Raises ConfigError for other arguments, `amsgrad`, `capturable`, `differentiable`, and for parameters that are not
    float32 or bfloat16. One thread.
    """

    _step_supports_amp_scaling = False  # a GradScaler divides the gradients itself, also where `fused` was asked for

    def __init__(self, params: Any, lr: float | torch.Tensor = 1e-3, betas: tuple[Any, Any] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 1e-2, amsgrad: bool = False, *, maximize: bool = False,
                 foreach: bool | None = None, capturable: bool = False, differentiable: bool = False,
                 fused: bool | None = None, fraction: float | str = 0.0, k: int | str = "auto",
                 moments: str = "float32", subgroup: int = 100_000_000, overlap: torch.nn.Module | None = None) -> None:
        _check_hyperparameters(lr, betas, eps, weight_decay)
        if not (k in ("auto", "cpu") or (isinstance(k, int) and k >= 1)):
            raise mismatch("k", '"auto", "cpu" or an integer from 1 on', repr(k))
        if not (fraction == "auto" or (isinstance(fraction, (int, float)) and 0 <= fraction <= 1)):
            raise mismatch("fraction", '"auto" or a number from 0 to 1', repr(fraction))
        if moments not in _MOMENT_TYPES:
            raise mismatch("moments", " or ".join(f'"{name}"' for name in _MOMENT_TYPES), repr(moments))
        if not isinstance(subgroup, int) or subgroup < 1:
            raise mismatch("subgroup", "1 or more values", repr(subgroup))
        _check_group({"amsgrad": amsgrad, "capturable": capturable, "differentiable": differentiable})
        if overlap is not None and isinstance(k, int):
            raise mismatch("k", '"auto" or "cpu" with overlap, whose updates are all on the CPU', repr(k))
        self._prepare({"fraction": fraction, "k": k if overlap is None else "cpu", "moments": moments, "subgroup": subgroup},
                      overlap)
        betas = tuple(float(beta) if isinstance(beta, int) else beta for beta in betas)  # type: ignore[assignment]
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize, foreach=foreach,
                         capturable=capturable, differentiable=differentiable, fused=fused)
        self._step_supports_amp_scaling = False

    def _prepare(self, settings: dict[str, Any], overlap: torch.nn.Module | None = None) -> None:
        """Makes all that is in no pickle."""
        self._settings = settings
        self._library = _library.load()
        self._maker = StateMaker(_MOMENT_TYPES[settings["moments"]])
        self._interleaved: dict[torch.device, Interleaved] = {}
        self._placed: dict[torch.Tensor, Placed] = {}
        self._pointers: list[int] = []  # of the parameters of the last step
        self._loading: Mapping[str, Any] | None = None
        self._said_followed = self._said_where = False
        self._clears = 0  # a thread
        self._overlap = None if overlap is None else Overlap(overlap, self._of)

    def wait(self) -> None:
        """Until all parameters are updated, also on the host. Only `overlap` leaves some behind `step`. Raises FailedError for
        what a late update has come across."""
        if self._overlap is not None and self._clears != threading.get_ident():
            self._overlap.wait()

    @property
    def state(self) -> collections.defaultdict[torch.Tensor, Any]:
        """As torch's; reading it waits, as taking a group's parameters does: so state_dict, pickles and masters do."""
        self.wait()
        return vars(self)["state"]  # type: ignore[no-any-return]

    @state.setter
    def state(self, state: collections.defaultdict[torch.Tensor, Any]) -> None:
        vars(self)["state"] = state

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._clears = threading.get_ident()  # in this thread no value is read
        try:
            super().zero_grad(set_to_none)
        finally:
            self._clears = 0

    def __repr__(self) -> str:
        return f"{super().__repr__()}\n{self.where()}"

    def where(self) -> str:
        """A line: what of the state lies where, and the memory that is free there."""
        held: dict[str, int] = {}
        values = 0
        for placed in self._placed.values():
            values += placed.shape.numel()
            for tensor in placed.values.values():
                name = "the host" if tensor.device.type == "cpu" else str(tensor.device)
                held[name] = held.get(name, 0) + tensor.nbytes
        free = {"the host": available_bytes()}
        free |= {str(device): torch.cuda.mem_get_info(device)[0] for device in self._interleaved if device.type == "cuda"}
        sides = [f"{held.get(side, 0) / 1e9:.2f} GB on {side}{'' if room is None else f', where {room / 1e9:.1f} GB are free'}"
                 for side, room in free.items()]
        late = f"; of at most {self._overlap.values() / 1e6:,.1f} M values updates are hidden" if self._overlap else ""
        return f"OffloadedAdamW: state of {values / 1e6:,.1f} M values: {'; '.join(sides)}{late}"

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        try:
            _check_group(self.param_groups[-1])
            for parameter in self.param_groups[-1]["params"]:
                check(parameter)
                if self._lies_on_host(parameter) and self._settings["fraction"] not in (0, "auto"):
                    raise mismatch("fraction", "0 or auto with parameters on the CPU, which has no other place for their "
                                   "state", repr(self._settings["fraction"]))
        except BaseException:
            self.param_groups.pop()
            raise
        self._watch(self.param_groups[-1]["params"])
        self._watch_groups()

    def _watch_groups(self) -> None:
        if self._overlap is not None:
            self.param_groups[:] = [group if isinstance(group, WatchedGroup) else WatchedGroup(group, self.wait)
                                    for group in self.param_groups]  # those that a script holds stay the same

    def _watch(self, parameters: Iterable[torch.Tensor]) -> None:
        for parameter in parameters:
            if self._overlap is not None:  # ahead of what brings the gradient to the host
                self._overlap.watch(parameter)
            if not self._lies_on_host(parameter):
                self._of(parameter.device).watch(parameter)

    def _lies_on_host(self, parameter: torch.Tensor) -> bool:
        return parameter.device.type == "cpu"

    def _of(self, device: torch.device) -> Interleaved:
        if device not in self._interleaved:
            settings = self._settings
            self._interleaved[device] = Interleaved(self._library, device, settings["k"], settings["subgroup"],
                                                    settings["fraction"], self._maker)
        return self._interleaved[device]

    def _place(self, parameters: Sequence[torch.Tensor], after_backward: bool = False) -> None:
        """Makes the tensors of the state of those that have none, or those of another shape."""
        new = [parameter for parameter in parameters
               if (placed := self._placed.get(parameter)) is None or not placed.fits(parameter)]
        if new and self._overlap is not None:
            places = self._overlap.places()
            new.sort(key=lambda parameter: places[parameter].unit.number if parameter in places else -1)
        for device in dict.fromkeys(parameter.device for parameter in new):
            here = [parameter for parameter in new if parameter.device == device]
            states = (self._maker.on_host(here, apart=False) if self._lies_on_host(here[0])
                      else self._of(device).new_states(here, after_backward))
            for parameter, tensors in zip(here, states):
                self._placed[parameter] = Placed(parameter, tensors)

    def _make_states(self, parameters: Sequence[torch.Tensor], after_backward: bool = False) -> None:
        """For those that have none; a master stays where a script has cleared `state`."""
        new = [parameter for parameter in parameters if not self.state[parameter]]
        for parameter in new:
            check(parameter)
        self._place(new, after_backward)
        for parameter in new:
            self._placed[parameter].begin(self.state[parameter])

    def _adopt(self, parameter: torch.Tensor) -> None:
        """A state that the script has made for a parameter that had none, or has grown together with it."""
        placed, state = self._placed.get(parameter), self.state[parameter]
        if placed is None or (not placed.fits(parameter) and have_shape(state, parameter)):
            saved = {name: value for name, value in state.items() if name != MASTER}
            check_saved(parameter, saved)
            self._place([parameter])
            self._placed[parameter].load(parameter, state, saved)

    @torch._disable_dynamo  # type: ignore[attr-defined]
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of every parameter that has a gradient; done when it returns, on the CPU. Raises ConfigError, before
        any value is changed, where a parameter, its gradient or its state is not what a step can be made of."""
        _capture.refuse()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._overlap is not None:
            self._overlap.begin()
        for group in self.param_groups:
            _check_group(group)
        every = ((parameter, group) for group in self.param_groups for parameter in group["params"])
        due = [(number, parameter, group) for number, (parameter, group) in enumerate(every) if parameter.grad is not None]
        self._make_states([parameter for _, parameter, _ in due], True)
        on_host: list[Update] = []
        elsewhere: dict[torch.device, list[Update]] = {}
        for number, parameter, group in due:
            self._adopt(parameter)
            update = Update(number, parameter, self._placed[parameter], self.state[parameter], group)
            (on_host if self._lies_on_host(parameter) else elsewhere.setdefault(parameter.device, [])).append(update)
        works = [*on_host, *itertools.chain.from_iterable(elsewhere.values())]
        for work in works:
            work.placed.look(work.number, work.parameter, work.gradient, work.state)
        self._check_apart(works)
        for work in works:
            work.begin()
        followed, late = self._step_on_host(on_host), list[list[Update]]()
        try:
            for device, works in elsewhere.items():
                numbers, hidden = self._of(device).step(works, self._overlap.hidden if self._overlap else lambda _: [])
                followed, late = followed + numbers, late + hidden
        finally:
            if self._overlap is not None:
                self._overlap.hand_over(late)
        if followed and not self._said_followed:
            self._said_followed = True
            say_followed(followed[0])
        if not self._said_where and due:
            self._said_where = True
            (tell if elsewhere else LOGGER.debug)(self.where())
            if on_host and self._overlap is not None:
                LOGGER.warning("overlap: parameters on the CPU are updated before step() returns: nothing runs beside")
        return loss

    def _step_on_host(self, works: list[Update]) -> list[int]:
        """The numbers of those whose masters have followed them."""
        copied = [work for work in works if work.copied]
        followed = [work.number for work in copied if work.placed.follow(work.parameter)]
        done = step_on_host(self._library, [work.on_host(work.gradient, None if work.copied else work.here, True)
                                            for work in works])
        for work in copied:
            work.here.copy_(work.placed.values[MASTER])
        for work in works:
            torch.autograd.graph.increment_version(work.parameter)
        return followed + [works[at].number for at in done]

    def _check_apart(self, works: list[Update]) -> None:
        """Values of different parameters are written at once. Raises ConfigError for two that share some."""
        pointers = [work.here.data_ptr() for work in works]
        if pointers == self._pointers:
            return
        spans = sorted((str(work.here.device), pointer, pointer + work.values * work.here.element_size(), work.number)
                       for pointer, work in zip(pointers, works) if work.values and work.here.is_contiguous())
        for (device, _, end, number), (other_device, begin, _, other) in itertools.pairwise(spans):
            if device == other_device and begin < end:
                raise mismatch(f"params[{other}]", "values of its own", f"some that are also those of params[{number}]",
                               "tie them as one Parameter")
        self._pointers = pointers

    def masters(self, named: Iterable[tuple[str, torch.Tensor]],
                trained_later: Sequence[str] = ()) -> dict[str, torch.Tensor]:
        """The trained tensors by the parameters' names in the plain model: the float32 master, or the parameter where it has
        none. DiLoCo syncs them, and asks for them itself; they stay the same tensors. `trained_later`: names of parameters
        or modules that are frozen now. With `fraction="auto"` none of the state stays on the GPU then, because nothing is
        known of the first backward."""
        mine = set(itertools.chain.from_iterable(group["params"] for group in self.param_groups))
        plain = {names.plain(name): parameter for name, parameter in named if parameter in mine}
        later = [names.plain(each) for each in trained_later]
        trained = {name: parameter for name, parameter in plain.items()
                   if parameter.requires_grad or names.is_among(name, later)}
        with torch.no_grad():
            self._make_states(list(trained.values()))
            for parameter in trained.values():
                self._adopt(parameter)
        return {name: self._placed[parameter].tensors.get(MASTER, parameter) for name, parameter in trained.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Also takes the state of a torch.optim.AdamW. Masters that it lacks are made from the parameters. Values are
        copied into the tensors that are there. Raises ConfigError before anything is changed."""
        def hold(_: torch.optim.Optimizer, given: dict[str, Any]) -> dict[str, Any]:
            """Behind all other hooks: of state the base class would change the types."""
            self._loading = given
            return {**given, "state": {}}
        handle = self.register_load_state_dict_pre_hook(hold)
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
            self._loading = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_settings": self._settings}

    @torch.no_grad()
    def __setstate__(self, state: dict[str, Any]) -> None:
        """From a pickle or a copy, or, within load_state_dict, from a saved state."""
        loading = vars(self).get("_loading")
        groups = state["param_groups"]
        for group in groups:
            group["capturable"] = False  # which changes nothing that is computed
            _check_group(group)
        given = dict(state["state"])
        if loading is not None:
            numbers = itertools.chain.from_iterable(group["params"] for group in loading["param_groups"])
            of_number = dict(zip(numbers, itertools.chain.from_iterable(group["params"] for group in groups)))
            given = {of_number.get(number, number): each for number, each in loading["state"].items()}
        saved: dict[torch.Tensor, State] = {each: given.pop(each) for each in list(given)
                                            if isinstance(each, torch.Tensor) and given[each]}
        for parameter, each in saved.items():
            check(parameter)
            check_saved(parameter, each)
        if loading is None:
            self._prepare(state["_settings"])
        super().__setstate__({**state, "state": collections.defaultdict(dict, given)})
        if loading is None:
            self._watch(itertools.chain.from_iterable(group["params"] for group in groups))
        self._place(list(saved))
        for parameter, each in saved.items():
            self._placed[parameter].load(parameter, self.state[parameter], each)
        for interleaved in self._interleaved.values():
            interleaved.forget()
        self._watch_groups()


def _check_group(group: Mapping[str, Any]) -> None:
    for name in ("amsgrad", "capturable", "differentiable"):
        if group.get(name):
            raise mismatch(name, "False", repr(group[name]), "torch.optim.AdamW itself takes it")


def _check_hyperparameters(lr: Any, betas: Any, eps: Any, weight_decay: Any) -> None:
    for name, value in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)):
        if isinstance(value, torch.Tensor) and value.numel() != 1:
            raise mismatch(name, "one number", f"a tensor of shape {list(value.shape)}")
        if not (isinstance(value, (int, float, torch.Tensor)) and 0 <= float(value) < math.inf):
            raise mismatch(name, "a number of 0 or more", repr(value))
    if not (isinstance(betas, Sequence) and len(betas) == 2
            and all(isinstance(beta, (int, float)) or (isinstance(beta, torch.Tensor) and beta.numel() == 1)
                    for beta in betas) and all(0 <= float(beta) < 1 for beta in betas)):
        raise mismatch("betas", "two numbers from 0 to below 1", repr(betas))
