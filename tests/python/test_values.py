"""A site's arithmetic goes wrong: real programs, and values that are well-formed and ruin a model."""

import ctypes
import os
import pathlib
import sys
import unittest
from fractions import Fraction

import numpy
from causeway import _library
from causeway.errors import ConfigError
from harness import DONE, EndToEndTest, eventually

HERE = pathlib.Path(__file__).parent
LIBRARY = os.environ.get("CAUSEWAY_LIBRARY", "")
SYNC_EVERY = 5
GRADIENTS = {"asia": 0.001, "eu": 0.002, "us": -0.0005}


def config_of(steps, gate, min_quorum):
    return {"run_id": "values", "model": {"kind": "external"}, "run": {"steps": steps},
            "sync": {"sync_every": SYNC_EVERY, "num_fragments": 1, "fragment_sync_delay": 0,
                     "fragment_update_alpha": 0},
            "codec": {"up": "float32", "down": "int4"}, "values": {"gate": gate},
            "membership": {"min_sites": len(GRADIENTS), "min_quorum": min_quorum, "max_tokens_per_step": 8},
            "checkpoint": {"every_rounds": 5, "keep": 100}}


@unittest.skipUnless(os.path.exists(LIBRARY), f"no library at {LIBRARY or '$CAUSEWAY_LIBRARY'}")
class ValuesTest(EndToEndTest):
    def start(self, steps, gate, min_quorum=len(GRADIENTS)):
        run = self.new_run(config_of(steps, gate, min_quorum))
        run.start_coordinator()
        for site, gradient in GRADIENTS.items():
            run.workers[site] = self.program(run.folder, f"numpy-{site}", sys.executable, HERE / "poisoned_site.py",
                                             run.grpc, site, str(gradient), run.folder / f"poison-{site}")
        return run

    def alarms(self, run):
        return {(alarm["name"], alarm["site"]): alarm["text"] for alarm in (run.status() or {}).get("alarms", [])}

    def poison(self, run, site, alarm):
        """Once; gives the text of the alarm."""
        (run.folder / f"poison-{site}").touch()
        return eventually(lambda: self.alarms(run).get((alarm, site)), f"alarm {alarm} of {site}")

    def parameters_after(self, run, seconds=120):
        run.await_done(seconds)
        values = run.export()["w"]
        run.stop_coordinator()
        return values

    def test_without_a_gate_a_rollback_gives_the_bits_of_a_run_that_was_never_poisoned(self):
        run = self.start(steps=900, gate=0)
        run.await_rounds(12)
        text = self.poison(run, "eu", "outlier_merged")
        self.assertIn("times the usual", text)
        self.assertIn("causewayctl rollback", text)
        self.assertGreater(float(numpy.abs(run.export()["w"]).max()), 1e20)
        refused = run.program("ctl-rollback", "causewayctl", "rollback", f"--coordinator={run.grpc}", "--to=7", "--yes")
        self.assertEqual(refused.wait(), 3, refused.log())
        self.assertIn("version 7 is not kept; expected one of 0, 5, 10", refused.log())
        run.control("rollback", "--to=10", "--yes")
        (row,) = run.journal("SELECT version, rolled_back_to, reason FROM rounds WHERE rolled_back_to IS NOT NULL")
        made, back_to, reason = row
        self.assertEqual((back_to, reason), (10, "rolled back to version 10"))
        eventually(lambda: ("outlier_merged", "eu") not in self.alarms(run), "the alarm is over")
        eventually(lambda: run.rounds() > made + 3, "rounds go on")
        run.coordinator.kill()  # what it finds again are the bits of now
        run.start_coordinator()
        poisoned = self.parameters_after(run)
        rounds = run.journal("SELECT max(version) FROM rounds")[0][0]
        kinds = [kind for (kind,) in run.journal("SELECT kind FROM events WHERE kind IN ('rollback', 'refuse')")]
        self.assertEqual(kinds, ["rollback"])
        control = self.start(steps=(rounds - made + 10) * SYNC_EVERY, gate=8)
        expected = self.parameters_after(control)
        self.assertEqual(control.journal("SELECT max(version) FROM rounds")[0][0], rounds - made + 10)
        self.assertEqual(expected.tobytes(), poisoned.tobytes())

    def test_with_the_gate_the_model_never_sees_it_and_the_site_is_released_from_quarantine(self):
        run = self.start(steps=1500, gate=8, min_quorum=2)
        run.await_rounds(6)
        text = self.poison(run, "eu", "site_quarantined")
        self.assertIn("3 contributions in a row were refused", text)
        self.assertIn("is absurd: the usual is", text)
        site = run.site("eu")
        self.assertTrue(site["quarantined"])
        self.assertFalse(site["contributing"])
        run.await_rounds(run.rounds() + 5)  # asia and us, who are a quorum
        self.assertLess(float(numpy.abs(run.export()["w"]).max()), 10)
        run.coordinator.kill()
        run.start_coordinator()
        eventually(lambda: run.site("eu").get("quarantined"), "a restart finds the quarantine again")
        refused = run.program("ctl-release", "causewayctl", "release", f"--coordinator={run.grpc}", "--site=us")
        self.assertEqual(refused.wait(), 3, refused.log())
        self.assertIn("site us is not in quarantine", refused.log())
        run.control("release", "--site=eu")
        eventually(lambda: run.site("eu").get("last_merged"), "eu is merged again")
        self.assertFalse(run.site("eu")["quarantined"])
        self.assertLess(float(numpy.abs(self.parameters_after(run)).max()), 10)
        kinds = [kind for (kind,) in run.journal("SELECT kind FROM events WHERE kind IN ('refuse', 'quarantine', 'release')")]
        self.assertEqual(kinds, ["refuse", "refuse", "refuse", "quarantine", "release"])


@unittest.skipUnless(os.path.exists(LIBRARY), f"no library at {LIBRARY or '$CAUSEWAY_LIBRARY'}")
class OuterStepTest(unittest.TestCase):
    """causeway_outer_step rounds where core/outer_step.h says: against fractions, which do not."""

    def fused(self, a, b, c):
        return numpy.array([float(numpy.float32(_rounded(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)))))
                            for x, y, z in numpy.broadcast(a, b, c)], numpy.float32)

    def test_it_takes_nesterovs_step_from_the_anchor_as_the_model_has_it(self):
        library = _library.load()
        mu, eta = numpy.float32(0.5), numpy.float32(0.7)
        random = numpy.random.default_rng(3)
        for dtype, rounded in ((0, lambda w: w), (1, _bfloat16), (2, lambda w: w.astype(numpy.float16).astype(numpy.float32))):
            w, v, theta = (random.normal(size=3000).astype(numpy.float32) for _ in range(3))
            expected_v = self.fused(mu, v, rounded(w) - theta)
            expected_w = self.fused(-eta, self.fused(mu, expected_v, rounded(w) - theta), w)
            given = _library.OuterValues(dtype=dtype, count=w.size, theta=theta.ctypes.data, anchor=w.ctypes.data,
                                         momentum=v.ctypes.data, lr=0.7, momentum_factor=0.5)
            library.check(library.outer_step(ctypes.byref(given)))
            self.assertEqual(expected_v.tobytes(), v.tobytes())
            self.assertEqual(expected_w.tobytes(), w.tobytes())
        with self.assertRaisesRegex(ConfigError, "dtype: expected 0, 1 or 2, got 3"):
            library.check(library.outer_step(ctypes.byref(_library.OuterValues(dtype=3))))


def _rounded(value):
    """A fraction to the nearest float32, ties to even; of the size of these tests' values."""
    if value == 0:
        return 0.0
    sign, value = (-1 if value < 0 else 1), abs(value)
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    exponent -= value < Fraction(2) ** exponent
    unit = Fraction(2) ** (exponent - 23)
    return float(sign * round(value / unit) * unit)


def _bfloat16(values):
    bits = values.view(numpy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(numpy.uint32).view(numpy.float32)


if __name__ == "__main__":
    unittest.main()
