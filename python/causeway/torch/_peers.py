"""Connections between the ranks of a site: found over their process group, and then TCP from each to rank 0."""

from __future__ import annotations

import collections
import contextlib
import hmac
import os
import secrets
import socket
import threading
import time
from multiprocessing import connection as connections
from typing import Any

from torch import distributed

from causeway._log import LOGGER
from causeway.errors import ConfigError, mismatch

Message = dict[str, Any]

TRAINING = "in training"
LOOK_S = 0.2  # between two looks of a wait
_KEY_BYTES, _RANK_BYTES = 32, 4
_KEY_S = 5.0  # to say it
_ARRIVALS_PER_RANK = 4  # at once, of any kind


class Peer:
    """A connection to another rank, and what is known of it."""

    def __init__(self, stream: socket.socket) -> None:
        stream.settimeout(None)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = stream.dup()
        self.connection = connections.Connection(stream.detach())
        self.heard = self.told = time.monotonic()
        self.where, self.known, self.since, self.silent = TRAINING, True, 0.0, False  # a first step may compile
        self.entered: collections.deque[Message] = collections.deque()
        self.reply: Message | None = None
        self._sending = threading.Lock()

    def send(self, text: bytes) -> None:
        with self._sending, contextlib.suppress(OSError, ValueError):  # that it is gone is noticed where it is read
            self.connection.send_bytes(text)
            self.told = time.monotonic()

    def shut_down(self) -> None:
        """Both ends see the end of the connection, also where one of them waits for a message."""
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._stream.close()
        with self._sending, contextlib.suppress(OSError):
            self.connection.close()


class Patience:
    """How long one rank waits for another, without time in which it knows the reason or was stopped itself."""

    def __init__(self, timeout_s: float) -> None:
        self._left_s = self._timeout_s = timeout_s
        self._looked = time.monotonic()

    def is_over(self, known: bool = False) -> bool:
        now = time.monotonic()
        self._left_s -= min(now - self._looked, 5 * LOOK_S)
        self._looked = now
        if known:
            self._left_s = self._timeout_s
        return self._left_s < 0


def connect(group: Any, rank: int, world: int, timeout_s: float) -> tuple[list[str], dict[int, Peer]]:
    """The host of each rank, and this rank's connections: to all others on rank 0, elsewhere to it. Over `group`, of
    Gloo, go rank 0's address and a key, without which it takes no connection. Raises RuntimeError, OSError."""
    hosts: list[Any] = [None] * world
    distributed.all_gather_object(hosts, socket.gethostname(), group=group)
    hosts = [str(host) for host in hosts]
    listener = _listen(hosts) if rank == 0 else None
    offer = [(*listener.getsockname()[:2], secrets.token_bytes(_KEY_BYTES)) if listener else None]
    distributed.broadcast_object_list(offer, src=distributed.get_global_rank(group, 0), group=group)
    assert offer[0] is not None
    host, port, key = offer[0]
    if listener is None:
        stream = socket.create_connection((host, port), timeout_s)
        stream.sendall(key + rank.to_bytes(_RANK_BYTES, "big"))
        return hosts, {0: Peer(stream)}
    with listener:
        return hosts, _meet(listener, key, world, timeout_s)


def _meet(listener: socket.socket, key: bytes, world: int, timeout_s: float) -> dict[int, Peer]:
    """The connections of the other ranks. Each that comes is read on its own, and refused alone if it says no key in 5 s."""
    peers: dict[int, Peer] = {}
    arrivals: list[_Arrival] = []
    until = time.monotonic() + timeout_s
    listener.setblocking(False)
    while len(peers) < world - 1:
        takes_more = len(arrivals) < _ARRIVALS_PER_RANK * world  # the others wait in the listener's queue
        readable = connections.wait([*(arrival.stream for arrival in arrivals), *[listener] * takes_more], LOOK_S)
        if listener in readable:
            with contextlib.suppress(OSError):  # it has gone already
                arrivals.append(_Arrival(*listener.accept()))
        for arrival in arrivals:
            if arrival.stream in readable and (rank := arrival.read(key)) is not None:
                peers[rank] = Peer(arrival.stream)
        now = time.monotonic()
        for arrival in arrivals:
            if arrival.refused or arrival.until < now:
                arrival.refuse()
        arrivals = [arrival for arrival in arrivals if arrival.stream.fileno() >= 0]
        if now > until:
            for peer in peers.values():
                peer.close()
            missing = ", ".join(str(rank) for rank in range(1, world) if rank not in peers)
            raise TimeoutError(f"expected all {world} ranks within {timeout_s:g} s, got none of rank {missing}")
    for arrival in arrivals:
        arrival.refuse()
    return peers


class _Arrival:
    """A connection that has not said the key."""

    def __init__(self, stream: socket.socket, address: Any) -> None:
        self.stream, self._address = stream, address
        stream.setblocking(False)
        self.until = time.monotonic() + _KEY_S
        self.refused = False
        self._said = b""

    def read(self, key: bytes) -> int | None:
        """The rank that it is; None: not known yet, or `refused`."""
        try:
            said = self.stream.recv(_KEY_BYTES + _RANK_BYTES - len(self._said))
        except BlockingIOError:
            return None
        except OSError:
            said = b""
        self._said += said
        whole = len(self._said) == _KEY_BYTES + _RANK_BYTES
        if said and not whole:
            return None
        self.refused = not (whole and hmac.compare_digest(self._said[:_KEY_BYTES], key))
        return None if self.refused else int.from_bytes(self._said[_KEY_BYTES:], "big")

    def refuse(self) -> None:
        LOGGER.warning("ranks: expected the key of this site's ranks from %s:%s, got %d bytes without it: refused",
                       *self._address[:2], len(self._said))
        self.stream.close()


def check_world(group: distributed.ProcessGroup | None) -> tuple[int, int]:
    """(rank, world). Raises ConfigError where a launcher has started several and they have no process group."""
    launched = int(os.environ.get("WORLD_SIZE") or 1)
    if not (distributed.is_available() and distributed.is_initialized()):
        if launched > 1:
            raise mismatch("ranks of the site", f"a process group of the {launched} ranks that WORLD_SIZE says", "none",
                           "call torch.distributed.init_process_group first")
        return 0, 1
    rank, world = distributed.get_rank(group), distributed.get_world_size(group)
    if rank < 0:
        raise mismatch("process_group", "one that this process is a rank of", "another's")
    if group is None and launched > 1 and launched != world:
        raise mismatch("ranks of the site", f"a process group of the {launched} ranks that WORLD_SIZE says", world,
                       "pass process_group where a site has fewer ranks than the launcher has started")
    return rank, world


def _listen(hosts: list[str]) -> socket.socket:
    """At an address that all ranks reach: this host's own where all are on it, else the launcher's, else its name's."""
    names = ["127.0.0.1"] if len(set(hosts)) == 1 else [os.environ.get("MASTER_ADDR", ""), hosts[0]]
    for name in filter(None, names):
        with contextlib.suppress(OSError):
            family, _, _, _, address = socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)[0]
            return socket.create_server(address[:2], family=family)
    raise ConfigError(f"ranks: expected an address of {hosts[0]} that the other ranks reach, got none: set MASTER_ADDR to "
                      "rank 0's address", expected="an address", got="none")
