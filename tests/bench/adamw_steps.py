"""Steps of AdamW in host memory by several optimizers in turns; prints a line of JSON.

    adamw_steps.py steps MILLIONS THREADS COPY PEER…     COPY: 0, 1; PEER: torch, deepspeed, causeway, causeway:bfloat16
    adamw_steps.py trained TEXT STEPS                    a Qwen2 by ours and by torch's, which see the same bytes
    adamw_steps.py timed FRACTION OVERLAP CLIPPED        ours on a device that takes the time of an H200

One tensor of float32, with COPY one of bfloat16 and its float32 master. Gradients are there before the step and stay: of
float32 for all but ours with COPY, which takes them as backward makes them, in bfloat16.
"""

import json
import pathlib
import statistics
import sys
import time

import torch

FIRST, STEPS = 3, 15  # steps that are not timed, and that are
ROWS, LENGTH, WIDTH = 4, 32, 512  # of the Qwen2, which has 30 M parameters
ADAMW = {"lr": 1e-3, "betas": (0.9, 0.95), "weight_decay": 0.1}


def torch_adamw(parameters):
    return torch.optim.AdamW(parameters, fused=True, **ADAMW)


def deepspeed_adamw(parameters):
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    return DeepSpeedCPUAdam(parameters, adamw_mode=True, **ADAMW)


def peer(kind, count, copy):
    """A function that takes a step of it."""
    values, gradient = torch.randn(count), torch.randn(count)
    if kind.startswith("causeway"):
        import causeway.torch as causeway
        dtype = torch.bfloat16 if copy else torch.float32
        parameter = torch.nn.Parameter(values.to(dtype))
        parameter.grad = gradient.to(dtype)
        moments = kind.partition(":")[2] or "float32"
        return causeway.OffloadedAdamW([parameter], moments=moments, **ADAMW).step
    master = torch.nn.Parameter(values)
    master.grad = gradient
    optimizer = {"torch": torch_adamw, "deepspeed": deepspeed_adamw}[kind]([master])
    narrow = values.bfloat16()

    @torch.no_grad()
    def step():
        optimizer.step()
        if copy:
            narrow.copy_(master)

    return step


def steps_of(millions, threads, copy, *kinds):
    torch.set_num_threads(int(threads))
    torch.manual_seed(1)
    steps = {kind: peer(kind, int(millions) * 1_000_000, copy == "1") for kind in kinds}
    seconds = {kind: [] for kind in kinds}
    for _ in range(FIRST + STEPS):
        for kind, step in steps.items():
            begin = time.perf_counter()
            step()
            seconds[kind].append(time.perf_counter() - begin)
    return {kind: 1000 * statistics.median(each[FIRST:]) for kind, each in seconds.items()}


def trained(data, steps):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    import causeway.torch as causeway

    text = torch.frombuffer(bytearray(pathlib.Path(data).read_bytes()), dtype=torch.uint8).long()

    def model():
        torch.manual_seed(1)
        return Qwen2ForCausalLM(Qwen2Config(vocab_size=256, hidden_size=WIDTH, intermediate_size=4 * WIDTH,
                                            num_hidden_layers=8, num_attention_heads=8,
                                            num_key_value_heads=8, max_position_embeddings=LENGTH,
                                            tie_word_embeddings=True))

    ours, theirs, narrow = model(), model(), model()
    settings = {"lr": 3e-4, "betas": (0.9, 0.95), "weight_decay": 0.1}
    pairs = [(ours, causeway.OffloadedAdamW(ours.parameters(), **settings)),
             (theirs, torch.optim.AdamW(theirs.parameters(), fused=True, **settings)),
             (narrow, causeway.OffloadedAdamW(narrow.parameters(), moments="bfloat16", **settings))]
    draws = torch.Generator().manual_seed(2)
    seconds, furthest, losses, last = ([], [], []), 0.0, [0.0] * 3, [[], [], []]
    for step in range(int(steps)):
        first = torch.randint(0, len(text) - LENGTH, (ROWS,), generator=draws)
        batch = torch.stack([text[i:i + LENGTH] for i in first])
        for which, (network, optimizer) in enumerate(pairs):
            loss = network(input_ids=batch, labels=batch).loss
            loss.backward()
            begin = time.monotonic()
            optimizer.step()
            seconds[which].append(time.monotonic() - begin)
            optimizer.zero_grad()
            losses[which] = loss.item()
            last[which] = [*last[which][-19:], loss.item()]
        furthest = max(furthest, abs(losses[0] - losses[1]) / losses[1])
        if step % 20 == 0:
            print(f"step {step}: {losses[0]:.5f}, {losses[1]:.5f}", file=sys.stderr, flush=True)
    ours_ms, theirs_ms, narrow_ms = (1e3 * statistics.median(times[5:]) for times in seconds)
    mean = [statistics.mean(each) for each in last]
    return {"parameters": sum(p.numel() for p in ours.parameters()), "steps": int(steps), "loss": losses[0],
            "torch_loss": losses[1], "loss_difference": furthest, "bfloat16_moments_last_20": mean[2] / mean[1] - 1,
            "bfloat16_moments_ms": narrow_ms, "step_ms": ours_ms, "torch_fused_ms": theirs_ms,
            "of_torch": ours_ms / theirs_ms, "threads": torch.get_num_threads(), "torch": torch.__version__}


def timed(fraction, overlap, clipped):
    """An iteration of a Llama of 1.06 B in 22 layers: small tensors and our own steps, threads and waits, and sleeps as long as an
    H200 and its host took for each part: forward and backward, AdamW on the CPU and on the card (docs/data/gpu.jsonl), and
    gradients that clipping has changed, which cross the bus again, at 50 GB/s."""
    from torch import nn

    import causeway.torch as causeway
    from causeway.torch import _interleaved

    layers, forward, backward, on_cpu, on_card, bus = 22, 0.163, 0.505, 0.247, 0.0173, 0.042

    class Layer(nn.Linear):
        def forward(self, x):
            time.sleep(forward / layers)
            return super().forward(x)

    model = nn.ModuleDict({"embed": nn.Linear(93, 64, bias=False),  # as many of all values as the embedding has
                           "layers": nn.Sequential(*(Layer(64, 64, bias=False) for _ in range(layers)))})
    of_value = 1 / sum(parameter.numel() for parameter in model.parameters())

    def sleeping(work, seconds, values):
        def run(*arguments, **named):
            begin = time.perf_counter()
            result = work(*arguments, **named)
            time.sleep(max(0.0, seconds * of_value * values(*arguments) - (time.perf_counter() - begin)))
            return result
        return run

    def of_works(_, works, *more):
        return sum(work.values for work in works)

    kind = _interleaved.Interleaved
    _interleaved.step_on_host = sleeping(_interleaved.step_on_host, on_cpu, lambda _, works: sum(work.trained.numel() for work in works))
    kind._update = sleeping(kind._update, on_card, of_works)
    if clipped == "1":
        kind.hand_over = sleeping(kind.hand_over, bus, of_works)
    causeway.OffloadedAdamW._lies_on_host = lambda *_: False
    optimizer = causeway.OffloadedAdamW(model.parameters(), k="cpu", fraction=float(fraction),
                                        overlap=model if overlap == "1" else None, **ADAMW)
    seconds = []
    for _ in range(FIRST + STEPS):
        begin = time.perf_counter()
        loss = model["layers"](model["embed"](torch.ones(1, 93))).square().mean()
        loss.backward()
        time.sleep(backward)
        if clipped == "1":
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            time.sleep(bus * (1 - float(fraction)) if overlap == "0" else 0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - begin)
    return {"iteration_ms": 1000 * statistics.median(seconds[FIRST:])}


if __name__ == "__main__":
    print(json.dumps({"steps": steps_of, "timed": timed, "trained": trained}[sys.argv[1]](*sys.argv[2:])))
