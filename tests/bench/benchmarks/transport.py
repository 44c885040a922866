"""The bulk path against iperf3: uploads of fragments to a receiver that takes them as the coordinator does.

The sender is the product's client (transport::GrpcLink) with fragments of int4 payload, two or more under way; the
receiver (bench_run/receiver.cc) takes the coordinator's messages, hashes, validates and spools every chunk and drops
what is whole. Nothing is journaled or merged. Each pair is one iperf3 and one upload, right after each other; ratios
are medians over the pairs.

    loopback   plaintext and mutual TLS (certificates by deploy/certs) over 1, 2 and 4 connections / iperf3's one stream
    wan        1 Gbit/s and 100 ms, the same with a loss of 1e-4 of segments and bbr, 100 Mbit/s and 100 ms
               (tests/bench/wanemu); as many connections as the link chooses / iperf3's 8 streams, and share of it

`unchecked` is the same upload into a receiver that drops chunks without looking at them: what is not the transport's.
Loss is of segments, so that part runs without super-packets, which costs the emulator more. A row is not valid if it
took more than half a core (0.8 with loss) or was 2 ms late on average. wan needs root, ip and /dev/net/tun and is
skipped, with the reason, where one lacks. Needs iperf3.
"""

import contextlib
import dataclasses
import shutil
import statistics
import subprocess
import sys

from bench_lib import processes
from bench_lib.figures import goal, print_columns
from wan_lib import network
from wan_lib.iperf import Iperf, here

FILE, MINUTES = "transport", 20
OPTIONS = {"parts": (["loopback", "wan"], "of the cases"), "pairs": (5, "of a case"),
           "seconds": (0, "of each measurement; 0: each case's own")}
QUICK = {"parts": ["loopback"], "pairs": 1, "seconds": 1}
WAN_STREAMS = 8
MOST_CORES = {False: network.MOST_CORES, True: 0.8}  # of the emulator, without and with loss: packet by packet


@dataclasses.dataclass(frozen=True)
class Case:
    part: str
    name: str
    fragment_mb: float
    seconds: int
    streams: int = 1  # of iperf3
    channels: int = 0  # 0: as many as the link chooses
    tls: bool = False
    rate_mbit: int = 0
    rtt_ms: int = 0
    loss: float = 0
    ratio_goal: float | None = None
    link_goal: float | None = None


CASES = {case.name: case for case in [
    Case("loopback", "plaintext, 1 connection", 64, 4, channels=1, ratio_goal=0.60),
    Case("loopback", "plaintext, 2 connections", 64, 4, channels=2, ratio_goal=0.95),
    Case("loopback", "plaintext, 4 connections", 64, 4, channels=4),
    Case("loopback", "TLS, 1 connection", 64, 4, channels=1, tls=True, ratio_goal=0.17),
    Case("loopback", "TLS, 2 connections", 64, 4, channels=2, tls=True),
    Case("loopback", "TLS, 4 connections", 64, 4, channels=4, tls=True),
    Case("wan", "1 Gbit/s, 100 ms", 32, 12, WAN_STREAMS, rate_mbit=1000, rtt_ms=100, ratio_goal=0.97, link_goal=0.91),
    Case("wan", "1 Gbit/s, 100 ms, loss 1e-4, bbr", 32, 12, WAN_STREAMS, rate_mbit=1000, rtt_ms=100, loss=1e-4,
         ratio_goal=0.97),
    Case("wan", "100 Mbit/s, 100 ms", 8, 20, WAN_STREAMS, rate_mbit=100, rtt_ms=100, link_goal=0.92),
]}


def make_certificates(folder, address):
    subprocess.run([processes.ROOT / "deploy" / "certs", "--out", folder, "--coordinator", address, "--site", "a"], check=True,
                   stdout=subprocess.DEVNULL)


def tls_flags(folder, name):
    return [f"--tls_ca={folder / 'ca.pem'}", f"--tls_cert={folder / name}.pem", f"--tls_key={folder / name}.key"]


class Upload:
    """A receiver and a sender, which uploads for a while at each request."""

    def __init__(self, options, case, folder, places, address, log, checked):
        receiver_tls, sender_tls = ([], ["--insecure"])
        if case.tls:
            receiver_tls, sender_tls = tls_flags(folder, "coordinator"), tls_flags(folder, "a")
        with places[0]():
            self.receiver = processes.wire_end(options.build, "receiver", f"--config={folder / 'run.yaml'}",
                                               f"--listen={address}:0", f"--check={str(checked).lower()}",
                                               *receiver_tls, log=log)
        listening = self.receiver.stdout.readline().strip()
        if not listening:
            raise RuntimeError("the receiver did not start; its log is in --out")
        with places[1]():
            self.sender = processes.wire_end(options.build, "uploads", f"--coordinator={listening}", "--sites=a",
                                             f"--channels={case.channels}", *sender_tls, log=log)

    def megabytes_per_s(self, seconds):
        return processes.ask(self.sender, seconds)["megabytes_per_s"]

    def close(self):
        for process in (self.sender, self.receiver):
            process.kill()
            process.communicate()


@contextlib.contextmanager
def between(options, case):
    """(places of receiver and sender, the receiver's address, a function that tells of the emulator)."""
    if not case.rate_mbit:
        yield (here, here), "127.0.0.1", lambda: None
        return
    flags = [f"--loss={case.loss}", "--no_gso=true"] if case.loss else []
    with network.Network(options.build, 2, case.rate_mbit, case.rtt_ms, flags) as net:
        yield (lambda: net.inside(1), lambda: net.inside(2)), network.address(1), net.report


def run_yaml(case):
    """One fragment of the size, 4 bits a value."""
    values = round(case.fragment_mb * 1e6 * 8 / (4 + 16 / 256))
    return processes.run_yaml(values, 1, 1, 1, "int4")


def pairs_of(options, case, iperf, uploads):
    speeds = {"iperf": [], **{name: [] for name in uploads}}
    for number in range(options.pairs):
        speeds["iperf"].append(iperf.megabytes_per_s(case.seconds, case.streams))
        for name, upload in uploads.items():
            speeds[name].append(upload.megabytes_per_s(case.seconds))
        latest = ", ".join(f"{name} {values[-1]:.0f} MB/s" for name, values in speeds.items())
        print(f"  pair {number + 1}: {latest}", file=sys.stderr)
    return speeds


def measure(known, bench):
    options, folder, log, case = bench.options, bench.folder, bench.log, CASES[known["name"]]
    if options.seconds:
        case = dataclasses.replace(case, seconds=options.seconds)
    (folder / "run.yaml").write_text(run_yaml(case))
    with contextlib.ExitStack() as stack:
        control = stack.enter_context(network.congestion_control("bbr" if case.loss else None))
        places, address, emulator = stack.enter_context(between(options, case))
        make_certificates(folder, address)
        iperf = Iperf(*places, address)
        stack.callback(iperf.close)
        uploads = {}
        for name, checked in (("upload", True), ("unchecked", False)):
            uploads[name] = Upload(options, case, folder, places, address, log, checked)
            stack.callback(uploads[name].close)
        begin = emulator()
        speeds = pairs_of(options, case, iperf, uploads)
        end = emulator()
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    ratios = {f"{name}_to_iperf": statistics.median(a / b for a, b in zip(speeds[name], speeds["iperf"]))
              for name in uploads}
    link = {f"{name}_of_link": value * 8 / case.rate_mbit for name, value in medians.items()} if case.rate_mbit else {}
    return {**dataclasses.asdict(case), "megabytes_per_s": medians, "pairs": speeds, **ratios, **link,
            "congestion_control": control,
            **(network.emulator_figures(begin, end, MOST_CORES[case.loss > 0]) if begin else
               {"emulator_cores": None, "valid": True})}


def why_not(options):
    return None if shutil.which("iperf3") else "needs iperf3"


def cases(options):
    reason = network.why_not(options.build) if "wan" in options.parts else None
    if reason:
        print(f"skipped the part over an emulated link: {reason}")
    return [{"name": case.name} for case in CASES.values()
            if case.part in options.parts and not (reason and case.part == "wan")]


def report(rows, bench):
    lines = [["", "iperf3 MB/s", "upload", "÷ iperf3", "of the link", "unchecked", "÷ iperf3", "emulator", ""]]
    for row in rows:
        speed = row["megabytes_per_s"]
        ratio, share = (None if row[key] is None else {"least": row[key]} for key in ("ratio_goal", "link_goal"))
        notes = "" if row["valid"] else "INVALID: emulator"
        if row["loss"] and row["congestion_control"] != "bbr":
            notes += f"no bbr here, {row['congestion_control']} instead"
        lines.append([row["name"], f"{speed['iperf']:.0f}", f"{speed['upload']:.0f}",
                      goal(row["upload_to_iperf"], **ratio) if ratio else f"{row['upload_to_iperf']:.2f}",
                      goal(row["upload_of_link"], **share) if share else "–", f"{speed['unchecked']:.0f}",
                      f"{row['unchecked_to_iperf']:.2f}",
                      "–" if row["emulator_cores"] is None else f"{row['emulator_cores']:.2f}", notes])
    print_columns(lines)
