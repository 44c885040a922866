"""Tensors of the model that are not synced, and that the script changes all the same: averages of trained parameters (the
targets of BYOL, MoCo, DINO, JEPA, DQN), codebooks, statistics of observations. They are each site's own, and are named."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from causeway import names
from causeway._log import LOGGER
from causeway.torch._model import Model, first_values

_VALUES = 64  # of each tensor, that tell whether it changes

_ADVICE = {
    "frozen parameter": "a site that joins or resumes with other values than the run's is refused: with local=[names] they are "
                        "each site's own, and are not compared",
    "buffer": "its values are this site's own"}


class OwnValues:
    """Looks at steps 1, 2, 4, 8 and so on."""

    def __init__(self, module: nn.Module, model: Model) -> None:
        frozen = {str(model.tensors[index]["name"]): tensor for index, tensor in model.frozen.items()}
        self._watched: dict[str, Mapping[str, torch.Tensor]] = {"frozen parameter": frozen, "buffer": _buffers(module)}
        self._before: dict[str, dict[str, torch.Tensor]] = {}
        self._steps = 0

    def joined(self) -> None:
        self._before = {kind: self._look(kind) for kind in self._watched}

    def _look(self, kind: str) -> dict[str, torch.Tensor]:
        return {name: first_values([(tensor, _VALUES)]) for name, tensor in self._watched[kind].items()}

    def stepped(self) -> None:
        self._steps += 1
        if self._steps & (self._steps - 1):
            return
        for kind, before in list(self._before.items()):
            changed = [name for name, values in self._look(kind).items() if not torch.equal(values, before[name])]
            if changed:
                del self._before[kind]
                LOGGER.warning("%ss of the model are changed by the script and not synced, %d of them, the first %s: %s",
                               kind, len(changed), changed[0], _ADVICE[kind])


def _buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    """Those that are in a state_dict, but for statistics of norms, of which a warning at the beginning tells."""
    found: dict[str, torch.Tensor] = {}
    for path, each in module.named_modules():
        if not isinstance(each, nn.modules.batchnorm._NormBase):
            found |= {names.plain(f"{path}.{name}".lstrip(".")): buffer for name, buffer in each._buffers.items()
                      if buffer is not None and name not in each._non_persistent_buffers_set and buffer.numel() > 0
                      and buffer.device.type != "meta" and not buffer.is_complex()}
    return found
