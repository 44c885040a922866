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
from causeway.torch._model import Model

_LATER = "list it from the start with trained_later=[name], or make DiLoCo when it is trained"
_FINAL = ("make DiLoCo when the model has its final tensors: after resize_token_embeddings, "
          "load_state_dict(assign=True) or a new head")


class TrainedTensors:
    """The script's model and optimizers beside the list of the run."""

    def __init__(self, module: nn.Module, model: Model, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """`model`: as `collect` lists it."""
        self._module, self._optimizers = module, optimizers
        self._listed = {str(model.tensors[index]["name"]): each for index, each in model.listed.items()}
        trained = [*model.synced.values(), *(model.listed[index] for index in model.synced)]
        self._trained = {id(each) for each in trained}
        self._untrained = {id(each): name for name, each in self._listed.items() if id(each) not in self._trained}
        self._asleep = [each for each in self._listed.values() if id(each) in self._untrained and not each.requires_grad]
        self._warned: set[str] = set()
        self._places = list(_places_of(module))

    def check(self) -> None:
        """Raises ConfigError that names the first tensor that is not what the run syncs."""
        for holder, key, expected in self._places:
            if holder.get(key) is not expected:
                self._check_model()
                break
        in_optimizer = set()
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if id(parameter) not in self._trained:
                        in_optimizer.add(id(parameter))
                        if id(parameter) not in self._untrained:
                            self._refuse_new(parameter)
        for parameter in self._asleep:
            if parameter.requires_grad:
                self._refuse_unfrozen(parameter, id(parameter) in in_optimizer or not self._optimizers)

    def _check_model(self) -> None:
        current = {names.plain(name): each for name, each in self._module.named_parameters(remove_duplicate=False)}
        objects = {id(each) for each in current.values()}
        for name, expected in self._listed.items():
            got = current.get(name)
            if got is expected or hasattr(expected, "device_mesh") or (got is None and id(expected) in objects):
                continue  # the same, gathered for a moment, or under another name
            found = "none of that name" if got is None else f"another of shape {list(got.shape)}"
            raise mismatch(f"parameter {name}", "the tensor that the model had when DiLoCo was made", found, _FINAL,
                           tensor=name)
        self._places = list(_places_of(self._module))

    def _refuse_new(self, parameter: torch.Tensor) -> None:
        if parameter.numel() == 0:
            return
        name = next((names.plain(name) for name, each in self._module.named_parameters() if each is parameter), "")
        if name and name in self._listed:
            self._check_model()
        raise mismatch("optimizer", "the parameters that DiLoCo has listed",
                       f"{name or 'one that is not in the model'}, of shape {list(parameter.shape)}", _FINAL, tensor=name)

    def _refuse_unfrozen(self, parameter: torch.Tensor, trained: bool) -> None:
        name = self._untrained[id(parameter)]
        if trained:
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
