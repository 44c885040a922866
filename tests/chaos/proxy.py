"""A TCP proxy before a coordinator: of a rate, with a delay, and connections are cut, or forgotten.

    site ══ connections ══►  read ─► wait for the rate ─► count, cut? ─► wait for the delay ─► write  ══► coordinator

All connections of a direction share its rate, as they would share a cable. A cut resets both ends: of one connection in
the middle of a transfer, when new ones are taken at once, or of all for some seconds, in which new ones are refused.
A forgotten connection stays open at both ends, and what they say is lost. Bytes that the proxy has read are counted: they have crossed the sender's network, used or not.
"""

import asyncio
import contextlib
import math
import socket
import struct
import threading
import time

PIECE_BYTES = 1 << 16
BULK_BYTES = 1 << 17  # a connection that carried more in one direction is a bulk one: control's messages are small
QUEUED_PIECES = 4096  # more than any delay holds
NO_LINGER = struct.pack("ii", 1, 0)  # close() then resets
UP, DOWN = "up", "down"


class Lane:
    """One direction. Times are the loop's, in seconds."""

    def __init__(self, bytes_per_s):
        self.bytes_per_s = bytes_per_s
        self.free_at = 0.0
        self.total_bytes = 0
        self.cut_after = None  # after this number of further bytes

    async def cross(self, size):
        now = asyncio.get_running_loop().time()
        self.free_at = max(now, self.free_at) + size / self.bytes_per_s
        await asyncio.sleep(self.free_at - now)

    def count(self, size):
        """True if a cut is due."""
        self.total_bytes += size
        if self.cut_after is None:
            return False
        self.cut_after -= size
        return self.cut_after <= 0


class Proxy:
    """Its port is open when it has been made; loop and connections have a thread of their own."""

    def __init__(self, address, megabytes_per_s=math.inf, round_trip_s=0.0):
        host, _, port = address.rpartition(":")
        self.target = (host, int(port))
        self.lanes = {name: Lane(megabytes_per_s * 1e6) for name in (UP, DOWN)}
        self.delay_s = round_trip_s / 2
        self.cuts = []  # {"unix_s", "direction", "in_link_bytes": that were read and are never delivered}
        self.accepted = 0
        self.connections = set()
        self.port = 0
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.on_loop(self.open()).result()

    def address(self):
        return f"127.0.0.1:{self.port}"

    def cut_after(self, direction, size):
        """Cuts the bulk connection that carries the last of `size` bytes from now on."""
        self.loop.call_soon_threadsafe(setattr, self.lanes[direction], "cut_after", size)

    def cut_all(self, seconds):
        """All connections; returns at once."""
        self.on_loop(self.refuse(seconds))

    def forget(self, bulk=None, directions=(UP, DOWN)):
        """From now on loses what the open connections carry: all of them, or that many bulk ones, which is every
        connection after the first. Returns how many."""

        async def lose():
            chosen = sorted(self.connections, key=lambda connection: connection.number)
            chosen = chosen if bulk is None else chosen[1:1 + bulk]
            for connection in chosen:
                connection.lost |= set(directions)
            return len(chosen)

        return self.on_loop(lose()).result()

    def total_bytes(self):
        return {name: lane.total_bytes for name, lane in self.lanes.items()}

    def close(self):
        async def end():
            self.server.close()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.sleep(0)

        self.on_loop(end()).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    # ---- On the loop's thread ----

    def on_loop(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    async def open(self):
        self.server = await asyncio.start_server(self.carry, "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]

    async def refuse(self, seconds):
        self.server.close()
        for connection in list(self.connections):
            connection.reset()
        await asyncio.sleep(seconds)
        await self.open()

    async def carry(self, reader, writer):
        try:
            far_reader, far_writer = await asyncio.open_connection(*self.target)
        except OSError:
            writer.transport.abort()
            return
        self.accepted += 1
        connection = Connection(self, self.accepted, (writer, far_writer))
        self.connections.add(connection)
        works = *connection.pump(UP, reader, far_writer), *connection.pump(DOWN, far_reader, writer)
        pumps = [asyncio.create_task(work) for work in works]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in pumps:
                task.cancel()
            self.connections.discard(connection)
            for end in connection.ends:
                end.close()


class Connection:
    """It ends with the first coroutine of its pumps."""

    def __init__(self, proxy, number, ends):
        self.proxy, self.number, self.ends = proxy, number, ends
        self.lost = set()  # directions
        self.carried = {UP: 0, DOWN: 0}
        self.in_link = {UP: 0, DOWN: 0}

    def pump(self, direction, reader, writer):
        """Two coroutines with the delay between them."""
        queue = asyncio.Queue(QUEUED_PIECES)
        return self.take(direction, reader, queue), self.deliver(direction, queue, writer)

    async def take(self, direction, reader, queue):
        proxy, lane = self.proxy, self.proxy.lanes[direction]
        with contextlib.suppress(OSError):
            while piece := await reader.read(PIECE_BYTES):
                await lane.cross(len(piece))
                self.carried[direction] += len(piece)
                self.in_link[direction] += len(piece)
                if lane.count(len(piece)) and self.carried[direction] >= BULK_BYTES:
                    lane.cut_after = None
                    return self.cut(direction)
                await queue.put((proxy.loop.time() + proxy.delay_s, piece))
        await queue.put((proxy.loop.time() + proxy.delay_s, None))
        await asyncio.Event().wait()  # the other direction may go on, until what is on its way is delivered

    async def deliver(self, direction, queue, writer):
        with contextlib.suppress(OSError):
            while (entry := await queue.get())[1] is not None:
                due, piece = entry
                await asyncio.sleep(due - self.proxy.loop.time())
                self.in_link[direction] -= len(piece)
                if direction in self.lost:
                    continue
                writer.write(piece)
                await writer.drain()
        if direction in self.lost:
            await asyncio.Event().wait()  # the end is lost, too

    def cut(self, direction):
        self.proxy.cuts.append({"unix_s": time.time(), "direction": direction,
                                "in_link_bytes": self.in_link[direction]})
        self.reset()

    def reset(self):
        for end in self.ends:
            end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
            end.transport.abort()
