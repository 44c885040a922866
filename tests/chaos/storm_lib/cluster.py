"""A coordinator and its sites as real processes on this machine, with their files in one folder."""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request

ANSWER_S = 5
START_S = 60
END_S = 60


class EndedByItself(Exception):
    """A process ended without being asked to."""


class Process:
    """One program, which may be killed and started again with the same arguments; its log goes on."""

    def __init__(self, label, command, log_path):
        self.label, self.command, self.log_path = label, command, log_path
        self.process = None

    def start(self):
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def up(self):
        return self.process is not None

    def check(self):
        if self.up() and self.process.poll() is not None:
            raise EndedByItself(f"{self.label} ended with {self.process.returncode}; see {self.log_path}")

    def send(self, signal_number):
        if self.up():
            self.process.send_signal(signal_number)

    def kill(self):
        if not self.up():
            return
        self.process.kill()
        self.process.wait()
        self.process = None

    def wait(self):
        """Its exit code, once it has been asked to end."""
        code = self.process.wait(END_S)
        self.process = None
        return code

    def cpu_s(self):
        """Seconds of processor time that it has had in this life."""
        if not self.up():
            return 0
        fields = open(f"/proc/{self.process.pid}/stat").read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Cluster:
    """
        with Cluster(bin_dir, folder, config) as cluster:
            cluster.start_coordinator()
            cluster.start_site("eu")
    """

    def __init__(self, bin_dir, folder, config):
        self.bin_dir, self.folder = bin_dir, folder
        self.state_dir = folder / "state"
        self.config_path = folder / "run.yaml"
        self.config_path.write_text(json.dumps(config, indent=1))  # JSON is YAML
        self.coordinator = None
        self.sites = {}
        self.grpc = self.http = None
        usage = subprocess.run([bin_dir / "causeway-worker", "--help"], capture_output=True, text=True, check=False)
        self.checkpoints = "--checkpoint_dir" in usage.stdout + usage.stderr

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes():
            process.kill()

    def processes(self):
        return [*self.sites.values(), *([self.coordinator] if self.coordinator else [])]

    def start_coordinator(self):
        """Starts it for the first time, on free ports, and makes its command one that starts it there again."""
        self.launch_coordinator("127.0.0.1:0", "127.0.0.1:0")
        addresses = self.state_dir / "addresses.json"
        deadline = time.monotonic() + START_S
        while not addresses.exists():
            self.coordinator.check()
            if time.monotonic() > deadline:
                raise TimeoutError("the coordinator does not listen")
            time.sleep(0.05)
        listening = json.loads(addresses.read_text())
        self.grpc, self.http = listening["grpc"], listening["http"]
        self.coordinator.command = self.coordinator_command(self.grpc, self.http)

    def coordinator_command(self, grpc, http):
        return [self.bin_dir / "causeway-coordinator", f"--config={self.config_path}", f"--state_dir={self.state_dir}",
                f"--listen={grpc}", f"--http={http}"]

    def launch_coordinator(self, grpc, http):
        self.coordinator = Process("coordinator", self.coordinator_command(grpc, http), self.folder / "coordinator.log")
        self.coordinator.start()

    def start_site(self, site, coordinator=None, data=None, flags=()):
        """`coordinator`: where it reaches it, if not directly."""
        command = [self.bin_dir / "causeway-worker", f"--coordinator={coordinator or self.grpc}", f"--site={site}", *flags]
        if data:
            command.append(f"--data={data}")
        if self.checkpoints:
            command.append(f"--checkpoint_dir={self.folder / 'checkpoints' / site}")
        self.sites[site] = Process(site, command, self.folder / f"site-{site}.log")
        self.sites[site].start()

    def cpu_s(self):
        return sum(process.cpu_s() for process in self.processes())

    def check(self):
        """Raises EndedByItself."""
        for process in self.processes():
            process.check()

    def status(self):
        """GET /status; None while the coordinator does not answer."""
        try:
            with urllib.request.urlopen(f"http://{self.http}/status", timeout=ANSWER_S) as answer:
                return json.load(answer)
        except OSError:
            return None

    def training(self):
        """The sites that train."""
        return {site["name"] for site in (self.status() or {"sites": []})["sites"] if site["state"] == "training"}

    def journal(self, query, values=()):
        with contextlib.closing(sqlite3.connect(f"file:{self.state_dir / 'journal.sqlite'}?mode=ro", uri=True)) as rows:
            return rows.execute(query, values).fetchall()

    def terminate(self):
        """Asks all to end, sites first; what did not end with 0."""
        problems = []
        for group in (self.sites.values(), [self.coordinator]):
            for process in group:
                process.send(signal.SIGTERM)  # once: the second is taken for impatience
            codes = [(process.label, process.wait()) for process in group]
            problems += [f"{label} ended with {code}" for label, code in codes if code != 0]
        return problems


@contextlib.contextmanager
def slowed(process, run_s, stop_s):
    """The process, if there is one, runs and stands still by turns."""
    over = threading.Event()

    def take_turns():
        while process and not over.wait(run_s):
            process.send(signal.SIGSTOP)
            over.wait(stop_s)
            process.send(signal.SIGCONT)

    thread = threading.Thread(target=take_turns)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def cpu_ticks():
    """(busy, all) of this machine so far."""
    fields = [int(field) for field in open("/proc/stat").readline().split()[1:9]]
    return sum(fields) - fields[3] - fields[4], sum(fields)


def await_true(seen, what, seconds, between=lambda: None):
    deadline = time.monotonic() + seconds
    while not seen():
        between()
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds} s: {what}")
        time.sleep(0.2)


def say(text):
    print(text, file=sys.stderr, flush=True)
