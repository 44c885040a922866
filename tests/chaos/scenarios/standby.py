"""Does a run go on at its standby when its leader's machine is lost, or hands over, again and again?

A coordinator, its standby, and three sites that know both addresses, whose rounds close as fast as they can. --count times, at a random moment: the leader is killed and its directory deleted, and the standby promoted;
or it hands over. Before every third of them an operator changes a setting, and is answered: the change has to be there
afterwards, unless the answer says that the standby does not have it. Each time the former leader begins anew as the standby, on an empty directory. The
sites' digests have to agree with the leader's throughout, no process may end by itself, and what is timed is the way
from the promotion to the next merged round.
"""

import random
import shutil
import time

import test_standby
from harness import DONE, DigestBook, eventually, merged

FILE, MINUTES = "standby", 5
RUNS = {"synchronous": {},
        "quorum": {"sync": {"mode": "quorum"}, "membership": {"min_quorum": 2, "grace_ms": 50, "weights": "tokens"}},
        "sparse": {"codec": {"up": "topk32", "down": "sparse", "feedback_up": 0.95, "feedback_down": 1}}}
OPTIONS = {"how": (["gone", "handed_over"], "one or both"), "run": (["synchronous"], "or quorum, sparse"), "count": (20, "promotions of each"), "seed": (1, "of moments")}
QUICK = {"count": 2}


def promoted(test, how, leader, standby):
    """Seconds from the promotion to the next merged round."""
    before = standby.status()["reason"]
    if how == "gone":
        leader.coordinator.kill()
        shutil.rmtree(leader.state_dir)
        begun = time.monotonic()
        test.promote_when_silent(standby)
    else:
        begun = time.monotonic()
        code, said = test.promote(standby)
        test.assertEqual((code, leader.coordinator.wait()), (DONE, DONE), said + leader.coordinator.log()[-500:])
        eventually(lambda: standby.status() and standby.status().get("fragments"), f"it leads, after {before}")
    versions = [fragment["version"] for fragment in standby.status()["fragments"]]
    eventually(lambda: any(now["version"] > then for now, then in zip(standby.status()["fragments"], versions)), "a round")
    return time.monotonic() - begun


def measure_promotions(test, case, options):
    chance, times, completed = random.Random(options.seed), [], 0
    config = merged(test_standby.config_of(run={"steps": 1_000_000}), RUNS[case["run"]])
    leader, standby = test.with_standby(config)
    run, not_copied = leader, 0
    for i in range(options.count):
        eventually(lambda: leader.status()["standbys"] and any(one["whole"] for one in leader.status()["standbys"]),
                   "a first copy")
        time.sleep(chance.uniform(0.05, 0.8))
        lr = None
        if i % 3 == 2:
            lr = round(chance.uniform(0.3, 0.8), 4)
            said = test.ctl(leader, "set", f"outer.lr={lr}")
            not_copied += "not copied" in said
            lr = None if "not copied" in said else lr
        times.append(promoted(test, case["how"], leader, standby))
        if lr is not None:
            changes = standby.journal("SELECT text FROM events WHERE kind = 'set'")
            test.assertIn(f"→ {lr}", " ".join(text for (text,) in changes))
        completed += "is completed from what they hold" in standby.coordinator.log()
        book = DigestBook()
        book.await_agreement(standby, test_standby.SITES, standby.newest())
        test.assertTrue(all(worker.running() for worker in run.workers.values()))
        if case["how"] == "handed_over":
            shutil.rmtree(leader.state_dir)
        leader.start_coordinator(f"--standby_of={standby.grpc}")
        leader, standby = standby, leader
        print(f"promotion {i + 1} ({case['how']}): the next round after {times[-1]:.2f} s", flush=True)
    test.assertEqual(leader.status()["epoch"] >> 32, options.count)
    for worker in run.workers.values():
        test.assertEqual(worker.terminate(), DONE)
    times.sort()
    return {"promotions": options.count, "median_s": times[len(times) // 2], "slowest_s": times[-1],
            "completed_from_sites": completed, "sets_not_copied": not_copied}


def cases(options):
    return [{"how": how, "run": run} for run in options.run for how in options.how]


def measure(case, bench):
    return bench.in_test(lambda test: measure_promotions(test, case, bench.options), test_standby.StandbyTest)


def report(rows, bench):
    for row in rows:
        print(f"{row['run']}, {row['how']}: {row['promotions']} promotions, the next round after {row['median_s']:.2f} s (median), "
              f"{row['slowest_s']:.2f} s (slowest); {row['completed_from_sites']} completed from the sites")
