#!/usr/bin/python3
"""The loss of an exported model, computed apart from Causeway: numpy in float64, written from the papers and the layout
of Hugging Face's LlamaForCausalLM, with its own safetensors reader.

    reference_forward.py MODEL_DIR DATA [uint32]      prints the mean loss, nats per token, over the held-out windows

The windows are documented in worker/data/evaluation.h: 8 batches of 8 rows, evenly spaced over the last 5 % of DATA.
DATA is a text or a .bin file of tokens, read by tests/formats/token_files.py; uint32: one without a header.
"""

import json
import pathlib
import struct
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "formats"))
from token_files import read_tokens  # noqa: E402

HELD_OUT, WINDOWS = 0.05, 64


def read_safetensors(path):
    data = path.read_bytes()
    (header_bytes,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + header_bytes])
    values = data[8 + header_bytes :]
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        assert entry["dtype"] == "F32", name
        begin, end = entry["data_offsets"]
        tensors[name] = np.frombuffer(values[begin:end], "<f4").reshape(entry["shape"]).astype(np.float64)
    return tensors


def rms_norm(x, weight, epsilon):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight


def rotate_half(x):
    half = x.shape[-1] // 2
    return np.concatenate([-x[..., half:], x[..., :half]], -1)


def rope(x, theta):
    """x: [heads, positions, head_size]"""
    size = x.shape[-1]
    frequencies = theta ** (-np.arange(0, size, 2) / size)
    angles = np.outer(np.arange(x.shape[-2]), frequencies)
    angles = np.concatenate([angles, angles], -1)
    return x * np.cos(angles) + rotate_half(x) * np.sin(angles)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attention(x, w, prefix, config):
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    positions = x.shape[0]
    split = lambda y, n: y.reshape(positions, n, -1).transpose(1, 0, 2)
    q = rope(split(x @ w[prefix + "q_proj.weight"].T, heads), config["rope_theta"])
    k = rope(split(x @ w[prefix + "k_proj.weight"].T, kv_heads), config["rope_theta"])
    v = split(x @ w[prefix + "v_proj.weight"].T, kv_heads)
    k, v = (np.repeat(y, heads // kv_heads, axis=0) for y in (k, v))
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
    scores += np.triu(np.full((positions, positions), -np.inf), 1)
    mixed = (softmax(scores) @ v).transpose(1, 0, 2).reshape(positions, -1)
    return mixed @ w[prefix + "o_proj.weight"].T


def mlp(x, w, prefix):
    gate = x @ w[prefix + "gate_proj.weight"].T
    up = x @ w[prefix + "up_proj.weight"].T
    return (gate / (1 + np.exp(-gate)) * up) @ w[prefix + "down_proj.weight"].T


def logits(tokens, w, config):
    epsilon = config["rms_norm_eps"]
    x = w["model.embed_tokens.weight"][tokens]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        normed = rms_norm(x, w[prefix + "input_layernorm.weight"], epsilon)
        x = x + attention(normed, w, prefix + "self_attn.", config)
        normed = rms_norm(x, w[prefix + "post_attention_layernorm.weight"], epsilon)
        x = x + mlp(normed, w, prefix + "mlp.")
    x = rms_norm(x, w["model.norm.weight"], epsilon)
    head = "model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"
    return x @ w[head].T


def loss(tokens, w, config):
    probabilities = softmax(logits(tokens[:-1], w, config))
    return -np.log(probabilities[np.arange(len(tokens) - 1), tokens[1:]]).mean()


def main(directory, data, raw="uint16"):
    directory = pathlib.Path(directory)
    config = json.loads((directory / "config.json").read_text())
    weights = read_safetensors(directory / "model.safetensors")
    tokens = read_tokens(data, raw)
    window = config["max_position_embeddings"] + 1
    begin = len(tokens) - int(len(tokens) * HELD_OUT)
    last = len(tokens) - begin - window
    starts = [begin + i * last // (WINDOWS - 1) for i in range(WINDOWS)]
    print(repr(float(np.mean([loss(tokens[s : s + window], weights, config) for s in starts]))))


if __name__ == "__main__":
    main(*sys.argv[1:])
