"""The commands of deploy/compose.yaml as processes of this machine: mutual TLS, a small real model, two demo sites.

Probes, health checks, the names in rules and dashboard, and Prometheus where it is installed meet the real programs
here; containers are for tests/deploy/compose_lab.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

import yaml

import deploy_files
import promql
from deploy_files import DEPLOY, ROOT, compose

sys.path.insert(0, str(DEPLOY))
from quickstart_lib.stack import last_words  # noqa: E402

BINARIES = os.environ.get("CAUSEWAY_BIN_DIR")
SITES = ("eu", "us")
TIMEOUT_S = 60  # for what takes seconds
ENOUGH_ROUNDS = 8  # twice each fragment: by then every series has values
STOP_S = 20
POLL_S = 0.1

_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def eventually(condition, what, timeout_s=TIMEOUT_S):
    deadline = time.monotonic() + timeout_s
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        time.sleep(POLL_S)
    return result


class Run:
    """The compose file's coordinator and sites; what their containers mount is under `folder`."""

    def __init__(self, folder):
        self.folder = folder
        self.services = compose("compose.yaml", {})["services"]
        self.processes = {}
        self._write_config()
        sites = [word for site in SITES for word in ("--site", site, "--token", site)]
        subprocess.run([DEPLOY / "certs", "--out", folder / "certs", "--coordinator", "coordinator", *sites], check=True,
                       capture_output=True)
        texts = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
        (folder / "corpus.txt").write_text("".join(path.read_text() for path in texts))

    def _write_config(self):
        config = yaml.safe_load((DEPLOY / "compose" / "run.yaml").read_text())
        config["model"].update(hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=2,
                               num_key_value_heads=2, max_position_embeddings=32)
        config["membership"]["min_sites"] = len(SITES)
        config["sync"]["sync_every"] = 8
        config["eval"]["every_rounds"] = config["checkpoint"]["every_rounds"] = 1
        config["checkpoint"]["min_free_bytes"] = 0
        (self.folder / "run.yaml").write_text(yaml.safe_dump(config))

    def start(self, name, mounts, **instead):
        """Starts a service's command with the mounts' targets replaced by their folders, and the flags of `instead`."""
        program, *arguments = map(str, deploy_files.compose_command(self.services[name]))
        words = []
        for argument in arguments:
            flag, _, value = argument.partition("=")
            for target, source in mounts.items():
                if value == target or value.startswith(target + "/"):
                    value = str(source) + value[len(target):]
            words.append(f"{flag}={instead.get(flag[2:], value)}")
        log = self.folder / f"{name}.log"
        with open(log, "wb") as output:
            self.processes[name] = subprocess.Popen([pathlib.Path(BINARIES) / program, *words], stderr=output,
                                                    env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})

    def start_all(self):
        state = self.folder / "state"
        certs = {"/etc/causeway/certs": self.folder / "certs"}
        config = {"/etc/causeway/run.yaml": self.folder / "run.yaml"}
        self.start("coordinator", {**certs, **config, "/var/lib/causeway": state}, listen="127.0.0.1:0",
                   http="127.0.0.1:0")
        eventually((state / "addresses.json").exists, self.log("coordinator"))
        self.addresses = json.loads((state / "addresses.json").read_text())
        for site in SITES:
            self.start(site, {**certs, "/data": self.folder, "/var/lib/causeway": self.folder / f"checkpoints-{site}"},
                       coordinator=self.addresses["grpc"])

    def log(self, name):
        path = self.folder / f"{name}.log"
        return "\n".join(last_words(path)) if path.exists() else ""

    def get(self, path):
        """(status code, body)"""
        try:
            with _direct.open(f"http://{self.addresses['http']}{path}", timeout=10) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name):
        """The sum of its series."""
        found = re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", self.get("/metrics")[1], re.MULTILINE)
        return sum(map(float, found)) if found else None

    def stop(self):
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()


@unittest.skipUnless(BINARIES, "CAUSEWAY_BIN_DIR names no build")
class Live(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.run_ = Run(cls.folder)
        cls.addClassCleanup(cls.run_.stop)
        cls.run_.start_all()
        eventually(lambda: (cls.run_.metric("causeway_rounds_total") or 0) >= ENOUGH_ROUNDS
                   and cls.run_.metric("causeway_eval_loss") is not None, "rounds of the demo's sites")
        cls.metrics = cls.run_.get("/metrics")[1]
        cls.series = {}
        for name, labels in re.findall(r"^(\w+)(\{.*\})? \S+$", cls.metrics, re.MULTILINE):
            cls.series.setdefault(name, []).append(dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels)))

    def health(self, program, *arguments, **environment):
        done = subprocess.run([DEPLOY / "health" / program, *map(str, arguments)], capture_output=True, text=True,
                              env={**os.environ, **environment})
        return done.returncode, done.stdout

    def worker_health(self, site, **environment):
        environment["CAUSEWAY_WORKER_PID"] = str(self.run_.processes[site].pid)
        return self.health("causeway-worker-health", self.folder / f"checkpoints-{site}", **environment)


class Probes(Live):
    def test_every_path_that_a_manifest_probes_is_answered(self):
        text = "".join(path.read_text() for path in (DEPLOY / "k8s").glob("*.yaml"))
        paths = set(re.findall(r"httpGet: \{path: ([^,]+),", text)) | {"/metrics"}
        self.assertEqual({"/healthz", "/readyz", "/metrics"}, paths)
        for path in paths:
            self.assertEqual(200, self.run_.get(path)[0], path)
        self.assertEqual(404, self.run_.get("/nowhere")[0])

    def test_the_coordinators_health_check_says_what_is_wrong(self):
        port = self.run_.addresses["http"].rpartition(":")[2]
        self.assertEqual((0, ""), self.health("causeway-healthz", port))
        self.assertEqual((0, ""), self.health("causeway-healthz", port, "/readyz"))
        code, said = self.health("causeway-healthz", port, "/nowhere")
        self.assertEqual(1, code)
        self.assertIn("404", said)
        self.assertEqual((1, "nothing listens on port 1\n"), self.health("causeway-healthz", 1))

    def test_the_workers_health_check_sees_it_stop_and_its_checkpoints_get_old(self):
        self.assertEqual((0, ""), self.worker_health("us"))
        eventually(lambda: list((self.folder / "checkpoints-us").glob("[0-9]*")), "a checkpoint")
        process = self.run_.processes["us"]
        process.send_signal(signal.SIGSTOP)
        try:
            stopped = (1, "the worker is stopped or dead (state T)\n")
            eventually(lambda: self.worker_health("us") == stopped, "it is stopped")
        finally:
            process.send_signal(signal.SIGCONT)
        self.assertEqual((0, ""), self.worker_health("us", CAUSEWAY_CHECKPOINT_MAX_AGE_S="0"))
        code, said = self.health("causeway-worker-health", self.folder, CAUSEWAY_WORKER_PID=str(os.getpid()))
        self.assertEqual(1, code)
        self.assertIn("not causeway-worker", said)

    def test_a_worker_that_is_not_process_1_is_found_by_its_program_and_its_directory(self):
        for site in ("eu", "us"):
            self.assertEqual((0, ""), self.health("causeway-worker-health", self.folder / f"checkpoints-{site}"))

    def test_a_worker_whose_newest_checkpoint_is_old_is_not_healthy(self):
        old = self.folder / "old" / "000007" / "sync.json"
        old.parent.mkdir(parents=True)
        (self.folder / "old" / "202611").mkdir()  # another's, and new
        old.touch()
        os.utime(old, (time.time() - 100, time.time() - 100))
        pid = str(self.run_.processes["eu"].pid)
        eventually(lambda: self.health("causeway-worker-health", self.folder / "old", CAUSEWAY_WORKER_PID=pid,
                                       CAUSEWAY_CHECKPOINT_MAX_AGE_S="1")[0] == 1, "it is called old")
        self.assertEqual(0, self.health("causeway-worker-health", self.folder / "old", CAUSEWAY_WORKER_PID=pid)[0])


class Names(Live):
    OPTIONAL = {"causeway_alarm", "up"}  # the one need not be there while no alarm is, the other is Prometheus's own

    def expressions(self):
        return promql.dashboard_expressions() + [(rule.get("alert") or rule["record"], rule["expr"])
                                                 for rule in promql.rules()]

    def test_every_metric_in_rules_and_dashboard_is_one_that_the_coordinator_has(self):
        for where, expression in self.expressions():
            asked = {name for name in promql.metrics(expression) if ":" not in name} - self.OPTIONAL
            self.assertLessEqual(asked, set(self.series), where)

    def test_every_label_that_is_chosen_or_shown_is_one_of_its_metric(self):
        for panel in promql.panels():
            for target in panel["targets"]:
                names = {name for name in promql.metrics(target["expr"]) if name in self.series}
                labels = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) - {"job", "instance"}
                for name in names:
                    for label in labels:
                        self.assertTrue(any(label in one for one in self.series[name]), f"{panel['title']}: {name}")

    def test_states_that_are_asked_for_are_states_that_it_names(self):
        for where, expression in self.expressions():
            for name, state in re.findall(r'(\w+)\{[^}]*state="(\w+)"', expression):
                self.assertIn(state, [one.get("state") for one in self.series[name]], where)

    @unittest.skipUnless(shutil.which("promtool"), "promtool is not installed (apt-get install prometheus)")
    def test_the_metrics_are_as_prometheus_wants_them(self):
        done = subprocess.run(["promtool", "check", "metrics"], input=self.metrics, capture_output=True, text=True)
        self.assertEqual((0, ""), (done.returncode, done.stdout + done.stderr))


@unittest.skipUnless(shutil.which("prometheus"), "Prometheus is not installed (apt-get install prometheus)")
class InPrometheus(Live):
    def test_every_expression_of_the_dashboard_has_data(self):
        config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["scrape_configs"][0]["static_configs"][0]["targets"] = [self.run_.addresses["http"]]
        config["rule_files"] = [str(DEPLOY / "prometheus" / "rules.yml")]
        (self.folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        log = open(self.folder / "prometheus.log", "wb")
        self.addCleanup(log.close)
        with socket.socket() as free:  # it takes no port 0 that one could learn
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        process = subprocess.Popen(["prometheus", f"--config.file={self.folder}/prometheus.yml",
                                    f"--storage.tsdb.path={self.folder}/tsdb", f"--web.listen-address={address}"],
                                   stderr=log)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)

        def missing():
            try:
                return promql.expressions_without_data(f"http://{address}")
            except OSError:
                return ["Prometheus does not answer yet"]
        deadline = time.monotonic() + TIMEOUT_S
        while (left := missing()) and time.monotonic() < deadline:
            self.assertIsNone(process.poll(), (self.folder / "prometheus.log").read_text()[-1000:])
            time.sleep(1)
        self.assertEqual([], left)


class Ending(Live):
    def test_sigterm_ends_all_with_their_state_saved(self):
        for name in (*SITES, "coordinator"):
            self.run_.processes[name].terminate()
            self.assertEqual(0, self.run_.processes[name].wait(STOP_S), self.run_.log(name))
        self.assertTrue(list((self.folder / "state" / "snapshots").iterdir()))
        for site in SITES:
            self.assertTrue(list((self.folder / f"checkpoints-{site}").glob("[0-9]*")))


if __name__ == "__main__":
    unittest.main()
