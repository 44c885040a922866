"""A standby mirrors its leader's state, and leads the run when the leader's machine is gone."""

import random
import shutil
import signal
import time
import unittest

import test_shards
from harness import DONE, REFUSED, DigestBook, EndToEndTest, eventually, merged, yaml_text
from test_restart import SITES, config_of
from test_shards import Shard, ShardedRun

SEED = 11


def whole(run):
    """The addresses of the run's standbys that have all."""
    return [one["address"] for one in (run.status() or {}).get("standbys", []) if one["whole"]]


def leads(standby):
    return (standby.status() or {}).get("fragments")


class StandbyTest(EndToEndTest):
    def with_standby(self, config):
        """A run whose leader has a standby that has all, and sites that know both addresses."""
        run = self.new_run(config)
        run.start_coordinator()
        standby = run.standby()
        standby.start_coordinator(f"--standby_of={run.grpc}")
        for site in SITES:
            run.start_worker(site, f"--coordinator={run.grpc}|{standby.grpc}")
        return run, standby

    def promote(self, standby, *flags):
        command = standby.program("ctl-promote", "causewayctl", "promote", f"--at={standby.grpc}", *flags)
        return command.wait(), command.log()

    def promote_when_silent(self, standby):
        def promoted():
            code, self.said = self.promote(standby, "--leader_is_stopped")
            return code == DONE

        eventually(promoted, "the standby is promoted")
        eventually(lambda: leads(standby), "the standby leads")

    def test_a_run_whose_leader_is_gone_with_its_directory_goes_on_at_its_standby(self):
        run, standby = self.with_standby(config_of(run={"steps": 300}))
        eventually(lambda: run.newest() >= 3 and whole(run) == [standby.grpc], "rounds, and a first copy")
        self.assertTrue(run.status()["standbys"][0]["connected"])
        self.assertIn("is whole", standby.coordinator.log())
        self.assertEqual((standby.status()["role"], standby.status()["standby_of"]), ("standby", run.grpc))
        time.sleep(random.Random(SEED).uniform(0, 0.1))  # waits for nothing: a moment within the next rounds
        code, said = self.promote(standby, "--leader_is_stopped")
        self.assertEqual(code, REFUSED, said)
        self.assertIn("is heard", said)
        run.coordinator.kill()
        shutil.rmtree(run.state_dir)
        standby.coordinator.kill()
        standby.start_coordinator(f"--standby_of={run.grpc}")  # alone, and it has never heard its leader
        self.promote_when_silent(standby)
        self.assertEqual(standby.status()["role"], "leader")
        alarms = [alarm["name"] for alarm in standby.status()["alarms"]]
        self.assertIn("no_standby", alarms)
        self.goes_on_at(standby, run)

    def goes_on_at(self, standby, run):
        versions = [fragment["version"] for fragment in standby.status()["fragments"]]
        eventually(lambda: all(now["version"] > then for now, then in zip(standby.status()["fragments"], versions)),
                   "rounds of each fragment after the promotion")
        self.assertEqual(standby.status()["epoch"] >> 32, 1)
        run.grpc, run.http, run.state_dir, run.coordinator = (standby.grpc, standby.http, standby.state_dir,
                                                              standby.coordinator)
        DigestBook().until_done(run)

    def test_a_run_that_is_handed_over_has_the_bits_of_an_undisturbed_one(self):
        config = config_of(run={"steps": 300})
        undisturbed = self.new_run(config)
        undisturbed.start_coordinator()
        undisturbed.start_workers(*SITES)
        run, standby = self.with_standby(config)
        eventually(lambda: run.newest() >= 3, "rounds")
        leader = run.coordinator
        code, said = self.promote(standby)
        self.assertEqual(code, DONE, said)
        self.assertEqual(leader.wait(), DONE, leader.log())
        self.assertIn("handed over to " + standby.grpc, leader.log())
        eventually(lambda: leads(standby), "the standby leads")
        self.goes_on_at(standby, run)
        undisturbed.await_done()
        for site in SITES:
            self.assert_same_bits(undisturbed.local(site), run.local(site), site)
        self.assert_same_bits(undisturbed.export(), run.export(), "export")

    def test_sites_learn_where_their_leader_s_standby_is(self):
        run = self.new_run(config_of(run={"steps": 300}))
        run.start_coordinator()
        standby = run.standby()
        standby.start_coordinator(f"--standby_of={run.grpc}")
        eventually(lambda: whole(run), "a first copy")
        run.start_workers(*SITES)
        eventually(lambda: run.newest() >= 3, "rounds")
        run.coordinator.kill()
        self.promote_when_silent(standby)
        self.goes_on_at(standby, run)

    def test_a_leader_that_hears_of_a_later_one_ends(self):
        run, standby = self.with_standby(config_of(run={"steps": 5000}))
        checkpoints = f"--checkpoint_dir={run.folder / 'checkpoints'}"
        run.workers["eu"].terminate()
        run.start_worker("eu", f"--coordinator={run.grpc}|{standby.grpc}", checkpoints)
        eventually(lambda: run.newest() >= 3, "rounds")
        run.coordinator.send(signal.SIGSTOP)  # a machine that hangs, and comes back
        self.promote_when_silent(standby)
        eventually(lambda: standby.site("eu").get("up_bytes"), "the sites have moved")
        self.assertEqual(run.workers["eu"].terminate(), DONE)
        run.coordinator.send(signal.SIGCONT)
        run.start_worker("eu", checkpoints)  # it knows the former address alone, and what its checkpoint says
        self.assertEqual(run.coordinator.wait(), REFUSED)
        self.assertIn("a standby leads this run", run.coordinator.log())

    def test_a_standby_whose_start_would_be_refused_is_not_promoted(self):
        config = config_of(run={"steps": 5000})
        run, standby = self.with_standby(config)
        eventually(lambda: run.newest() >= 3, "rounds")
        standby.stop_coordinator()
        standby.config_path = standby.folder / "run.yaml"
        standby.config_path.write_text(yaml_text(merged(config, {"checkpoint": {"min_free_bytes": 10**15}})))
        standby.start_coordinator(f"--standby_of={run.grpc}")
        eventually(lambda: any("min_free_bytes" in one["unfit"] for one in run.status()["standbys"]), "it says so")
        eventually(lambda: "no_standby" in [alarm["name"] for alarm in run.status()["alarms"]], "and the leader")
        code, said = self.promote(standby)
        self.assertEqual(code, REFUSED, said)
        self.assertIn("this standby could not lead", said)
        self.assertTrue(run.coordinator.running())
        version = run.newest()
        eventually(lambda: run.newest() > version, "the leader goes on")
        run.stop_all()
        standby.stop_coordinator()

    def test_a_command_is_answered_when_the_standby_has_it_or_says_so(self):
        run, standby = self.with_standby(config_of(run={"steps": 5000}))
        eventually(lambda: run.newest() >= 3 and whole(run), "a first copy")
        noted = "not copied yet to the standby at " + standby.grpc
        self.assertNotIn(noted, self.ctl(run, "set", "outer.lr=0.6"))
        standby.stop_coordinator()
        moved = standby.grpc.replace("127.0.0.1", "localhost")
        standby.start_coordinator(f"--standby_of={run.grpc}", f"--advertise={moved}")
        eventually(lambda: whole(run) == [moved], "it has moved")
        standby.grpc, noted = moved, "not copied yet to the standby at " + moved
        standby.coordinator.send(signal.SIGSTOP)
        self.assertIn(noted, self.ctl(run, "set", "outer.lr=0.5"))
        self.assertIn("is connected", self.ctl(run, "standby", f"--forget={standby.grpc}", code=REFUSED))
        standby.coordinator.kill()
        eventually(lambda: not run.status()["standbys"][0]["connected"], "it is gone")
        self.assertIn("knows no standby at b:1", self.ctl(run, "standby", "--forget=b:1", code=REFUSED))
        self.assertEqual(self.ctl(run, "standby", f"--forget={standby.grpc}"), "")
        eventually(lambda: run.status()["standbys"] == [], "it is forgotten")
        run.coordinator.kill()
        run.start_coordinator()  # and waits for no other
        eventually(lambda: run.status().get("epoch") == 2, "it leads")
        run.stop_all()

    def ctl(self, run, *arguments, code=DONE):
        self.commands = getattr(self, "commands", 0) + 1
        command = run.program(f"ctl-{self.commands}", "causewayctl", *arguments, f"--coordinator={run.grpc}")
        self.assertEqual(command.wait(), code, command.log())
        return command.log() + command.output()

    def test_a_promoted_standby_that_is_started_again_by_its_own_command_leads(self):
        run, standby = self.with_standby(config_of(run={"steps": 400}))
        eventually(lambda: run.newest() >= 3, "rounds")
        run.coordinator.kill()
        self.promote_when_silent(standby)
        standby.coordinator.kill()
        standby.start_coordinator(f"--standby_of={run.grpc}")
        eventually(lambda: "leads again" in standby.coordinator.log() and leads(standby), "all sites have come")
        run.grpc, run.http, run.coordinator = standby.grpc, standby.http, standby.coordinator
        DigestBook().until_done(run)

    def test_of_two_standbys_one_leads_and_the_other_follows_it(self):
        run, standby = self.with_standby(config_of(run={"steps": 1000}))
        second = run.standby("second")
        second.start_coordinator(f"--standby_of={run.grpc}")
        eventually(lambda: len(whole(run)) == 2 and run.newest() >= 3, "two copies")
        run.coordinator.kill()
        self.promote_when_silent(standby)
        code, said = self.promote(second, "--leader_is_stopped")
        self.assertEqual(code, REFUSED, said)
        eventually(lambda: second.grpc in whole(standby), "the second standby follows the first")
        self.goes_on_at(standby, run)

    def test_a_leader_that_is_started_again_leads_where_its_standby_says_that_it_does_not(self):
        run, standby = self.with_standby(config_of(run={"steps": 200}))
        eventually(lambda: run.newest() >= 3, "rounds")
        run.coordinator.kill()
        run.start_coordinator()
        self.assertEqual(run.status()["epoch"], 2)
        DigestBook().until_done(run)
        run.stop_coordinator()
        standby.stop_coordinator()

    def test_sites_come_to_a_leader_that_rebuilds_though_its_standby_answers_meanwhile(self):
        run, standby = self.with_standby(config_of(run={"steps": 400}))
        eventually(lambda: run.newest() >= 3 and whole(run), "rounds, and a first copy")
        run.coordinator.kill()
        shutil.rmtree(run.state_dir)
        run.start_coordinator("--rebuild_from_sites")
        eventually(lambda: run.newest() >= 5, "it is rebuilt, and rounds go on")

    def test_a_leader_that_is_started_again_after_a_promotion_becomes_the_standby(self):
        run, standby = self.with_standby(config_of(run={"steps": 600}))
        eventually(lambda: run.newest() >= 3, "rounds")
        run.coordinator.kill()
        self.promote_when_silent(standby)
        eventually(lambda: standby.site("eu").get("up_bytes"), "a site has seen that the standby leads")
        self.is_followed_by(standby, self.started_again(run), run)

    def started_again(self, run):
        former = run.standby("former")
        former.state_dir, former.grpc, former.http = run.state_dir, run.grpc, run.http
        former.start_coordinator()
        return former

    def is_followed_by(self, standby, former, run):
        eventually(lambda: whole(standby) == [former.grpc], "the former leader is the standby")
        self.goes_on_at(standby, run)
        self.assertEqual(former.status()["role"], "standby")
        former.stop_coordinator()

    def test_a_promoted_standby_says_that_it_leads_while_it_completes_its_state(self):
        run, standby = self.with_standby(config_of(run={"steps": 600}))
        eventually(lambda: run.newest() >= 3 and whole(run), "rounds, and a first copy")
        standby.coordinator.kill()
        version = run.newest()
        eventually(lambda: run.newest() > version + 1, "rounds that the standby lacks")
        run.coordinator.kill()
        for site in ("asia", "us"):
            run.workers[site].send(signal.SIGSTOP)
        standby.start_coordinator(f"--standby_of={run.grpc}")
        self.promote_when_silent(standby)
        eventually(lambda: "eu shows what it holds" in standby.coordinator.log(), "it completes its state")
        former = self.started_again(run)
        self.assertIn(f"the standby at {standby.grpc} leads the run", former.coordinator.log())
        for site in ("asia", "us"):
            run.workers[site].send(signal.SIGCONT)
        self.is_followed_by(standby, former, run)

    def test_a_leader_whose_standby_is_silent_leads_once_all_its_sites_have_come(self):
        run, standby = self.with_standby(config_of(run={"steps": 300}))
        eventually(lambda: run.newest() >= 3, "rounds")
        standby.coordinator.kill()
        run.coordinator.kill()
        run.start_coordinator()
        eventually(lambda: "leads again" in run.coordinator.log() and leads(run), "all sites have come")
        DigestBook().until_done(run)
        run.stop_coordinator()


class ShardsTest(EndToEndTest):
    def test_each_shard_has_a_standby_of_its_own(self):
        run = ShardedRun(self, self.folder / "run", test_shards.config_of(steps=400))
        run.start_coordinators()
        standbys = [Shard(self, run.folder / f"standby-{i}", {}, i, 2) for i in range(2)]
        both = []
        for i, (shard, standby) in enumerate(zip(run.shards, standbys)):
            standby.config_path = shard.config_path
            standby.start(*([f"--membership={both[0]}"] if i else []), f"--standby_of={shard.grpc}")
            both.append(f"{shard.grpc}|{standby.grpc}")
        run.shards[1].stop_coordinator()
        run.shards[1].start(f"--membership={both[0]}")
        for site in test_shards.SITES:
            run.start_worker(site, f"--coordinator={','.join(both)}")
        for i, standby in enumerate(standbys):
            run.await_rounds(2 + max(run.versions().values(), default=0))
            eventually(lambda: whole(run.shards[i]), "a first copy")
            run.shards[i].coordinator.kill()
            shutil.rmtree(run.shards[i].state_dir)
            StandbyTest.promote_when_silent(self, standby)
            run.shards[i] = standby
        run.await_rounds(2 + max(run.versions().values()))
        self.assertTrue(all(worker.running() for worker in run.workers.values()))
        run.results()

    promote = StandbyTest.promote


if __name__ == "__main__":
    unittest.main()
