"""A link before a coordinator: of a rate, with a delay, and one of its connections is cut in the middle of a transfer.

    site ══ connections ══►  read ─► wait for the rate ─► count, cut? ─► wait for the delay ─► write  ══► coordinator

All connections of a direction share its rate, as they would share a cable. A cut resets both ends of one connection;
new ones are taken at once. What the link has read is counted: it has crossed the sender's network, used or not.
"""

import asyncio
import contextlib
import threading
import time

from storm_lib.proxy import Proxy, reset

PIECE_BYTES = 1 << 16
BULK_BYTES = 1 << 17  # a connection that carried so many in one direction is a bulk one: control's messages are small
QUEUED_PIECES = 4096  # more than any delay holds
UP, DOWN = "up", "down"


class Lane:
    """One direction. Times are the loop's, in seconds."""

    def __init__(self, bytes_per_s):
        self.bytes_per_s = bytes_per_s
        self.free_at = 0.0
        self.total_bytes = 0
        self.cut_after = None  # so many bytes more

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


class Link(Proxy):
    """Its port is open when it has been made; loop and connections have a thread of their own."""

    def __init__(self, address, megabytes_per_s, round_trip_s):
        host, _, port = address.rpartition(":")
        super().__init__((host, int(port)))
        self.lanes = {name: Lane(megabytes_per_s * 1e6) for name in (UP, DOWN)}
        self.delay_s = round_trip_s / 2
        self.cuts = []  # {"unix_s", "direction", "in_link_bytes": that were read and are never delivered}
        self.accepted = 0
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        asyncio.run_coroutine_threadsafe(self.open(), self.loop).result()

    def site_address(self):
        return f"127.0.0.1:{self.port}"

    def cut_after(self, direction, size):
        """The bulk connection that carries the last of so many bytes from now on is cut."""
        self.loop.call_soon_threadsafe(setattr, self.lanes[direction], "cut_after", size)

    def total_bytes(self):
        return {name: lane.total_bytes for name, lane in self.lanes.items()}

    def close(self):
        async def end():
            self.server.close()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(end(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def pumps(self, near, far):
        self.accepted += 1
        connection = Connection(self, (near[1], far[1]))
        return *connection.pump(UP, near[0], far[1]), *connection.pump(DOWN, far[0], near[1])


class Connection:
    def __init__(self, link, ends):
        self.link, self.ends = link, ends
        self.carried = {UP: 0, DOWN: 0}
        self.in_link = {UP: 0, DOWN: 0}

    def pump(self, direction, reader, writer):
        """Two coroutines with the delay between them."""
        queue = asyncio.Queue(QUEUED_PIECES)
        return self.take(direction, reader, queue), self.deliver(direction, queue, writer)

    async def take(self, direction, reader, queue):
        link, lane = self.link, self.link.lanes[direction]
        with contextlib.suppress(OSError):
            while piece := await reader.read(PIECE_BYTES):
                await lane.cross(len(piece))
                self.carried[direction] += len(piece)
                self.in_link[direction] += len(piece)
                if lane.count(len(piece)) and self.carried[direction] >= BULK_BYTES:
                    lane.cut_after = None
                    return self.cut(direction)
                await queue.put((link.loop.time() + link.delay_s, piece))
        await queue.put((link.loop.time() + link.delay_s, None))
        await asyncio.Event().wait()  # the other direction may go on, until what is on its way is delivered

    async def deliver(self, direction, queue, writer):
        with contextlib.suppress(OSError):
            while (entry := await queue.get())[1] is not None:
                due, piece = entry
                await asyncio.sleep(due - self.link.loop.time())
                writer.write(piece)
                await writer.drain()
                self.in_link[direction] -= len(piece)

    def cut(self, direction):
        self.link.cuts.append({"unix_s": time.time(), "direction": direction,
                               "in_link_bytes": self.in_link[direction]})
        for end in self.ends:
            reset(end)
