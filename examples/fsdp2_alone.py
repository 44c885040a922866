"""Trains a small Qwen2 on the bytes of a text file, once through, on one machine: sharded by fully_shard, on one rank.

    torchrun --standalone --nproc_per_node=1 examples/fsdp2_alone.py TEXT
"""

import sys

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from small_qwen import new_model, rows

loader = torch.utils.data.DataLoader(rows(sys.argv[1]), batch_size=8, shuffle=True)

mesh = init_device_mesh("cpu", (1,))
model = new_model()
for layer in model.model.layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

for step, batch in enumerate(loader, 1):
    loss = model(input_ids=batch, labels=batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 20 == 0:
        print(f"step {step}: loss {loss.item():.3f}", flush=True)

torch.distributed.destroy_process_group()
