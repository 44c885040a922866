"""Programs that reach the coordinator by an HTTP proxy (--use_proxy), or say why they do not."""

import base64
import pathlib
import socket
import subprocess
import threading

from harness import BAD_INPUT, DONE, UNREACHABLE, EndToEndTest, synthetic

DEPLOY_CERTS = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "certs"
VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy", "all_proxy", "HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "no_proxy",
             "NO_PROXY", "no_grpc_proxy")
NONE_SET = dict.fromkeys(VARIABLES, "")


def relay(source, target):
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
    except OSError:
        pass
    for one in (source, target):
        try:
            one.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


class Proxy:
    """Connects callers with what they ask for by CONNECT, if their credentials are these; keeps what was asked."""

    def __init__(self, credentials=None):
        self.expected = credentials and "Basic " + base64.b64encode(credentials.encode()).decode()
        self.asked = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                caller, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.answer, args=(caller,), daemon=True).start()

    def answer(self, caller):
        request = b""
        while b"\r\n\r\n" not in request:
            more = caller.recv(1)
            if not more:
                return
            request += more
        lines = request.decode().split("\r\n")
        headers = dict(line.split(":", 1) for line in lines[1:] if ":" in line)
        given = {name.lower(): value.strip() for name, value in headers.items()}.get("proxy-authorization")
        self.asked.append(lines[0].rsplit(" ", 1)[0])
        if self.expected and given != self.expected:
            caller.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            caller.close()
            return
        host, port = lines[0].split()[1].rsplit(":", 1)
        target = socket.create_connection((host.strip("[]"), int(port)))
        caller.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        threading.Thread(target=relay, args=(target, caller), daemon=True).start()
        relay(caller, target)


class ProxyTest(EndToEndTest):
    def setUp(self):
        self.run_ = self.new_run(synthetic({"a": 0.5}, [[10], [20]], run={"steps": 30}))

    def status(self, label, variables, *flags, grpc=None):
        program = self.run_.program(label, "causewayctl", "status", f"--coordinator={grpc or self.run_.grpc}", "--use_proxy",
                                    *flags, environment=NONE_SET | variables)
        return program.wait(), program

    def test_every_variable_is_used_by_worker_and_causewayctl(self):
        self.run_.start_coordinator()
        plain, secret = Proxy(), Proxy("me:p@ss:word")
        for name in VARIABLES[:7]:
            with self.subTest(name):
                before = len(plain.asked)
                code, program = self.status(name, {name: f"http://{plain.address}"})
                self.assertEqual(code, DONE, program.log())
                self.assertEqual(plain.asked[before:], [f"CONNECT {self.run_.grpc}"])
                self.assertIn(f"by the proxy {plain.address} of {name}", program.log())
        code, program = self.status("secret", {"HTTPS_PROXY": f"http://me:p%40ss:word@{secret.address}"})
        self.assertEqual(code, DONE, program.log())
        code, program = self.status("wrong", {"HTTPS_PROXY": f"http://me:other@{secret.address}"})
        self.assertEqual(code, UNREACHABLE, program.log())
        self.assertIn("407", program.log())
        self.assertNotIn("other", program.log())
        worker = self.run_.program("worker", "causeway-worker", f"--coordinator={self.run_.grpc}", "--site=a", "--use_proxy",
                                   environment=NONE_SET | {"ALL_PROXY": secret.address.join(["me:p%40ss:word@", ""])})
        self.assertEqual(worker.wait(), DONE, worker.log())
        self.assertGreater(len(secret.asked), 3, "its bulk connections, too")

    def test_what_cannot_be_used_is_refused(self):
        self.run_.start_coordinator()
        for label, variables, said in (("none", {}, "got none of them"),
                                       ("socks", {"ALL_PROXY": "socks5h://127.0.0.1:1"}, "cannot use one of socks5h://"),
                                       ("tls", {"https_proxy": "https://127.0.0.1:1"}, "no TLS to a proxy"),
                                       ("port", {"HTTP_PROXY": "http://127.0.0.1"}, "HTTP_PROXY: expected an HTTP proxy")):
            code, program = self.status(label, variables)
            self.assertEqual(code, BAD_INPUT, program.log())
            self.assertIn(said, program.log())
            worker = self.run_.program(f"worker-{label}", "causeway-worker", f"--coordinator={self.run_.grpc}", "--site=a",
                                       "--use_proxy", environment=NONE_SET | variables)
            self.assertEqual(worker.wait(), BAD_INPUT)
            self.assertIn(said, worker.log())

    def test_hosts_of_no_proxy_are_reached_directly_and_without_the_flag_all_are(self):
        self.run_.start_coordinator()
        nothing = {"HTTPS_PROXY": "http://127.0.0.1:1"}
        code, program = self.status("direct", nothing | {"NO_PROXY": "localhost,127.0.0.0/8"})
        self.assertEqual(code, DONE, program.log())
        self.assertIn("directly, because no_proxy has it", program.log())
        program = self.run_.program("no-flag", "causewayctl", "status", f"--coordinator={self.run_.grpc}",
                                    environment=NONE_SET | nothing)
        self.assertEqual(program.wait(), DONE, program.log())
        code, program = self.status("refused", nothing)
        self.assertEqual(code, UNREACHABLE, program.log())
        self.assertIn("by the proxy 127.0.0.1:1 of HTTPS_PROXY", program.log())

    def test_tls_behind_a_proxy_is_with_the_coordinator_by_its_name(self):
        certs = self.folder / "certs"
        subprocess.run([DEPLOY_CERTS, "--out", certs, "--coordinator", "localhost", "--site", "a", "--operator"], check=True,
                       capture_output=True)

        def tls(name):
            return f"--tls_ca={certs}/ca.pem", f"--tls_cert={certs}/{name}.pem", f"--tls_key={certs}/{name}.key"
        self.run_.start_coordinator(*tls("coordinator"))
        proxy = Proxy()
        port = self.run_.grpc.rsplit(":", 1)[1]
        code, program = self.status("tls", {"https_proxy": proxy.address}, *tls("operator"), grpc=f"localhost:{port}")
        self.assertEqual(code, DONE, program.log())
        self.assertEqual(proxy.asked, [f"CONNECT localhost:{port}"])
