r"""AdamW whose state lies on the host, by several packages: what an update and an iteration of the same Llama take.

    resident           the ceiling: masters and moments on the device, by torch's fused AdamW
    torch              bfloat16 on the device; gradients and parameters copied, the host waits; torch's fused AdamW on the CPU
    causeway:K         causeway.OffloadedAdamW, K: cpu, 1, 2, … or auto; causeway:K:F: with that fraction on the device, or auto;
                       causeway:cpu:F:overlap: with overlap=model
    torchao            its CPUOffloadOptimizer, state in bfloat16; torchao:float32: float32 parameters under autocast
    deepspeed          ZeRO-Offload (stage 2); deepspeed:RATIO: stage 3 with that share of the state on the host, ratio: 0.5

Each peer is a process with a limit of seconds. One that fails, is missing or takes longer has a row that says so, and the
next goes on. --wheels: a folder of torchao's and DeepSpeed's wheels (9 MB), for a machine without a network; the first command
made where PyTorch is, the second for the other machine's Python:

    pip wheel --no-deps --no-build-isolation -w DIR deepspeed
    pip download --no-deps --only-binary=:all: --python-version 3.12 --platform manylinux_2_28_x86_64 \
        --platform manylinux_2_24_x86_64 --platform manylinux_2_17_x86_64 -d DIR torchao hjson py-cpuinfo ninja msgpack \
        einops psutil tqdm annotated-types typing-inspection pydantic pydantic-core==THE_VERSION_THAT_PYDANTIC_NAMES

--peers=build only compiles DeepSpeed's CPUAdam (g++, a minute), so that its first row need not. Goal: causeway:auto at most
1.0 of the best other peer's update, torchao's in bfloat16 (half the bytes) left out; and at most 1.10 of resident's iteration.
"""

import json
import os
import pathlib
import re
import subprocess

from bench_lib import gpu_runs, processes
from bench_lib.figures import goal
from gpu_models import KINDS, MODELS, shape_of
from limited_process import last_row

FILE, MINUTES = "offload_peers", 15
STEPS = pathlib.Path(__file__).parents[1] / "offload_peer_steps.py"
PEERS = ["resident", "torch", "causeway:cpu", "causeway:1", "causeway:2", "causeway:auto", "causeway:auto:auto",
         "causeway:cpu:0:overlap", "causeway:cpu:0.3", "causeway:cpu:0.3:overlap", "causeway:cpu:auto:overlap", "torchao",
         "torchao:float32", "deepspeed", "deepspeed:ratio"]
PEER = re.compile(r"build|resident|torch|causeway:(cpu|auto|[1-9]\d*)(:(auto|[01]|0?\.\d+)(:overlap)?)?|torchao(:float32)?|"
                  r"deepspeed(:(ratio|0?\.\d+))?")
OPTIONS = {"model": ("4.6b", ", ".join(MODELS)), "device": ("cuda", "or cpu"), "peers": (PEERS, "some of these"),
           "clip": (0.0, "the norm of all gradients; 0: not clipped"), "steps": (4, "that are timed, after 2 that are not"), "limit": (90.0, "seconds of a peer"),
           "tokens": ("zipf", " or ".join(KINDS)), "wheels": (None, "a folder"),
           "python": (str(processes.ROOT / "build" / "python" / "bin" / "python"), "that has torch")}
QUICK = {"model": "tiny", "device": "cpu", "peers": ["torch", "causeway:cpu"], "steps": 2}
MOST_UPDATE, MOST_ITERATION = 1.0, 1.10


def installed(options):
    """The packages of the wheels, beside them: what is compiled for them stays valid from one call to the next."""
    if not options.wheels:
        return None
    folder = pathlib.Path(options.wheels)
    packages, wheels = folder / "installed", sorted(folder.glob("*.whl"))
    if not wheels:
        raise SystemExit(f"--wheels: expected a folder with wheels, got {folder}")
    if not packages.exists():
        subprocess.run([options.python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile",
                        f"--find-links={folder}", f"--target={packages}",
                        *sorted({wheel.name.partition("-")[0] for wheel in wheels})], check=True)
    return packages.resolve()


def environment(options):
    packages = installed(options)
    paths = [processes.ROOT / "python", packages, os.environ.get("PYTHONPATH")]
    return {"CAUSEWAY_LIBRARY": str(options.build / "libcauseway.so"), **os.environ,
            "PYTHONPATH": ":".join(str(path) for path in paths if path),
            **({"PATH": f"{packages}/bin:{os.environ['PATH']}"} if packages else {}),
            **({"DS_ACCELERATOR": "cpu"} if options.device == "cpu" else {})}


def why_not(options):
    return None if pathlib.Path(options.python).exists() else f"expected {options.python}: tests/python/run --install-torch makes one"


def cases(options):
    for peer in options.peers:
        if not PEER.fullmatch(peer):
            raise SystemExit(f"--peers: expected some of {', '.join(PEERS)}, got '{peer}'")
        yield {"peer": peer, "model": options.model, "device": options.device, "tokens": options.tokens} | (
            {"clip": options.clip} if options.clip else {})


def measure(case, bench):
    options, shape = bench.options, shape_of(case["model"])
    data = gpu_runs.tokens(bench, case["model"], shape, case["tokens"])
    return last_row([options.python, STEPS, f"--device={options.device}", f"--peer={case['peer']}", f"--data={data}",
                     f"--shape={json.dumps(shape)}", f"--steps={options.steps}", f"--clip={options.clip}"], options.limit, environment(options))


def said(row):
    if "error" in row:
        return f"none: {row['error'].splitlines()[-1]}"
    note = f"; {row['note']}" if row["note"] else ""
    return (f"update {row['update_ms']:,.0f} ms, iteration {row['iteration_ms']:,.0f} ms, {row['tokens_per_s']:,.0f} tokens/s, "
            f"loss {row['losses'][-1]:.4f}, {row['host_peak_mb'] / 1e3:.1f} GB of the host, "
            f"{row['device_peak_mb'] / 1e3:.1f} of the device{note}")


def report(rows, bench):
    for row in rows:
        if row["peer"] != "build":
            print(f"{row['peer']:24} {said(row)}")
    good = {row["peer"]: row for row in rows if "error" not in row and row["peer"] != "build"}
    others = {peer: row["update_ms"] for peer, row in good.items()
              if peer.partition(":")[0] not in ("causeway", "resident") and peer != "torchao"}
    if others and "causeway:auto" in good:
        best = min(others, key=others.get)
        print(f"causeway:auto's update, of that of {best}, the best other: "
              f"{goal(good['causeway:auto']['update_ms'] / others[best], most=MOST_UPDATE)}")
    for peer, row in good.items() if "resident" in good else ():
        ratio = row["iteration_ms"] / good["resident"]["iteration_ms"]
        print(f"{peer:24} of resident's iteration {goal(ratio, most=MOST_ITERATION) if 'causeway' in peer else f'{ratio:.2f}'}")
