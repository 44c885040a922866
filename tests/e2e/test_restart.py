"""Programs are stopped and started again in the middle of a run; the others go on, and no bit differs."""

import random
import time
import unittest

from harness import DONE, DigestBook, EndToEndTest, eventually, synthetic

SITES = {"asia": 0.25, "eu": 1.0, "us": 0.5}
SHAPES = [[100], [257], [3, 1500], [5000]]
SEED = 7
RESTARTS = 6


def config_of(**sections):
    return synthetic(SITES, SHAPES, model={"step_ms": 8, "init": "seeded", "gradient": {"kind": "noise"}},
                     sync={"sync_every": 10, "num_fragments": 4, "fragment_sync_delay": 1,
                           "fragment_update_alpha": 0.5},
                     codec={"up": "int4", "down": "int4", "feedback_up": 1, "feedback_down": 1}, **sections)


class CoordinatorRestartTest(EndToEndTest):
    """Points between two messages are met at random; the seed keeps a failure."""

    def commits(self, run):
        return sum(fragment["version"] for fragment in run.status()["fragments"])

    def restart_at_random(self, run, commits, random_numbers):
        """Stops the coordinator some moments after the given number of commits and starts it again."""
        eventually(lambda: self.commits(run) >= commits, f"{commits} commits")
        time.sleep(random_numbers.uniform(0, 0.04))  # waits for nothing: a moment within the next steps
        run.stop_coordinator()
        run.start_coordinator()

    def finish(self, run):
        run.await_done()
        result = {"export": run.export()} | {site: run.local(site) for site in SITES}
        run.stop_coordinator()
        return result

    def test_a_run_whose_coordinator_is_stopped_and_started_again_has_the_bits_of_an_undisturbed_one(self):
        config = config_of(run={"steps": 200})
        undisturbed = self.new_run(config)
        undisturbed.start_coordinator()
        undisturbed.start_workers(*SITES)

        disturbed = self.new_run(config)
        disturbed.start_coordinator()
        disturbed.start_workers(*SITES)
        random_numbers = random.Random(SEED)
        total = 4 * 19  # commits of the whole run: 19 rounds of each fragment at least
        at = sorted(random_numbers.sample(range(1, total - 30), RESTARTS))
        for commits in [0, *at]:  # the first while sites join
            self.restart_at_random(disturbed, commits, random_numbers)
        self.assertEqual(disturbed.status()["epoch"], RESTARTS + 2)
        self.assertTrue(all(worker.running() for worker in disturbed.workers.values()), "restarted before the end")

        expected, got = self.finish(undisturbed), self.finish(disturbed)
        for part, tensors in expected.items():
            self.assert_same_bits(tensors, got[part], part)


class WorkerRestartTest(EndToEndTest):
    def setUp(self):
        self.book = DigestBook()
        self.live = self.new_run(config_of(membership={"min_sites": 3, "lease_ms": 500}))
        self.live.start_coordinator()
        self.live.start_workers(*SITES)
        self.await_agreement(SITES, beyond=0)

    def await_agreement(self, sites, beyond):
        self.book.await_agreement(self.live, sites, beyond)

    def await_rejoin(self):
        """Starts eu again and waits until it trains and agrees on versions that came after."""
        self.live.start_worker("eu")
        eventually(lambda: self.live.site("eu")["state"] == "training", "eu trains again")
        self.await_agreement(SITES, beyond=self.live.newest())
        self.assertGreater(self.live.site("eu")["contributions_merged"], 0)

    def test_a_worker_that_is_stopped_drains_and_rejoins_from_the_anchors(self):
        self.assertEqual(self.live.workers["eu"].terminate(), DONE)
        eventually(lambda: self.live.site("eu")["state"] == "gone", "eu is out of the run")
        self.await_agreement(["asia", "us"], beyond=self.live.newest())
        self.await_rejoin()
        self.live.stop_all()

    def test_a_worker_that_is_killed_is_dropped_after_its_lease_and_rejoins(self):
        self.live.workers["eu"].kill()
        gone = eventually(lambda: self.live.site("eu")["state"] == "gone" and self.live.site("eu"), "eu's lease ends")
        self.assertIn("500 ms (lease_ms)", gone["reason"])
        self.await_agreement(["asia", "us"], beyond=self.live.newest())
        self.await_rejoin()
        self.live.stop_all()


if __name__ == "__main__":
    unittest.main()
