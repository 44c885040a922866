"""A site that trains by a constant gradient, and ruins its parameters when a file appears.

    poisoned_site.py COORDINATOR SITE GRADIENT [POISON_FILE]
"""

import os
import sys
import time

import numpy

import causeway

STEP_S = 0.002
POISONED_STEPS = 5  # of which one is sent: an update that comes takes the others back


def main(coordinator, name, gradient, poison_file=""):
    parameters = {"w": numpy.linspace(-1, 1, 5000, dtype=numpy.float32)}
    step = numpy.float32(float(gradient))
    poisoned = 0
    with causeway.Site(parameters, coordinator=coordinator, site=name) as site:
        while not site.over:
            parameters["w"] -= step
            if poison_file and os.path.exists(poison_file):
                os.unlink(poison_file)
                poisoned = POISONED_STEPS
            if poisoned > 0:
                poisoned -= 1
                parameters["w"] += numpy.float32(2.0 ** 80)
            time.sleep(STEP_S)
            site.after_step(tokens=8)


if __name__ == "__main__":
    main(*sys.argv[1:])
