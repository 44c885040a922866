"""Trains a small Qwen2 on the bytes of a text file, once through, on one machine: PyTorch and transformers as they are.

    python3 examples/plain_alone.py TEXT
"""

import sys

import torch

from small_qwen import new_model, rows

loader = torch.utils.data.DataLoader(rows(sys.argv[1]), batch_size=8, shuffle=True)

model = new_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

for step, batch in enumerate(loader, 1):
    loss = model(input_ids=batch, labels=batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 20 == 0:
        print(f"step {step}: loss {loss.item():.3f}", flush=True)
