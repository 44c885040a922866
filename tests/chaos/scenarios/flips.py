"""Does one flipped bit of what lies on a disk ever change a run without a word?

Two sites train and keep checkpoints; then coordinator and sites are killed (kill -9), one site first, so
that contributions of the other are open. The log has hundreds of records by then, and the start merges the rounds since
the snapshots again. The control goes on from copies of their folders to the end of the run. Each trial does the same
with one bit flipped, in turn in the log, the marks, the index, a segment, a snapshot and a checkpoint of a site; every
second one of log and index lies in the last 64 KiB of what was written. It must be

    harmless   the run ends with the control's rounds, contributions, history, W, v, ē and export, and no program had
               noticed
    repaired   the same, and a program has named the file (that of the scrubber, too); or the site had no whole
               checkpoint, named it, and joined anew
    refused    a program ends with a message that names the file (of the log: the record, too), and changed nothing of
               what was stored. If the log was not what refused, a file of it may have been begun, with all rows, and
               the mark be there.

Anything else is a fault: silent, unnamed, crashed or hung. Its folder stays in --out.
"""

import collections
import contextlib
import hashlib
import json
import pathlib
import random
import shutil
import signal
import sqlite3
import struct
import subprocess
import time

from bench_lib.figures import say
from storm_lib.cluster import Cluster, EndedByItself, await_true

FILE, MINUTES = "flips", 25
OPTIONS = {"count": (200, "flips"), "seed": (1, "of their places")}
QUICK = {"count": 6}
SITES = ("eu", "us")
ROUNDS, KILLED_AT, SNAPSHOT_EVERY = 76, 58, 40  # of each fragment
HISTORY = ("round", "enter", "seed", "drop")  # others say when programs were started and which repaired something
HANG_S = 60
TAIL_BYTES = 64 << 10
AHEAD_BYTES = 1 << 10
SLOT_BYTES, MARK_BYTES = 4096, 48  # of high_water
KINDS = {"log": "state/log/*.log", "marks": "state/high_water", "index": "state/journal.sqlite*",
         "segments": "state/segments/*.segment", "snapshots": "state/snapshots/*.safetensors",
         "checkpoints": "checkpoints/*/[0-9]*/*"}
SYNC_EVERY = 8


def run_config():
    return {
        "run_id": "flips",
        "run": {"steps": ROUNDS * SYNC_EVERY},
        "model": {"kind": "synthetic", "step_ms": 3,
                  "tensors": [{"name": f"t{i}", "shape": [shape], "init": 0.25} for i, shape in enumerate((9000, 5000))],
                  "gradient": {"kind": "constant", "by_site": {"eu": 0.5, "us": -0.3}}},
        "inner": {"optimizer": "sgd", "lr": 0.1, "warmup_steps": 0, "schedule": "constant", "weight_decay": 0,
                  "clip": 0},
        "sync": {"sync_every": SYNC_EVERY, "num_fragments": 2, "fragment_sync_delay": 2},
        "codec": {"up": "int4", "down": "int4"},
        "membership": {"min_sites": len(SITES), "lease_ms": 20_000},
        "checkpoint": {"every_rounds": SNAPSHOT_EVERY},
    }


def make_baseline(bin_dir, folder):
    """The folders of a run that was killed."""
    folder.mkdir(parents=True)
    with Cluster(bin_dir, folder, run_config()) as cluster:
        cluster.start_coordinator()
        for site in SITES:
            cluster.start_site(site)

        def await_rounds(rounds):
            def merged():
                fragments = (cluster.status() or {}).get("fragments", [])
                return fragments and min(fragment["version"] for fragment in fragments) >= rounds

            await_true(merged, f"{rounds} rounds", HANG_S)

        await_rounds(KILLED_AT // 8)
        cluster.coordinator.kill()
        cluster.coordinator.start()  # so that the log has two files
        await_rounds(KILLED_AT)
        cluster.sites["us"].kill()  # the rounds now wait for it
        await_true(lambda: cluster.journal("""
            SELECT 1 FROM contributions AS c WHERE merged_version IS NULL AND site = 'eu' AND NOT EXISTS
            (SELECT 1 FROM contributions AS d WHERE d.site = 'us' AND d.fragment = c.fragment AND d.base = c.base)"""),
                   "an open contribution", HANG_S)
        for process in cluster.processes():
            process.kill()
    for name in ("addresses.json", "lock"):
        (folder / "state" / name).unlink(missing_ok=True)
    for log in folder.glob("*.log"):
        log.unlink()


def check_baseline(folder):
    """A start is to read payloads, and ordinary records of the log."""
    newest = sorted((folder / "state" / "log").glob("*.log"))[-1]
    lengths = [end - begin for _, begin, end in records(newest.read_bytes())]
    with contextlib.closing(sqlite3.connect(f"file:{folder / 'state' / 'journal.sqlite'}?mode=ro", uri=True)) as rows:
        def count(where):
            return rows.execute(f"SELECT count(*) FROM contributions AS c WHERE segment <> 0 AND {where}").fetchone()[0]

        unmerged = count("merged_version IS NULL")
        again = count("merged_version > (SELECT max(version) FROM snapshots AS s WHERE s.fragment = c.fragment)")
    say(f"baseline: {len(lengths)} records of {sum(lengths)} bytes, the first has {lengths[0]}; the start reads the "
        f"payloads of {again} contributions again, and {unmerged} are open")
    if len(lengths) < 100 or sum(lengths) < TAIL_BYTES + lengths[0] or again < 20 or unmerged < 1:
        raise AssertionError("that is too little: flips would fall where a start does not look")


def export_of(cluster):
    out = cluster.folder / "export"
    subprocess.run([cluster.bin_dir / "causewayctl", "export", f"--coordinator={cluster.grpc}", f"--out={out}"],
                   check=True, capture_output=True, timeout=HANG_S)
    return hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()


def outcome_of(cluster):
    """The end of the run: equal for equal bits, whenever it was played."""
    rounds = cluster.journal("SELECT fragment, version, digest, sites FROM rounds ORDER BY fragment, version")
    contributions = cluster.journal("SELECT fragment, site, base, tokens, steps, merged_version, weight "
                                    "FROM contributions ORDER BY fragment, base, site")
    newest = cluster.journal("SELECT fragment, file, max(version) FROM snapshots GROUP BY fragment ORDER BY fragment")
    states = [hashlib.sha256((cluster.state_dir / "snapshots" / file).read_bytes()).hexdigest() for _, file, _ in newest]
    marks = ", ".join("?" * len(HISTORY))
    history = cluster.journal(f"SELECT kind, site, fragment, text FROM events WHERE kind IN ({marks}) ORDER BY 1, 2, 3, 4",
                              HISTORY)
    return json.loads(json.dumps([rounds, contributions, states, history]))


def play_to_the_end(bin_dir, folder):
    """(outcome or None, the programs that ended with another code than 0, whether one hung)"""
    with Cluster(bin_dir, folder, run_config()) as cluster:
        try:
            cluster.start_coordinator()
        except EndedByItself:
            return None, {"coordinator": cluster.coordinator.process.poll()}, False
        except TimeoutError:
            return None, {}, True
        for site in SITES:
            cluster.start_site(site)
        ended = {}
        deadline = time.monotonic() + HANG_S
        while len(ended) < len(SITES) and not any(ended.values()):
            if time.monotonic() > deadline:
                return None, {}, True
            ended = {process.label: code for process in cluster.processes()
                     if (code := process.process.poll()) is not None}
            time.sleep(0.01)
        failed = {label: code for label, code in ended.items() if code != 0}
        if failed:
            return None, failed, False
        try:
            export = export_of(cluster)
        except subprocess.SubprocessError as error:
            return None, {"export": str(error)}, False
        cluster.coordinator.send(signal.SIGTERM)
        code = cluster.coordinator.wait()
        if code != 0:
            return None, {"coordinator": code}, False
        return [*outcome_of(cluster), export], {}, False


def records(data):
    """(number, where it begins, where it ends) of each record of a log file."""
    at = 0
    while at + 96 <= len(data):
        magic, _, sequence, _, size = struct.unpack_from("<4sIQQQ", data, at)
        if magic != b"CWLR":
            return
        yield sequence, at, at + 96 + size
        at += 96 + size


def choose(baseline, kind, chance):
    """(file, byte, bit): each byte of the kind's files is as likely as another, but for the tails."""
    files = sorted(path for path in baseline.glob(KINDS[kind]) if path.is_file() and path.stat().st_size > 0)
    sizes = [path.stat().st_size for path in files]
    path = chance.choices(files, sizes)[0]
    first, last = 0, path.stat().st_size
    if kind in ("log", "index") and chance.random() < 0.5:
        path = files[-1] if kind == "log" else path
        last = path.stat().st_size
        first = max(0, last - TAIL_BYTES)
    if kind == "log":  # of what lies ahead of the records, a little
        written = [end for _, _, end in records(path.read_bytes())][-1]
        first, last = first and max(0, written - TAIL_BYTES), min(last, written + AHEAD_BYTES)
    if kind == "marks" and chance.random() < 0.5:  # a slot; the rest of its page is zero
        first = chance.choice((0, SLOT_BYTES))
        last = first + MARK_BYTES
    return path.relative_to(baseline), chance.randrange(first, last), chance.randrange(8)


def judge(kind, file, byte, bin_dir, folder, control, data):
    """Plays a trial; (result, what was said)."""
    before = {path: path.read_bytes() for path in (folder / "state").rglob("*") if path.is_file()}
    outcome, failed, hung = play_to_the_end(bin_dir, folder)
    logs = "\n".join(path.read_text(errors="replace") for path in sorted(folder.glob("*.log")))
    name = "/".join(pathlib.PurePath(file).parts[-2:])
    said = next((line for line in logs.splitlines() if name in line), "")
    if not said and kind == "marks":
        said = next((line for line in logs.splitlines() if "high_water" in line), "")
    if hung:
        return "HUNG", said
    if failed:
        if any(not 0 < code <= 5 for code in failed.values() if isinstance(code, int)):
            return "CRASHED", str(failed)
        if not said:
            return "UNNAMED", str(failed)
        if kind == "log":
            numbers = [n for n, begin, end in records(data) if begin <= byte]
            written = max((end for _, _, end in records(data)), default=0)
            number = numbers[-1] + (byte >= written)
            if f"record {number}" not in said:
                return "WRONG RECORD", f"{number}: {said}"
        changed = [str(path) for path, bytes_before in before.items()
                   if kind != "checkpoints" and path.name not in ("lock", "addresses.json", "high_water")
                   and (kind == "log" or path.parent.name != "log")
                   and "journal.sqlite" not in path.name and (not path.exists() or path.read_bytes() != bytes_before)]
        return ("CHANGED", str(changed)) if changed else ("refused", said)
    if outcome == control:
        return ("repaired" if said else "harmless"), said
    if kind == "checkpoints" and "no checkpoint is whole" in logs and said:
        return "repaired", said
    return "SILENT", said


def baseline_of(bench):
    """(folder, how the run ends without a flip), made once."""
    if not bench.kept:
        baseline = bench.options.out / "flips-baseline"
        shutil.rmtree(baseline, ignore_errors=True)
        make_baseline(bench.build, baseline)
        check_baseline(baseline)
        outcomes = []
        for i in range(2):
            folder = bench.folder / f"control-{i}"
            shutil.copytree(baseline, folder)
            outcomes.append(play_to_the_end(bench.build, folder))
        if outcomes[0] != outcomes[1] or outcomes[0][0] is None:
            raise SystemExit(f"two controls differ, or did not come to their end: {outcomes}")
        bench.kept["baseline"] = baseline, outcomes[0][0]
    return bench.kept["baseline"]


def cases(options):
    return [{"seed": options.seed, "trial": number, "kind": list(KINDS)[number % len(KINDS)]} for number in range(options.count)]


def measure(case, bench):
    baseline, control = baseline_of(bench)
    file, byte, bit = choose(baseline, case["kind"], random.Random(f"{case['seed']}/{case['trial']}"))
    folder = bench.folder / "trial"
    shutil.copytree(baseline, folder)
    good = (folder / file).read_bytes()
    data = bytearray(good)
    data[byte] ^= 1 << bit
    (folder / file).write_bytes(data)
    result, said = judge(case["kind"], file, byte, bench.build, folder, control, good)
    if not result.islower():
        shutil.copytree(folder, bench.options.out / f"flip-{case['seed']}-{case['trial']}", dirs_exist_ok=True)
    return {"file": str(file), "byte": byte, "bit": bit, "result": result, "said": said[:300]}


def report(rows, bench):
    counts = collections.Counter((row["kind"], row["result"]) for row in rows)
    for kind in KINDS:
        print(kind + ":", ", ".join(f"{counts[k, result]} {result}" for k, result in sorted(counts) if k == kind))
    faults = sum(count for (_, result), count in counts.items() if not result.islower())
    print(f"{len(rows)} flips, {faults} faults")
    return faults > 0
