"""Causeway's cost in a step of PyTorch: the median step with it ÷ without it, and the memory beside the parameters.

Two transformers of a size (millions of parameters) train on random tokens, on one core of the CPU or on a GPU: one in a
run (H = 50, P = 8 fragments, tau = 5, int4 both ways; the coordinator is another process), one outside, in turns of
10 steps, so that both see the same machine. Prints a JSON line a size: median and mean of a step with and without, and
their ratios (goal: median at most 1.01); the medians' ratio before the run, when neither is in one (control); what
share of the time the loop is in Causeway's hooks, and the check whether the script still trains what is synced (goal: at
most 0.002 of a step); and the memory that the run took at most beside parameters, gradients
and optimizer, a parameter, while joining and after it (goal: 12 + 9/P, and 64 MB).
With --ranks both are trained by that many processes of torchrun, each on a core, replicated or sharded: then also what
a READ and a move of a fragment take of the leader's thread, and the memory of the other ranks.
--quiet: nothing is sent until the last step. --steps is a multiple of 50. --python has torch (tests/python/run makes one).
"""

import json
import os
import pathlib
import subprocess

from bench_lib import processes
from bench_lib.figures import goal

FILE, MINUTES = "torch_step", 6
SITE = pathlib.Path(__file__).parents[1] / "torch_step_site.py"
OPTIONS = {"python": (str(processes.ROOT / "build" / "python" / "bin" / "python"), "that has torch"),
           "sizes": ([30, 124], "millions of parameters"), "steps": (300, "a multiple of 50"), "device": ("cpu", "or cuda"),
           "rows": (2, "of a step"), "length": (32, "of a row, in tokens"), "ranks": (1, "processes of torchrun"),
           "shard": ("ddp", "or fsdp"), "quiet": (False, "nothing is sent until the last step")}
QUICK = {"sizes": [30], "steps": 50, "rows": 1, "length": 16}
MOST = 1.01
LAYERS = {30: (8, 512), 124: (16, 768)}  # millions of parameters ─► layers, width


def run_yaml(steps, quiet):
    sync = {"sync_every": steps, "num_fragments": 1} if quiet else {"sync_every": 50, "num_fragments": 8}
    return json.dumps({
        "run_id": "step",
        "run": {"steps": steps},
        "model": {"kind": "external"},
        "sync": sync | {"fragment_sync_delay": 5},
        "membership": {"min_sites": 1, "lease_ms": 60000},
        "eval": {"every_rounds": 0},
        "checkpoint": {"every_rounds": 0},
    })


def why_not(options):
    return None if pathlib.Path(options.python).exists() else f"expected {options.python}: tests/python/run --install-torch makes one"


def cases(options):
    return [{"millions": millions, "ranks": options.ranks, "shard": options.shard, "quiet": options.quiet}
            for millions in options.sizes]


def measure(case, bench):
    options, folder = bench.options, bench.folder
    layers, width = LAYERS[case["millions"]]
    (folder / "run.yaml").write_text(run_yaml(options.steps, options.quiet))
    coordinator = processes.Coordinator(bench.build, folder / "run.yaml", folder / "state", folder / "coordinator.log")
    try:
        coordinator.await_address()
        environment = {**os.environ, "PYTHONPATH": f"{processes.ROOT}/python", "OMP_NUM_THREADS": "1",
                       "CAUSEWAY_LIBRARY": str(bench.build / "libcauseway.so")}
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={options.ranks}"]
        command = [options.python, *(launcher if options.ranks > 1 else []), SITE, coordinator.address, options.device, layers,
                   width, options.steps, options.shard, options.rows, options.length, *(["--quiet"] if options.quiet else [])]
        done = subprocess.run(list(map(str, command)), env=environment, check=True, stdout=subprocess.PIPE, stderr=bench.log,
                              text=True)
    finally:
        coordinator.kill()
    return {"steps": options.steps, **json.loads(done.stdout)}


def report(rows, bench):
    for row in rows:
        print(f"{row['millions']} M, {row['ranks']} ranks: the median step with Causeway ÷ without "
              f"{goal(row['median_ratio'], most=MOST)}")
