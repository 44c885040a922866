"""One run of two sites in synchronous mode, one of them behind a link whose connections are cut now and then.

    commit n ──► update n down ──► step ──► contribution n+1 up ──► commit n+1        an interval: one row
                   a cut here      or        here

A cut is armed when a commit is seen in the journal, for some bytes later; rows say afterwards what fell into which
interval, by time. Intervals without a cut are what the others are compared with. The other site has no link before it,
so that what is seen is the link's.
"""

import dataclasses
import random
import statistics
import time

from proxy import DOWN, UP, Proxy
from storm_lib.cluster import Cluster, Process, await_true

NEAR, FAR = "near", "far"  # sites; FAR is behind the link
CHUNK_BYTES = 1 << 20
POLL_S = 0.005
MOST_CHUNKS_AGAIN = 5  # of the 8 of a fragment: what a stream's window holds, and one written chunk
WARM_UP_ROUNDS = 4  # until rate and round trip are known, and the number of connections follows them


@dataclasses.dataclass(frozen=True)
class Scale:
    cuts: int
    fragment_values: int = 2_000_000  # 8 chunks of float32
    fragments: int = 2
    megabytes_per_s: float = 40
    round_trip_s: float = 0.1
    step_ms: int = 20

    def steps(self):
        """A fragment's round in each; a cut in every second one, and the first and last rounds have none."""
        return 2 * self.cuts + 2 * WARM_UP_ROUNDS

    def payload_bytes(self):
        """A fragment's bytes, headers of its chunks left out."""
        return 4 * self.fragment_values


def config_of(scale):
    return {
        "run_id": "cuts",
        "model": {"kind": "synthetic", "step_ms": scale.step_ms, "init": "seeded",
                  "tensors": [{"name": f"t{i}", "shape": [scale.fragment_values]} for i in range(scale.fragments)],
                  "gradient": {"kind": "noise", "by_site": {NEAR: 0.5, FAR: 0.25}}},
        "inner": {"optimizer": "sgd", "lr": 0.1, "warmup_steps": 0, "schedule": "constant", "weight_decay": 0,
                  "clip": 0},
        "sync": {"sync_every": scale.fragments, "num_fragments": scale.fragments, "fragment_sync_delay": 0},
        "codec": {"up": "float32", "down": "float32", "feedback_up": 0, "feedback_down": 0},
        "membership": {"min_sites": 2, "lease_ms": 10_000},
        "checkpoint": {"every_rounds": 0},
        "run": {"steps": scale.steps()},
    }


@dataclasses.dataclass
class Outcome:
    rows: list  # an interval each
    bits: dict  # {site: the file of its own parameters when it ended}
    status: dict  # at the end
    merged: list  # (fragment, site, base, merged version) of the journal
    joins: dict  # {site: how often}
    cuts: list
    connections: int  # that the site behind the link has made
    log: str  # of the site behind the link


class Watch:
    """Sees commits, arms cuts, and keeps what the link had carried at each of them."""

    def __init__(self, cluster, link, scale, seed, note):
        self.cluster, self.link, self.scale, self.note = cluster, link, scale, note
        self.random = random.Random(seed)
        self.seen = []  # of each commit: bytes of the link by then, and the byte meters
        self.armed = 0

    def look(self):
        [(commits,)] = self.cluster.journal("SELECT count(*) FROM rounds")
        while commits > len(self.seen):
            self.seen.append(self.link.total_bytes())
            number = len(self.seen)
            if number >= WARM_UP_ROUNDS and number % 2 == 0 and self.armed < self.scale.cuts:
                direction = (UP, DOWN)[self.armed % 2]
                share = self.random.uniform(0.1, 0.8)
                self.link.cut_after(direction, int(share * self.scale.payload_bytes()))
                self.armed += 1
            if number % 8 == 0:
                self.note(self.cluster)


def rows_of(decided, seen, cuts):
    rows = []
    for number in range(WARM_UP_ROUNDS - 1, len(decided) - 1):
        begin, end = decided[number] / 1e3, decided[number + 1] / 1e3
        row = {"interval": number + 1, "seconds": end - begin,
               "cuts": [cut for cut in cuts if begin <= cut["unix_s"] < end]}
        for direction in (UP, DOWN):
            row[f"{direction}_bytes"] = seen[number + 1][direction] - seen[number][direction]
        rows.append(row)
    return rows


def run(bin_dir, folder, scale, cut, seed=1, note=lambda cluster: None, deadline_s=60):
    """The run to its end, with cuts or without; `note` looks at the cluster now and then. Raises if a program fails."""
    folder.mkdir(parents=True, exist_ok=True)
    with Cluster(bin_dir, folder, config_of(scale)) as cluster:
        cluster.start_coordinator()
        link = Proxy(cluster.grpc, scale.megabytes_per_s, scale.round_trip_s)
        dumps = {site: folder / f"{site}.safetensors" for site in (NEAR, FAR)}
        for site, address in ((NEAR, cluster.grpc), (FAR, link.address())):
            command = [bin_dir / "causeway-worker", f"--coordinator={address}", f"--site={site}",
                       f"--dump_local={dumps[site]}"]
            cluster.sites[site] = Process(site, command, folder / f"site-{site}.log")
            cluster.sites[site].start()
        watch = Watch(cluster, link, scale if cut else dataclasses.replace(scale, cuts=0), seed, note)
        deadline = time.monotonic() + deadline_s
        while any(site.process.poll() is None for site in cluster.sites.values()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the run did not end within {deadline_s} s; see {folder}")
            watch.look()
            time.sleep(POLL_S)
        codes = {name: site.process.poll() for name, site in cluster.sites.items()}
        if any(codes.values()):
            raise RuntimeError(f"workers ended with {codes}; see {folder}")
        await_true(lambda: (cluster.status() or {}).get("state") == "done", 'state "done"', deadline_s)
        watch.look()
        note(cluster)
        decided = [at for (at,) in cluster.journal("SELECT decided_unix_ms FROM rounds ORDER BY id")]
        outcome = Outcome(
            rows=rows_of(decided, watch.seen, link.cuts), bits={site: path.read_bytes() for site, path in dumps.items()}, status=cluster.status(),
            merged=cluster.journal("SELECT fragment, site, base, merged_version FROM contributions"),
            joins=dict(cluster.journal("SELECT site, count(*) FROM events WHERE kind = 'join' GROUP BY site")),
            cuts=link.cuts, connections=link.accepted, log=(folder / f"site-{FAR}.log").read_text(errors="replace"))
        link.close()
        return outcome


def site_of(status, name):
    return next(site for site in status["sites"] if site["name"] == name)


def median_without_cut(rows, key):
    return statistics.median(row[key] for row in rows if not row["cuts"])


def costs(rows):
    """Each interval with one cut: {"direction", "seconds", "resent_bytes"} beyond the median of those without."""
    result = []
    for row in rows:
        if len(row["cuts"]) != 1:
            continue
        direction = row["cuts"][0]["direction"]
        result.append({"interval": row["interval"], "direction": direction,
                       "seconds": row["seconds"] - median_without_cut(rows, "seconds"),
                       "resent_bytes": row[f"{direction}_bytes"] - median_without_cut(rows, f"{direction}_bytes"),
                       "in_link_bytes": row["cuts"][0]["in_link_bytes"]})
    return result


def fast(scale):
    """The same run over a link that costs nothing."""
    return dataclasses.replace(scale, megabytes_per_s=1000, round_trip_s=0, step_ms=0)


def excess(scale, outcome, plain):
    """Bytes that the byte meters have beyond those of the run without cuts, for each cut. Both sites count: either may
    have supplied the initial parameters."""
    number = max(1, scale.cuts // 2)

    def total(status, direction):
        return sum(site[f"{direction}_bytes"] for site in status["sites"])

    return {f"{direction}_meter_excess":
            (total(outcome.status, direction) - total(plain.status, direction)) / number for direction in (UP, DOWN)}


def broken_promises(scale, outcome, plain):
    """Promises that were not kept, in words."""
    found = []

    def expect(kept, words):
        if not kept:
            found.append(words)

    expect(len(outcome.cuts) == scale.cuts, f"{len(outcome.cuts)} connections were cut, not {scale.cuts}")
    expect(outcome.joins == {NEAR: 1, FAR: 1}, f"sites joined so often: {outcome.joins}")
    for site in (NEAR, FAR):
        same = plain.bits[site] == outcome.bits[site]
        expect(same, f"{site}'s parameters are not those of the run without cuts")
    merged = [row[:3] for row in outcome.merged]
    expect(len(merged) == len(set(merged)), "a contribution is there twice")
    expect(sorted(outcome.merged) == sorted(plain.merged), "not the contributions of the run without cuts were merged")
    again = excess(scale, outcome, plain)
    for direction in (UP, DOWN):
        most = MOST_CHUNKS_AGAIN * CHUNK_BYTES
        expect(again[f"{direction}_meter_excess"] <= most,
               f"{direction}: {again[f'{direction}_meter_excess'] / CHUNK_BYTES:.1f} chunks again for each cut")
    for cost in costs(outcome.rows):
        expect(cost["resent_bytes"] <= MOST_CHUNKS_AGAIN * CHUNK_BYTES,
               f"interval {cost['interval']}: {cost['resent_bytes'] / CHUNK_BYTES:.1f} chunks again on the link")
    return found
