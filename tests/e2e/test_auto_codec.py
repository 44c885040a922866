"""`codec.up: auto`: the coordinator takes the best codec that fits a round on the slowest link, round by round."""

import itertools
import unittest

from harness import DONE, DigestBook, EndToEndTest, eventually, synthetic

BEST = "rotated_lm4"
CHEAPEST = "rotated_sign"
# A round takes a second or more. A site has 2,000,000 values, 1 MB at 4 bits, for which the slow one would need
# 2.7 s; at 1 bit 0.7 s.
SHAPE = [1_000_000]
SLOW_MBIT = 3


class AutoCodecTest(EndToEndTest):
    def start(self):
        run = self.new_run(synthetic(
            {"fast": 0.5, "slow": 0.3}, [SHAPE, SHAPE],
            model={"step_ms": 50, "gradient": {"kind": "noise"}},
            sync={"sync_every": 20, "num_fragments": 2, "fragment_sync_delay": 5, "fragment_assignment": "balanced"},
            codec={"up": "auto", "down": "auto", "allow_down": [BEST, CHEAPEST]},
            membership={"min_sites": 1}))
        run.start_coordinator()
        self.assertEqual(run.status()["codec"]["up"], CHEAPEST)
        return run

    def await_codec(self, run, accepted, what):
        return eventually(lambda: accepted((run.status() or {}).get("codec", {"up": "", "down": "", "reason_up": ""})),
                          what)

    def check_rounds(self, run):
        """Every version's contributions have the codec that was decided with the version. All up codecs there were."""
        used = set()
        for fragment in range(2):
            rounds = run.journal("SELECT version, codec_up, codec_down, codec_next_up FROM rounds "
                                 f"WHERE fragment = {fragment} ORDER BY version")
            self.assertEqual(rounds[0][:2], (1, CHEAPEST))
            for (_, _, _, decided), (version, up, down, _) in itertools.pairwise(rounds):
                self.assertEqual(up, decided, f"fragment {fragment}, version {version}")
                self.assertIn(down, (BEST, CHEAPEST))
                used.add(up)
        return used

    def test_a_slow_site_takes_a_cheaper_codec_and_a_better_one_comes_back_when_it_leaves(self):
        run = self.start()
        book = DigestBook()
        run.start_worker("fast")
        self.await_codec(run, lambda codec: codec["up"] == codec["down"] == BEST, "the fast site alone has the best")
        slow = run.start_worker("slow", f"--max_up_mbit={SLOW_MBIT}")
        self.await_codec(run, lambda codec: codec["up"] != BEST and "(slow, " in codec["reason_up"],
                         "a codec that fits the slow link")
        book.await_agreement(run, ["fast", "slow"], run.newest())
        self.assertEqual(run.status()["codec"]["down"], BEST)  # its way back is no slower than others'

        # Decided rounds are merged again with the codecs of their decision, or digests differ.
        run.coordinator.kill()
        run.start_coordinator()
        book.await_agreement(run, ["fast", "slow"], run.newest() + 1)

        self.assertEqual(slow.terminate(), DONE)
        self.await_codec(run, lambda codec: codec["up"] == BEST, "the best again")
        book.await_agreement(run, ["fast"], run.newest() + 1)
        run.workers.pop("slow")
        run.stop_all()
        used = self.check_rounds(run)
        self.assertIn(BEST, used)
        self.assertGreater(len(used), 1)
        self.assertTrue(run.journal("SELECT 1 FROM events WHERE kind = 'codec' AND text LIKE 'up: after %(%'"))


if __name__ == "__main__":
    unittest.main()
