"""The whole path — sites, wire, merge, outer step, mixing, export — against an independent replay of the algorithm.

Streaming DiLoCo in synchronous mode (arXiv 2501.18512; core/outer_step.h names the roundings). Gradients are constant,
so all values of a tensor are equal and the replay follows one of each, in exact arithmetic. Learning rates, gradients
and initial values are no dyadic fractions, so that every rounding counts.
"""

import itertools
import unittest

import numpy

from float32 import fma, multiply, rounded, subtract
from harness import EndToEndTest, check_all, synthetic

STEPS = 40
SYNC_EVERY = 6
INNER_LR = 0.1
OUTER_LR = 0.7
MOMENTUM = 0.9
GRADIENTS = {"a": 0.3, "b": -0.7}
SHAPES = [[5], [3, 1500], [257]]
INITIAL = [0.3, -1.7, 0.011]
AT_ONCE = 3


def config_of(delay, alpha, fragments):
    config = synthetic(GRADIENTS, SHAPES, run={"steps": STEPS}, inner={"lr": INNER_LR},
                       sync={"sync_every": SYNC_EVERY, "num_fragments": fragments, "fragment_sync_delay": delay,
                             "fragment_update_alpha": alpha},
                       outer={"lr": OUTER_LR, "momentum": MOMENTUM},
                       codec={"up": "float32", "down": "float32", "feedback_up": 0, "feedback_down": 0})
    for tensor, initial in zip(config["model"]["tensors"], INITIAL):
        tensor["init"] = initial
    return config


class Replay:
    """One tensor's value W at the coordinator, its momentum v, and θ at each site, step by step."""

    def __init__(self, initial, offset, first_send, delay, alpha):
        self.offset = offset
        self.first_send = first_send
        self.delay = delay
        self.alpha = rounded(alpha)
        self.anchor = rounded(initial)
        self.momentum = rounded(0)
        self.local = {site: rounded(initial) for site in GRADIENTS}
        self.sent = None

    def replay(self):
        for t in range(1, STEPS + 1):
            for site, gradient in GRADIENTS.items():
                self.local[site] = fma(rounded(gradient), -rounded(INNER_LR), self.local[site])
            if (t - self.offset) % SYNC_EVERY == 0 and t >= self.first_send:
                self.sent = [subtract(self.anchor, self.local[site]) for site in sorted(self.local)]
            since = t - self.delay
            if (since - self.offset) % SYNC_EVERY == 0 and since >= self.first_send:
                self.outer_step()
                self.mix()
        if self.sent is not None:
            self.outer_step()  # a round that is open at the end closes, but mixes into no site's parameters

    def outer_step(self):
        mean = rounded(0)
        for sent in self.sent:
            mean = fma(rounded(1 / len(self.sent)), sent, mean)
        self.momentum = fma(rounded(MOMENTUM), self.momentum, mean)
        step = fma(rounded(MOMENTUM), self.momentum, mean)
        self.anchor = fma(-rounded(OUTER_LR), step, self.anchor)
        self.sent = None

    def mix(self):
        for site, value in self.local.items():
            if self.alpha == 0:
                self.local[site] = self.anchor
            elif self.alpha != 1:
                share = multiply(subtract(rounded(1), self.alpha), self.anchor)
                self.local[site] = fma(self.alpha, value, share)


def filled(values):
    return {f"t{i}": numpy.full(shape, float(value), numpy.float32)
            for i, (shape, value) in enumerate(zip(SHAPES, values))}


class ReplayTest(EndToEndTest):
    def check(self, delay, alpha, fragments):
        offsets = [(p + 1) * SYNC_EVERY // fragments % SYNC_EVERY for p in range(fragments)]
        replays = [Replay(INITIAL[i], offsets[i % fragments], SYNC_EVERY + offsets[i % fragments], delay, alpha)
                   for i in range(len(SHAPES))]
        what = f"delay {delay}, alpha {alpha}, {fragments} fragments"
        self.check_run(config_of(delay, alpha, fragments), replays, what)

    def check_run(self, config, replays, what):
        for replay in replays:
            replay.replay()
        run = self.new_run(config)
        run.start_coordinator()
        run.start_workers(*GRADIENTS)
        run.await_done()
        self.assert_same_bits(filled(replay.anchor for replay in replays), run.export(), f"{what}: export")
        for site in GRADIENTS:
            expected = filled(replay.local[site] for replay in replays)
            self.assert_same_bits(expected, run.local(site), f"{what}: local parameters of {site}")
        run.stop_coordinator()

    def test_export_and_local_parameters_are_the_replays_to_the_last_bit(self):
        check_all(self.check, itertools.product([0, 1, 3], [0, 0.5, 1], [1, 2, 3]), AT_ONCE)

    def check_schedule(self, delay, offsets, first_send):
        """The second and third tensor are fragment 0, by the prefixes of their names."""
        config = config_of(delay, 0.5, 2)
        config["sync"] |= {"fragments": [["t"], ["t0"]], "fragment_offsets": offsets, "first_send": first_send}
        first = [offset + SYNC_EVERY if first_send == "full" else offset or SYNC_EVERY for offset in offsets]
        replays = [Replay(INITIAL[i], offsets[p], first[p], delay, 0.5) for i, p in enumerate([1, 0, 0])]
        self.check_run(config, replays, f"delay {delay}, offsets {offsets}, first send {first_send}")

    def test_given_offsets_and_fragments_are_followed_from_the_first_send_on(self):
        cases = itertools.product([0, 3], [[1, 4], [5, 0], [2, 2]], ["full", "offset"])
        check_all(self.check_schedule, cases, AT_ONCE)


if __name__ == "__main__":
    unittest.main()
