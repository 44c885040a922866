"""Trains torchtitan's smallest Qwen3 on the bytes of a text file, on one GPU: torchtitan as it is.

    torchrun --standalone --nproc_per_node=1 examples/titan_alone.py TEXT
"""

import sys

import torch

from titan_bytes import new_config

trainer = new_config(sys.argv[1]).build()
trainer.train()
trainer.close()
torch.distributed.destroy_process_group()
