"""The built-in trainer on a GPU against PyTorch at its best, and against what was predicted: tokens a second.

Both train the same Llama on the same tokens, one after the other: causeway's in bfloat16 with float32 masters, PyTorch's by
the fastest variant of gpu_train_peer.py. --python has torch; without it there is no ratio. Models: gpu_models.py, which also
has the operations behind `mfu`, and the prediction for one H200 with all state on it; `tiny` is for a machine without a GPU
(--device=fake).
--placements: where the optimizer's state lies, each K or K:SHARE as of --offload_k and --resident_share, or cpu:late, such as
resident,1,2,cpu,1:0.5; each with the time of an update, predicted and measured, and what crossed the bus. θ after all steps
has to be the same for all. A program that fails or takes longer than --limit seconds has a row that says so.
Goal: 1.15 times the best of PyTorch at 124 M, 1.10 elsewhere.
"""

import json
import pathlib

from bench_lib import gpu_runs, processes
from bench_lib.figures import goal
from gpu_models import KINDS, mfu, predicted_tokens_per_s, shape_of
from limited_process import rows_of

FILE, MINUTES, PRESET = "gpu_train", 15, "cuda"
OPTIONS = gpu_runs.OPTIONS | {
    "python": (None, "an interpreter with torch"), "models": (["124m", "1.06b"], "of gpu_models.py"),
    "micro_batches": ([0], "of a step; 0: the model's own"), "placements": (["auto"], "of the optimizer's state"),
    "tokens": ("zipf", " or ".join(KINDS)), "steps": (20, "that are timed"), "warm_up": (3, "steps before them"),
    "limit": (200.0, "seconds of all placements"), "torch_limit": (120.0, "seconds of each variant of PyTorch")}
QUICK = {"device": "fake", "models": ["tiny"], "micro_batches": [1, 2], "placements": ["auto", "1", "cpu"], "steps": 2}
PEER = pathlib.Path(__file__).parents[1] / "gpu_train_peer.py"
GOALS, GOAL = {"124m": 1.15}, 1.10
SUBGROUPS = {"tiny": 10_000}  # values of one
VARIANTS = 5  # of PyTorch, each with a limit


def cases(options):
    for name in options.models:
        shape, known = shape_of(name), {"model": name, "device": options.device, "tokens": options.tokens}
        for parts in options.micro_batches:
            parts = parts or shape.get("micro_batches", 1)
            if parts < 1 or shape["rows"] % parts:
                raise SystemExit(f"--micro_batches: expected divisors of the {shape['rows']} rows of {name}, got {parts}")
            yield {"by": "causeway", **known, "micro_batches": parts, "steps": options.steps}
        if options.python:
            yield {"by": "torch", **known}


def measure(case, bench):
    options, shape = bench.options, shape_of(case["model"])
    data = gpu_runs.tokens(bench, case["model"], shape, options.tokens)
    if case["by"] == "torch":
        command = [options.python, PEER, f"--device={'cpu' if options.device in ('cpu', 'fake') else options.device}",
                   f"--data={data}", f"--steps={options.steps}", f"--shape={json.dumps(shape)}",
                   f"--micro_batches={shape.get('micro_batches', 1)}", f"--limit={options.torch_limit}"]
        for row in rows_of(command, VARIANTS * (options.torch_limit + 10)):
            if "best" not in row:  # it is one of the others
                yield row | ({} if "error" in row else {"mfu": mfu(row["tokens_per_s"], shape)})
        return
    settings = {"data": data, "device": options.device, "placements": options.placements, "steps": options.steps,
                "warm_up": options.warm_up, "subgroup": SUBGROUPS.get(case["model"], 100_000_000)}
    if options.placements != ["auto"]:
        settings["compute_dtype"] = "bfloat16"
    command = processes.command_of(bench.build, "train", shape | settings | {"micro_batches": case["micro_batches"]})
    for row in rows_of(command, options.limit):
        yield {"placement": ",".join(options.placements)} | our_row(row, shape)


def our_row(row, shape):
    if "error" in row:
        return row
    row["mfu"] = mfu(row["tokens_per_s"], shape)
    if row["k"] == "resident":
        row["predicted_tokens_per_s"] = predicted_tokens_per_s(shape)
        row["of_predicted"] = row["tokens_per_s"] / row["predicted_tokens_per_s"]
    if row["predicted_update_ms"] > 0:
        row["of_predicted_update"] = row["update_ms"] / row["predicted_update_ms"]
    return row


def said(row):
    name = f"{row['model']}, {row['by']} {row.get('variant') or 'state ' + row['placement']}"
    if "error" in row:
        return f"{name}: none: {row['error'].splitlines()[-1]}"
    words = f"{name}: {row['tokens_per_s']:,.0f} tokens/s, {row['step_ms']:.1f} ms a step, MFU {row['mfu']:.3f}"
    if "predicted_tokens_per_s" in row:
        words += f"; predicted {row['predicted_tokens_per_s']:,.0f} tokens/s"
    if row.get("update_ms"):
        words += f"; update {row['update_ms']:.1f} ms, predicted {row['predicted_update_ms']:.1f}"
    return words


def report(rows, bench):
    differ = False
    for row in rows:
        print(said(row))
    for name in dict.fromkeys(row["model"] for row in rows):
        of = {by: [row for row in rows if (row["model"], row["by"]) == (name, by) and "error" not in row] for by in ("causeway", "torch")}
        for parts in dict.fromkeys(row["micro_batches"] for row in of["causeway"]):
            digests = {row["placement"]: row["theta"] for row in of["causeway"] if row["micro_batches"] == parts}
            if len(digests) > 1:
                equal = len(set(digests.values())) == 1
                differ |= not equal
                print(f"{name}, micro-batches {parts}: θ of {', '.join(digests)} {'has equal bits' if equal else 'DIFFERS'}")
        if of["causeway"] and of["torch"]:
            ours, theirs = (max(rows_of_one, key=lambda row: row["tokens_per_s"]) for rows_of_one in of.values())
            print(f"{name}: {ours['tokens_per_s']:,.0f} tokens/s, of PyTorch's {theirs['variant']} "
                  f"{goal(ours['tokens_per_s'] / theirs['tokens_per_s'], least=GOALS.get(name, GOAL))}")
    return differ or all("error" in row for row in rows)
