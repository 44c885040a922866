"""Runs Causeway's real programs for the tests in this folder: processes, files and sockets, nothing faked.

    class SomeTest(EndToEndTest):
        def test_something(self):
            run = self.new_run(synthetic({"a": 0.5, "b": -0.25}, [[1000]], run={"steps": 40}))
            run.start_coordinator()
            run.start_workers("a", "b")
            run.await_done()                      # state "done", every worker ended with 0
            values = run.export()["t0"]

Programs are those in $CAUSEWAY_BIN_DIR, or of the release preset. Every run has a folder of its own below the test's
temporary one and listens on free ports, so tests may run side by side. Waiting is always for something to be seen, with
a deadline. When a test fails, the ends of its programs' logs are printed; no program outlives its test.
"""

import concurrent.futures
import contextlib
import copy
import http.client
import itertools
import json
import os
import pathlib
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

import numpy

BIN_DIR = pathlib.Path(os.environ.get("CAUSEWAY_BIN_DIR", pathlib.Path(__file__).parents[2] / "build" / "release"))
# AddressSanitizer keeps memory that was freed, and pads what is in use: how much a process has then says nothing.
MEMORY_IS_OURS = "asan" not in str(BIN_DIR)
DEADLINE_S = 60  # for whatever takes moments on an idle machine
LOG_TAIL_LINES = 25

# Exit codes, as INTERFACE documents them.
DONE, FAILED, BAD_INPUT, REFUSED, NON_FINITE, UNREACHABLE = range(6)


def others_reach_programs():
    """Whether a user who is not root may start them: not below root's home folder."""
    return all(folder.stat().st_mode & 0o001 for folder in (BIN_DIR, *BIN_DIR.parents))


def merged(base, changes):
    """A copy of nested dictionaries with `changes` laid over it."""
    result = copy.deepcopy(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else value
    return result


def synthetic(gradient_by_site, shapes, **sections):
    """A run.yaml of a synthetic model whose tensors t0, t1, … have these shapes; plain SGD, one fragment, all sites
    from the start. `sections` are laid over it."""
    config = {
        "run_id": "e2e",
        "model": {
            "kind": "synthetic",
            "tensors": [{"name": f"t{i}", "shape": shape, "init": 0.25} for i, shape in enumerate(shapes)],
            "gradient": {"kind": "constant", "by_site": gradient_by_site},
        },
        "inner": {"optimizer": "sgd", "lr": 0.1, "warmup_steps": 0, "schedule": "constant", "weight_decay": 0,
                  "clip": 0},
        "sync": {"sync_every": 6, "num_fragments": 1},
        "membership": {"min_sites": len(gradient_by_site)},
        "checkpoint": {"every_rounds": 0},
    }
    return merged(config, sections)


def yaml_text(config):
    """JSON is YAML, but for the numbers it does not have."""
    return json.dumps(config, indent=1).replace("NaN", ".nan")


def eventually(seen, what, seconds=DEADLINE_S):
    """Waits until seen() is true and returns it."""
    deadline = time.monotonic() + seconds
    while True:
        result = seen()
        if result:
            return result
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.01)


def check_all(check, cases, at_once):
    """check(*case) for every case, several side by side, up to the first that fails."""
    with concurrent.futures.ThreadPoolExecutor(at_once) as threads:
        checks = [threads.submit(check, *case) for case in cases]
        try:
            for each in concurrent.futures.as_completed(checks):
                each.result()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)


def read_safetensors(path):
    """{name: array} of a file of float32 tensors."""
    data = pathlib.Path(path).read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        tensors[name] = numpy.frombuffer(data[begin:end], numpy.float32).reshape(entry["shape"])
    return tensors


class Program:
    """One process, with its log."""

    def __init__(self, folder, label, program, *arguments, preexec_fn=None, environment=None):
        self.label = label
        self.log_path = folder / f"{label}.log"
        self.stdout_path = folder / f"{label}.out"
        emulated = program == "causeway-worker" and "--device=fake" in arguments
        command = [str(BIN_DIR / (f"{program}-fake" if emulated else program)), *arguments]
        with open(self.log_path, "ab") as log, open(self.stdout_path, "wb") as stdout:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=log,
                                            preexec_fn=preexec_fn,
                                            env=os.environ | {"XDG_CACHE_HOME": str(folder)} | (environment or {}))

    def log(self):
        return self.log_path.read_text(errors="replace")

    def output(self):
        return self.stdout_path.read_text(errors="replace")

    def lines(self):
        """The JSON objects that it has printed, a line each."""
        return [json.loads(line) for line in self.output().splitlines() if line.startswith('{"')]

    def running(self):
        return self.process.poll() is None

    def send(self, signal_number):
        self.process.send_signal(signal_number)

    def wait(self, seconds=DEADLINE_S):
        """Its exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.label} did not end within {seconds} s") from None

    def terminate(self):
        """Asks it to stop; its exit code."""
        self.send(signal.SIGTERM)
        return self.wait()

    def kill(self):
        if self.running():
            self.process.kill()
        self.process.wait()


class Run:
    """One run: a coordinator, its sites, and the folder with their files."""

    def __init__(self, test, folder, config):
        folder.mkdir()
        self.test = test
        self.folder = folder
        self.state_dir = folder / "state"
        self.config_path = folder / "run.yaml"
        self.config_path.write_text(yaml_text(config))
        self.coordinator = None
        self.workers = {}
        self.grpc = self.http = None

    def program(self, label, program, *arguments, **options):
        return self.test.program(self.folder, label, program, *arguments, **options)

    def start_coordinator(self, *flags, program="causeway-coordinator", **options):
        """Starts it, or starts it again at the address it had, and waits until it listens."""
        addresses = self.state_dir / "addresses.json"
        addresses.unlink(missing_ok=True)
        self.coordinator = self.program("coordinator", program, f"--config={self.config_path}",
                                        f"--state_dir={self.state_dir}", f"--listen={self.grpc or '127.0.0.1:0'}",
                                        f"--http={self.http or '127.0.0.1:0'}", *flags, **options)
        eventually(lambda: addresses.exists() or not self.coordinator.running(), "the coordinator listens")
        if not addresses.exists():
            raise AssertionError(f"the coordinator ended with {self.coordinator.wait()}")
        listening = json.loads(addresses.read_text())
        self.grpc, self.http = listening["grpc"], listening["http"]

    def standby(self, name="standby"):
        """Another coordinator of the same run.yaml, with a folder and addresses of its own."""
        other = Run(self.test, self.folder / name, {})
        other.config_path = self.config_path
        return other

    def start_worker(self, site, *flags, **options):
        self.workers[site] = self.program(f"worker-{site}", "causeway-worker", f"--coordinator={self.grpc}",
                                          f"--site={site}", f"--dump_local={self.dump_path(site)}", *flags, **options)
        return self.workers[site]

    def start_workers(self, *sites):
        for site in sites:
            self.start_worker(site)

    def status(self):
        """GET /status; None while the coordinator does not answer."""
        try:
            with urllib.request.urlopen(f"http://{self.http}/status", timeout=DEADLINE_S) as answer:
                return json.load(answer)
        except (OSError, http.client.HTTPException):  # or it ended amid its answer
            return None

    def site(self, name):
        """One site in the status; {} before it has joined."""
        sites = (self.status() or {}).get("sites", [])
        return next((site for site in sites if site["name"] == name), {})

    def rounds(self):
        """How many rounds of every fragment have been merged."""
        fragments = (self.status() or {}).get("fragments", [])
        return min((fragment["version"] for fragment in fragments), default=0)

    def await_rounds(self, rounds):
        eventually(lambda: self.rounds() >= rounds, f"{rounds} rounds of every fragment")

    def await_done(self, seconds=DEADLINE_S):
        """Waits until the run is done and all workers have ended with 0."""
        for worker in self.workers.values():
            code = worker.wait(seconds)
            self.test.assertEqual(code, DONE, f"{worker.label}: {worker.log()[-2000:]}")
        eventually(lambda: (self.status() or {}).get("state") == "done", 'state "done"')

    def export(self):
        """The global parameters, as causewayctl writes them."""
        out = self.folder / "export"
        exporter = self.program("export", "causewayctl", "export", f"--coordinator={self.grpc}", f"--out={out}")
        self.test.assertEqual(exporter.wait(), DONE, exporter.log())
        return read_safetensors(out / "model.safetensors")

    def journal(self, query):
        """The rows of a query in the coordinator's journal, running or not."""
        with contextlib.closing(sqlite3.connect(f"file:{self.state_dir / 'journal.sqlite'}?mode=ro", uri=True)) as rows:
            return rows.execute(query).fetchall()

    def snapshots(self):
        """W, v and ē of every fragment as the newest snapshots hold them: after stop_coordinator the latest."""
        newest = self.journal("SELECT fragment, file, max(version) FROM snapshots GROUP BY fragment ORDER BY fragment")
        return {f"{fragment}.{name}": values for fragment, file, _ in newest
                for name, values in read_safetensors(self.state_dir / "snapshots" / file).items()}

    def newest(self):
        """The version of the fragment that is ahead."""
        fragments = (self.status() or {}).get("fragments", [])
        return max((fragment["version"] for fragment in fragments), default=-1)

    def control(self, command, *flags):
        """causewayctl COMMAND."""
        controller = self.program(f"ctl-{command}", "causewayctl", command, f"--coordinator={self.grpc}", *flags)
        self.test.assertEqual(controller.wait(), DONE, controller.log())

    def stop_all(self):
        """Sites at once, then the coordinator; each has to end with 0."""
        for worker in self.workers.values():
            worker.send(signal.SIGTERM)
        for worker in self.workers.values():
            self.test.assertEqual(worker.wait(), DONE, worker.log()[-2000:])
        self.stop_coordinator()

    def stop_coordinator(self):
        self.test.assertEqual(self.coordinator.terminate(), DONE, self.coordinator.log()[-2000:])

    def dump_path(self, site):
        return self.folder / f"local-{site}.safetensors"

    def local(self, site):
        """A site's own parameters when it ended."""
        return read_safetensors(self.dump_path(site))


class DigestBook:
    """Holds what sites report of their anchors against what the coordinator committed, in many statuses."""

    def __init__(self):
        self.committed = {}  # (fragment, version): digest
        self.reported = {}  # (site, fragment, version): digest
        self.last = {"fragments": [], "sites": []}

    def note(self, status):
        """Adds what this status says, and raises if a site's digest is not the coordinator's of the same version."""
        for fragment in status["fragments"]:
            self.committed[fragment["id"], fragment["version"]] = fragment["digest"]
        for site in status["sites"]:
            for fragment, anchor in site["digests"].items():
                self.reported[site["name"], int(fragment), anchor["version"]] = anchor["digest"]
        for (site, fragment, version), digest in self.reported.items():
            expected = self.committed.get((fragment, version), digest)
            if digest != expected:
                raise AssertionError(f"site {site}, fragment {fragment}, version {version}: digest {digest}, "
                                     f"the coordinator's is {expected}")

    def note_run(self, run):
        """Adds what a run's status says now, and returns it; of versions between two looks its journal has digests."""
        rows = run.journal("SELECT fragment, version, digest FROM rounds WHERE digest IS NOT NULL")
        self.committed |= {(fragment, version): digest for fragment, version, digest in rows}
        self.last = run.status() or self.last
        self.note(self.last)
        return self.last

    def until_done(self, run):
        """Adds what the run's statuses say until all its sites have ended well; returns the last one."""
        while any(worker.running() for worker in run.workers.values()):
            self.note_run(run)
            time.sleep(0.02)
        run.await_done()
        return self.note_run(run)

    def await_agreement(self, run, sites, beyond=-1):
        """Waits until each site has reported the coordinator's digest of a version beyond that, of every fragment."""

        def agreed():
            fragments = range(len(self.note_run(run)["fragments"]))  # none before the seed
            return fragments and all(self.agreed(site, p) > beyond for site in sites for p in fragments)

        eventually(agreed, f"digests of {', '.join(sites)} beyond version {beyond} agree")

    def agreed(self, site, fragment):
        """The latest version of the fragment of which the site's digest was seen to be the coordinator's; −1: none."""
        versions = [version for (name, p, version) in self.reported
                    if name == site and p == fragment and (fragment, version) in self.committed]
        return max(versions, default=-1)


class EndToEndTest(unittest.TestCase):
    """A test with a temporary folder, `self.folder`, and programs that end with it."""

    def run(self, result=None):
        result = result or self.defaultTestResult()
        self.programs = []
        self.run_numbers = itertools.count(1)  # safe from several threads
        with tempfile.TemporaryDirectory(prefix="causeway-e2e-") as folder:
            self.folder = pathlib.Path(folder)
            problems = len(result.failures) + len(result.errors)
            try:
                super().run(result)
                if len(result.failures) + len(result.errors) > problems:
                    self.print_logs()
            finally:
                for program in self.programs:
                    program.kill()
        return result

    def print_logs(self):
        for path in dict.fromkeys(program.log_path for program in self.programs):
            lines = path.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
            print(f"---- {path.parent.name}/{path.name}", *lines, sep="\n", file=sys.stderr)

    def program(self, folder, label, program, *arguments, **options):
        started = Program(folder, label, program, *arguments, **options)
        self.programs.append(started)
        return started

    def new_run(self, config):
        return Run(self, self.folder / f"run-{next(self.run_numbers)}", config)

    def assert_same_bits(self, expected, actual, what):
        """Both are {tensor name: array}."""
        self.assertEqual(sorted(expected), sorted(actual), what)
        for name, values in expected.items():
            got = actual[name]
            self.assertEqual(values.shape, got.shape, f"{what}: {name}")
            different = numpy.flatnonzero(values.view(numpy.uint32) != got.view(numpy.uint32))
            if different.size:
                at = different[0]
                self.fail(f"{what}: {name}: {different.size} of {values.size} values differ, the first at {at}: "
                          f"expected {float(values.flat[at]).hex()}, got {float(got.flat[at]).hex()}")
