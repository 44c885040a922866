"""The memory that the leader of a site needs for the run, and the memory that its host has."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

from causeway._log import LOGGER
from causeway.errors import mismatch

_ANCHOR_AND_MOMENTUM, _RESIDUAL, _STAGING = 8, 4, 12  # bytes a value, of causeway.h's site_open


def check(values: int, config: Mapping[str, Any]) -> None:
    """Logs what the leader will hold, and raises ConfigError if its host has less: before the site joins."""
    feedback = float(config.get("codec", {}).get("feedback_up", 1.0)) > 0
    fragments = max(1, int(config.get("sync", {}).get("num_fragments", 1)))
    check_bytes(values, values * (_ANCHOR_AND_MOMENTUM + (_RESIDUAL if feedback else 0)) + values * _STAGING // fragments,
                f"the run, of {fragments} fragments, takes")


def check_bytes(values: int, needed: int, what: str) -> None:
    """The same for this many bytes; `what` begins the line of the log."""
    available = available_bytes()
    LOGGER.info("%s %.2f GB of memory of this process, beside the model: %.1f M parameters; %s GB are available", what,
                needed / 1e9, values / 1e6, "an unknown number of" if available is None else f"{available / 1e9:.2f}")
    if available is not None and needed > available:
        raise mismatch("memory", f"{needed / 1e9:.2f} GB on the host of rank 0, for {values / 1e6:.1f} M parameters",
                       f"{available / 1e9:.2f} GB available", "run rank 0 on a host with more")


def available_bytes() -> int | None:
    """As the kernel estimates, within the limit of the process's control group. None: it does not say."""
    limits = []
    try:
        for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                limits.append(int(line.split()[1]) * 1024)
        group = pathlib.Path("/sys/fs/cgroup")
        most = (group / "memory.max").read_text().strip()
        if most != "max":
            limits.append(int(most) - int((group / "memory.current").read_text()))
    except (OSError, ValueError):
        pass
    return min(limits, default=None)
