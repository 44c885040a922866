"""A site's calls on all of its ranks: the leader makes them, and the others carry out the work that it hands out.

    leader     LeadingSite.after_step ── all have entered ─► SiteHandle.after_step ─► pieces ─► Carrier ─┐
    followers  FollowingSite.after_step ─► ENTER ─► plans until DONE ◄───────────── WORK … DONE ─────────┘

Both have SiteHandle's calls, and a script sees no difference. The result of a call is what the leader says in DONE, also
whether the site stops: so all ranks leave their loops after the same step. A site of one rank is led and has no followers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

from causeway import _memory
from causeway._handles import SiteHandle
from causeway._log import LOGGER
from causeway._participant import OpenedSite, open_site
from causeway.errors import Error, FailedError, RankError, mismatch
from causeway.torch._alone import AloneSite, config_of
from causeway.torch._boxes import Listing, Table
from causeway.torch._carrier import Carrier
from causeway.torch._model import Model
from causeway.torch._peers import Message
from causeway.torch._ranks import DONE, WORK, Ranks
from causeway.torch._store import TensorStore

_OPEN = "DiLoCo"
_PROGRESS_S = 1.0  # between two copies of the leader's progress at the followers


def open_ranks(ranks: Ranks, own: Listing, collected: Model, options: Mapping[str, object],
               expectations: Mapping[str, Any], data: Mapping[str, object] | None,
               files: Mapping[str, bytes]) -> tuple[OpenedSite, Carrier]:
    """The ranks agree on the site's model, and the leader opens the site. Returns the site, and the carrier of values.

    Args:
        own: this rank's tensors, for the table of all ranks.

    Raises: ConfigError, RefusedError, UnreachableError, on all ranks alike.
    """
    if not ranks.leads:
        ranks.enter(_OPEN, {**own.to_json(), "options": dict(options)})
        opened = _done(ranks, _OPEN)
        carrier = _carrier_of(ranks, collected, Table([Listing.from_json(each) for each in opened["listings"]]))
        carrier.connect()
        ranks.returned()
        return OpenedSite(FollowingSite(ranks, carrier), opened["config"], opened["run_id"]), carrier
    others = ranks.gather(_OPEN)
    for rank, other in enumerate(others, 1):
        for key, value in other["options"].items():
            if value is not None and value != options.get(key):
                raise mismatch(key, f"{options.get(key)} as on rank 0", f"{value} on rank {rank}", "all ranks are one site")
    table = Table([own, *map(Listing.from_json, others)])
    carrier = _carrier_of(ranks, collected, table)
    if alone := bool(options.get("alone")):
        config, run_id = config_of(expectations), ""
        site: SiteHandle | AloneSite = AloneSite(table, carrier, config)
    else:
        opened_site, config, run_id = open_site(options, expectations, table.tensors, data, carrier, files)
        site = cast(SiteHandle, opened_site)
        try:
            _memory.check(sum(map(table.values, range(len(table.tensors)))), config)
        except Error:
            site.close()
            raise
    if others:
        listings = [own.to_json(), *({key: each[key] for key in own.to_json()} for each in others)]
        ranks.tell(DONE, {"call": _OPEN, "listings": listings, "config": config, "run_id": run_id})
    elif not alone and (device := carrier.store.encoding_device()) is not None:
        why_not = cast(SiteHandle, site).encode_on(device)
        LOGGER.info("contributions are encoded on %s", f"the host: {why_not}" if why_not else f"cuda:{device}")
    carrier.connect()
    ranks.returned()
    return OpenedSite(LeadingSite(site, ranks, carrier), config, run_id), carrier


def _carrier_of(ranks: Ranks, collected: Model, table: Table) -> Carrier:
    model = collected.numbered(table)
    names = {index: str(table.tensors[index]["name"]) for index in model.synced}
    return Carrier(ranks, table, TensorStore(model.synced, names))


def _done(ranks: Ranks, call: str) -> Message:
    """DONE of a call in which there are no plans."""
    message = ranks.hear()
    _check_call(ranks, call, message)
    return message


def _check_call(ranks: Ranks, call: str, message: Message) -> None:
    ranks.raise_failure()
    if message["call"] != call:
        raise RankError(f"{ranks.name(ranks.rank)} is in {call}, while {ranks.name(0)} is in {message['call']}: all ranks "
                        "make the same calls in the same order")


def _check_captured(why_not: str) -> None:
    if why_not:
        raise FailedError(why_not)


class LeadingSite:
    """Rank 0's."""

    def __init__(self, handle: SiteHandle | AloneSite, ranks: Ranks, carrier: Carrier) -> None:
        self._handle, self._ranks, self._carrier = handle, ranks, carrier
        self._latched = False
        self.run_steps = 0
        self._told = 0.0
        self.moved = False
        self._say_ranks("")
        ranks.on_failure = self._say_ranks

    @property
    def stopping(self) -> bool:
        """As the last call has reported to all ranks."""
        return self._handle.stopping if self._ranks.world == 1 else self._latched

    def _call(self, call: str, act: Callable[[list[Message]], Any], last: bool = False, steps: bool = False) -> Any:
        """Once all ranks are at it, or, for a step, were at the one before. An error ends the site on all of them."""
        reports = self._ranks.gather_before(call) if steps else self._ranks.gather(call)
        if self._ranks.stop_noted:
            self._handle.stop()
        try:
            result = act(reports)
        except Error as error:
            self._ranks.fail(error)
            raise
        self.moved, self._latched = self._handle.moved, self._handle.stopping
        self.run_steps = self._handle.run_steps
        if self._ranks.world > 1:
            self._ranks.tell(DONE, {"call": call, "result": result, "moved": self.moved, "stopping": self._latched,
                                    "run_steps": self.run_steps, "last": last, **self._progress_for_others(last)})
        self._ranks.returned()
        return result

    def _say_ranks(self, standing_still: str) -> None:
        """To the coordinator; also from the ranks' thread, while this one may be stuck in a collective."""
        if self._ranks.world > 1:
            slowest, step_s = self._ranks.slowest()
            self._handle.ranks({"ranks": self._ranks.world, "hosts": len(set(self._ranks.hosts)), "slowest": slowest,
                                "slowest_step_s": step_s, "standing_still": standing_still})

    def _progress_for_others(self, last: bool) -> Message:
        if last or not (self.moved or time.monotonic() - self._told > _PROGRESS_S):
            return {}
        self._told = time.monotonic()
        self._say_ranks(self._ranks.failure)
        return {"progress": self.progress()}

    # ---- SiteHandle's calls ----

    def restore(self, parts: Mapping[str, Any]) -> None:
        self._handle.restore(parts)

    def join(self) -> int:
        return int(self._call("join", lambda _: self._handle.join()))

    def after_step(self, step: int, *, tokens: int, loss: float, step_s: float) -> int:
        # The others' tokens and losses are those of their step before: so no rank waits for another's.
        def act(reports: list[Message]) -> int:
            losses = [loss, *(report.get("loss", math.nan) for report in reports)]
            known = [value for value in losses if not math.isnan(value)]
            return self._handle.after_step(
                step, tokens=self._carrier.table.tokens([tokens, *(report.get("tokens", 0) for report in reports)]),
                loss=sum(known) / len(known) if known else float("nan"), step_s=step_s)
        return int(self._call(f"after_step of step {step}", act, steps=True))

    def read_anchor(self) -> None:
        self._call("anchor_parameters", lambda _: self._handle.read_anchor())

    def report_eval(self, loss: float) -> None:
        self._handle.report_eval(loss)

    def capture(self) -> dict[str, bytearray]:
        parts: dict[str, bytearray] = {}

        def act(_: list[Message]) -> str:
            """Why there is no state now; "": there is."""
            try:
                parts.update(self._handle.capture())
            except RankError:
                raise
            except FailedError as error:
                return str(error)
            return ""
        _check_captured(self._call("state_dict", act))
        return parts

    def complete(self) -> None:
        self._call("complete", lambda _: self._handle.complete())

    def drain(self, timeout_s: float) -> bool:
        return bool(self._call("drain", lambda _: self._handle.drain(timeout_s)))

    def leave(self, finished: bool, reason: str, timeout_s: float) -> bool:
        if self._ranks.failure:
            return self._handle.leave(finished, self._ranks.failure[:300], timeout_s)
        return bool(self._call("leave", lambda _: self._handle.leave(finished, reason, timeout_s), last=True))

    def stop(self) -> None:
        self._handle.stop()

    def waits(self, what: str) -> None:
        self._handle.waits(what)

    def progress(self) -> dict[str, Any]:
        return self._handle.progress()

    def close(self) -> None:
        self._handle.close()


class FollowingSite:
    """Every other rank's."""

    def __init__(self, ranks: Ranks, carrier: Carrier) -> None:
        self._ranks, self._carrier = ranks, carrier
        self._progress: dict[str, Any] = {}
        self.moved = self.stopping = False
        self.run_steps = 0

    def _call(self, call: str, body: Message | None = None) -> Any:
        self._ranks.enter(call, body or {})
        while True:
            message = self._ranks.hear()
            if message["op"] == WORK:
                self._carrier.follow(message["plan"])
                continue
            _check_call(self._ranks, call, message)
            self.moved, self.stopping = message["moved"], message["stopping"]
            self.run_steps = message["run_steps"]
            self._progress = message.get("progress", self._progress)
            self._ranks.returned()
            return message["result"]

    # ---- SiteHandle's calls ----

    def restore(self, parts: Mapping[str, Any]) -> None:
        """The leader's alone."""

    def join(self) -> int:
        return int(self._call("join"))

    def after_step(self, step: int, *, tokens: int, loss: float, step_s: float) -> int:
        return int(self._call(f"after_step of step {step}", {"tokens": tokens, "loss": loss, "step_s": step_s}))

    def read_anchor(self) -> None:
        self._call("anchor_parameters")

    def report_eval(self, loss: float) -> None:
        """The leader's is the one that counts."""

    def capture(self) -> dict[str, bytearray]:
        _check_captured(self._call("state_dict"))
        return {}

    def complete(self) -> None:
        self._call("complete")

    def drain(self, timeout_s: float) -> bool:
        return bool(self._call("drain"))

    def leave(self, finished: bool, reason: str, timeout_s: float) -> bool:
        return bool(self._ranks.failure or self._call("leave"))

    def stop(self) -> None:
        self._ranks.note_stop()

    def waits(self, what: str) -> None:
        """The other ranks know of it, and the coordinator counts only the leader's own waits."""

    def progress(self) -> dict[str, Any]:
        return self._progress

    def close(self) -> None:
        """Nothing is open here."""
