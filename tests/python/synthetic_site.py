"""Takes part in a synthetic run with numpy arrays, and trains them as causeway-worker does: the same bits.

    synthetic_site.py COORDINATOR SITE OUT.npz [--report=FILE]

Gradients are those of worker/parallel/synthetic.h, applied by plain SGD. Writes the site's parameters at its end, and with
--report a JSON line after each step.
"""

import json
import pathlib
import sys

import numpy

import causeway

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from splitmix import U64, fma, hash_combine, noise, splitmix64  # noqa: E402, F401


class SyntheticModel:
    """Arrays of a run's config, and their gradients."""

    def __init__(self, config, site):
        self.model, self.lr = config["model"], config["inner"]["lr"]
        self.amplitude = numpy.float32(self.model["gradient"]["by_site"].get(site, 0))
        self.stream = hash_combine(U64(config["seed"]), site)
        self.arrays = {tensor["name"]: numpy.full(tensor["shape"], tensor["init"], numpy.float32)
                       for tensor in self.model["tensors"]}

    def gradient(self, index, step, size):
        if self.model["gradient"]["kind"] == "constant":
            return numpy.full(size, self.amplitude)
        stream = hash_combine(hash_combine(self.stream, U64(index)), U64(step))
        return self.amplitude * noise(stream, size)

    def step(self, step):
        for index, array in enumerate(self.arrays.values()):
            gradient = self.gradient(index, step, array.size)
            array[...] = fma(gradient, numpy.float32(-self.lr), array.reshape(-1)).reshape(array.shape)


def config_of(coordinator, site):
    """The run's config, by a run that is opened and closed."""
    from causeway._handles import RunHandle
    run = RunHandle({"coordinator": coordinator, "site": site})
    run.close()
    return run.config


def main(coordinator, name, out, *flags):
    numpy.seterr(over="ignore")
    model = SyntheticModel(config_of(coordinator, name), name)
    report = next((flag.removeprefix("--report=") for flag in flags if flag.startswith("--report=")), None)
    with causeway.Site(model.arrays, coordinator=coordinator, site=name) as site:
        while not site.over:
            model.step(site.step + 1)
            site.after_step(tokens=1)
            if report:
                with open(report, "a") as lines:
                    print(json.dumps({"step": site.step, "stays": site.stays}), file=lines)
    numpy.savez(out, **model.arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
