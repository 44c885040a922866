"""The parameters of one GPU whose state OffloadedAdamW keeps, by subgroups of whole tensors.

    backward   gradients of the CPU's subgroups go to the host as they are accumulated
    step       resident state: updated where it is
               the GPU's subgroups: copy in ─► update ─► copy out, on streams of their own, in two rooms that take turns
               the CPU's, from the last to the first, as backward makes their gradients, beside them
    later      updates on the CPU that were handed over, in another thread (_overlap.py)

Anything else in place of a GPU runs the same in order: tests have the CPU there.
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import torch
from torch.optim.adamw import adamw

from causeway import _library
from causeway.errors import FailedError
from causeway.torch._host_arrays import host_array, slices
from causeway.torch._host_step import HostUpdate, step_on_host
from causeway.torch._placed_state import MASTER, MOMENTS, Placed, State, StateMaker, local
from causeway.torch._rounding import round_stochastically, rounding_bits, seed_of

_MOST_K = 8  # that `auto` considers
_TRIED = 1 << 26  # values of which bandwidths are measured: no cache has them
_COLUMNS = 1021  # words, a prime: no common width of a row is a multiple
_USED_SHARE = 0.85  # of the memory that is free, by `fraction="auto"`

Group = dict[str, Any]


def contents_of(values: torch.Tensor) -> torch.Tensor:
    """Sums of a tensor's bits, on its device, that change with whatever is written there, an exchange of rows, too. One
    reading."""
    words = values.detach().reshape(-1).view(torch.int16 if values.element_size() == 2 else torch.int32)
    whole = words.numel() // _COLUMNS * _COLUMNS
    return torch.cat((words[:whole].view(-1, _COLUMNS).sum(0, dtype=torch.int64), words[whole:]))


def alike(before: Sequence[torch.Tensor], after: Sequence[torch.Tensor]) -> list[bool]:
    """Whether the two of each pair are. Waits for the device once where all are."""
    if not before or torch.equal(torch.cat(list(before)), torch.cat(list(after))):
        return [len(a) == len(b) for a, b in zip(before, after)]
    return [torch.equal(a, b) for a, b in zip(before, after)]


def weakly(method: Callable[[torch.Tensor], None]) -> Callable[[torch.Tensor], None]:
    """For a hook, which would keep the method's object and all of its tensors as long as the parameter."""
    reference = weakref.WeakMethod(method)

    def call(parameter: torch.Tensor) -> None:
        there = reference()
        if there is not None:
            there(parameter)
    return call


class Update:
    """A parameter of a step, with its state and group.

    Attributes:
        number: in all groups.
        here, gradient: what is here of the parameter and its gradient.
        step, seed: which step of its own it is, from 1 on, and the seed of its moments' rounding.
    """

    def __init__(self, number: int, parameter: torch.Tensor, placed: Placed, state: State, group: Group) -> None:
        self.number, self.parameter, self.placed, self.state, self.group = number, parameter, placed, state, group
        self.here = local(parameter)
        self.gradient = local(cast(torch.Tensor, parameter.grad))
        self.values = self.here.numel()
        self.step = self.seed = 0

    @property
    def copied(self) -> bool:
        """On the host it gets its master's values after the step, and not within its pass."""
        return MASTER in self.placed.values and not (self.here.dtype == torch.bfloat16 and self.here.is_contiguous())

    def begin(self) -> None:
        self.state["step"] += 1
        self.step = int(self.state["step"])
        self.seed = seed_of(self.step, self.number)

    def freeze(self) -> None:
        """For an update after the step: numbers as they are, and the parameter as it is written from here on."""
        numbers = {name: float(self.group[name]) for name in ("lr", "eps", "weight_decay")}
        self.group = {**numbers, "betas": tuple(map(float, self.group["betas"])), "maximize": self.group["maximize"]}
        torch.autograd.graph.increment_version(self.parameter)  # here, so that an old graph's backward says so
        self._as_left = (self.parameter._version, self.here.data_ptr())

    def check(self) -> None:
        """Raises FailedError where something else has written the parameter since `freeze`."""
        if (self.parameter._version, self.parameter.data_ptr()) != self._as_left:
            raise FailedError(f"params[{self.number}]: expected no write before its update, which was still to come, got one: "
                              "call optimizer.wait() before a script writes into parameters, or leave overlap out")

    def on_host(self, gradient: torch.Tensor, out: torch.Tensor | None, follows: bool) -> HostUpdate:
        held = self.placed.values
        return HostUpdate(held.get(MASTER, self.here), held["exp_avg"], held["exp_avg_sq"], gradient,
                          out if out is not None and out.dtype == torch.bfloat16 else None, follows, self.group, self.step,
                          self.seed)


class _Streams:
    """Streams of a GPU beside the current one; on anything else nothing runs beside, and all of this is nothing."""

    def __init__(self, device: torch.device) -> None:
        self.gpu, self._device = device.type == "cuda", device
        self.copy_in, self.copy_out = (self._new(device), self._new(device))

    def _new(self, device: torch.device) -> Any:
        return torch.cuda.Stream(device) if self.gpu else None  # type: ignore[no-untyped-call]

    def on(self, stream: Any) -> Any:
        return torch.cuda.stream(stream)  # of None: nothing

    def after(self, stream: Any) -> None:
        """`stream` goes on when what is queued on the current stream is done."""
        if self.gpu:
            stream.wait_stream(torch.cuda.current_stream(self._device))

    def now(self) -> Any:
        """An event behind what is queued on the current stream."""
        return torch.cuda.current_stream(self._device).record_event() if self.gpu else None

    def current_after(self, stream: Any) -> None:
        if self.gpu:
            torch.cuda.current_stream(self._device).wait_stream(stream)

    def event(self, stream: Any) -> Any:
        return stream.record_event() if self.gpu else None

    def wait(self, event: Any) -> None:
        """On the host."""
        if event is not None:
            event.synchronize()


class _Gradients:
    """Gradients in host memory, as backward accumulated them."""

    def __init__(self, streams: _Streams) -> None:
        self._streams = streams
        self._places: dict[torch.Tensor, torch.Tensor] = {}
        self._held: dict[torch.Tensor, tuple[int, torch.Tensor, Any]] = {}  # address, contents, event of what was brought

    def expect(self, works: Sequence[Update]) -> None:
        """Those of these parameters, and of no others, are brought from now on."""
        self._held.clear()
        kinds = {work.gradient.dtype for work in works}
        self._places = {work.parameter: place for kind in kinds for work, place in self._placed(works, kind)}

    def _placed(self, works: Sequence[Update], kind: torch.dtype) -> Iterable[tuple[Update, torch.Tensor]]:
        mine = [work for work in works if work.gradient.dtype == kind]
        return zip(mine, slices([work.gradient.shape for work in mine], kind, self._streams.gpu, 0))

    def bring(self, parameter: torch.Tensor) -> None:
        place = self._places.get(parameter)
        if parameter.grad is None or place is None:
            return
        gradient = local(parameter.grad)
        if gradient.dtype != place.dtype or gradient.shape != place.shape:  # of another autocast, or of what has grown
            place = self._places[parameter] = host_array(gradient.numel(), gradient.dtype,
                                                         self._streams.gpu).view(gradient.shape)
        self._streams.after(self._streams.copy_out)
        with self._streams.on(self._streams.copy_out):
            place.copy_(gradient, non_blocking=True)
            if self._streams.gpu:
                gradient.record_stream(self._streams.copy_out)
        self._held[parameter] = (gradient.data_ptr(), contents_of(gradient), self._streams.event(self._streams.copy_out))

    def check(self, works: Sequence[Update]) -> None:
        """Those that something has changed since they were brought, as clipping does, or a collective that autograd does not
        see, are brought again."""
        held = [work for work in works if work.parameter in self._held]
        same = alike([self._held[work.parameter][1] for work in held], [contents_of(work.gradient) for work in held])
        for work, unchanged in zip(held, same):
            if not unchanged or self._held[work.parameter][0] != work.gradient.data_ptr():
                del self._held[work.parameter]

    def begin(self, parameter: torch.Tensor) -> torch.Tensor:
        """It is on its way as it is now, to the place that is returned."""
        if parameter not in self._held:
            self.bring(parameter)
        return self._places[parameter]

    def take(self, parameter: torch.Tensor) -> torch.Tensor:
        """As it is now, or was when it was begun."""
        place = self.begin(parameter)
        self._streams.wait(self._held.pop(parameter)[2])
        return place


class _Rooms:
    """Two places in turns, each with arrays for one subgroup, which is used again when `done` of it has happened.
    `most`: values of the step's largest, so that no array is replaced while copies are on their way."""

    def __init__(self, make: Callable[[str, torch.dtype, int], torch.Tensor]) -> None:
        self._make = make
        self._arrays: list[dict[tuple[str, torch.dtype], torch.Tensor]] = [{}, {}]
        self.done: list[Any] = [None, None]
        self.most = self.turn = 0

    def take(self, turn: int, name: str, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """A tensor of each one's shape; all of one type."""
        if not like:
            return []
        counts = [values.numel() for values in like]
        arrays, key = self._arrays[turn % 2], (name, like[0].dtype)
        if key not in arrays or arrays[key].numel() < sum(counts):
            arrays[key] = self._make(name, like[0].dtype, max(self.most, sum(counts)))
        firsts = itertools.accumulate(counts, initial=0)
        return [arrays[key][first:first + values.numel()].view(values.shape) for first, values in zip(firsts, like)]


class Interleaved:
    """`fraction`: of the values, those whose state stays on the device; "auto": as many as fit."""

    def __init__(self, library: _library.Library, device: torch.device, k: int | str, subgroup: int,
                 fraction: float | str, maker: StateMaker) -> None:
        self._library, self._device, self._subgroup, self._maker = library, device, subgroup, maker
        self._streams = _Streams(device)
        self.k = -1 if k == "auto" else 0 if k == "cpu" else int(k)
        self.fraction = fraction
        self._watched: list[torch.Tensor] = []
        self._gradients = _Gradients(self._streams)
        self._expected: list[int] = []  # parameters that the CPU updated in the last step
        self._resident: set[torch.Tensor] = set()
        self._rooms = _Rooms(lambda name, dtype, count: torch.empty(count, dtype=dtype, device=device))
        self._outs = _Rooms(lambda name, dtype, count: host_array(count, dtype, self._streams.gpu, 2))
        self._given: Any = None  # what the GPU has not read yet of masters
        self._written: dict[torch.Tensor, torch.Tensor] = {}  # contents of parameters as the last step has left them

    def watch(self, parameter: torch.Tensor) -> None:
        """Brings its gradients to the host as they are accumulated. (Those of shards come when the step begins.)"""
        self._watched.append(parameter)
        parameter.register_post_accumulate_grad_hook(weakly(self._gradients.bring))  # type: ignore[no-untyped-call]

    # ---- Where state lies ----

    def new_states(self, parameters: Sequence[torch.Tensor], after_backward: bool) -> list[State]:
        """For parameters that have none, in their order: from the front on the device as long as its share lasts."""
        if self.fraction == "auto":
            self.fraction = self._that_fits() if after_backward else 0.0
        left = float(self.fraction) * sum(local(parameter).numel() for parameter in parameters)
        resident = 0
        for parameter in parameters:
            left -= local(parameter).numel()
            if left < -0.5:
                break
            resident += 1
        self._resident.difference_update(parameters)  # of another shape before
        self._resident.update(parameters[:resident])
        states = [self._maker.on_device(parameter) for parameter in parameters[:resident]]
        return states + self._maker.on_host(parameters[resident:], apart=True)

    def _that_fits(self) -> float:
        """With room for what the first forward and backward took at most, and for subgroups on their way."""
        if not self._streams.gpu or not self._watched:
            return 0.0
        torch.cuda.synchronize(self._device)
        values = sum(local(parameter).numel() for parameter in self._watched)
        needed = sum(local(parameter).numel() * self._maker.bytes_on_device(parameter) for parameter in self._watched)
        free = torch.cuda.mem_get_info(self._device)[0] + torch.cuda.memory_reserved(self._device)
        room = _USED_SHARE * (free - torch.cuda.max_memory_allocated(self._device))
        if needed <= room:
            return 1.0
        return max(0.0, (room - 2 * 12 * min(self._subgroup, values)) / needed)

    def _subgroups(self, works: list[Update]) -> Iterator[list[Update]]:
        current: list[Update] = []
        for work in works:
            if current and sum(held.values for held in current) + work.values > self._subgroup:
                yield current
                current = []
            current.append(work)
        if current:
            yield current

    # ---- A step ----

    def step(self, works: list[Update], hidden: Callable[[list[Update]], list[list[Update]]]
             ) -> tuple[list[int], list[list[Update]]]:
        """The numbers of those whose masters have followed them; and, of those on the host, what `hidden` leaves for later."""
        self._streams.wait(self._given)
        followed = self._follow(works)
        resident = [work for work in works if work.parameter in self._resident]
        hosted = [work for work in works if work.parameter not in self._resident]
        late = hidden(hosted)
        is_late = {work.parameter for unit in late for work in unit}
        hosted = [work for work in hosted if work.parameter not in is_late]
        if hosted and self.k < 0:
            self.k = measured_k(self._library, self._device)
        subgroups = list(self._subgroups(hosted))
        on_device = [group for i, group in enumerate(subgroups) if self.k > 0 and i % self.k == 0]
        on_cpu = [group for i, group in enumerate(subgroups) if self.k == 0 or i % self.k]
        later = [group for unit in late for group in self._subgroups(unit)]
        for rooms, groups in ((self._rooms, on_device), (self._outs, on_cpu + later)):
            rooms.most = max((sum(work.values for work in group) for group in groups), default=0)
        expected = list(itertools.chain.from_iterable(on_cpu + later))
        if [id(work.parameter) for work in expected] != self._expected:
            self._gradients.expect(expected)
            self._expected = [id(work.parameter) for work in expected]
        self._gradients.check(expected)
        for group in self._subgroups(resident):
            self._update(group, [work.placed.values for work in group])
        for turn, group in enumerate(on_device):
            self._step_on_device(group, turn)
        for turn, group in enumerate(reversed(on_cpu)):
            self._step_on_cpu(group, turn)
        self._streams.current_after(self._streams.copy_in)
        self._given = self._streams.event(self._streams.copy_in)
        self._note(work for work in works if work.parameter not in is_late)
        self._streams.wait(self._streams.event(self._streams.copy_out))  # state on the host is whole when step returns
        return followed, late

    def _note(self, works: Iterable[Update]) -> None:
        self._written.update({work.parameter: contents_of(work.here) for work in works if MASTER in work.placed.values})

    def hand_over(self, works: list[Update], with_nan: bool) -> Any:
        """Gradients are on their way to the host, and what is queued on the current stream from here on comes behind that. For
        step_late. `with_nan`: in the parameters' place until then."""
        for work in works:
            work.gradient = self._gradients.begin(work.parameter)  # that on the device may go
            work.freeze()
            if with_nan:
                work.here.data.fill_(float("nan"))
        self._streams.current_after(self._streams.copy_out)
        return self._streams.now()

    @torch.no_grad()
    def step_late(self, works: list[Update], begun: Any) -> Any:
        """In another thread, one call at a time. Returns an event behind all that it has queued."""
        try:
            for group in self._subgroups(works):
                self._outs.turn += 1
                self._step_on_cpu(group, self._outs.turn, begun, True)
            with self._streams.on(self._streams.copy_in):
                self._note(works)
        except BaseException:
            self._streams.wait(self._streams.event(self._streams.copy_in))  # of what is on its way
            raise
        self._given = self._streams.event(self._streams.copy_in)
        return self._given

    def forget(self) -> None:
        """Masters were loaded: whether they are what is in the parameters is not known."""
        self._written.clear()

    def _follow(self, works: list[Update]) -> list[int]:
        """Masters follow parameters that something else has written since the last step. The values of that step
        are known by their contents; the parameter itself crosses the bus only where they differ."""
        mastered = [work for work in works if MASTER in work.placed.values]
        known = [work for work in mastered if work.parameter in self._written]
        same = alike([self._written[work.parameter] for work in known], [contents_of(work.here) for work in known])
        kept = {work.parameter for work, unchanged in zip(known, same) if unchanged}
        return [work.number for work in mastered if work.parameter not in kept and work.placed.follow(work.parameter)]

    def _update(self, works: list[Update], arrays: list[dict[str, torch.Tensor]]) -> None:
        """By PyTorch's own update, where the arrays are."""
        for work, held in zip(works, arrays):
            first, second = (held[name].float() for name in MOMENTS)
            master = held.get(MASTER, work.here)
            group = work.group
            adamw([master], [work.gradient.to(torch.float32)], [first], [second], [], [work.state["step"] - 1],
                  foreach=self._streams.gpu, capturable=False, differentiable=False, fused=False, amsgrad=False,
                  beta1=float(group["betas"][0]), beta2=float(group["betas"][1]), lr=float(group["lr"]),
                  weight_decay=float(group["weight_decay"]), eps=float(group["eps"]), maximize=group["maximize"])
            if self._maker.moments == torch.bfloat16:
                bits = rounding_bits(work.seed, first.numel(), first.device).view(first.shape)
                held["exp_avg"].copy_(round_stochastically(first, bits & 0xFFFF))
                held["exp_avg_sq"].copy_(round_stochastically(second, bits >> 16 & 0xFFFF))
            if MASTER in held:
                work.here.copy_(master)

    def _step_on_device(self, works: list[Update], turn: int) -> None:
        held = [work.placed.values for work in works]
        here: list[dict[str, torch.Tensor]] = [{} for _ in works]
        for name in (*MOMENTS, MASTER):
            for copies, place in zip(here, self._rooms.take(turn, name, [arrays[name] for arrays in held])):
                copies[name] = place
        done = self._rooms.done[turn % 2]
        if done is not None:
            self._streams.copy_in.wait_event(done)
        self._streams.after(self._streams.copy_in)
        with self._streams.on(self._streams.copy_in):
            for arrays, copies in zip(held, here):
                for name, place in copies.items():
                    place.copy_(arrays[name], non_blocking=True)
        self._streams.current_after(self._streams.copy_in)
        self._update(works, here)
        self._streams.after(self._streams.copy_out)
        with self._streams.on(self._streams.copy_out):
            for arrays, copies in zip(held, here):
                for name, place in copies.items():
                    arrays[name].copy_(place, non_blocking=True)
        self._rooms.done[turn % 2] = self._streams.event(self._streams.copy_out)

    def _step_on_cpu(self, works: list[Update], turn: int, begun: Any = None, late: bool = False) -> None:
        """A float32 parameter gets its master's values, one of bfloat16 those that the pass over memory has rounded."""
        self._streams.wait(self._outs.done[turn % 2])
        narrow = [work.here for work in works if work.here.dtype == torch.bfloat16]
        outs = iter(self._outs.take(turn, "out", narrow))
        placed = [next(outs) if work.here.dtype == torch.bfloat16 else work.placed.values[MASTER] for work in works]
        step_on_host(self._library, [work.on_host(self._gradients.take(work.parameter), out, False)
                                     for work, out in zip(works, placed)], beside=late)
        if not late:
            self._streams.after(self._streams.copy_in)  # backward may still read the parameters
        elif begun is not None:
            self._streams.copy_in.wait_event(begun)
        for work in works if late else ():
            work.check()
        with self._streams.on(self._streams.copy_in):
            for work, out in zip(works, placed):
                (work.here.data if late else work.here).copy_(out, non_blocking=True)
                if late and self._streams.gpu:
                    work.here.record_stream(self._streams.copy_in)
        self._outs.done[turn % 2] = self._streams.event(self._streams.copy_in)


def _seconds(work: Callable[[], Any], device: torch.device) -> float:
    best = float("inf")
    for _ in range(3):
        begin = time.monotonic()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.monotonic() - begin)
    return best


def measured_k(library: _library.Library, device: torch.device, values: int = _TRIED) -> int:
    """The k of least predicted time, from measured bandwidths of bus and CPU: offload/subgroup_plan.h without the term of
    host memory, which the CPU's own rate has in it."""
    pinned = device.type == "cuda"
    host = host_array(values, torch.float32, pinned)
    there = host.to(device)
    group = {"lr": 0.0, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "maximize": False}
    parameter, first, second, gradient = (host_array(values, torch.float32, False, place) for place in range(4))
    gradient.fill_(1)
    to_device = _seconds(lambda: there.copy_(host, non_blocking=True), device) / (4 * values)
    to_host = _seconds(lambda: host.copy_(there, non_blocking=True), device) / (4 * values)
    on_cpu = _seconds(lambda: step_on_host(library, [HostUpdate(parameter, first, second, gradient, None, False, group, 1, 0)]),
                      torch.device("cpu")) / values

    def predicted(k: int) -> float:
        share = 1 / k
        return max((12 * share + 2 * (1 - share)) * to_device, (12 * share + 4 * (1 - share)) * to_host,
                   (1 - share) * on_cpu)

    return min(range(1, _MOST_K + 1), key=predicted)
