"""The programs in bin/, which the commands that pip installs start: beside the package a wheel's libraries are found."""

from __future__ import annotations

import os
import pathlib
import sys
from typing import NoReturn


def _become(name: str) -> NoReturn:
    """The process is the program from here on: signals, input and exit code are its own."""
    os.execv(pathlib.Path(__file__).parent / "bin" / name, [name, *sys.argv[1:]])


def coordinator() -> NoReturn:
    """causeway-coordinator."""
    _become("causeway-coordinator")


def ctl() -> NoReturn:
    """causewayctl."""
    _become("causewayctl")
