"""The built-in trainer: causeway-worker, whose sites all read one file or folder, each its part."""

import json
import pathlib
import re

from quickstart_lib import corpus

EVAL_EVERY_ROUNDS = 5


class ScheduleError(Exception):
    """A file that is not a pipeline schedule."""


class Pipeline:
    """A schedule's file: how many ranks and micro-batches it is for; the worker checks everything else."""

    def __init__(self, path):
        self.path = pathlib.Path(path).absolute()
        try:
            text = self.path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ScheduleError(f"--pipeline={path}: {getattr(error, 'strerror', None) or error}") from None
        head = re.search(r"^devices (\d+) micro_batches (\d+)\b", text, re.MULTILINE)
        width = re.search(r"^width (\d+)\b", text, re.MULTILINE)
        if not head:
            raise ScheduleError(f"--pipeline={path}: expected a file of causewayctl plan pipeline --out, got none with "
                                "devices and micro_batches")
        self.ranks = int(head[1]) * (int(width[1]) if width else 1)
        self.micro_batches = int(head[2])


class BuiltInTrainer:
    template = "quickstart.yaml"
    targets = ("causeway-worker",)
    calibration_timeout_s = 120  # even a slow machine takes its first steps before that

    def __init__(self, ranks=1, device="auto", pipeline=None):
        """Args: `pipeline`: the first site's schedule, which decides its number of ranks."""
        self._ranks = ranks  # of each other site
        self._pipeline = pipeline
        self._device = device
        self._data = self._vocab = self._first = None

    @staticmethod
    def check_data(path, _sites):
        return corpus.check_data(path)

    def install(self):
        """causeway-worker needs nothing beside the packages."""

    def processes(self, sites):
        """The number of processes of all sites."""
        pipelined = self._pipeline.ranks - self._ranks if self._pipeline else 0
        return len(sites) * self._ranks + pipelined

    def take(self, data, sites, _folder):
        """Trains on `data` from now on."""
        self._data, self._vocab, self._first = data, corpus.vocab_size(data), sites[0]

    def values(self, calibrates):
        """The template's values beside those of every run."""
        return {"vocab_size": self._vocab, "schedule": "constant" if calibrates else "cosine",
                "micro_batches": self._pipeline.micro_batches if self._pipeline else 1,
                "eval_every_rounds": 0 if calibrates else EVAL_EVERY_ROUNDS}

    def site(self, name, coordinator):
        """Command and environment of a site."""
        pipelined = self._pipeline and name == self._first
        ranks = self._pipeline.ranks if pipelined else self._ranks
        device = "cpu" if pipelined else self._device
        flags = [f"--pipeline={self._pipeline.path}"] if pipelined else []
        flags += [f"--nproc={ranks}", "--bind=none"] if ranks > 1 else []  # the ranks of all sites share the cores
        return ["causeway-worker", f"--coordinator={coordinator}", f"--site={name}", f"--data={self._data}",
                f"--device={device}", *flags], {}

    def training_begins(self, stack):
        """The coordinator knows the loss at the start from a site's evaluation."""

    def evaluate(self, stack, export_dir):
        return json.loads(stack.run_program("evaluate", "causeway-worker", f"--evaluate={export_dir}",
                                            f"--data={self._data}"))
