"""A site on a device that is killed in mid-run goes on from its checkpoint, to the anchors of a run that was not.

Two runs of one site and the quickstart's model on this project's documentation, for each place of the optimizer's state: one
is killed (SIGKILL) after its first checkpoint and started again. A row has the digests of both, and the held-out loss that
each evaluated. Exit status 1: they differ.
"""

from bench_lib import gpu_runs

FILE, MINUTES, PRESET = "gpu_resume", 2, "cuda"
OPTIONS = gpu_runs.OPTIONS | {"placements": (["auto", "cpu"], "of the optimizer's state"), "steps": (60, "30 at least")}
QUICK = {"device": "fake", "placements": ["cpu"], "steps": 40}


def config(steps):
    return {"run_id": "resume", "run": {"steps": steps}, "model": {"kind": "llama", "max_position_embeddings": 128} | gpu_runs.SMALL,
            "inner": {"batch_size": 8}, "sync": {"sync_every": 10, "num_fragments": 2, "fragment_sync_delay": 2},
            "codec": {"up": "int4", "down": "int4"}, "membership": {"min_sites": 1, "lease_ms": 60000},
            "eval": {"every_rounds": 1}, "checkpoint": {"every_rounds": 1}}


def ended(bench, placement, killed):
    """(digests, loss)"""
    flags = [f"--device={bench.options.device}", f"--checkpoint_dir={bench.folder / f'checkpoints-{killed}'}"]
    if placement != "auto":
        flags += ["--compute_dtype=bfloat16", f"--offload_k={placement}"]
    with gpu_runs.started(bench, config(bench.options.steps), gpu_runs.docs(bench), 1, *flags) as (coordinator, (site,)):
        if killed:
            site.wait_for(lambda: "checkpoint after step" in site.log(), "a checkpoint")
            site.process.kill()
            site.process.wait()
            site.start()
        site.end_well()
        return [part["digest"] for part in coordinator.status()["fragments"]], site.rows("eval")[-1]["loss"]


def cases(options):
    return [{"placement": placement, "device": options.device} for placement in options.placements]


def measure(case, bench):
    whole, killed = (ended(bench, case["placement"], kill) for kill in (False, True))
    return {"equal": whole == killed, "digests": whole[0], "eval_loss": whole[1], "eval_loss_killed": killed[1]}


def report(rows, bench):
    for row in rows:
        print(f"{row['placement']}: {'equal' if row['equal'] else 'DIFFERS'}")
    return not all(row["equal"] for row in rows)
