"""A site may be held to a rate (--max_up_mbit, --max_down_mbit); nobody else's transfers are slower for it."""

import time
import unittest

from harness import BAD_INPUT, EndToEndTest, eventually, synthetic

UP_MBIT, DOWN_MBIT = 48, 40
VALUES = 3_000_000  # twelve chunks of float32: seconds at those rates
FRAGMENT_BYTES = 4 * VALUES
TOLERANCE = 0.1
POLL_S = 0.01


def config_of():
    return synthetic({"free": 0.5, "held": 0.25}, [[VALUES]],
                     model={"step_ms": 10, "init": "seeded"},
                     sync={"sync_every": 10, "fragment_sync_delay": 9},
                     codec={"up": "float32", "down": "float32", "feedback_up": 0, "feedback_down": 0},
                     membership={"lease_ms": 1000})


def mbit_per_s(arrivals):
    """From one chunk to another."""
    (begin, first), (end, last) = arrivals[0], arrivals[-1]
    return 8e-6 * (last - first) / (end - begin)


class PacingTest(EndToEndTest):
    def first_upload(self, run, site):
        """When the coordinator's meter of a site's uploads had grown, and to what, up to one fragment."""
        arrivals = []

        def through():
            status = run.status()  # of one moment, however late it comes here
            value = sum(each["up_bytes"] for each in status["sites"] if each["name"] == site)
            if value and (not arrivals or value > arrivals[-1][1]):
                arrivals.append((status["uptime_s"], value))
            time.sleep(POLL_S)
            return arrivals and arrivals[-1][1] >= FRAGMENT_BYTES

        eventually(through, f"{site} has uploaded a fragment")
        return arrivals

    def test_payload_keeps_to_the_rates_and_the_other_site_does_not(self):
        run = self.new_run(config_of())
        run.start_coordinator()
        run.start_worker("held", f"--max_up_mbit={UP_MBIT}", f"--max_down_mbit={DOWN_MBIT}")
        run.start_worker("free")
        up = mbit_per_s(self.first_upload(run, "held"))
        self.assertAlmostEqual(up, UP_MBIT, delta=TOLERANCE * UP_MBIT)
        # The meter of downloads counts what was written, which is a stream's window ahead: the site's own does not.
        links = {site: eventually(lambda: (link := run.site(site)["link"])["down_bytes_per_s"] and link,
                                  f"{site} has measured a download") for site in ("held", "free")}
        down = 8e-6 * links["held"]["down_bytes_per_s"]
        self.assertAlmostEqual(down, DOWN_MBIT, delta=TOLERANCE * DOWN_MBIT)
        for leg in ("up_bytes_per_s", "down_bytes_per_s"):
            self.assertGreater(links["free"][leg], 1.5 * links["held"][leg], leg)
        run.stop_all()

    def test_a_rate_that_is_none_is_refused(self):
        for flag in ("--max_up_mbit", "--max_down_mbit"):
            expected = "expected 0 or more Mbit/s, got "
            for value, words in (("-1", f"{expected}-1"), ("inf", f"{expected}inf"), ("nan", f"{expected}nan"),
                                 ("fast", "got 'fast'")):
                worker = self.program(self.folder, f"worker{flag}-{value}", "causeway-worker", "--site=a",
                                      f"{flag}={value}")
                self.assertEqual(worker.wait(), BAD_INPUT, worker.log())
                self.assertIn(f"{flag}: {words}", worker.log())


if __name__ == "__main__":
    unittest.main()
