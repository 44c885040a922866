"""The loss of models at sizes that a processor cannot train, by codec: sites that share a card.

A setting is a preset of run.yaml, or data_parallel: one site with the batches of all at every step, whose mean crosses as it is.
All see the same number of tokens, H = 30, AdamW. A row has the held-out loss at the end, and the bytes that one site sent and got.
--rows_file: runs that are in that file for this card are not made again. Each run ends after --limit seconds, without a row.
"""

import json
import pathlib
import time

from bench_lib import gpu_runs, processes
from gpu_models import MODELS, parameters, shape_of

FILE, MINUTES, PRESET = "gpu_learn", 30, "cuda"
H, FRAGMENTS, DELAY = 30, 4, 2
SETTINGS = ["float32", "data_parallel", "balanced", "slow-link", "sparse"]
STEPS = {"17m": 3000, "35m": 2000, "tiny": 105}  # what should take a card of 2022 three minutes for two sites
OPTIONS = gpu_runs.OPTIONS | {
    "models": (["17m", "35m"], ", ".join(MODELS)), "settings": (SETTINGS, "some of these"), "sites": (2, "that share the card"),
    "steps": (0, "0: as many as the model has"), "seed": (1, "of parameters and data"), "limit": (240.0, "seconds of a run"),
    "text": (None, "to learn from; default: Debian's English dictionary"), "rows_file": (None, "of rows that are there"),
    "gpu": (None, "the card of --rows_file")}
QUICK = {"device": "fake", "models": ["tiny"], "settings": ["float32", "data_parallel", "sparse"]}


def config(shape, case):
    alone = case["setting"] == "data_parallel"
    outer = {"preset": "float32", "outer": {"optimizer": "sgd", "lr": 1}} if alone else {"preset": case["setting"]}
    return outer | {
        "run_id": "learn", "seed": case["seed"], "run": {"steps": case["steps"]}, "model": gpu_runs.model_of(shape),
        "inner": {"lr": 1e-3, "warmup_steps": min(100, case["steps"] // 5), "schedule": "cosine",
                  "batch_size": shape["rows"] * (case["sites"] if alone else 1)},
        "sync": {"sync_every": H, "num_fragments": min(FRAGMENTS, shape["layers"] + 1), "fragment_sync_delay": 0 if alone else DELAY,
                 "fragment_update_alpha": 0 if alone else 0.5},
        "membership": {"min_sites": 1 if alone else case["sites"], "lease_ms": 120000},
        # The last round is evaluated, and few before it.
        "eval": {"every_rounds": max(1, case["steps"] // H - 1)}, "checkpoint": {"every_rounds": 0}, "data": {"mode": "shared"}}


def cases(options):
    there = pathlib.Path(options.rows_file).read_text().splitlines() if options.rows_file else []
    there = [row for row in map(json.loads, there) if row.get("measure") == "learn" and options.gpu in (None, row.get("gpu"))]
    for model in options.models:
        shape_of(model)
        for setting in options.settings:
            case = {"measure": "learn", "model": model, "setting": setting, "sites": options.sites,
                    "steps": options.steps or STEPS.get(model, 1000), "seed": options.seed}
            if not any(case.items() <= row.items() for row in there):
                yield case


def measure(case, bench):
    options, shape, begin = bench.options, MODELS[case["model"]], time.monotonic()
    sites = 1 if case["setting"] == "data_parallel" else case["sites"]
    site, status = gpu_runs.run(bench, config(shape, case), options.text or processes.corpus(), sites,
                                f"--device={options.device}", limit_s=options.limit)
    evaluated = site.rows("eval")[-1]
    return {"parameters": parameters(shape), "h": H, "eval_loss": evaluated["loss"], "versions": evaluated.get("versions"),
            "tokens": case["sites"] * case["steps"] * shape["rows"] * shape["sequence"],
            # One of them has also sent the initial parameters, or got them.
            "up_bytes": min(site["up_bytes"] for site in status["sites"]),
            "down_bytes": min(site["down_bytes"] for site in status["sites"]), "seconds": round(time.monotonic() - begin, 1)}


def report(rows, bench):
    same = ("model", "sites", "steps", "seed")
    float32 = {tuple(row[key] for key in same): row["eval_loss"] for row in rows if row["setting"] == "float32"}
    for row in rows:
        base = float32.get(tuple(row[key] for key in same))
        print(f"{row['model']}, {row['setting']}, {row['sites']} sites, {row['steps']} steps: held-out loss {row['eval_loss']:.4f}"
              + (f", {100 * (row['eval_loss'] / base - 1):+.2f} % of float32" if base else "") +
              f"; {row['up_bytes'] / 1e6:.1f} MB up, {row['down_bytes'] / 1e6:.1f} MB down a site; {row['seconds']:.0f} s")
