"""Trains a small Qwen2 on the bytes of a text file, as one site of a run: fsdp2_alone.py with three lines
changed, and one that reports.

    export CAUSEWAY_COORDINATOR=127.0.0.1:7077 CAUSEWAY_SITE=eu
    torchrun --standalone --nproc_per_node=2 examples/fsdp2_site.py TEXT
"""

import os
import sys

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import causeway.torch as causeway
from small_qwen import new_model, rows

mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))  # "cuda" on GPUs
data = rows(sys.argv[1])
sampler = torch.utils.data.DistributedSampler(data)
loader = torch.utils.data.DataLoader(data, batch_size=8, sampler=sampler)

model = new_model()
for layer in model.model.layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

with causeway.DiLoCo(model, optimizer) as diloco:
    for step, batch in enumerate(diloco.loop(loader), 1):
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        diloco.report(loss=loss, tokens=batch.numel())  # for the status page: may be left out
        if step % 20 == 0 and mesh.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)

torch.distributed.destroy_process_group()
