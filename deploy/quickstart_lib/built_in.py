"""The built-in trainer: causeway-worker, whose sites all read one file or folder, each its part."""

import json

from quickstart_lib import corpus

EVAL_EVERY_ROUNDS = 5


class BuiltInTrainer:
    template = "quickstart.yaml"
    targets = ("causeway-worker",)
    calibration_timeout_s = 120  # even a slow machine takes its first steps before that

    def __init__(self, ranks=1, device="auto"):
        self.ranks = ranks  # of each site
        self._device = device
        self._data = self._vocab = None

    @staticmethod
    def check_data(path, _sites):
        return corpus.check_data(path)

    def install(self):
        """causeway-worker needs nothing beside the packages."""

    def take(self, data, _sites, _folder):
        """Trains on `data` from now on."""
        self._data, self._vocab = data, corpus.vocab_size(data)

    def values(self, calibrates):
        """What the template takes beside the values of every run."""
        return {"vocab_size": self._vocab, "schedule": "constant" if calibrates else "cosine",
                "eval_every_rounds": 0 if calibrates else EVAL_EVERY_ROUNDS}

    def site(self, name, coordinator):
        """Command and environment of a site."""
        # The ranks of all sites share the cores.
        ranks = [f"--nproc={self.ranks}", "--bind=none"] if self.ranks > 1 else []
        return ["causeway-worker", f"--coordinator={coordinator}", f"--site={name}", f"--data={self._data}",
                f"--device={self._device}", *ranks], {}

    def training_begins(self, stack):
        """The coordinator knows the loss at the start from a site's evaluation."""

    def evaluate(self, stack, export_dir):
        return json.loads(stack.run_program("evaluate", "causeway-worker", f"--evaluate={export_dir}",
                                            f"--data={self._data}"))
