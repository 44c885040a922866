"""Causeway for PyTorch: `import causeway.torch as causeway`, then `causeway.DiLoCo` around the training loop."""

from causeway.errors import (ConfigError, Error, FailedError, NonFiniteError, RankError, RefusedError, RestoreError,
                             UnreachableError)
from causeway.torch._state import SiteState
from causeway.torch.diloco import DiLoCo
from causeway.torch.offload import OffloadedAdamW

__all__ = ["ConfigError", "DiLoCo", "Error", "FailedError", "NonFiniteError", "OffloadedAdamW", "RankError",
           "RefusedError", "RestoreError", "SiteState", "UnreachableError"]
