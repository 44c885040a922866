"""A CHECK that fails inside a gRPC reactor of the library: the site is over, its program goes on (planted_check.cc)."""

import logging
import os
import signal
import unittest

import numpy

import causeway
from harness import DEADLINE_S, EndToEndTest, eventually, synthetic
from test_mixed import needs_library

STEPS = 120  # 20 rounds
os.environ["CAUSEWAY_PLANTED_CHECK"] = "10"  # more messages than joining takes, and fewer than the rounds


@needs_library
class BrokenInvariantTest(EndToEndTest):
    def setUp(self):
        # Handlers run while a site waits: one that is over, and does not know it, would wait for ever.
        signal.signal(signal.SIGALRM, lambda *_: self.fail(f"not within {DEADLINE_S} s: the site trains or is over"))
        self.addCleanup(signal.alarm, 0)
        signal.alarm(DEADLINE_S)

    def open_site(self):
        return causeway.Site({"t0": numpy.ones(1000, numpy.float32)}, coordinator=self.new.grpc, site="a")

    def train(self, site):
        while not site.over:
            site.after_step()

    def break_a_site(self):
        site = self.open_site()
        site.join()
        for _ in range(2):  # a site that is over stays so
            with self.assertRaisesRegex(causeway.FailedError, "internal error"):
                self.train(site)
        self.assertGreater(site.step, 0)
        self.assertLess(site.step, STEPS)
        site.close()

    def test_ends_its_site_while_the_program_goes_on_with_another_to_the_end_of_the_run(self):
        self.new = self.new_run(synthetic({"a": 0.5}, [[1000]], run={"steps": STEPS}))
        self.new.start_coordinator()
        with self.assertLogs("causeway", logging.ERROR) as lines:
            self.break_a_site()
        self.assertRegex("\n".join(lines.output), r"internal error: .*planted_check\.cc:\d+: CHECK failed: planted")
        eventually(lambda: "site a: is out of the run" in self.new.coordinator.log(), "the coordinator has heard it")
        with self.open_site() as site:
            self.train(site)
        self.assertEqual(site.step, STEPS)
        eventually(lambda: self.new.status()["state"] == "done", "the run is done")


if __name__ == "__main__":
    unittest.main()
