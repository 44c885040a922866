"""Serves the page with a made-up feed (feeds.py): for looking at it, and for tests of what no real run shows at will.

    feed_server.py PAGE.html [SCENARIO] [PORT]
"""

import http.server
import json
import sys
import threading
import time

import feeds


class FeedServer(http.server.ThreadingHTTPServer):
    """`streams` False: /events answers 503, as when all streams are taken. `requests` has the paths asked for."""

    daemon_threads = True

    def __init__(self, page, scenario="healthy", port=0, streams=True):
        super().__init__(("127.0.0.1", port), Handler)
        self.page, self.scenario, self.streams = page, scenario, streams
        self.requests = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/"

    def answer(self, path):
        now_ms = int(time.time() * 1000)
        if path == "/status":
            return feeds.SCENARIOS[self.scenario](now_ms)
        return feeds.timeline(self.scenario, now_ms)

    def handle_error(self, request, client_address):
        pass  # a page that was closed


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requests.append(self.path)
        if self.path == "/":
            self.send("text/html; charset=utf-8", self.server.page.encode())
        elif self.path in ("/status", "/timeline"):
            self.send("application/json", json.dumps(self.server.answer(self.path)).encode())
        elif self.path == "/events" and self.server.streams:
            self.stream()
        else:
            self.send_error(503 if self.path == "/events" else 404)

    def send(self, kind, body):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for turn in range(10**6):
            for name in ("status", "timeline")[:1 + (turn % 2 == 0)]:
                self.wfile.write(f"event: {name}\ndata: {json.dumps(self.server.answer('/' + name))}\n\n".encode())
            self.wfile.flush()
            time.sleep(1)
            if not self.server.streams:
                return

    def log_message(self, *arguments):
        pass


if __name__ == "__main__":
    wanted_port = int(sys.argv[3]) if sys.argv[3:] else 8000
    server = FeedServer(open(sys.argv[1], encoding="utf-8").read(), *sys.argv[2:3], port=wanted_port)
    print(server.url(), flush=True)
    threading.Event().wait()
