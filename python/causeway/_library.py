"""libcauseway.so by ctypes: its structs and prototypes, one to one with causeway.h.

ctypes lets go of the interpreter's lock during each call, so other Python threads run while the library waits.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.metadata
import os
import pathlib
import re
import warnings
from typing import Any

from causeway import errors

ABI = 1

# causeway_status beyond the error codes.
OK, AGAIN, WORK, STOP = 0, 16, 17, 18
# causeway_work_kind
READ, WRITE, MIX, ADD, DIGEST, KEEP = 1, 2, 3, 4, 5, 6
# causeway_work_flags
BEFORE_CHANGE, ANCHOR = 1, 2

PATH_VARIABLE = "CAUSEWAY_LIBRARY"

_Handle = ctypes.c_void_p
_Text = ctypes.c_char_p
_Int = ctypes.c_int
_Long = ctypes.c_int64


class _Struct(ctypes.Structure):
    """A struct of the interface: it begins with its size, which is filled in here."""

    struct_size: int

    def __init__(self, **fields: Any) -> None:
        super().__init__(struct_size=ctypes.sizeof(type(self)), **fields)


class ErrorInfo(_Struct):
    code: int
    message: bytes | None
    expected: bytes | None
    got: bytes | None
    tensor: bytes | None
    index: int
    _fields_ = [("struct_size", ctypes.c_uint32), ("code", ctypes.c_int32), ("message", _Text), ("expected", _Text),
                ("got", _Text), ("tensor", _Text), ("index", _Long)]


class Work(_Struct):
    """A piece of a tensor that the program moves: its values [first, first + count), row-major."""

    kind: int
    id: int
    tensor: int
    flags: int
    first: int
    count: int
    values: int | None
    factor: float
    device_values: int | None
    _fields_ = [("struct_size", ctypes.c_uint32), ("kind", ctypes.c_uint32), ("id", _Long), ("tensor", ctypes.c_int32),
                ("flags", ctypes.c_uint32), ("first", _Long), ("count", _Long), ("values", ctypes.c_void_p),
                ("factor", ctypes.c_float), ("device_values", ctypes.c_void_p)]

    def buffer(self) -> ctypes.Array[ctypes.c_float]:
        """The library's memory, `count` float32 values. Valid until the piece is done."""
        assert self.values is not None
        return (ctypes.c_float * self.count).from_address(self.values)


class Block(_Struct):
    """Where values have their places in a tensor: rows of `columns` values, `stride` apart, from `first`."""

    tensor: bytes | None
    first: int
    rows: int
    columns: int
    stride: int
    _fields_ = [("struct_size", ctypes.c_uint32), ("reserved", ctypes.c_uint32), ("tensor", _Text), ("first", _Long),
                ("rows", _Long), ("columns", _Long), ("stride", _Long)]


class Report(_Struct):
    tokens: int
    loss: float
    step_s: float
    _fields_ = [("struct_size", ctypes.c_uint32), ("reserved", ctypes.c_uint32), ("tokens", _Long),
                ("loss", ctypes.c_double), ("step_s", ctypes.c_double)]


class Buffer(_Struct):
    name: bytes | None
    data: int | None
    bytes: int
    _fields_ = [("struct_size", ctypes.c_uint32), ("reserved", ctypes.c_uint32), ("name", _Text),
                ("data", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]


class LogLine(_Struct):
    level: int
    unix_ms: int
    dropped: int
    text: bytes
    _fields_ = [("struct_size", ctypes.c_uint32), ("level", ctypes.c_int32), ("unix_ms", _Long), ("dropped", _Long),
                ("text", ctypes.c_char * 1008)]


class AdamWTensor(_Struct):
    """One tensor of a step; addresses of its values."""

    _fields_ = [("struct_size", ctypes.c_uint32), ("gradient_dtype", ctypes.c_uint32),
                ("moment_dtype", ctypes.c_uint32), ("seed", ctypes.c_uint32), ("count", _Long),
                ("parameters", ctypes.c_void_p), ("first_moment", ctypes.c_void_p), ("second_moment", ctypes.c_void_p),
                ("gradient", ctypes.c_void_p), ("bfloat16_copy", ctypes.c_void_p), ("followed", ctypes.c_void_p),
                ("gradient_scale", ctypes.c_double), ("lr", ctypes.c_double), ("beta1", ctypes.c_double),
                ("beta2", ctypes.c_double), ("epsilon", ctypes.c_double), ("weight_decay", ctypes.c_double),
                ("step", _Long)]


class OuterValues(_Struct):
    """Values of an outer step without a run; addresses of float32 values."""

    _fields_ = [("struct_size", ctypes.c_uint32), ("dtype", ctypes.c_uint32), ("count", _Long), ("theta", ctypes.c_void_p),
                ("anchor", ctypes.c_void_p), ("momentum", ctypes.c_void_p), ("lr", ctypes.c_float),
                ("momentum_factor", ctypes.c_float)]


_P = ctypes.POINTER
# Name without causeway_: its result type and argument types.
_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "abi": (ctypes.c_uint32, []),
    "version": (_Text, []),
    "digest": (ctypes.c_uint64, [ctypes.c_void_p, ctypes.c_size_t]),
    "move": (_Int, [_P(Work), ctypes.c_uint32, ctypes.c_void_p]),
    "theta_digest": (_Int, [_P(Block), ctypes.c_uint32, ctypes.c_void_p, _P(ctypes.c_uint64)]),
    "adamw_step": (_Int, [_P(AdamWTensor), _Int]),
    "adamw_step_beside": (_Int, [_P(AdamWTensor), _Int]),
    "outer_step": (_Int, [_P(OuterValues)]),
    "error": (_Int, [_P(ErrorInfo)]),
    "log_take": (_Int, [_P(LogLine)]),
    "run_open": (_Int, [_Text, _Int, _P(_Handle)]),
    "run_json": (_Int, [_Handle, _P(_Text)]),
    "run_close": (_Int, [_Handle]),
    "site_open": (_Int, [_Handle, _Text, _P(_Handle)]),
    "site_restore": (_Int, [_Handle, _P(Buffer), _Int]),
    "site_join": (_Int, [_Handle, _Int, _P(_Long)]),
    "site_after_step": (_Int, [_Handle, _Long, _P(Report), _Int, _P(_Long)]),
    "site_take_work": (_Int, [_Handle, _P(Work)]),
    "site_do_work": (_Int, [_Handle, _Long, ctypes.c_void_p]),
    "site_work_done": (_Int, [_Handle, _Long, ctypes.c_void_p, _Int]),
    "site_encode_on": (_Int, [_Handle, _Int]),
    "site_keep": (_Int, [_Handle, _Long, ctypes.c_void_p, ctypes.c_void_p]),
    "site_read_anchor": (_Int, [_Handle, _Int]),
    "site_report_eval": (_Int, [_Handle, ctypes.c_double]),
    "site_capture": (_Int, [_Handle, _Int, _P(_Handle)]),
    "state_parts": (_Int, [_Handle, _P(Buffer), _P(_Int)]),
    "state_close": (_Int, [_Handle]),
    "site_complete": (_Int, [_Handle, _Int]),
    "site_drain": (_Int, [_Handle, _Int]),
    "site_leave": (_Int, [_Handle, _Int, _Text, _Int]),
    "site_close": (_Int, [_Handle]),
    "site_stop": (_Int, [_Handle]),
    "site_waits": (_Int, [_Handle, _Text]),
    "site_ranks": (_Int, [_Handle, _Text]),
    "site_progress_json": (_Int, [_Handle, _Text, ctypes.c_size_t]),
}


class Library:
    """The functions of a loaded library, named without `causeway_`, with their prototypes. Thread-safe."""

    def __init__(self, loaded: Any, path: str) -> None:
        self.path = path
        for name, (returns, takes) in _PROTOTYPES.items():
            try:
                function = getattr(loaded, f"causeway_{name}")
            except AttributeError:
                raise errors.mismatch(path, f"a function causeway_{name}", "none of that name",
                                      "library and package are of different versions") from None
            function.restype, function.argtypes = returns, takes
            setattr(self, name, function)
        abi = self.abi()
        if abi != ABI:
            raise errors.mismatch(path, f"interface {ABI}", abi, "library and package are of different versions")

    def __getattr__(self, name: str) -> Any:  # for type checkers: __init__ has set all that there are
        raise AttributeError(name)

    def failure(self, status: int) -> errors.Error:
        """The exception for this thread's last call, which returned `status`."""
        info = ErrorInfo()
        if self.error(ctypes.byref(info)) != OK or info.code == OK:
            return errors.OF_CODE.get(status, errors.FailedError)(f"the library returned {status} without a reason")
        error_type = errors.OF_CODE.get(info.code, errors.FailedError)
        return error_type(_text(info.message), expected=_text(info.expected), got=_text(info.got),
                          tensor=_text(info.tensor), index=info.index)

    def check(self, status: int) -> None:
        """Raises unless the call succeeded."""
        if status != OK:
            raise self.failure(status)


# Flags of causeway-worker that the library's words name, and that are arguments here.
_FLAG = re.compile(r"--(?=(?:tls_ca|tls_cert|tls_key|token_file|insecure|use_proxy|coordinator|site|connect_timeout_s|"
                   r"max_up_mbit|max_down_mbit)\b)")


def _text(value: bytes | None) -> str:
    return in_arguments((value or b"").decode(errors="replace"))


def in_arguments(text: str) -> str:
    """A sentence of the library, in which what a program calls --tls_ca is the argument tls_ca."""
    return _FLAG.sub("", text)


def _mode() -> int:
    """How to load it: its own gRPC, protobuf and abseil come before those that other packages made global, as
    TensorFlow does. A preloaded allocator has to stay the only one, and a sanitizer refuses the flag."""
    def allocator(library: ctypes.CDLL) -> int | None:  # malloc itself has an address in the interpreter, too
        return ctypes.cast(library.malloc_usable_size, ctypes.c_void_p).value

    alone = allocator(ctypes.CDLL(None)) == allocator(ctypes.CDLL("libc.so.6"))
    return os.RTLD_LOCAL | (os.RTLD_DEEPBIND if alone else 0)


def _warn_of_namesake() -> None:
    """Another project has the name `causeway` on PyPI, and installs into a folder of that name, too."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        version = importlib.metadata.version("causeway")
        warnings.warn(f"the distribution causeway {version} is installed beside causeway-diloco, into the same folder "
                      f"{pathlib.Path(__file__).parent}: it is another project's, or an earlier build of this one. pip uninstall "
                      "causeway, and install causeway-diloco again", stacklevel=2)


@functools.cache
def load() -> Library:
    """The library beside this file, or the one that the environment variable CAUSEWAY_LIBRARY names. Loaded once."""
    _warn_of_namesake()
    beside = pathlib.Path(__file__).with_name("libcauseway.so")
    path = os.environ.get(PATH_VARIABLE) or str(beside)
    try:
        loaded = ctypes.CDLL(path, _mode())
    except OSError as error:
        raise errors.ConfigError(f"expected the library libcauseway.so, got: {error}; install the package with "
                                 f"`pip install .`, or name the library in {PATH_VARIABLE}",
                                 expected=path, got=str(error)) from error
    return Library(loaded, path)
