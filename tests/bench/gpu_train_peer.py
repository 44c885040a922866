"""Steps of the same Llama by PyTorch, compiled, in bfloat16 with float32 masters and a fused AdamW.

    gpu_train_peer.py DEVICE DATA.bin STEPS '{"hidden": …, "layers": …, …}'     prints {"tokens_per_s", "step_ms", …}
"""

import json
import statistics
import sys
import time

import numpy
import torch
import transformers

FIRST = 3  # steps that are not timed: they compile


def main(device, data, steps, shape):
    shape = json.loads(shape)
    config = transformers.LlamaConfig(
        hidden_size=shape["hidden"], intermediate_size=shape["intermediate"], num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"], num_key_value_heads=shape["kv_heads"], vocab_size=shape["vocab"],
        max_position_embeddings=shape["sequence"], tie_word_embeddings=True)
    torch.set_float32_matmul_precision("high")
    model = transformers.LlamaForCausalLM(config).to(device)
    compiled = torch.compile(model) if device != "cpu" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.99), weight_decay=0.1, fused=device != "cpu")
    tokens = torch.from_numpy(numpy.fromfile(data, numpy.uint16).astype(numpy.int64))
    rows, length = shape["rows"], shape["sequence"]
    seconds = []
    for step in range(FIRST + int(steps)):
        first = step * rows * length % (len(tokens) - rows * length)
        batch = tokens[first:first + rows * length].view(rows, length).to(device)
        begin = time.perf_counter()
        with torch.autocast(device.split(":")[0], torch.bfloat16):
            loss = compiled(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss = loss.item()
        if step >= FIRST:
            seconds.append(time.perf_counter() - begin)
    median = statistics.median(seconds)
    print(json.dumps({"step_ms": 1000 * median, "tokens_per_s": rows * length / median, "loss": loss}))


if __name__ == "__main__":
    main(*sys.argv[1:])
