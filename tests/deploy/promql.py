"""The expressions of deploy/: where they stand, and which metrics they name."""

import json
import re
import urllib.parse
import urllib.request

import yaml

from deploy_files import DEPLOY

# Never through a proxy of the environment: whom it asks is on this machine.
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))

# Words of PromQL that are not metrics. Functions are told by their bracket.
KEYWORDS = {"and", "or", "unless", "by", "without", "on", "ignoring", "bool", "offset", "group_left", "group_right",
            "inf", "nan"}


def dashboard():
    return json.loads((DEPLOY / "grafana" / "dashboards" / "causeway.json").read_text())


def panels():
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def groups():
    return yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())["groups"]


def rules():
    return [rule for group in groups() for rule in group["rules"]]


def metrics(expression):
    """Names of the metrics of an expression."""
    text = re.sub(r'"[^"]*"', "", expression)
    text = re.sub(r"\{[^}]*\}", "", text)
    text = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", "", text)
    text = re.sub(r"\[[^\]]*\]", "", text)
    found = re.finditer(r"(?<![\w:])([A-Za-z_:][\w:]*)(\s*\()?", text)
    return {match[1] for match in found if not match[2] and match[1].lower() not in KEYWORDS}


def label_values(expression):
    """{(label, value)} of the matchers with = of an expression."""
    return set(re.findall(r'(\w+)="([^"$]*)"', expression))


def with_variables(expression, job="causeway", instance=".*", site=".*"):
    """As Grafana sends it with All chosen."""
    return expression.replace("$job", job).replace("$instance", instance).replace("$site", site)


def dashboard_expressions():
    """(panel's title, expression) of all panels and annotations."""
    found = [(panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]]
    return found + [(note["name"], note["expr"]) for note in dashboard()["annotations"]["list"]]


def answers(url, expression):
    """The values that Prometheus gives for an expression now, those that are no numbers left out."""
    query = urllib.parse.urlencode({"query": with_variables(expression)})
    with _direct.open(f"{url}/api/v1/query?{query}", timeout=10) as response:
        result = json.load(response)["data"]["result"]
    return [float(one["value"][1]) for one in result if one["value"][1] != "NaN"]


def expressions_without_data(url):
    """(title, expression) of the dashboard's, but for its annotations, whose events need not have come."""
    return [(panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]
            if not answers(url, target["expr"])]
