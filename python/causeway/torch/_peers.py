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

from causeway.errors import ConfigError, mismatch

Message = dict[str, Any]

TRAINING = "in training"
LOOK_S = 0.2  # between two looks of a wait
_KEY_BYTES = 32


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
        stream.sendall(key + rank.to_bytes(4, "big"))
        return hosts, {0: Peer(stream)}
    peers: dict[int, Peer] = {}
    with listener:
        listener.settimeout(timeout_s)
        while len(peers) < world - 1:
            stream, _ = listener.accept()
            stream.settimeout(timeout_s)
            said = stream.recv(_KEY_BYTES + 4, socket.MSG_WAITALL)
            if hmac.compare_digest(said[:_KEY_BYTES], key):
                peers[int.from_bytes(said[_KEY_BYTES:], "big")] = Peer(stream)
            else:
                stream.close()
    return hosts, peers


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
