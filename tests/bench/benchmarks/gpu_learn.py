"""The loss of a model at a size that a processor cannot train, at 20 tokens a parameter: sites that share a card.

20 s of data parallel training measure the rate. 17 M parameters and 340 M tokens, if three runs of that fit 500 s; else 5 M and
100 M. Then data parallel (one site with the batches of both at every step, whose mean crosses as it is), two sites in float32, and
two at 1 bit; H = 30, AdamW. A row has the held-out loss at the end, and the bytes that one site sent and got, and is written as
each run ends. The text should be a quarter of the tokens at least, so that nothing is seen more than four times.
"""

import time

from bench_lib import gpu_runs, processes
from gpu_models import MODELS, parameters, shape_of

FILE, MINUTES, PRESET = "gpu_learn", 10, "cuda"
H, FRAGMENTS, DELAY = 30, 4, 2
SETTINGS = ["data_parallel", "float32", "slow-link"]  # presets of run.yaml, but the first
TOKENS = {"17m": 340e6, "5m": 100e6, "tiny": 27e3}  # of all sites together
LARGE, SMALL, FIT_S, RATE_S = "17m", "5m", 500, 20
OPTIONS = gpu_runs.OPTIONS | {
    "model": ("auto", f"or one of {', '.join(TOKENS)}"), "settings": (SETTINGS, "some of these, or other presets"),
    "sites": (2, "that share the card"), "seed": (1, "of parameters and data"), "limit": (FIT_S / 2, "seconds of a run"),
    "text": (None, "to learn from; default: Debian's English dictionary")}
QUICK = {"device": "fake", "model": "tiny", "settings": ["float32", "data_parallel", "sparse"]}


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


def rate(bench):
    """Tokens a second of data parallel training of the large model."""
    shape = MODELS[LARGE]
    case = {"setting": "data_parallel", "steps": 10**6, "seed": bench.options.seed, "sites": bench.options.sites}
    with gpu_runs.started(bench, config(shape, case), bench.options.text or processes.corpus(), 1,
                          f"--device={bench.options.device}", "--metrics_every_s=0") as (_, (site,)):
        site.wait_for(lambda: len(site.rows("step")) > 1, "steps")
        time.sleep(RATE_S)
        first, last = site.rows("step")[1], site.rows("step")[-1]
    steps = (last["step"] - first["step"]) * 1000 / (last["unix_ms"] - first["unix_ms"])
    return steps * case["sites"] * shape["rows"] * shape["sequence"]


def cases(options):
    if options.model == "auto":
        yield {"measure": "learn_rate", "model": LARGE}
    elif options.model not in TOKENS:
        raise SystemExit(f"--model: expected auto or one of {', '.join(TOKENS)}, got '{options.model}'")
    for setting in options.settings:
        yield {"measure": "learn", "setting": setting, "sites": options.sites, "seed": options.seed}


def measure(case, bench):
    options, begin = bench.options, time.monotonic()
    if case["measure"] == "learn_rate":
        return {"tokens_per_s": rate(bench)}
    rates = [row["tokens_per_s"] for row in bench.rows if row["measure"] == "learn_rate"]
    fits = bool(rates) and 3 * TOKENS[LARGE] / rates[0] <= FIT_S
    model = options.model if options.model != "auto" else LARGE if fits else SMALL
    shape = shape_of(model)
    steps = round(TOKENS[model] / (case["sites"] * shape["rows"] * shape["sequence"]))
    sites = 1 if case["setting"] == "data_parallel" else case["sites"]
    site, status = gpu_runs.run(bench, config(shape, case | {"steps": steps}), options.text or processes.corpus(), sites,
                                f"--device={options.device}", limit_s=options.limit)
    evaluated = site.rows("eval")[-1]
    return {"model": model, "steps": steps, "parameters": parameters(shape), "h": H, "eval_loss": evaluated["loss"],
            "versions": evaluated.get("versions"), "tokens": case["sites"] * steps * shape["rows"] * shape["sequence"],
            # One of them has also sent the initial parameters, or got them.
            "up_bytes": min(site["up_bytes"] for site in status["sites"]),
            "down_bytes": min(site["down_bytes"] for site in status["sites"]), "seconds": round(time.monotonic() - begin, 1)}


def report(rows, bench):
    for row in rows:
        if row["measure"] == "learn_rate":
            print(f"{row['model']}: {row['tokens_per_s'] / 1e6:.2f} M tokens/s; learned from {3 * TOKENS[LARGE] / FIT_S / 1e6:.2f} on")
    rows = [row for row in rows if row["measure"] == "learn"]
    bases = {(row["model"], row["sites"], row["seed"]): row["eval_loss"] for row in rows if row["setting"] == "data_parallel"}
    for row in rows:
        base = bases.get((row["model"], row["sites"], row["seed"]))
        print(f"{row['model']}, {row['setting']}, {row['sites']} sites, {row['tokens'] / 1e6:.0f} M tokens: loss {row['eval_loss']:.4f}"
              + (f", {100 * (row['eval_loss'] / base - 1):+.2f} % of data parallel" if base else "") +
              f"; {row['up_bytes'] / 1e6:.1f} MB up, {row['down_bytes'] / 1e6:.1f} MB down a site; {row['seconds']:.0f} s")
