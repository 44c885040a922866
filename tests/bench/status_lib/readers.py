"""Who looks at a coordinator: one that measures, pages as browsers keep them, and readers that never read."""

import asyncio
import multiprocessing
import socket
import time

DEADLINE_S = 30
PAGE_POLL_S = 2
SILENT_S = 20


def request(http, path):
    return f"GET {path} HTTP/1.1\r\nHost: {http}\r\n\r\n".encode()


def get(http, path):
    """(seconds until the whole answer was there, its body); raises ConnectionError unless it is a 200."""
    host, port = http.rsplit(":", 1)
    begin = time.monotonic()
    with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as connection:
        connection.sendall(request(http, path))
        parts = []
        while part := connection.recv(1 << 18):
            parts.append(part)
    seconds = time.monotonic() - begin
    head, _, body = b"".join(parts).partition(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n", 1)[0]:
        raise ConnectionError(f"{path}: {head[:80]}")
    return seconds, body


def poll(http, path, every_s, stop, results):
    seconds, failed = [], 0
    due = time.monotonic()
    while not stop.wait(max(0.0, due - time.monotonic())):
        due = max(due + every_s, time.monotonic())
        try:
            seconds.append(get(http, path)[0])
        except OSError:
            failed += 1
    results.put((seconds, failed))


class Poller:
    """A process of its own that asks for a path at a fixed pace: `seconds` of each answer, and how many `failed`."""

    def __init__(self, http, path, every_s):
        self.stop, self.results = multiprocessing.Event(), multiprocessing.Queue()
        self.process = multiprocessing.Process(target=poll, args=(http, path, every_s, self.stop, self.results))
        self.seconds, self.failed = [], 0

    def __enter__(self):
        self.process.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.seconds, self.failed = self.results.get()
        self.process.join()


class Crowd:
    """A process with open pages and readers that never read. Afterwards: `events` that pages read, and their `polls`."""

    def __init__(self, http, pages, silent):
        self.counts = multiprocessing.Array("q", 3)  # events, polls, silent readers that have come
        self.stop = multiprocessing.Event()
        self.silent = silent
        self.process = multiprocessing.Process(target=self.run, args=(http, pages, silent))

    events = property(lambda self: self.counts[0])
    polls = property(lambda self: self.counts[1])

    def __enter__(self):
        self.process.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.process.join()

    def await_open(self):
        """Until the silent readers have been there once and every page has read or polled."""
        deadline = time.monotonic() + DEADLINE_S
        while self.counts[2] < self.silent or self.events + self.polls == 0:
            if time.monotonic() > deadline:
                raise SystemExit("error: the crowd did not open")
            time.sleep(0.05)
        time.sleep(PAGE_POLL_S)

    def run(self, http, pages, silent):
        asyncio.run(self.crowd(http, pages, silent))

    async def crowd(self, http, pages, silent):
        tasks = [asyncio.create_task(self.never_read(http)) for _ in range(silent)]
        await asyncio.sleep(1)  # they are first: each takes a stream
        tasks += [asyncio.create_task(self.page(http)) for _ in range(pages)]
        while not self.stop.is_set():
            await asyncio.sleep(0.2)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def never_read(self, http):
        """Its socket's buffers fill, and the coordinator cuts it, which it cannot see: it does not read."""
        loop = asyncio.get_running_loop()
        host, port = http.rsplit(":", 1)
        while True:
            with socket.socket() as connection:
                connection.setblocking(False)
                await loop.sock_connect(connection, (host, int(port)))
                await loop.sock_sendall(connection, request(http, "/events"))
                self.counts[2] += 1
                await asyncio.sleep(SILENT_S)

    async def page(self, http):
        """As the page does: its stream of events, or a poll each two seconds and the stream again."""
        host, port = http.rsplit(":", 1)
        while True:
            try:
                reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 20)
                writer.write(request(http, "/events"))
                if b" 200 " in await reader.readline():
                    await self.read_events(reader)
                writer.close()
                reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 20)
                writer.write(request(http, "/status"))
                while await reader.read(1 << 18):
                    pass
                writer.close()
                self.counts[1] += 1
            except OSError:
                pass
            await asyncio.sleep(PAGE_POLL_S)

    async def read_events(self, reader):
        while data := await reader.read(1 << 18):
            self.counts[0] += data.count(b"event: ")
