"""Causeway: one model trained across datacenters. A program takes part in a run as one of its sites.

`causeway.Site` takes numpy arrays; `causeway.torch` PyTorch models. Settings of the run live at its coordinator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from causeway.errors import (ConfigError, Error, FailedError, NonFiniteError, RankError, RefusedError, RestoreError,
                             UnreachableError)

if TYPE_CHECKING:
    from causeway.site import Site

__all__ = ["ConfigError", "Error", "FailedError", "NonFiniteError", "RankError", "RefusedError", "RestoreError", "Site",
           "UnreachableError", "library_version"]


def library_version() -> str:
    """The version of libcauseway.so, such as "0.1.0"."""
    from causeway import _library
    version: bytes = _library.load().version()
    return version.decode()


def __getattr__(name: str) -> Any:
    if name == "Site":  # numpy is needed for it alone
        from causeway.site import Site
        return Site
    if name == "__version__":
        return library_version()
    raise AttributeError(f"module 'causeway' has no attribute {name!r}")
