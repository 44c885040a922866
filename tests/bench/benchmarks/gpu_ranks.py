"""A site of two ranks on one device: it trains as one rank does, and ends with words that name the rank that was killed.

train: the quickstart's model on this project's documentation with a sync every 10 steps, in float32, by one rank and by two with
the same rows. After each move of θ the product compares the digests of both ranks' parameters and ends where they differ; here the
site must end with 0 after every round, with the held-out loss of one rank within 1e-3 of it.
killed: rank 1 gets SIGKILL in mid-run; the site must end within the rank timeout, say which rank it was, and not with 0.
On a GPU NCCL must take two ranks on one card: 2.32 or newer, by LD_PRELOAD; --device=fake sums over Gloo. Exit status 1: one of
these did not hold.
"""

import os
import pathlib
import re
import signal
import time

from bench_lib import gpu_runs

FILE, MINUTES, PRESET = "gpu_ranks", 2, "cuda"
OPTIONS = gpu_runs.OPTIONS | {"device": ("cuda:0", "or fake"), "part": (["train", "killed"], "some of these"),
                              "steps": (40, "10 at least"), "compute_dtype": ("float32", "or bfloat16"),
                              "rank_timeout_s": (10.0, "as causeway-worker's")}
QUICK = {"device": "fake", "steps": 20}
RANKS, SYNC_EVERY, FRAGMENTS = 2, 10, 2
CLOSE = 1e-3  # of one rank's loss: sums over rows have another order
# NCCL refuses two ranks on a card without the first; the second is for hardware that sums between cards.
NCCL = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "0"}


def started(bench, ranks, steps):
    config = {"run_id": "ranks", "run": {"steps": steps}, "model": {"kind": "llama", "max_position_embeddings": 128} | gpu_runs.SMALL,
              "inner": {"batch_size": 8}, "sync": {"sync_every": SYNC_EVERY, "num_fragments": FRAGMENTS, "fragment_sync_delay": 2},
              "codec": {"up": "float32", "down": "float32"}, "membership": {"min_sites": 1, "lease_ms": 60000},
              "eval": {"every_rounds": 1}, "checkpoint": {"every_rounds": 0}}
    options = bench.options
    return gpu_runs.started(bench, config, gpu_runs.docs(bench), 1, f"--nproc={ranks}", f"--device={options.device}",
                            f"--compute_dtype={options.compute_dtype}", f"--rank_timeout_s={options.rank_timeout_s:g}",
                            environment=NCCL)


def rank_process(site, rank):
    """The process of a rank: a child of the one that --nproc started."""
    children = pathlib.Path(f"/proc/{site.process.pid}/task/{site.process.pid}/children").read_text().split()
    for child in children:
        if f"--rank={rank}" in pathlib.Path(f"/proc/{child}/cmdline").read_text().split("\0"):
            return int(child)
    raise RuntimeError(f"expected a process of rank {rank} among {children}, found none")


def trained(bench, ranks):
    with started(bench, ranks, bench.options.steps) as (coordinator, (site,)):
        site.end_well()
        status, steps = coordinator.status(), site.rows("step")
        step_ms = (steps[-1]["unix_ms"] - steps[0]["unix_ms"]) / max(1, steps[-1]["step"] - steps[0]["step"])
        return {"loss": site.rows("eval")[-1]["loss"], "rounds": [fragment["version"] for fragment in status["fragments"]],
                "ranks": status["sites"][0].get("ranks", {}).get("ranks", 1), "step_ms": step_ms,
                "said": [line for line in site.log().splitlines() if "trains on" in line]}


def train(bench):
    one, two = (trained(bench, ranks) for ranks in (1, RANKS))
    difference = abs(two["loss"] / one["loss"] - 1)
    rounds = bench.options.steps // SYNC_EVERY - 1  # the last of a fragment may still be open
    return {"ranks": two["ranks"], "rounds": two["rounds"], "eval_loss": two["loss"], "eval_loss_of_one": one["loss"],
            "relative_difference": difference, "step_ms": two["step_ms"], "step_ms_of_one": one["step_ms"], "said": two["said"],
            "good": difference <= CLOSE and two["ranks"] == RANKS and min(two["rounds"]) >= rounds}


def killed(bench):
    with started(bench, RANKS, 0) as (_, (site,)):
        def step():  # the last that it has written; not every step is
            return max((row["step"] for row in site.rows("step")), default=0)

        site.wait_for(lambda: step() >= 2 * SYNC_EVERY, f"step {2 * SYNC_EVERY}")
        os.kill(rank_process(site, 1), signal.SIGKILL)
        begin, limit_s = time.monotonic(), bench.options.rank_timeout_s
        status = site.end(limit_s + gpu_runs.DEADLINE_S)
        seconds = time.monotonic() - begin
        words = re.findall(r"error (rank 1 of 2 \(.*\) has .*)", site.log())
        return {"exit_status": status, "seconds": seconds, "rank_timeout_s": limit_s, "words": words[:1], "steps": step(),
                "good": status != 0 and bool(words) and seconds <= limit_s}


PARTS = {"train": train, "killed": killed}


def cases(options):
    return [{"measure": part, "device": options.device, "compute_dtype": options.compute_dtype} for part in options.part]


def measure(case, bench):
    return PARTS[case["measure"]](bench)


def report(rows, bench):
    for row in rows:
        print(f"{row['measure']}: {'good' if row['good'] else 'NOT GOOD'}")
    return not all(row["good"] for row in rows)
