"""Whether what is synced is still what the script trains: a look at each step, before the optimizer changes anything.

    modules' parameters and children ── is the listed object ─┐
    optimizers' groups ──────────────── is listed, as trained ┴─► nothing, or ConfigError with the parameter's name

A script may replace a parameter (a new head, resized embeddings, load_state_dict(assign=True)), give its optimizer new
ones, or unfreeze some. The run's list of tensors was made when the site joined; whatever is not in it would train at
each site apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from causeway import names
from causeway._log import LOGGER
from causeway.errors import mismatch
from causeway.torch._model import Model, every_parameter, values_of

_LATER = "list it from the start with trained_later=[name], or make DiLoCo when it is trained"
_FINAL = ("make DiLoCo when the model has its final tensors: after resize_token_embeddings, to(dtype), "
          "load_state_dict(assign=True) or a new head")


class TrainedTensors:
    """The script's model and optimizers beside the list of the run."""

    def __init__(self, module: nn.Module, model: Model, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """`model`: as `collect` lists it."""
        self._module, self._optimizers = module, optimizers
        listed = {index: str(tensor["name"]) for index, tensor in enumerate(model.tensors) if index in model.listed}
        synced = {listed[index] for index in model.trained()}
        self._listed = {name: model.listed[index] for index, name in listed.items()}
        self._tied = {listed[index]: str(model.tensors[index]["alias_of"]) for index in listed
                      if model.tensors[index].get("alias_of") in synced}
        of_run = {name: each for name, each in self._listed.items() if name in synced or name in self._tied}
        self._trained = {id(each) for each in (*of_run.values(), *model.synced.values(), *model.own.values())}
        self._untrained = {id(each): name for name, each in self._listed.items() if id(each) not in self._trained}
        self._asleep = [each for each in self._listed.values() if id(each) in self._untrained and not each.requires_grad]
        self._warned: set[str] = set()
        self._plain = {name: each for name, each in of_run.items() if isinstance(values_of(each), tuple)}
        self._forms = {name: (each.dtype, each.shape) for name, each in self._plain.items()}
        self._pointers = [each.data_ptr() for each in self._plain.values()]
        self._look_at_places()

    def _look_at_places(self) -> None:
        self._places = list(_places_of(self._module))
        self._sizes = [(holder, len(holder)) for module in self._module.modules()
                       for holder in (module._parameters, module._modules)]

    def check(self) -> None:
        """Raises ConfigError that names the first tensor that is not what the run syncs."""
        if any((holder[key] if key in holder else None) is not expected for holder, key, expected in self._places):
            self._check_model()
        if not self._optimizers and any(len(holder) != size for holder, size in self._sizes):
            self._check_model()
        pointers = [each.data_ptr() for each in self._plain.values()]
        if pointers != self._pointers:
            self._pointers = pointers
            self._check_values()
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if id(parameter) not in self._trained:
                        self._check_untrained(parameter)
        for parameter in self._asleep:
            if parameter.requires_grad:
                self._check_awake(parameter)

    def _check_model(self) -> None:
        """Something in the modules is another object than it was."""
        current = {names.plain(name): each for name, each in every_parameter(self._module)}
        objects = {id(each) for each in current.values()}
        listed = {id(each) for each in self._listed.values()}
        for name, expected in self._listed.items():
            got = current.get(name)
            if got is expected or hasattr(expected, "device_mesh") or (got is None and id(expected) in objects):
                continue  # the same, gathered for a moment, or under another name
            if id(got) in listed and id(expected) in objects:
                continue  # a module of the list is used under another name
            found = "none of that name" if got is None else f"another of shape {list(got.shape)}"
            raise mismatch(f"parameter {name}", "the tensor that the model had when DiLoCo was made", found, _FINAL,
                           tensor=name)
        if not self._optimizers:
            known = self._trained | {id(each) for each in self._listed.values()}
            for name, each in current.items():
                if id(each) not in known and each.requires_grad and each.numel() > 0:
                    raise mismatch("model", "the parameters that DiLoCo has listed", f"{name}, of shape {list(each.shape)}",
                                   _FINAL, tensor=name)
        self._look_at_places()

    def _check_values(self) -> None:
        """The values of some tensors lie elsewhere than they did."""
        values = {}
        for name, each in self._plain.items():
            if (each.dtype, each.shape) != self._forms[name]:
                dtype, shape = self._forms[name]
                raise mismatch(f"parameter {name}", f"{dtype} of shape {list(shape)}, as when DiLoCo was made",
                               f"{each.dtype} of shape {list(each.shape)}", _FINAL, tensor=name)
            values[name] = values_of(each)
        for name, other in self._tied.items():
            if name in values and other in values and values[name] != values[other]:
                raise mismatch(f"parameter {name}", f"the values of {other}, as when DiLoCo was made", "values of its own",
                               "a tie by .data ends with an assignment to .data; tie them as one Parameter", tensor=name)
        first: dict[object, str] = {}
        for name, value in values.items():
            if name not in self._tied and (other_name := first.setdefault(value, name)) != name:
                raise mismatch(f"parameter {name}", "values of its own, as when DiLoCo was made", f"those of {other_name}",
                               "tie them before DiLoCo is made", tensor=name)

    def _check_untrained(self, parameter: torch.Tensor) -> None:
        """An optimizer has it, and the run does not sync it."""
        name = self._untrained.get(id(parameter))
        if name is not None:
            if parameter.requires_grad or parameter.grad is not None:
                raise mismatch(f"parameter {name}", "frozen, as when DiLoCo was made", "trained from now on", _LATER,
                               tensor=name)
        elif parameter.numel() > 0:
            found = next((names.plain(name) for name, each in self._module.named_parameters() if each is parameter), "")
            raise mismatch("optimizer", "the parameters that DiLoCo has listed",
                           f"{found or 'one that is not in the model'}, of shape {list(parameter.shape)}", _FINAL,
                           tensor=found)

    def _check_awake(self, parameter: torch.Tensor) -> None:
        """It was frozen and requires gradients now, in none of the optimizers."""
        name = self._untrained[id(parameter)]
        if not self._optimizers:
            raise mismatch(f"parameter {name}", "frozen, as when DiLoCo was made", "trained from now on", _LATER, tensor=name)
        if name not in self._warned:
            self._warned.add(name)
            LOGGER.warning("parameter %s was frozen and requires gradients now, in no optimizer that was passed: it is not "
                           "synced; %s", name, _LATER)


def _places_of(module: nn.Module) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Where a module holds its parameters and its children. Sharded parameters (FSDP2) are replaced for a moment."""
    for each in module.modules():
        for key, parameter in each._parameters.items():
            if parameter is not None and not hasattr(parameter, "device_mesh"):
                yield each._parameters, key, parameter
        for key, child in each._modules.items():
            if child is not None:
                yield each._modules, key, child
