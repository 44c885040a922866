"""A container engine through the Docker API, for what compose itself does not say: sizes, exit codes, SIGKILL."""

import http.client
import json
import os
import socket
import urllib.parse
import urllib.request

TIMEOUT_S = 30
DEFAULT_HOST = "unix:///var/run/docker.sock"

_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get(url):
    with _direct.open(url, timeout=10) as response:
        return response.read().decode()


def get_json(url):
    return json.loads(get(url))


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=TIMEOUT_S)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(self.path)


class Engine:
    def __init__(self):
        host = os.environ.get("DOCKER_HOST", DEFAULT_HOST)
        if not host.startswith("unix://"):
            raise SystemExit(f"compose_lab: DOCKER_HOST={host}: expected unix://PATH")
        self.path = host.removeprefix("unix://")

    def _call(self, method, path):
        connection = _UnixConnection(self.path)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        if response.status >= 300:
            raise RuntimeError(f"{method} {path}: {response.status} {body[:200]!r}")
        return json.loads(body) if body else None

    def image_bytes(self, name):
        return self._call("GET", f"/images/{urllib.parse.quote(name, safe='')}/json")["Size"]

    def containers(self, project, service=None):
        """Ids of the containers of a compose project, ended ones too; those of `run` left out."""
        labels = [f"com.docker.compose.project={project}", "com.docker.compose.oneoff=False"]
        if service:
            labels.append(f"com.docker.compose.service={service}")
        filters = urllib.parse.quote(json.dumps({"label": labels}))
        return [one["Id"] for one in self._call("GET", f"/containers/json?all=true&filters={filters}")]

    def kill(self, project, service):
        for container in self.containers(project, service):
            self._call("POST", f"/containers/{container}/kill?signal=SIGKILL")

    def exit_code(self, project, service):
        (container,) = self.containers(project, service)
        return self._call("GET", f"/containers/{container}/json")["State"]["ExitCode"]
