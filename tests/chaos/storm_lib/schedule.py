"""Which faults come when: decided by the seed alone."""

import dataclasses
import random

PER_TEN_MINUTES = {"kill coordinator": 3, "kill site": 9, "stop site": 5, "cut site": 4}
STOP_S = 15  # longer than the lease
RESTART_S = 5  # from a kill to the start
CUT_S = (1, 4)
APART_S = 40  # between two faults of one site: the first is over by then


@dataclasses.dataclass(frozen=True)
class Fault:
    at_s: float  # from the beginning of the storm
    kind: str
    site: str = ""
    seconds: float = 0  # until the process goes on, is started, or the connection is let through


def make_schedule(seed, seconds, sites, proxied):
    """Faults in order of time, each kind at least once; between two there is half of their mean distance or more."""
    numbers = random.Random(seed)
    kinds = [kind for kind, count in PER_TEN_MINUTES.items() for _ in range(max(1, round(count * seconds / 600)))]
    numbers.shuffle(kinds)
    faults, last = [], {}
    for i, kind in enumerate(kinds):
        at_s = (i + numbers.uniform(0.25, 0.75)) * seconds / len(kinds)
        if kind == "kill coordinator":
            faults.append(Fault(at_s, kind, seconds=RESTART_S))
            continue
        choice = proxied if kind == "cut site" else sites
        free = [site for site in choice if at_s - last.get(site, -APART_S) >= APART_S] or choice
        site = numbers.choice(free)
        last[site] = at_s
        duration = {"kill site": RESTART_S, "stop site": STOP_S, "cut site": numbers.uniform(*CUT_S)}[kind]
        faults.append(Fault(at_s, kind, site, duration))
    return faults
