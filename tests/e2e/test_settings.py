"""The settings of a running run are changed by causewayctl set, from a step and a round that lie ahead, on every site."""

import signal
import unittest

from harness import BAD_INPUT, DONE, REFUSED, DigestBook, EndToEndTest, eventually, synthetic
from test_lost_state import LostState

SITES = {"asia": 0.25, "eu": 1.0, "us": 0.5}
SHAPES = [[100], [257], [3, 1500], [5000]]
AT_STEP = 150


def config_of(**sections):
    return synthetic(SITES, SHAPES, model={"step_ms": 20, "init": "seeded", "gradient": {"kind": "noise"}},
                     inner={"optimizer": "adamw", "lr": 0.01, "schedule": "cosine"},
                     sync={"sync_every": 10, "num_fragments": 4, "fragment_sync_delay": 1,
                           "fragment_update_alpha": 0.5},
                     codec={"up": "int4", "down": "int4", "feedback_up": 1, "feedback_down": 1},
                     checkpoint={"every_rounds": 2}, **sections)


CHANGES = ["inner.lr=0.002", "outer.lr=0.4", "outer.momentum=0.5", "codec.up=int8", "codec.down=sign",
           "codec.feedback_up=0", "codec.feedback_down=0", "run.steps=260"]
AT_ONCE = ["values.weight_cap=0.4", "membership.min_quorum=2", "membership.lease_ms=20000"]


class SettingsTest(EndToEndTest):
    def set(self, run, *arguments, code=DONE):
        setter = run.program("ctl-set", "causewayctl", "set", f"--coordinator={run.grpc}", *arguments)
        self.assertEqual(setter.wait(), code, setter.log())
        return setter.output() if code == DONE else setter.log()

    def started(self, config):
        run = self.new_run(config)
        run.start_coordinator()
        for site in SITES:
            run.start_worker(site, f"--checkpoint_dir={run.folder}/checkpoint-{site}")
        run.await_rounds(2)
        return run

    def finish(self, run):
        run.await_done()
        result = {"export": run.export()} | {site: run.local(site) for site in SITES}
        run.stop_coordinator()
        return result

    def test_changes_hold_from_the_same_step_and_rounds_when_programs_are_killed_around_them(self):
        config = config_of(run={"steps": 200})
        undisturbed = self.started(config)
        said = self.set(undisturbed, f"--at_step={AT_STEP}", *CHANGES)
        self.assertIn(f"revision 1, from step {AT_STEP} on", said)
        self.assertIn("inner.lr: 0.01 → 0.002", said)
        self.assertIn(f"revision 3, from step {AT_STEP} on, as was to come", self.set(undisturbed, *AT_ONCE))
        disturbed = self.started(config)
        self.set(disturbed, f"--at_step={AT_STEP}", *CHANGES)
        self.set(disturbed, *AT_ONCE)
        for before in (AT_STEP - 30, AT_STEP - 5, AT_STEP + 12):
            eventually(lambda: 10 * disturbed.rounds() >= before, f"step {before}")
            disturbed.workers["us"].kill()
            disturbed.coordinator.kill()
            disturbed.start_coordinator()
            disturbed.start_worker("us", f"--checkpoint_dir={disturbed.folder}/checkpoint-us")
        status = disturbed.status()
        self.assertEqual([260, 0.002], [status["config"]["run"]["steps"], status["config"]["inner"]["lr"]])
        rounds = disturbed.journal("SELECT DISTINCT config_revision, round(lr, 3), codec_up, codec_down, round(gain, 4) "
                                   "FROM rounds WHERE version > 2")
        self.assertEqual({(2, 0.7, "int4", "int4", 1), (3, 0.4, "int8", "sign", 1.5708)},
                         {one for one in rounds if one[0] > 0})
        at = [(one["revision"], one["step"]) for one in status["settings"]]
        self.assertEqual([(1, AT_STEP), (3, AT_STEP)], [at[0], at[2]])
        expected, got = self.finish(undisturbed), self.finish(disturbed)
        for part, tensors in expected.items():
            self.assert_same_bits(tensors, got[part], part)

    def test_a_run_whose_steps_are_done_goes_on_with_more(self):
        run = self.started(config_of(run={"steps": 60}))
        run.await_done()
        before = run.rounds()
        self.set(run, "run.steps=100")
        eventually(lambda: run.status()["state"] == "paused", "the run waits for its sites")
        for site in SITES:
            run.start_worker(site, f"--checkpoint_dir={run.folder}/checkpoint-{site}")
        run.await_done()
        self.assertGreaterEqual(run.rounds(), before + 4)

    def test_values_that_cannot_be_set_are_refused_with_the_reason(self):
        run = self.started(config_of(run={"steps": 0}))
        for argument, code, why in (
                ("model.kind=llama", REFUSED, "model.kind is fixed for a run; start a new one from an export"),
                ("inner.batch_size=3", REFUSED, "inner.batch_size cannot change in a running run yet"),
                ("durability.journal=relaxed", REFUSED, "is taken from run.yaml at the next start"),
                ("inner.lrr=1", BAD_INPUT, "inner.lrr: expected lr (the nearest known key), got an unknown key"),
                ("outer.lr=-1", BAD_INPUT, "outer.lr: expected a number of 0 or more, got -1"),
                ("codec.up=rotated_sign", REFUSED, "residuals cannot pass from one kind to the other"),
                ("codec.up=topk", REFUSED, "topk cannot begin or end in a running run"),
                ("outer.lr=0.7", REFUSED, "the run has these values already"),
                ("outer.lr", BAD_INPUT, "expected KEY=VALUE"),
        ):
            self.assertIn(why, self.set(run, argument, code=code), argument)
        self.assertIn("at_step: expected at least", self.set(run, "outer.lr=0.5", "--at_step=1", code=REFUSED))
        self.assertIn("nothing is changed", self.set(run, "outer.lr=0.5", "--dry_run"))
        self.assertEqual([], run.status()["settings"])
        run.stop_all()

    def test_changes_around_a_pending_one_hold_when_their_answers_say(self):
        run = self.started(config_of(run={"steps": 0}))
        self.set(run, "inner.lr=0.001", "--at_step=100000")
        said = self.set(run, "outer.lr=0.5")
        self.assertIn("revision 2, from step", said)
        self.assertIn("revision 3, from step 100000 on, as was to come", said)
        self.assertIn("inner.lr: 0.01 → 0.001", said.partition("revision 3")[2])
        first = run.status()["settings"][1]["versions"][0] if len(run.status()["settings"]) > 1 else run.rounds() + 3
        run.await_rounds(first + 2)
        self.assertEqual([(0.5,)], run.journal("SELECT round(lr, 3) FROM rounds ORDER BY id DESC LIMIT 1"))
        self.assertIn("(at once)", self.set(run, "membership.lease_ms=3000", "values.gate=1", "values.clip=true"))
        self.assertIn("values.gate would hold at once", self.set(run, "values.gate=2", "--at_step=99999", code=REFUSED))
        run.await_rounds(run.rounds() + 4)
        run.workers["us"].kill()
        eventually(lambda: run.site("us")["state"] == "gone", "the lease of 3 s has ended", 8)
        self.assertIn("more than 10 times the learning rate; --yes", self.set(run, "outer.lr=1e30", code=REFUSED))
        cancelled = self.set(run, "--cancel")
        self.assertIn("inner.lr: 0.001 → 0.01", cancelled)
        self.assertIn("no change of settings is pending", self.set(run, "--cancel", code=REFUSED))
        self.assertIn("or --cancel alone, got both", self.set(run, "--cancel", "outer.lr=1", code=BAD_INPUT))
        eventually(lambda: run.status()["config"]["inner"]["lr"] == 0.01, "the page has what holds")
        self.set(run, "outer.lr=5.5", "--yes")
        run.control("pause")
        refused = ""
        for i in range(70):
            setter = run.program("ctl-set", "causewayctl", "set", f"--coordinator={run.grpc}", f"outer.lr={0.5 + i / 100}")
            if setter.wait() != DONE:
                refused = setter.log()
                break
        self.assertIn("the last 64 changes of settings have not taken effect yet", refused)
        eventually(lambda: len(run.status()["settings"]) == 64, "the status has 64")
        run.control("resume")
        run.workers.pop("us")
        run.stop_all()

    def test_a_restart_with_another_run_yaml_says_what_it_takes_and_what_would_change_the_rest(self):
        run = self.started(config_of(run={"steps": 0}))
        self.set(run, "outer.lr=0.5")
        run.coordinator.kill()
        text = run.config_path.read_text()
        run.config_path.write_text(text.replace('"every_rounds": 2', '"every_rounds": 3').replace(
            '"lr": 0.01', '"lr": 0.02'))
        run.start_coordinator()
        log = run.coordinator.log()
        self.assertIn("differs from the run in inner.lr (0.02; the run has 0.01): the run's value holds; causewayctl set "
                      "inner.lr=0.02 changes it", log)
        self.assertIn("outer.lr (0.7", log.replace("0.699999988079071", "0.7"))
        config = run.status()["config"]
        self.assertEqual([0.5, 0.01, 3], [config["outer"]["lr"], config["inner"]["lr"],
                                          config["checkpoint"]["every_rounds"]])
        run.stop_all()


class LostSettingsTest(LostState):
    """The journal is gone, and the sites have heard of changes: what each site sends follows from them alone."""

    # Each key that can be set in such a run, and one that holds at once.
    AT_STEP = ["run.steps=100000", "inner.lr=0.002", "inner.warmup_steps=3", "inner.schedule=constant", "outer.lr=0.4",
               "outer.momentum=0.5", "codec.up=int8", "codec.down=bfloat16", "codec.feedback_up=0.5",
               "codec.zstd=true", "membership.weights=tokens", "membership.merge=radial_directional"]
    AT_ONCE = ["membership.lease_ms=15000", "membership.min_quorum=3", "membership.min_sites=2", "values.gate=1000",
               "values.clip=true", "values.weight_cap=0.4"]

    def start_changed(self, at_step=100, at_once=True):
        config = synthetic(SITES, SHAPES,
                           model={"step_ms": 25, "init": "seeded", "gradient": {"kind": "constant", "apply": "on_send"}},
                           inner={"optimizer": "sgd", "lr": 0.01},
                           sync={"sync_every": 10, "num_fragments": 2, "fragment_sync_delay": 1,
                                 "fragment_update_alpha": 0},
                           codec={"up": "int4", "down": "float32", "feedback_up": 1, "feedback_down": 0},
                           membership={"lease_ms": 20000}, run={"steps": 90000},
                           checkpoint={"every_rounds": 1, "keep": 20})
        run = self.new_run(config)
        run.start_coordinator()
        for site in SITES:
            run.start_worker(site, f"--checkpoint_dir={run.folder}/checkpoint-{site}")
        run.await_rounds(2)
        run.control("set", f"--at_step={at_step}", *self.AT_STEP)
        if at_once:
            run.control("set", *self.AT_ONCE)
        run.control("set", "--at_step=80000", "outer.lr=0.3")
        return run

    def settings(self, run):
        status = run.status()
        chain = [(one["revision"], one["step"], one["changes"], one["versions"]) for one in status["settings"]]
        return {"chain": chain, "config": status["config"]}

    def test_a_rebuilt_state_has_the_settings_that_the_sites_hold_and_goes_on_by_them(self):
        run = self.start_changed()
        run.await_rounds(13)  # the first change holds
        before = self.settings(run)
        self.assertEqual([100, 80000], [before["chain"][0][1], before["chain"][-1][1]])
        lost = self.lose_state(run, run.workers)
        run.workers["us"].kill()
        run.start_coordinator("--rebuild_from_sites")
        run.start_worker("us", f"--checkpoint_dir={run.folder}/checkpoint-us")
        newest = self.assert_rebuilt(run, lost, [0, 1])
        self.assertEqual(before, self.settings(run))
        run.await_rounds(newest + 3)
        DigestBook().await_agreement(run, SITES, beyond=run.newest())
        for worker in run.workers.values():
            self.assertTrue(worker.running(), worker.log()[-2000:])
            self.assertNotIn("other settings", worker.log())
        numbers = run.journal(f"SELECT DISTINCT config_revision, round(lr, 3), codec_up, codec_down FROM rounds "
                              f"WHERE version > {newest + 1}")
        self.assertEqual([(3, 0.4, "int8", "bfloat16")], numbers)
        run.coordinator.kill()  # a replay gives the same bits
        run.start_coordinator()
        self.assertEqual(before, self.settings(run))
        eventually(lambda: run.status()["alarms"] == [], "no alarm is left")
        run.control("set", "outer.lr=0.35")  # its number is above those that sites know
        numbers = [one[0] for one in before["chain"]]
        eventually(lambda: [one["revision"] for one in run.status()["settings"]] == [*numbers, 5, 6], "two more")
        run.await_rounds(run.rounds() + 4)
        self.assertAlmostEqual(0.35, run.journal("SELECT lr FROM rounds ORDER BY version DESC LIMIT 1")[0][0], 6)

    def test_sites_whose_codec_is_not_that_of_the_run_are_told_and_do_not_end(self):
        run = self.start_changed(at_step=70000, at_once=False)  # sites know a change that holds, with the codec
        run.await_rounds(4)
        run.workers["asia"].send(signal.SIGSTOP)  # so that the others' contributions are on their way
        eventually(lambda: any({"eu", "us"} <= set(one["contributors"]) for one in run.status()["fragments"]), "a round waits")
        self.lose_state(run, run.workers)
        run.config_path.write_text(run.config_path.read_text().replace('"up": "int4"', '"up": "int8"'))
        run.start_coordinator("--rebuild_from_sites")
        refused = "a contribution of eu to fragment"
        eventually(lambda: any(refused in alarm["text"] for alarm in (run.status() or {}).get("alarms", [])), "the alarm")
        for worker in run.workers.values():
            self.assertTrue(worker.running(), worker.log()[-2000:])


if __name__ == "__main__":
    unittest.main()
