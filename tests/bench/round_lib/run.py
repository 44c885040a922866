"""Outer rounds between real processes on this machine: how long they take, where, and on what processor time.

    before ── site: last update taken ─► first chunk      θ copied, outer gradient encoded
           ── first chunk ─► all arrived                  contributions of all sites
           ── arrived ─► decided                          journal
           ── decided ─► merged                           merge, and the update on its way
           ── merged ─► taken                             the rest of the downloads

Steps take no time, one fragment has all parameters and is applied at the step that sent it, so that a round is nothing
but the exchange. Processor time is the difference between a long and a short run: what joining costs falls out.
"""

import contextlib
import json
import pathlib
import statistics
import subprocess
import tempfile
import urllib.request

from bench_lib import processes

SITES = ("asia", "eu", "us", "west")
TENSORS, TENSOR_VALUES = 24, 1_283_328
PARAMETERS = TENSORS * TENSOR_VALUES  # 30.8 M
BITS = {"float32": 32, "int4": 4.0625, "rotated_sign": 1.0625}
FEEDBACK = {"float32": 0, "int4": 1, "rotated_sign": 0}  # as docs/codecs.md advises
SHORT = 2  # rounds
DEADLINE_S = 300


def config(codec, rounds, journal):
    return {
        "run_id": "round",
        "run": {"steps": rounds},
        "model": {"kind": "synthetic", "step_ms": 0, "init": "seeded",
                  "tensors": [{"name": f"t{i}", "shape": [TENSOR_VALUES]} for i in range(TENSORS)],
                  "gradient": {"kind": "constant", "apply": "on_send",
                               "by_site": {site: 0.1 * (1 + i) for i, site in enumerate(SITES)}}},
        "inner": {"optimizer": "sgd", "lr": 0.01, "warmup_steps": 0, "schedule": "constant", "weight_decay": 0,
                  "clip": 0},
        "sync": {"mode": "synchronous", "sync_every": 1, "num_fragments": 1, "fragment_sync_delay": 0,
                 "fragment_update_alpha": 0},
        "codec": {"up": codec, "down": codec, "feedback_up": FEEDBACK[codec], "feedback_down": FEEDBACK[codec]},
        "membership": {"min_sites": len(SITES)},
        "eval": {"every_rounds": 0},
        "checkpoint": {"every_rounds": 0},
        **({"durability": {"journal": journal}} if journal != "strict" else {}),
    }


def path_of(rounds):
    """Medians of a round's stages in seconds, from rounds as /timeline has them."""
    stages = {"encode": [], "send": [], "decide": [], "merge": [], "take": []}
    for before, this in zip(rounds, rounds[1:]):
        arrived = max(at for _, _, at in this["arrived"])
        taken = max(at for _, at in this["taken"])
        marks = [max(at for _, at in before["taken"]), this["first_unix_ms"], arrived, this["decided_unix_ms"],
                 this["merged_unix_ms"], max(taken, this["merged_unix_ms"])]
        for stage, begin, end in zip(stages, marks, marks[1:]):
            stages[stage].append((end - begin) / 1000)
    return {stage: statistics.median(seconds) for stage, seconds in stages.items()}


def run_once(build, folder, codec, rounds, journal):
    """(rounds of /timeline, processor time of the coordinator, and of all sites together)."""
    (folder / "run.yaml").write_text(json.dumps(config(codec, rounds, journal)))
    with contextlib.ExitStack() as ends:
        coordinator = processes.Coordinator(build, folder / "run.yaml", folder / "state", folder / "coordinator.log")
        ends.callback(coordinator.kill)
        address = coordinator.await_address()
        workers = []
        for site in SITES:
            log = ends.enter_context(open(folder / f"{site}.log", "wb"))
            worker = subprocess.Popen([str(build / "causeway-worker"), f"--coordinator={address}", f"--site={site}"],
                                      stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=processes.ends_with_us)
            ends.callback(worker.kill)
            workers.append(worker)
        sites = dict.fromkeys(("user", "system"), 0.0)
        for site, worker in zip(SITES, workers):
            for part, seconds in processes.processor_time(worker.pid, DEADLINE_S).items():
                sites[part] += seconds
            if worker.wait(DEADLINE_S) != 0:
                raise RuntimeError(f"{site} ended with {worker.returncode}: {(folder / f'{site}.log').read_text()[-1000:]}")
        with urllib.request.urlopen(f"http://{coordinator.http}/timeline", timeout=60) as answer:
            timeline = json.loads(answer.read())["rounds"]
        hub = processes.processor_time(coordinator.process.pid)
        coordinator.stop()
    return [one for one in timeline if one["merged_unix_ms"]], hub, sites


def measure(build, codec, rounds=12, journal="strict", folder=None):
    """A row of figures. RuntimeError with what went wrong."""
    with tempfile.TemporaryDirectory(prefix="causeway-round-", dir=folder) as scratch:
        runs = []
        for name, count in (("short", SHORT), ("long", SHORT + rounds)):
            path = pathlib.Path(scratch, name)
            path.mkdir()
            runs.append(run_once(build, path, codec, count, journal))
    (_, *before), (timeline, *after) = runs
    cpu = {who: {part: max(0.0, (late[part] - early[part]) / rounds) for part in late}
           for who, early, late in zip(("coordinator", "sites"), before, after)}
    merged = [one["merged_unix_ms"] for one in timeline]
    seconds = [(end - begin) / 1000 for begin, end in zip(merged[SHORT - 1:], merged[SHORT:])]
    return {"codec": codec, "journal": journal, "rounds": rounds, "round_s": statistics.median(seconds),
            "slowest_s": max(seconds), "path": path_of(timeline[SHORT - 1:]), "cpu": cpu}


def passes(build, codec, log):
    """The round's memory passes alone."""
    return processes.bench_rows(build, "round", {"bits": BITS[codec], "feedback": str(FEEDBACK[codec] > 0).lower(),
                                                 "values": PARAMETERS, "sites": len(SITES)}, log)[0]
