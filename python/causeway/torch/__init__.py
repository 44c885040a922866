"""Causeway for PyTorch: `import causeway.torch as causeway`, then `causeway.DiLoCo` around the training loop."""

from causeway.errors import (ConfigError, Error, FailedError, NonFiniteError, RankError, RefusedError, RestoreError,
                             UnreachableError)
from causeway.torch._state import SiteState
from causeway.torch.diloco import DiLoCo

__all__ = ["ConfigError", "DiLoCo", "Error", "FailedError", "NonFiniteError", "RankError", "RefusedError",
           "RestoreError", "SiteState", "UnreachableError"]
