"""Whether a model trains on one GPU with causeway.OffloadedAdamW, and what lies where: python -m causeway.fit

    python -m causeway.fit --parameters=7e9 --gpu_gb=48 --host_gb=128
    python -m causeway.fit --model=DIR --tokens=8192        a folder with config.json, and weights if they are there

On the GPU: parameters and gradients, what a forward and backward of one micro-batch keeps, and the share of the state that
still fits (`fraction`). On the host: the rest of the state, and gradients on their way. The part of a micro-batch is an estimate
for a decoder whose blocks are recomputed (gradient checkpointing) and whose loss is computed on all tokens at
once: within 3 % of what PyTorch allocated for a Llama of 1.06 B. The CPU's share of the time is measured here. Needs no
GPU and no PyTorch. Exits with 1 where it does not fit, and with 2 where an argument is wrong.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import mmap
import pathlib
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from causeway import _library
from causeway._memory import available_bytes

GPU_RESERVE, HOST_RESERVE = 1e9, 2e9  # CUDA's context and what its allocator cannot use; the process itself
OF_LOGITS = 12  # bytes of each: in bfloat16 and float32, and their gradients
OF_BLOCK = 30  # times a block's input, while its backward runs
SUBGROUP, ROOMS = 100_000_000, 2
MEASURED = 1 << 24  # values
_OLD_NAMES = {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"}
FORWARD = 0.25  # of a forward and backward that recomputes its blocks


class Shape(NamedTuple):
    """A decoder's. `parameters`: of which `embedded` lie in no block."""

    parameters: float
    layers: int
    hidden: int
    vocabulary: int
    embedded: float


class Memory(NamedTuple):
    """Bytes. `held`: parameters and gradients on the GPU; `batch`: what a micro-batch adds at its peak."""

    held: float
    batch: float
    gpu_state: float
    gpu: float
    host: float


def usual(parameters: float, vocabulary: int) -> Shape:
    """The shape of a model of this size: 12 · layers · hidden², layers = hidden / 128."""
    hidden = 128 * max(1, round((parameters * 128 / 12) ** (1 / 3) / 128))
    return Shape(parameters, max(1, hidden // 128), hidden, vocabulary, min(parameters / 2, vocabulary * hidden))


def of_folder(folder: pathlib.Path) -> Shape:
    """The shape of a Hugging Face model: its weights' headers, or config.json alone. Raises ValueError."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
        config = {_OLD_NAMES.get(key, key): value for key, value in {**config, **config.get("text_config", {})}.items()}
        hidden, layers, vocabulary = (int(config[key]) for key in ("hidden_size", "num_hidden_layers", "vocab_size"))
        counted = 0
        for path in sorted(folder.glob("model*.safetensors")):
            with path.open("rb") as file:
                header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
            counted += sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
    except (OSError, ValueError, KeyError, TypeError, OverflowError, MemoryError, struct.error) as error:
        raise ValueError("--model: expected a Hugging Face model's config.json, with hidden_size, num_hidden_layers and "
                         f"vocab_size, and safetensors, got {type(error).__name__}: {error} in {path}") from None
    embedded = (1 if config.get("tie_word_embeddings") else 2) * vocabulary * hidden
    if not counted:
        heads = int(config.get("num_attention_heads") or hidden // 64)
        size = int(config.get("head_dim") or hidden // heads)
        keys = size * int(config.get("num_key_value_heads") or heads)
        experts = max(int(config.get(name) or 1) for name in ("num_local_experts", "num_experts", "n_routed_experts"))
        wide = int((config.get("moe_intermediate_size") if experts > 1 else 0) or config.get("intermediate_size") or 4 * hidden)
        counted = layers * hidden * (2 * size * heads + 2 * keys + 3 * wide * experts) + embedded
    return Shape(counted, layers, hidden, vocabulary, min(counted, embedded))


def memory(shape: Shape, fraction: float, moments: str, tokens: int, dtype: str) -> Memory:
    """The bytes on either side. `tokens`: of a micro-batch."""
    of_value, of_master = (2, 4) if dtype == "bfloat16" else (4, 0)
    of_moments = 8 if moments == "float32" else 4
    values = shape.parameters * of_value
    block_input = tokens * shape.hidden * of_value
    inputs, block = shape.layers * block_input, OF_BLOCK * block_input
    logits = OF_LOGITS * tokens * shape.vocabulary
    batch = max(inputs + logits - values, inputs + block - values, block)  # gradients grow as inputs are used up
    resident = fraction * shape.parameters * (of_moments + of_master)
    rooms = 0.0 if fraction == 1 or not of_master else ROOMS * min(SUBGROUP, shape.parameters) * of_value
    host = (1 - fraction) * shape.parameters * (of_moments + 4 + of_value) + rooms
    return Memory(2 * values, batch, resident, 2 * values + batch + resident + GPU_RESERVE, host + HOST_RESERVE)


class Fit(NamedTuple):
    fits: bool
    fraction: float
    moments: str
    memory: Memory


def fit(shape: Shape, gpu: float, host: float, tokens: int, dtype: str) -> Fit:
    """The greatest fraction, with moments in float32 where either does. `gpu`, `host`: bytes that there are."""
    for moments in ("float32", "bfloat16"):
        nothing, whole = (memory(shape, fraction, moments, tokens, dtype) for fraction in (0.0, 1.0))
        room = (gpu - nothing.gpu) / whole.gpu_state
        fraction = 1.0 if room >= 1 else max(0.0, math.floor(20 * room) / 20)
        placed = memory(shape, fraction, moments, tokens, dtype)
        found = Fit(room >= 0 and placed.host <= host, fraction, moments, placed)
        if found.fits:
            break
    return found


def update_seconds(parameters: float) -> float:
    """The time of the CPU's update of as many in bfloat16, all cores, measured with fewer."""
    count = int(max(1, min(MEASURED, parameters)))
    library = _library.load()
    pages = [mmap.mmap(-1, size * count) for size in (4, 4, 4, 2, 2)]
    values, first, second, gradient, copy = (ctypes.addressof(ctypes.c_char.from_buffer(each)) for each in pages)
    tensor = _library.AdamWTensor(gradient_dtype=1, count=count, parameters=values, first_moment=first, second_moment=second,
                                  gradient=gradient, bfloat16_copy=copy, gradient_scale=1.0, beta1=0.9, beta2=0.999,
                                  epsilon=1e-8, step=1)
    best = math.inf
    for _ in range(4):
        begin = time.monotonic()
        library.check(library.adamw_step(ctypes.byref(tensor), 1))
        best = min(best, time.monotonic() - begin)
    return best / count * parameters


def iteration(shape: Shape, fraction: float, compute: float, update: float, overlap: bool) -> float:
    """Seconds: `compute` of a forward and backward, `update` of all of the state on the CPU. With overlap=model a layer's
    update has until that layer's forward; embedding and head are first on the GPU."""
    late = min(1 - fraction, 1 - shape.embedded / shape.parameters)
    if not overlap:
        return compute + (1 - fraction) * update
    forward, layers = FORWARD * compute, shape.layers
    exposed = max(late * update / layers, late * update - forward * (layers - 1) / layers)
    return compute + (1 - fraction - late) * update + exposed


def _gpu_bytes() -> float | None:
    """The first GPU's memory, by its driver's tool; None: there is none."""
    try:
        shown = subprocess.run(["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"],
                               capture_output=True, text=True, timeout=20).stdout
        return float(shown.splitlines()[0]) * 1024 * 1024
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def _number(text: str) -> float:
    """7e9 or 7b."""
    try:
        value = float(text.lower().replace("b", "e9"))
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number above 0, such as 7e9 or 7b, got '{text}'")
    return value


def _arguments(arguments: Sequence[str] | None) -> tuple[Any, Shape]:
    parser = argparse.ArgumentParser(prog="python -m causeway.fit", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--parameters", type=_number, metavar="7e9")
    model.add_argument("--model", type=pathlib.Path, metavar="DIR")
    for name, default, what in (("gpu_gb", None, "memory of the GPU, 10⁹ bytes; default: this machine's"),
                                ("host_gb", None, "free memory of the host; default: this machine's"),
                                ("tokens", 4096, "of a micro-batch; default: 4096"),
                                ("vocabulary", 128_256, "without --model; default: 128256"),
                                ("compute_ms", None, "a step's forwards and backwards, as you have timed them: what an "
                                 "iteration takes with the update")):
        parser.add_argument(f"--{name}", type=_number, default=default, metavar="N", help=what)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of the parameters")
    options = parser.parse_args(arguments)
    options.gpu = options.gpu_gb * 1e9 if options.gpu_gb else _gpu_bytes()
    options.host = options.host_gb * 1e9 if options.host_gb else available_bytes()
    if options.gpu is None or options.host is None:
        parser.error(f"expected --{'host' if options.gpu else 'gpu'}_gb=GB, since this machine does not say")
    try:
        return options, of_folder(options.model) if options.model else usual(options.parameters, int(options.vocabulary))
    except ValueError as error:
        parser.error(str(error))


def main(arguments: Sequence[str] | None = None) -> int:
    options, shape = _arguments(arguments)
    tokens = int(options.tokens)
    print(f"{shape.parameters / 1e9:.2f} B parameters in {options.dtype}, {shape.layers} layers of {shape.hidden}, {tokens:,} "
          f"tokens a micro-batch, blocks recomputed\n{'':36}{'GPU':>12}{'host':>12}")
    found = fit(shape, options.gpu, options.host, tokens, options.dtype)
    needed = found.memory
    for name, gpu, host in (("parameters and gradients", needed.held, 0), ("a micro-batch, about", needed.batch, 0),
                            (f"state, moments in {found.moments}", needed.gpu_state, needed.host - HOST_RESERVE),
                            ("the process, CUDA", GPU_RESERVE, HOST_RESERVE), ("needed", needed.gpu, needed.host),
                            ("there is", options.gpu, options.host)):
        print(f"  {name:34}{f'{gpu / 1e9:.1f} GB' if gpu else '':>12}{f'{host / 1e9:.1f} GB' if host else '':>12}".rstrip())
    over_gpu, over_host = needed.gpu - options.gpu, needed.host - options.host
    if not found.fits:
        print(f"does not fit, even with moments in bfloat16 and {100 * (1 - found.fraction):.0f} % of the state on the host:")
        if over_gpu > 0:
            fewer = "fewer tokens a micro-batch, or " if over_gpu < needed.batch else ""
            print(f"  {over_gpu / 1e9:.1f} GB too much for the GPU, where parameters and gradients stay: {fewer}LoRA")
        if over_host > 0:
            print(f"  {over_host / 1e9:.1f} GB too much for the host")
        return 1
    moments = "" if found.moments == "float32" else ', moments="bfloat16"'
    on_cpu = ', k="cpu"' if found.fraction < 1 else ""  # with others two subgroups of state are on the GPU, too
    print(f"fits: OffloadedAdamW(model.parameters(), fraction={found.fraction:g}{on_cpu}{moments}), or with overlap=model in k's "
          "place" if on_cpu else f"fits: OffloadedAdamW(model.parameters(), fraction={found.fraction:g}{moments})")
    if found.fraction < 1:
        update = update_seconds(shape.parameters)
        print(f"the CPU's update, measured on this machine: {1e3 * (1 - found.fraction) * update:,.0f} ms a step")
        for overlap in (False, True) if options.compute_ms else ():
            took = iteration(shape, found.fraction, options.compute_ms / 1e3, update, overlap)
            print(f"an iteration{', overlap=model' if overlap else '':15}: about {1e3 * took:,.0f} ms, "
                  f"{1e3 * took / options.compute_ms:.2f} of forward and backward")
    return 0


if __name__ == "__main__":
    sys.exit(main())
