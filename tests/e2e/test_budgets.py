"""Strangers and sites that take too much of a coordinator: its memory stays, and the run goes on."""

import contextlib
import hashlib
import pathlib
import re
import socket
import time
import unittest
import urllib.request

from harness import DONE, EndToEndTest, synthetic

MOST_OVER_IDLE_MB = 64
FIRST_MESSAGE_S = 10


class BudgetsTest(EndToEndTest):
    def start(self, *flags, worker_flags=()):
        run = self.new_run(synthetic({"a": 0.5}, [[1000]], model={"step_ms": 5}))
        run.start_coordinator(*flags)
        run.start_worker("a", *worker_flags)
        run.await_rounds(3)
        return run

    def memory_mb(self, run, row):
        status = pathlib.Path(f"/proc/{run.coordinator.process.pid}/status").read_text()
        return int(re.search(rf"{row}:\s+(\d+) kB", status)[1]) / 1024

    def flood(self, run, method, seconds, **options):
        """The flooding program tells of its calls; the run goes on meanwhile."""
        flags = [f"--{name}={value}" for name, value in options.items()]
        flood = self.program(run.folder, f"flood-{method}", "tests/e2e/grpc_flood", run.grpc, method,
                             f"--seconds={seconds}", *flags)
        before = run.rounds()
        self.assertEqual(flood.wait(), DONE, flood.log())
        self.assertGreater(run.rounds(), before, "the run goes on")
        return flood.lines()[0]

    def test_strangers_messages_are_not_read_whatever_they_call(self):
        tokens, token = self.folder / "tokens", self.folder / "a.token"
        tokens.write_text(f"a {hashlib.sha256(b'secret').hexdigest()}\n")
        token.write_text("secret")
        run = self.start(f"--site_tokens={tokens}", worker_flags=[f"--token_file={token}"])
        idle = self.memory_mb(run, "VmRSS")
        for method in ("Control", "Upload", "Download", "GetHistory", "Show"):
            told = self.flood(run, method, 3, connections=3, streams=64, messages=1, bytes=8_000_000)
            self.assertEqual(told["ended"], told["opened"], told)
            self.assertIn("no such call" if method == "Show" else "asks for a token", told["error"])
        self.assertLess(self.memory_mb(run, "VmHWM") - idle, MOST_OVER_IDLE_MB)
        self.assertLess(len(run.coordinator.log().splitlines()), 1_000, "strangers do not fill the log")
        run.stop_all()

    def test_calls_that_say_nothing_are_ended_and_wait_beyond_a_connections_streams(self):
        run = self.start()
        idle = self.memory_mb(run, "VmRSS")
        told = self.flood(run, "Upload", FIRST_MESSAGE_S + 3, connections=20, streams=500, messages=0)
        self.assertLess(told["ended"], told["opened"], "those beyond have their time when others have gone")
        self.assertIn("expected the call's first message within 10000 ms", told["error"])
        self.assertLess(self.memory_mb(run, "VmHWM") - idle, MOST_OVER_IDLE_MB)
        run.stop_all()

    def test_probes_are_answered_while_slow_senders_hold_every_thread_of_the_status_port(self):
        run = self.start("--health=127.0.0.1:0")
        health = re.search(r"probes at (http://\S+/)healthz", run.coordinator.log())[1]
        host, port = run.http.split(":")
        senders = []
        for _ in range(200):
            sender = socket.create_connection((host, int(port)), timeout=10)
            self.addCleanup(sender.close)
            sender.send(b"GET /status HTTP/1.1\r\nX: ")
            senders.append(sender)
        for _ in range(5):
            for sender in senders:
                with contextlib.suppress(OSError):  # those beyond the budget were refused at once
                    sender.send(b"x")
            for path in ("healthz", "readyz"):
                with urllib.request.urlopen(health + path, timeout=1) as answer:
                    self.assertEqual((answer.status, answer.read()), (200, b"ok\n"))
            with self.assertRaises(OSError, msg="the status port has a thread free: too few senders to show anything"):
                urllib.request.urlopen(f"http://{run.http}/healthz", timeout=0.5)
        with self.assertRaises(urllib.error.HTTPError):
            urllib.request.urlopen(health + "status", timeout=1)
        for sender in senders:
            sender.close()
        run.stop_all()

    def test_a_question_of_megabytes_is_refused(self):
        run = self.start()
        told = self.flood(run, "GetHistory", 2, streams=4, messages=1, bytes=1_000_000)
        self.assertEqual(told["ended"], 4)
        self.assertIn("expected a message of at most 65536 bytes, got 1000000", told["error"])
        run.stop_all()

    def test_questions_beyond_their_budget_are_refused_and_named(self):
        run = self.start()
        told = self.flood(run, "GetStatus", 3, streams=2_000, messages=1)
        self.assertGreater(told["ended"], 1_700, "the others' answers wait to be read")
        self.assertIn("asks more than 10 questions a second", run.coordinator.log())
        for command in ("pause", "resume"):  # no questions
            run.control(command)
        run.stop_all()


if __name__ == "__main__":
    unittest.main()
