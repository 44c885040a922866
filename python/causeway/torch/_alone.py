"""DiLoCo on one machine, without a coordinator: in the place of the library's site, one that steps W itself.

    every H steps     θ ─READ─► g = W − θ;  v ← fma(μ, v, g);  W ← fma(−η, fma(μ, v, g), W) ─WRITE─► θ

A run of one site whose contributions are exact and wait for nothing (codec float32, one fragment, delay and alpha 0)
has the same bits. θ crosses in the same pieces as in a run, so that shards, masters and devices are as there; rank 0
holds W and v. Source: arXiv 2311.08105, Algorithm 1 with one worker.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import numbers
from collections.abc import Mapping
from typing import Any

import torch

from causeway import _library, _log, _memory, _options
from causeway._handles import Steps
from causeway._library import Work
from causeway.errors import FailedError, NonFiniteError, RestoreError, mismatch
from causeway.torch._boxes import Table
from causeway.torch._carrier import Carrier, PieceCalls
from causeway.torch._store import DTYPES

SETTINGS: dict[str, int | float] = {"sync_every": 30, "outer_lr": 0.7, "outer_momentum": 0.5, "steps": 0}
_HELD = 12  # bytes a value: W, v, and θ as it was read


def options(_leads: bool, coordinator: str | None, site: str | None, connection: Mapping[str, Any]) -> dict[str, Any]:
    """In the place of RunHandle's options. Raises ConfigError for arguments of a run."""
    given = {"coordinator": coordinator, "site": site, **connection}
    given.pop("rank_timeout_s", None)
    for key, value in given.items():
        if value:
            raise mismatch(f"alone=True: {key}", "none: it takes part in no run", repr(value), "leave out either")
    _options.check_not_tried("alone=True")
    return {"alone": True}


def config_of(expectations: Mapping[str, Any]) -> dict[str, Any]:
    """The script's settings in the form of run.yaml, with every key that a site reads. Raises ConfigError."""
    given: dict[str, Any] = SETTINGS | {key: value for key, value in expectations.items() if value is not None}
    for key in SETTINGS:
        value, least = given[key], 1 if key == "sync_every" else 0
        whole = key in ("sync_every", "steps")
        kind: Any = numbers.Integral if whole else numbers.Real  # numpy's, too
        if isinstance(value, bool) or not isinstance(value, kind) or not least <= value < (
                1 if key == "outer_momentum" else float("inf")):
            raise mismatch(key, f"{'a whole number' if whole else 'a number'} from {least} on"
                           + (" below 1" if key == "outer_momentum" else ""), repr(value))
        given[key] = int(value) if whole else float(value)
    config = {"run": {"steps": given["steps"], "tokens": 0}, "outer": {"lr": given["outer_lr"], "momentum": given["outer_momentum"]},
              "sync": {"sync_every": given["sync_every"], "fragment_sync_delay": 0, "fragment_update_alpha": 0.0,
                       "num_fragments": 1}}
    for key in given.keys() - SETTINGS.keys():
        if given[key] != config["sync"].get(key):
            raise mismatch(f"alone=True: {key}", config["sync"].get(key, "none"), repr(given[key]),
                           "nothing is sent, so all parameters take each outer step at once")
    return config


class _Values:
    """W, v and θ of all tensors, one behind the other, on the host. Rank 0's."""

    def __init__(self, table: Table, carrier: Carrier, outer: Mapping[str, float], site: PieceCalls) -> None:
        """Raises ConfigError where the host has too little memory."""
        self._carrier, self._site, self._library = carrier, site, _library.load()
        self._outer = {"lr": outer["lr"], "momentum_factor": outer["momentum"]}
        self._tensors = [index for index in range(len(table.tensors)) if table.values(index)]
        self._dtypes = [DTYPES[str(table.tensors[index]["dtype"])] for index in self._tensors]
        self.names = [str(table.tensors[index]["name"]) for index in self._tensors]
        self.counts = [table.values(index) for index in self._tensors]
        self._ends = list(itertools.accumulate(self.counts))
        _memory.check_bytes(self._ends[-1], self._ends[-1] * _HELD, "training alone takes")
        self.w, self.v, self._theta = (torch.zeros(self._ends[-1], device="cpu") for _ in range(3))

    def carry(self, kind: int, values: torch.Tensor, flags: int = 0) -> None:
        """Moves all tensors, from or to `values`."""
        self._carrier.carry_out([Work(kind=kind, id=at, tensor=tensor, flags=flags, count=count,
                                      values=values[end - count:].data_ptr())
                                 for at, (tensor, count, end) in enumerate(zip(self._tensors, self.counts, self._ends))],
                                self._site)

    def digest(self) -> int:
        """The digest of θ, as a run's checkpoints have it."""
        sums = (ctypes.c_uint64 * len(self._tensors))()
        size = ctypes.sizeof(ctypes.c_uint64)
        self._carrier.carry_out([Work(kind=_library.DIGEST, id=at, tensor=tensor, count=count,
                                      values=ctypes.addressof(sums) + at * size)
                                 for at, (tensor, count) in enumerate(zip(self._tensors, self.counts))], self._site)
        return sum(sums) & (1 << 64) - 1

    def check_finite(self, values: torch.Tensor, step: int) -> None:
        """Raises NonFiniteError that names the first value."""
        if bool(values.isfinite().all()):
            return
        at = int((~values.isfinite()).nonzero()[0])
        place = next(i for i, end in enumerate(self._ends) if at < end)
        name, index = self.names[place], at - self._ends[place] + self.counts[place]
        raise NonFiniteError(f"{name}: expected finite values, got {float(values[at])} at {index}, after step {step}",
                             tensor=name, index=index)

    def outer_step(self, step: int) -> None:
        """Nothing has moved where it raises NonFiniteError."""
        self.carry(_library.READ, self._theta)
        self.check_finite(self._theta, step)
        begin = 0
        for dtype, alike in itertools.groupby(zip(self._dtypes, self._ends), key=lambda each: each[0]):
            end = max(end for _, end in alike)
            theta, w, v = (each[begin:].data_ptr() for each in (self._theta, self.w, self.v))
            self._library.check(self._library.outer_step(ctypes.byref(_library.OuterValues(
                dtype=dtype, count=end - begin, theta=theta, anchor=w, momentum=v, **self._outer))))
            begin = end
        self.carry(_library.WRITE, self.w)


class AloneSite:
    """SiteHandle's calls, by which DiLoCo trains alone. On rank 0."""

    def __init__(self, table: Table, carrier: Carrier, config: Mapping[str, Any]) -> None:
        """Raises ConfigError where the host has too little memory."""
        self._values = _Values(table, carrier, config["outer"], self)
        self._config = config
        self._restored: dict[str, Any] | None = None
        self._joined = False
        self._step = self._rounds = self._tokens = 0
        self._steps: Steps | None = None
        self.stopping = self.moved = False
        self.run_steps = int(config["run"]["steps"])

    # ---- The calls of a store ----

    def keep(self, piece: Work, theta: int, stream: int) -> None:
        raise AssertionError("no KEEP is given out")

    def work_done(self, piece: Work, event: int | None = None) -> None:
        """carry_out returns when all is done."""

    def work_failed(self, piece: Work) -> None:
        """carry_out raises."""

    # ---- SiteHandle's calls ----

    def restore(self, parts: Mapping[str, Any]) -> None:
        values = {name: torch.frombuffer(data, dtype=torch.float32) for name, data in parts.items()
                  if name in ("anchor", "momentum")}
        head = json.loads(bytes(parts["head"])) if len(values) == 2 and "head" in parts else {}
        own = list(map(list, zip(self._values.names, self._values.counts)))
        if head.get("tensors") != own or any(each.numel() != self._values.w.numel() for each in values.values()):
            other = next((f"{got[0]} of {got[1]} values" for got, mine in itertools.zip_longest(head["tensors"], own)
                          if got != mine and got), "fewer tensors") if head else f"parts {', '.join(sorted(parts))}"
            expected = f"the state of a DiLoCo with alone=True of {len(own)} tensors as the model's"
            raise RestoreError(f"state: expected {expected}, got {other}", expected=expected, got=other)
        self._values.w.copy_(values["anchor"])
        self._values.v.copy_(values["momentum"])
        self._restored = head

    def join(self) -> int:
        if self._joined:
            raise FailedError("expected one call of join, got a second", expected="one call", got="a second")
        if self._restored is None:
            self._values.carry(_library.READ, self._values.w)
            self._values.check_finite(self._values.w, 0)
        else:
            self._step, self._rounds = int(self._restored["step"]), int(self._restored["rounds"])
            if self._values.digest() != self._restored["digest"]:
                raise RestoreError(f"state of step {self._step}: expected θ of that step, got other values: load model and "
                                   "optimizer of the same checkpoint", expected=f"θ of step {self._step}", got="other values")
        self._joined = True
        self._steps = Steps(self._step)
        _log.tell(f"trains alone, in no run: no other site takes part; an outer step every "
                  f"{self._config['sync']['sync_every']} steps, outer_lr {self._config['outer']['lr']:g}, outer_momentum "
                  f"{self._config['outer']['momentum']:g}")
        return self._step

    def after_step(self, step: int, *, tokens: int, loss: float, step_s: float) -> int:
        self._step, self._tokens, self.moved = step, self._tokens + tokens, False
        if step % self._config["sync"]["sync_every"] == 0 and not 0 < self.run_steps < step:
            self._values.outer_step(step)
            self.moved = True
            self._rounds += 1
        if self._steps is not None and _log.shows_steps:
            self._steps.done(step, self.run_steps, loss)
        return step

    def read_anchor(self) -> None:
        self._values.carry(_library.WRITE, self._values.w, _library.ANCHOR)

    def report_eval(self, loss: float) -> None:
        _log.LOGGER.info("held-out loss %.4f after %d outer steps", loss, self._rounds)

    def capture(self) -> dict[str, bytearray]:
        held = self._values
        head = {"step": self._step, "rounds": self._rounds, "tensors": list(zip(held.names, held.counts)),
                "digest": held.digest()}
        values = {name: bytearray((ctypes.c_char * (4 * each.numel())).from_address(each.data_ptr()))
                  for name, each in (("anchor", held.w), ("momentum", held.v))}
        return {"head": bytearray(json.dumps(head).encode()), **values}

    def complete(self) -> None:
        """No round is open."""

    def drain(self, timeout_s: float) -> bool:
        return True

    def leave(self, finished: bool, reason: str, timeout_s: float) -> bool:
        return True

    def stop(self) -> None:
        self.stopping = True

    def waits(self, what: str) -> None:
        """No coordinator asks."""

    def ranks(self, said: Mapping[str, object]) -> None:
        """No coordinator asks."""

    def progress(self) -> dict[str, Any]:
        return {"step": self._step, "rounds": self._rounds, "run_steps": self.run_steps, "run_tokens": self._tokens,
                "stays": int(self._joined), "stopping": self.stopping, "digests": {}, "sites": [], "fragments": [],
                "codec_up": "", "codec_down": "", **dict.fromkeys(("stall_s", "slack_s", "up_bytes", "down_bytes", "merged_weight"), 0.0)}

    def close(self) -> None:
        """Nothing is open."""
