"""A step of AdamW on the CPU, 30 M float32 parameters in one tensor: OffloadedAdamW, torch's fused, DeepSpeed's.

Gradients are there before the step and stay. Ours uses one thread, however many there are.
"""

import json
import pathlib

from peers_lib.cases import Case, Entry
from peers_lib.table import Unavailable

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent.parent
PROGRAM = pathlib.Path(__file__).parent / "adamw_peer.py"
THREADS = (1, 2)
LIMIT_S = 600  # DeepSpeed compiles when it is first used


def step_ms(environment, options, kind, threads, *modules):
    environment.require("torch", *modules)
    library = options.build / "libcauseway.so"
    if kind == "causeway" and not library.exists():
        raise Unavailable(f"expected {library.name} in the folder of the programs; build it first")
    answer = environment.answer(PROGRAM, kind, threads, limit_s=LIMIT_S, threads=threads, DS_ACCELERATOR="cpu",
                                PYTHONPATH=str(ROOT / "python"), CAUSEWAY_LIBRARY=str(library.absolute()))
    return json.loads(answer)["step_ms"]


def cases(environment, options):
    def entries(threads):
        def entry(name, kind, *modules, **more):
            return Entry(name, lambda: step_ms(environment, options, kind, threads, *modules), **more)

        return [entry("torch fused AdamW", "torch", baseline=True),
                entry("DeepSpeed CPU Adam", "deepspeed", "deepspeed"),
                entry("Causeway OffloadedAdamW", "causeway", ours=True, note="1 thread" if threads > 1 else "")]

    return [Case("adamw", f"AdamW step, 30 M parameters, {threads} thread{'s' if threads > 1 else ''}", "ms",
                 entries(threads), options.turns) for threads in THREADS]
