"""The files of deploy/ as data: Dockerfiles, compose files, Kubernetes objects, units, and the commands in them all."""

import json
import pathlib
import re
import shlex
from typing import NamedTuple

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
PROGRAMS = ("causeway-coordinator", "causeway-worker", "causewayctl")
VARIABLE = re.compile(r"\$\{(\w+)(?:(:?[-?])([^}]*))?\}")
# A user's values for deploy/worker.compose.yaml.
SITE = {"COORDINATOR": "coordinator.example.org:7077", "SITE": "paris", "DATA": "/data", "CERTS": "/certs",
        "CHECKPOINTS": "/checkpoints"}
# And to deploy/torch.compose.yaml.
TORCH_SITE = SITE | {"SITE": "nice", "TRAIN_IMAGE": "registry.example.org/train", "CODE": "/srv/train", "SCRIPT": "train.py",
                     "RANKS": "8"}


class Command(NamedTuple):
    where: str
    program: str
    arguments: list

    def flags(self):
        """{"coordinator": "…"} of --coordinator=…"""
        pairs = [argument[2:].partition("=") for argument in self.arguments if argument.startswith("--")]
        return {name: value for name, _, value in pairs}


def substituted(text, variables):
    """Compose's variables. One that is required and absent is a KeyError."""
    def value(match):
        name, kind, default = match.groups()
        if name in variables:
            return variables[name]
        if kind in (":-", "-"):
            return default
        if kind in (":?", "?"):
            raise KeyError(f"{name}: {default}")
        return ""
    return VARIABLE.sub(value, text)


def compose(name, variables):
    return yaml.safe_load(substituted((DEPLOY / name).read_text(), variables))


def kubernetes():
    """(file's name, object) of all manifests."""
    return [(path.name, item) for path in sorted((DEPLOY / "k8s").glob("*.yaml"))
            for item in yaml.safe_load_all(path.read_text())]


def pod_template(item):
    return item.get("spec", {}).get("template") if item["kind"] in ("StatefulSet", "Job", "Deployment") else None


class Dockerfile:
    """Its instructions, joined over continued lines, in stages."""

    def __init__(self, path):
        self.path = path
        lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
        text = "\n".join(lines).replace("\\\n", " ")
        self.instructions = [(line.split(None, 1)[0], line.split(None, 1)[1].strip()) for line in text.splitlines()
                             if line.strip()]

    def stages(self):
        """[(name or "", [instruction, …])] without what stands before the first FROM."""
        stages = []
        for word, rest in self.instructions:
            if word == "FROM":
                stages.append((rest.split()[2] if " AS " in rest else "", []))
            elif stages:
                stages[-1][1].append((word, rest))
        return stages

    def last(self, word):
        """The last stage's instruction of that name, JSON decoded; None without one."""
        said = [rest for instruction, rest in self.stages()[-1][1] if instruction == word]
        return json.loads(said[-1][said[-1].index("["):]) if said else None

    def command(self):
        return self.last("ENTRYPOINT") + (self.last("CMD") or [])


def dockerfiles():
    return {path.name: Dockerfile(path) for path in sorted(DEPLOY.glob("*.Dockerfile"))}


def compose_command(service):
    """The command that the container of a compose service runs."""
    build = service.get("build")
    image = Dockerfile(DEPLOY / build["context"] / build["dockerfile"]) if build and "target" not in build else None
    if "entrypoint" in service:  # the image's command is then not taken
        return service["entrypoint"] + service.get("command", [])
    if image is None:
        return service.get("command", [])
    return image.last("ENTRYPOINT") + service.get("command", image.last("CMD") or [])


def unit_command(path):
    text = path.read_text().replace("\\\n", " ")
    return shlex.split(re.search(r"^ExecStart=(.*)$", text, re.MULTILINE)[1])


def commands():
    """Every call of one of our programs in deploy/, comments of its files included."""
    found = []
    for name, dockerfile in dockerfiles().items():
        found.append((name, dockerfile.command()))
    for name, variables in (("compose.yaml", {}), ("worker.compose.yaml", SITE)):
        for service, body in compose(name, variables)["services"].items():
            found.append((f"{name}: {service}", list(map(str, compose_command(body)))))
    for name, item in kubernetes():
        for container in (pod_template(item) or {"spec": {"containers": []}})["spec"]["containers"]:
            program = container["image"].rsplit("/", 1)[-1].split(":")[0]
            found.append((f"{name}: {container['name']}", [program, *container["args"]]))
    for path in sorted((DEPLOY / "systemd").glob("*.service")):
        found.append((path.name, unit_command(path)))
    return [Command(where, pathlib.Path(words[0]).name, words[1:]) for where, words in found
            if words and pathlib.Path(words[0]).name in PROGRAMS]
