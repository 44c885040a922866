"""Trains a small Qwen2 on the bytes of a text file, once through, on one machine: PyTorch and transformers as they are.

    python3 examples/plain_alone.py TEXT
"""

import sys

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

LENGTH = 64

with open(sys.argv[1], "rb") as file:
    text = torch.tensor(bytearray(file.read()), dtype=torch.long)
rows = text[:len(text) // LENGTH * LENGTH].view(-1, LENGTH)
loader = torch.utils.data.DataLoader(rows, batch_size=8, shuffle=True)

model = Qwen2ForCausalLM(Qwen2Config(
    vocab_size=256, hidden_size=64, intermediate_size=172, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=LENGTH, tie_word_embeddings=True))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

for step, batch in enumerate(loader, 1):
    loss = model(input_ids=batch, labels=batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 20 == 0:
        print(f"step {step}: loss {loss.item():.3f}", flush=True)
