"""One site of tests/bench/torch_step, or one of its ranks: a model inside the run and its twin outside take turns, a block of steps each."""

import json
import math
import os
import pathlib
import re
import statistics
import sys
import time

import torch
from torch import distributed, nn

import causeway.torch as causeway
from causeway import _library
from bench_lib import processes

VOCABULARY = 4096
shape = []  # rows, tokens of each
BLOCK = 10  # steps: few, so that both twins see the same machine; a send or an update is over after one or two
if "--quiet" in sys.argv:
    BLOCK = 1  # nothing is sent


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
    """Notes how long the training loop is in Causeway's hands: in the hooks before and after the optimizer's step, and at its end."""

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        self.hook_s = [0.0]
        self.plans = []  # (kind, values, seconds of this thread)
        carry_out = self._carrier._carry_out

        def timed(plan, done):
            start = time.perf_counter()
            carry_out(plan, done)
            self.plans.append((plan[0].kind, sum(move.count for move in plan), time.perf_counter() - start))
        self._carrier._carry_out = timed

    def _step_begins(self, *arguments):
        start = time.perf_counter()
        super()._step_begins(*arguments)
        self.hook_s[-1] += time.perf_counter() - start

    def _look_at_step(self):
        start = time.perf_counter()
        super()._look_at_step()
        self.hook_s[-1] += time.perf_counter() - start

    def _end_step(self):
        start = time.perf_counter()
        super()._end_step()
        self.hook_s[-1] += time.perf_counter() - start
        self.hook_s.append(0.0)


def peak_bytes():
    """The most memory that this process has held at once since the last call."""
    status = pathlib.Path("/proc/self/status").read_text()
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) << 10


def step(model, optimizer):
    device = next(model.parameters()).device
    tokens = torch.randint(VOCABULARY, shape, device=device)
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


def wrapped(model, shard, world):
    if world == 1:
        return model
    if shard == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    from torch.distributed.fsdp import fully_shard
    mesh = distributed.device_mesh.init_device_mesh("cpu", (world,))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def moved(plans, kinds):
    """How many plans of these kinds there were, their values, and the seconds that they took of this thread."""
    chosen = [(values, seconds) for kind, values, seconds in plans if kind in kinds and values > 0]
    return {"plans": len(chosen), "values": sum(values for values, _ in chosen),
            "seconds": sum(seconds for _, seconds in chosen)}


def check_s(diloco, times=1000):
    """Seconds of one look whether the script still trains what is synced."""
    start = time.perf_counter()
    for _ in range(times):
        diloco._trained.check()
    return (time.perf_counter() - start) / times


def main():
    shape[:] = map(int, sys.argv[7:9])
    address, device, layers, width, steps = *sys.argv[1:3], *map(int, sys.argv[3:6])
    shard, world, rank = sys.argv[6], int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    if world > 1:
        distributed.init_process_group("gloo" if device == "cpu" else "nccl")
    torch.manual_seed(1)
    torch.set_num_threads(1)
    alone, inside = ((model, torch.optim.AdamW(model.parameters(), lr=1e-4))
                     for model in (wrapped(Model(layers, width).to(device), shard, world) for _ in range(2)))
    for _ in range(2):  # optimizer states exist from the first step on
        peak_bytes()
        for pair in (alone, inside):
            step(*pair)
    before = peak_bytes()
    control = turns(alone, inside, 100 // BLOCK)
    with TimedDiLoCo(*inside, coordinator=address, site="a") as diloco:
        joined = peak_bytes()
        times = dict(zip(("without", "with"), turns(alone, inside, steps // BLOCK)))
        assert diloco.over
    parameters = sum(parameter.numel() for parameter in inside[0].parameters())
    own = {"joining": (joined - before) / parameters, "peak": (peak_bytes() - before) / parameters}
    of_ranks = [own]
    if world > 1:
        of_ranks = [None] * world
        distributed.all_gather_object(of_ranks, own)
        distributed.destroy_process_group()
    if rank != 0:
        return
    median = {name: statistics.median(values) for name, values in times.items()}
    checked = check_s(diloco)
    mean = {name: statistics.fmean(values) for name, values in times.items()}
    print(json.dumps({
        "parameters": parameters, "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "median_s": median, "median_ratio": median["with"] / median["without"],
        "control_ratio": statistics.median(control[1]) / statistics.median(control[0]),
        "mean_s": mean, "mean_ratio": mean["with"] / mean["without"],
        "check_s": checked, "check_share": checked / median["without"],
        "hooks_median_s": statistics.median(diloco.hook_s), "hooks_share": sum(diloco.hook_s) / sum(times["with"]),
        "slowest_s": max(times["with"]), "steps_timed": {name: len(values) for name, values in times.items()},
        "joining_bytes_a_parameter": own["joining"], "peak_bytes_a_parameter": own["peak"],
        "others_bytes_a_parameter": [other["peak"] for other in of_ranks[1:]],
        "read": moved(diloco.plans, (_library.READ,)), "move": moved(diloco.plans, (_library.WRITE, _library.MIX)),
        "goal_bytes_a_parameter": 12 + 9 / 8 + 64e6 / parameters,
        "torch": torch.__version__, **processes.machine(),
    }))
    assert all(math.isfinite(value) for value in times["with"])


if __name__ == "__main__":
    main()
