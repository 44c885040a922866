"""iperf3 as the ceiling of a transport: one TCP stream or several, between two places of the same run."""

import contextlib
import json
import subprocess
import time

from bench_lib import processes

PORT = 5201
SETTLE_S = 1  # left out at the beginning
START_S = 10


class Iperf:
    """A server at `address` that answers one client after the other; places are context managers that a process is
    started in (Network.inside)."""

    def __init__(self, server_place, client_place, address):
        self.client_place, self.address = client_place, address
        with server_place():
            self.server = subprocess.Popen(["iperf3", "--server", "--bind", address, "--port", str(PORT)],
                                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                           preexec_fn=processes.ends_with_us)

    def megabytes_per_s(self, seconds, streams):
        command = ["iperf3", "--client", self.address, "--port", str(PORT), "--json", "--time", str(seconds),
                   "--omit", str(SETTLE_S), "--parallel", str(streams)]
        deadline = time.monotonic() + START_S
        while True:
            with self.client_place():
                client = subprocess.run(command, capture_output=True, text=True, check=False)
            if client.returncode == 0:
                return json.loads(client.stdout)["end"]["sum_received"]["bits_per_second"] / 8e6
            if time.monotonic() > deadline:
                raise RuntimeError(f"iperf3 failed: {client.stdout[-500:]}{client.stderr[-500:]}")
            time.sleep(0.2)  # it is not listening yet

    def close(self):
        self.server.kill()
        self.server.wait()


@contextlib.contextmanager
def here():
    """The place where this process is."""
    yield
