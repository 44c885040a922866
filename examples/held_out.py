"""The loss on a text that no site trains on, as the examples report it."""

import torch

from small_qwen import rows

EVERY_STEPS = 100
ROWS = 256


class HeldOut:
    """Evaluates W, the parameters that all sites hold alike, for the status page."""

    def __init__(self, paths):
        """Args: `paths`: that of the text, or none: then nothing is evaluated."""
        self._rows = rows(paths[0])[:ROWS] if paths else None

    def report(self, diloco, model, step):
        """After the first step and every EVERY_STEPS; each of a site's ranks calls it."""
        if self._rows is None or step % EVERY_STEPS != 1:
            return
        with diloco.anchor_parameters(), torch.no_grad():
            diloco.report_eval(model(input_ids=self._rows, labels=self._rows).loss)
