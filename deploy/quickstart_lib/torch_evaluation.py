"""Evaluates the model of deploy/quickstart --torch: prints what
`causeway-worker --evaluate` prints, as one JSON object.

    torch_evaluation.py --export=DIR [--start=DIR] --held_out=FILE TEXT…     TEXT: what the sites trained on

Losses are in nats per byte: of the export, of the untrained model (null without --start), and of a bigram table that
counted TEXT, all over the same held-out bytes.
"""

import argparse
import json
import math
import pathlib
import sys

import numpy
import torch
from safetensors.torch import load_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples"))

from small_qwen import LENGTH, new_model, rows  # noqa: E402

BYTES = 256  # values that a byte has
ROWS = 512  # evenly over the held-out text
BATCH = 64
SAMPLE_BYTES = 200
TEMPERATURE = 0.8
SEED = 1


def load(folder):
    """The example's model with the parameters of an export. A tied parameter is in it once, under its first name."""
    model = new_model().eval()
    path = folder / "model.safetensors"
    values = load_file(path)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            got = tuple(values[name].shape) if name in values else "none of that name"
            if got != tuple(parameter.shape):
                sys.exit(f"error: {path}: expected a tensor {name} of shape {tuple(parameter.shape)}, got {got}")
            parameter.copy_(values[name])
    return model


def spread(all_rows, count):
    """At most `count` rows at equal distances."""
    return all_rows[torch.linspace(0, len(all_rows) - 1, min(count, len(all_rows))).long()]


@torch.no_grad()
def model_loss(model, held_out):
    """Mean over each row's bytes but its first, which nothing comes before."""
    total = sum(model(input_ids=batch, labels=batch).loss.item() * len(batch) for batch in held_out.split(BATCH))
    return total / len(held_out)


def bigram_loss(texts, held_out):
    """The loss of a table with half a pair added to each count, on the bytes that model_loss predicts."""
    pairs = numpy.full(BYTES * BYTES, 0.5)
    for path in texts:
        text = numpy.fromfile(path, numpy.uint8).astype(numpy.int32)
        pairs += numpy.bincount(text[:-1] * BYTES + text[1:], minlength=BYTES * BYTES)
    table = pairs.reshape(BYTES, BYTES)
    probabilities = table / table.sum(axis=1, keepdims=True)
    return -numpy.log(probabilities[held_out[:, :-1], held_out[:, 1:]]).mean().item()


@torch.no_grad()
def sample(model, prompt):
    """Continues the prompt; the whole context is computed anew for each byte."""
    torch.manual_seed(SEED)
    text = prompt
    for _ in range(SAMPLE_BYTES):
        logits = model(input_ids=text[None, -LENGTH:]).logits[0, -1]
        text = torch.cat([text, torch.multinomial((logits / TEMPERATURE).softmax(0), 1)])
    return bytes(text[len(prompt):].tolist()).decode(errors="replace")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--export", type=pathlib.Path, required=True)
    parser.add_argument("--start", type=pathlib.Path)
    parser.add_argument("--held_out", type=pathlib.Path, required=True)
    parser.add_argument("texts", type=pathlib.Path, nargs="+", metavar="TEXT")
    options = parser.parse_args()
    held_out = spread(rows(options.held_out), ROWS)
    model = load(options.export)
    loss = model_loss(model, held_out)
    print(json.dumps({
        "eval_loss_start": model_loss(load(options.start), held_out) if options.start else None,
        "eval_loss": loss,
        "bigram_loss": bigram_loss(options.texts, held_out.numpy()),
        "bits_per_byte": loss / math.log(2),
        "sample": sample(model, held_out[0, :LENGTH // 2]),
    }))


if __name__ == "__main__":
    main()
