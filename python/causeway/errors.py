"""The package's exceptions. Every error says what was expected, what came, and where.

The codes are the exit codes of causeway-worker, so that a script can end with `sys.exit(error.code)`.
"""

from __future__ import annotations

FAILED, BAD_INPUT, REFUSED, NON_FINITE, UNREACHABLE = range(1, 6)


class Error(Exception):
    """Base of all errors of this package.

    Attributes:
        code: 1 failed at run time, 2 bad input, 3 refused by the coordinator, 4 a value is not finite, 5 unreachable.
        expected, got: the two sides of a difference; "" where the message does not tell them apart.
        tensor: the tensor that it concerns; "" if it concerns none.
        index: the value's place in that tensor, row-major; −1 if it concerns no single value.
    """

    code = FAILED

    def __init__(self, message: str, *, expected: object = "", got: object = "", tensor: str = "",
                 index: int = -1) -> None:
        super().__init__(message)
        self.expected = str(expected)
        self.got = str(got)
        self.tensor = tensor
        self.index = index


class FailedError(Error):
    """Failed at run time, or a call that breaks the rules: from another thread, after fork, after leaving."""


class RankError(FailedError):
    """Another rank of the site ended, stands still, or makes other calls; the message says which."""


class ConfigError(Error):
    """Settings, model or buffers do not fit; nothing was started."""

    code = BAD_INPUT


class RestoreError(Error):
    """A saved state does not fit the model, the run, or the parameters beside it."""

    code = BAD_INPUT


class RefusedError(Error):
    """The coordinator refused the site, and says why."""

    code = REFUSED


class NonFiniteError(Error):
    """A parameter has a value that is not finite: `tensor` and `index` say which."""

    code = NON_FINITE


class UnreachableError(Error):
    """No coordinator answered within `connect_timeout_s`."""

    code = UNREACHABLE


OF_CODE: dict[int, type[Error]] = {
    FAILED: FailedError,
    BAD_INPUT: ConfigError,
    REFUSED: RefusedError,
    NON_FINITE: NonFiniteError,
    UNREACHABLE: UnreachableError,
}


def mismatch(what: str, expected: object, got: object, advice: str = "", *, tensor: str = "") -> ConfigError:
    """A ConfigError with the sentence "what: expected …, got …", and what to do about it."""
    message = f"{what}: expected {expected}, got {got}" + (f": {advice}" if advice else "")
    return ConfigError(message, expected=expected, got=got, tensor=tensor)
