"""Does a run go on at its standby when its leader's machine is lost, or hands over, again and again?

A coordinator, its standby, and three sites that know both addresses, in synchronous mode, whose rounds close as fast as
they can. --count times, at a random moment: the leader is killed and its directory deleted, and the standby promoted;
or, without --gone, it hands over. Each time the former leader begins anew as the standby, on an empty directory. The
sites' digests have to agree with the leader's throughout, no process may end by itself, and what is timed is the way
from the promotion to the next merged round.
"""

import random
import shutil
import time

import test_standby
from harness import DONE, DigestBook, eventually

FILE, MINUTES = "standby", 5
OPTIONS = {"how": (["gone", "handed_over"], "one or both"), "count": (20, "promotions of each"), "seed": (1, "of moments")}
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
    leader, standby = test.with_standby(test_standby.config_of(run={"steps": 1_000_000}))
    run = leader
    for i in range(options.count):
        eventually(lambda: leader.status()["standbys"] and any(one["whole"] for one in leader.status()["standbys"]),
                   "a first copy")
        time.sleep(chance.uniform(0.05, 0.8))
        times.append(promoted(test, case["how"], leader, standby))
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
            "completed_from_sites": completed}


def cases(options):
    return [{"how": how} for how in options.how]


def measure(case, bench):
    return bench.in_test(lambda test: measure_promotions(test, case, bench.options), test_standby.StandbyTest)


def report(rows, bench):
    for row in rows:
        print(f"{row['how']}: {row['promotions']} promotions, the next round after {row['median_s']:.2f} s (median), "
              f"{row['slowest_s']:.2f} s (slowest); {row['completed_from_sites']} completed from the sites")
