"""Moments in bfloat16, rounded stochastically: offload/adamw.h for tensors."""

from __future__ import annotations

import torch


def _signed(bits: int) -> int:
    return bits - (1 << 32) if bits >= 1 << 31 else bits


def seed_of(step: int, parameter: int) -> int:
    """For the rounding of one parameter's moments in a step."""
    return (step * 0x9E3779B9 + parameter * 0x85EBCA6B) & 0xFFFFFFFF


def rounding_bits(seed: int, count: int, device: torch.device) -> torch.Tensor:
    """32 random bits for each of `count` values, as int32."""
    bits = torch.arange(count, dtype=torch.int32, device=device) * _signed(0x9E3779B1) + _signed(seed)
    bits = (bits ^ (bits >> 16 & 0xFFFF)) * _signed(0x85EBCA6B)
    bits = (bits ^ (bits >> 13 & 0x7FFFF)) * _signed(0xC2B2AE35)
    return bits ^ (bits >> 16 & 0xFFFF)


def round_stochastically(values: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    """float32 values in bfloat16, by 16 random bits for each."""
    rounded = (values.view(torch.int32) + bits & ~0xFFFF).view(torch.float32)
    return torch.where(values.isnan(), values, rounded).bfloat16()
