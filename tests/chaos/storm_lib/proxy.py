"""A TCP proxy whose connections can be cut: they are reset, and new ones are refused for a while."""

import asyncio
import contextlib
import socket
import struct
import threading

PIECE_BYTES = 1 << 16
NO_LINGER = struct.pack("ii", 1, 0)  # close() then resets


class Proxy:
    """One listening port before one target. Its methods are called on the loop's thread."""

    def __init__(self, target):
        self.target = target
        self.port = 0
        self.server = None
        self.writers = set()

    async def open(self):
        self.server = await asyncio.start_server(self.carry, "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]

    async def cut(self, seconds):
        self.server.close()
        for writer in list(self.writers):
            reset(writer)
        await asyncio.sleep(seconds)
        await self.open()

    async def carry(self, reader, writer):
        try:
            far_reader, far_writer = await asyncio.open_connection(*self.target)
        except OSError:
            writer.transport.abort()
            return
        self.writers |= {writer, far_writer}
        pumps = [asyncio.create_task(work) for work in self.pumps((reader, writer), (far_reader, far_writer))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in pumps:
                task.cancel()
            for end in (writer, far_writer):
                self.writers.discard(end)
                end.close()

    def pumps(self, near, far):
        """Coroutines that carry what comes at each end to the other; the connection ends with the first of them."""
        return pump(near[0], far[1]), pump(far[0], near[1])


def reset(writer):
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
    writer.transport.abort()


async def pump(reader, writer):
    with contextlib.suppress(OSError):
        while piece := await reader.read(PIECE_BYTES):
            writer.write(piece)
            await writer.drain()


class Proxies:
    """One for each name, on a thread of their own."""

    def __init__(self, names, address):
        host, _, port = address.rpartition(":")
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.proxies = {name: Proxy((host, int(port))) for name in names}
        for proxy in self.proxies.values():
            asyncio.run_coroutine_threadsafe(proxy.open(), self.loop).result()

    def address(self, name):
        return f"127.0.0.1:{self.proxies[name].port}"

    def cut(self, name, seconds):
        asyncio.run_coroutine_threadsafe(self.proxies[name].cut(seconds), self.loop)
