"""Updates that come `fragment_sync_delay` steps late: a real run of a small convex model against numpy's replay of it.

    DELAY_TABLE=1 tests/python/run test_delay     also prints what the delay costs this model, by the replay alone
"""

import itertools
import os
import threading
import unittest

import numpy

import causeway
from harness import EndToEndTest
from test_mixed import needs_library

TENSORS = {"left": 24, "right": 40}  # a fragment each
SITES = ("a", "b")
ETA, MU = 0.7, 0.9
CLOSE = 1e-5  # sums of another order
LIMIT_S = 60


class LeastSquares:
    """One site's own data, of a width from 1 to 0.1 in its directions; f(θ) = |X θ − y|² / 2n."""

    def __init__(self, site, rows=512):
        size = sum(TENSORS.values())
        shared, own = numpy.random.default_rng(1), numpy.random.default_rng(ord(site))
        self.truth = shared.standard_normal(size)
        self.x = own.standard_normal((rows, size)) * numpy.geomspace(1, 0.1, size)
        self.y = self.x @ (self.truth + 0.3 * own.standard_normal(size)) + 0.1 * own.standard_normal(rows)

    def gradient(self, theta, step, batch=32):
        first = step * batch % len(self.y)
        x, y = self.x[first : first + batch], self.y[first : first + batch]
        return (x.T @ (x @ theta - y) / batch).astype(numpy.float32)

    def loss(self, theta):
        return float(numpy.mean((self.x @ theta - self.y) ** 2) / 2)


def flat(arrays):
    return numpy.concatenate([arrays[name] for name in TENSORS])


def step(model, arrays, number):
    gradient = numpy.float32(0.05) * model.gradient(flat(arrays), number)
    for array, part in zip(arrays.values(), numpy.split(gradient, [TENSORS["left"]]), strict=True):
        array -= part


def zeros():
    return {name: numpy.zeros(size, numpy.float32) for name, size in TENSORS.items()}


def send_steps(every, fragment):
    """Those of PROTOCOL: H + t_p, 2 H + t_p, …, with t_p = (p + 1) H / P mod H."""
    return itertools.count(every + (fragment + 1) * every // len(TENSORS) % every, every)


def replay(steps, every, delay, alpha):
    """{name: W} after that number of steps of both sites."""
    models, thetas = [LeastSquares(site) for site in SITES], [zeros() for _ in SITES]
    anchors, momenta, sent = zeros(), zeros(), {}
    sends = {name: send_steps(every, p) for p, name in enumerate(TENSORS)}
    due = {name: next(each) for name, each in sends.items()}
    for number in range(1, steps + 1):
        for model, theta in zip(models, thetas, strict=True):
            step(model, theta, number)
        for name in TENSORS:
            if number == due[name]:
                sent[name] = numpy.mean([anchors[name] - theta[name] for theta in thetas], axis=0, dtype=numpy.float32)
            if number == due[name] + delay or (number == steps and number >= due[name]):  # what was sent is merged
                momenta[name] = numpy.float32(MU) * momenta[name] + sent[name]
                anchors[name] -= numpy.float32(ETA) * (numpy.float32(MU) * momenta[name] + sent[name])
                for theta in thetas:
                    theta[name] *= numpy.float32(alpha)
                    theta[name] += numpy.float32(1 - alpha) * anchors[name]
                due[name] = next(sends[name])
    return anchors


def loss(anchors):
    return sum(LeastSquares(site).loss(flat(anchors)) for site in SITES) / len(SITES)


@needs_library
class DelayTest(EndToEndTest):
    def train(self, run, site):
        arrays = zeros()
        model = LeastSquares(site)
        with causeway.Site(arrays, coordinator=run.grpc, site=site) as member:
            while not member.over:
                step(model, arrays, member.step + 1)
                member.after_step(tokens=1)

    def check(self, every, delay, alpha, steps=200):
        run = self.new_run({
            "run_id": "delay", "run": {"steps": steps}, "model": {"kind": "external"},
            "sync": {"sync_every": every, "fragments": [["left"], ["right"]], "num_fragments": 2,
                     "fragment_sync_delay": delay, "fragment_update_alpha": alpha},
            "outer": {"lr": ETA, "momentum": MU}, "codec": {"up": "float32", "down": "float32"},
            "membership": {"min_sites": len(SITES)}})
        run.start_coordinator()
        threads = [threading.Thread(target=self.train, args=(run, site), daemon=True) for site in SITES]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
            self.assertFalse(thread.is_alive(), "a site has not ended")
        exported, expected = run.export(), replay(steps, every, delay, alpha)
        run.stop_coordinator()
        for name, value in expected.items():
            self.assertGreater(float(abs(value).max()), 0.1, "the model has learnt something")
            self.assertLess(float(abs(value - exported[name]).max()), CLOSE, f"{name} at a delay of {delay}")

    def test_late_updates_give_what_the_replay_gives(self):
        for every, delay, alpha in ((30, 1, 0.5), (30, 10, 0.5), (30, 10, 0), (100, 10, 0.5)):
            with self.subTest(every=every, delay=delay, alpha=alpha):
                self.check(every, delay, alpha)

    @unittest.skipUnless(os.environ.get("DELAY_TABLE"), "DELAY_TABLE is not set: a table, not a test")
    def test_table(self):
        for every, alpha, steps in itertools.product((30, 100), (0.5, 0), (300, 1200)):
            losses = {delay: loss(replay(steps, every, delay, alpha)) for delay in (1, 10)}
            print(f"H={every} alpha={alpha} steps={steps}: loss {losses[1]:.5f} at a delay of 1, "
                  f"{100 * (losses[10] / losses[1] - 1):+.2f} % at 10")


if __name__ == "__main__":
    unittest.main()
