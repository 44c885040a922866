"""Steps of the same Llama by PyTorch, compiled, in bfloat16 with float32 masters and a fused AdamW.

    gpu_train_peer.py DEVICE DATA.bin STEPS '{"hidden": …, "layers": …, …}'     prints {"tokens_per_s", "step_ms", …}
"""

import json
import sys

import llama_steps
import torch


def main(device, data, steps, shape):
    shape = json.loads(shape)
    torch.set_float32_matmul_precision("high")
    model = llama_steps.llama(shape).to(device)
    seconds, loss = llama_steps.time_steps(
        torch.compile(model) if device != "cpu" else model, data, int(steps), shape, fused=device != "cpu", device=device,
        forward=lambda: torch.autocast(device.split(":")[0], torch.bfloat16))
    tokens = shape["rows"] * shape["sequence"]
    print(json.dumps({"step_ms": 1000 * seconds, "tokens_per_s": tokens / seconds, "loss": loss}))


if __name__ == "__main__":
    main(*sys.argv[1:])
