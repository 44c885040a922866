"""Who attacks, and with which messages."""

import contextlib
import json
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "e2e"))

from hostile_messages import SITE, Messages  # noqa: E402, F401

NUM_NAMES = 1_023
HONEST = "name-0"  # an attacker with an honest gradient: it is in no quarantine


class Flood:
    """tests/e2e/grpc_flood for some seconds; what it tells is its `told`."""

    def __init__(self, method, **flags):
        self.method, self.flags, self.told = method, flags, {}

    def start(self, place, seconds):
        flags = [f"--{name}={','.join(map(str, value)) if isinstance(value, list) else value}"
                 for name, value in self.flags.items()]
        self.process = subprocess.Popen([place.bin_dir / "tests/e2e/grpc_flood", place.grpc, self.method,
                                         f"--seconds={round(seconds)}", *flags], stdout=subprocess.PIPE, text=True)

    def stop(self):
        out, _ = self.process.communicate()
        self.told = json.loads(out)
        self.told["errors"] = dict(sorted(self.told["errors"].items(), key=lambda error: -error[1])[:3])


class Worker:
    """A worker with the attackers' name, of which run.yaml has the gradient."""

    def start(self, place, _):
        self.place = place
        place.start_site(SITE)

    def stop(self):
        site = next(site for site in self.place.status()["sites"] if site["name"] == SITE)
        self.told = {"quarantined": site["quarantined"], "reason": site["reason"]}
        worker = self.place.sites.pop(SITE)
        worker.send(signal.SIGTERM)  # killed, it would be waited for until its lease ends
        worker.wait()


class Watched:
    """Something that goes on in a thread from start() to stop()."""

    def start(self, place, _):
        self.place, self.over, self.told = place, threading.Event(), {}
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def stop(self):
        self.over.set()
        self.thread.join()
        if worker := self.place.sites.pop(HONEST, None):
            worker.kill()


class Creep(Watched):
    """A worker that sends a byte a second, for which the others' rounds wait; it is drained when the alarm says so."""

    def work(self):
        began = time.monotonic()
        self.place.start_site(HONEST, flags=["--max_up_mbit=0.000008"])
        while not self.over.wait(0.25):
            alarms = (self.place.status() or {}).get("alarms", [])
            if any(alarm["name"] == "round_stands" and alarm.get("site") == HONEST for alarm in alarms):
                self.told["alarm_s"] = round(time.monotonic() - began, 1)
                break
        else:
            return
        subprocess.run([self.place.bin_dir / "causewayctl", "drain", f"--site={HONEST}", f"--coordinator={self.place.grpc}",
                        self.place.token_of("operator")], check=True, capture_output=True)
        while not self.over.wait(0.25):
            gone = any(site["name"] == HONEST and site["state"] == "gone" for site in (self.place.status() or {"sites": []})["sites"])
            if gone:
                self.told["gone_s"] = round(time.monotonic() - began, 1)
                break
        if worker := self.place.sites.pop(HONEST, None):
            worker.kill()


class CrashLoop(Watched):
    """A worker without a checkpoint that dies a second after it has entered, and is started again after two."""

    def work(self):
        self.told["starts"] = 0
        while not self.over.is_set():
            shutil.rmtree(self.place.folder / "checkpoints" / HONEST, ignore_errors=True)
            log = self.place.folder / f"site-{HONEST}.log"
            seen = log.read_text().count("enters after step") if log.exists() else 0
            self.place.start_site(HONEST)
            self.told["starts"] += 1
            while not self.over.wait(0.1) and log.read_text().count("enters after step") == seen:
                pass
            self.over.wait(1)
            self.place.sites.pop(HONEST).kill()
            self.over.wait(2)


class Http:
    """`senders` connections, each asking for `path` again and again on a thread of its own, or never to the end."""

    def __init__(self, senders, path=None):
        self.senders, self.path, self.told = senders, path, {}

    def start(self, place, seconds):
        self.until, self.http = time.monotonic() + seconds, place.http
        self.counts = {"answered": 0, "refused": 0}
        work = [threading.Thread(target=self.ask) for _ in range(self.senders)] if self.path else \
            [threading.Thread(target=self.send_slowly)]
        self.threads = work
        for thread in work:
            thread.start()

    def ask(self):
        while time.monotonic() < self.until:
            try:
                with urllib.request.urlopen(f"http://{self.http}{self.path}", timeout=5) as answer:
                    answer.read()
                self.counts["answered"] += 1
            except OSError:
                self.counts["refused"] += 1

    def send_slowly(self):
        host, port = self.http.split(":")
        senders = []
        while time.monotonic() < self.until:
            while len(senders) < self.senders:
                sender = socket.create_connection((host, int(port)), timeout=10)
                sender.settimeout(1)
                sender.send(b"GET /status HTTP/1.1\r\nX: ")
                senders.append(sender)
            for sender in list(senders):
                try:
                    sender.send(b"x")
                    self.counts["answered"] += 1
                except OSError:
                    self.counts["refused"] += 1
                    senders.remove(sender)
                    sender.close()
            time.sleep(0.5)
        for sender in senders:
            sender.close()

    def stop(self):
        for thread in self.threads:
            thread.join()
        self.told = self.counts


class Idle:
    """Connections to the gRPC port over which nothing comes."""

    def __init__(self, connections):
        self.connections, self.told = connections, {}

    def start(self, place, seconds):
        host, port = place.grpc.split(":")
        self.sockets = []
        for _ in range(self.connections):
            with contextlib.suppress(OSError):
                self.sockets.append(socket.create_connection((host, int(port)), timeout=10))

    def stop(self):
        self.told = {"opened": len(self.sockets)}
        for each in self.sockets:
            each.close()


def attacks(messages, tokens):
    """{name: (whether the attacker is a stranger, attacker)}. `tokens`: {name: token}."""
    token = tokens[SITE]
    m = messages
    busy = {"token": token, "reads": "true", "again": "true"}
    join = m.join()
    big = "x" * 4_000_000
    long_name = "n" * 380
    names = [name for name in tokens if re.fullmatch(r"name-\d+", name)]
    control = {**busy, "first": join, "streams": 4}
    return {
        "poison": (False, Worker()),
        "creep": (False, Creep()),
        "crash_loop": (False, CrashLoop()),
        "questions": (False, Flood("GetStatus", message=m.question("status", "StatusRequest"), streams=128, **busy)),
        "history": (False, Flood("GetHistory", message=m.question("history", "HistoryRequest", "limit: 10000"), streams=128,
                                 **busy)),
        "describe": (False, Flood("Describe", message=m.question("describe", "DescribeRequest"), streams=128, **busy)),
        "downloads": (False, Flood("Download", message=m.question("anchor", "DownloadRequest", "anchor_version: 0"),
                                   streams=64, **busy)),
        "manifests": (False, Flood("Control", messages=0, streams=8, **busy, first=m.join(
            name="manifest", manifest=m.manifest_text((f"{long_name}{i}", [1]) for i in range(20_000))))),
        "huge_model": (False, Flood("Control", messages=0, streams=8, **busy,
                                    first=m.join(name="huge", manifest=m.manifest_text([("w", [1 << 20, 1 << 20])])))),
        "join_text": (False, Flood("Control", messages=0, streams=8, **busy,
                                   first=m.join(name="text", more=f'software_version: "{big}"'))),
        "leave_text": (False, Flood("Control", message=m.site("leave", f'leave {{ reason: "{big}" }}'), **control)),
        "eval_versions": (False, Flood("Control", message=m.site(
            "eval", f"progress {{ eval_versions: [{','.join(['1'] * 1_500_000)}] }}"), **control)),
        "progress_8mb": (False, Flood("Control", message=m.site("eight", f'progress {{ in_flight: "{big + big}" }}'), **control)),
        "progress_fragments": (False, Flood("Control", message=m.site(
            "fragments", "progress { " + "fragments { fragment: 1 } " * 200_000 + "}"), **control)),
        "pings": (False, Flood("Control", messages=-1, message=m.site("ping", "ping { sent_us: 1 }"), **control)),
        "joins": (False, Flood("Control", messages=0, streams=16, first=join, **busy)),
        "uploads": (False, Flood("Upload", messages=0, streams=64, **busy, first=m.encode(
            "upload", "UploadMessage", f"header {{ {m.context()} tokens: {1 << 62} steps: 1 }}"))),
        "names": (False, Flood("Control", message=m.site("bye", 'leave { reason: "bye" }'), streams=NUM_NAMES, reads="true",
                               token=[tokens[name] for name in names], first=[m.join(name) for name in names])),
        "unread": (True, Flood("Upload", connections=3, streams=64, bytes=8_000_000, again="true")),
        "silent": (True, Flood("Upload", connections=20, streams=2_000, messages=0)),
        "slow_http": (True, Http(200)),
        "http": (True, Http(32, "/status")),
        "metrics": (True, Http(32, "/metrics")),
        "idle": (True, Idle(5_000)),
    }
