"""Quorum mode: no site waits for another; sites are slow, leave, die and come back, and so does the coordinator."""

import pathlib
import sys
import unittest

from harness import DONE, DigestBook, EndToEndTest, eventually, synthetic

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "chaos"))

from storm_lib.cluster import slowed  # noqa: E402

SITES = {"asia": 0.25, "eu": 1.0, "us": 0.5}
FRAGMENTS, SYNC_EVERY, LEASE_MS = 2, 10, 500


def config_of(min_quorum, **sections):
    return synthetic(SITES, [[300], [3, 1500], [5000], [257]],
                     model={"step_ms": 5, "init": "seeded", "gradient": {"kind": "noise"}},
                     sync={"mode": "quorum", "sync_every": SYNC_EVERY, "num_fragments": FRAGMENTS,
                           "fragment_sync_delay": 4, "fragment_update_alpha": 0.5},
                     codec={"up": "int4", "down": "int4", "feedback_up": 1, "feedback_down": 1},
                     membership={"min_quorum": min_quorum, "grace_ms": 20, "lease_ms": LEASE_MS, "max_staleness": 4,
                                 **sections})


class QuorumTest(EndToEndTest):
    def start(self, config, *sites):
        self.live = self.new_run(config)
        self.live.start_coordinator()
        self.live.start_workers(*sites)
        self.book = DigestBook()

    def await_state(self, state, reason):
        """A site that a busy machine kept waiting for longer than its lease may be gone, and comes back."""
        eventually(lambda: (now := self.live.status())["state"] == state and now["reason"] == reason,
                   f"the run is {state}, reason '{reason}'")

    def await_gone(self, site):
        eventually(lambda: self.live.site(site).get("state") == "gone", f"{site} is out of the run")

    def steps(self, site):
        return self.live.site(site).get("step", 0)

    def assert_nothing_is_decided(self, meanwhile):
        """Neither rows nor parameters change."""
        before, rounds = self.live.export(), self.live.journal("SELECT fragment, version, digest FROM rounds")
        meanwhile()
        self.assertEqual(self.live.journal("SELECT fragment, version, digest FROM rounds"), rounds)
        self.assert_same_bits(before, self.live.export(), "the parameters")

    def await_progress(self, *sites):
        """Sites agree on versions that come from now on."""
        self.book.await_agreement(self.live, sites, beyond=self.live.newest())

    def test_a_slow_site_is_never_waited_for_and_its_work_is_merged(self):
        self.start(config_of(min_quorum=2), *SITES)
        with slowed(self.live.workers["eu"], run_s=0.025, stop_s=0.075):
            eventually(lambda: self.live.site("eu").get("contributions_merged", 0) >= 5, "eu's work is merged")
            self.await_progress(*SITES)
        status = self.book.note_run(self.live)
        self.assertEqual([site["stall_s"] for site in status["sites"]], [0, 0, 0])
        merged = dict(self.live.journal("SELECT site, count(*) FROM contributions WHERE merged_version GROUP BY site"))
        self.assertLess(merged["eu"], merged["asia"], "there were rounds without eu")
        self.assertGreater(self.live.site("eu")["merged_weight"], 0)
        self.live.stop_all()

    def test_below_the_quorum_it_pauses_and_goes_on_when_a_site_joins(self):
        self.start(config_of(min_quorum=3), *SITES)
        self.await_progress(*SITES)
        self.live.workers.pop("eu").kill()
        self.await_gone("eu")
        self.await_state("paused", "2 sites are active, 3 are needed (min_quorum)")

        def the_others_train_on():
            steps = self.steps("us")
            eventually(lambda: self.steps("us") > steps + 3 * SYNC_EVERY, "us trains on")

        self.assert_nothing_is_decided(the_others_train_on)
        self.live.start_worker("africa")
        self.await_progress("africa", "asia", "us")
        self.await_state("training", "")
        self.live.stop_all()

    def test_after_its_last_site_was_killed_it_pauses_and_a_new_one_goes_on_from_the_state(self):
        self.start(config_of(min_quorum=1), *SITES)
        self.await_progress(*SITES)
        for worker in self.live.workers.values():
            worker.kill()
        self.live.workers.clear()
        self.await_state("paused", "no site is in the run; it goes on when one joins")
        versions = [fragment["version"] for fragment in self.live.status()["fragments"]]
        self.live.start_worker("africa")
        self.await_progress("africa")
        first = "SELECT fragment, min(base) FROM contributions WHERE site = 'africa' GROUP BY fragment ORDER BY fragment"
        self.assertEqual(self.live.journal(first), list(enumerate(versions)))
        self.live.stop_all()

    def test_an_empty_site_that_is_killed_and_restarted_over_and_over_changes_nothing(self):
        self.start(config_of(min_quorum=3), *SITES)
        self.await_progress(*SITES)
        for site in ("eu", "us"):
            self.live.workers.pop(site).kill()
            self.await_gone(site)

        def come_and_go():
            for moment in ["joining", "training", "contributed", "joining", "training"]:
                self.live.start_worker("empty")
                eventually(lambda: self.has_come_to("empty", moment), f"the empty site: {moment}")
                self.live.workers.pop("empty").kill()
                self.await_gone("empty")

        self.assert_nothing_is_decided(come_and_go)
        self.await_state("paused", "1 site is active, 3 are needed (min_quorum)")
        self.assertEqual(self.merged("empty"), [(None, FRAGMENTS)])
        self.live.start_workers("eu", "us")
        self.await_progress(*SITES)
        self.assertNotIn(None, dict(self.merged("empty")), "what was admitted is merged when the run goes on")
        self.live.stop_all()

    def merged(self, site):
        """(merged, contributions) of all that were admitted."""
        return self.live.journal("SELECT CASE WHEN merged_version THEN 1 END AS merged, count(*) FROM contributions "
                                 f"WHERE site = '{site}' GROUP BY merged")

    def has_come_to(self, site, moment):
        if moment == "contributed":  # to every fragment: no second time while these wait
            return self.merged(site) == [(None, FRAGMENTS)]
        return self.live.site(site).get("state") in (moment, "training")

    def test_sites_wait_while_the_coordinator_has_an_empty_state_and_go_on_with_theirs(self):
        self.start(config_of(min_quorum=2), *SITES)
        self.await_progress(*SITES)
        self.live.coordinator.kill()
        of_the_run, self.live.state_dir = self.live.state_dir, self.live.folder / "empty"
        self.live.start_coordinator()
        for site in SITES:
            eventually(lambda: "this state directory is of lineage" in self.live.workers[site].log(), f"{site} waits")
        eventually(lambda: any("asia, eu, us wait: the site holds parameters of lineage" in alarm["text"]
                               for alarm in self.live.status()["alarms"]), "the alarm of all sites")
        self.assertEqual(self.live.status()["fragments"], [], "none of them was taken as the source")
        self.live.stop_coordinator()
        self.live.state_dir = of_the_run
        self.live.start_coordinator()
        self.await_progress(*SITES)
        self.live.stop_all()

    def test_a_coordinator_that_is_killed_comes_back_and_all_sites_go_on(self):
        self.start(config_of(min_quorum=2, lease_ms=20_000), *SITES)
        for _ in range(3):
            self.await_progress(*SITES)
            self.live.coordinator.kill()
            self.live.start_coordinator()
        self.await_progress(*SITES)
        self.assertEqual(self.live.status()["epoch"], 4)
        self.assertEqual({site["state"] for site in self.live.status()["sites"]}, {"training"})
        joined = self.live.journal("SELECT site, count(*) FROM events WHERE kind = 'join' GROUP BY site ORDER BY site")
        self.assertEqual(joined, [(site, 1) for site in SITES], "a site lost its place")
        self.live.stop_all()

    def test_an_operator_pauses_resumes_and_stops_it(self):
        self.start(config_of(min_quorum=2), *SITES)
        self.await_progress(*SITES)
        self.live.control("pause")
        self.await_state("paused", "paused by an operator")

        def an_empty_site_comes_and_goes():
            self.live.start_worker("empty")
            eventually(lambda: self.has_come_to("empty", "training"), "the empty site is in")
            self.live.workers.pop("empty").kill()
            self.await_gone("empty")

        self.assert_nothing_is_decided(an_empty_site_comes_and_goes)
        self.live.control("resume")
        self.await_progress(*SITES)
        self.live.control("stop", "--yes")
        self.live.await_done()
        self.live.stop_coordinator()


if __name__ == "__main__":
    unittest.main()
