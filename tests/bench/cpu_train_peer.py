"""Steps of transformers' Llama on one thread of the CPU, in float32 with torch's fused AdamW; prints a line of JSON.

    cpu_train_peer.py DATA.bin STEPS 0|1 '{"hidden": …, "layers": …, …}'     1: by torch.compile
"""

import json
import os
import statistics
import sys
import time

import numpy
import torch
import transformers

FIRST = 3  # steps that are not timed: they compile


def llama(shape):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=shape["hidden"], intermediate_size=shape["intermediate"], num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"], num_key_value_heads=shape["kv_heads"], vocab_size=shape["vocab"],
        max_position_embeddings=shape["sequence"], tie_word_embeddings=True, use_cache=False))


def time_steps(network, data, steps, shape):
    """Steps `network` over the uint16 tokens in `data`. Returns the median seconds of a step and the last loss."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3, betas=(0.9, 0.99), weight_decay=0.1, fused=True)
    tokens = torch.from_numpy(numpy.fromfile(data, numpy.uint16).astype(numpy.int64))
    rows, length = shape["rows"], shape["sequence"]
    seconds = []
    for step in range(FIRST + steps):
        if step == FIRST:
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        first = step * rows * length % (len(tokens) - rows * length)
        batch = tokens[first:first + rows * length].view(rows, length)
        begin = time.perf_counter()
        loss = network(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss = loss.item()
        if step >= FIRST:
            seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds), loss


def main(data, steps, compiled, shape):
    torch.set_num_threads(1)
    shape = json.loads(shape)
    model = llama(shape)
    seconds, loss = time_steps(torch.compile(model) if compiled == "1" else model, data, int(steps), shape)
    print(json.dumps({"tokens_per_s": shape["rows"] * shape["sequence"] / seconds, "loss": loss,
                      "parameters": sum(parameter.numel() for parameter in model.parameters())}))


if __name__ == "__main__":
    main(*sys.argv[1:])
