"""Trains a small Qwen2 on the bytes of a text file, as one site of a run: plain_alone.py with three lines changed, and
four that report.

    CAUSEWAY_COORDINATOR=127.0.0.1:7077 CAUSEWAY_SITE=eu python3 examples/plain.py TEXT [HELD_OUT]
"""

import sys

import torch

import causeway.torch as causeway
from held_out import HeldOut
from small_qwen import new_model, rows, tokenizer

loader = torch.utils.data.DataLoader(rows(sys.argv[1]), batch_size=8, shuffle=True)

model = new_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

held_out = HeldOut(sys.argv[2:])
with causeway.DiLoCo(model, optimizer, assets=tokenizer()) as diloco:
    for step, batch in enumerate(diloco.loop(loader), 1):
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        diloco.report(loss=loss, tokens=batch.numel())  # for the status page: may be left out, like the next
        held_out.report(diloco, model, step)
        if step % 20 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
