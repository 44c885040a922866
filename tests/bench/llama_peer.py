"""A Llama in plain PyTorch, whose attention is causal for the kernel, too: what an honest peer of a trainer runs.

    network = Llama(shape); loss = network(tokens)       the mean over all tokens but each row's first

Transformers' Llama may hand its attention a mask, which keeps fused causal kernels out. Names and layouts of the parameters
are transformers', so that either loads the other's.
"""

import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn import functional as F

EPSILON, THETA, DEVIATION = 1e-6, 10_000.0, 0.02  # transformers' defaults
NONE = -100  # a target that is none


def rotary(sequence, size, device):
    """Cosines and sines, (sequence, size): a pair is value i and value i + size/2."""
    frequencies = THETA ** (-torch.arange(0, size, 2, device=device, dtype=torch.float32) / size)
    angles = torch.outer(torch.arange(sequence, device=device, dtype=torch.float32), frequencies).repeat(1, 2)
    return angles.cos(), angles.sin()


def turned(x, cosines, sines):
    low, high = x.chunk(2, -1)
    return x * cosines + torch.cat((-high, low), -1) * sines


class Attention(nn.Module):
    def __init__(self, shape, expanded):
        super().__init__()
        hidden, self.size = shape["hidden"], shape["hidden"] // shape["heads"]
        keys = self.size * shape["kv_heads"]
        self.grouped = shape["kv_heads"] != shape["heads"] and not expanded
        self.copies = shape["heads"] // shape["kv_heads"] if expanded else 1
        self.q_proj, self.o_proj = nn.Linear(hidden, hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
        self.k_proj, self.v_proj = nn.Linear(hidden, keys, bias=False), nn.Linear(hidden, keys, bias=False)

    def forward(self, x, cosines, sines):
        q, k, v = (project(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for project in (self.q_proj, self.k_proj, self.v_proj))
        q, k = turned(q, cosines, sines).to(v.dtype), turned(k, cosines, sines).to(v.dtype)
        if self.copies > 1:
            k, v = k.repeat_interleave(self.copies, 1), v.repeat_interleave(self.copies, 1)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.grouped)
        return self.o_proj(mixed.transpose(1, 2).flatten(-2))


class SwiGlu(nn.Module):
    def __init__(self, shape):
        super().__init__()
        hidden, intermediate = shape["hidden"], shape["intermediate"]
        self.gate_proj, self.up_proj = nn.Linear(hidden, intermediate, bias=False), nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, shape, expanded):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape["hidden"], EPSILON)
        self.post_attention_layernorm = nn.RMSNorm(shape["hidden"], EPSILON)
        self.self_attn, self.mlp = Attention(shape, expanded), SwiGlu(shape)

    def forward(self, x, cosines, sines):
        x = x + self.self_attn(self.input_layernorm(x), cosines, sines)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """`recompute`: each block keeps its input alone, and is computed again in backward. `expanded`: each head of keys is
    copied for its queries, for kernels that take no groups."""

    def __init__(self, shape, recompute=False, expanded=False):
        super().__init__()
        self.recompute, self.head_size = recompute, shape["hidden"] // shape["heads"]
        self.embed_tokens = nn.Embedding(shape["vocab"], shape["hidden"])  # and the head
        self.layers = nn.ModuleList(Block(shape, expanded) for _ in range(shape["layers"]))
        self.norm = nn.RMSNorm(shape["hidden"], EPSILON)

    def start(self):
        """Initial values, drawn where the parameters lie."""
        for name, parameter in self.named_parameters():
            nn.init.ones_(parameter) if "norm" in name else nn.init.normal_(parameter, std=DEVIATION)
        return self

    def logits(self, tokens):
        x = self.embed_tokens(tokens)
        cosines, sines = rotary(tokens.shape[1], self.head_size, tokens.device)
        for block in self.layers:
            if self.recompute:
                x = torch.utils.checkpoint.checkpoint(block, x, cosines, sines, use_reentrant=True)
            else:
                x = block(x, cosines, sines)
        return F.linear(self.norm(x), self.embed_tokens.weight)

    def forward(self, tokens):
        targets = F.pad(tokens[:, 1:], (0, 1), value=NONE)  # the logits stay where they are, the last of a row count for nothing
        return F.cross_entropy(self.logits(tokens).flatten(0, 1).float(), targets.flatten(), ignore_index=NONE)
