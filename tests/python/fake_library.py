"""A stand-in for libcauseway.so in tests: Python functions of the interface's names, in memory, with scripted answers.

    fake = FakeLibrary()
    fake.answers["site_join"] = [AGAIN, AGAIN, WORK, OK]      # then OK
    fake.give(READ, tensor=0, count=4)                        # work, before the call that answers WORK
    with fake.loaded(): site = causeway.Site(…)

`calls` lists the calls by name, `on_call` may be set to watch them. `done` has all that was read and written.
"""

import contextlib
import ctypes
import functools
import json
import unittest.mock

import numpy

from causeway import _library
from causeway._library import AGAIN, OK, WORK

CONFIG = {"run": {"steps": 0}, "model": {"kind": "external"},
          "sync": {"sync_every": 20, "num_fragments": 2, "fragment_sync_delay": 1,
                   "fragment_update_alpha": numpy.float32(0.3).item(), "fragments": []}}


class Function:
    """Something with the attributes of a ctypes function."""

    def __init__(self, body):
        self.body = body

    def __call__(self, *arguments):
        return self.body(*arguments)


class FakeLibrary:
    def __init__(self, config=None):
        self.config = config or CONFIG
        self.answers = {}
        self.calls = []
        self.timeouts = []
        self.on_call = lambda name: None
        self.work = []
        self.taken = {}
        self.done = []  # (kind, tensor, first, values as they were when it was done, failed)
        self.kept = []  # (theta, stream) of KEEPs
        self.failure = {}
        self.lines = []
        self.progress = {"stays": 1, "stopping": False, "sites": ["eu"], "fragments": [], "codec_up": "int4",
                         "codec_down": "int4"}
        self.progress |= dict.fromkeys(("stall_s", "slack_s", "up_bytes", "down_bytes", "merged_weight", "rounds"), 0)
        self.next_step = None
        self.model = self.options = None
        self.parts = {"a": bytes(range(7)), "empty": b"", "b": b"xyz" * 30}
        self.restored = {}

    def __getattr__(self, name):
        if not name.startswith("causeway_"):
            raise AttributeError(name)
        function = Function(functools.partial(self.call, name.removeprefix("causeway_")))
        setattr(self, name, function)
        return function

    @contextlib.contextmanager
    def loaded(self):
        library = _library.Library(self, "fake.so")
        with unittest.mock.patch.object(_library, "load", lambda: library):
            yield library

    def fail(self, call, code, message="it failed", **info):
        """The next such call fails, with these fields of causeway_error_info."""
        self.failure = {"code": code, "message": message} | info
        self.answers.setdefault(call, []).append(code)

    def give(self, kind, *, tensor=0, first=0, count=1, flags=0, factor=0.0, values=None):
        staging = (ctypes.c_float * count)(*(values if values is not None else [0.0] * count))
        self.work.append({"kind": kind, "tensor": tensor, "first": first, "count": count, "flags": flags,
                          "factor": factor, "staging": staging})

    def call(self, name, *arguments):
        self.calls.append(name)
        self.on_call(name)
        result = getattr(self, f"do_{name}", lambda *_: OK)(*arguments)
        waiting = self.answers.get(name)
        return waiting.pop(0) if waiting else result

    # ---- Effects of calls beside their answer ----

    def do_abi(self):
        return _library.ABI

    def do_version(self):
        return b"0.0.fake"

    def do_digest(self, address, size):
        return len(ctypes.string_at(address, size)) + 0xC0FFEE

    def do_theta_digest(self, block, dtype, address, digest):
        digest._obj.value = block._obj.rows * block._obj.columns * (2 if dtype else 4) + 0xC0FFEE
        return OK

    def do_error(self, info):
        fields = {"message": "", "expected": "", "got": "", "tensor": "", "index": -1, "code": 1} | self.failure
        for key, value in fields.items():
            setattr(info._obj, key, value.encode() if isinstance(value, str) else value)
        return OK

    def do_log_take(self, line):
        if not self.lines:
            return AGAIN
        line._obj.level, line._obj.text, line._obj.dropped = self.lines.pop(0)
        return OK

    def do_run_open(self, options, timeout_ms, run):
        self.options = json.loads(options)
        self.timeouts.append(timeout_ms)
        run._obj.value = 11
        return OK

    def do_run_json(self, _, text):
        self.text = json.dumps({"run_id": "fake", "site": self.options["site"], "config": self.config}).encode()
        text._obj.value = self.text
        return OK

    def do_site_open(self, _, model, site):
        self.model = json.loads(model)
        site._obj.value = 22
        return OK

    def do_site_join(self, _, timeout_ms, step):
        self.timeouts.append(timeout_ms)
        step._obj.value = 0 if self.next_step is None else self.next_step
        return OK

    def do_site_after_step(self, _, step, report, timeout_ms, following):
        self.timeouts.append(timeout_ms)
        self.report = report._obj
        following._obj.value = step if self.next_step is None else self.next_step
        return OK

    def do_site_take_work(self, _, work):
        if not self.work:
            return AGAIN
        piece = self.work.pop(0)
        identity = len(self.taken) + 1
        self.taken[identity] = piece
        for key in ("kind", "tensor", "first", "count", "flags", "factor"):
            setattr(work._obj, key, piece[key])
        work._obj.id, work._obj.values = identity, ctypes.addressof(piece["staging"])
        return OK

    def do_site_do_work(self, _, identity, address):
        piece = self.taken[identity]
        anchor = piece["flags"] & _library.ANCHOR
        dtype = "float32" if anchor else self.model["tensors"][piece["tensor"]]["dtype"]
        size = 4 if dtype == "float32" else 2
        self.move(piece["kind"], piece["factor"], numpy.frombuffer(piece["staging"], numpy.float32), size, address)
        return self.do_site_work_done(_, identity, None, False)

    def do_move(self, work, dtype, address):
        piece = work._obj
        values = numpy.frombuffer((ctypes.c_float * piece.count).from_address(piece.values), numpy.float32)
        self.move(piece.kind, piece.factor, values, 2 if dtype else 4, address)
        return OK

    def move(self, kind, factor, values, size, address):
        held = numpy.frombuffer((ctypes.c_char * (len(values) * size)).from_address(address),
                                numpy.float32 if size == 4 else numpy.uint16)
        theta = held.copy() if size == 4 else (held.astype(numpy.uint32) << 16).view(numpy.float32)
        factor = numpy.float32(factor)
        if kind == _library.READ:
            values[:] = theta
        else:
            theta = {_library.WRITE: values, _library.MIX: factor * theta + (1 - factor) * values,
                     _library.ADD: theta - factor * values}[kind]
            bits = theta.astype(numpy.float32).view(numpy.uint32)
            held[:] = theta if size == 4 else (bits + 0x7FFF + (bits >> 16 & 1)) >> 16  # bfloat16, to nearest

    def do_site_keep(self, _, identity, theta, stream):
        self.kept.append((theta, stream))
        return self.do_site_work_done(_, identity, None, False)

    def do_site_work_done(self, _, identity, _event, failed):
        piece = self.taken[identity]
        self.done.append((piece["kind"], piece["tensor"], piece["first"], list(piece["staging"]), bool(failed)))
        return OK

    def do_site_capture(self, _, timeout_ms, state):
        self.timeouts.append(timeout_ms)
        state._obj.value = 33
        return OK

    def do_state_parts(self, _, buffers, count):
        if buffers is None:
            count._obj.value = len(self.parts)
            return OK
        self.kept = [ctypes.create_string_buffer(data, max(1, len(data))) for data in self.parts.values()]
        for buffer, (name, data), kept in zip(buffers, self.parts.items(), self.kept):
            buffer.name, buffer.data, buffer.bytes = name.encode(), ctypes.addressof(kept), len(data)
        return OK

    def do_site_restore(self, _, buffers, count):
        for buffer in buffers[:count]:
            if buffer.data % 64:
                raise AssertionError(f"part {buffer.name} is not aligned")
            self.restored[buffer.name.decode()] = ctypes.string_at(buffer.data, buffer.bytes)
        return OK

    def do_site_leave(self, _, finished, reason, timeout_ms):
        self.timeouts.append(timeout_ms)
        self.left = bool(finished), reason.decode()
        return OK

    def do_site_progress_json(self, _, text, size):
        data = json.dumps({"run_steps": self.config["run"]["steps"]} | self.progress).encode()
        if len(data) + 1 > size:
            self.failure = {"code": 2, "message": "size", "expected": str(len(data) + 1), "got": str(size)}
            return 2
        text.value = data
        return OK


__all__ = ["AGAIN", "OK", "WORK", "FakeLibrary"]
