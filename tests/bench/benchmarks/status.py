"""The cost of looking at a large run, and whether looking disturbs it.

64 light sites (bench_run/sites.cc) and 64 fragments: real gRPC, with digests and losses in the sites' reports. Sites and
readers would be on machines of their own; here they yield the CPU to the coordinator (nice). Three parts:

    polls    nothing is sent. CPU time of the coordinator per GET /status, polls so far apart that each one meets a new
             snapshot and renders it, less what it takes in as long without polls (in turns); and how long each poll takes
    alone    rounds go on, one contribution of each site to each fragment at a time; GET /status and /healthz meanwhile
    crowd    the same with 50 open pages (streams of /events as far as the cap goes, the others poll each 2 s) and 20
             readers that ask for /events and never read, each 20 s anew: by then the coordinator has cut them

Goals: /status p99 <= 20 ms, <= 3 ms of CPU a poll, <= 200 kB; /healthz <= 100 ms in the crowd; the median round of the crowd
within a tenth of the one alone, and no site lost.
"""

import json
import os
import pathlib
import statistics
import time

from bench_lib import processes
from bench_lib.figures import goal
from status_lib.readers import Crowd, Poller, get

FILE, MINUTES = "status", 6
OPTIONS = {"rounds": (12, "of each fragment, alone and again in the crowd"), "round_every_s": (5.0, "from one to the next"),
           "polls": (400, "of /status")}
QUICK = {"rounds": 2, "round_every_s": 1.0, "polls": 40}
SITES, FRAGMENTS = 64, 64
PARAMETERS = FRAGMENTS * 4096
WARM_ROUNDS = 3
PAGES = 50
SILENT_READERS = 20
YIELD = 5  # in nice's unit
POLLS_A_TURN = 20
POLL_DISTANCE_S = 0.26  # beyond the 250 ms between snapshots: every poll renders
MOST_STATUS_MS, MOST_CPU_MS, MOST_BYTES, MOST_HEALTH_MS, MOST_ROUND_RATIO = 20, 3, 200_000, 100, 1.1


def cpu_seconds(pid):
    """CPU time of all threads, none of which ends meanwhile."""
    times = pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(time_ns.read_text().split()[0]) for time_ns in times) * 1e-9


def quantile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def figures(name, seconds):
    return {f"{name}_p50_ms": 1000 * quantile(seconds, 0.5), f"{name}_p99_ms": 1000 * quantile(seconds, 0.99),
            f"{name}_max_ms": 1000 * max(seconds), f"{name}_asked": len(seconds)}


def yield_to_coordinator(pid):
    """All threads that the process has now, and with them those that they start."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.setpriority(os.PRIO_PROCESS, int(thread), min(19, os.getpriority(os.PRIO_PROCESS, 0) + YIELD))


def measure_polls(options, coordinator):
    pid = coordinator.process.pid
    get(coordinator.http, "/status")
    seconds, size = [], 0
    spent_s = {False: 0.0, True: 0.0}  # without and with polls, for as long
    for turn in range(options.polls // POLLS_A_TURN):
        for polled in (False, True) if turn % 2 else (True, False):
            begin_s, begin = cpu_seconds(pid), time.monotonic()
            for number in range(POLLS_A_TURN):
                time.sleep(max(0.0, begin + number * POLL_DISTANCE_S - time.monotonic()))
                if polled:
                    took_s, body = get(coordinator.http, "/status")
                    seconds.append(took_s)
                    size = max(size, len(body))
            time.sleep(max(0.0, begin + POLLS_A_TURN * POLL_DISTANCE_S - time.monotonic()))
            spent_s[polled] += cpu_seconds(pid) - begin_s
    return {**figures("status", seconds),
            "cpu_ms_a_poll": 1000 * (spent_s[True] - spent_s[False]) / len(seconds),
            "idle_cpu_share": spent_s[False] / (len(seconds) * POLL_DISTANCE_S), "status_bytes": size,
            "timeline_bytes": len(get(coordinator.http, "/timeline")[1]),
            "metrics_bytes": len(get(coordinator.http, "/metrics")[1])}


def measure_rounds(options, coordinator, sites):
    rounds = []
    with Poller(coordinator.http, "/status", 0.1) as status, Poller(coordinator.http, "/healthz", 0.05) as health:
        for _ in range(options.rounds):
            begin = time.monotonic()
            rounds.append(processes.ask(sites)["seconds"])
            time.sleep(max(0.0, begin + options.round_every_s - time.monotonic()))
    now = json.loads(get(coordinator.http, "/status?details=full")[1])
    return {"rounds": len(rounds), "round_median_s": statistics.median(rounds), "round_max_s": max(rounds),
            **figures("status", status.seconds), **figures("healthz", health.seconds),
            "failed": status.failed + health.failed,
            "sites_training": sum(site["state"] == "training" for site in now["sites"]),
            "alarms": [alarm["name"] for alarm in now["alarms"]]}


def cases(options):
    yield {"kind": "polls"}  # the others follow it with the same coordinator


def measure(case, bench):
    options, config = bench.options, bench.folder / "status.yaml"
    config.write_text(processes.run_yaml(PARAMETERS, FRAGMENTS, FRAGMENTS, SITES, "int4"))
    coordinator = processes.Coordinator(bench.build, config, bench.folder / "state", bench.folder / "coordinator.log")
    try:
        coordinator.await_address()
        names = ",".join(f"datacenter-{i:02d}" for i in range(SITES - 1))
        sites = processes.light_sites(bench.build, coordinator.address, f"--sites={names}", "--holder=z-holder",
                                      f"--rounds={WARM_ROUNDS + 2 * options.rounds + 1}", log=bench.log)
        yield_to_coordinator(sites.pid)
        for _ in range(WARM_ROUNDS):  # so that there is something to show
            processes.ask(sites)
        yield measure_polls(options, coordinator)
        yield {"kind": "alone", **measure_rounds(options, coordinator, sites)}
        with Crowd(coordinator.http, PAGES, SILENT_READERS) as crowd:
            yield_to_coordinator(crowd.process.pid)
            crowd.await_open()
            row = measure_rounds(options, coordinator, sites)
        yield {"kind": "crowd", **row, "pages": PAGES, "silent_readers": SILENT_READERS, "events_read": crowd.events,
               "polls_of_pages": crowd.polls}
    finally:
        coordinator.kill()


def report(rows, bench):
    polls, alone, crowd = ({row["kind"]: row for row in rows}[kind] for kind in ("polls", "alone", "crowd"))
    print(f"/status p99, ms: {goal(polls['status_p99_ms'], most=MOST_STATUS_MS)}")
    print(f"/status ms of CPU a poll: {goal(polls['cpu_ms_a_poll'], most=MOST_CPU_MS)}")
    print(f"/status bytes: {goal(polls['status_bytes'], most=MOST_BYTES)}")
    print(f"while rounds go on: /status p99, ms: {goal(alone['status_p99_ms'], most=MOST_STATUS_MS)}")
    print(f"crowd: the slowest /healthz, ms: {goal(crowd['healthz_max_ms'], most=MOST_HEALTH_MS)}; {crowd['failed']} failed of "
          f"{crowd['healthz_asked']} asked, expected 0")
    print(f"crowd: the median round ÷ alone: {goal(crowd['round_median_s'] / alone['round_median_s'], most=MOST_ROUND_RATIO)}; "
          f"{crowd['sites_training']} sites train, expected {SITES}")
