"""The cost of outer syncs in a site on a GPU, and the loss of two sites on one card.

step: a coordinator and a site, random tokens. Steps with a sync of a quarter of the model every fifth step, contributions
encoded on the device (into mapped memory, or copied) or on the host, ÷ steps without a sync. Goal: at most 1.01.
loss: two sites with the quickstart's model on this project's own documentation, syncing every 20 steps in 4 bits: held-out
loss of two that share the card ÷ that of two on the processor. Goal: within 0.5 %.
"""

from bench_lib import gpu_runs
from bench_lib.figures import goal
from gpu_models import shape_of

FILE, MINUTES, PRESET = "gpu_sync", 3, "cuda"
OPTIONS = gpu_runs.OPTIONS | {"part": (["step", "loss"], "some of these"), "model": ("124m", "of the part step"),
                              "steps": (120, "of the part step"), "ways": (["mapped", "copied", "host"], "of --encode"),
                              "loss_steps": (200, "of the part loss")}
QUICK = {"device": "fake", "model": "tiny", "steps": 65, "ways": ["mapped"], "loss_steps": 40}
FIRST = 45  # steps that are not timed: each fragment has been sent once by then
MOST_STEP, MOST_LOSS_OFF = 1.01, 0.005


def config(steps, model, inner, sync, sites, every_rounds):
    return {"run_id": "sync", "run": {"steps": steps}, "model": {"kind": "llama"} | model, "inner": inner, "sync": sync,
            "codec": {"up": "int4", "down": "int4"}, "membership": {"min_sites": sites, "lease_ms": 120000},
            "eval": {"every_rounds": every_rounds}, "checkpoint": {"every_rounds": 0}, "data": {"mode": "shared"}}


def encoded_on(status):
    return sorted({part["encoded_on"] for site in status["sites"] for part in site["fragments"] if "encoded_on" in part})


def cases(options):
    steps = [{"measure": "step", "model": options.model, "encode": way} for way in ("none", *options.ways)]
    return [case for part in options.part for case in (
        steps if part == "step" else [{"measure": "loss", "device": device} for device in ("cpu", options.device)])]


def measure(case, bench):
    options = bench.options
    if case["measure"] == "loss":
        sync = {"sync_every": 20, "num_fragments": 4, "fragment_sync_delay": 2}
        site, status = gpu_runs.run(bench, config(options.loss_steps, gpu_runs.SMALL | {"max_position_embeddings": 128},
                                                  {"batch_size": 8}, sync, 2, 1), gpu_runs.docs(bench), 2, f"--device={case['device']}")
        return {"steps": options.loss_steps, "eval_loss": site.rows("eval")[-1]["loss"], "encoded_on": encoded_on(status),
                "said": gpu_runs.said(site)}
    shape, way = shape_of(options.model), case["encode"]
    sync = {"sync_every": 20, "num_fragments": min(4, shape["layers"] + 1), "fragment_sync_delay": 3}
    if way == "none":  # until the last step
        sync |= {"sync_every": options.steps, "num_fragments": 1}
    inner = {"batch_size": shape["rows"], "micro_batches": shape.get("micro_batches", 1), "lr": 3e-4}
    site, status = gpu_runs.run(bench, config(options.steps, gpu_runs.model_of(shape), inner, sync, 1, 0),
                                gpu_runs.tokens(bench, options.model, shape), 1, f"--device={options.device}",
                                *([] if way == "none" else [f"--encode={way}"]))
    at = [(row["step"], row["unix_ms"]) for row in site.rows("step")]
    timed = [pair for pair in at if pair[0] >= FIRST]
    return {"step_ms": (timed[-1][1] - timed[0][1]) / (timed[-1][0] - timed[0][0]), "encoded_on": encoded_on(status),
            "steps_ms": [after[1] - before[1] for before, after in zip(at, at[1:])], "said": gpu_runs.said(site)}


def report(rows, bench):
    of = {part: [row for row in rows if row["measure"] == part] for part in ("step", "loss")}
    for row in of["step"][1:]:
        print(f"{row['model']}, {row['encode']}: {row['step_ms']:.1f} ms a step, of without a sync "
              f"{goal(row['step_ms'] / of['step'][0]['step_ms'], most=MOST_STEP)}")
    for row in of["loss"][1:]:
        print(f"two sites on {row['device']}: held-out loss {row['eval_loss']:.4f}, of the processors' "
              f"{goal(row['eval_loss'] / of['loss'][0]['eval_loss'], within=MOST_LOSS_OFF)}")
