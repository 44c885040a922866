"""Compares a quickstart with one process that trains on the same number of tokens.

Reads the run's settings and figures from result.json, trains the same model in a single site without any sync (one round
at the very end hands its parameters to the coordinator, as they are) and prints one line of JSON: both losses on the
same held-out text, and their ratio.

    --batch=long   the same batch size, as many more steps as there were sites (the harder peer)
    --batch=wide   the same number of steps, as much larger batches
"""

import json
import pathlib
import sys
import time

from quickstart_lib.built_in import BuiltInTrainer
from quickstart_lib.stack import Stack

from bench_lib import processes

FILE, MINUTES = "one_process", 10
OPTIONS = {"result": (str(processes.ROOT / "build" / "quickstart" / "result.json"), "of the quickstart"),
           "batch": ("long", "or wide"), "steps": (0, "at most; 0: as many as the tokens make")}
QUICK = {"steps": 60}
POLL_S = 1.0


def one_process_config(result, batch):
    """The run's own config with everything that concerns several sites taken out."""
    config = json.loads(json.dumps(result["config"]))
    sites = len(result["sites"])
    inner = config["inner"]
    if batch == "wide":
        inner["batch_size"] *= sites
    tokens_per_step = inner["batch_size"] * config["model"]["max_position_embeddings"]
    steps = result["tokens"] // tokens_per_step
    config.update(
        run_id="one_process",
        run={"steps": steps},
        sync={"sync_every": steps, "num_fragments": 1, "fragment_sync_delay": 0, "fragment_update_alpha": 0},
        outer={"optimizer": "sgd", "lr": 1},
        codec={"up": "float32", "down": "float32", "feedback_up": 0, "feedback_down": 0},
        membership={"min_sites": 1},
        eval={**config["eval"], "every_rounds": 0},
        checkpoint={"every_rounds": 0})
    return config


def train(bench, config, data):
    folder = bench.folder
    """The held-out loss of what one process trains."""
    steps = config["run"]["steps"]
    trainer = BuiltInTrainer()
    trainer.take(data, ["one"], folder)
    with Stack(bench.build, folder, json.dumps(config), trainer.site, ["one"]) as stack:
        while True:
            status = stack.status()
            if status and status["state"] == "done":
                break
            if status and status["sites"]:
                print(f"\rstep {status['sites'][0]['step']} of {steps}", end="", file=sys.stderr, flush=True)
            time.sleep(POLL_S)
        print(file=sys.stderr)
        stack.export("export", folder / "export")
        stack.finish()
        return json.loads(stack.run_program("evaluate", "causeway-worker", f"--evaluate={folder / 'export'}",
                                            f"--data={data}", "--sample_bytes=1"))["eval_loss"]


def why_not(options):
    return None if pathlib.Path(options.result).exists() else f"expected {options.result}, which deploy/quickstart writes"


def cases(options):
    return [{"one_process_batch": options.batch}]


def measure(case, bench):
    result = json.loads(pathlib.Path(bench.options.result).read_text())
    config = one_process_config(result, case["one_process_batch"])
    if bench.options.steps:
        config["run"]["steps"] = config["sync"]["sync_every"] = min(bench.options.steps, config["run"]["steps"])
    loss = train(bench, config, processes.corpus())
    return {"tokens": result["tokens"], "one_process_steps": config["run"]["steps"], "one_process_loss": loss,
            "sites": len(result["sites"]), "sites_loss": result["eval_loss_end"], "ratio": result["eval_loss_end"] / loss}


def report(rows, bench):
    for row in rows:
        print(f"{row['sites']} sites {row['sites_loss']:.4f}, one process {row['one_process_loss']:.4f}: {row['ratio']:.3f}")
