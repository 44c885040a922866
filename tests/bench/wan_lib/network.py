"""An emulated wide-area network (tests/bench/wanemu), and what runs in its namespaces.

    with Network(build, dcs=5, rate_mbit=10, rtt_ms=50, flags=["--access=true"]) as network:
        with network.inside(1):           this thread's sockets and children are datacenter 1's, 10.77.1.1
            subprocess.Popen(…)

Namespaces go with the network, whatever ends it; processes in them are for their owners to end.
"""

import contextlib
import ctypes
import itertools
import json
import os
import pathlib
import shutil
import signal
import subprocess

from bench_lib import processes

CLONE_NEWNET = 0x40000000
MOST_CORES = 0.5
MOST_LATE_MS = 2
CONGESTION_CONTROL = pathlib.Path("/proc/sys/net/ipv4/tcp_congestion_control")
AVAILABLE = pathlib.Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
PREFIXES = (f"cw{os.getpid()}x{number}d" for number in itertools.count())  # of one network after the other


def program(build):
    return build / processes.BENCH / "wanemu" / "wanemu"


def why_not(build):
    """The reason why this machine cannot make a network; None if it can. Ends the program if it is not built."""
    if not program(build).exists():
        raise SystemExit(f"error: expected {program(build)}; build it first, or say --build=DIR")
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    if shutil.which("ip") is None:
        return "needs ip (package iproute2)"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "needs /dev/net/tun"
    try:
        Network(build, 2, 1000, 10).close()
    except OSError as error:
        return str(error)
    return None


def address(dc):
    return f"10.77.{dc}.1"


@contextlib.contextmanager
def congestion_control(wanted=None):
    """Sets that of networks that are made meanwhile, and tells which it is; what the kernel has not stays."""
    before = CONGESTION_CONTROL.read_text().strip()
    change = wanted is not None and wanted != before and wanted in AVAILABLE.read_text().split()
    if change:
        CONGESTION_CONTROL.write_text(wanted)
    try:
        yield CONGESTION_CONTROL.read_text().strip()
    finally:
        if change:
            CONGESTION_CONTROL.write_text(before)


class Network:
    def __init__(self, build, dcs, rate_mbit, rtt_ms, flags=()):
        self.prefix = next(PREFIXES)
        command = [str(program(build)), f"--dcs={dcs}", f"--rate_mbit={rate_mbit}", f"--rtt_ms={rtt_ms}",
                   f"--prefix={self.prefix}", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        preexec_fn=lambda: processes.ends_with_us(signal.SIGTERM))
        if not self.process.stdout.readline():
            raise OSError(self.process.communicate()[1].strip())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    @contextlib.contextmanager
    def inside(self, dc):
        """This thread, and what it starts, is in that datacenter's namespace."""
        with open("/proc/thread-self/ns/net", "rb") as ours, open(f"/run/netns/{self.prefix}{dc}", "rb") as theirs:
            enter(theirs)
            try:
                yield
            finally:
                enter(ours)

    def interface_bytes(self, dc):
        """(sent, received) by wan0, IP headers included; those of a super-packet count once."""
        with self.inside(dc):
            for line in pathlib.Path("/proc/thread-self/net/dev").read_text().splitlines():
                name, _, fields = line.partition(":")
                if name.strip() == "wan0":
                    received, sent = fields.split()[0], fields.split()[8]
                    return int(sent), int(received)
        raise OSError("wan0 is gone")

    def report(self):
        """The emulator's report on itself: {"wall_s", "cpu_s", "links"}."""
        self.process.send_signal(signal.SIGUSR1)
        line = self.process.stdout.readline()
        if not line:
            raise OSError(f"wanemu ended: {self.process.stderr.read().strip()}")
        return json.loads(line)

    def close(self):
        self.process.terminate()
        self.process.communicate()


def enter(namespace):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def emulator_figures(begin, end, most_cores=MOST_CORES):
    """The emulator's share of a core between two of its reports, and how late it handed packets over on average.
    Beyond the limits a figure is one of the emulator, or of a machine that had no time for it."""
    cores = (end["cpu_s"] - begin["cpu_s"]) / (end["wall_s"] - begin["wall_s"])
    late_ms = 1000 * (end["late_s"] - begin["late_s"]) / max(1, end["delivered"] - begin["delivered"])
    return {"emulator_cores": cores, "emulator_late_ms": late_ms, "emulator_latest_ms": 1000 * end["latest_s"],
            "valid": cores <= most_cores and late_ms <= MOST_LATE_MS}
