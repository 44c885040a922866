"""Does a run go on by itself after its coordinator's machine has lost power, again and again?

A coordinator and sites in synchronous mode, whose rounds close as fast as they can. --count times the coordinator is killed
at a random moment, and its state directory becomes what a disk would have kept, which a preloaded library notes at every
sync (synced_files.cc). In turn: of each file only what was synced; of each page beyond that the old or the new one, by
chance; each file cut to the size that was synced. Then it is started by the same command.

strict: the run goes on with the bits that it had. relaxed: it starts by itself, and goes on from what two of its sites hold.
"""

import random
import time

import test_power_loss

FILE, MINUTES = "power_loss", 3
OPTIONS = {"journal": (["strict", "relaxed"], "one or both"), "count": (20, "losses of each"), "sites": (3, "of the run"),
           "seed": (1, "of the moments")}
QUICK = {"journal": ["relaxed"], "count": 2}


def lose_power(test, journal, options):
    chance, lost = random.Random(options.seed), 0
    run, sites = test.start(journal, options.sites)
    for i in range(options.count):
        model = test_power_loss.MODELS[i % len(test_power_loss.MODELS)]
        time.sleep(chance.uniform(0.1, 1.0))
        took = test.lose_power(run, sites, model, chance)
        before, lost = lost, test.lost_ends(run)
        print(f"loss {i + 1} ({model}): the sites agree on newer versions after {took:.1f} s, "
              f"{'completed from the sites' if lost > before else 'nothing lost'}", flush=True)
    if journal == "strict":
        test.assertEqual(lost, 0)
    run.stop_all()
    return {"losses": options.count, "completed_from_sites": lost}


def cases(options):
    return [{"journal": journal} for journal in options.journal]


def measure(case, bench):
    return bench.in_test(lambda test: lose_power(test, case["journal"], bench.options), test_power_loss.PowerLoss)


def report(rows, bench):
    for row in rows:
        print(f"{row['journal']}: {row['losses']} losses, {row['completed_from_sites']} completed from the sites")
