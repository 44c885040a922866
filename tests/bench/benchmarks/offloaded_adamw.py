"""causeway.OffloadedAdamW beside the others on the CPU: what a step takes, and what a model learns.

steps: one tensor of float32, and one of bfloat16 with a float32 master ("with a copy"), stepped in turns by torch's fused
AdamW, DeepSpeed's CPUAdam where it is installed, and ours, also with moments in bfloat16 (goal: at most 1.0 of either). data:
two Qwen2 of the same start train on the same bytes, one step of each after the other (goal: losses within 1e-4; with moments in
bfloat16 the last twenty within 1e-3). timed: an iteration with overlap=model and without it, on a device that takes the time of an
H200 (adamw_steps.py), ÷ one with all of the state there (goals 1.12, clipped 1.18, fraction=0.3 1.05). --python has torch and
transformers. On a card: the benchmark offload_peers.
"""

import json
import os
import pathlib
import subprocess

from bench_lib import processes
from bench_lib.figures import goal

FILE, MINUTES = "offloaded_adamw", 8
OPTIONS = {"part": (["steps"], "data, or timed"), "millions": ([30, 100], "parameters"), "threads": ([1, 2], "of a step"),
           "data": (None, "a text file; default: Debian's English dictionary"), "steps": (200, "of the part data"),
           "python": (str(processes.ROOT / "build" / "python" / "bin" / "python"), "that has torch")}
QUICK = {"millions": [1], "threads": [1]}
STEPS = pathlib.Path(__file__).parents[1] / "adamw_steps.py"
PEERS = ("torch", "deepspeed", "causeway", "causeway:bfloat16")


def why_not(options):
    library = options.build / "libcauseway.so"
    for path, how in ((pathlib.Path(options.python), "tests/python/run --install-torch makes it, 6.5 GB; --python names another"),
                      (library, "cmake --preset release && cmake --build --preset release --target causeway_shared builds it")):
        if not path.exists():
            return f"expected {path}, which is not there: {how}"
    return None


def answer(bench, *command, **more):
    environment = {**os.environ, "PYTHONPATH": f"{processes.ROOT}/python", "DS_ACCELERATOR": "cpu",
                   "CAUSEWAY_LIBRARY": str(bench.build / "libcauseway.so"), **more}
    return subprocess.run([bench.options.python, *map(str, command)], env=environment, stdout=subprocess.PIPE, stderr=bench.log,
                          text=True, check=True).stdout


def has(bench, module):
    try:
        return answer(bench, "-c", f"import {module}") == ""
    except subprocess.CalledProcessError:
        return False


def cases(options):
    for part in options.part:
        if part == "timed":
            yield from ({"part": part, "fraction": fraction, "overlap": overlap, "clipped": clipped}
                        for fraction in (1.0, 0.0, 0.3) for overlap in ((0,) if fraction == 1 else (0, 1)) for clipped in (0, 1))
            continue
        yield from [{"part": "data"}] if part == "data" else (
            {"millions": millions, "threads": threads, "copy": copy} for millions in options.millions
            for threads in options.threads for copy in (0, 1))


def measure(case, bench):
    if case.get("part") == "timed":
        return json.loads(answer(bench, STEPS, *case.values()).splitlines()[-1])
    if "part" in case:
        return json.loads(answer(bench, STEPS, "trained", bench.options.data or processes.corpus(), bench.options.steps).splitlines()[-1])
    peers = [peer for peer in PEERS if peer != "deepspeed" or has(bench, peer)]
    ms = json.loads(answer(bench, STEPS, "steps", case["millions"], case["threads"], case["copy"], *peers,
                           OMP_NUM_THREADS=str(case["threads"])).splitlines()[-1])
    return {"ms": ms} | {f"of_{peer}": ms["causeway"] / ms[peer] for peer in ("torch", "deepspeed") if peer in ms}


def report(rows, bench):
    for row in rows:
        if row.get("part") == "timed":
            most = None if not row["overlap"] else 1.05 if row["fraction"] else 1.18 if row["clipped"] else 1.12
            ratio = row["iteration_ms"] / next(each["iteration_ms"] for each in rows if each.get("fraction") == 1)
            print(f"fraction={row['fraction']:g}{', clipped' * row['clipped']}{', overlap=model' * row['overlap']}: {row['iteration_ms']:.0f} ms, "
                  f"of resident {goal(ratio, most=most) if most else format(ratio, '.2f')}")
            continue
        if "part" in row:
            print(f"losses apart by {row['loss_difference']:.2e}, with moments in bfloat16 {row['bfloat16_moments_last_20']:+.2e}")
            continue
        print(f"{row['millions']} M, {row['threads']} threads, {'with' if row['copy'] else 'without'} a copy: "
              f"{', '.join(f'{peer} {ms:.1f} ms' for peer, ms in row['ms'].items())}; ours ÷ torch {goal(row['of_torch'], most=1)}"
              + (f", ÷ DeepSpeed {goal(row['of_deepspeed'], most=1)}" if "of_deepspeed" in row else ""))
