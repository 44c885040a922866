"""The library's log lines, passed on to `logging` under the name "causeway"."""

from __future__ import annotations

import ctypes
import logging

from causeway import _library

LOGGER = logging.getLogger("causeway")
_LEVELS = {0: logging.DEBUG, 1: logging.INFO, 2: logging.WARNING, 3: logging.ERROR}


def pass_on(library: _library.Library) -> None:
    """Logs all lines that the library holds. Any thread."""
    line = _library.LogLine()
    while library.log_take(ctypes.byref(line)) == _library.OK:
        if line.dropped > 0:
            LOGGER.warning("%d log lines were lost before the next one", line.dropped)
        level = _LEVELS.get(line.level, logging.ERROR)
        LOGGER.log(level, "%s", _library.in_arguments(line.text.decode(errors="replace")), extra={"unix_ms": line.unix_ms})
