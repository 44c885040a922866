"""Which rank holds which part of a site's tensors: one table, made once from the ranks' lists, and its cuts.

    rank 0: names, boxes ─┐
    rank 1: names, boxes ─┼─► Table ─► parts of a piece of work, for each rank: where in its shard, where in the piece
    rank 2: names, boxes ─┘

A box is an offset and a shape within the whole tensor: everything for a replica, some rows or columns for a shard, None
where a rank holds nothing. Pure: the same on every rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from causeway.errors import ConfigError, mismatch

Shape = tuple[int, ...]
Slices = tuple[slice, ...]


@dataclass(frozen=True)
class Box:
    """Values [offset, offset + shape) of a tensor, in each dimension."""

    offset: Shape
    shape: Shape

    @property
    def values(self) -> int:
        return prod(self.shape)

    def slices(self) -> Slices:
        return tuple(slice(first, first + size) for first, size in zip(self.offset, self.shape))


@dataclass(frozen=True)
class Listing:
    """The tensors of one rank.

    Attributes:
        tensors: as causeway.h lists them, named and shaped as the whole, in the rank's own order.
        boxes: what the rank holds of each that has values, by its index in `tensors`; None: nothing.
        digests: causeway_theta_digest of what it holds of those that are frozen.
        batch: equal on ranks that train on the same batch, as those of tensor parallelism do; "": on its own.
    """

    tensors: list[dict[str, Any]]
    boxes: dict[int, Box | None]
    digests: dict[int, int] = field(default_factory=dict)
    batch: str = ""

    def to_json(self) -> dict[str, Any]:
        boxes = {str(index): box and [box.offset, box.shape] for index, box in self.boxes.items()}
        digests = {str(index): digest for index, digest in self.digests.items()}
        return {"tensors": self.tensors, "boxes": boxes, "digests": digests, "batch": self.batch}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Listing:
        boxes = {int(index): box and Box(tuple(box[0]), tuple(box[1])) for index, box in value["boxes"].items()}
        digests = {int(index): digest for index, digest in value["digests"].items()}
        return Listing(list(value["tensors"]), boxes, digests, value["batch"])


@dataclass(frozen=True)
class Part:
    """The part of one rank in a range of a tensor's values.

    Attributes:
        local: these values of the rank's own tensor, row-major.
        within: where they are in the range, viewed as `view`: (rows, *the other dimensions), or (count,).
    """

    local: slice
    within: Slices
    view: Shape

    @property
    def values(self) -> int:
        return int(self.local.stop - self.local.start)


class Table:
    """The site's tensors, the union of its ranks' in the order of ranks, and the boxes of every rank.

    Attributes:
        tensors: as causeway.h lists them.
        boxes: of each tensor by its index, one for each rank.
    """

    def __init__(self, listings: Sequence[Listing]) -> None:
        """Raises ConfigError with the first difference between two ranks."""
        self.world = len(listings)
        self.tensors: list[dict[str, Any]] = []
        self.boxes: list[list[Box | None]] = []
        self._index: dict[str, int] = {}
        self._digests: list[list[int | None]] = []
        self._batches = [(listing.batch or f"rank {rank}") for rank, listing in enumerate(listings)]
        first_of: dict[str, int] = {}  # the rank that listed a tensor first
        stages: list[tuple[int, set[str]]] = []
        self._stages: list[int] = []
        for rank, listing in enumerate(listings):
            for index, tensor in enumerate(listing.tensors):
                self._add(rank, tensor, listing.boxes.get(index), first_of)
                self._digests[self._index[str(tensor["name"])]][rank] = listing.digests.get(index)
            self._stages.append(_stage_of(rank, {str(tensor["name"]) for tensor in listing.tensors}, stages))
        self._sources = [self._sources_of(index) for index in range(len(self.tensors))]
        for index, digests in enumerate(self._digests):
            self._add_digest(index, digests)
        self._whole = [all(box is not None and box.shape == tuple(tensor["shape"]) for box in boxes)
                       for tensor, boxes in zip(self.tensors, self.boxes)]

    def _add(self, rank: int, tensor: dict[str, Any], box: Box | None, first_of: dict[str, int]) -> None:
        name = str(tensor["name"])
        index = self._index.setdefault(name, len(self.tensors))
        if index == len(self.tensors):
            first_of[name] = rank
            self.tensors.append(dict(tensor))
            self.boxes.append([None] * self.world)
            self._digests.append([None] * self.world)
        elif self.tensors[index] != tensor:
            keys = sorted(set(tensor) | set(self.tensors[index]))
            key = next(key for key in keys if tensor.get(key) != self.tensors[index].get(key))
            raise mismatch(f"model: {name}: {key}", f"{self.tensors[index].get(key)} as on rank {first_of[name]}",
                           f"{tensor.get(key)} on rank {rank}", "all ranks of a site train one model", tensor=name)
        self.boxes[index][rank] = box

    def _sources_of(self, index: int) -> dict[int, Box]:
        """{rank: box}: each box once, from the first rank that holds it."""
        seen: dict[Box, int] = {}
        for rank, box in enumerate(self.boxes[index]):
            if box is not None and box.values > 0:
                seen.setdefault(box, rank)
        tensor = self.tensors[index]
        if any(self.boxes[index]) and sum(box.values for box in seen) != prod(tensor["shape"]):
            held = ", ".join(f"rank {rank} {list(box.shape)} at {list(box.offset)}" for box, rank in seen.items())
            raise ConfigError(f"model: {tensor['name']}: expected shards that make up its shape {tensor['shape']}, got "
                              f"{held or 'none'}", expected=tensor["shape"], got=held, tensor=str(tensor["name"]))
        return {rank: box for box, rank in seen.items()}

    def _add_digest(self, index: int, digests: Sequence[int | None]) -> None:
        """The digest of a frozen tensor: each value counts once, and its copies must be alike."""
        tensor, first = self.tensors[index], {box: rank for rank, box in self._sources[index].items()}
        if all(digest is None for digest in digests):
            return
        for rank, box in enumerate(self.boxes[index]):
            if box in first and digests[rank] != digests[first[box]]:
                raise mismatch(f"model: {tensor['name']}: frozen values", f"those of rank {first[box]}",
                               f"others on rank {rank}", "all ranks of a site train one model",
                               tensor=str(tensor["name"]))
        tensor["values_digest"] = f"{sum(digests[rank] or 0 for rank in first.values()) & (1 << 64) - 1:016x}"

    def index(self, name: str) -> int:
        """The site's number of a tensor."""
        return self._index[name]

    def values(self, tensor: int) -> int:
        """The number of synced tensors."""
        listed = self.tensors[tensor]
        return 0 if listed.get("frozen") or listed.get("alias_of") else prod(listed["shape"])

    def whole(self, tensor: int) -> bool:
        """Every rank holds the whole tensor."""
        return self._whole[tensor]

    def sources(self, tensor: int) -> dict[int, Box]:
        """{rank: box}: each value once."""
        return self._sources[tensor]

    def holders(self, tensor: int) -> dict[int, Box]:
        """{rank: box} of all ranks that hold some of it."""
        return {rank: box for rank, box in enumerate(self.boxes[tensor]) if box is not None and box.values > 0}

    def part(self, tensor: int, box: Box, first: int, count: int) -> Part | None:
        """The part of a rank with this box in values [first, first + count), which are whole rows if the box is a shard.

        None: nothing."""
        shape = tuple(self.tensors[tensor]["shape"])
        if box.shape == shape:
            return Part(slice(first, first + count), (slice(0, count),), (count,))
        row = prod(shape[1:])
        if first % row or count % row:
            raise ConfigError(f"{self.tensors[tensor]['name']}: expected work on whole rows of {row} values, got values "
                              f"{first} to {first + count}", expected=row, got=(first, count))
        begin, end = first // row, (first + count) // row
        low, high = max(begin, box.offset[0]), min(end, box.offset[0] + box.shape[0])
        if low >= high:
            return None
        within = Box((low - begin, *box.offset[1:]), (high - low, *box.shape[1:]))
        start = (low - box.offset[0]) * prod(box.shape[1:])
        return Part(slice(start, start + within.values), within.slices(), (end - begin, *shape[1:]))

    def cuts(self, tensor: int, first: int, count: int, most: int) -> Iterable[tuple[int, int]]:
        """(first, count) of consecutive ranges of at most `most` values, of whole rows where the tensor is sharded."""
        if not self.whole(tensor):
            row = max(1, prod(self.tensors[tensor]["shape"][1:]))
            most = max(row, most - most % row)
        return ((at, min(most, first + count - at)) for at in range(first, first + count, most))

    def first_of_stage(self, rank: int) -> bool:
        """It is the lowest rank of its stage of a pipeline; rank 0 of a site without."""
        return self._stages.index(self._stages[rank]) == rank

    # ---- Reports ----

    def tokens(self, reported: Sequence[int]) -> int:
        """The tokens of a step: each batch counts once, on the stage of a pipeline that says the most."""
        by_stage: dict[int, dict[str, int]] = {}
        for rank, tokens in enumerate(reported):
            batches = by_stage.setdefault(self._stages[rank], {})
            batch = self._batches[rank]
            batches[batch] = max(batches.get(batch, 0), tokens)
        return max(sum(batches.values()) for batches in by_stage.values())


def _stage_of(rank: int, names: set[str], stages: list[tuple[int, set[str]]]) -> int:
    """Ranks hold the same tensors, or, as stages of a pipeline, none in common."""
    for stage, (first, others) in enumerate(stages):
        if names == others:
            return stage
        if not names.isdisjoint(others):
            missing = sorted(names ^ others)[0]
            has, lacks = (rank, first) if missing in names else (first, rank)
            raise mismatch(f"model: {missing}", f"on rank {lacks} as on rank {has}, or no tensor in common",
                           f"none of that name beside {len(names & others)} that both have",
                           "all ranks of a site train one model", tensor=missing)
    stages.append((rank, names))
    return len(stages) - 1


@dataclass(frozen=True)
class Rows:
    """Consecutive values of a shard: `rows` rows of `columns` each, `stride` apart in the whole tensor, from `first`."""

    first: int
    rows: int
    columns: int
    stride: int


def rows_of(box: Box, shape: Shape) -> Iterable[Rows]:
    """Where a shard's values, row-major, have their places in a tensor of this shape, row-major: in their order."""
    if box.values == 0:
        return
    strides = [prod(shape[d + 1:]) for d in range(len(shape))]
    inner = len(shape)  # dimensions [inner, …) are whole, so that dimension inner − 1 makes consecutive runs
    while inner > 0 and box.shape[inner - 1] == shape[inner - 1]:
        inner -= 1
    if inner <= 1:
        yield Rows(box.offset[0] * strides[0] if shape else 0, 1, box.values, 0)
        return
    run = box.shape[inner - 1] * strides[inner - 1]
    outer = box.shape[:inner - 2]
    for number in range(prod(outer)):
        first = sum(box.offset[d] * strides[d] for d in range(inner))
        for d in reversed(range(len(outer))):
            number, at = divmod(number, outer[d])
            first += at * strides[d]
        yield Rows(first, box.shape[inner - 2], run, strides[inner - 2])
