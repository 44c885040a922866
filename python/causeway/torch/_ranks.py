"""The processes of a site: rank 0 leads, and the others follow its calls.

    follower   ENTER (call, what it reports) ─────► leader: acts once all have entered the same call
    follower ◄───── WORK (a plan) … DONE (result) ─ leader
    both       ALIVE, ERROR: a wait is known from a hang, and a rank that ends from one that is slow

Messages are JSON over TCP, a connection from each follower to the leader, made over the process group: so they name the
rank that has ended or hangs, which a collective does not. A thread of each rank takes messages and says ALIVE; sends
come from it and from the site's thread. A site of one rank has no connection and no thread, and all calls are empty.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing import connection as connections
from typing import Any, TypeVar

from torch import distributed

from causeway._log import LOGGER
from causeway.errors import OF_CODE, Error, FailedError, RankError, mismatch
from causeway.torch._peers import LOOK_S, TRAINING, Message, Patience, Peer, check_world, connect

Result = TypeVar("Result")

ENTER, WORK, DONE, ALIVE, ERROR, REPLY = "enter", "work", "done", "alive", "error", "reply"


class Ranks:
    """The ranks of a site, of which this process is one. Calls from the site's thread, but `note_stop`.

    Attributes:
        rank, world: this process's number, and how many there are.
        hosts: the host's name of each rank.
        failure: the sentence that ended the ranks' common work; "" while there is none.
    """

    def __init__(self, group: distributed.ProcessGroup | None, timeout_s: float) -> None:
        """Connects the ranks. Raises ConfigError on each rank if there is no group, or some rank does not come.

        Args:
            group: of the site's ranks; None: all.
            timeout_s: how long a rank may be silent, or behind without a known wait.
        """
        self.rank, self.world = check_world(group)
        self.timeout_s = timeout_s
        self.hosts = [socket.gethostname()]
        self.failure = ""
        self.group = group
        self.host_group: distributed.ProcessGroup | None = None  # Gloo, of this class's own
        self.on_failure: Callable[[str], None] = lambda sentence: None  # any thread
        self._changed = threading.Condition()
        self._peers: dict[int, Peer] = {}
        self._received: collections.deque[Message] = collections.deque()  # by a follower, from the leader
        self._failed_with: Message | None = None
        self._where, self._known, self._since = TRAINING, True, time.monotonic()
        self._calls: collections.deque[str] = collections.deque()  # of the leader, that not all others have entered
        self._begun = time.monotonic()  # the leader's call before
        self._stepped = False
        self._last: collections.Counter[int] = collections.Counter()  # calls at which each rank was the last
        self._last_s: collections.Counter[int] = collections.Counter()  # its steps' seconds at these
        self._watched = time.monotonic()
        self._returned_at = self._watched, self._watched
        self._stop = self._over = False
        self._ending = False  # the last message was sent or received
        self._thread: threading.Thread | None = None
        if self.world > 1:
            try:
                self.host_group = self.new_group("gloo")
                self.hosts, self._peers = connect(self.host_group, self.rank, self.world, timeout_s)
            except (RuntimeError, OSError) as error:
                raise mismatch("ranks", f"all {self.world} ranks of the site to make their DiLoCo within {timeout_s:g} s",
                               _first_line(error), f"this is rank {self.rank}") from error
            self._thread = threading.Thread(target=self._run, name="causeway-ranks", daemon=True)
            self._thread.start()

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def name(self, rank: int) -> str:
        """ "rank 3 of 8 (host)" """
        return f"rank {rank} of {self.world} ({self.hosts[rank]})"

    # ---- Connections ----

    def new_group(self, backend: str) -> Any:
        """A process group of the site's ranks with the timeout. All ranks alike."""
        timeout = timedelta(seconds=self.timeout_s)
        with _keys_of_this_attempt():
            if self.group is None:
                return distributed.new_group(backend=backend, timeout=timeout)
            return distributed.new_group(distributed.get_process_group_ranks(self.group), backend=backend, timeout=timeout,
                                         use_local_synchronization=True)

    # ---- The thread ----

    def _run(self) -> None:
        period = min(max(self.timeout_s / 6, 0.05), 5.0)
        of_connection = {peer.connection: rank for rank, peer in self._peers.items()}
        while not self._over:
            for ready in connections.wait(list(of_connection), period):
                rank = of_connection[ready]  # type: ignore[index]
                try:
                    self._take(rank, json.loads(self._peers[rank].connection.recv_bytes()))
                except (EOFError, OSError):
                    del of_connection[self._peers[rank].connection]
                    self._lost(rank)
            self._watch(period)

    def _take(self, rank: int, message: Message) -> None:
        peer = self._peers[rank]
        with self._changed:
            peer.heard, peer.silent = time.monotonic(), False
            if message["op"] == ALIVE:
                peer.where, peer.known, peer.since = message["where"], message["known"], message["since"]
                self._stop = self._stop or bool(message.get("stop"))
            elif message["op"] == ERROR:
                self._fail(message["sentence"], message)
            elif message["op"] == REPLY:
                peer.reply = message
            elif message["op"] == ENTER:
                self._stop = self._stop or bool(message["stop"])
                peer.entered.append({**message, "at": peer.heard})
            else:
                self._ending = self._ending or bool(message.get("last"))
                self._received.append(message)
            self._changed.notify_all()

    def _lost(self, rank: int) -> None:
        with self._changed:
            if not self._ending:
                self._fail(f"{self.name(rank)} ended")
            self._changed.notify_all()

    def _watch(self, period: float) -> None:
        """Sends ALIVE once a period, and notices silent ranks. Time in which this process was stopped does not count."""
        now = time.monotonic()
        stopped_s, self._watched = max(0.0, now - self._watched - 2 * period), now
        for rank, peer in list(self._peers.items()):
            peer.heard += stopped_s
            if now - peer.told >= period:
                self._say_alive(rank)
            if not peer.silent and not self._over and now - peer.heard > self.timeout_s:
                peer.silent = True
                with self._changed:
                    self._fail(f"{self.name(rank)} has said nothing for {now - peer.heard:.1f} s: its process is stopped, "
                               "or its host is gone")
                    self._changed.notify_all()

    def _fail(self, sentence: str, message: Message | None = None) -> None:
        """The first failure counts. Under the condition."""
        if self.failure or self._over:
            return
        self.failure, self._failed_with = sentence, message
        LOGGER.error("a rank of this site failed: %s", sentence)
        self.on_failure(sentence)

    # ---- Messages ----

    def _send(self, rank: int, message: Message) -> None:
        self._peers[rank].send(json.dumps(message).encode())

    def _say_alive(self, rank: int) -> None:
        self._send(rank, {"op": ALIVE, "where": self._where, "known": self._known,
                          "since": round(time.monotonic() - self._since, 1), "stop": self._stop})

    def tell(self, op: str, message: Message | None = None) -> None:
        """The leader's, to all."""
        self._ending = self._ending or bool(message and message.get("last"))
        text = json.dumps({"op": op, **(message or {})}).encode() if self._peers else b""
        for peer in self._peers.values():
            peer.send(text)

    def enter(self, call: str, body: Message) -> None:
        """A follower is at a call, and sends what the leader needs from it."""
        self._set_where(f"in {call}", known=False)
        self.raise_failure()
        self._send(0, {"op": ENTER, "call": call, "stop": self._stop, **body})

    def hear(self) -> Message:
        """The leader's next message to a follower that is at a call."""
        patience, leader = Patience(self.timeout_s), self._peers[0]
        with self._changed:
            while not self._received:
                self.raise_failure()
                if patience.is_over(leader.known):
                    self._give_up(f"{self._place(0)}, while {self.name(self.rank)} is {self._where}")
                self._changed.wait(LOOK_S)
            return self._received.popleft()

    def gather(self, call: str) -> list[Message]:
        """The leader is at a call: waits until the others are too. Returns their messages in the order of ranks."""
        self._begin(call)
        self._await_entered(call, 0)
        return self._matched(call)

    def gather_before(self, call: str) -> list[Message]:
        """As gather, of the call before, and waits for no rank that trains in step with this one.

        Ranks that share a collective in each step are through with the call before when the leader is at this one. One
        that is not is waited for now, so that a rank that has skipped a step is found."""
        begun, self._begun = self._begun, self._begin(call)
        with self._changed:
            behind = any(len(peer.entered) < len(self._calls) - 1 for peer in self._peers.values())
        self._await_entered(call, 0 if behind else 1)
        messages = self._matched(self._calls[0]) if len(self._calls) > 1 else []
        if messages:
            at, rank = max((begun, 0), *((message["at"], rank) for rank, message in enumerate(messages, 1)))
            self._last[rank] += 1
            self._last_s[rank] += max(0.0, at - self._returned_at[0])
        return messages

    def _begin(self, call: str) -> float:
        self._set_where(f"in {call}", known=True)
        self._calls.append(call)
        return time.monotonic()

    def _await_entered(self, call: str, missing: int) -> None:
        """Returns when each rank has entered all calls of the leader that were not matched, but the last `missing`."""
        patience = Patience(self.timeout_s)
        with self._changed:
            for rank in sorted(self._peers):
                peer = self._peers[rank]
                while True:
                    for entered, expected in zip(peer.entered, self._calls):
                        if entered["call"] != expected:
                            self._give_up(f"{self.name(rank)} is in {entered['call']}, while {self.name(0)} is in "
                                          f"{expected}: all ranks make the same calls in the same order")
                    if len(peer.entered) >= len(self._calls) - missing:
                        break
                    self.raise_failure()
                    if patience.is_over(peer.known):
                        self._give_up(f"{self._place(rank)}, while {self.name(0)} is in {call}")
                    self._changed.wait(LOOK_S)

    def _matched(self, last: str) -> list[Message]:
        """One message of each rank, of the calls up to `last`: with the tokens of all of them."""
        messages: list[Message] = []
        with self._changed:
            while self._calls:
                call = self._calls.popleft()
                newest = [self._peers[rank].entered.popleft() for rank in sorted(self._peers)]
                before = messages or [{}] * len(newest)
                messages = [{**old, **new, "tokens": old.get("tokens", 0) + new.get("tokens", 0)}
                            for old, new in zip(before, newest)]
                if call == last:
                    break
        return messages

    def reply(self, message: Message) -> None:
        """A follower's answer to a plan."""
        self._send(0, {"op": REPLY, **message})

    def replies(self) -> list[Message]:
        """The leader's: one of each follower."""
        patience = Patience(self.timeout_s)
        with self._changed:
            for rank, peer in self._peers.items():
                while peer.reply is None:
                    self.raise_failure()
                    if patience.is_over():
                        self._give_up(f"{self.name(rank)} does not answer to a plan for {self.timeout_s:g} s")
                    self._changed.wait(LOOK_S)
            answers = [self._peers[rank].reply or {} for rank in sorted(self._peers)]
            for peer in self._peers.values():
                peer.reply = None
            return answers

    def _place(self, rank: int) -> str:
        """Where another rank is, and for how long, by its last message."""
        peer = self._peers[rank]
        return f"{self.name(rank)} is {peer.where} for {peer.since + time.monotonic() - peer.heard:.1f} s"

    # ---- Waits and failures ----

    def _set_where(self, where: str, known: bool) -> None:
        self._where, self._known, self._since = where, known, time.monotonic()
        if where == TRAINING:
            self._returned_at = self._returned_at[1], self._since  # from the call before, and from this one

    def returned(self) -> None:
        """The call is over: the script trains. Its first step may compile for as long as it takes."""
        self._stepped = self._stepped or self._where.startswith("in after_step")
        self._set_where(TRAINING, known=not self._stepped)

    def slowest(self) -> tuple[str, float]:
        """The rank that was the last at most calls since this was asked, and its time for a step; the leader's."""
        if not self._last:
            return "", 0.0
        (rank, calls), *_ = self._last.most_common(1)
        mean_s = self._last_s[rank] / calls
        self._last.clear()
        self._last_s.clear()
        return self.name(rank), mean_s

    @contextlib.contextmanager
    def known_wait(self, what: str) -> Iterator[None]:
        """The other ranks wait for this one however long it takes."""
        before = self._where, self._known
        self._set_where(f"at {what}", known=True)
        if self._thread is not None and self.failure == "":
            for rank in self._peers:
                self._say_alive(rank)
        try:
            yield
        finally:
            self._set_where(*before)

    def guard(self, act: Callable[[], Result]) -> Result:
        """A failure of PyTorch's collectives becomes a RankError that names a rank, where one is known."""
        self.raise_failure()
        try:
            return act()
        except RuntimeError as error:
            with self._changed:  # a connection's end is heard soon after it
                self._changed.wait_for(lambda: bool(self.failure), 1.0)
                self._fail(self.failure or f"values could not be moved between the ranks: {_first_line(error)}")
            self.raise_failure()
            raise

    def _give_up(self, sentence: str) -> None:
        self._fail(sentence)
        self._tell_error(RankError(sentence))
        self.raise_failure()

    def raise_failure(self) -> None:
        """Raises RankError, or the error of the rank that failed where it is not about ranks, if anything has failed."""
        if not self.failure:
            return
        code = (self._failed_with or {}).get("code")
        if code is not None and code != FailedError.code:
            info = self._failed_with or {}
            raise OF_CODE[code](self.failure, expected=info["expected"], got=info["got"], tensor=info["tensor"],
                                index=info["index"])
        raise RankError(self.failure)

    def fail(self, error: BaseException) -> None:
        """This rank cannot continue: it sends the others the reason, and nothing more. A second call does nothing."""
        if self.world == 1:
            return
        with self._changed:
            if isinstance(error, RuntimeError):  # of a collective: which rank has ended is heard soon after it
                self._changed.wait_for(lambda: bool(self.failure), 1.0)
            known = bool(self.failure)
            if not known:
                self.failure = f"{self.name(self.rank)}: {type(error).__name__}: {error}"[:500]
                self._failed_with = _told(error, self.failure)
        if not known:
            self._tell_error(error)

    def _tell_error(self, error: BaseException) -> None:
        message = _told(error, f"{self.name(self.rank)}: {type(error).__name__}: {error}"[:500])
        if isinstance(error, RankError):
            message["sentence"] = str(error)
        for rank in self._peers:
            self._send(rank, message)

    def note_stop(self) -> None:
        """This rank is to stop: it notifies the leader. Any thread, and signal handlers."""
        self._stop = True

    @property
    def stop_noted(self) -> bool:
        """Some rank, as far as is known here, has to stop."""
        return self._stop

    def close(self) -> None:
        """No message is taken or sent from here on."""
        self._over = True
        for peer in self._peers.values():
            peer.shut_down()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        for peer in self._peers.values():
            peer.close()


@contextlib.contextmanager
def _keys_of_this_attempt() -> Iterator[None]:
    """Processes that torchrun starts again have the store of those before, with addresses of processes that are gone
    under the same keys. PyTorch has no public way to another prefix."""
    attempt, default = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), distributed.group.WORLD
    groups: Any = getattr(getattr(distributed.distributed_c10d, "_world", None), "pg_map", {})
    if attempt == "0" or default not in groups:
        yield
        return
    backend, store = groups[default]
    groups[default] = backend, distributed.PrefixStore(f"causeway-{attempt}", store)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        groups[default] = backend, store


def _told(error: BaseException, sentence: str) -> Message:
    info = {key: getattr(error, key, "") for key in ("expected", "got", "tensor")}
    known = isinstance(error, Error) and not isinstance(error, FailedError)
    return {"op": ERROR, "sentence": str(error) if known else sentence, "index": getattr(error, "index", -1), **info,
            "code": getattr(error, "code", None) if known else None}


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
