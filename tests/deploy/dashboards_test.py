"""Prometheus's rules and Grafana's dashboard: syntax, tests of the alerts, and that what they name is there.

This cannot see how Grafana draws it.
"""

import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import yaml

import deploy_files
import promql
from deploy_files import DEPLOY, compose

PROMETHEUS = DEPLOY / "prometheus"
GRAFANA = DEPLOY / "grafana"
PROVISIONING = GRAFANA / "provisioning"
# Units that Grafana knows, of those that fit here.
UNITS = {"none", "short", "percentunit", "s", "bytes", "decbytes", "Bps"}
# The alarms of GET /status.
ALARMS = {"site_alone", "site_gone", "below_quorum", "digest_mismatch", "residual_growing", "disk_low", "disk_slow",
          "damage_found", "certificate_ending", "unknown_lineage", "history_lost", "two_coordinators", "site_silent",
          "run_paused", "training_diverges", "site_quarantined", "contribution_refused", "outlier_merged",
          "site_noisy", "unproven_claim", "shard_gone", "straggler", "no_checkpoint", "transfer_stalled", "log_stuck",
          "loss_outlier", "lengths_apart", "file_refused",
          "round_stands", "transfers_fail", "two_workers", "no_standby", "standby_behind",
          "copy_failed"}


@unittest.skipUnless(shutil.which("promtool"), "promtool is not installed (apt-get install prometheus)")
class Promtool(unittest.TestCase):
    def promtool(self, *arguments):
        done = subprocess.run(["promtool", *arguments], cwd=PROMETHEUS, capture_output=True, text=True)
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)

    def test_config_and_rules_are_right(self):
        self.promtool("check", "config", "prometheus.yml")
        self.promtool("check", "rules", "--lint=all", "--lint-fatal", "rules.yml")

    def test_alerts_fire_when_they_should(self):
        self.promtool("test", "rules", "rules_test.yml")

    def test_expressions_of_the_dashboard_are_promql(self):
        rules = [{"record": f"panel:{i}", "expr": promql.with_variables(expression)}
                 for i, (_, expression) in enumerate(promql.dashboard_expressions())]
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "rules.yml"
            path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
            self.promtool("check", "rules", str(path))


class Rules(unittest.TestCase):
    def test_every_alarm_of_the_coordinator_has_an_alert_that_says_what_to_do(self):
        named = {value for rule in promql.rules() for label, value in promql.label_values(rule["expr"])
                 if label == "alarm"}
        self.assertEqual(ALARMS, named)
        for rule in promql.rules():
            if "alert" in rule:
                self.assertTrue(rule["annotations"]["summary"] and rule["annotations"]["description"], rule["alert"])

    def test_every_alert_has_a_severity_of_its_own_or_of_its_alarm(self):
        for rule in promql.rules():
            if "alert" in rule and "causeway_alarm" not in rule["expr"]:
                self.assertIn(rule["labels"]["severity"], ("warning", "critical"), rule["alert"])

    def test_every_alert_and_every_recorded_series_is_tested(self):
        text = (PROMETHEUS / "rules_test.yml").read_text()
        for rule in promql.rules():
            name = rule.get("alert") or rule["record"]
            if name in ("causeway:site_tokens:rate1m", "causeway:round_seconds:p50_5m"):
                continue  # as their neighbours, which are
            self.assertIn(name, text)

    def test_the_job_is_the_one_that_the_rules_and_the_dashboard_ask_for(self):
        jobs = {job["job_name"] for job in yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())["scrape_configs"]}
        asked = {value for rule in promql.rules() for label, value in promql.label_values(rule["expr"]) if label == "job"}
        self.assertEqual({"causeway"}, asked)
        self.assertEqual(jobs, asked)

    def test_the_target_is_where_the_coordinator_of_the_compose_file_listens(self):
        target = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())["scrape_configs"][0]["static_configs"][0]
        host, _, port = target["targets"][0].partition(":")
        body = compose("compose.yaml", {})["services"][host]
        words = deploy_files.compose_command(body)
        self.assertIn(f"--http=0.0.0.0:{port}", words)


class Dashboard(unittest.TestCase):
    def setUp(self):
        self.dashboard = promql.dashboard()
        self.datasource = yaml.safe_load((PROVISIONING / "datasources" / "prometheus.yaml").read_text())["datasources"][0]

    def test_panels_say_what_they_show_and_in_which_unit(self):
        for panel in promql.panels():
            with self.subTest(panel["title"]):
                self.assertIn(panel["fieldConfig"]["defaults"]["unit"], UNITS)
                self.assertGreater(len(panel["description"]), 3)
                self.assertTrue(panel["targets"])

    def test_units_are_those_of_the_metrics(self):
        suffixes = {"_bytes_total": {"decbytes"}, "_ratio": {"percentunit"}, "_seconds": {"s"},
                    "_bytes": {"bytes", "decbytes"}}
        for panel in promql.panels():
            for target in panel["targets"]:
                bare = re.fullmatch(r"(causeway_\w+)\{[^}]*\}", target["expr"])
                for suffix, units in suffixes.items():
                    if bare and bare[1].endswith(suffix):
                        self.assertIn(panel["fieldConfig"]["defaults"]["unit"], units, panel["title"])
                        break

    def test_ids_are_unique_and_panels_do_not_overlap(self):
        everything = self.dashboard["panels"]
        self.assertEqual(len(everything), len({panel["id"] for panel in everything}))
        taken = set()
        for panel in everything:
            at = panel["gridPos"]
            self.assertLessEqual(at["x"] + at["w"], 24)
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            self.assertFalse(cells & taken, panel["title"])
            taken |= cells

    def test_every_datasource_is_the_one_that_is_provisioned(self):
        found = [panel["datasource"] for panel in promql.panels()]
        found += [target["datasource"] for panel in promql.panels() for target in panel["targets"]]
        found += [variable["datasource"] for variable in self.dashboard["templating"]["list"]]
        found += [note["datasource"] for note in self.dashboard["annotations"]["list"]]
        self.assertEqual({(self.datasource["type"], self.datasource["uid"])},
                         {(one["type"], one["uid"]) for one in found})

    def test_variables_that_are_used_exist(self):
        names = {variable["name"] for variable in self.dashboard["templating"]["list"]}
        texts = [expression for _, expression in promql.dashboard_expressions()]
        texts += [variable["query"]["query"] for variable in self.dashboard["templating"]["list"]]
        self.assertEqual(names, set(re.findall(r"\$(\w+)", " ".join(texts))))

    def test_recorded_series_that_it_shows_are_recorded(self):
        recorded = {rule["record"] for rule in promql.rules() if "record" in rule}
        asked = {name for _, expression in promql.dashboard_expressions() for name in promql.metrics(expression)
                 if ":" in name}
        self.assertLessEqual(asked, recorded)


class Provisioning(unittest.TestCase):
    def setUp(self):
        self.services = compose("compose.yaml", {})["services"]
        mounts = [mount.split(":") for mount in self.services["grafana"]["volumes"]]
        self.mounts = {target: (DEPLOY / source).resolve() for source, target, *_ in mounts if source.startswith(".")}

    def test_grafana_finds_its_files_where_the_compose_file_mounts_them(self):
        self.assertEqual(PROVISIONING, self.mounts["/etc/grafana/provisioning"])
        provider = yaml.safe_load((PROVISIONING / "dashboards" / "causeway.yaml").read_text())["providers"][0]
        folder = self.mounts[provider["options"]["path"]]
        home = self.services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
        self.assertEqual(provider["options"]["path"], str(pathlib.PurePath(home).parent))
        self.assertTrue((folder / pathlib.PurePath(home).name).exists())

    def test_the_datasource_is_the_compose_files_prometheus(self):
        url = yaml.safe_load((PROVISIONING / "datasources" / "prometheus.yaml").read_text())["datasources"][0]["url"]
        host, port = re.fullmatch(r"http://([\w-]+):(\d+)", url).groups()
        self.assertTrue(self.services[host]["ports"][0].endswith(f":{port}"))

    def test_prometheus_finds_its_config_and_rules(self):
        mounts = dict(mount.split(":")[1::-1] for mount in self.services["prometheus"]["volumes"])
        named = next(word for word in self.services["prometheus"]["command"] if word.startswith("--config.file="))
        path = pathlib.PurePath(named.partition("=")[2])
        folder = DEPLOY / mounts[str(path.parent)]
        config = yaml.safe_load((folder / path.name).read_text())
        for rules in config["rule_files"]:
            self.assertTrue((folder / rules).exists())


if __name__ == "__main__":
    unittest.main()
