"""The versions of PyTorch that this package needs, and processes that a launcher has started together."""

from __future__ import annotations

import os
import re

import torch
from torch import distributed

from causeway._log import LOGGER
from causeway.errors import mismatch

_OLDEST = (2, 4)
_OLDEST_SHARDED = (2, 6)  # has fully_shard in its public interface


def check_version() -> None:
    """Raises ConfigError if PyTorch is older than the oldest that takes part."""
    _check_at_least(_OLDEST, "torch")


def check_sharded_version() -> None:
    """Raises ConfigError if PyTorch is older than the oldest that takes part with parameters of fully_shard."""
    _check_at_least(_OLDEST_SHARDED, "torch, for sharded parameters")


def _check_at_least(oldest: tuple[int, int], what: str) -> None:
    numbers = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if numbers is not None and (int(numbers[1]), int(numbers[2])) < oldest:
        raise mismatch(what, ".".join(map(str, oldest)) + " or newer", torch.__version__)


def warn_of_processes() -> None:
    """Where a launcher has started several processes and none of them has made a process group."""
    counts = {name: os.environ.get(name, "") for name in ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")}
    name, count = max(counts.items(), key=lambda each: int(each[1]) if each[1].isdigit() else 0)
    if count.isdigit() and int(count) > 1 and not (distributed.is_available() and distributed.is_initialized()):
        LOGGER.warning("%s is %s and this process has no process group: each process would be a site of its own, and all but one "
                       "would have to wait for the name; call torch.distributed.init_process_group before DiLoCo where they "
                       "are the ranks of one site", name, count)
