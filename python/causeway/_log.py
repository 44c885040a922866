"""Log lines, the library's as well: to `logging` under the name "causeway", and to the terminal where the script has not
configured logging."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import sys

from causeway import _library

LOGGER = logging.getLogger("causeway")
_LEVELS = {0: logging.DEBUG, 1: logging.INFO, 2: logging.WARNING, 3: logging.ERROR}

silent = False  # a terminal gets nothing but warnings
shows_steps = True  # and how far the site is; beside a framework's bar it is of no use


def tell(text: str, **extra: object) -> None:
    """Logs a line, or prints it where nothing would show it. Any thread."""
    LOGGER.info("%s", text, extra=extra)
    if not silent and not LOGGER.hasHandlers():
        with contextlib.suppress(OSError, ValueError):  # it is closed, or nothing reads it
            print(f"causeway: {text}", file=sys.stderr, flush=True)


def pass_on(library: _library.Library) -> None:
    """Logs all lines that the library holds. Any thread."""
    line = _library.LogLine()
    while library.log_take(ctypes.byref(line)) == _library.OK:
        if line.dropped > 0:
            LOGGER.warning("%d log lines were lost before the next one", line.dropped)
        level = _LEVELS.get(line.level, logging.ERROR)
        text = _library.in_arguments(line.text.decode(errors="replace"))
        if level == logging.INFO:
            tell(text, unix_ms=line.unix_ms)
        else:
            LOGGER.log(level, "%s", text, extra={"unix_ms": line.unix_ms})
