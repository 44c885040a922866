"""One site of tests/bench/torch_step: a model inside the run and its twin outside take turns, a block of steps each."""

import json
import math
import pathlib
import re
import statistics
import sys
import time

import torch
from torch import nn

import causeway.torch as causeway
from ingest_lib import processes

VOCABULARY, LENGTH, ROWS = 4096, 32, 2
BLOCK = 10  # steps: few, so that both twins see the same machine; a send or an update is over after one or two


class Model(nn.Module):
    def __init__(self, layers, width):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        block = nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(block, layers, enable_nested_tensor=False).layers
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class TimedDiLoCo(causeway.DiLoCo):
    """Notes how long the training loop is in Causeway's hands: in the hooks before and after the optimizer's step."""

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        self.hook_s = [0.0]

    def before_change(self):
        start = time.perf_counter()
        super().before_change()
        self.hook_s[-1] += time.perf_counter() - start

    def after_step(self):
        start = time.perf_counter()
        super().after_step()
        self.hook_s[-1] += time.perf_counter() - start
        self.hook_s.append(0.0)


def peak_bytes():
    """The most memory that this process has held at once since the last call."""
    status = pathlib.Path("/proc/self/status").read_text()
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) << 10


def step(model, optimizer):
    device = model.head.weight.device
    tokens = torch.randint(VOCABULARY, (ROWS, LENGTH), device=device)
    start = time.perf_counter()
    nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def turns(alone, inside, count):
    """Times of steps of the two, who take `count` turns of BLOCK steps each."""
    times = [], []
    for _ in range(count):
        for pair, of_pair in zip((alone, inside), times):
            of_pair += [step(*pair) for _ in range(BLOCK)]
    return times


def main():
    address, device, layers, width, steps = *sys.argv[1:3], *map(int, sys.argv[3:])
    torch.manual_seed(1)
    torch.set_num_threads(1)
    alone, inside = ((model, torch.optim.AdamW(model.parameters(), lr=1e-4))
                     for model in (Model(layers, width).to(device), Model(layers, width).to(device)))
    for _ in range(2):  # optimizer states exist from the first step on
        peak_bytes()
        for pair in (alone, inside):
            step(*pair)
    before = peak_bytes()
    control = turns(alone, inside, 10)
    with TimedDiLoCo(*inside, coordinator=address, site="a") as diloco:
        joined = peak_bytes()
        times = dict(zip(("without", "with"), turns(alone, inside, steps // BLOCK)))
        assert diloco.over
    parameters = sum(parameter.numel() for parameter in inside[0].parameters())
    median = {name: statistics.median(values) for name, values in times.items()}
    mean = {name: statistics.fmean(values) for name, values in times.items()}
    print(json.dumps({
        "parameters": parameters, "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "median_s": median, "median_ratio": median["with"] / median["without"],
        "control_ratio": statistics.median(control[1]) / statistics.median(control[0]),
        "mean_s": mean, "mean_ratio": mean["with"] / mean["without"],
        "hooks_median_s": statistics.median(diloco.hook_s), "hooks_share": sum(diloco.hook_s) / sum(times["with"]),
        "slowest_s": max(times["with"]), "steps_timed": {name: len(values) for name, values in times.items()},
        "joining_bytes_a_parameter": (joined - before) / parameters,
        "peak_bytes_a_parameter": (peak_bytes() - before) / parameters,
        "goal_bytes_a_parameter": 12 + 9 / 8 + 64e6 / parameters,
        "torch": torch.__version__, **processes.machine(),
    }))
    assert all(math.isfinite(value) for value in times["with"])


if __name__ == "__main__":
    main()
