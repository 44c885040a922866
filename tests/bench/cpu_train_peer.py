"""Steps of transformers' Llama on one thread of the CPU, in float32 with torch's fused AdamW; prints a line of JSON.

    cpu_train_peer.py DATA.bin STEPS 0|1 '{"hidden": …, "layers": …, …}'     1: by torch.compile
"""

import json
import os
import sys

import llama_steps
import torch


def main(data, steps, compiled, shape):
    torch.set_num_threads(1)
    shape = json.loads(shape)
    model = llama_steps.llama(shape, use_cache=False)
    seconds, loss = llama_steps.time_steps(
        torch.compile(model) if compiled == "1" else model, data, int(steps), shape, fused=True,
        on_first=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}))
    print(json.dumps({"tokens_per_s": shape["rows"] * shape["sequence"] / seconds, "loss": loss,
                      "parameters": sum(parameter.numel() for parameter in model.parameters())}))


if __name__ == "__main__":
    main(*sys.argv[1:])
