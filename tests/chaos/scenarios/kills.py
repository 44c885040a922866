"""Does a run that is killed at any moment, again and again, end with the bits of one that is not?

A coordinator and three sites with checkpoints, in synchronous mode, so that the bits do not depend on time. kill -9 at
random moments, of the coordinator (one time in three again while it starts) or of a site, each started again at once,
until --count kills are over; a run that is done before is compared, and another one begun. Compared with an undisturbed
run: the export, every site's θ, W, v and ē, and which contributions are in which round, with their weights. No process may
end by itself but at the run's end.
"""

import random
import time

from harness import eventually, merged
from test_faults import CONFIG, SITES, check_same, finish

FILE, MINUTES = "kills", 6
OPTIONS = {"count": (200, "kills"), "seed": (1, "of their moments")}
QUICK = {"count": 3}
LONG = merged(CONFIG, {"run": {"steps": 400}, "model": {"step_ms": 6}})


def start(test):
    run = test.new_run(LONG)
    run.start_coordinator()
    for site in SITES:
        start_worker(run, site)
    return run


def start_worker(run, site):
    run.start_worker(site, f"--checkpoint_dir={run.folder / ('checkpoints-' + site)}")


def kill(test, run, chance):
    """How many it killed; 0: the run is over."""
    time.sleep(chance.uniform(0.02, 0.5))
    if not all(worker.running() for worker in run.workers.values()):
        return 0
    if chance.random() < 0.3:
        site = chance.choice(sorted(SITES))
        run.workers[site].kill()
        start_worker(run, site)
        return 1
    run.coordinator.kill()
    killed = 1
    if chance.random() < 0.33:
        again = run.program("coordinator", "causeway-coordinator", f"--config={run.config_path}",
                            f"--state_dir={run.state_dir}", f"--listen={run.grpc}", f"--http={run.http}")
        time.sleep(chance.uniform(0, 0.15))
        test.assertTrue(again.running(), again.log()[-2000:])
        again.kill()
        killed += 1
    run.start_coordinator()
    return killed


def cases(options):
    return [{"seed": options.seed}]


def measure(case, bench):
    return bench.in_test(lambda test: killed_runs(test, random.Random(case["seed"]), bench.options.count))


def killed_runs(test, chance, count):
    expected, killed, runs = finish(start(test)), 0, 0
    while killed < count:
        run = start(test)
        eventually(lambda: run.site("eu").get("state") == "training", "the run trains")
        runs += 1
        while killed < count and (more := kill(test, run, chance)):
            killed += more
        check_same(test, expected, run, f"run {runs}")
        print(f"{killed} kills, {runs} runs with the bits of the undisturbed one", flush=True)
    return {"kills": killed, "runs": runs}


def report(rows, bench):
    for row in rows:
        print(f"seed {row['seed']}: {row['kills']} kills, {row['runs']} runs with the bits of the undisturbed one")
