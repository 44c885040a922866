"""Headless Chromium, steered over its DevTools protocol: a WebSocket client of the standard library's sockets.

    with Browser(width=1280, height=900) as browser:
        browser.open("http://127.0.0.1:8000/")
        browser.evaluate("document.title")

Only what the page's tests need. Everything waits with a deadline.
"""

import base64
import json
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import tempfile
import time
import urllib.request

DEADLINE_S = 60
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def find():
    """The browser's program, or None."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


class WebSocket:
    """A client of text messages (RFC 6455), unencrypted."""

    def __init__(self, host, port, path):
        self.socket = socket.create_connection((host, port), DEADLINE_S)
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
        self.buffer = b""
        while b"\r\n\r\n" not in self.buffer:
            self.fill()
        head, self.buffer = self.buffer.split(b"\r\n\r\n", 1)
        if b" 101 " not in head.split(b"\r\n")[0]:
            raise ConnectionError(head.decode())

    def fill(self):
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionError("the browser closed the connection")
        self.buffer += data

    def take(self, size):
        while len(self.buffer) < size:
            self.fill()
        data, self.buffer = self.buffer[:size], self.buffer[size:]
        return data

    def send(self, text):
        data = text.encode()
        size = struct.pack("!B", 0x80 | len(data)) if len(data) < 126 else struct.pack("!BH", 0xFE, len(data)) \
            if len(data) < 1 << 16 else struct.pack("!BQ", 0xFF, len(data))
        mask = os.urandom(4)
        masked = bytes(byte ^ mask[i % 4] for i, byte in enumerate(data))
        self.socket.sendall(b"\x81" + size + mask + masked)

    def receive(self):
        text = b""
        while True:
            first, second = self.take(2)
            size = second & 0x7F
            if size == 126:
                size, = struct.unpack("!H", self.take(2))
            elif size == 127:
                size, = struct.unpack("!Q", self.take(8))
            data = self.take(size)
            if first & 0x0F in (0, 1):
                text += data
                if first & 0x80:
                    return text.decode()


class Browser:
    def __init__(self, width=1280, height=900, dark=False):
        self.size, self.dark = (width, height), dark
        self.web = None
        self.folder = tempfile.TemporaryDirectory(prefix="causeway-browser-", ignore_cleanup_errors=True)
        self.process = subprocess.Popen(
            [find(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--disable-extensions", "--hide-scrollbars", "--force-color-profile=srgb",
             "--remote-debugging-port=0", f"--user-data-dir={self.folder.name}", f"--window-size={width},{height}",
             "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            self.connect()
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def connect(self):
        port_file = pathlib.Path(self.folder.name) / "DevToolsActivePort"
        deadline = time.monotonic() + DEADLINE_S
        while not (port_file.exists() and port_file.read_text().count("\n")):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the browser did not start")
            time.sleep(0.05)
        port = int(port_file.read_text().split()[0])
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=DEADLINE_S) as answer:
            page = next(target for target in json.load(answer) if target["type"] == "page")
        self.web = WebSocket("127.0.0.1", port, page["webSocketDebuggerUrl"].split(str(port), 1)[1])
        self.number, self.events = 0, []
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        width, height = self.size
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                  mobile=width < 600)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if self.dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def close(self):
        if self.web:
            self.web.socket.close()
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.folder.cleanup()

    def call(self, method, **parameters):
        """A command's result; events that come meanwhile are kept in self.events."""
        self.number += 1
        self.web.send(json.dumps({"id": self.number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.web.receive())
            if message.get("id") != self.number:
                self.events.append(message)
            elif "error" in message:
                raise RuntimeError(f"{method}: {message['error']}")
            else:
                return message["result"]

    def open(self, url):
        self.call("Page.navigate", url=url)

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def eventually(self, expression, what=None, seconds=DEADLINE_S):
        """Waits until the expression is true in the page, and returns it."""
        deadline = time.monotonic() + seconds
        while True:
            value = self.evaluate(expression)
            if value:
                return value
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {seconds} s: {what or expression}; the page says "
                                     f"{self.evaluate('document.body.innerText')[:600]!r}")
            time.sleep(0.1)

    def requests(self):
        """The addresses that the browser has asked for, but for what is in the page itself."""
        self.evaluate("0")
        asked = [event["params"]["request"]["url"] for event in self.events
                 if event.get("method") == "Network.requestWillBeSent"]
        return [url for url in asked if not url.startswith("data:")]

    def complaints(self):
        """The complaints of the browser or the page's script."""
        self.evaluate("0")
        errors = [event["params"]["exceptionDetails"] for event in self.events
                  if event.get("method") == "Runtime.exceptionThrown"]
        for event in self.events:
            if event.get("method") == "Runtime.consoleAPICalled" and event["params"]["type"] == "error":
                errors.append([argument.get("description", argument.get("value")) for argument in event["params"]["args"]])
            entry = event["params"].get("entry", {}) if event.get("method") == "Log.entryAdded" else {}
            if entry.get("level") == "error" and entry["source"] != "network":  # such as what the page may not do
                errors.append(entry["text"])
        return errors

    def screenshot(self, path):
        """The whole page, not only what the window shows."""
        height = self.evaluate("document.documentElement.scrollHeight")
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True,
                            clip={"x": 0, "y": 0, "width": self.size[0], "height": height, "scale": 1})
        pathlib.Path(path).write_bytes(base64.b64decode(picture["data"]))
