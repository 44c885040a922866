"""A site that waits for what a test says, so that a test can interrupt it. Prints where it stands, and when the script
had control again, by the clock that all processes of the machine share.

    waiting_site.py COORDINATOR SITE join|stall|leave
"""

import contextlib
import pathlib
import signal
import sys
import time

import numpy

import causeway


# Begin the names of the threads that gRPC keeps for the life of the process.
GRPC_THREADS = ("grpc", "nexting", "default-exe", "resolver-exe", "event_engine", "timer_manager")


def threads():
    """How many this process has, without gRPC's."""
    names = []
    for task in pathlib.Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it ended meanwhile
            names.append((task / "comm").read_text())
    return sum(not name.startswith(GRPC_THREADS) for name in names)


def main(coordinator, name, where):
    before = threads()
    site = causeway.Site({"t0": numpy.ones(1000, numpy.float32)}, coordinator=coordinator, site=name)
    try:
        print("opened", flush=True)
        with site:
            print("joined", flush=True)
            while where != "leave" or site.step < 7:
                site.after_step()
                print(f"step {site.step}", flush=True)
            signal.raise_signal(signal.SIGSTOP)  # until the test has stopped the coordinator
            print("leaves", flush=True)
    except KeyboardInterrupt:
        now = time.monotonic()
        print(f"interrupted at {now}, threads left: {threads() - before}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
