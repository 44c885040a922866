"""Does a run always begin, whatever happens while its first site sends the initial parameters?

The initial parameters take about a second. A kill is kill -9 of shard 0 of two at a random moment of that second (every
fourth time it is killed twice, and every fourth time shard 1 as well); the shard is started again at once. A silence stops
the only site (SIGSTOP) at a random moment of the second for longer than its lease, and lets it go on (SIGCONT): as many with
one coordinator as with two shards. A trial has ended when all sites have done all steps. One that has not after --hang_s
seconds is a hang, with what its sites wait for.
"""

import random
import signal
import time

from harness import eventually, synthetic
from test_shards import ShardedRun

FILE, MINUTES = "seed_kills", 15
OPTIONS = {"kills": (100, "of shard 0"), "silences": (20, "with one coordinator, and with two shards, each"),
           "seed": (1, "of the moments"), "hang_s": (60.0, "until a trial hangs")}
QUICK = {"kills": 2, "silences": 1}
SEED_S, SILENCE_S = 1.0, 1.6
TENSORS, VALUES = 6, 256 * 1024
UP_MBIT = TENSORS * VALUES * 4 * 8 / 1e6 / SEED_S
LEASE_MS = {"kill": 10_000, "silence": 1_000}
SITES = {"kill": ("asia", "eu"), "silence": ("eu",)}
ASKED = "the initial parameters are requested from it"


def disturb(run, kind, number, chance):
    """When in the second, and what."""
    def kill_and_start(index):
        run.shards[index].coordinator.kill()
        run.start(index)

    at_s = chance.uniform(0, SEED_S)
    time.sleep(at_s)
    if kind == "silence":
        run.workers["eu"].send(signal.SIGSTOP)
        time.sleep(SILENCE_S)
        run.workers["eu"].send(signal.SIGCONT)
        return at_s, "silence"
    kill_and_start(0)
    if number % 4 in (1, 3):
        time.sleep(chance.uniform(0, 0.3 if number % 4 == 1 else 0.5))
        kill_and_start(0 if number % 4 == 1 else 1)
    return at_s, {1: "shard 0 twice", 3: "shard 0, shard 1"}.get(number % 4, "shard 0")


def waits(run):
    """The rounds that sites wait for, by shard."""
    statuses = [shard.status() or {"reason": "no answer", "sites": []} for shard in run.shards]
    return [{"run": status["reason"]} | {site["name"]: f"{site['state']}: {site['reason']}" for site in status["sites"]}
            for status in statuses]


def trial(test, case, options):
    kind, number = case["kind"], case["number"]
    config = synthetic(dict.fromkeys(SITES[kind], 0.5), [[VALUES]] * TENSORS, run={"steps": 8},
                       model={"step_ms": 1, "init": "seeded"}, sync={"sync_every": 4, "num_fragments": 4},
                       codec={"up": "int4", "down": "int4"}, membership={"lease_ms": LEASE_MS[kind]})
    run = ShardedRun(test, test.folder / "run", config, case["shards"])
    run.start_coordinators()
    run.start_workers(*SITES[kind], flags=[f"--max_up_mbit={UP_MBIT}"])
    eventually(lambda: ASKED in run.shards[0].coordinator.log(), "a site gets the request for the initial parameters")
    at_s, what = disturb(run, kind, number, random.Random(f"{options.seed}/{kind}/{number}"))

    def over():
        ended = [program for program in [shard.coordinator for shard in run.shards] if not program.running()]
        ended += [program for program in run.workers.values() if program.process.poll() not in (None, 0)]
        test.assertEqual([program.label for program in ended], [], "ended by themselves")
        return not any(worker.running() for worker in run.workers.values())

    try:
        eventually(over, "all sites have done all steps", options.hang_s)
    except AssertionError as error:
        raise AssertionError(f"{error}; {waits(run)}") from None
    return {"at_s": at_s, "what": what}


def cases(options):
    wanted = [("kill", number, 2) for number in range(options.kills)]
    wanted += [("silence", number, 1 + number % 2) for number in range(2 * options.silences)]
    return [{"kind": kind, "number": number, "shards": shards} for kind, number, shards in wanted]


def measure(case, bench):
    return bench.in_test(lambda test: trial(test, case, bench.options))


def report(rows, bench):
    for kind, shards in (("kill", 2), ("silence", 1), ("silence", 2)):
        print(f"{kind}, {shards} coordinator(s): {sum((row['kind'], row['shards']) == (kind, shards) for row in rows)} began")
