"""A site may be held to a rate (--max_up_mbit, --max_down_mbit); no other site's transfers wait for it.

The rate here is so low that a second chunk would come hours later, so that what is asserted is bytes and order, however
busy the machine is. That the bytes keep to a rate is tests/transport/pacer_test.cc, on virtual time.
"""

import unittest

from harness import BAD_INPUT, EndToEndTest, eventually, synthetic

HELD_MBIT = 0.001  # 125 bytes a second: two and a half hours a chunk
VALUES = 3_000_000  # twelve chunks of float32
CHUNK_BYTES = 1 << 20  # the most; two of them are nearly twice that
SYNC_EVERY, DELAY = 10, 9


def config_of():
    return synthetic({"free": 0.5, "held": 0.25}, [[VALUES]],
                     model={"step_ms": 10, "init": "seeded"},
                     sync={"sync_every": SYNC_EVERY, "fragment_sync_delay": DELAY},
                     codec={"up": "float32", "down": "float32", "feedback_up": 0, "feedback_down": 0})


class PacingTest(EndToEndTest):
    def start(self, *flags_of_held):
        """Both sites; the other one seeds, because initial parameters are payload, too."""
        run = self.new_run(config_of())
        run.start_coordinator()
        run.start_worker("free")
        eventually(lambda: run.site("free"), "free has joined")
        run.start_worker("held", *flags_of_held)
        return run

    def await_step(self, run, site, step):
        eventually(lambda: run.site(site).get("step", 0) >= step, f"{site} is at step {step}")

    def test_a_held_upload_waits_after_its_first_chunk_and_the_other_sites_goes_through(self):
        run = self.start(f"--max_up_mbit={HELD_MBIT}")
        # Where the update is due both wait for it; an upload that nothing holds would have been through by then.
        due = SYNC_EVERY + DELAY
        for site in ("free", "held"):
            self.await_step(run, site, due)
        eventually(lambda: "free" in run.status()["fragments"][0]["contributors"], "free's upload is through")
        up_bytes = eventually(lambda: run.site("held")["up_bytes"], "held's first chunk has arrived")
        self.assertLessEqual(up_bytes, CHUNK_BYTES)
        self.assertEqual(run.status()["fragments"][0]["contributors"], ["free"])
        self.assertEqual((run.site("free")["step"], run.site("held")["step"], run.rounds()), (due, due, 0))

    def test_a_held_download_waits_and_the_other_sites_goes_through(self):
        run = self.start(f"--max_down_mbit={HELD_MBIT}")
        due = SYNC_EVERY + DELAY
        # One round later the other site waits in its turn: for held's next contribution, which has no update to begin with.
        self.await_step(run, "free", due + SYNC_EVERY)
        self.await_step(run, "held", due)
        self.assertEqual(run.site("free")["digests"]["0"]["version"], 1)
        self.assertEqual(run.site("held")["digests"]["0"]["version"], 0)
        self.assertEqual((run.site("free")["step"], run.site("held")["step"], run.rounds()),
                         (due + SYNC_EVERY, due, 1))

    def test_a_rate_that_is_none_is_refused(self):
        for flag in ("--max_up_mbit", "--max_down_mbit"):
            expected = "expected a finite rate of 0 or more Mbit/s, got "
            for value, words in (("-1", f"{expected}-1"), ("inf", f"{expected}inf"), ("nan", f"{expected}nan"),
                                 ("fast", "expected a number, got 'fast'")):
                worker = self.program(self.folder, f"worker{flag}-{value}", "causeway-worker", "--site=a",
                                      f"{flag}={value}")
                self.assertEqual(worker.wait(), BAD_INPUT, worker.log())
                self.assertIn(f"{flag}: {words}", worker.log())


if __name__ == "__main__":
    unittest.main()
