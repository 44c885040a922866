"""`codec.down: sparse`: each round's update has room for what its sites sent, at both ends and after kill −9."""

import unittest

from harness import DONE, DigestBook, EndToEndTest, synthetic

SITES = {"asia": 0.25, "eu": 1.0, "us": 0.5}
DOWN = {1: "topk32", 2: "topk", 3: "topk128"}  # by the number of contributions of topk32


class SparseCodecTest(EndToEndTest):
    def test_updates_grow_and_shrink_with_the_number_of_contributions(self):
        run = self.new_run(synthetic(
            SITES, [[3, 1500], [4096], [200]],
            model={"step_ms": 5, "init": "seeded", "gradient": {"kind": "noise"}},
            sync={"sync_every": 6, "num_fragments": 2, "fragment_sync_delay": 1, "fragment_update_alpha": 0.5},
            outer={"optimizer": "sgd", "lr": 1},
            codec={"up": "topk32", "down": "sparse", "feedback_up": 0.95, "feedback_down": 1},
            membership={"min_sites": 2, "lease_ms": 2000}))
        run.start_coordinator()
        self.assertEqual(run.status()["codec"]["down"], DOWN[2])
        book = DigestBook()
        run.start_workers("asia", "eu")
        book.await_agreement(run, ["asia", "eu"], run.newest() + 2)
        run.start_worker("us")
        book.await_agreement(run, list(SITES), run.newest() + 2)
        run.coordinator.kill()  # decided rounds are merged again as they were decided
        run.start_coordinator()
        book.await_agreement(run, list(SITES), run.newest() + 2)
        self.assertEqual(run.workers.pop("us").terminate(), DONE)
        book.await_agreement(run, ["asia", "eu"], run.newest() + 2)
        run.stop_all()
        rounds = run.journal("SELECT rounds.codec_up, rounds.codec_down, count(*) FROM rounds JOIN contributions "
                             "ON contributions.fragment = rounds.fragment AND merged_version = version "
                             "GROUP BY rounds.fragment, version")
        self.assertEqual({(up, down, count) for up, down, count in rounds},
                         {("topk32", DOWN[2], 2), ("topk32", DOWN[3], 3)})


if __name__ == "__main__":
    unittest.main()
