"""One cell: a coordinator and four sites across an emulated network, until their steps are done, and what they say.

    dc1 causeway-coordinator ◄── its link, of the same rate as each site's ──► dc2 … dc5 causeway-worker

The coordinator starts on a state that was seeded over loopback, and sites initialise the same parameters from the seed,
so that the link carries contributions and updates alone.
"""

import contextlib
import json
import sqlite3
import subprocess
import time

from bench_lib import processes
from wan_lib import figures, network

LOOK_S = 0.25
START_S = 120
SLOWNESS = 3  # a cell may take this many times its predicted time
DONE = "all steps are done"  # why a worker leaves in the end
# Settings of docs/codecs.md: 1 bit without feedback, at its own outer learning rate.
CODECS = {"float32": {"feedback_up": 0, "feedback_down": 0}, "int4": {"feedback_up": 1, "feedback_down": 1},
          "rotated_sign": {"feedback_up": 0, "feedback_down": 0}}


def run_config(cell, steps, auto_delay):
    return {
        "run_id": "wan",
        "run": {"steps": steps},
        "model": {"kind": "synthetic", "step_ms": round(figures.STEP_S * 1000), "init": "seeded",
                  "tensors": [{"name": f"t{i}", "shape": [figures.TENSOR_VALUES]} for i in range(figures.TENSORS)],
                  "gradient": {"kind": "constant", "apply": "on_send",
                               "by_site": {site: 0.1 * (1 + i) for i, site in enumerate(figures.SITES)}}},
        "inner": {"optimizer": "sgd", "lr": 0.01, "warmup_steps": 0, "schedule": "constant", "weight_decay": 0,
                  "clip": 0},
        "sync": {"mode": "synchronous", "sync_every": figures.SYNC_EVERY, "num_fragments": cell.fragments,
                 "fragment_sync_delay": auto_delay if cell.tau == "auto" else int(cell.tau)},
        "codec": {"up": cell.codec, "down": cell.codec, **CODECS[cell.codec]},
        "membership": {"min_sites": len(figures.SITES)},
        "eval": {"every_rounds": 0},
        "checkpoint": {"every_rounds": 0},
    }


def write_config(path, config):
    """JSON is YAML, but for `auto`, which stands where a number may and so has no quotes."""
    path.write_text(json.dumps(config, indent=1).replace('"auto"', "auto"))


def seed(build, folder):
    """A state that has the initial parameters, made over loopback with folder / "run.yaml"."""
    log_path = folder / "seed.log"
    coordinator = processes.Coordinator(build, folder / "run.yaml", folder / "state", log_path)
    worker = None
    try:
        command = [str(build / "causeway-worker"), f"--coordinator={coordinator.await_address()}",
                   f"--site={figures.SITES[0]}"]
        with open(log_path, "ab") as log:
            worker = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                      preexec_fn=processes.ends_with_us)
        coordinator.await_seed(worker)
    finally:
        if worker is not None:
            worker.terminate()
            worker.wait()
        coordinator.stop()  # saves snapshots


class Run:
    """The processes of one cell, which end with it. Site i is in datacenter 2 + i."""

    def __init__(self, build, folder, net, sites):
        self.net, self.folder, self.build = net, folder, build
        self.places = {site: 2 + i for i, site in enumerate(sites)}
        self.workers = {}
        with net.inside(1):
            self.coordinator = processes.Coordinator(build, folder / "run.yaml", folder / "state",
                                                     folder / "coordinator.log", "--insecure",
                                                     listen=f"{network.address(1)}:0")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for worker in self.workers.values():
            worker.kill()
            worker.wait()
        self.coordinator.kill()

    def start_workers(self, *flags):
        for site, dc in self.places.items():
            command = [str(self.build / "causeway-worker"), f"--coordinator={self.addresses()}",
                       f"--site={site}", "--insecure", *flags]
            with self.net.inside(dc), open(self.folder / f"site-{site}.log", "ab") as log:
                self.workers[site] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                                      preexec_fn=processes.ends_with_us)

    def addresses(self):
        return self.coordinator.address

    def state_of_rules(self):
        """The state directory of the coordinator that decides who is in."""
        return self.folder / "state"

    def status(self):
        with self.net.inside(1):
            return self.coordinator.status()

    def ended(self):
        """All workers have, with 0; an exception if one failed."""
        codes = {site: worker.poll() for site, worker in self.workers.items()}
        for site, code in codes.items():
            if code not in (None, 0):
                log = (self.folder / f"site-{site}.log").read_text(errors="replace")
                raise RuntimeError(f"{site} ended with {code}: {log[-1500:]}")
        return all(code == 0 for code in codes.values())

    def drops(self):
        """Why sites were dropped before they had done their steps, by the coordinator's history."""
        path = self.state_of_rules() / "journal.sqlite"
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as rows:
            events = rows.execute("SELECT site, text FROM events WHERE kind = 'drop' AND id > "
                                  "(SELECT max(id) FROM events WHERE kind = 'start')").fetchall()
        return [f"{site}: {text}" for site, text in events if text != DONE]


class Watch:
    """Looks at the status and at the interfaces, four times a second."""

    def __init__(self, run):
        self.run = run
        self.traces = {site: figures.SiteTrace() for site in run.places}
        self.sent = {site: [] for site in run.places}  # (its last reported step, seconds, bytes of wan0)
        self.status = None
        self.emulator = None  # its report when steps began

    def look(self):
        self.status = self.run.status()
        for site in self.status["sites"]:
            self.traces[site["name"]].note(site)
        if self.emulator is None and any(trace.step() > 0 for trace in self.traces.values()):
            self.emulator = self.run.net.report()
        for site, dc in self.run.places.items():
            step = self.traces[site].step()
            self.sent[site].append((step, time.monotonic(), self.run.net.interface_bytes(dc)[0]))

    def sent_in(self, window):
        """(seconds, bytes so far) of each site while it was in the window."""
        return [[(at, total) for step, at, total in sent if window.begin <= step <= window.end]
                for sent in self.sent.values()]

    def until_ended(self, seconds):
        deadline = time.monotonic() + seconds
        while not self.run.ended():
            if time.monotonic() > deadline:
                steps = {site["name"]: site["step"] for site in self.status["sites"]}
                raise RuntimeError(f"not done after {seconds:.0f} s; steps: {steps}")
            self.look()
            time.sleep(LOOK_S)
        self.look()


def measure(build, folder, cell, window, auto_delay, queue_ms=0):
    """A row of figures, and of each site the bytes it had sent, four times a second of the window. RuntimeError with
    what went wrong."""
    config = run_config(cell, window.end + 1, auto_delay)
    write_config(folder / "run.yaml", config)
    seed(build, folder)
    limit_s = START_S + SLOWNESS * figures.predicted_cell_s(cell, window)
    with network.Network(build, 1 + len(figures.SITES), cell.rate_mbit, figures.RTT_MS,
                         ["--access=true", f"--queue_ms={queue_ms}"]) as net:
        with Run(build, folder, net, figures.SITES) as run:
            run.coordinator.await_address()
            before = [net.interface_bytes(dc) for dc in run.places.values()]
            run.start_workers()
            watch = Watch(run)
            watch.until_ended(limit_s)
            after = [net.interface_bytes(dc) for dc in run.places.values()]
            end = net.report()
            drops = run.drops()
    row = {"rounds": window.fragments / cell.fragments, "fragment_rounds": window.fragments,
           **figures.utilization(watch.traces.values(), window),
           **bytes_of(cell, watch.status, before, after), "dropped": drops,
           **network.emulator_figures(watch.emulator, end),
           "queue_drops": sum(link["dropped"] for link in end["links"]),
           "fragment_sync_delay": config["sync"]["fragment_sync_delay"]}
    return row, watch.sent_in(window)


def bytes_of(cell, status, before, after):
    """Bytes of the whole run, at whose end nothing is in flight: payload by round and leg, and as interfaces count."""
    sites = status["sites"]
    rounds = sum(site["contributions_sent"] for site in sites) / cell.fragments  # of single sites
    up, down = (sum(site[key] for site in sites) for key in ("up_bytes", "down_bytes"))
    sent, received = (sum(late[i] - early[i] for early, late in zip(before, after)) for i in (0, 1))
    return {"contributions": sum(site["contributions_sent"] for site in sites),
            "up_bytes_per_round": up / rounds, "down_bytes_per_round": down / rounds,
            "theory_bytes_per_round": cell.leg_bytes,
            "up_to_theory": up / rounds / cell.leg_bytes, "down_to_theory": down / rounds / cell.leg_bytes,
            "interfaces_to_meters": (sent + received) / (up + down)}
