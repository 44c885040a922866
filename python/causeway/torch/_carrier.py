"""Carries values between the library, which rank 0 has, and the shards of θ on all ranks of a site.

    KEEP              θ on a GPU of a site of one rank: the library copies it there, and encodes it there
    READ              each shard once, from the first rank that holds it ─► the leader ─► the library's memory
    WRITE, MIX, ADD   the library's memory ─► a broadcast where all ranks hold the whole tensor, else to each its box ─►
                      every rank moves what it holds, the leader, too: by the same arithmetic (_store.py)
    DIGEST            every rank sums up its own values ─► the leader
    ANCHOR            as WRITE, into an array beside θ

The leader hands a plan, moves of at most 64 MB, to the followers, and all carry it out alike. A site of one rank has the
same plans and hands them to no other. Source: docs/ranks.md.

A READ takes θ at the step: on the host into the library's memory or into that of a message, on a device into a copy there.
Carrying it may be late: a helper thread does that while the next step computes.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import distributed

from causeway import _library
from causeway._library import Work
from causeway.torch._boxes import Box, Part, Table
from causeway.torch._late_reads import Job, LateReads
from causeway.torch._ranks import WORK, Ranks
from causeway.torch._store import DeviceCopy, SideCopies, TensorStore

PLAN_VALUES = 16 << 20  # 64 MB of float32
_DIGEST_MASK = (1 << 64) - 1


class PieceCalls(Protocol):
    """The calls of SiteHandle that a carrier makes."""

    def keep(self, piece: Work, theta: int, stream: int) -> None: ...
    def work_done(self, piece: Work, event: int | None = None) -> None: ...
    def work_failed(self, piece: Work) -> None: ...


@dataclass(frozen=True)
class Move:
    """Some values of one tensor: the element of a plan.

    Attributes:
        tensor: by its number in the site's list.
        first, count: its values, row-major.
        values: on the leader, the library's memory of them, float32; None elsewhere, and for DIGEST.
        piece: on the leader, what it is a part of.
    """

    kind: int
    tensor: int
    flags: int
    first: int
    count: int
    factor: float
    values: torch.Tensor | None = None
    piece: Work | None = None

    def to_json(self) -> list[float]:
        return [self.kind, self.tensor, self.flags, self.first, self.count, self.factor]

    @staticmethod
    def from_json(value: Sequence[Any]) -> Move:
        return Move(*value)


class Carrier:
    """The Store of the leader's library, and the followers' counterpart. See _handles.Store."""

    def __init__(self, ranks: Ranks, table: Table, store: TensorStore) -> None:
        """`store` has this rank's shards, by the table's numbers."""
        self.table = table
        self.store = store
        self.ranks = ranks
        self._group: Any = ranks.host_group
        self.tag = 0
        self._late = LateReads(ranks)
        self.settle: Callable[[], object] = lambda: None  # waits for updates of θ that go on behind a step

    def connect(self) -> None:
        """Before the first plan, on all ranks: over NCCL where θ is on GPUs, which no test of this project has tried."""
        if self.ranks.world > 1 and self.store.device.type != "cpu":
            self._group = self.ranks.new_group("nccl")

    def close(self) -> None:
        """Ends the helper thread."""
        self._late.close()

    def raise_failure(self) -> None:
        """Raises an error of a late read on this rank since the last call."""
        self._late.raise_failure()

    # ---- Plans ----

    def carry_out(self, pieces: list[Work], site: PieceCalls) -> None:
        """Does all pieces, or hands the late ones to the helper. On an error, fails the pieces and raises it."""
        left = {piece.id: piece for piece in pieces}
        try:
            self.settle()
            for piece in (piece for piece in pieces if piece.kind == _library.KEEP):
                site.keep(piece, *self.store.on_device(piece.tensor, piece.first))
                left.pop(piece.id)
            for plan in self._plans([piece for piece in pieces if piece.kind != _library.KEEP]):
                self.ranks.tell(WORK, {"plan": [move.to_json() for move in plan]})
                ends = [move.piece for move in plan if move.piece is not None and _ends(move)]
                self._carry_out(plan, _Done(site, ends))
                for piece in ends:
                    left.pop(piece.id, None)
        except BaseException:
            for piece in left.values():
                site.work_failed(piece)
            raise

    def follow(self, plan: list[Any]) -> None:
        """Does a plan of the leader's carry_out."""
        self.settle()
        self._carry_out([Move.from_json(move) for move in plan], _Done(None, []))

    def _plans(self, pieces: list[Work]) -> Iterator[list[Move]]:
        plan: list[Move] = []
        values = 0
        for piece in pieces:
            for move in self._moves(piece):
                if plan and (_direction(plan[0]) != _direction(move) or values + move.count > PLAN_VALUES):
                    yield plan
                    plan, values = [], 0
                plan.append(move)
                values += move.count
        if plan:
            yield plan

    def _moves(self, piece: Work) -> Iterable[Move]:
        if piece.kind == _library.DIGEST:
            yield Move(piece.kind, piece.tensor, piece.flags, piece.first, piece.count, 0.0, None, piece)
            return
        if piece.device_values and self.ranks.world == 1:
            values = self.store.of_device(piece.device_values, piece.count)
        else:
            values = torch.frombuffer(piece.buffer(), dtype=torch.float32)
        for first, count in self.table.cuts(piece.tensor, piece.first, piece.count, PLAN_VALUES):
            at = first - piece.first
            yield Move(piece.kind, piece.tensor, piece.flags, first, count, piece.factor, values[at:at + count], piece)

    @torch.no_grad()
    def _carry_out(self, plan: list[Move], done: _Done) -> None:
        self.tag += 1
        if plan[0].kind == _library.READ:
            self._read(plan, done)
        elif plan[0].kind == _library.DIGEST:
            self._digest(plan)
            done()
        else:
            self._move(plan)
            done(self.store.ready_event() if any(move.piece and move.piece.device_values for move in plan) else None)

    def _parts(self, moves: Iterable[Move], boxes: Callable[[int], dict[int, Box]]) -> dict[int, list[tuple[Move, Part]]]:
        """{rank: what it holds of the moves, in their order}, by the boxes of a tensor."""
        parts: dict[int, list[tuple[Move, Part]]] = {}
        for move in moves:
            for rank, box in boxes(move.tensor).items():
                part = self.table.part(move.tensor, box, move.first, move.count)
                if part is not None:
                    parts.setdefault(rank, []).append((move, part))
        return parts

    # ---- READ ----

    def _read(self, plan: list[Move], done: _Done) -> None:
        parts = self._parts(plan, self.table.sources)
        late = all(move.flags & _library.BEFORE_CHANGE for move in plan)
        job: Job
        if self.ranks.leads:
            job = _Reading(self, parts, done)
        elif self.ranks.rank in parts:
            job = _Sending(self, parts[self.ranks.rank])
        else:
            return
        if job.take() and late:
            self._late.add(job)
        else:
            job.carry()

    # ---- WRITE, MIX, ADD ----

    def _move(self, plan: list[Move]) -> None:
        whole = [move for move in plan if self.table.whole(move.tensor)]
        if whole:
            self._move_everywhere(whole)
        sharded = [move for move in plan if not self.table.whole(move.tensor)]
        if sharded:
            self._move_shards(sharded)

    def _move_everywhere(self, moves: list[Move]) -> None:
        if self.ranks.world == 1:
            for move in moves:
                assert move.values is not None
                self._apply(move, slice(move.first, move.first + move.count), move.values)
            return
        if self.ranks.leads:
            data = torch.cat([_of(move) for move in moves]).to(self.store.device)
        else:
            data = self.empty(sum(move.count for move in moves))
        self.ranks.guard(lambda: distributed.broadcast(data, self._global(0), group=self._group))
        at = 0
        for move in moves:
            self._apply(move, slice(move.first, move.first + move.count), data[at:at + move.count])
            at += move.count

    def _move_shards(self, moves: list[Move]) -> None:
        parts = self._parts(moves, self.table.holders)
        mine = parts.get(self.ranks.rank, [])
        sends, own = [], None
        if self.ranks.leads:
            for rank, listed in parts.items():
                data = torch.cat([_of(move).view(part.view)[part.within].reshape(-1) for move, part in listed])
                if rank == 0:
                    own = data
                else:
                    sends.append(self.send(data.to(self.store.device), rank, self.tag))
        elif mine:
            own = self.empty(sum(part.values for _, part in mine))
            self.ranks.guard(self.receive(own, 0))
        at = 0
        for move, part in mine:
            assert own is not None
            self._apply(move, part.local, own[at:at + part.values])
            at += part.values
        for send in sends:
            self.ranks.guard(send)

    def _apply(self, move: Move, local: slice, values: torch.Tensor) -> None:
        if move.flags & _library.ANCHOR:
            self.store.keep_anchor(move.tensor, local, values)
        else:
            self.store.move(move.kind, move.factor, move.tensor, local, values)

    # ---- DIGEST ----

    def _digest(self, plan: list[Move]) -> None:
        sums = [self.store.digest(move.tensor, box) if (box := self.table.sources(move.tensor).get(self.ranks.rank))
                else 0 for move in plan]
        if not self.ranks.leads:
            self.ranks.reply({"digests": sums})
            return
        for answer in self.ranks.replies():
            sums = [(mine + theirs) & _DIGEST_MASK for mine, theirs in zip(sums, answer["digests"])]
        for move, digest in zip(plan, sums):
            assert move.piece is not None
            ctypes.c_uint64.from_address(move.piece.values or 0).value = digest

    # ---- Values between two ranks ----

    def _global(self, rank: int) -> int:
        return distributed.get_global_rank(self._group, rank)

    def empty(self, values: int) -> torch.Tensor:
        return torch.empty(values, dtype=torch.float32, device=self.store.device)

    def send(self, data: torch.Tensor, rank: int, tag: int) -> Callable[[], object]:
        """Begins, and returns what waits for its end."""
        work: Any = self.ranks.guard(lambda: distributed.isend(data, self._global(rank), group=self._group, tag=tag))
        return lambda: (work.wait(), data)  # which has to live until then

    def receive(self, data: torch.Tensor, rank: int) -> Callable[[], object]:
        """As send."""
        work: Any = self.ranks.guard(
            lambda: distributed.irecv(data, self._global(rank), group=self._group, tag=self.tag))
        return lambda: work.wait()


class _Done:
    """Says that pieces are done, where there is a library."""

    def __init__(self, site: PieceCalls | None, pieces: list[Work]) -> None:
        self._site, self._pieces = site, pieces

    def __call__(self, event: Any = None) -> None:
        """`event`: of a device, after which they are done; None: they are."""
        for piece in self._pieces:
            assert self._site is not None
            self._site.work_done(piece, event.cuda_event if event is not None and piece.device_values else None)

    def failed(self) -> None:
        for piece in self._pieces:
            assert self._site is not None
            self._site.work_failed(piece)


class _Reading(Job):
    """The leader's: its own shards, and those that the others send."""

    def __init__(self, carrier: Carrier, parts: dict[int, list[tuple[Move, Part]]], done: _Done) -> None:
        self._carrier, self._done = carrier, done
        self._own = parts.pop(0, [])
        self._taken: list[tuple[Move, Part, DeviceCopy]] = []
        self._open = True
        self._lock = threading.Lock()
        self._receiving = []
        for rank, listed in parts.items():  # begun now, so that all ranks begin in the same order
            data = carrier.empty(sum(part.values for _, part in listed))
            self._receiving.append((listed, data, carrier.receive(data, rank)))

    def take(self) -> bool:
        for move, part in self._own:
            copy = self._carrier.store.take(move.tensor, part.local, self._place(move, part))
            if copy is not None:
                self._taken.append((move, part, copy))
        return bool(self._taken or self._receiving)

    def carry(self) -> None:
        for move, part, copy in self._taken:
            with self._lock:  # afterwards the library's memory may be gone
                if self._open:
                    copy.bring(self._place(move, part))
        for listed, data, wait in self._receiving:
            side = SideCopies.where_needed(data)
            self._carrier.ranks.guard(functools.partial(side.after, wait) if side else wait)
            at = 0
            with self._lock:
                for move, part in listed if self._open else []:
                    place, values = self._place(move, part), data[at:at + part.values]
                    if side:
                        side.bring(values, place)
                    else:
                        place.copy_(values.view(place.shape))
                    at += part.values
        with self._lock:
            if self._open:
                self._done()
            self._open = False

    def abandon(self) -> None:
        with self._lock:
            if self._open:
                self._done.failed()
            self._open = False

    @staticmethod
    def _place(move: Move, part: Part) -> torch.Tensor:
        return _of(move).view(part.view)[part.within]


class _Sending(Job):
    """A follower's, of its shards."""

    def __init__(self, carrier: Carrier, parts: list[tuple[Move, Part]]) -> None:
        self._carrier, self._parts = carrier, parts
        self._tag = carrier.tag
        self._data = carrier.empty(sum(part.values for _, part in parts))
        self._sent = False

    def take(self) -> bool:
        at = 0
        for move, part in self._parts:
            self._carrier.store.take(move.tensor, part.local, self._data[at:at + part.values])
            at += part.values
        if self._data.device.type != "cpu":  # on the device's own stream, in the order of all that is done to θ
            self.carry()
        return not self._sent

    def carry(self) -> None:
        if not self._sent:
            self._sent = True
            self._carrier.ranks.guard(self._carrier.send(self._data, 0, self._tag))


def _of(move: Move) -> torch.Tensor:
    assert move.values is not None
    return move.values


def _direction(move: Move) -> int:
    """Moves of one plan go one way, and are awaited alike."""
    if move.kind in (_library.READ, _library.DIGEST):
        return move.kind * 4 + (move.flags & _library.BEFORE_CHANGE)
    return 0


def _ends(move: Move) -> bool:
    """It is the last of its piece."""
    piece = move.piece
    return piece is not None and move.first + move.count == piece.first + piece.count
