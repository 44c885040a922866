"""Steps of a Llama (llama_peer.py) by PyTorch at its best: the fastest of several variants counts.

    gpu_train_peer.py --device=cuda|cpu --data=TOKENS.bin --shape='{"hidden": …, "rows": …}' [--steps=8] [--micro_batches=1]
                      [--limit=120] [--variants=masters/flash/default,…]

A variant is PRECISION/BACKEND/MODE. `masters`: parameters in bfloat16 beside float32 masters, as causeway's trainer has
them; `autocast`: float32 parameters that autocast rounds. The attention's backend is forced: `flash`, `cudnn`, or `math` as
on the CPU. MODE is torch.compile's, or `none`. By default the faster of both precisions goes on to cuDNN and max-autotune.
Each variant is a process with a limit of seconds and prints a line of JSON when it is done, or with an `error`; the last
line is the best, `{"best": "masters/cudnn/default", "tokens_per_s": …}`. AdamW is fused, the batches lie on the device, and
`attention` has the operators that a profiler saw.
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

from gpu_models import read_tokens
from limited_process import last_row

FIRST = 3  # steps that are not timed: they compile
PRECISIONS, MODES = ("masters", "autocast"), ("none", "default", "max-autotune", "max-autotune-no-cudagraphs")
BACKENDS = {"flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION", "math": "MATH"}


class Masters:
    """AdamW over float32 copies of a network's parameters, which are bfloat16."""

    def __init__(self, network, make):
        import torch

        self.torch, self.parameters = torch, list(network.parameters())
        self.masters = [parameter.detach().float() for parameter in self.parameters]
        network.to(torch.bfloat16)
        for master in self.masters:
            master.grad = torch.empty_like(master)
        self.optimizer = make(self.masters)

    @property
    def clipped(self):
        self.torch._foreach_copy_([master.grad for master in self.masters], [parameter.grad for parameter in self.parameters])
        return self.masters

    def step(self):
        self.optimizer.step()
        with self.torch.no_grad():
            self.torch._foreach_copy_(self.parameters, self.masters)

    def zero_grad(self):
        for parameter in self.parameters:
            parameter.grad = None


class Plain:
    """The same over the parameters themselves."""

    def __init__(self, network, make):
        self.clipped = list(network.parameters())
        self.optimizer = make(self.clipped)
        self.step = self.optimizer.step

    def zero_grad(self):
        self.optimizer.zero_grad(set_to_none=True)


def takes_groups(shape, device):
    """Whether the forced backend takes fewer heads of keys than of queries."""
    import torch

    size = shape["hidden"] // shape["heads"]
    q = torch.zeros(1, shape["heads"], 128, size, device=device, dtype=torch.bfloat16, requires_grad=True)
    k = torch.zeros(1, shape["kv_heads"], 128, size, device=device, dtype=torch.bfloat16, requires_grad=True)
    try:
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True)
        mixed.backward(torch.ones_like(mixed))
        return True
    except RuntimeError:
        return False


def batches(options, shape):
    """A list for each step, of its micro-batches."""
    import torch

    kept = read_tokens(options.data)
    tokens = torch.frombuffer(kept, dtype=torch.uint16 if kept.itemsize == 2 else torch.uint32).to(torch.int64)
    values = shape["rows"] * shape["sequence"]
    firsts = (step * values % (len(tokens) - values) for step in range(FIRST + options.steps))
    return [tokens[first:first + values].view(shape["rows"], -1).to(options.device).chunk(options.micro_batches) for first in firsts]


def measure(options, shape, precision, mode):
    import torch
    from llama_peer import Llama

    torch.set_float32_matmul_precision("high")
    torch.manual_seed(1)
    expanded = shape["heads"] != shape["kv_heads"] and not takes_groups(shape, options.device)
    with torch.device(options.device):
        network = Llama(shape, expanded=expanded).start()
    update = (Masters if precision == "masters" else Plain)(network, lambda parameters: torch.optim.AdamW(
        parameters, lr=3e-4, betas=(0.9, 0.99), weight_decay=0.1, fused=True))
    forward = torch.compile(network, mode=mode) if mode != "none" else network
    rounded = torch.autocast(options.device.split(":")[0], torch.bfloat16) if precision == "autocast" else contextlib.nullcontext()
    seconds, profile = [], torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    for step, parts in enumerate(batches(options, shape)):
        begin = time.perf_counter()
        torch.compiler.cudagraph_mark_step_begin()
        with profile if step == 1 else contextlib.nullcontext():
            for part in parts:
                with rounded:
                    loss = forward(part)
                (loss / len(parts) if len(parts) > 1 else loss).backward()
        torch.nn.utils.clip_grad_norm_(update.clipped, 1.0, foreach=True)
        update.step()
        update.zero_grad()
        loss = loss.item()  # the only wait of a step
        seconds.append(time.perf_counter() - begin)
    median = statistics.median(seconds[FIRST:])
    peak = torch.cuda.max_memory_allocated() if options.device.startswith("cuda") else 0
    return {"step_ms": 1000 * median, "tokens_per_s": shape["rows"] * shape["sequence"] / median, "loss": loss,
            "attention": sorted({event.name for event in profile.events() if "scaled_dot_product" in event.name}),
            "compile_s": sum(seconds[:FIRST]) - FIRST * median, "grouped_heads": "expanded" if expanded else "as they are",
            "peak_device_mb": peak / 1e6, "torch": torch.__version__}


def one(options, shape, variant):
    """In a process of its own."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    precision, backend, mode = variant.split("/")
    if mode == "max-autotune" and options.micro_batches > 1:
        mode = "max-autotune-no-cudagraphs"  # the next micro-batch's graph would overwrite the gradients of this one
    with sdpa_kernel(getattr(SDPBackend, BACKENDS[backend])):
        return {"mode": mode} | measure(options, shape, precision, mode)


def checked(variant):
    if not all(part in known for part, known in zip(variant.split("/"), (PRECISIONS, BACKENDS, MODES), strict=True)):
        raise ValueError
    return variant


def variants(text):
    try:
        return [checked(variant) for variant in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a list of {'|'.join(PRECISIONS)}/{'|'.join(BACKENDS)}/{'|'.join(MODES)}, "
                                         f"got '{text}'") from None


def fastest(rows):
    return max((row for row in rows if "error" not in row), key=lambda row: row["tokens_per_s"], default=None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", required=True)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--shape", type=json.loads, required=True)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--micro_batches", type=int, default=1)
    parser.add_argument("--limit", type=float, default=120, help="seconds of a variant")
    parser.add_argument("--variants", type=variants)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.micro_batches < 1 or options.shape["rows"] % options.micro_batches:
        parser.error(f"--micro_batches: expected a divisor of {options.shape['rows']} rows, got {options.micro_batches}")
    if options.one:
        print(json.dumps(one(options, options.shape, options.variants[0])))
        return
    command = [sys.executable, __file__, "--one", f"--device={options.device}", f"--data={options.data}",
               f"--shape={json.dumps(options.shape)}", f"--steps={options.steps}", f"--micro_batches={options.micro_batches}"]
    rows = []

    def run(variant):
        precision, backend, mode = variant.split("/")
        with tempfile.TemporaryDirectory(prefix="causeway-peer-") as cache:  # the compiler's, which may not tell backends apart
            row = {"variant": variant, "precision": precision, "backend": backend, "mode": mode} | last_row(
                [*command, f"--variants={variant}"], options.limit, {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache})
        print(json.dumps(row), flush=True)
        rows.append(row)

    kernel, mode = ("math", "none") if options.device == "cpu" else ("flash", "default")
    for variant in options.variants or [f"{precision}/{kernel}/{mode}" for precision in PRECISIONS]:
        run(variant)
    if not options.variants and options.device != "cpu":
        precision = (fastest(rows) or rows[0])["precision"]
        for variant in ("cudnn/default", "flash/max-autotune", "cudnn/max-autotune"):
            run(f"{precision}/{variant}")
    best = fastest(rows)
    print(json.dumps({"best": best["variant"]} | best if best else {"best": None, "error": "no variant ran"}), flush=True)


if __name__ == "__main__":
    main()
