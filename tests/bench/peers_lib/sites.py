"""Four sites of a peer as processes, in one namespace or in one each, and their measurements."""

import contextlib
import json
import os
import pathlib
import subprocess
import tempfile
import threading

from bench_lib import processes
from peers_lib.environment import last_line
from peers_lib.table import Unavailable

PROGRAM = pathlib.Path(__file__).parent / "peer_site.py"
START_S = 60  # for a lighthouse, which imports torch


def read_line(process, limit_s):
    """A line of its output, or "" when the process ends or the time is over."""
    timer = threading.Timer(limit_s, process.kill)
    timer.start()
    try:
        return process.stdout.readline()
    finally:
        timer.cancel()


@contextlib.contextmanager
def started(environment, place, log_path, *arguments, **variables):
    """A process of peer_site.py in a place, killed when the caller is done with it."""
    with open(log_path, "w", encoding="utf-8") as log, place:
        process = subprocess.Popen([str(environment.python), str(PROGRAM), *map(str, arguments)], stderr=log, text=True,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   env=environment.variables(**variables), preexec_fn=processes.ends_with_us)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def run(environment, kind, settings, sites, limit_s, begun=lambda: None):
    """A list of each site's measurements. `sites` has an (address, interface, place) for each, the first for the
    lighthouse. `begun` is called when the first site begins to measure."""
    with tempfile.TemporaryDirectory(prefix="causeway-peers-") as name, contextlib.ExitStack() as stack:
        folder = pathlib.Path(name)
        settings = settings | {"kind": kind, "store": str(folder / "store"), "world": len(sites) - 1}
        started_here = {}

        def start(number, more):
            address, interface, place = sites[number]
            log = folder / f"{number}.log"
            started_here[number] = stack.enter_context(started(
                environment, place(), log, json.dumps(settings | more | {"rank": number - 1, "address": address}),
                threads=max(1, len(os.sched_getaffinity(0)) // settings["world"]), GLOO_SOCKET_IFNAME=interface))
            return started_here[number]

        def failed(number, limit_s):
            ended = [index for index, process in started_here.items() if process.poll() not in (None, 0, -9)]
            if not ended:
                raise Unavailable(f"{kind}: no answer after {limit_s:.0f} s")
            log = (folder / f"{number if number in ended else ended[0]}.log").read_text(errors="replace")
            raise Unavailable(f"{kind}: {last_line(log)}")

        lighthouse = ""
        if kind == "torchft":
            lighthouse = read_line(start(0, {"kind": "lighthouse"}), START_S).strip() or failed(0, START_S)
        running = [start(number, {"lighthouse": lighthouse}) for number in range(1, len(sites))]
        results = []
        for number, process in enumerate(running, 1):
            if read_line(process, limit_s).strip() != "begun":
                failed(number, limit_s)
            if number == 1:
                begun()
        for number, process in enumerate(running, 1):
            line = read_line(process, limit_s)
            results.append(json.loads(line) if line else failed(number, limit_s))
        return results
