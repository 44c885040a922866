"""A state directory that is gone, wrong or an older copy: the sites wait, nothing is lost, and the state comes back."""

import concurrent.futures
import shutil
import signal
import unittest

from harness import DONE, DigestBook, EndToEndTest, eventually, read_safetensors, synthetic
from test_shards import ShardedRun, config_of

SITES = {"asia": 0.25, "eu": 1.0, "us": 0.5}
FRAGMENTS = 2


class LostState(EndToEndTest):
    """A run of three sites that keeps its newest snapshots, and what its sites and its directory are to show."""

    def start(self):
        config = synthetic(SITES, [[1000], [257]],
                           model={"step_ms": 5, "init": "seeded", "gradient": {"kind": "noise"}},
                           sync={"sync_every": 10, "num_fragments": FRAGMENTS, "fragment_sync_delay": 1,
                                 "fragment_update_alpha": 0.5},
                           membership={"lease_ms": 20000}, checkpoint={"every_rounds": 1, "keep": 8})
        run = self.new_run(config)
        run.start_coordinator()
        run.start_workers(*SITES)
        run.await_rounds(3)
        return run

    def alarms(self, run):
        return {alarm["name"]: alarm["text"] for alarm in (run.status() or {}).get("alarms", [])}

    def await_waiting(self, run, word, times=1):
        """Every site has said so as often as that, and none has ended."""
        for site, worker in run.workers.items():
            eventually(lambda: worker.log().count(word) >= times or not worker.running(), f"{site} waits")
            self.assertTrue(worker.running(), worker.log()[-2000:])

    def lose_state(self, run, workers, name="lost"):
        """Kills the coordinator and takes its directory away, with snapshots of all that its sites may hold."""
        for worker in workers.values():
            worker.send(signal.SIGSTOP)
        newest = "SELECT fragment, max(version) FROM {} GROUP BY fragment ORDER BY fragment"
        seen = []

        def all_have_snapshots():  # time and again: what the sites sent before they stood still arrives meanwhile
            rounds = run.journal(newest.format("rounds"))
            seen.append(rounds if rounds == run.journal(newest.format("snapshots")) else None)
            return len(seen) >= 50 and seen[-1] and seen[-50:] == [seen[-1]] * 50

        eventually(all_have_snapshots, "each newest version has its snapshot")
        run.coordinator.kill()
        for worker in workers.values():
            worker.send(signal.SIGCONT)
        lost = run.folder / name
        run.state_dir.rename(lost)
        return lost

    def assert_rebuilt(self, run, lost, fragments):
        """W and v of the first snapshots of these fragments are those that the lost directory has of the versions."""
        versions = dict(run.journal("SELECT fragment, min(version) FROM snapshots GROUP BY fragment"))
        self.assertEqual(sorted(versions), fragments, run.coordinator.log()[-2000:])
        for fragment, version in versions.items():
            name = f"fragment-{fragment}-{version:06}.safetensors"
            before, now = (read_safetensors(state / "snapshots" / name) for state in (lost, run.state_dir))
            self.assert_same_bits(*({of: tensors[of] for of in ("anchor", "momentum")} for tensors in (before, now)), name)
        return max(versions.values())


class LostStateTest(LostState):
    def test_sites_wait_for_a_lost_state_and_give_it_back_bit_by_bit(self):
        run = self.start()
        lost = self.lose_state(run, run.workers)

        run.start_coordinator()
        self.await_waiting(run, "this state directory is of lineage")
        eventually(lambda: "asia, eu, us wait: " in self.alarms(run).get("unknown_lineage", ""), "the alarm of all sites")
        self.assertEqual(run.status()["fragments"], [], "no site was asked for initial parameters")
        run.stop_coordinator()

        run.start_coordinator("--rebuild_from_sites")
        newest = self.assert_rebuilt(run, lost, list(range(FRAGMENTS)))
        run.await_rounds(newest + 3)
        DigestBook().await_agreement(run, SITES, beyond=run.newest())
        self.assertNotIn("starts from the anchor", "".join(worker.log() for worker in run.workers.values()),
                         "what the sites have trained since stays in them")
        run.stop_coordinator()
        run.start_coordinator("--rebuild_from_sites")  # as a supervisor would
        self.assertIn("has a state, and the run goes on with it", run.coordinator.log())
        run.await_rounds(run.rounds() + 2)
        run.stop_all()

    def start_shards(self, name):
        config = config_of(steps=100_000, checkpoint={"every_rounds": 1, "keep": 8})
        run = ShardedRun(self, self.folder / name, config)
        run.start_coordinators()
        run.start_workers(*SITES)
        run.await_rounds(2)
        return run

    def go_on_and_leave(self, run):
        run.await_rounds(max(run.versions().values()) + 3)
        for worker in run.workers.values():
            self.assertEqual(worker.terminate(), DONE, worker.log()[-2000:])
        for coordinator in run.shards:
            coordinator.stop_coordinator()

    def test_a_shard_that_has_lost_its_state_takes_its_fragments_from_the_sites(self):
        runs = [self.start_shards(f"shard-{index}-of-2") for index in range(2)]
        lost = [self.lose_state(run.shards[index], run.workers) for index, run in enumerate(runs)]

        def rebuild(index, fragments):
            runs[index].start(index, "--rebuild_from_sites")
            self.assert_rebuilt(runs[index].shards[index], lost[index], fragments)

        with concurrent.futures.ThreadPoolExecutor() as both:  # each waits 12 s for sites that may come yet
            list(both.map(rebuild, range(2), ([0, 2, 4], [1, 3])))
        for run in runs:
            self.go_on_and_leave(run)

    def test_a_shard_on_an_older_copy_makes_the_sites_wait_until_its_newer_state_is_back(self):
        run = self.start_shards("shards")
        shard = run.shards[1]
        shard.stop_coordinator()
        older = shard.folder / "older"
        shutil.copytree(shard.state_dir, older)
        run.start(1)
        run.await_rounds(max(run.versions().values()) + 2)
        shard.coordinator.kill()
        newer, shard.state_dir = shard.state_dir, older
        run.start(1)
        eventually(lambda: {"history_lost", "two_coordinators"} & self.alarms(shard).keys(), "an alarm of shard 1")
        self.await_waiting(run, "tells this site to wait")
        shard.stop_coordinator()
        shard.state_dir = newer
        run.start(1)
        self.go_on_and_leave(run)

    def test_an_older_copy_of_the_state_makes_the_sites_wait_until_the_newer_one_is_back(self):
        run = self.start()
        run.stop_coordinator()
        older = run.folder / "older"
        shutil.copytree(run.state_dir, older)
        run.start_coordinator()
        run.await_rounds(run.rounds() + 3)
        run.coordinator.kill()

        newer, run.state_dir = run.state_dir, older
        run.start_coordinator()
        eventually(lambda: "history_lost" in self.alarms(run) or "two_coordinators" in self.alarms(run), "an alarm")
        self.await_waiting(run, "tells this site to wait")
        run.stop_coordinator()
        run.state_dir = newer
        run.start_coordinator()
        run.await_rounds(run.rounds() + 3)
        DigestBook().await_agreement(run, SITES, beyond=run.newest())
        for worker in run.workers.values():
            self.assertEqual(worker.terminate(), DONE, worker.log()[-2000:])
        run.stop_coordinator()


if __name__ == "__main__":
    unittest.main()
