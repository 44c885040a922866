"""Sites that say they have seen more of the run than there was: do the others' rounds go on?

Three synthetic sites train synchronously. One liar, and then three, tell each lie twice a second, in Joins that real calls
carry: a later epoch, newer versions, a foreign lineage, an admission to base 1,000,000. Each lie once while the run trains
(rounds as a part of those in windows without liars), and once before any honest site has come (the time until all have had
ten rounds, as a part of the time that it takes without liars). At last the coordinator loses its state and is started with
--rebuild_from_sites, and the liars show false digests of later versions. Wrong: rounds below 0.8 of the undisturbed ones, a
run that is paused, a rebuild that takes from the liars or from none.
"""

import json
import shutil
import statistics
import subprocess
import threading
import time

from harness import BIN_DIR, eventually, synthetic
from hostile_messages import Messages

FILE, MINUTES = "lies", 3
OPTIONS = {"when": (["training", "rebuild", "before the seed"], "some of these"), "seconds": (4.0, "of a window")}
QUICK = {"when": ["rebuild"]}
HONEST = ("asia", "eu", "us")
SHAPES = [[256, 16]] * 4
FIRST_ROUNDS, LEAST_RATIO = 10, 0.8
LIES = ("later_epoch", "newer_versions", "foreign_lineage", "admissions")


class Place:
    """A run, and messages that its liars send."""

    def __init__(self, test):
        config = synthetic(dict.fromkeys(HONEST, 0.5), SHAPES, model={"step_ms": 20, "init": "seeded", "gradient": {"kind": "noise"}},
                           sync={"sync_every": 5, "num_fragments": 2, "fragment_sync_delay": 2}, membership={"min_quorum": len(HONEST)})
        self.run = test.new_run(config)
        self.messages = Messages(self.run.folder, config["run_id"], [(f"t{i}", shape) for i, shape in enumerate(SHAPES)])
        self.run.start_coordinator()

    def lineage(self):
        return self.run.journal("SELECT value FROM meta WHERE key = 'lineage'")[0][0]

    def rounds(self):
        return sum(fragment["version"] for fragment in (self.run.status() or {}).get("fragments", []))

    def await_first_rounds(self):
        self.run.start_workers(*HONEST)
        eventually(lambda: self.rounds() >= 2 * FIRST_ROUNDS, "the first rounds")

    def rate(self, seconds):
        began, rounds = time.monotonic(), self.rounds()
        time.sleep(seconds)
        return (self.rounds() - rounds) / (time.monotonic() - began)


class Liars:
    """Each calls `method` with its first message twice a second until the block ends."""

    def __init__(self, place, method, messages):
        self.command = [BIN_DIR / "tests/e2e/grpc_flood", place.run.grpc, method, "--messages=0", "--seconds=2", "--early=true",
                        "--reads=true"]
        self.messages, self.over, self.told = messages, threading.Event(), []

    def __enter__(self):
        self.threads = [threading.Thread(target=self.tell, args=[message]) for message in self.messages]
        for thread in self.threads:
            thread.start()
        return self

    def tell(self, message):
        while True:
            done = subprocess.run([*self.command, f"--first={message}"], capture_output=True, text=True, check=True)
            self.told.append(json.loads(done.stdout))
            if self.over.wait(0.5):
                return

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join()


def joins(messages, lie, lineage, liars):
    context = {"later_epoch": f'lineage: "{lineage}" epoch: 1000 life: 7', "foreign_lineage": 'lineage: "feedfacefeedface"'}
    fields = {"newer_versions": "versions: 1000000 versions: 1000000",
              "foreign_lineage": "versions: 7 versions: 7",
              "admissions": "versions: 0 versions: 0 admitted: 1000000 admitted: 1000000"}
    made = []
    for i in range(liars):
        site = f"liar-{lie.replace('_', '-')}-{i}"
        said = messages.context(site)[:-1] + context.get(lie, f'lineage: "{lineage}"') + " }"
        text = f"join {{ {said} manifest {{ {messages.manifest} }} codecs: 1 codecs: 4 {fields.get(lie, '')} }}"
        made.append(messages.encode(f"{lie}-{lineage}-{i}", "SiteMessage", text))
    return made


def holdings(messages, lineage, liars):
    made = []
    for i in range(liars):
        context = messages.context(f"liar-rebuild-{i}")[:-1] + f'lineage: "{lineage}" }}'
        held = " ".join(f"fragments {{ fragment: {p} version: 1000000 anchor_digest: {77 + i} momentum_digest: {99 + i} }}"
                        for p in range(2))
        made.append(messages.encode(f"holdings-{lineage}-{i}", "ShowMessage",
                                    f"holdings {{ {context} manifest {{ {messages.manifest} }} {held} }}"))
    return made


def while_it_trains(test, seconds):
    place = Place(test)
    place.await_first_rounds()
    quiet = place.rate(seconds)
    for lie in LIES:
        for count in (1, 3):
            with Liars(place, "Control", joins(place.messages, lie, place.lineage(), count)) as liars:
                disturbed, status = place.rate(seconds), place.run.status()
            after = place.rate(seconds)
            ratio, quiet = disturbed / statistics.mean([quiet, after]), after
            yield {"lie": lie, "liars": count, "ratio": ratio, "state": status["state"], "told": len(liars.told),
                   "alarms": sorted({alarm["name"] for alarm in status["alarms"]}),
                   "good": ratio >= LEAST_RATIO and status["state"] == "training"}


def in_a_rebuild(test, seconds):
    place = Place(test)
    place.await_first_rounds()
    run = place.run
    for count in (0, 1, 3):
        lineage, rounds = place.lineage(), place.rounds()
        run.coordinator.kill()
        shutil.rmtree(run.state_dir)
        began = time.monotonic()
        run.start_coordinator("--rebuild_from_sites")
        with Liars(place, "Show", holdings(place.messages, lineage, count)):
            eventually(lambda: place.rounds() > rounds, "the rebuild")
        taken = max(fragment["version"] for fragment in run.status()["fragments"])
        yield {"lie": "false_digests", "liars": count, "seconds": time.monotonic() - began, "good": taken < 1_000_000}


def before_the_seed(test, seconds):
    def began(lie=None, count=0):
        place = Place(test)
        lies = joins(place.messages, lie, place.lineage(), count) if lie else []
        with Liars(place, "Control", lies) as liars:
            eventually(lambda: liars.told or not lies, "a lie was told")
            begin = time.monotonic()
            place.await_first_rounds()
            return time.monotonic() - begin

    undisturbed = statistics.median(began() for _ in range(3))
    for lie in LIES:
        for count in (1, 3):
            took = began(lie, count)
            yield {"lie": lie, "liars": count, "ratio": undisturbed / took, "seconds": took, "good": undisturbed / took >= LEAST_RATIO}


WHEN = {"training": while_it_trains, "rebuild": in_a_rebuild, "before the seed": before_the_seed}


def cases(options):
    return [{"when": when} for when in options.when]


def measure(case, bench):
    return bench.in_test(lambda test: list(WHEN[case["when"]](test, bench.options.seconds)))


def report(rows, bench):
    for row in rows:
        print(f"{row['when']}, {row['lie']}, {row['liars']} liars: {row.get('ratio', 1):.2f} {'' if row['good'] else 'BROKEN'}")
    return not all(row["good"] for row in rows)
