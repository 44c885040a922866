"""Updates on the host that go on behind the next forward: OffloadedAdamW's `overlap=model`.

    step       all gradients are known; updates of the units are handed over, in the units' order, and step returns
    helper     unit by unit: AdamW on the host ─► the parameters on the device
    forward    taking a parameter out of a module of a unit waits for that unit first

A unit is an element of one of the model's outermost ModuleLists or Sequentials, such as a decoder layer. From a step until
they are read, its modules hold their parameters in a dictionary that notices that (_Watched), as DeepSpeed's ZeRO-3 does: a
layer may read its children as it likes, and no module has a hook, which would change the path of nn.TransformerEncoderLayer.
A parameter that is read by no way that this notices (in a compiled region, by a reference that was kept) is seen to have a
gradient and no read in the first iteration, and is updated before `step` returns from then on.
"""

from __future__ import annotations

import collections
import concurrent.futures
import os
import sys
import weakref
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from typing import Any, NamedTuple

import torch
from torch import nn

from causeway._log import LOGGER
from causeway.errors import FailedError, mismatch
from causeway.torch import _capture
from causeway.torch._interleaved import Interleaved, Update, weakly

CHECK = "CAUSEWAY_CHECK_OVERLAP"  # 1: what is handed over is filled with NaN until it is updated


class _Late(NamedTuple):
    updated: concurrent.futures.Future[Any]  # gives the device's event
    works: list[Update]


class _Unit:
    """In one step. `late`: what may be still to come, of each device one; `early`: which gradient did not wait for it."""

    def __init__(self, name: str, number: int) -> None:
        self.name, self.number = name, number
        self.late: list[_Late] = []
        self.early = ""

    def wait(self) -> None:
        """Until it is updated, for the host and every stream. Raises what has failed, once. An interrupt changes nothing."""
        for each in list(self.late):
            if _capture.going_on():
                raise FailedError("overlap: expected a CUDA graph's capture after optimizer.wait(), got updates still to come")
            concurrent.futures.wait([each.updated])
            failure = each.updated.exception()
            if failure is None and each.updated.result() is not None:
                each.updated.result().synchronize()
            if each not in self.late:
                continue  # another thread has waited, too
            self.late.remove(each)
            for work in each.works:  # a graph with values that were read before is refused by its backward
                torch.autograd.graph.increment_version(work.parameter)
            if failure is not None:
                raise failure


class _Watched(dict[str, Any]):
    """In the place of a module's `_parameters` until the `unread` are read. `hides`: this notices who reads them."""

    def __init__(self, module: nn.Module, name: str) -> None:
        super().__init__()
        self._module, self.real, self.name = module, module._parameters, name
        self.units: dict[int, _Unit] = {}  # of each Overlap the latest
        self.unread: set[str] = set()
        self.reads: collections.Counter[str] = collections.Counter()
        self.hides = True

    def arm(self, name: str) -> None:
        there = vars(self._module)["_parameters"]
        if there is not self:
            self.real = there
        super().clear()
        super().update(self.real)  # for those who read past all methods
        self.unread.add(name)
        vars(self._module)["_parameters"] = self

    def give_up(self, why: str) -> None:
        if self.hides and why not in _said:
            LOGGER.warning("overlap: %s, %s, is updated before step() returns, and so are others like it (said once)", self.name,
                           why)
        _said.add(why)
        self.hides = False
        self._restore()

    def _restore(self) -> None:
        if any(unit.late for unit in self.units.values()):
            return  # of another step, which another thread has made
        self.unread.clear()
        if vars(self._module)["_parameters"] is self:
            vars(self._module)["_parameters"] = self.real

    def wait(self) -> None:
        for unit in list(self.units.values()):
            unit.wait()

    def _read(self, name: str | None = None) -> dict[str, Any]:
        """One parameter, or all of them."""
        self.wait()
        if torch.compiler.is_compiling() or _capture.going_on():
            self.give_up("in a compiled region or a CUDA graph")
        if name in self.unread:
            self.unread.discard(name)
            self.reads[name] += 1
        if name is None or not self.unread:
            self._restore()
        return self.real

    def _look(self) -> dict[str, Any]:
        """As the model's parameters() does: no sign that forward is noticed, and zero_grad() reads no value."""
        if torch.compiler.is_compiling():
            return self._read()
        if not _clears_gradients():
            self.wait()
        return self.real

    def __getitem__(self, name: str) -> Any:
        return self._read(name)[name]

    def _reading(method: str) -> Any:  # type: ignore[misc]
        return lambda self, *arguments, **named: getattr(self._read(), method)(*arguments, **named)

    __setitem__, __delitem__ = _reading("__setitem__"), _reading("__delitem__")
    get, pop, popitem = _reading("get"), _reading("pop"), _reading("popitem")
    clear, update, setdefault = _reading("clear"), _reading("update"), _reading("setdefault")

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        return self._look().items()

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        return self._look().values()

    def copy(self) -> dict[str, Any]:
        return dict(self._look())

    def __contains__(self, name: object) -> bool:
        return name in self.real

    def __iter__(self) -> Iterator[str]:
        return iter(self.real)

    def keys(self) -> KeysView[str]:  # type: ignore[override]
        return self.real.keys()

    def __len__(self) -> int:
        return len(self.real)

    def __reduce_ex__(self, _: Any) -> Any:
        return dict, (self.copy(),)


def _clears_gradients() -> bool:
    frame: Any = sys._getframe(2)
    for _ in range(8):
        if frame is None or frame.f_code is nn.Module.zero_grad.__code__:
            return frame is not None
        frame = frame.f_back
    return False


class WatchedGroup(dict[str, Any]):
    """A group of an optimizer: taking its parameters waits."""

    def __init__(self, group: Mapping[str, Any], wait: Callable[[], None]) -> None:
        super().__init__(group)
        self._wait = wait

    def __getitem__(self, name: str) -> Any:
        if name == "params":
            self._wait()
        return super().__getitem__(name)

    def __reduce_ex__(self, _: Any) -> Any:
        return dict, (dict(self),)


class _Place(NamedTuple):
    """Where the model has a parameter."""

    module: nn.Module
    key: str
    unit: _Unit
    name: str  # of the module


_watched: weakref.WeakValueDictionary[int, _Watched] = weakref.WeakValueDictionary()  # by the module's id()
_said: set[str] = set()
_overlaps: weakref.WeakSet[Overlap] = weakref.WeakSet()


class Overlap:
    """One thread, and the helper's. `interleaved`: of a device, on which parameters lie."""

    def __init__(self, model: nn.Module, interleaved: Callable[[torch.device], Interleaved]) -> None:
        """Raises ConfigError unless it is a model."""
        if not isinstance(model, nn.Module):
            raise mismatch("overlap", "the model whose parameters are updated, or None", f"{model!r}"[:100],
                           "OffloadedAdamW(model.parameters(), overlap=model)")
        self._model, self._interleaved = model, interleaved
        self._helper: concurrent.futures.ThreadPoolExecutor | None = None
        self._checks = os.environ.get(CHECK) == "1"
        self._mine: set[torch.Tensor] = set()
        self._now: dict[torch.Tensor, _Place] = {}
        self._open: list[_Unit] = []  # which may have late updates
        self._holders: dict[torch.Tensor, tuple[_Watched, _Place, int]] = {}  # since the last step; reads by then
        _overlaps.add(self)

    def watch(self, parameter: torch.Tensor) -> None:
        """It is one of the optimizer's."""
        self._mine.add(parameter)
        parameter.register_post_accumulate_grad_hook(weakly(self._accumulated))  # type: ignore[no-untyped-call]

    def places(self) -> dict[torch.Tensor, _Place]:
        """The parameters, as the model is now, that one module of a unit has, and no other module."""
        units: dict[nn.Module, tuple[_Unit, str]] = {}
        for number, (name, element) in enumerate(_elements(self._model, "")):
            unit = _Unit(name, number)
            for inner, module in element.named_modules():
                units.setdefault(module, (unit, f"{name}.{inner}".rstrip(".")))
        owners: dict[torch.Tensor, list[tuple[nn.Module, str]]] = {}
        for module in self._model.modules():
            held = vars(module).get("_parameters")
            if isinstance(held, _Watched):
                held = held.real
            for key, parameter in held.items() if isinstance(held, dict) else ():  # a ScriptModule has none
                if parameter is not None:
                    owners.setdefault(parameter, []).append((module, key))
        return {parameter: _Place(*owner[0], *units[owner[0][0]]) for parameter, owner in owners.items()
                if len(owner) == 1 and owner[0][0] in units and not hasattr(parameter, "to_local")}

    def _accumulated(self, parameter: torch.Tensor) -> None:
        """Backward has made its gradient, or added to it."""
        if parameter not in self._holders:
            return
        watched, place, _ = self._holders[parameter]
        if place.key not in watched.unread:
            return
        late = [unit for unit in watched.units.values() if unit.late]
        if not late:
            watched.give_up("which has a gradient and was not read through its module")
        for unit in late:
            unit.early = unit.early or f"{watched.name}.{place.key}"
            unit.wait()  # the gradient's place on the host is in use until then

    def begin(self) -> None:
        """A step: raises FailedError for a gradient that was made without a wait."""
        self.wait()
        for watched, place, _ in list(self._holders.values()):
            watched.wait()  # for other optimizers of these parameters
            early, place.unit.early = place.unit.early, ""
            if early:
                raise FailedError(f"overlap: expected parameters that are read through their modules, got a gradient of {early}, "
                                  "which was read otherwise while its update was still to come: nothing is updated; call "
                                  "optimizer.wait() before such a read, or leave overlap out")
        self._now = self.places()

    def hidden(self, works: Iterable[Update]) -> list[list[Update]]:
        """Those of a device whose updates may be late, by units, in their order."""
        units: dict[_Unit, list[Update]] = {}
        for work in works:
            now = self._now.get(work.parameter)
            if now is None or work.parameter not in self._holders:
                continue
            watched, before, reads = self._holders[work.parameter]
            if watched.hides and watched.reads[now.key] > reads and now[:2] == before[:2]:
                units.setdefault(now.unit, []).append(work)
        return [units[unit] for unit in sorted(units, key=lambda each: each.number)]

    def values(self) -> int:
        """The number of those that may be late."""
        return sum(parameter.numel() for parameter, (watched, _, _) in self._holders.items() if watched.hides)

    def hand_over(self, units: Sequence[list[Update]]) -> None:
        """The step's end: those are updated later. All units' modules are watched from now on."""
        holders: dict[torch.Tensor, tuple[_Watched, _Place, int]] = {}
        for parameter, place in self._now.items():
            if parameter in self._mine:
                watched = _watched.get(id(place.module)) or _Watched(place.module, place.name)
                _watched[id(place.module)] = watched
                watched.units[id(self)] = place.unit
                holders[parameter] = watched, place, watched.reads[place.key]
        self._holders, self._now = holders, {}
        for watched, place, _ in holders.values():
            if watched.hides:
                watched.arm(place.key)
        self._open = [holders[works[0].parameter][1].unit for works in units]
        for works in units:
            interleaved = self._interleaved(works[0].parameter.device)
            begun = interleaved.hand_over(works, self._checks)
            if self._helper is None:
                self._helper = concurrent.futures.ThreadPoolExecutor(1, "causeway-overlap")
            late = self._helper.submit(interleaved.step_late, works, begun)
            holders[works[0].parameter][1].unit.late.append(_Late(late, works))

    def wait(self) -> None:
        """Until all are updated."""
        for unit in (there := self._open):
            unit.wait()
        if there is self._open:  # no other step has begun in another thread
            self._open = []


def _elements(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    of_list = isinstance(module, (nn.ModuleList, nn.Sequential))
    for name, child in module.named_children():
        if of_list:
            yield prefix + name, child
        else:
            yield from _elements(child, f"{prefix}{name}.")


def _before_fork() -> None:
    for overlap in list(_overlaps):
        concurrent.futures.wait([late.updated for _, place, _ in overlap._holders.values() for late in place.unit.late])


def _in_child() -> None:
    for overlap in list(_overlaps):
        overlap._helper = None  # its thread is the parent's


os.register_at_fork(before=_before_fork, after_in_child=_in_child)
