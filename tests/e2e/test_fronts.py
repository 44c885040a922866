"""In front of a coordinator: proxies that answer in its place, names with addresses that lead nowhere, two
coordinators behind one address. A site waits, goes on when the way is free, and people are told."""

import contextlib
import itertools
import re
import shutil
import socket
import subprocess
import threading

from bad_input import BadInputTest
from harness import BIN_DIR, DONE, REFUSED, eventually, synthetic

FOREIGN = "not a coordinator, but a proxy in front of it or another server answers: "
# nginx's answers in the coordinator's place, and the words for it.
HTTP = {status: f"HTTP {status}" for status in ("401", "403", "404")}
GRPC = {"7": "gRPC status 7 (PERMISSION_DENIED)", "12": "gRPC status 12 (UNIMPLEMENTED)",
        "16": "gRPC status 16 (UNAUTHENTICATED)"}


class Nginx:
    """In front of a coordinator, by HTTP/2 without TLS, as this text of its `location /` says."""

    def __init__(self, folder):
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = "127.0.0.1:%d" % free.getsockname()[1]
        self.process = None

    def serve(self, location):
        self.close()
        config = self.folder / "nginx.conf"
        config.write_text(f"""daemon off; pid {self.folder}/nginx.pid; error_log stderr; worker_processes 1;
            events {{ worker_connections 64; }}
            http {{ access_log off; client_body_temp_path {self.folder}/body; proxy_temp_path {self.folder}/proxy;
              fastcgi_temp_path {self.folder}/fastcgi; uwsgi_temp_path {self.folder}/uwsgi; scgi_temp_path {self.folder}/scgi;
              server {{ listen {self.address} http2; location / {{ {location} }} }} }}""")
        self.process = subprocess.Popen(["nginx", "-c", config, "-p", self.folder], stderr=subprocess.PIPE)

    def close(self):
        if self.process is not None:
            self.process.terminate()
            self.process.communicate()


class Haproxy:
    """In front of a coordinator, as this frontend and this server line say."""

    def __init__(self, folder):
        self.config = folder / "haproxy.cfg"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = "127.0.0.1:%d" % free.getsockname()[1]
        self.process = None

    def serve(self, mode, frontend, server):
        self.close()
        bind = " proto h2" if mode == "http" else ""
        self.config.write_text(f"""
defaults
  mode {mode}
  timeout connect 5s
  timeout client 1m
  timeout server 1m
frontend front
  bind {self.address}{bind}
  {frontend}
  default_backend hub
backend hub
  server hub {server}
""")
        self.process = subprocess.Popen(["haproxy", "-db", "-q", "-f", self.config], stderr=subprocess.DEVNULL)

    def close(self):
        if self.process is not None:
            self.process.terminate()
            self.process.wait()


class Alternating:
    """Sends each connection to the next of several addresses, as a Service with two coordinators does."""

    def __init__(self, addresses):
        self.addresses = itertools.cycle([(host, int(port)) for host, port in (one.rsplit(":", 1) for one in addresses)])
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self.listener.accept()
                target = socket.create_connection(next(self.addresses))
                for one, other in ((caller, target), (target, caller)):
                    threading.Thread(target=self.relay, args=(one, other), daemon=True).start()

    @staticmethod
    def relay(source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class FrontTest(BadInputTest):
    def alarms(self, run):
        return {alarm["name"]: alarm["text"] for alarm in (run.status() or {}).get("alarms", [])}

    def nginx(self):
        if shutil.which("nginx") is None:
            self.skipTest("nginx is not installed (deploy/packages_ci.txt)")
        nginx = Nginx(self.folder)
        self.addCleanup(nginx.close)
        return nginx


class ProxyThatAnswersTest(FrontTest):
    def test_a_site_waits_while_a_proxy_refuses_in_the_coordinators_place_and_goes_on_then(self):
        nginx = self.nginx()
        run = self.new_run(synthetic({"a": 0.5}, [[10]], run={"steps": 30}))
        run.start_coordinator()
        refusals = [(f"return {status};", words) for status, words in HTTP.items()] + [
            (f"default_type application/grpc; add_header grpc-status {code} always; add_header grpc-message no always; "
             "return 204;", words) for code, words in GRPC.items()]
        nginx.serve(refusals[0][0])
        worker = run.start_worker("a", f"--coordinator={nginx.address}")
        for location, words in refusals:
            nginx.serve(location)
            eventually(lambda words=words: FOREIGN + words in worker.log(), words)
        self.assertTrue(worker.running())
        nginx.serve(f"grpc_pass grpc://{run.grpc};")
        run.await_done()

    def test_what_the_coordinator_itself_refuses_is_final_behind_a_proxy_too(self):
        nginx = self.nginx()
        run = self.new_run(synthetic({"a": 0.5}, [[10]], run={"steps": 30}, membership={"min_sites": 2}))
        run.start_coordinator()
        nginx.serve(f"grpc_pass grpc://{run.grpc};")
        first = run.start_worker("a", f"--coordinator={nginx.address}")
        eventually(lambda: run.site("a"), "a has joined")
        second = run.program("second", "causeway-worker", f"--coordinator={nginx.address}", "--site=a")
        self.assert_ends(second, REFUSED, "site a is in the run already and alive")
        self.assertTrue(first.running())

    def test_uploads_beyond_a_proxys_limit_have_an_alarm_with_its_words(self):
        nginx = self.nginx()
        run = self.new_run(synthetic({"a": 0.5}, [[1_200_000]], run={"steps": 0}, model={"step_ms": 20},
                                     codec={"up": "float32", "down": "float32"}))
        run.start_coordinator()
        nginx.serve(f"grpc_pass grpc://{run.grpc};")  # client_max_body_size 1m, unless it is said
        run.start_worker("a", f"--coordinator={nginx.address}")
        words = "HTTP 413, a request is larger than it takes (nginx: client_max_body_size 0)"
        eventually(lambda: words in self.alarms(run).get("transfers_fail", ""), "the alarm")
        nginx.serve(f"grpc_pass grpc://{run.grpc}; client_max_body_size 0;")
        run.await_rounds(run.rounds() + 3)


    def test_haproxys_words_and_its_proxy_protocol_are_named_and_a_site_goes_on_without_them(self):
        if shutil.which("haproxy") is None:
            self.skipTest("haproxy is not installed (deploy/packages_ci.txt)")
        haproxy = Haproxy(self.folder)
        self.addCleanup(haproxy.close)
        run = self.new_run(synthetic({"a": 0.5}, [[10]], run={"steps": 30}))
        run.start_coordinator()
        haproxy.serve("http", "http-request return status 403", f"{run.grpc} proto h2")
        worker = run.start_worker("a", f"--coordinator={haproxy.address}")
        eventually(lambda: FOREIGN + "HTTP 403" in worker.log(), "its words")
        for version in ("send-proxy", "send-proxy-v2"):
            haproxy.serve("tcp", "", f"{run.grpc} {version}")
            eventually(lambda: "begins with the PROXY protocol" in run.coordinator.log(), "the coordinator's words")
        haproxy.serve("http", "", f"{run.grpc} proto h2")
        run.await_done()


class ConnectionTest(FrontTest):
    def test_a_connection_that_begins_with_the_proxy_protocol_is_named_once(self):
        run = self.new_run(synthetic({"a": 0.5}, [[10]], run={"steps": 30}))
        run.start_coordinator()
        host, port = run.grpc.rsplit(":", 1)
        named = "a connection from 127.0.0.1 begins with the PROXY protocol"
        for line in (b"PROXY TCP4 192.0.2.1 192.0.2.2 56324 443\r\n", b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + bytes(12)) * 2:
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall(line + b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
                with contextlib.suppress(ConnectionResetError):
                    while connection.recv(1 << 12):  # gRPC's first words may come where the line came late
                        pass
        eventually(lambda: named in run.coordinator.log(), "its words")
        self.assertEqual(run.coordinator.log().count(named), 1)
        run.start_worker("a")
        run.await_done()

    def test_addresses_of_a_name_that_lead_nowhere_cost_a_moment_each(self):
        inside = ["unshare", "-m"] if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0 else \
            ["unshare", "-rm"]
        if subprocess.run([*inside, "true"], capture_output=True).returncode:
            self.skipTest("no mount namespace may be made here")
        run = self.new_run(synthetic({"a": 0.5}, [[10]], run={"steps": 30}))
        run.start_coordinator()
        port = int(run.grpc.rsplit(":", 1)[1])
        with contextlib.ExitStack() as held:
            for address in ("127.0.0.2", "127.0.0.3", "127.0.0.4"):  # their queues are full: SYNs are dropped
                listener = held.enter_context(socket.socket())
                listener.bind((address, port))
                listener.listen(0)
                for _ in range(3):
                    caller = held.enter_context(socket.socket())
                    caller.setblocking(False)
                    caller.connect_ex((address, port))
            hosts = self.folder / "hosts"
            hosts.write_text("".join(f"127.0.0.{i} hub.example\n" for i in (2, 3, 4, 1)))
            for program, flags in (("causewayctl", ["status"]), ("causeway-worker", ["--site=a"])):
                command = [*inside, "sh", "-c", f'mount --bind {hosts} /etc/hosts && exec "$@"', "sh",
                           str(BIN_DIR / program), *flags, "--insecure", f"--coordinator=hub.example:{port}"]
                done = subprocess.run(command, capture_output=True, text=True, timeout=60)
                self.assertEqual(done.returncode, DONE, done.stderr)
                self.assertNotIn("is not connected", done.stderr)


class TwoTest(FrontTest):
    def test_two_coordinators_behind_one_address_are_named_by_the_site_and_by_both(self):
        config = synthetic({"a": 0.5, "b": 0.5}, [[10]] * 8, run={"steps": 0})
        runs = [self.new_run(config), self.new_run(config)]
        for run in runs:
            run.start_coordinator()
        front = Alternating([run.grpc for run in runs])
        worker = runs[0].start_worker("a", f"--coordinator={front.address}")
        eventually(lambda: f"two coordinators answer at {front.address}: those of lineage" in worker.log(), "the site's word")
        eventually(lambda: all("two_coordinators" in self.alarms(run) for run in runs), "both alarms")
        lineages = re.search(r"those of lineage (\w+) and (\w+)", worker.log()).groups()
        for run in runs:
            for lineage in lineages:
                self.assertIn(lineage, self.alarms(run)["two_coordinators"])

    def test_a_copy_of_a_sites_checkpoints_on_another_machine_waits_and_is_refused(self):
        run = self.new_run(synthetic({"a": 0.5}, [[10]], run={"steps": 0}, model={"step_ms": 5},
                                     checkpoint={"every_rounds": 1, "keep": 1000}, membership={"lease_ms": 4000}))
        run.start_coordinator()
        first = run.start_worker("a", f"--checkpoint_dir={self.folder}/one")
        eventually(lambda: list((self.folder / "one").glob("[0-9]*/sync.json")), "a checkpoint")
        shutil.copytree(self.folder / "one", self.folder / "two", ignore=shutil.ignore_patterns("*.tmp"))
        second = run.program("second", "causeway-worker", f"--coordinator={run.grpc}", "--site=a",
                             f"--checkpoint_dir={self.folder}/two")
        eventually(lambda: "another process that has the same checkpoint" in self.alarms(run).get("two_workers", ""), "the alarm")
        self.assert_ends(second, REFUSED, "give this one another name, and a --checkpoint_dir of its own")
        self.assertNotIn("is not connected", first.log(), "it was left alone")
        first.kill()
        again = run.start_worker("a", f"--checkpoint_dir={self.folder}/one")  # within the lease
        rounds = run.rounds()
        run.await_rounds(rounds + 2)
        self.assertTrue(again.running())
