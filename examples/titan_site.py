"""Trains torchtitan's smallest Qwen3 on the bytes of a text file, as one site of a run: titan_alone.py with two lines
changed.

    export CAUSEWAY_COORDINATOR=127.0.0.1:7077 CAUSEWAY_SITE=eu
    torchrun --standalone --nproc_per_node=1 examples/titan_site.py TEXT
"""

import sys

import torch

import causeway.torchtitan as causeway
from titan_bytes import new_config

trainer = new_config(sys.argv[1]).build()
with causeway.Site(trainer):
    trainer.train()
trainer.close()
torch.distributed.destroy_process_group()
