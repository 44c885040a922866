"""Strangers and sites that take too much of a coordinator: its memory stays, and the run goes on."""

import contextlib
import hashlib
import pathlib
import re
import socket
import time
import unittest
import urllib.request

from harness import DONE, MEMORY_IS_OURS, EndToEndTest, eventually, synthetic
from hostile_messages import SITE, Messages

MOST_OVER_IDLE_MB = 64
FIRST_MESSAGE_S = 10
MOST_NAMES = 1_024


class BudgetsTest(EndToEndTest):
    def start(self, *flags, worker_flags=()):
        run = self.new_run(synthetic({"a": 0.5}, [[1000]], model={"step_ms": 5}))
        run.start_coordinator(*flags)
        run.start_worker("a", *worker_flags)
        run.await_rounds(3)
        return run

    def assert_memory_stays(self, run, idle):
        if MEMORY_IS_OURS:
            self.assertLess(self.memory_mb(run, "VmHWM") - idle, MOST_OVER_IDLE_MB)

    def memory_mb(self, run, row):
        status = pathlib.Path(f"/proc/{run.coordinator.process.pid}/status").read_text()
        return int(re.search(rf"{row}:\s+(\d+) kB", status)[1]) / 1024

    def flood(self, run, method, seconds, **options):
        """The flooding program tells of its calls, with the commonest words that ended them as `error`; the run goes on
        meanwhile."""
        flags = [f"--{name}={','.join(map(str, value)) if isinstance(value, list) else value}"
                 for name, value in options.items()]
        flood = self.program(run.folder, f"flood-{method}", "tests/e2e/grpc_flood", run.grpc, method,
                             f"--seconds={seconds}", "--early=true", *flags)
        before = run.rounds()
        self.assertEqual(flood.wait(seconds + 60), DONE, flood.log())
        run.await_rounds(before + 1)  # the run goes on
        told = flood.lines()[0]
        return told | {"error": max(told["errors"], key=told["errors"].get)}

    def test_strangers_messages_are_not_read_whatever_they_call(self):
        tokens, token = self.folder / "tokens", self.folder / "a.token"
        tokens.write_text(f"a {hashlib.sha256(b'secret').hexdigest()}\n")
        token.write_text("secret")
        run = self.start(f"--site_tokens={tokens}", worker_flags=[f"--token_file={token}"])
        idle = self.memory_mb(run, "VmRSS")
        for method in ("Control", "Upload", "Download", "GetHistory", "Show"):
            told = self.flood(run, method, 20, connections=3, streams=64, messages=1, bytes=8_000_000)
            self.assertEqual(told["ended"], told["opened"], told)
            self.assertIn("no such call" if method == "Show" else "asks for a token", told["error"])
        self.assert_memory_stays(run, idle)
        self.assertLess(len(run.coordinator.log().splitlines()), 1_000, "strangers do not fill the log")
        run.stop_all()

    def test_calls_that_say_nothing_are_ended_and_wait_beyond_a_connections_streams(self):
        run = self.start()
        idle = self.memory_mb(run, "VmRSS")
        told = self.flood(run, "Upload", FIRST_MESSAGE_S + 3, connections=20, streams=500, messages=0)
        self.assertLess(told["ended"], told["opened"], "those beyond have their time when others have gone")
        self.assertIn("expected the call's first message within 10000 ms", told["error"])
        self.assert_memory_stays(run, idle)
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
        told = self.flood(run, "GetHistory", 20, streams=4, messages=1, bytes=1_000_000)
        self.assertEqual(told["ended"], 4)
        self.assertIn("expected a message of at most 65536 bytes, got 1000000", told["error"])
        run.stop_all()

    def test_messages_of_a_site_beyond_a_limit_end_its_call_and_are_named(self):
        run = self.start()
        messages = Messages(run.folder, "e2e", [("t0", [1000])])
        idle = self.memory_mb(run, "VmRSS")
        text, join = "x" * 4_000_000, messages.join()
        for name, message, told_of in (
                ("leave", f'leave {{ reason: "{text}" }}', "leave.reason: expected at most 4096 bytes, got 4000000"),
                ("words", f'progress {{ in_flight: "{text}" }}', "progress.in_flight[0]: expected at most 512 bytes"),
                ("versions", f"progress {{ eval_versions: [{','.join(['1'] * 1_500_000)}] }}",
                 "progress.eval_versions[1024]: expected at most 1024, got more"),
                ("fragments", "progress { " + "fragments { fragment: 1 } " * 200_000 + "}",
                 "progress.fragments[1024]: expected at most 1024, got more")):
            told = self.flood(run, "Control", 20, first=join, message=messages.site(name, message), reads="true")
            self.assertIn(told_of, told["error"])
        upload = messages.encode("upload", "UploadMessage", f"header {{ {messages.context()} tokens: {1 << 62} steps: 1 }}")
        self.assertEqual(self.flood(run, "Upload", 20, first=upload, messages=0, reads="true")["ended"], 1)
        for name, changed in (("text", {"more": f'software_version: "{text}"'}),
                              ("huge", {"manifest": messages.manifest_text([("w", [1 << 20, 1 << 20])])})):
            told = self.flood(run, "Control", 20, first=messages.join(name=name, **changed), messages=0, reads="true")
            self.assertEqual(told["ended"], 1, told)
        self.assertIn("the model differs from the run's at tensor 0", run.coordinator.log())
        self.assert_memory_stays(run, idle)
        self.assertNotIn(SITE, [site["name"] for site in run.status()["sites"] if site["state"] == "training"])
        run.stop_all()

    def test_a_site_that_owes_bytes_of_manifests_is_refused_unread(self):
        tokens, token = self.folder / "tokens", self.folder / "a.token"
        tokens.write_text("".join(f"{name} {hashlib.sha256(name.encode()).hexdigest()}\n" for name in ("a", SITE)))
        token.write_text("a")
        run = self.start(f"--site_tokens={tokens}", worker_flags=[f"--token_file={token}"])
        messages = Messages(run.folder, "e2e", [("t0", [1000])])
        manifest = messages.manifest_text((f"{'n' * 380}{i}", [1]) for i in range(20_000))
        self.flood(run, "Control", 1, first=messages.join(), token=SITE, message=messages.site("bye", "leave { }"),
                   reads="true")
        told = self.flood(run, "Control", 6, first=messages.join(name="long", manifest=manifest), messages=0, streams=4,
                          token=SITE, reads="true", again="true")
        self.assertIn("sends more than 8388608 bytes of manifests a second", told["error"])
        self.assertIn(("site_noisy", SITE), [(alarm["name"], alarm["site"]) for alarm in run.status()["alarms"]])
        run.stop_all()

    def test_a_new_site_trains_after_as_many_names_as_a_run_has_have_come_and_gone(self):
        run = self.start()
        messages = Messages(run.folder, "e2e", [("t0", [1000])])
        bye = messages.site("bye", 'leave { reason: "bye" }')
        told = self.flood(run, "Control", 150, streams=MOST_NAMES, reads="true", message=bye,
                          first=[messages.join(f"name-{i}") for i in range(MOST_NAMES)])
        self.assertEqual(told["ended"], MOST_NAMES, told)
        run.start_worker("b")
        eventually(lambda: run.site("b").get("state") == "training", "b trains")
        run.stop_all()

    def test_questions_beyond_their_budget_are_refused_and_named(self):
        run = self.start()
        told = self.flood(run, "GetStatus", 6, streams=2_000, messages=1)
        self.assertGreater(told["ended"], 1_700, "the others' answers wait to be read")
        self.assertIn("asks more than 10 questions a second", run.coordinator.log())
        for command in ("pause", "resume"):  # no questions
            run.control(command)
        run.stop_all()


if __name__ == "__main__":
    unittest.main()
