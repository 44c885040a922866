"""Honest runs with default settings: whatever their learning rates, scales and sites do, none stands still."""

import json
import os
import pathlib
import sys
import unittest

from harness import DONE, REFUSED, EndToEndTest, eventually

HERE = pathlib.Path(__file__).parent
LIBRARY = os.environ.get("CAUSEWAY_LIBRARY", "")
SYNC_EVERY = 5


@unittest.skipUnless(os.path.exists(LIBRARY), f"no library at {LIBRARY or '$CAUSEWAY_LIBRARY'}")
class HonestTest(EndToEndTest):
    def start(self, sites, steps=0):
        run = self.new_run({"run_id": "honest", "model": {"kind": "external"}, "run": {"steps": steps},
                            "sync": {"sync_every": SYNC_EVERY, "num_fragments": 1}})
        run.start_coordinator()
        self.start_sites(run, sites)
        return run

    def start_sites(self, run, sites):
        for name, options in sites.items():
            run.workers[name] = self.program(run.folder, f"numpy-{name}", sys.executable, HERE / "honest_site.py",
                                             run.grpc, name, json.dumps(options))

    def alarms(self, run):
        return {alarm["name"] for alarm in (run.status() or {}).get("alarms", [])}

    def await_more(self, run, rounds):
        """No contribution was refused on the way."""
        run.await_rounds(run.rounds() + rounds)
        self.assertEqual([], run.journal("SELECT kind, site, text FROM events WHERE kind IN ('refuse', 'quarantine')"))
        for name, worker in run.workers.items():
            self.assertTrue(worker.running(), f"{name}: {worker.log()[-2000:]}")

    def await_ended(self, run):
        for worker in run.workers.values():
            self.assertEqual(worker.wait(), DONE, worker.log()[-2000:])
        eventually(lambda: run.status()["state"] == "done", "the run is done")

    def test_a_finished_run_is_prolonged_and_its_learning_rate_rises_a_hundredfold(self):
        run = self.start({name: {"lr": 0.1, "end": 400, "noise": 1} for name in ("eu", "us")}, steps=400)
        self.await_ended(run)
        run.control("set", "run.steps=4000")
        self.start_sites(run, {name: {"lr": 0.1, "end": 4000, "noise": 1} for name in ("eu", "us")})
        self.await_more(run, 30)
        self.assertIn("scaled by", run.journal("SELECT group_concat(reason) FROM rounds")[0][0])
        eventually(lambda: not self.alarms(run), "the lengths are usual by now")

    def test_of_two_sites_one_has_a_hundredth_of_the_others_learning_rate(self):
        run = self.start({"eu": {"lr": 0.002, "noise": 1}, "us": {"lr": 0.2, "noise": 1}})
        self.await_more(run, 10)

    def test_targets_are_prices_at_two_sites_and_at_three(self):
        for sites in (("eu", "us"), ("asia", "eu", "us")):
            self.await_more(self.start({name: {"scale": 2e5} for name in sites}), 10)

    def test_one_site_has_converged_alone_when_another_comes_with_data_of_its_own(self):
        run = self.start({"eu": {"lr": 0.5}})
        run.await_rounds(25)
        self.start_sites(run, {"us": {"lr": 0.5}})
        eventually(lambda: (run.site("us") or {}).get("last_merged"), "us is merged")
        self.await_more(run, 10)

    def test_weights_that_the_last_contributions_break_are_refused_by_name(self):
        run = self.start({name: {"tokens": 0} for name in ("eu", "us")})
        run.await_rounds(3)
        setter = run.program("ctl-set", "causewayctl", "set", f"--coordinator={run.grpc}", "membership.weights=tokens")
        self.assertEqual(REFUSED, setter.wait(), setter.log())
        self.assertIn("'s last contribution would be refused: contributions are weighted by tokens (membership.weights)",
                      setter.log())
        self.await_more(run, 5)

    def test_a_run_that_scripts_have_called_finished_after_steps_of_their_own_is_not_and_goes_on(self):
        run = self.start({name: {"steps": 60} for name in ("eu", "us")})
        eventually(lambda: all(site["state"] == "gone" for site in run.status()["sites"]), "the scripts have left")
        self.assertNotEqual("done", run.status()["state"])
        before = run.rounds()
        run.control("set", "run.steps=2000")
        self.start_sites(run, {"eu": {}, "us": {}})
        eventually(lambda: run.rounds() > before + 5, "rounds go on")

    def test_numpy_sites_give_a_lost_state_its_settings_back(self):
        run = self.start({"eu": {}, "us": {}})
        run.await_rounds(2)
        run.control("set", "outer.lr=0.5", "codec.down=int8")
        (one,) = eventually(lambda: run.status()["settings"], "the page has the change")
        run.await_rounds(one["versions"][0] + 3)
        before = [(one["revision"], one["step"], one["changes"])]
        run.coordinator.kill()
        run.state_dir.rename(run.folder / "lost")
        run.start_coordinator("--rebuild_from_sites")
        self.await_more(run, 4)
        self.assertEqual(before, [(one["revision"], one["step"], one["changes"]) for one in run.status()["settings"]])
        self.assertEqual([(1, 0.5, "int8")], run.journal(
            "SELECT config_revision, round(lr, 3), codec_down FROM rounds ORDER BY id DESC LIMIT 1"))


if __name__ == "__main__":
    unittest.main()
