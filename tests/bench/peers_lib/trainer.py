"""Training the quickstart's Llama, 0.8 M parameters in float32, on one thread: tokens a second, the optimizer included.

Each is bound to one processor, and both see the same random tokens, 8 rows of 64; PyTorch's is transformers' Llama, by
torch.compile and as it is.
"""

import array
import json
import os
import pathlib
import random
import shutil
import subprocess
import tempfile

from bench_lib import processes
from peers_lib.measured import Case, Entry
from peers_lib.environment import last_line
from peers_lib.table import Unavailable

PROGRAM = pathlib.Path(__file__).parents[1] / "cpu_train_peer.py"
SHAPE = {"hidden": 128, "intermediate": 344, "layers": 4, "heads": 4, "kv_heads": 4, "vocab": 256, "sequence": 64,
         "rows": 8}
TOKENS = 200_000
STEPS = 60
LIMIT_S = 600


def write_tokens(path):
    draws = random.Random(1)
    path.write_bytes(array.array("H", (draws.randrange(SHAPE["vocab"]) for _ in range(TOKENS))).tobytes())


def bind_to_one():
    """The optimizer's threads, too: they are as many as processors."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def ours_tokens(environment, options):
    with tempfile.TemporaryDirectory(prefix="causeway-trainer-") as folder:
        data = pathlib.Path(folder) / "tokens.bin"
        write_tokens(data)
        command = processes.command_of(options.build, "train", {"data": data, "device": "cpu", "steps": STEPS} | SHAPE)
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S,
                              env=environment.variables(OPENBLAS_NUM_THREADS="1"), preexec_fn=bind_to_one)
    if done.returncode != 0:
        raise Unavailable(f"bench_run train: {last_line(done.stderr)}")
    row = json.loads(done.stdout.splitlines()[-1])
    return row["tokens_per_s"], {"parameters": row["parameters"], "loss": row["loss"]}


def peer_tokens(environment, compiled):
    environment.require("torch", "transformers")
    if compiled and not (shutil.which("g++") or shutil.which("clang++")):
        raise Unavailable("torch.compile needs a C++ compiler, and there is none")
    with tempfile.TemporaryDirectory(prefix="causeway-trainer-") as folder:
        data = pathlib.Path(folder) / "tokens.bin"
        write_tokens(data)
        answer = json.loads(environment.answer(PROGRAM, data, STEPS, int(compiled), json.dumps(SHAPE), limit_s=LIMIT_S))
    return answer["tokens_per_s"], {"parameters": answer["parameters"], "loss": answer["loss"]}


def cases(environment, options):
    entries = [Entry("PyTorch, torch.compile", lambda: peer_tokens(environment, True), baseline=True),
               Entry("PyTorch, eager", lambda: peer_tokens(environment, False)),
               Entry("Causeway's built-in trainer", lambda: ours_tokens(environment, options), ours=True)]
    name = "training a Llama of 0.8 M parameters, float32, 1 thread"
    return [Case("trainer", name, "tokens/s", entries, options.turns)]
