"""Do sites outlive every wrong state directory and every lost disk, and is the state that they give back bit by bit theirs?

A coordinator and three sites. --count times the coordinator is killed and started on an empty directory, until every site
has said that it waits; then on its own again. As often its directory is taken away, and it starts with
--rebuild_from_sites: W and v of what it has then are compared with those of the lost directory. The run goes on after each,
no worker ends before the last, and all agree at the end.
"""

import test_lost_state
from harness import DigestBook
from test_lost_state import FRAGMENTS, SITES

FILE, MINUTES = "lost_states", 3
OPTIONS = {"count": (10, "wrong directories, and lost disks")}
QUICK = {"count": 1}
STRANGE = "this state directory is of lineage"


def go_on(run, rounds):
    run.await_rounds(rounds)
    DigestBook().await_agreement(run, SITES, beyond=run.newest())


def start_on_a_wrong_directory(test, run, name):
    rounds, own = run.rounds(), run.state_dir
    said = {site: worker.log().count(STRANGE) for site, worker in run.workers.items()}
    run.coordinator.kill()
    run.state_dir = run.folder / name
    run.start_coordinator()
    test.await_waiting(run, STRANGE, max(said.values()) + 1)
    test.assertEqual(run.status()["fragments"], [], "no site was asked for initial parameters")
    run.stop_coordinator()
    run.state_dir = own
    run.start_coordinator()
    go_on(run, rounds + 2)


def lose_all(test, count):
    run = test.start()
    for i in range(1, count + 1):
        start_on_a_wrong_directory(test, run, f"wrong-{i}")
        lost = test.lose_state(run, run.workers, f"lost-{i}")
        run.start_coordinator("--rebuild_from_sites")
        go_on(run, test.assert_rebuilt(run, lost, list(range(FRAGMENTS))) + 3)
        print(f"{i} wrong directories, {i} lost disks: {run.rounds()} rounds, no worker has ended", flush=True)
    rounds = run.rounds()
    run.stop_all()
    return {"rounds": rounds}


def cases(options):
    return [{"count": options.count}]


def measure(case, bench):
    return bench.in_test(lambda test: lose_all(test, case["count"]), test_lost_state.LostState)


def report(rows, bench):
    for row in rows:
        print(f"{row['count']} wrong directories and as many lost disks: {row['rounds']} rounds, no bit lost")
