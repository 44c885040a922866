"""One step of the built-in trainer on a GPU, kernel by kernel: calls, milliseconds, share of the step.

A row for the steps before it, then one a kernel, the longest first. Each kernel is between two events, which make the step
itself slower: shares are of that step.
"""

from bench_lib import gpu_runs, processes
from gpu_models import MODELS, shape_of
from limited_process import rows_of

FILE, MINUTES, PRESET = "gpu_profile", 1, "cuda"
OPTIONS = gpu_runs.OPTIONS | {"model": ("124m", ", ".join(MODELS)), "micro_batches": (0, "of a step; 0: the model's own"),
                              "limit": (60.0, "seconds")}
QUICK = {"device": "fake", "model": "tiny"}


def cases(options):
    return [{"model": options.model}]


def measure(case, bench):
    options, shape = bench.options, shape_of(case["model"])
    if options.micro_batches:
        if shape["rows"] % options.micro_batches:
            raise SystemExit(f"--micro_batches: expected a divisor of {shape['rows']} rows, got {options.micro_batches}")
        shape = shape | {"micro_batches": options.micro_batches}
    return rows_of(processes.command_of(bench.build, "train", shape | {
        "data": gpu_runs.tokens(bench, case["model"], shape), "device": options.device, "steps": 5, "profile": True}), options.limit)


def report(rows, bench):
    for row in rows:
        if "kernel" in row:
            print(f"{row['kernel']:40} {row['calls']:6} calls {row['ms']:9.3f} ms {row['of_step']:.3f}")
    return any("error" in row for row in rows)
