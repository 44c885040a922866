"""Steps of AdamW in host memory by several optimizers in turns; prints a line of JSON.

    offloaded_adamw_steps.py MILLIONS THREADS COPY PEER…          COPY: 0, 1; PEER: torch, deepspeed, causeway, causeway:bfloat16

One tensor of float32, with COPY one of bfloat16 and its float32 master. Gradients are there before the step and stay: of
float32 for all but ours with COPY, which takes them as backward makes them, in bfloat16.
"""

import json
import statistics
import sys
import time

import torch

FIRST, STEPS = 3, 15  # steps that are not timed, and that are
ADAMW = {"lr": 1e-3, "betas": (0.9, 0.95), "weight_decay": 0.1}


def torch_adamw(parameters):
    return torch.optim.AdamW(parameters, fused=True, **ADAMW)


def deepspeed_adamw(parameters):
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    return DeepSpeedCPUAdam(parameters, adamw_mode=True, **ADAMW)


def peer(kind, count, copy):
    """A function that takes a step of it."""
    values, gradient = torch.randn(count), torch.randn(count)
    if kind.startswith("causeway"):
        import causeway.torch as causeway
        dtype = torch.bfloat16 if copy else torch.float32
        parameter = torch.nn.Parameter(values.to(dtype))
        parameter.grad = gradient.to(dtype)
        moments = kind.partition(":")[2] or "float32"
        return causeway.OffloadedAdamW([parameter], moments=moments, **ADAMW).step
    master = torch.nn.Parameter(values)
    master.grad = gradient
    optimizer = {"torch": torch_adamw, "deepspeed": deepspeed_adamw}[kind]([master])
    narrow = values.bfloat16()

    @torch.no_grad()
    def step():
        optimizer.step()
        if copy:
            narrow.copy_(master)

    return step


def main(millions, threads, copy, *kinds):
    torch.set_num_threads(int(threads))
    torch.manual_seed(1)
    steps = {kind: peer(kind, int(millions) * 1_000_000, copy == "1") for kind in kinds}
    seconds = {kind: [] for kind in kinds}
    for _ in range(FIRST + STEPS):
        for kind, step in steps.items():
            begin = time.perf_counter()
            step()
            seconds[kind].append(time.perf_counter() - begin)
    print(json.dumps({kind: 1000 * statistics.median(each[FIRST:]) for kind, each in seconds.items()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
