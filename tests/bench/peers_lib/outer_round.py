"""One outer round of four sites on this machine, over loopback: the seconds from one round's end to the next's."""

import contextlib
import itertools
import json
import pathlib
import statistics
import subprocess
import tempfile
import urllib.request

from ingest_lib import processes
from peers_lib import sites
from peers_lib.cases import NO_STEP, Case, Entry
from peers_lib.table import Unavailable
from wan_lib import figures, run

FIRST = 2  # rounds that are not timed
LIMIT_S = 120
CODECS = ("float32", "int4", "rotated_sign")


def round_config(codec, rounds):
    """Sites that compute nothing: every step is a round of one fragment, and the next begins when it is applied."""
    config = run.run_config(figures.Cell(0, codec, "1", 1), FIRST + rounds, "auto")
    config["model"]["step_ms"] = 0
    config["sync"] |= {"sync_every": 1, "num_fragments": 1, "fragment_sync_delay": 0}
    return config


def ours_round(build, codec, rounds):
    """The median seconds between two merges, by the coordinator's timeline."""
    with tempfile.TemporaryDirectory(prefix="causeway-round-") as name, contextlib.ExitStack() as stack:
        folder = pathlib.Path(name)
        run.write_config(folder / "run.yaml", round_config(codec, rounds))
        coordinator = processes.Coordinator(build, folder / "run.yaml", folder / "state", folder / "coordinator.log")
        stack.callback(coordinator.kill)
        coordinator.await_address()
        workers = []
        for site in figures.SITES:
            command = [str(build / "causeway-worker"), f"--coordinator={coordinator.address}", f"--site={site}"]
            with open(folder / f"{site}.log", "w", encoding="utf-8") as log:
                workers.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                                preexec_fn=processes.ends_with_us))
            stack.callback(workers[-1].kill)
        for site, worker in zip(figures.SITES, workers):
            if worker.wait(LIMIT_S) != 0:
                raise Unavailable(f"site {site}: {(folder / f'{site}.log').read_text(errors='replace')[-200:]}")
        with urllib.request.urlopen(f"http://{coordinator.http}/timeline", timeout=LIMIT_S) as answer:
            merged = sorted(each["merged_unix_ms"] for each in json.loads(answer.read())["rounds"]
                            if each["merged_unix_ms"])
    seconds = [(end - begin) / 1000 for begin, end in itertools.pairwise(merged)][1:]
    return statistics.median(seconds)


def peer_round(environment, kind, rounds):
    """The median of the sites' medians."""
    environment.require("torch", *(["torchft"] if kind == "torchft" else []))
    settings = {"tensors": figures.TENSORS, "values": figures.TENSOR_VALUES, "fragments": 1, "sync_every": 1,
                "delay": 0, "step_s": 0, "dtype": "float32", "first": FIRST, "fragments_timed": rounds}
    results = sites.run(environment, kind, settings,
                        [("127.0.0.1", "lo", contextlib.nullcontext)] * (1 + len(figures.SITES)), LIMIT_S)
    return statistics.median(statistics.median(result["rounds_s"]) for result in results)


def cases(environment, options):
    entries = [
        Entry("torchft DiLoCo, float32 over Gloo", lambda: peer_round(environment, "torchft", options.rounds),
              baseline=True),
        Entry("Gloo all-reduce, float32", lambda: peer_round(environment, "gloo", options.rounds),
              note=NO_STEP)]
    for codec in CODECS:
        entries.append(Entry(f"Causeway {codec}", lambda codec=codec: ours_round(options.build, codec, options.rounds),
                             ours=True))
    name = f"outer round, {figures.PARAMETERS / 1e6:.1f} M parameters, 4 sites, loopback"
    return [Case("round", name, "s", entries, options.turns)]
