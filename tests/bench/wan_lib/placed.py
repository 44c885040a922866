"""A cell whose coordinator is spread over the sites (placement: sites): one shard in each site's datacenter.

    dc2 shard 0, causeway-worker   dc3 shard 1, causeway-worker   …      dc1 has nothing

Each link then carries 2 (M - 1) / M payloads in each direction, where the hub's carries M.
"""

import subprocess

from bench_lib import processes
from wan_lib import figures, network, run

PORT = 7077


def bound(cell, after_framing=True):
    count = len(figures.SITES)
    link_s = 2 * (count - 1) / count * cell.leg_bytes * 8 / (cell.rate_mbit * 1e6)
    return min(1, figures.COMPUTE_S / link_s * (figures.FRAMING if after_framing else 1))


def shard_flags(index, lead):
    return [f"--shard={index}/{len(figures.SITES)}", *([f"--membership={lead}"] if index else [])]


def seed(build, folder):
    """State directories state-0 … that have the initial parameters, made over loopback with folder / "run.yaml"."""
    shards, worker = [], None
    try:
        for index in range(len(figures.SITES)):
            lead = shards[0].await_address() if shards else None
            shards.append(processes.Coordinator(build, folder / "run.yaml", folder / f"state-{index}",
                                                folder / f"seed-{index}.log", *shard_flags(index, lead)))
        addresses = ",".join(shard.await_address() for shard in shards)
        with open(folder / "seed.log", "ab") as log:
            worker = subprocess.Popen([str(build / "causeway-worker"), f"--coordinator={addresses}",
                                       f"--site={figures.SITES[0]}"], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                      preexec_fn=processes.ends_with_us)
        for shard in shards:
            shard.await_seed(worker)
    finally:
        if worker is not None:
            worker.terminate()
            worker.wait()
        for shard in shards:
            shard.stop()  # saves snapshots


class PlacedRun(run.Run):
    """Site i and shard i are in datacenter 2 + i."""

    def __init__(self, build, folder, net, sites):
        self.net, self.folder, self.build = net, folder, build
        self.places = {site: 2 + i for i, site in enumerate(sites)}
        self.workers, self.shards = {}, []
        lead = f"{network.address(2)}:{PORT}"
        for index, dc in enumerate(self.places.values()):
            with net.inside(dc):
                self.shards.append(processes.Coordinator(
                    build, folder / "run.yaml", folder / f"state-{index}", folder / f"shard-{index}.log", "--insecure",
                    *shard_flags(index, lead), listen=f"{network.address(dc)}:{PORT}"))
        self.coordinator = self.shards[0]
        for shard in self.shards:
            shard.await_address()

    def __exit__(self, *_):
        super().__exit__()
        for shard in self.shards:
            shard.kill()

    def addresses(self):
        return ",".join(shard.address for shard in self.shards)

    def status(self):
        with self.net.inside(2):
            return self.coordinator.status()

    def state_of_rules(self):
        return self.folder / "state-0"


def measure(build, folder, cell, window, queue_ms=0):
    """A row of figures. RuntimeError with what went wrong."""
    config = run.run_config(cell, window.end + 1, "auto") | {"placement": "sites"}
    run.write_config(folder / "run.yaml", config)
    seed(build, folder)
    limit_s = run.START_S + run.SLOWNESS * figures.predicted_cell_s(cell, window)
    with network.Network(build, 1 + len(figures.SITES), cell.rate_mbit, figures.RTT_MS,
                         ["--access=true", f"--queue_ms={queue_ms}"]) as net:
        with PlacedRun(build, folder, net, figures.SITES) as placed:
            placed.start_workers()
            watch = run.Watch(placed)
            watch.until_ended(limit_s)
            end = net.report()
            drops = placed.drops()
    return {"rounds": window.fragments / cell.fragments, "fragment_rounds": window.fragments,
            **figures.utilization(watch.traces.values(), window), "dropped": drops,
            **network.emulator_figures(watch.emulator, end), "bound_after_framing": bound(cell),
            "up_bytes": sum(site["up_bytes"] for site in watch.status["sites"]),
            "down_bytes": sum(site["down_bytes"] for site in watch.status["sites"])}
