"""How fast the coordinator takes contributions, against its two ceilings.

Eight light sites (bench_run/sites.cc) on loopback send one contribution to each of 16 fragments, two at a time each;
timed from the first chunk to the last verdict, which comes when everything is durable. A ninth site holds the rounds open
meanwhile, so that nothing is merged in that time. Beside it, round by round:

    transport   the same sites against a receiver (bench_run/receiver.cc): the same messages, chunks hashed, validated and
                spooled, dropped when they are whole; no journal
    disk        the same bytes appended in chunks of 1 MiB, fdatasync after the eight contributions to a fragment, below the
                same folder as the coordinator's state

Goal: ingest >= 0.75 of the slower ceiling, median over the rounds after the first. Then the same sites without a ninth, as
fast as rounds go: receiving, journal, merge and sending every update to all eight; without a goal. Then both again with
two coordinators that share the fragments (--shard).
"""

import os
import time

from bench_lib import processes
from bench_lib.figures import goal, median_of

FILE, MINUTES = "coordinator_ingest", 6
OPTIONS = {"rounds": (9, "of each part"), "parameters": (100_000_000, "of the model"), "codec": ("int4", "of the way up"),
           "in_flight": (2, "uploads of one site at a time"), "shards": ([1, 2], "numbers of coordinators that share the fragments")}
QUICK = {"rounds": 2, "parameters": 1_000_000, "shards": [1]}
LEAST, SITES, FRAGMENTS, CHUNK_BYTES = 0.75, 8, 16, 1 << 20
NAMES = ",".join(f"s{i}" for i in range(SITES))


class Disk:
    """Appends a round's bytes, each time to a new file."""

    def __init__(self, folder):
        self.path, self.bytes = folder / "append", memoryview(b"")

    def round(self, total):
        if len(self.bytes) < total:
            self.bytes = memoryview(os.urandom(total))
        self.path.unlink(missing_ok=True)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        begin, at = time.monotonic(), 0
        for fragment in range(FRAGMENTS):
            end = total * (fragment + 1) // FRAGMENTS
            while at < end:
                at += os.write(descriptor, self.bytes[at:min(end, at + CHUNK_BYTES)])
            os.fdatasync(descriptor)
        seconds = time.monotonic() - begin
        os.close(descriptor)
        return total * 1e-6 / seconds


def start_shards(bench, sites, count):
    config = bench.folder / "run.yaml"
    config.write_text(processes.run_yaml(bench.options.parameters, FRAGMENTS, FRAGMENTS, sites, bench.options.codec))
    shards = []
    for index in range(count):
        flags = [f"--shard={index}/{count}"] if count > 1 else []
        if index > 0:
            flags.append(f"--membership={shards[0].address}")
        shards.append(processes.Coordinator(bench.build, config, bench.folder / f"{index}-of-{count}",
                                            bench.folder / "coordinator.log", *flags))
        shards[-1].await_address()
    return shards, ",".join(shard.address for shard in shards)


def by_rounds(bench, shards, addresses):
    options = bench.options
    alone = processes.wire_end(bench.build, "receiver", f"--config={bench.folder / 'run.yaml'}", log=bench.log)
    arguments = [f"--sites={NAMES}", "--holder=z", f"--rounds={options.rounds}", f"--in_flight={options.in_flight}"]
    disk = Disk(bench.folder)
    try:
        ingest = processes.light_sites(bench.build, addresses, *arguments, log=bench.log)
        transport = processes.light_sites(bench.build, alone.stdout.readline().strip(), *arguments, log=bench.log)
        for number in range(options.rounds):
            row = processes.ask(ingest)
            total = row["contribution_bytes"]
            speeds = {"ingest": row["megabytes_per_s"], "transport": processes.ask(transport)["megabytes_per_s"],
                      "disk": disk.round(total)}
            yield {"parameters": options.parameters, "round": number, "contribution_bytes": total, **speeds,
                   "ratio": speeds["ingest"] / min(speeds["transport"], speeds["disk"])}
        for sites in (ingest, transport):
            sites.wait()
    finally:
        alone.kill()


def free(bench, shards, addresses):
    options = bench.options
    sites = processes.light_sites(bench.build, addresses, f"--sites={NAMES}", f"--rounds={options.rounds}",
                                  f"--in_flight={options.in_flight}", log=bench.log)
    row = processes.answer_of(sites)
    yield {"parameters": options.parameters, "rounds": options.rounds, "sites": SITES, **row,
           "merged_values_per_s": options.parameters * SITES * options.rounds / row["seconds"]}


KINDS = {"held": (by_rounds, SITES + 1), "free": (free, SITES)}


def cases(options):
    return [{"kind": kind, "codec": options.codec, "shards": count} for count in options.shards for kind in KINDS]


def measure(case, bench):
    rows, sites = KINDS[case["kind"]]
    shards, addresses = start_shards(bench, sites, case["shards"])
    try:
        yield from rows(bench, shards, addresses)
    finally:
        for shard in shards:
            shard.kill()


def report(rows, bench):
    for codec, shards in sorted({(row["codec"], row["shards"]) for row in rows}):
        title = f"{codec}, {shards} shard{'s' * (shards > 1)}"
        of_kind = [row for row in rows if (row["codec"], row["shards"]) == (codec, shards)]
        steady = [row for row in of_kind if row["kind"] == "held" and row["round"] > 0]
        if steady:
            ratios = [row["ratio"] for row in steady]
            ingest, transport, disk = (median_of(steady, key) for key in ("ingest", "transport", "disk"))
            print(f"{title}: ingest {ingest:.0f} MB/s, transport alone {transport:.0f}, disk {disk:.0f}; ratio (from "
                  f"{min(ratios):.2f} to {max(ratios):.2f}) {goal(median_of(steady, 'ratio'), least=LEAST)}")
        for row in of_kind:
            if row["kind"] == "free":
                print(f"{title}: with merges and updates to all, {row['megabytes_per_s']:.0f} MB/s of contributions, "
                      f"{row['merged_values_per_s'] * 1e-6:.0f} M values/s merged")
