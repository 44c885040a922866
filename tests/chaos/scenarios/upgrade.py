"""Do today's programs go on with a run that those of an earlier commit have begun, site by site, without a stop?

--earlier is the folder of an earlier commit's coordinator and worker. A run of two sites with checkpoints goes on over
kill -9: of its coordinator, then of one worker after the other, each started again in the version that the case says. Every
time five more rounds have to follow, and at the end the sites' digests are the coordinator's.
"""

import pathlib

import harness
from harness import DigestBook, eventually, synthetic

FILE, MINUTES = "upgrade", 1
OPTIONS = {"earlier": (str(harness.BIN_DIR), "folder of the earlier programs")}
QUICK = {}
SITES = {"a": 0.5, "b": -0.25}
CASES = {  # whether today's: the coordinator, the workers from the first restart on
    "coordinator, then sites": (True, True),
    "coordinator alone": (True, False),
    "sites alone": (False, True),
}


def go_on(test, earlier, coordinator, workers):
    def program(folder, start, *arguments):
        harness.BIN_DIR = folder
        start(*arguments)

    def start_worker(folder, site):
        program(folder, run.start_worker, site, f"--checkpoint_dir={run.folder / site}")

    run = test.new_run(synthetic(SITES, [[1000], [300]], model={"step_ms": 5, "init": "seeded", "gradient": {"kind": "noise"}},
                                 sync={"sync_every": 10, "num_fragments": 2, "fragment_sync_delay": 1},
                                 membership={"lease_ms": 20000}, checkpoint={"every_rounds": 3}))
    program(earlier, run.start_coordinator)
    for site in SITES:
        start_worker(earlier, site)
    run.await_rounds(8)
    for site in SITES:
        eventually(lambda: any((run.folder / site).glob("0*")), "a checkpoint")
    run.coordinator.kill()
    program(coordinator, run.start_coordinator)
    run.await_rounds(run.rounds() + 5)
    for site in SITES:
        run.workers[site].kill()
        start_worker(workers, site)
        run.await_rounds(run.rounds() + 5)
    DigestBook().await_agreement(run, SITES, beyond=run.newest())
    return {"rounds": run.rounds()}


def cases(options):
    return [{"case": name} for name in CASES]


def measure(case, bench):
    earlier = pathlib.Path(bench.options.earlier).resolve()
    folders = [bench.build if today else earlier for today in CASES[case["case"]]]
    return bench.in_test(lambda test: go_on(test, earlier, *folders))


def report(rows, bench):
    for row in rows:
        print(f"{row['case']}: goes on")
