"""Tensors of the model that are not synced, and that the script changes all the same: averages of trained parameters (the
targets of BYOL, MoCo, DINO, JEPA, DQN), codebooks, statistics of observations. They are each site's own, and are named."""

from __future__ import annotations

import torch
from torch import nn

from causeway._log import LOGGER
from causeway.torch._model import Model, buffers_of, first_values

_VALUES = 64  # of each tensor, that tell whether it changes

_ADVICE = {
    "frozen parameter": "a site that joins or resumes with other values than the run's is refused: with local=[names] they are "
                        "each site's own, and are not compared",
    "buffer": "its values are this site's own; buffers=\"mean\" averages those of all sites"}


class OwnValues:
    """Looks at steps 1, 2, 4, 8 and so on."""

    def __init__(self, module: nn.Module, model: Model, others: bool) -> None:
        """`others`: there may be other sites."""
        self._others = others
        frozen = {str(model.tensors[index]["name"]): tensor for index, tensor in model.frozen.items()}
        synced = {str(model.tensors[index]["name"]) for index in model.buffers}
        norms = {id(each._buffers) for each in module.modules() if isinstance(each, nn.modules.batchnorm._NormBase)}
        self._buffers = [(name, holder, key) for name, holder, key in buffers_of(module)
                         if name not in synced and id(holder) not in norms]  # of norms a warning tells at the beginning
        self._frozen = frozen
        self._before: dict[str, dict[str, torch.Tensor]] = {}
        self._steps = 0

    def joined(self) -> None:
        self._before = {kind: self._look(kind) for kind in _ADVICE if self._others}

    def _look(self, kind: str) -> dict[str, torch.Tensor]:
        watched = self._frozen if kind == "frozen parameter" else {name: holder[key] for name, holder, key in self._buffers}
        return {name: first_values([(tensor, _VALUES)]) for name, tensor in watched.items()
                if tensor is not None and tensor.device.type != "meta" and not tensor.is_complex()}

    def stepped(self) -> None:
        self._steps += 1
        if self._steps & (self._steps - 1):
            return
        for kind, before in list(self._before.items()):
            changed = [name for name, values in self._look(kind).items()
                       if name in before and not torch.equal(values, before[name])]
            if changed:
                del self._before[kind]
                LOGGER.warning("%ss of the model are changed by the script and not synced, %d of them, the first %s: %s",
                               kind, len(changed), changed[0], _ADVICE[kind])

