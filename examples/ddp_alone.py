"""Trains a small Qwen2 on the bytes of a text file, once through, on one machine: by replicas on several ranks (DDP).

    torchrun --standalone --nproc_per_node=2 examples/ddp_alone.py TEXT
"""

import sys

import torch

from small_qwen import new_model, rows

torch.distributed.init_process_group("gloo")  # "nccl" on GPUs
data = rows(sys.argv[1])
sampler = torch.utils.data.DistributedSampler(data)
loader = torch.utils.data.DataLoader(data, batch_size=8, sampler=sampler)

model = torch.nn.parallel.DistributedDataParallel(new_model())
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

for step, batch in enumerate(loader, 1):
    loss = model(input_ids=batch, labels=batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 20 == 0 and torch.distributed.get_rank() == 0:
        print(f"step {step}: loss {loss.item():.3f}", flush=True)

torch.distributed.destroy_process_group()
