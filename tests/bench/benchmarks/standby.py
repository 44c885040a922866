"""The cost of a standby to the coordinator that it mirrors, and how soon it leads.

    pace       rounds a second of a run with a standby that has all ÷ those of the same run without one, by turns of
               --seconds; and a commit's sync with it ÷ without. The standby computes on the same cores here
    promotion  the leader is killed and its directory deleted; seconds from causewayctl promote to the next merged round,
               and of it those of the promotion alone; and of a handover. restarted: killed, and started at once

Two sites of the built-in synthetic trainer, int4 both ways with feedback, four fragments, rounds as fast as they come.
"""

import pathlib
import shutil
import statistics
import sys
import time
import urllib.request

from bench_lib.figures import goal

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "e2e"))
import test_standby  # noqa: E402
from harness import DONE, eventually, merged  # noqa: E402

FILE, MINUTES = "standby", 8
OPTIONS = {"what": (["pace", "gone", "handed_over", "restarted"], "to measure"), "parameters": ([30_000_000, 100_000_000], "of the model"),
           "step_ms": (1, "of an inner step; with 1 the sites, both coordinators and the disk have no time to spare"),
           "seconds": (15, "of a turn of pace"), "turns": (3, "of pace")}
QUICK = {"what": ["gone"], "parameters": [1_000_000], "seconds": 2, "turns": 1}
GOALS = {30_000_000: 3, 100_000_000: 4}  # seconds


def begin(test, parameters, step_ms):
    config = test_standby.config_of(run={"steps": 10_000_000}, checkpoint={"every_rounds": 10})
    config["model"]["tensors"] = [{"name": f"t{i}", "shape": [parameters // 4], "init": 0.25} for i in range(4)]
    run, standby = test.with_standby(merged(config, {"model": {"step_ms": step_ms}}))
    eventually(lambda: run.rounds() >= 2 and whole(run), "rounds, and a first copy", 300)
    return run, standby


def whole(run):
    return any(one["whole"] and one["seconds_behind"] < 1 for one in run.status()["standbys"])


def figures(run):
    """Now: time, rounds of all fragments, seconds and number of syncs."""
    text = urllib.request.urlopen(f"http://{run.http}/metrics").read().decode()
    values = {line.split(" ")[0]: float(line.split(" ")[1]) for line in text.splitlines() if not line.startswith("#")}
    return (time.monotonic(), sum(fragment["version"] for fragment in run.status()["fragments"]),
            values["causeway_fsync_seconds_sum"], values["causeway_fsync_seconds_count"])


def turn(run, seconds):
    begun, rounds, sync_s, syncs = figures(run)
    time.sleep(seconds)
    ended, more, more_s, more_syncs = figures(run)
    return {"rounds_per_s": (more - rounds) / (ended - begun), "sync_s": (more_s - sync_s) / max(1, more_syncs - syncs)}


def pace(test, case, options):
    run, standby = begin(test, case["parameters"], case["step_ms"])
    rows = []
    for _ in range(options.turns):
        with_it = turn(run, options.seconds)
        standby.stop_coordinator()
        alone = turn(run, options.seconds)
        standby.start_coordinator(f"--standby_of={run.grpc}")
        eventually(lambda: whole(run), "the standby has all", 300)
        rows.append({"ratio": with_it["rounds_per_s"] / alone["rounds_per_s"], "sync_ratio": with_it["sync_s"] / alone["sync_s"],
                     "alone_per_s": alone["rounds_per_s"]})
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}


def promotion(test, case, options):
    run, standby = begin(test, case["parameters"], case["step_ms"])
    before = run.newest()
    if case["what"] == "gone":
        run.coordinator.kill()
        shutil.rmtree(run.state_dir)
        begun = time.monotonic()
        code, said = test.promote(standby, "--leader_is_stopped")
    elif case["what"] == "restarted":
        standby.stop_coordinator()
        run.coordinator.kill()
        begun, code, said, standby = time.monotonic(), DONE, "", run
        run.start_coordinator()
    else:
        begun = time.monotonic()
        code, said = test.promote(standby)
    test.assertEqual(code, DONE, said)
    promoted = time.monotonic()
    eventually(lambda: standby.status() and standby.status().get("fragments"), "it leads", 120)
    leads = time.monotonic()
    versions = {fragment["id"]: fragment["version"] for fragment in standby.status()["fragments"]}
    eventually(lambda: any(now["version"] > versions[now["id"]] for now in standby.status()["fragments"]), "a round", 120)
    return {"next_round_s": time.monotonic() - begun, "promoted_s": promoted - begun, "leads_s": leads - begun,
            "version": before, "goal_s": GOALS.get(case["parameters"])}


def cases(options):
    return [{"what": what, "parameters": parameters, "step_ms": options.step_ms} for parameters in options.parameters for what in options.what]


def measure(case, bench):
    take = pace if case["what"] == "pace" else promotion
    return bench.in_test(lambda test: take(test, case, bench.options), test_standby.StandbyTest)


def report(rows, bench):
    for row in rows:
        of = f"{row['parameters'] / 1e6:.0f} M parameters, {row['what']}"
        if row["what"] == "pace":
            print(f"{of}: rounds with a standby ÷ alone {goal(row['ratio'], least=0.98)}, of {row['alone_per_s']:.1f} a second; "
                  f"a sync ÷ alone {row['sync_ratio']:.2f}")
        else:
            print(f"{of}: the next round after {goal(row['next_round_s'], most=row['goal_s'] or 3)} s, it leads after "
                  f"{row['leads_s']:.2f}")
