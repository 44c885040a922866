"""All that a coordinator shows of a real run: /status, /timeline, /metrics, /events, probes, and gRPC's health."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time
import unittest
import urllib.error
import urllib.request

from harness import BAD_INPUT, BIN_DIR, DEADLINE_S, DONE, EndToEndTest, eventually, synthetic

SITES = ("asia", "eu", "us")
FRAGMENTS = 2
MAX_STREAMS = 32
LEASE_MS = 3000


def config_of(sync=None, membership=None):
    return synthetic({site: 0.5 for site in SITES}, [[3000]] * FRAGMENTS,
                     model={"step_ms": 5, "gradient": {"kind": "noise"}},
                     sync=sync or {"sync_every": 10, "num_fragments": FRAGMENTS},
                     membership={"lease_ms": LEASE_MS, **(membership or {})})


def metrics_of(text):
    """{(name, {label: value} as frozenset): number}."""
    series = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, labels, number = re.fullmatch(r'(\w+)(?:\{(.*)\})? (\S+)', line).groups()
            series[name, frozenset(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels or ""))] = float(number)
    return series


def events_of(stream):
    """(event, data) of each event of an open /events."""
    event = None
    for line in stream:
        line = line.decode().rstrip("\n")
        if line.startswith("event: "):
            event = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield event, json.loads(line.removeprefix("data: "))


class StatusTest(EndToEndTest):
    def start(self, config=None):
        self.live = self.new_run(config or config_of())
        self.live.start_coordinator()
        self.live.start_workers(*SITES)
        self.live.await_rounds(3)

    def open(self, path, timeout=DEADLINE_S):
        return urllib.request.urlopen(f"http://{self.live.http}{path}", timeout=timeout)

    def get(self, path):
        """(status code, headers, text)."""
        try:
            with self.open(path) as answer:
                return answer.status, answer.headers, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, error.read().decode()

    def never_read(self, path):
        """A reader that asks and does not read, until the test ends."""
        host, port = self.live.http.rsplit(":", 1)
        reader = socket.create_connection((host, int(port)))
        self.addCleanup(reader.close)
        reader.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        return reader

    def streams(self):
        return metrics_of(self.get("/metrics")[2])["causeway_http_event_streams", frozenset()]

    def test_status_timeline_and_metrics_tell_of_the_same_run(self):
        self.start()
        self.live.control("pause")  # so that nothing moves between two looks

        def settled():
            before, metrics, after = self.live.status(), metrics_of(self.get("/metrics")[2]), self.live.status()
            still = (before["fragments"], [site["step"] for site in before["sites"]], before["state"]) == (
                after["fragments"], [site["step"] for site in after["sites"]], "paused")
            return still and (after, metrics)

        time.sleep(1.5)  # sites report each second
        status, metrics = eventually(settled, "the run stands still")
        self.assertEqual([site["name"] for site in status["sites"]], list(SITES))
        for site in status["sites"]:
            label = frozenset({("site", site["name"])})
            for field, name in (("up_bytes", "up_bytes_total"), ("down_bytes", "down_bytes_total"),
                                ("step", "step"),
                                ("residual_norm", "residual_norm"), ("staleness", "staleness_rounds"),
                                ("contributing", "contributing"), ("merged_weight", "merged_weight_ratio")):
                self.assertAlmostEqual(metrics[f"causeway_site_{name}", label], site[field], msg=name)
            self.assertEqual(metrics["causeway_site_state", label | {("state", "training")}], 1)
            self.assertTrue(site["contributing"], site["contributing_reason"])
            self.assertGreater(site["up_bytes"], 0)
            self.assertGreater(site["up_mean_bytes_per_s"], 0)
            self.assertGreaterEqual(site["up_peak_bytes_per_s"], site["up_mean_bytes_per_s"] / 2)
            self.assertIsNone(site["missed"])
            self.assertEqual(site["digests_matching"], FRAGMENTS)
            merged = site["last_merged"]
            self.assertLessEqual(merged["version"], max(fragment["version"] for fragment in status["fragments"]))
            self.assertAlmostEqual(merged["unix_ms"] / 1000, time.time(), delta=DEADLINE_S)
        for fragment in status["fragments"]:
            label = frozenset({("fragment", str(fragment["id"]))})
            self.assertEqual(metrics["causeway_fragment_version", label], fragment["version"])
        self.assertEqual(status["contributing_sites"], len(SITES))
        self.assertEqual(status["float32_every_step_bytes"],
                         8 * status["parameters"] * sum(site["step"] for site in status["sites"]))
        self.assertIn("run_paused", [alarm["name"] for alarm in status["alarms"]])
        self.assertEqual(metrics["causeway_alarm", frozenset({("alarm", "run_paused"), ("severity", "warning")})], 1)
        self.assertGreater(status["disk"]["free_bytes"], 0)
        self.assertIsNone(status["certificate"])

        timeline = json.loads(self.get("/timeline")[2])
        self.assertEqual(timeline["sites"], list(SITES))
        decided = [a_round for a_round in timeline["rounds"] if a_round["decided_unix_ms"]]
        self.assertEqual(len(decided), sum(fragment["version"] for fragment in status["fragments"]))
        self.assertEqual(metrics["causeway_rounds_total", frozenset()], len(decided))
        self.assertEqual(metrics["causeway_round_seconds_count", frozenset()], len(decided))
        self.assertEqual(metrics["causeway_merge_seconds_count", frozenset()], len(decided))
        for a_round in decided[:-FRAGMENTS]:
            self.assertEqual(sorted(index for index, _, _ in a_round["arrived"]), [0, 1, 2])
            self.assertEqual(sorted(index for index, _ in a_round["taken"]), [0, 1, 2])
            for _, begun, arrived in a_round["arrived"]:
                self.assertLessEqual(a_round["first_unix_ms"], begun)
                self.assertLessEqual(begun, arrived)
                self.assertLessEqual(arrived, a_round["decided_unix_ms"])
            self.assertLessEqual(a_round["decided_unix_ms"], a_round["merged_unix_ms"])
            self.assertEqual(a_round["reason"], "all 3 active sites have contributed")
        self.live.control("resume")
        eventually(lambda: "run_paused" not in str(self.live.status()["alarms"]), "no alarm after resume")

    def test_a_dead_site_is_silent_then_gone_and_the_status_says_who_was_merged_without_it(self):
        self.start(config_of(membership={"min_quorum": 2}))
        self.live.workers["asia"].send(signal.SIGKILL)
        alarm = eventually(lambda: next((a for a in self.live.status()["alarms"] if a["site"]), None), "an alarm")
        self.assertEqual((alarm["name"], alarm["site"], alarm["severity"]), ("site_silent", "asia", "warning"))
        site = self.live.site("asia")
        if site["state"] == "training":
            self.assertTrue(site["contributing"], "rounds wait for its lease")
            self.assertLessEqual(site["lease_s_left"], LEASE_MS / 1000)
        eventually(lambda: self.live.site("asia")["state"] == "gone", "asia is gone")
        self.live.await_rounds(self.live.newest() + 2)
        gone = self.live.site("asia")
        alarms = self.live.status()["alarms"]
        self.assertEqual([(alarm["name"], alarm["site"]) for alarm in alarms if alarm["site"]], [("site_gone", "asia")])
        self.assertFalse(gone["contributing"])
        self.assertIn("not heard of", gone["contributing_reason"])
        self.assertIsNone(gone["lease_s_left"])
        self.assertEqual(self.live.status()["contributing_sites"], 2)
        self.assertGreater(self.live.site("eu")["last_merged"]["version"], gone["last_merged"]["version"])
        metrics = self.get("/metrics")[2]
        self.assertIn('causeway_site_up_bytes_total{site="asia"}', metrics)
        self.assertNotIn('causeway_site_slack_seconds{site="asia"}', metrics)
        self.assertIn('causeway_alarm{alarm="site_gone",severity="warning"} 1', metrics)
        self.live.control("drain", "--site=asia")
        eventually(lambda: "asia" not in str(self.live.status()["alarms"]), "asia is no longer expected")
        self.live.workers["us"].send(signal.SIGKILL)
        alarms = eventually(lambda: [a for a in self.live.status()["alarms"] if a["name"] == "below_quorum"],
                            "below quorum")
        self.assertEqual(alarms[0]["severity"], "critical")
        self.assertEqual(self.live.status()["state"], "paused")

    def test_a_site_that_rounds_went_without_is_named_with_the_reason(self):
        quorum = {"mode": "quorum", "sync_every": 10, "num_fragments": FRAGMENTS, "fragment_sync_delay": 2}
        self.start(config_of(sync=quorum, membership={"min_quorum": 2, "grace_ms": 20, "max_staleness": 4,
                                                      "lease_ms": 20000}))
        stopped = self.live.workers["eu"]
        stopped.send(signal.SIGSTOP)
        try:
            self.live.await_rounds(self.live.newest() + 4)
            site = self.live.site("eu")
        finally:
            stopped.send(signal.SIGCONT)
        self.assertTrue(site["contributing"], "it is in the run, and rounds would take it")
        newest = max(fragment["version"] for fragment in self.live.status()["fragments"])
        self.assertLess(site["last_merged"]["version"], newest)
        self.assertGreater(site["missed"]["version"], site["last_merged"]["version"])
        self.assertRegex(site["missed"]["reason"], "when the round closed: quorum of 2")
        self.assertIsNone(self.live.site("us")["lease_s_left"])

    def test_how_a_site_updates_its_optimizers_state_is_on_the_status_and_in_its_log(self):
        config = config_of()
        config["model"]["tensors"][0]["shape"] = [1100, 1000]
        config["inner"]["optimizer"] = "adamw"
        config["offload"] = {"k": 2, "subgroup": 1000}  # of a device that these workers do not have
        self.start(config)
        offload = eventually(lambda: self.live.site("eu").get("offload"), "eu tells how it updates")
        reason = "there is no device; the config's k is 2"
        self.assertEqual((offload["k"], offload["subgroup"], offload["reason"]), ("cpu", 1000, reason))
        self.assertGreater(offload["update_s"], 0)
        self.assertGreater(offload["predicted_update_s"], 0)
        self.assertRegex(self.live.workers["eu"].log(),
                         rf"optimizer state of 1103000 parameters, \d+ threads: k cpu \({reason}\), predicted [\d.]+ ms")

    def test_events_bring_status_and_timeline_and_the_33rd_stream_is_told_to_poll(self):
        self.start()
        with contextlib.ExitStack() as stack:
            first = stack.enter_context(self.open("/events"))
            self.assertTrue(first.headers["Content-Type"].startswith("text/event-stream"))
            seen = {}
            for event, data in events_of(first):
                seen.setdefault(event, []).append(data["unix_ms"])
                if len(seen.get("status", [])) >= 4 and len(seen.get("timeline", [])) >= 2:
                    break
            self.assertEqual(seen["status"], sorted(set(seen["status"])), "each is newer than the one before")
            for _ in range(MAX_STREAMS - 1):
                stack.enter_context(self.open("/events"))
            eventually(lambda: self.streams() == MAX_STREAMS, "all streams are open")
            code, headers, _ = self.get("/events")
            self.assertEqual((code, headers["Retry-After"]), (503, "2"))
            self.assertEqual(self.get("/status")[0], 200)
        eventually(lambda: self.streams() == 0, "the streams are closed")
        with self.open("/events") as again:
            self.assertEqual(next(events_of(again))[0], "status")

    def test_probes_answer_while_readers_do_not_read_and_the_run_goes_on(self):
        self.start()
        for _ in range(20):
            self.never_read("/events")
            self.never_read("/status")
        eventually(lambda: self.streams() == 20, "the readers are there")
        rounds = self.live.rounds()
        for _ in range(100):  # how soon: tests/bench/run status
            self.assertEqual(self.get("/healthz")[::2], (200, "ok\n"))
        self.live.await_rounds(rounds + 3)
        self.assertEqual(self.get("/readyz")[0], 200)

    def test_the_page_is_served_whole_and_may_load_nothing_from_elsewhere(self):
        self.start()
        code, headers, page = self.get("/")
        self.assertEqual(code, 200)
        self.assertIn("<html", page)
        self.assertIn("default-src 'none'", headers["Content-Security-Policy"])

    def test_a_report_has_the_figures_of_the_status_and_a_path_that_cannot_be_written_is_named(self):
        self.start()
        out, model, sample = self.live.folder / "run.html", self.live.folder / "model", self.live.folder / "sample"
        sample.write_text("what <it> wrote")
        flags = (f"--coordinator={self.live.grpc}", f"--model={model}", f"--sample={sample}")
        self.assertEqual(self.live.program("report", "causewayctl", "report", f"--out={out}", *flags).wait(), DONE)
        html = out.read_text()
        for site in self.live.status()["sites"]:
            self.assertIn(f"<td>{site['name']}</td>", html)
        self.assertIn("what &lt;it&gt; wrote", html)
        self.assertIn(str(model), html)
        for path, words in (("", "report: expected --out=FILE.html"), ("/no/such/run.html", "--out: ")):
            refused = self.live.program("refused", "causewayctl", "report", f"--out={path}", *flags)
            self.assertEqual(refused.wait(), BAD_INPUT, refused.log())
            self.assertIn(words, refused.log())
            self.assertIn(path, refused.log())

    def test_watch_and_follow_go_on_over_restarts_of_the_coordinator(self):
        self.start()
        watch = self.live.program("watch", "causewayctl", "status", "--watch", f"--coordinator={self.live.grpc}")
        follow = self.live.program("follow", "causewayctl", "history", "--follow", "--kind=start", "--since=1h",
                                   f"--coordinator={self.live.grpc}")
        eventually(lambda: "run " in watch.output(), "a status")
        eventually(lambda: "epoch 1" in follow.output(), "the first life's event")
        for restart in range(int(os.environ.get("CAUSEWAY_RESTARTS", "2"))):
            self.live.coordinator.kill()
            eventually(lambda: re.search(r"no answer: [^\n]+\n$", watch.output()), "no answer")
            self.live.start_coordinator()
            eventually(lambda: re.search(r"\d  (OK|WARNING) - run [^\n]+\n$", watch.output()), "the status again")
            eventually(lambda restart=restart: f"epoch {restart + 2}" in follow.output(), "the next life's event")
        self.assertNotIn("\x1b", watch.output())
        lines = [line.split("  ", 1)[1] for line in watch.output().splitlines()]
        self.assertFalse([line for line, after in zip(lines, lines[1:]) if line == after], "a line comes where it is another")
        for program in (watch, follow):
            self.assertTrue(program.running())
            self.assertEqual(program.terminate(), DONE, program.log())

    def test_check_is_a_line_and_an_exit_status_for_a_monitor(self):
        self.start()
        checked = self.live.program("check", "causewayctl", "status", "--check", f"--coordinator={self.live.grpc}")
        self.assertIn(checked.wait(), (0, 1))
        self.assertRegex(checked.output(), r"^(OK|WARNING) - run \w+: .*\d sites? train.*\| sites=\d\n$")
        self.live.control("pause")
        eventually(lambda: self.live.status()["alarms"], "the alarm")
        paused = self.live.program("check", "causewayctl", "status", f"--coordinator={self.live.grpc}", "--check")
        self.assertEqual(paused.wait(), 1)
        self.assertIn("run_paused", paused.output())
        self.live.coordinator.kill()
        unknown = self.live.program("check", "causewayctl", "status", "--check", f"--coordinator={self.live.grpc}")
        self.assertEqual(unknown.wait(), 3)
        self.assertTrue(unknown.output().startswith("UNKNOWN - "), unknown.output())

    def test_history_takes_a_site_and_a_time(self):
        self.start()

        def events(*flags, code=DONE):
            asked = self.live.program("history", "causewayctl", "history", "--json", f"--coordinator={self.live.grpc}",
                                      *flags)
            self.assertEqual(asked.wait(), code, asked.log())
            return asked.lines() if code == DONE else asked.log()

        site = self.live.status()["sites"][0]["name"]
        self.assertEqual({site}, {event["site"] for event in events(f"--site={site}")})
        self.assertEqual([], events("--since=2999-01-01"))
        self.assertEqual(len(events("--since=1d", "--kind=join")), len(events("--kind=join")))
        self.assertIn("--since: expected a date", events("--since=yesterday", code=BAD_INPUT))
        for flag, there in (("--kind=commands", "join"), ("--site=absent", site)):
            asked = self.live.program("none", "causewayctl", "history", f"--coordinator={self.live.grpc}", flag)
            self.assertEqual(asked.wait(), DONE, asked.log())
            self.assertRegex(asked.log(), rf"note: no event of {flag}; there are: .*\b{there}\b")

    def test_grpc_health_and_reflection_answer(self):
        self.start()
        for service in ("", "causeway.v1.Coordinator"):
            answer = json.loads(subprocess.run([BIN_DIR / "tests" / "e2e" / "grpc_probe", self.live.grpc, service],
                                               check=True, capture_output=True, timeout=DEADLINE_S).stdout)
            self.assertTrue(answer["serving"], service)
            self.assertIn("causeway.v1.Coordinator", answer["services"])


if __name__ == "__main__":
    unittest.main()
