"""Mutual TLS, tokens, and peers that mean no good: each is refused with words that help, and the run goes on."""

import pathlib
import resource
import socket
import ssl
import subprocess
import time
import unittest

from harness import BAD_INPUT, DONE, REFUSED, UNREACHABLE, EndToEndTest, check_all, eventually, synthetic

DEPLOY_CERTS = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "certs"
SITES = {"a": 0.5, "b": -0.25}
IDLE_CONNECTIONS = 10_000
OTHER_DESCRIPTORS = 1_000  # of a program, beside the connections
BEGINNING_OF_A_HELLO = b"\x16\x03\x01\x02\x00\x01"  # TLS: 512 bytes would follow


class SecurityTest(EndToEndTest):
    def certs(self, *arguments, out="certs"):
        folder = self.folder / out
        subprocess.run([DEPLOY_CERTS, "--out", folder, *arguments], check=True, capture_output=True, timeout=60)
        return folder

    def make_identities(self):
        names = ["a", "b", "c", "operator"]
        tokens = [argument for name in names for argument in ("--token", name)]
        self.ours = self.certs("--coordinator", "127.0.0.1", "--site", "a", "--site", "b", "--site", "c", "--operator",
                               *tokens)

    def tls(self, name, folder=None):
        folder = folder or self.ours
        return [f"--tls_ca={self.ours}/ca.pem", f"--tls_cert={folder}/{name}.pem", f"--tls_key={folder}/{name}.key"]

    def identity(self, name):
        return [*self.tls(name), f"--token_file={self.ours}/{name}.token"]

    def secure_run(self, steps, step_ms=0, **options):
        run = self.new_run(synthetic(SITES, [[1000]], run={"steps": steps}, model={"step_ms": step_ms}))
        run.start_coordinator(*self.tls("coordinator"), f"--site_tokens={self.ours}/site_tokens", **options)
        return run

    def expire(self, name):
        """A certificate of our CA with that name and its key that was valid until yesterday."""
        request, expired = self.folder / "request", self.folder / f"{name}.pem"
        subprocess.run(["openssl", "req", "-new", "-key", self.ours / f"{name}.key", "-subj", f"/CN={name}", "-out",
                        request], check=True, capture_output=True)
        command = ["openssl", "x509", "-req", "-in", request, "-CA", self.ours / "ca.pem", "-CAkey", self.ours / "ca.key",
                   "-set_serial", "7", "-out", expired]
        if subprocess.run([*command, "-days", "-1"], capture_output=True, check=False).returncode:  # OpenSSL 3.4 has dates
            subprocess.run([*command, "-not_before", "20240101000000Z", "-not_after", "20240102000000Z"], check=True,
                           capture_output=True)
        return expired

    def run_program(self, program, *arguments):
        return self.program(self.folder, f"{program}-{next(self.run_numbers)}", program, *arguments)

    def assert_ends(self, program, code, *messages):
        self.assertEqual(program.wait(), code, program.log())
        for message in messages:
            self.assertIn(message, program.log())

    def intruder(self, run, site, *flags):
        return self.run_program("causeway-worker", f"--coordinator={run.grpc}", f"--site={site}",
                                "--connect_timeout_s=1", *flags)

    def ctl(self, run, *arguments):
        return self.run_program("causewayctl", *arguments, f"--coordinator={run.grpc}")


class RunTest(SecurityTest):
    def test_two_sites_over_mutual_tls_with_tokens(self):
        self.make_identities()
        run = self.secure_run(steps=60)
        for site in SITES:
            run.start_worker(site, *self.identity(site))
        run.await_done()
        self.assertEqual(run.rounds(), 10)
        out = self.folder / "export"
        self.assert_ends(self.ctl(run, "export", f"--out={out}", *self.identity("operator")), DONE)
        self.assertTrue((out / "model.safetensors").exists())
        self.assert_ends(self.ctl(run, "status", *self.identity("a")), DONE)
        self.assert_ends(self.ctl(run, "drain", "--site=a", *self.identity("b")), REFUSED,
                         "drain takes role operate or admin, and b has role site")
        drained = self.ctl(run, "drain", "--site=stranger", *self.identity("operator"))
        self.assert_ends(drained, REFUSED, "stranger")
        self.assertNotIn("role", drained.log())
        run.stop_coordinator()

    def test_tokens_alone_where_the_network_is_ones_own(self):
        self.make_identities()
        run = self.new_run(synthetic({"a": 0.5}, [[10]], run={"steps": 12}))
        run.start_coordinator(f"--site_tokens={self.ours}/site_tokens")
        self.assert_ends(self.intruder(run, "a"), REFUSED, "asks for a token", "--token_file")
        self.assert_ends(self.intruder(run, "b", f"--token_file={self.ours}/a.token"), REFUSED,
                         "the token is that of a, not of b")
        self.assert_ends(self.ctl(run, "status"), REFUSED, "asks for a token")
        run.start_worker("a", f"--token_file={self.ours}/a.token")
        run.await_done()

    def test_a_handshake_that_fails_is_explained_at_both_ends(self):
        self.make_identities()
        foreign = self.certs("--coordinator", "127.0.0.1", "--site", "a", out="foreign")
        run = self.secure_run(steps=0, step_ms=5)
        page = self.run_program("causeway-worker", f"--coordinator={run.http}", "--site=a", "--connect_timeout_s=1",
                                *self.identity("a"))
        self.assert_ends(page, UNREACHABLE, f"{run.http.split(':')[1]} is an HTTP port, as the status page's is (--http)")
        for flags, words, cause in (([], "the coordinator speaks TLS", "it does not speak TLS: give it --tls_ca"),
                                    (self.tls("a", foreign), "refuses our certificate",
                                     "its certificate is not of the CA in --tls_ca")):
            self.assert_ends(self.intruder(run, "a", *flags), UNREACHABLE, words)
            eventually(lambda cause=cause: f"a caller's TLS handshake failed: {cause}" in run.coordinator.log(), cause)

    def test_a_token_that_is_taken_back_ends_its_site(self):
        self.make_identities()
        run = self.secure_run(steps=0, step_ms=5)
        for site in SITES:
            run.start_worker(site, *self.identity(site))
        run.await_rounds(2)
        tokens = self.ours / "site_tokens"
        left = [line for line in tokens.read_text().splitlines(keepends=True) if not line.startswith("b ")]
        (self.ours / "new").write_text("".join(left))
        (self.ours / "new").rename(tokens)
        self.assert_ends(run.workers["b"], REFUSED, "no name has this token")
        self.assertTrue(run.workers["a"].running())


    def test_a_revoked_certificate_ends_its_sites_streams_within_ten_seconds(self):
        self.make_identities()
        run = self.new_run(synthetic(SITES, [[1000]], run={"steps": 0}, model={"step_ms": 5}))
        run.start_coordinator(*self.tls("coordinator"), f"--tls_revoked={self.ours}/revoked")
        for site in SITES:
            run.start_worker(site, *self.tls(site))
        run.await_rounds(2)
        revoked_s = time.monotonic()
        self.certs("--revoke", "b")
        self.assert_ends(run.workers["b"], REFUSED, "is revoked: ask for another one")
        self.assertLess(time.monotonic() - revoked_s, 10)
        self.assertTrue(run.workers["a"].running())
        self.assert_ends(self.ctl(run, "status", *self.tls("b")), REFUSED, "is revoked")
        self.assert_ends(self.ctl(run, "status", *self.tls("a")), DONE)


class PeopleTest(SecurityTest):
    def commands(self, run, *flags):
        history = self.ctl(run, "history", "--kind=command", "--json", *flags)
        self.assert_ends(history, DONE)
        self.assertTrue(all(line["kind"] == "command" for line in history.lines()))
        return [line["command"] for line in history.lines()]

    def test_commands_are_on_record_with_who_where_what_and_result_after_kill_9(self):
        self.make_identities()
        self.certs("--operator", "oncall:operate", "--operator", "boss:admin", "--token", "operator:oncall", "--token",
                   "operator:boss")
        run = self.secure_run(steps=0, step_ms=5)
        for site in SITES:
            run.start_worker(site, *self.identity(site))
        run.await_rounds(1)
        oncall = self.identity("operator-oncall")
        self.assert_ends(self.ctl(run, "pause", *oncall), DONE)
        self.assert_ends(self.ctl(run, "drain", "--site=elsewhere", *oncall), REFUSED, "site elsewhere is not training")
        self.assert_ends(self.ctl(run, "stop", "--yes", *oncall), REFUSED, "stop takes role admin")
        self.assert_ends(self.ctl(run, "resume", *self.identity("a")), REFUSED, "resume takes role operate or admin")
        run.coordinator.kill()
        run.start_coordinator(*self.tls("coordinator"), f"--site_tokens={self.ours}/site_tokens")
        records = self.commands(run, *oncall)
        self.assertEqual([(r["name"], r["role"], r["command"], r["arguments"], r["result"].split(":")[0])
                          for r in records],
                         [("operator:oncall", "operate", "pause", "", "done"),
                          ("operator:oncall", "operate", "drain", "site=elsewhere", "refused"),
                          ("operator:oncall", "operate", "stop", "", "refused"),
                          ("a", "site", "resume", "", "refused")])
        for record in records:
            self.assertRegex(record["address"], r"^127\.0\.0\.1:\d+$")
        self.assert_ends(self.ctl(run, "stop", "e2e", *self.identity("operator-boss")), DONE)
        for site in SITES:
            self.assertEqual(run.workers[site].wait(), DONE)
        run.stop_coordinator()
        run.start_coordinator(*self.tls("coordinator"), f"--site_tokens={self.ours}/site_tokens")
        self.assertEqual([r["name"] for r in self.commands(run, *oncall)][3:], ["a", "operator:boss"])

    def test_without_tokens_and_tls_the_record_says_that_nothing_identified_the_caller(self):
        run = self.new_run(synthetic({"a": 0.5}, [[10]], run={"steps": 0}))
        run.start_coordinator()
        self.assert_ends(self.ctl(run, "pause"), DONE)
        history = self.ctl(run, "history", "--kind=command")
        self.assert_ends(history, DONE)
        self.assertRegex(history.output(), r"from 127\.0\.0\.1:\d+, not identified: pause: done")
        self.assertEqual(self.commands(run)[0]["name"], "")


class IntruderTest(SecurityTest):
    def test_strangers_are_refused_while_the_run_goes_on_undisturbed(self):
        self.make_identities()
        foreign = self.certs("--site", "a", out="foreign")
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        run = self.secure_run(steps=0, step_ms=4, preexec_fn=lambda: resource.setrlimit(
            resource.RLIMIT_NOFILE, (min(256, hard), hard)))  # the coordinator raises it by itself
        for site in SITES:
            run.start_worker(site, *self.identity(site))
        run.await_rounds(1)
        connections = self.open_idle_connections(run)
        eventually(lambda: self.ctl(run, "status", *self.identity("operator")).wait() == DONE, "the operator's answer")
        b_token = f"--token_file={self.ours}/b.token"
        strangers = [
            ("c", self.tls("c"), REFUSED, "asks for a token"),
            ("c", [*self.tls("c"), b_token], REFUSED, "the certificate is that of c, not of b"),
            ("a", self.identity("b"), REFUSED, "not of a: a peer may use only its own name"),
            ("b", [*self.tls("c"), b_token], REFUSED, "the certificate is that of c, not of b"),
            ("operator", self.identity("operator"), REFUSED, "reserved for operators, shards and standbys"),
            ("a", self.tls("a", foreign), UNREACHABLE, "refuses our certificate"),
            ("a", [], UNREACHABLE, "the coordinator speaks TLS"),
        ]
        check_all(lambda site, flags, *ends: self.assert_ends(self.intruder(run, site, *flags), *ends), strangers, 3)
        expired = self.expire("c")
        self.assert_ends(self.intruder(run, "c", f"--tls_ca={self.ours}/ca.pem", f"--tls_cert={expired}",
                                       f"--tls_key={self.ours}/c.key"), BAD_INPUT, "the certificate has expired")
        self.assert_no_answer(run, expired, self.ours / "c.key")
        self.assert_no_answer(run, foreign / "a.pem", foreign / "a.key")
        self.assertEqual((run.site("a")["state"], run.site("b")["state"]), ("training", "training"))
        eventually(lambda: self.is_closed(connections[0]) and self.is_closed(connections[-1]),
                   "connections that never shook hands are closed")
        run.await_rounds(run.rounds() + 10)
        for connection in connections:
            connection.close()
        self.assertEqual({site["name"] for site in run.status()["sites"]}, set(SITES), "no other site was in the run")
        for worker in run.workers.values():
            self.assertNotIn("joining again", worker.log(), "its connections held")
        run.stop_all()
        self.assertIn("the certificate is that of c, not of b", run.coordinator.log())
        self.assertLess(len(run.coordinator.log().splitlines()), 1_000, "strangers do not fill the log")

    def open_idle_connections(self, run):
        """Half say nothing, half begin to shake hands. As many as the limit of descriptors allows, which the
        coordinator shares with this test."""
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        count = max(0, min(IDLE_CONNECTIONS, hard - OTHER_DESCRIPTORS))
        if count < IDLE_CONNECTIONS:
            print(f"only {count} connections: the hard limit of descriptors is {hard}")
        host, port = run.grpc.split(":")
        connections = []
        for i in range(count):
            connection = socket.create_connection((host, int(port)), timeout=30)
            self.addCleanup(connection.close)
            if i % 2 == 1:
                connection.send(BEGINNING_OF_A_HELLO)
            connections.append(connection)
        return connections

    def is_closed(self, connection):
        connection.setblocking(False)
        try:
            return connection.recv(1) == b""
        except BlockingIOError:
            return False
        except ConnectionError:
            return True

    def assert_no_answer(self, run, certificate, key):
        """A raw client with that certificate gets no byte of HTTP/2."""
        context = ssl.create_default_context(cafile=self.ours / "ca.pem")
        context.load_cert_chain(certificate, key)
        context.set_alpn_protocols(["h2"])
        host, port = run.grpc.split(":")
        with socket.create_connection((host, int(port)), timeout=30) as plain:
            try:
                with context.wrap_socket(plain, server_hostname=host) as connection:
                    self.assertEqual(connection.recv(1), b"")
            except (ssl.SSLError, ConnectionError):
                pass


class FlagTest(SecurityTest):
    def test_flags_and_files_that_are_wrong_end_each_program_before_it_starts(self):
        self.make_identities()
        ours, foreign = self.ours, self.certs("--site", "a", out="foreign")
        config = self.folder / "run.yaml"
        config.write_text("run_id: e2e\n")
        programs = [["causeway-coordinator", f"--config={config}", f"--state_dir={self.folder}/state",
                     "--listen=127.0.0.1:0", "--http=127.0.0.1:0"],
                    ["causeway-worker", "--site=a"], ["causewayctl", "status"]]
        whole = [f"--tls_ca={ours}/ca.pem", f"--tls_cert={ours}/a.pem"]
        cases = [([whole[0]], "missing: --tls_cert and --tls_key"),
                 ([*whole, "--tls_key=/no/such.key"], "--tls_key=/no/such.key: No such file"),
                 ([*whole, f"--tls_key={foreign}/a.key"], "is not the key of the certificate in"),
                 ([f"--tls_ca={config}", *self.tls("a")[1:]], f"--tls_ca={config}: expected certificates in PEM")]
        check_all(lambda program, flags, message: self.assert_ends(self.run_program(*program, *flags), BAD_INPUT,
                                                                   message),
                  [(program, *case) for program in programs for case in cases], 2)
        for program in programs[1:]:
            self.assert_ends(self.run_program(*program, "--token_file=/no/such"), BAD_INPUT, "--token_file=/no/such")
        bad = self.folder / "bad_tokens"
        bad.write_text("# site sha256\na alpha\n")
        self.assert_ends(self.run_program(*programs[0], f"--site_tokens={bad}"), BAD_INPUT, f"{bad}:2: ", "SHA-256")
        self.assertFalse((self.folder / "state" / "addresses.json").exists())


if __name__ == "__main__":
    unittest.main()
