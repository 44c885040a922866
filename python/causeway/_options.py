"""Settings that a script gives: the connection, and its expectations of the run, whose settings the coordinator has."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from causeway import _log
from causeway.errors import mismatch

COORDINATOR_VARIABLE = "CAUSEWAY_COORDINATOR"
SITE_VARIABLE = "CAUSEWAY_SITE"
TRY_VARIABLE = "CAUSEWAY_TRY"
FILES = {"tls_ca": "CAUSEWAY_TLS_CA", "tls_cert": "CAUSEWAY_TLS_CERT", "tls_key": "CAUSEWAY_TLS_KEY",
         "token_file": "CAUSEWAY_TOKEN_FILE"}


class Connection(TypedDict, total=False):
    """How to reach the coordinator; the flags of causeway-worker of the same names."""

    tls_ca: str
    tls_cert: str
    tls_key: str
    token_file: str
    insecure: bool
    use_proxy: bool
    connect_timeout_s: int
    max_up_mbit: float
    max_down_mbit: float
    rank_timeout_s: float


class Expectations(TypedDict, total=False):
    """The settings that the script expects of the run: keys of run.yaml's section `sync`, or those of _PLACES."""

    sync_every: int
    fragment_sync_delay: int | str
    fragment_update_alpha: float
    num_fragments: int
    fragments: Sequence[Sequence[str]]
    outer_lr: float
    outer_momentum: float
    steps: int


_PLACES = {"outer_lr": "outer.lr", "outer_momentum": "outer.momentum", "steps": "run.steps"}
_TYPES: dict[str, type] = {"tls_ca": str, "tls_cert": str, "tls_key": str, "token_file": str, "insecure": bool,
                           "use_proxy": bool, "connect_timeout_s": int, "max_up_mbit": float, "max_down_mbit": float,
                           "rank_timeout_s": float}


def run_options(coordinator: str | None, site: str | None, connection: Mapping[str, Any]) -> dict[str, Any]:
    """The options of RunHandle. The environment supplies those that are not given, and all under python -m causeway.try,
    whose coordinator is on this machine whatever the script says."""
    if os.environ.get(TRY_VARIABLE):
        if coordinator or site:
            _log.tell(f"tried: coordinator and site are {os.environ.get(COORDINATOR_VARIABLE)} and "
                      f"{os.environ.get(SITE_VARIABLE)}, not the script's")
        coordinator = site = None
        connection = {key: value for key, value in connection.items() if key not in ("insecure", "use_proxy", *FILES)}
    options: dict[str, Any] = {"coordinator": _given("coordinator", coordinator, COORDINATOR_VARIABLE, "HOST:PORT"),
                               "site": _given("site", site, SITE_VARIABLE, "the site's name, such as eu")}
    for key, value in connection.items():
        wanted = _TYPES[key]
        value = os.fspath(value) if isinstance(value, os.PathLike) else value
        value = float(value) if wanted is float and type(value) is int else value
        if type(value) is not wanted:
            raise mismatch(key, wanted.__name__, f"{value!r}")
        options[key] = value
    for key, variable in FILES.items():
        if not os.environ.get(TRY_VARIABLE) and not options.get(key) and os.environ.get(variable):
            options[key] = os.environ[variable]
    return options


def check_not_tried(what: str) -> None:
    """Raises ConfigError under python -m causeway.try, which would wait for a site."""
    if os.environ.get(TRY_VARIABLE):
        raise mismatch(what, "a site of the run that python -m causeway.try starts", "none", "leave it out there")


def of_rank(leads: bool, coordinator: str | None, site: str | None, connection: Mapping[str, Any]) -> dict[str, Any]:
    """The options of RunHandle on the leader; elsewhere what is given, to be compared with them."""
    if leads:
        return run_options(coordinator, site, connection)
    return {"coordinator": coordinator or os.environ.get(COORDINATOR_VARIABLE), "site": site or os.environ.get(SITE_VARIABLE)}


def _given(what: str, value: str | None, variable: str, expected: str) -> str:
    value = value if value is not None else os.environ.get(variable)
    if not value:
        raise mismatch(what, f"{expected}, as an argument or in {variable}", "neither")
    if not isinstance(value, str):
        raise mismatch(what, expected, f"{value!r}")
    return value


def check_expectations(config: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raises ConfigError for the first expectation that the run does not meet. None is no expectation."""
    listed: list[tuple[str, object]] = []
    for key, value in expected.items():
        if value is not None:
            value = [list(group) for group in value] if key == "fragments" else value
            listed.append((_PLACES.get(key, f"sync.{key}"), value))
    difference = first_difference(config, listed)
    if difference is not None:
        key, wanted, got = difference
        raise mismatch(key, f"{wanted!r} (by this script)", f"{got!r} (of the run)",
                       "settings live at the coordinator; leave it out here, or start a run with it")


def first_difference(config: Mapping[str, Any], expectations: Sequence[tuple[str, object]]) -> tuple[str, object,
                                                                                                     object] | None:
    """The first expectation (key with dots, value) that run.yaml does not meet: key, expected, got."""
    for key, expected in expectations:
        got: Any = config
        for part in key.split("."):
            got = got.get(part) if isinstance(got, Mapping) else None
        if got != expected and not _same_float32(got, expected):
            return key, expected, got
    return None


def _same_float32(got: object, expected: object) -> bool:
    """The coordinator holds some settings in float32: its 0.3 is a script's 0.3."""
    if not isinstance(got, (int, float)) or not isinstance(expected, (int, float)):
        return False
    return ctypes.c_float(got).value == ctypes.c_float(expected).value


def split(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keyword arguments, apart: those of the connection, and expectations. `log=False` is done here: a terminal gets
    warnings alone."""
    known = Connection.__annotations__.keys() | Expectations.__annotations__.keys() | {"log"}
    _log.silent, _log.shows_steps = settings.get("log") is False, True
    for key in settings:
        if key not in known:
            raise mismatch(key, f"one of {', '.join(sorted(known))}", "a setting of this name")
    connection = {key: value for key, value in settings.items() if key in Connection.__annotations__}
    expectations = {key: value for key, value in settings.items() if key in Expectations.__annotations__}
    return connection, expectations
