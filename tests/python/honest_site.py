"""A site that trains by gradient descent, with whatever scale and learning rate its user has.

    honest_site.py COORDINATOR SITE '{"lr": 0.1, "end": 400, "scale": 1, "noise": 0, "tokens": 8, "steps": 0}'

lr: of the way to the target that a step goes, by a cosine to a hundredth at step `end` (0: constant). noise: beside the
gradient, in scales. steps: it leaves after these and says that it has finished (0: it goes on until the run is over).
"""

import json
import math
import sys
import time
import zlib

import numpy

import causeway

STEP_S = 0.002


def main(coordinator, name, options):
    given = {"lr": 0.1, "end": 0, "scale": 1, "noise": 0, "tokens": 8, "steps": 0, **json.loads(options)}
    chance = numpy.random.default_rng(zlib.crc32(name.encode()))
    target = given["scale"] * chance.standard_normal(1000).astype(numpy.float32)
    parameters = {"w": numpy.zeros(1000, dtype=numpy.float32)}
    done = 0
    site = causeway.Site(parameters, coordinator=coordinator, site=name)
    site.join()
    while not site.over and (given["steps"] == 0 or done < given["steps"]):
        share = min(1, site.step / given["end"]) if given["end"] else 0
        lr = given["lr"] * (0.505 + 0.495 * math.cos(math.pi * share))
        noise = given["noise"] * given["scale"] * chance.standard_normal(1000)
        parameters["w"] -= (lr * (parameters["w"] - target + noise)).astype(numpy.float32)
        time.sleep(STEP_S)
        site.after_step(tokens=given["tokens"])
        done += 1
    site.complete() if site.over else site.drain()
    site.leave(finished=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
