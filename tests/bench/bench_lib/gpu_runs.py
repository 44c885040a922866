"""Real runs on one machine for benchmarks of a GPU: a coordinator, and sites that may share the card."""

import contextlib
import json
import os
import pathlib
import subprocess
import time

from bench_lib import processes
from gpu_models import write_tokens

NAMES = {"hidden": "hidden_size", "intermediate": "intermediate_size", "layers": "num_hidden_layers", "vocab": "vocab_size",
         "heads": "num_attention_heads", "kv_heads": "num_key_value_heads", "sequence": "max_position_embeddings"}
SMALL = {"vocab_size": 256, "hidden_size": 128, "intermediate_size": 344, "num_hidden_layers": 4, "num_attention_heads": 4,
         "num_key_value_heads": 4}  # the quickstart's
DEADLINE_S = 120
# Options that benchmarks of a GPU have in common.
OPTIONS = {"device": ("cuda", "or fake, which needs no GPU"),
           "coordinators": (str(processes.ROOT / "build" / "release"), "folder of causeway-coordinator")}


def model_of(shape):
    """`model` of run.yaml for a shape of gpu_models."""
    return {"kind": "llama"} | {NAMES[key]: value for key, value in shape.items() if key in NAMES}


def docs(bench):
    """This project's documentation as one text."""
    path = bench.options.out / "docs.txt"
    path.write_text("".join(page.read_text() for page in sorted((processes.ROOT / "docs").glob("*.md"))))
    return path


def tokens(bench, name, shape, kind="zipf"):
    """Tokens for a model, made once."""
    path = bench.options.out / f"tokens-{name}-{kind}.bin"
    if not path.exists():
        write_tokens(path, shape, kind)
    return path


class Site:
    """RuntimeError with the end of its log if it does not do what is awaited."""

    def __init__(self, bench, folder, name, address, data, flags, environment):
        self.log_path, self.metrics = folder / f"{name}.log", folder / f"{name}.jsonl"
        program = "causeway-worker-fake" if bench.options.device == "fake" else "causeway-worker"
        self.command = [bench.build / program, f"--coordinator={address}", f"--site={name}", f"--data={data}",
                        f"--metrics_file={self.metrics}", *flags]
        self.environment = environment | dict(os.environ)
        self.start()

    def start(self):
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(list(map(str, self.command)), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            env=self.environment, preexec_fn=processes.ends_with_us)

    def log(self):
        return self.log_path.read_text(errors="replace")

    def rows(self, kind):
        text = self.metrics.read_text() if self.metrics.exists() else ""
        rows = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [row for row in rows if row["kind"] == kind]

    def wait_for(self, seen, what):
        deadline = time.monotonic() + DEADLINE_S
        while not seen():
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise RuntimeError(f"expected {what}: {self.log()[-1500:]}")
            time.sleep(0.02)

    def end(self, limit_s=DEADLINE_S):
        """Its exit status."""
        try:
            return self.process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"expected an end within {limit_s:g} s, got none: {self.log()[-1500:]}") from None

    def end_well(self, limit_s=DEADLINE_S):
        if (status := self.end(limit_s)) != 0:
            raise RuntimeError(f"expected exit status 0, got {status}: {self.log()[-1500:]}")


@contextlib.contextmanager
def started(bench, config, data, sites, *flags, environment=None):
    """(coordinator, sites), killed in the end."""
    folder = bench.folder / str(len(list(bench.folder.iterdir())))
    folder.mkdir()
    path = folder / "run.yaml"
    path.write_text(json.dumps(config))  # JSON is YAML
    with contextlib.ExitStack() as ends:
        coordinator = processes.Coordinator(pathlib.Path(bench.options.coordinators), path, folder / "state", folder / "coordinator.log")
        ends.callback(coordinator.kill)
        address, running = coordinator.await_address(), []
        for number in range(sites):
            running.append(Site(bench, folder, f"site{number}", address, data, flags, environment or {}))
            ends.callback(running[-1].process.wait)
            ends.callback(lambda site=running[-1]: site.process.kill())
        yield coordinator, running


def run(bench, config, data, sites, *flags, limit_s=None):
    """The first site, when all are over, and the status then."""
    ends = time.monotonic() + (limit_s or 1e9)
    with started(bench, config, data, sites, "--metrics_every_s=0", *flags) as (coordinator, running):
        for site in running:
            site.end_well(max(0, ends - time.monotonic()))
        return running[0], coordinator.status()


def said(site):
    return [line for line in site.log().splitlines() if "contributions" in line]
