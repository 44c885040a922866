"""`codec.down: sparse`: each round's update has room for what its sites sent, at both ends and after kill −9."""

import unittest

from harness import DONE, DigestBook, EndToEndTest, eventually, synthetic

SITES = {"asia": 0.25, "eu": 1.0, "us": 0.5}
DOWN = {1: "topk32", 2: "topk", 3: "topk128"}  # by the number of contributions of topk32



def config_of(sync, **membership):
    return synthetic(
        SITES, [[3, 1500], [4096], [200]], model={"step_ms": 5, "init": "seeded", "gradient": {"kind": "noise"}},
        sync={"sync_every": 6, "num_fragments": 2, "fragment_sync_delay": 1, "fragment_update_alpha": 0.5, **sync},
        outer={"optimizer": "sgd", "lr": 1},
        codec={"up": "topk32", "down": "sparse", "feedback_up": 0.95, "feedback_down": 1},
        membership={"min_sites": 2, "lease_ms": 2000, **membership})


class SparseCodecTest(EndToEndTest):
    def check_rounds(self, run):
        """Each round has the codec for its contributions. The numbers of contributions that there were."""
        rounds = run.journal("SELECT rounds.codec_up, rounds.codec_down, count(*) FROM rounds JOIN contributions "
                             "ON contributions.fragment = rounds.fragment AND merged_version = version "
                             "GROUP BY rounds.fragment, version")
        for up, down, count in rounds:
            self.assertEqual((up, down), ("topk32", DOWN[count]), f"{count} contributions")
        return {count for _, _, count in rounds}

    def test_updates_grow_and_shrink_with_the_number_of_contributions(self):
        run = self.new_run(config_of({}))
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
        eventually(lambda: "sparse: for 3 of topk32" in (run.status() or {"codec": {}})["codec"].get("reason_down", ""),
                   "/status says why")
        self.assertEqual(run.workers.pop("us").terminate(), DONE)
        book.await_agreement(run, ["asia", "eu"], run.newest() + 2)
        run.stop_all()
        self.assertEqual(self.check_rounds(run) - {1}, {2, 3})  # one of the two may leave before the other

    def test_in_quorum_mode_each_round_has_room_for_those_that_came(self):
        run = self.new_run(config_of({"mode": "quorum"}, min_quorum=1, max_staleness=4))
        run.start_coordinator()
        book = DigestBook()
        run.start_workers(*SITES)
        book.await_agreement(run, list(SITES), run.newest() + 6)
        self.assertEqual(run.workers.pop("us").terminate(), DONE)
        book.await_agreement(run, ["asia", "eu"], run.newest() + 6)
        run.stop_all()
        self.assertGreater(len(self.check_rounds(run)), 1, "rounds of one number of contributions alone")


if __name__ == "__main__":
    unittest.main()
