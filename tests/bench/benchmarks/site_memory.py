"""A site's peak memory beside the parameters that it trains, after joining and between checkpoints.

Two causeway-workers train 100 M synthetic parameters in 8 fragments at a real coordinator, for three rounds of each
fragment. Peak is VmHWM from the moment at which a worker has entered the run, less 4 bytes a parameter for the
parameters themselves. The goal is 12 + 9 k/P bytes a parameter + 64 MB for codecs of at most one byte a value, 8 + 9 k/P
without feedback, 12 + 12 k/P for float32, where k of P fragments are in flight at once: k is the most that /status showed
in samples every 20 ms, at least 1. Needs 6 GB of memory.
"""

import json
import pathlib
import subprocess
import sys
import time

from bench_lib import processes
from bench_lib.figures import goal

FILE, MINUTES = "site_memory", 4
FIXED_BYTES = 64_000_000
FRAGMENTS = 8
ROUNDS = 3


CASES = {
    "int4": {"codec": "int4", "feedback": 1, "fixed": 12, "in_flight": 9},
    "rotated_sign": {"codec": "rotated_sign", "feedback": 1, "fixed": 12, "in_flight": 9},
    "no_feedback": {"codec": "int4", "feedback": 0, "fixed": 8, "in_flight": 9},
    "float32": {"codec": "float32", "feedback": 1, "fixed": 12, "in_flight": 12},
}
OPTIONS = {"cases": (list(CASES), "some of these"), "parameters": (100_000_000, "of the model")}
QUICK = {"cases": ["int4"], "parameters": 1_000_000}


def run_yaml(case, parameters):
    tensors = 2 * FRAGMENTS
    return json.dumps({
        "run_id": "memory",
        "model": {"kind": "synthetic", "step_ms": 100,
                  "tensors": [{"name": f"t{i}", "shape": [parameters // tensors], "init": 0.25} for i in range(tensors)],
                  "gradient": {"kind": "constant", "by_site": {"a": 0.001, "b": -0.002}, "apply": "on_send"}},
        "inner": {"optimizer": "sgd", "warmup_steps": 0, "schedule": "constant", "weight_decay": 0, "clip": 0},
        "sync": {"sync_every": 80, "num_fragments": FRAGMENTS, "fragment_sync_delay": 8},
        "codec": {"up": case["codec"], "down": case["codec"], "feedback_up": case["feedback"],
                  "feedback_down": case["feedback"]},
        "membership": {"min_sites": 2, "lease_ms": 60000},
        "eval": {"every_rounds": 0},
        "checkpoint": {"every_rounds": 0},
    })


class Worker:
    def __init__(self, options, address, name, log_path):
        self.log_path = log_path
        with open(log_path, "wb") as log:
            self.process = subprocess.Popen(
                [str(options.build / "causeway-worker"), f"--coordinator={address}", f"--site={name}"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=processes.ends_with_us)

    def entered(self):
        if self.process.poll() is not None:
            sys.exit(f"error: a worker ended: {self.log_path.read_text()[-2000:]}")
        return "enters after step" in self.log_path.read_text()

    def status(self, key):
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) << 10
        return 0

    def reset_peak(self):
        pathlib.Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")


def cases(options):
    return [{"case": name} for name in options.cases]


def why_not(options):
    need, free = 60e-9 * options.parameters, 1e-9 * processes.free_memory()
    return None if free >= need else f"needs {need:.1f} GB of free memory, has {free:.1f}"


def measure(known, bench):
    case, options, folder = CASES[known["case"]], bench.options, bench.folder
    config = folder / "run.yaml"
    config.write_text(run_yaml(case, options.parameters))
    coordinator = processes.Coordinator(options.build, config, folder / "state", folder / "coordinator.log")
    workers = []
    try:
        address = coordinator.await_address()
        workers = [Worker(options, address, name, folder / f"{name}.log") for name in ("a", "b")]
        while not all(worker.entered() for worker in workers):
            time.sleep(0.02)
        joined = max(worker.status("VmHWM") for worker in workers)
        time.sleep(1)  # what joining took is given back by then
        for worker in workers:
            worker.reset_peak()
        in_flight = 1
        while True:
            status = coordinator.status()
            in_flight = max([in_flight] + [len(site.get("in_flight", [])) for site in status["sites"]])
            if min(fragment["version"] for fragment in status["fragments"]) >= ROUNDS:
                break
            workers[0].entered()
            time.sleep(0.02)
        peaks = [worker.status("VmHWM") for worker in workers]
    finally:
        coordinator.kill()
        for worker in workers:
            worker.process.kill()
            worker.process.wait()
    beside = max(peaks) - 4 * options.parameters
    bytes_a_parameter = case["fixed"] + case["in_flight"] * in_flight / FRAGMENTS
    bound = bytes_a_parameter * options.parameters + FIXED_BYTES
    return {"parameters": options.parameters, "fragments": FRAGMENTS, "in_flight": in_flight, "joining_peak_bytes": joined,
            "peak_bytes": peaks, "beside_bytes": beside, "bytes_a_parameter": beside / options.parameters,
            "bound_bytes": round(bound), "ratio": beside / bound}


def report(rows, bench):
    for row in rows:
        print(f"{row['case']}: {row['bytes_a_parameter']:.2f} bytes a parameter beside the parameters, {row['in_flight']} of "
              f"{row['fragments']} fragments in flight; of the bound, which has {row['bound_bytes'] / row['parameters']:.2f} "
              f"with 64 MB: {goal(row['ratio'], most=1)}")
