"""Transformers' Llama, and timed steps of it by torch's AdamW: what cpu_train_peer.py and gpu_train_peer.py share."""

import contextlib
import statistics
import time

import numpy
import torch
import transformers

FIRST = 3  # steps that are not timed: they compile


def llama(shape, **more):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=shape["hidden"], intermediate_size=shape["intermediate"], num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"], num_key_value_heads=shape["kv_heads"], vocab_size=shape["vocab"],
        max_position_embeddings=shape["sequence"], tie_word_embeddings=True, **more))


def time_steps(network, data, steps, shape, fused, device="cpu", forward=contextlib.nullcontext, on_first=None):
    """Steps `network` over the uint16 tokens in `data`, each forward pass inside `forward()`, and calls `on_first()` before
    the first step that is timed. Returns the median seconds of a step and the last loss."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3, betas=(0.9, 0.99), weight_decay=0.1, fused=fused)
    tokens = torch.from_numpy(numpy.fromfile(data, numpy.uint16).astype(numpy.int64))
    rows, length = shape["rows"], shape["sequence"]
    seconds = []
    for step in range(FIRST + steps):
        if step == FIRST and on_first:
            on_first()
        first = step * rows * length % (len(tokens) - rows * length)
        batch = tokens[first:first + rows * length].view(rows, length).to(device)
        begin = time.perf_counter()
        with forward():
            loss = network(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss = loss.item()
        if step >= FIRST:
            seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds), loss
