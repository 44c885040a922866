"""The price of durability: how long a commit takes, and a start after kill -9. With one build, or several by turns.

    commit   eight light sites (bench_run/sites.cc) and a model of 20,000 values: the bytes are nothing, so that a
             round of 16 fragments lasts as long as its commits, one after the other or together
    restart  three rounds of --parameters, then kill -9 and a start on the same directory: until it listens, and until
             all versions are merged again; no snapshot was saved after the first

Goal of the latter: 10 s until it listens. The ratio of two builds is that of their medians.
"""

import statistics
import time
import pathlib

from bench_lib import processes

FILE, MINUTES = "journal", 8
OPTIONS = {"builds": ([str(processes.ROOT / "build" / "release")], "folders of programs, in turns"), "turns": (5, "of each build"),
           "parameters": (100_000_000, "of a restart")}
QUICK = {"turns": 1, "parameters": 1_000_000}
SITES, FRAGMENTS = 8, 16
NAMES = ",".join(f"s{i}" for i in range(SITES))
COMMIT_PARAMETERS, COMMIT_ROUNDS, RESTART_ROUNDS = 20_000, 200, 3


def run(build, folder, log, parameters, rounds):
    """A coordinator whose sites have contributed to `rounds` rounds; and the seconds that these took."""
    config = folder / "run.yaml"
    config.write_text(processes.run_yaml(parameters, FRAGMENTS, FRAGMENTS, SITES, "int4"))
    coordinator = processes.Coordinator(build, config, folder / "state", folder / "coordinator.log")
    sites = processes.light_sites(build, coordinator.await_address(), f"--sites={NAMES}", f"--rounds={rounds}", log=log)
    return coordinator, processes.answer_of(sites)["seconds"]


def commit_ms(build, folder, log, parameters):
    coordinator, seconds = run(build, folder, log, COMMIT_PARAMETERS, COMMIT_ROUNDS)
    coordinator.kill()
    return {"round_ms": 1e3 * seconds / COMMIT_ROUNDS}


def restart_s(build, folder, log, parameters):
    coordinator, _ = run(build, folder, log, parameters, RESTART_ROUNDS)
    coordinator.kill()
    coordinator.start()
    coordinator.await_address()
    listening_s = time.monotonic() - coordinator.started
    while min(fragment["version"] for fragment in coordinator.status()["fragments"]) < RESTART_ROUNDS:
        time.sleep(0.01)
    merged_s = time.monotonic() - coordinator.started
    coordinator.kill()
    return {"listening_s": listening_s, "merged_s": merged_s}


MEASURES = {"commit": commit_ms, "restart": restart_s}


def cases(options):
    order = list(range(len(options.builds)))
    return [{"build": build, "turn": turn, "part": part} for turn in range(options.turns)
            for build in order[::1 if turn % 2 == 0 else -1] for part in MEASURES]


def measure(case, bench):
    build = pathlib.Path(bench.options.builds[case["build"]]).resolve()
    return MEASURES[case["part"]](build, bench.folder, bench.log, bench.options.parameters)


def report(rows, bench):
    for key, unit in (("round_ms", "ms for a round of 16 fragments"), ("listening_s", "s until it listens"),
                      ("merged_s", "s until all is merged again")):
        medians = [statistics.median(row[key] for row in rows if key in row and row["build"] == build)
                   for build in range(len(bench.options.builds))]
        print(f"{key}: {', '.join(f'{median:.3g}' for median in medians)} {unit}"
              + "".join(f"; {median / medians[0]:.2f} x the first" for median in medians[1:]))
