"""Steps of one optimizer in the Python that has torch; prints a line of JSON.

    adamw_peer.py torch|deepspeed|causeway THREADS
"""

import json
import statistics
import sys
import time

import torch

PARAMETERS = 30_000_000
FIRST, STEPS = 5, 30  # steps that are not timed, and that are


def optimizer_of(kind, parameters):
    settings = {"lr": 1e-3, "betas": (0.9, 0.95), "weight_decay": 0.1}
    if kind == "torch":
        return torch.optim.AdamW(parameters, fused=True, **settings)
    if kind == "deepspeed":
        from deepspeed.ops.adam import DeepSpeedCPUAdam
        return DeepSpeedCPUAdam(parameters, adamw_mode=True, **settings)
    import causeway.torch as causeway
    return causeway.OffloadedAdamW(parameters, **settings)


def main(kind, threads):
    torch.set_num_threads(int(threads))
    torch.manual_seed(1)
    parameter = torch.nn.Parameter(torch.randn(PARAMETERS))
    parameter.grad = torch.randn(PARAMETERS)
    optimizer = optimizer_of(kind, [parameter])
    seconds = []
    for _ in range(FIRST + STEPS):
        begin = time.perf_counter()
        optimizer.step()
        seconds.append(time.perf_counter() - begin)
    print(json.dumps({"step_ms": 1000 * statistics.median(seconds[FIRST:])}))


if __name__ == "__main__":
    main(*sys.argv[1:])
