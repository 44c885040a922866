"""A site that hangs loses its lease; the others go on, and it joins anew when it comes back."""

import signal
import unittest

from harness import DONE, DigestBook, EndToEndTest, eventually, synthetic

SITES = {"asia": 0.25, "eu": 1.0, "us": 0.5}
FRAGMENTS = 2


class LeaseTest(EndToEndTest):
    def test_a_site_that_hangs_is_dropped_and_rejoins_from_the_anchors(self):
        config = synthetic(SITES, [[1000], [257]],
                           model={"step_ms": 5, "init": "seeded", "gradient": {"kind": "noise"}},
                           sync={"sync_every": 10, "num_fragments": FRAGMENTS, "fragment_sync_delay": 1,
                                 "fragment_update_alpha": 0.5},
                           membership={"lease_ms": 600})
        run = self.new_run(config)
        run.start_coordinator()
        run.start_workers(*SITES)
        run.await_rounds(2)

        run.workers["eu"].send(signal.SIGSTOP)
        dropped = eventually(lambda: run.site("eu")["state"] == "gone" and run.site("eu"), "eu's lease ends")
        self.assertIn("not heard of for 600 ms (lease_ms)", dropped["reason"])
        run.await_rounds(run.rounds() + 3)  # the others go on
        eventually(lambda: run.site("us")["state"] == "training", "us trains")

        run.workers["eu"].send(signal.SIGCONT)
        eventually(lambda: run.site("eu")["state"] == "training", "eu trains again")
        DigestBook().await_agreement(run, SITES, beyond=run.newest())  # of versions that eu helped to make
        self.assertIn("joins anew", run.workers["eu"].log())
        for worker in run.workers.values():
            self.assertEqual(worker.terminate(), DONE, worker.log()[-2000:])
        run.stop_coordinator()


if __name__ == "__main__":
    unittest.main()
