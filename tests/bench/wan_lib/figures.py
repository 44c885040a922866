"""Arithmetic of the benchmark over a wide-area link: what a cell could reach, how long it takes, and what was reached.

Names: H `sync_every`, P fragments, tau `fragment_sync_delay`, M sites. The coordinator's link has the rate of a site's,
and all M contributions and updates of a round cross it, each direction on its own.
"""

import dataclasses
import statistics

STEP_S = 0.025
SYNC_EVERY = 128
SITES = ["asia", "eu", "us", "west"]
RTT_MS = 50
TENSORS = 24  # so that 1, 4, 8 and 24 fragments are equal parts
TENSOR_VALUES = 1_283_328  # 5,013 blocks of 256
PARAMETERS = TENSORS * TENSOR_VALUES  # 30.8 M
BITS = {"float32": 32, "int4": 4 + 16 / 256, "rotated_sign": 1 + 16 / 256}  # codes, and a bfloat16 scale a block
COMPUTE_S = SYNC_EVERY * STEP_S  # of a round
FRAMING = 1448 / 1538  # of what a link carries is TCP payload, at an MTU of 1500

ROUNDS = 5
BUDGET_S = 165  # for the rounds of one cell that are measured


@dataclasses.dataclass(frozen=True)
class Cell:
    rate_mbit: int
    codec: str
    tau: str  # "1" or "auto"
    fragments: int = 8

    @property
    def name(self):
        return f"{self.rate_mbit}/{self.codec}/{self.tau}"

    @property
    def leg_bytes(self):
        """Payload of one site's contributions, or updates, of a round."""
        return PARAMETERS * BITS[self.codec] / 8

    @property
    def hub_s(self):
        """Least time of a round on the coordinator's link; a site's own carries a quarter of it."""
        return len(SITES) * self.leg_bytes * 8 / (self.rate_mbit * 1e6)

    @property
    def bound(self):
        return min(1, COMPUTE_S / self.hub_s)

    @property
    def bound_after_framing(self):
        return min(1, COMPUTE_S / self.hub_s * FRAMING)

    @property
    def predicted_round_s(self):
        """With tau = 1 nothing overlaps: a fragment goes up, comes down, and only then is there a step."""
        hub_s = self.hub_s / FRAMING
        if self.tau == "auto":
            return max(COMPUTE_S, hub_s)
        return COMPUTE_S + 2 * hub_s + self.fragments * RTT_MS * 2e-3

    @property
    def goal(self):
        """The utilization to reach, or None."""
        if self.tau != "auto" or self.codec == "float32":
            return None
        if self.bound < 1:
            return 0.95 * self.bound
        return {(50, "rotated_sign"): 0.95, (200, "int4"): 0.97, (1000, "int4"): 0.99}.get((self.rate_mbit, self.codec))


CELLS = [Cell(rate, codec, tau) for rate in (1000, 200, 50, 10)
         for codec, tau in (("int4", "1"), ("int4", "auto"), ("rotated_sign", "1"), ("rotated_sign", "auto"),
                            ("float32", "1"))]


@dataclasses.dataclass(frozen=True)
class Window:
    """From the end of one step to the end of another, updates applied; `fragments` rounds of single fragments."""
    begin: int
    end: int
    fragments: int


def window_of(cell, budget_s=BUDGET_S):
    """ROUNDS rounds, or as many as the budget allows, after every fragment has been applied once. Where not even one
    round fits, single fragments after the first, two at least: with tau = 1 one is like the other."""
    part = SYNC_EVERY // cell.fragments
    tau = 1 if cell.tau == "1" else SYNC_EVERY - 1  # the largest it may become
    rounds = min(ROUNDS, int(budget_s / cell.predicted_round_s))
    if rounds >= 1:
        begin = SYNC_EVERY + (cell.fragments - 1) * SYNC_EVERY // cell.fragments + tau
        return Window(begin, begin + rounds * SYNC_EVERY, rounds * cell.fragments)
    count = max(2, int(budget_s / (cell.predicted_round_s / cell.fragments)))
    return Window(SYNC_EVERY + tau, SYNC_EVERY + tau + count * part, count)


def predicted_cell_s(cell, window):
    """Steps up to the first send go at their own pace; what is open at the end takes another round if tau is long."""
    rounds = window.end / SYNC_EVERY - 1 + (1 if cell.tau == "auto" else 0)
    return COMPUTE_S + rounds * cell.predicted_round_s


class SiteTrace:
    """A site's reports on itself, one by one."""

    def __init__(self):
        self.reports = []  # (wall_s, step, compute_s, stall_s)

    def note(self, site):
        report = (site["wall_s"], site["step"], site["compute_s"], site["stall_s"])
        if site["wall_s"] > 0 and (not self.reports or self.reports[-1][0] != report[0]):
            self.reports.append(report)

    def step(self):
        return self.reports[-1][1] if self.reports else 0

    def at(self, step):
        """(wall_s, compute_s, stall_s) when the update of that step had been applied. A stall between two reports is
        taken to have come before it, as the stalls of a step's own update do."""
        for before, after in zip(self.reports, self.reports[1:]):
            if before[1] <= step < after[1]:
                step_s = (after[2] - before[2]) / (after[1] - before[1])
                wall_s = max(after[0] - (after[1] - step) * step_s, before[0] + (step - before[1]) * step_s)
                return wall_s, after[2] - (after[1] - step) * step_s, after[3]
        raise ValueError(f"no report beyond step {step}")

    def between(self, window):
        """Wall, computing and stalled seconds of the window."""
        return tuple(end - begin for begin, end in zip(self.at(window.begin), self.at(window.end)))


def utilization(traces, window):
    """Computing ÷ wall of each site; and the mean round, and the stalled share of all."""
    walls, computing, stalled = zip(*(trace.between(window) for trace in traces))
    shares = [compute_s / wall_s for compute_s, wall_s in zip(computing, walls)]
    return {"utilization_least": min(shares), "utilization_mean": statistics.fmean(shares),
            "stall_share": sum(stalled) / sum(walls), "window_s": statistics.fmean(walls)}


def peak_to_mean(samples, window_s):
    """The largest rate in a window of that length ÷ the mean rate, from samples (seconds, bytes so far)."""
    mean = (samples[-1][1] - samples[0][1]) / (samples[-1][0] - samples[0][0])
    peak, first = 0, 0
    for at, total in samples:
        while first + 1 < len(samples) and at - samples[first + 1][0] >= window_s:
            first += 1
        if at - samples[first][0] >= window_s:
            peak = max(peak, (total - samples[first][1]) / (at - samples[first][0]))
    return peak / mean
