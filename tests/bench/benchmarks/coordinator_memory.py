"""The coordinator's peak memory, and how soon it is back after kill -9.

    run      250 M parameters in 4 fragments, Nesterov, int4 with feedback both ways; three light sites (bench_run) and a
             fourth that joins in the middle and downloads all anchors; a snapshot every third round
    tensor   one tensor of 2.3 GB (575 M values) that is the only fragment, without feedback: 8 bytes a parameter; a site
             and a joiner
    restart  100 M parameters, int4 with feedback, a snapshot every third round, three sites that go on uploading; killed
             once every fragment has two rounds to replay; from the start of the new process to its first chunk

Peak is VmHWM: of the seed, and of everything after it. The goal is 12 (8) bytes a parameter + 1.1 x the encoded
contributions that all sites can have in flight at once + 150 MB; a restart within 10 s. Page cache does not count.
Needs up to 14 GiB of memory and 20 GB of disk.
"""

import threading
import time

from bench_lib import processes
from bench_lib.figures import goal

FILE, MINUTES = "coordinator_memory", 6
FIXED_BYTES = 150_000_000
IN_FLIGHT_FACTOR = 1.1
RESTART_GOAL_S = 10
RESERVE = 3 << 30


CASES = {
    "run": {"parameters": 250_000_000, "tensors": 16, "fragments": 4, "sites": 3, "feedback": 1, "rounds": 9,
            "every_rounds": 3, "join_at": 3},
    "tensor": {"parameters": 575_000_000, "tensors": 1, "fragments": 1, "sites": 1, "feedback": 0, "rounds": 5,
               "every_rounds": 2, "join_at": 2},
    "restart": {"parameters": 100_000_000, "tensors": 16, "fragments": 4, "sites": 3, "feedback": 1, "rounds": 1000,
                "every_rounds": 3},
}
OPTIONS = {"cases": (list(CASES), "some of these"), "parameters": (0, "of each case; 0: its own")}
QUICK = {"cases": ["run"], "parameters": 1_000_000}


class PeakOfAnonymous:
    """Samples what is resident and no file's, which VmHWM does not tell apart."""

    def __init__(self, coordinator):
        self.coordinator, self.peak, self.stopped = coordinator, 0, False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.stopped:
            try:
                self.peak = max(self.peak, self.coordinator.memory().get("RssAnon", 0))
            except (FileNotFoundError, ProcessLookupError):
                pass
            time.sleep(0.02)

    def stop(self):
        self.stopped = True
        self.thread.join()
        return self.peak


def await_versions(coordinator, least, others):
    """Until every fragment has that version; the sites must not end before."""
    while True:
        fragments = coordinator.status()["fragments"]
        if fragments and min(fragment["version"] for fragment in fragments) >= least:
            return
        if any(process.poll() not in (None, 0) for process in others):
            raise RuntimeError("bench_run ended")
        time.sleep(0.05)


def play(case, bench, coordinator, names, *flags):
    return processes.light_sites(bench.build, coordinator.address, f"--sites={','.join(names)}",
                                 f"--rounds={case['rounds']}", f"--in_flight={case['fragments']}", *flags, log=bench.log)


def start(case, bench):
    config = bench.folder / "run.yaml"
    config.write_text(processes.run_yaml(case["parameters"], case["tensors"], case["fragments"], case["sites"], "int4",
                                         case["every_rounds"], case["feedback"]))
    coordinator = processes.Coordinator(bench.build, config, bench.folder / "state", bench.options.out / "coordinator_memory.log")
    coordinator.await_address()
    return coordinator, [f"s{i}" for i in range(case["sites"])]


def memory(case, bench):
    coordinator, names = start(case, bench)
    players = [play(case, bench, coordinator, names[:1])]  # the others come when it has supplied the seed
    sampler = PeakOfAnonymous(coordinator)
    try:
        coordinator.await_seed()
        seed = coordinator.memory()["VmHWM"]
        seed_anonymous = sampler.peak
        coordinator.reset_peak()
        sampler.peak = 0
        if names[1:]:
            players.append(play(case, bench, coordinator, names[1:]))
        await_versions(coordinator, case["join_at"], players)
        players.append(play(case, bench, coordinator, ["z"], "--own_initial=false"))
        rows = [processes.answer_of(process) for process in players]
        after = coordinator.memory()
    finally:
        anonymous = sampler.stop()
        coordinator.kill()
        for process in players:
            process.kill()
    contribution = rows[0]["contribution_bytes"] // case["rounds"]
    state = (12 if case["feedback"] else 8) * case["parameters"]
    in_flight = (case["sites"] + 1) * contribution
    bound = state + IN_FLIGHT_FACTOR * in_flight + FIXED_BYTES
    return {"parameters": case["parameters"], "state_bytes": state, "in_flight_bytes": in_flight,
            "fixed_bytes": FIXED_BYTES, "bound_bytes": round(bound), "seed_peak_bytes": seed,
            "seed_peak_anonymous_bytes": seed_anonymous, "rounds_peak_bytes": after["VmHWM"],
            "rounds_peak_anonymous_bytes": anonymous, "end_bytes": after["VmRSS"],
            "joiner_received_bytes": rows[-1]["received_bytes"], "ratio": max(seed, after["VmHWM"]) / bound}


def restart(case, bench):
    coordinator, names = start(case, bench)
    sites = play(case, bench, coordinator, names)
    try:
        await_versions(coordinator, 2 * case["every_rounds"] + 2, [sites])
        coordinator.kill()
        log_begin = len(coordinator.log_path.read_text())
        coordinator.start()
        coordinator.await_address()
        listening = time.monotonic() - coordinator.started
        while not any(site["up_bytes"] for site in coordinator.status()["sites"]):
            time.sleep(0.005)
        first_chunk = time.monotonic() - coordinator.started
        replayed = [line for line in coordinator.log_path.read_text()[log_begin:].splitlines() if "since the last" in line]
        versions = [fragment["version"] for fragment in coordinator.status()["fragments"]]
        await_versions(coordinator, max(versions) + 2, [sites])
        merging = time.monotonic() - coordinator.started
        peak = coordinator.memory()["VmHWM"]
    finally:
        coordinator.kill()
        sites.kill()
    return {"parameters": case["parameters"], "listening_s": listening, "first_chunk_s": first_chunk,
            "two_rounds_later_s": merging, "replayed": replayed[0].split("merges ")[1] if replayed else "",
            "peak_bytes": peak, "goal_s": RESTART_GOAL_S}


def sized(name, options):
    return CASES[name] | ({"parameters": options.parameters} if options.parameters else {})


def cases(options):
    return [{"case": name} for name in options.cases]


def why_not(options):
    # The coordinator, and light sites that hold the initial parameters.
    need, free = max(24 * sized(name, options)["parameters"] + RESERVE for name in options.cases), processes.free_memory()
    return None if free >= need else f"needs {need >> 30} GiB of free memory, there are {free >> 30}; --cases, --parameters"


def measure(known, bench):
    return (restart if known["case"] == "restart" else memory)(sized(known["case"], bench.options), bench)


def report(rows, bench):
    for row in rows:
        if row["case"] == "restart":
            print(f"restart: listens after {row['listening_s']:.1f} s, seconds to the first chunk "
                  f"{goal(row['first_chunk_s'], most=row['goal_s'])}; merges {row['replayed']}")
            continue
        print(f"{row['case']}: peak of the seed {row['seed_peak_bytes'] / 1e6:.0f} MB, after it {row['rounds_peak_bytes'] / 1e6:.0f}; "
              f"state {row['state_bytes'] / 1e6:.0f} + {IN_FLIGHT_FACTOR} x in flight {row['in_flight_bytes'] / 1e6:.0f} + "
              f"{row['fixed_bytes'] / 1e6:.0f} = {row['bound_bytes'] / 1e6:.0f} MB; of that {goal(row['ratio'], most=1)}")
