"""Updates on the host that go on behind the next forward: OffloadedAdamW's `overlap=model`.

    step       all gradients are known; updates of the units are handed over, in the units' order, and step returns
    helper     unit by unit: AdamW on the host ─► the parameters on the device
    forward    taking a parameter out of a module of a unit waits for that unit first

A unit is an element of one of the model's outermost ModuleLists or Sequentials, such as a decoder layer. From a step until
they are read, its modules hold their parameters in a dictionary that notices that (_Watched), as DeepSpeed's ZeRO-3 does: a
layer may read its children as it likes, and no module has a hook, which would change the path of nn.TransformerEncoderLayer.
A module that is read by no way that this notices (in a compiled region, by references that were kept, as nn.LSTM does) is
seen to have a gradient and no read in the first iteration, and is updated before `step` returns from then on.
"""

from __future__ import annotations

import concurrent.futures
import os
import sys
import weakref
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Sequence, ValuesView
from typing import Any

import torch
from torch import nn

from causeway._log import LOGGER
from causeway.errors import FailedError, mismatch
from causeway.torch import _capture
from causeway.torch._interleaved import Interleaved, Update

CHECK = "CAUSEWAY_CHECK_OVERLAP"  # 1: what is handed over is filled with NaN until it is updated


class _Unit:
    """`late`: its updates that may be still to come, of each device one; each gives the device's event."""

    def __init__(self, name: str, number: int) -> None:
        self.name, self.number = name, number
        self.late: list[tuple[torch.device, concurrent.futures.Future[Any]]] = []

    def wait(self) -> None:
        """Until it is updated, for the host and for what follows on the current stream. Raises what has failed, once."""
        late = self.late
        if late and _capture.going_on():
            raise FailedError("overlap: expected a CUDA graph's capture after optimizer.wait(), got updates still to come")
        try:
            for device, each in late:
                event = each.result()
                if event is not None:
                    torch.cuda.current_stream(device).wait_event(event)
        finally:
            self.late = []


class _Watched(dict[str, Any]):
    """In the place of a module's `_parameters` until one of them is read. `hides`: this notices who reads them."""

    def __init__(self, module: nn.Module, name: str) -> None:
        super().__init__()
        self._module, self._real, self._name = module, module._parameters, name
        self.units: list[_Unit] = []  # of each optimizer one
        self.armed, self.hides, self.reads = False, True, 0

    def arm(self) -> None:
        there = vars(self._module)["_parameters"]
        if there is not self:
            self._real = there
        super().clear()
        super().update(self._real)  # for those who read past all methods
        vars(self._module)["_parameters"] = self
        self.armed = True

    def give_up(self, why: str) -> None:
        if self.hides and why not in _said:
            LOGGER.warning("overlap: %s, %s, is updated before step() returns, and so are others like it (said once)", self._name,
                           why)
        _said.add(why)
        self.hides = False
        self._restore()

    def _restore(self) -> None:
        if vars(self._module)["_parameters"] is self:
            vars(self._module)["_parameters"] = self._real
        self.armed = False

    def _wait(self) -> None:
        for unit in self.units:
            unit.wait()

    def _read(self) -> dict[str, Any]:
        self._wait()
        if torch.compiler.is_compiling() or _capture.going_on():
            self.give_up("in a compiled region or a CUDA graph")
        self.reads += self.armed
        self._restore()
        return self._real

    def _look(self) -> dict[str, Any]:
        """As the model's parameters() does: no sign that forward is noticed, and zero_grad() reads no value."""
        if torch.compiler.is_compiling():
            return self._read()
        if not _clears_gradients():
            self._wait()
        return self._real

    def _reading(method: str) -> Any:  # type: ignore[misc]
        return lambda self, *arguments, **named: getattr(self._read(), method)(*arguments, **named)

    __getitem__, __setitem__, __delitem__ = _reading("__getitem__"), _reading("__setitem__"), _reading("__delitem__")
    get, pop, popitem = _reading("get"), _reading("pop"), _reading("popitem")
    clear, update, setdefault = _reading("clear"), _reading("update"), _reading("setdefault")

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        return self._look().items()

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        return self._look().values()

    def copy(self) -> dict[str, Any]:
        return dict(self._look())

    def __contains__(self, name: object) -> bool:
        return name in self._real

    def __iter__(self) -> Iterator[str]:
        return iter(self._real)

    def keys(self) -> KeysView[str]:  # type: ignore[override]
        return self._real.keys()

    def __len__(self) -> int:
        return len(self._real)

    def __reduce_ex__(self, _: Any) -> Any:
        return dict, (self.copy(),)


def _clears_gradients() -> bool:
    frame: Any = sys._getframe(2)
    for _ in range(8):
        if frame is None or frame.f_code is nn.Module.zero_grad.__code__:
            return frame is not None
        frame = frame.f_back
    return False


class WatchedList(list[torch.Tensor]):
    """A group's parameters: going through them waits."""

    def __init__(self, values: Iterable[torch.Tensor], wait: Callable[[], None]) -> None:
        super().__init__(values)
        self._wait = wait

    def __iter__(self) -> Iterator[torch.Tensor]:
        self._wait()
        return super().__iter__()

    def __reduce_ex__(self, _: Any) -> Any:
        return list, (list(self),)


_watched: weakref.WeakValueDictionary[int, _Watched] = weakref.WeakValueDictionary()  # by the module's id()
_said: set[str] = set()
_overlaps: weakref.WeakSet[Overlap] = weakref.WeakSet()


class Overlap:
    """One thread, and the helper's. `device_of` gives Interleaved of a device; parameters of others are not hidden."""

    def __init__(self, model: nn.Module, interleaved: Callable[[torch.device], Interleaved]) -> None:
        """Raises ConfigError unless it is a model."""
        if not isinstance(model, nn.Module):
            raise mismatch("overlap", "the model whose parameters are updated, or None", f"{model!r}"[:100],
                           "OffloadedAdamW(model.parameters(), overlap=model)")
        self._interleaved = interleaved
        self._helper: concurrent.futures.ThreadPoolExecutor | None = None
        self._checks = os.environ.get(CHECK) == "1"
        self._early = ""  # a unit whose gradient came without a wait
        self._units: list[_Unit] = []
        self._holders: dict[torch.Tensor, tuple[_Watched, _Unit]] = {}
        self._reads: dict[int, int] = {}  # of each module as the last step has left it
        owners: dict[torch.Tensor, int] = {}
        for module in model.modules():
            for parameter in module._parameters.values():
                if parameter is not None:
                    owners[parameter] = owners.get(parameter, 0) + 1
        for name, element in _elements(model, ""):
            unit = _Unit(name, len(self._units))
            for inner, module in element.named_modules():
                own = [each for each in module._parameters.values()
                       if each is not None and owners[each] == 1 and each not in self._holders and not hasattr(each, "to_local")]
                if own:
                    watched = _watched.get(id(module)) or _Watched(module, f"{name}.{inner}".rstrip("."))
                    _watched[id(module)] = watched
                    watched.units.append(unit)
                    self._holders.update((each, (watched, unit)) for each in own)
            self._units.append(unit)
        _overlaps.add(self)

    def order(self, parameter: torch.Tensor) -> int:
        """Its turn for the device's memory: after what cannot be hidden, by units."""
        return self._holders[parameter][1].number if parameter in self._holders else -1

    def accumulated(self, parameter: torch.Tensor) -> None:
        """Backward has made its gradient, or added to it."""
        watched, unit = self._holders.get(parameter, (None, None))
        if watched is None or unit is None or not watched.armed:
            return
        if unit.late:
            self._early = self._early or f"{unit.name}, {watched._name}"
            unit.wait()  # the gradient's place on the host is in use until then
        else:
            watched.give_up("which has a gradient and was not read through its module")

    def hidden(self, works: Iterable[Update]) -> list[list[Update]]:
        """Those of a device whose updates may be late, by units, in their order."""
        units: dict[_Unit, list[Update]] = {}
        for work in works:
            watched, unit = self._holders.get(work.parameter, (None, None))
            if watched is not None and unit is not None and watched.hides and watched.reads > self._reads.get(id(watched), 0):
                units.setdefault(unit, []).append(work)
        return [units[unit] for unit in sorted(units, key=lambda each: each.number)]

    def values(self) -> int:
        """The number of those that may be late."""
        return sum(parameter.numel() for parameter, (watched, _) in self._holders.items() if watched.hides)

    def hand_over(self, units: Sequence[list[Update]]) -> None:
        """The step's end: those are updated later. All units' modules are watched from now on."""
        for works in units:
            device = works[0].parameter.device
            interleaved = self._interleaved(device)
            begun = interleaved.hand_over(works, self._checks)
            if self._helper is None:
                self._helper = concurrent.futures.ThreadPoolExecutor(1, "causeway-overlap")
            late = self._helper.submit(interleaved.step_late, works, begun)
            self._holders[works[0].parameter][1].late.append((device, late))
        for watched in {id(each): each for each, _ in self._holders.values()}.values():
            if watched.hides:
                watched.arm()
            self._reads[id(watched)] = watched.reads

    def wait(self) -> None:
        """Until all are updated."""
        for unit in self._units:
            unit.wait()

    def check(self) -> None:
        """Raises FailedError for a gradient that was made without a wait."""
        early, self._early = self._early, ""
        if early:
            raise FailedError(f"overlap: expected parameters that are read through their modules, got a gradient of {early}, "
                              "which was read otherwise while its update was still to come: nothing is updated; call "
                              "optimizer.wait() before such a read, or leave overlap out")


def _elements(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    of_list = isinstance(module, (nn.ModuleList, nn.Sequential))
    for name, child in module.named_children():
        if of_list:
            yield prefix + name, child
        else:
            yield from _elements(child, f"{prefix}{name}.")


def _before_fork() -> None:
    for overlap in list(_overlaps):
        overlap.wait()


def _in_child() -> None:
    for overlap in list(_overlaps):
        overlap._helper = None  # its thread is the parent's


os.register_at_fork(before=_before_fork, after_in_child=_in_child)
