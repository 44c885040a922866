"""Runs a script that trains with torchtitan's own Trainer, on the CPU.

    torchrun --standalone --nproc_per_node=1 titan_on_cpu.py SCRIPT ARGUMENT…

The CPU's module of PyTorch gets what torchtitan asks a GPU's for, and its attention, whose backward pass is written for
GPUs alone, is PyTorch's.
"""

import pathlib
import runpy
import sys
import types

import torch
import torch._utils


def causal(self, q_BLNH, k_BLNH, v_BLNH, *, attention_masks, scale=None, **settings):
    q, k, v = (values.transpose(1, 2) for values in (q_BLNH, k_BLNH, v_BLNH))
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, scale=scale, enable_gqa=q.shape[1] != k.shape[1]).transpose(1, 2)


torch._utils._get_available_device_type = lambda: "cpu"
torch.cpu.get_device_name = lambda device=None: "CPU"
torch.cpu.get_device_properties = lambda device=None: types.SimpleNamespace(name="CPU", total_memory=1 << 30)
torch.cpu.current_device = lambda: 0
torch.cpu.memory_stats = lambda device=None: {}
torch.cpu.reset_peak_memory_stats = torch.cpu.empty_cache = lambda: None

from torchtitan.models.common import attention  # noqa: E402 (it looks for its device when it is imported)

attention.FlexAttention.forward = causal
sys.argv = sys.argv[1:]
sys.path.insert(0, str(pathlib.Path(sys.argv[0]).parent))
runpy.run_path(sys.argv[0], run_name="__main__")
