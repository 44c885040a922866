"""Arguments of DiLoCo that are checked by their type before anything begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import distributed

from causeway.errors import mismatch

_MAPPINGS = {"params": "{name: master}", "kinds": "{name: kind}", "data": '{"tokens": number, "digest": text}'}
_FUNCTIONS = ("after_apply", "on_rejoin")


def check(**given: Any) -> None:
    """None is no argument. Raises ConfigError."""
    for name, value in given.items():
        if value is None:
            continue
        if name in _MAPPINGS and not isinstance(value, Mapping):
            raise mismatch(name, _MAPPINGS[name], f"{value!r}"[:100])
        if name in _FUNCTIONS and not callable(value):
            raise mismatch(name, "a function", f"{value!r}"[:100])
        if name == "buffers" and value not in ("local", "mean"):
            raise mismatch(name, '"local" or "mean"', f"{value!r}"[:100])
        if name == "process_group" and distributed.is_available() and not _is_group(value):
            raise mismatch(name, "a torch.distributed.ProcessGroup", f"{value!r}"[:100])


def _is_group(value: Any) -> bool:
    """Also what new_group gives to those that are no rank of the new one."""
    return isinstance(value, distributed.ProcessGroup) or value == distributed.GroupMember.NON_GROUP_MEMBER
