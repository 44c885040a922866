"""Workers with a checkpoint directory are killed and started again: the three ways to return."""

import json
import signal
import subprocess
import unittest

from harness import BAD_INPUT, DONE, DigestBook, EndToEndTest, eventually, synthetic

SITES = {"asia": 0.25, "eu": 1.0, "us": 0.5}
SHAPES = [[100], [257], [3, 1500], [5000]]
SYNC_EVERY, FRAGMENTS = 10, 4


def config_of(**sections):
    sync = {"sync_every": SYNC_EVERY, "num_fragments": FRAGMENTS, "fragment_sync_delay": 3, "fragment_update_alpha": 0.5}
    return synthetic(SITES, SHAPES, model={"step_ms": 8, "init": "seeded", "gradient": {"kind": "noise"}},
                     codec={"up": "int4", "down": "int4", "feedback_up": 1, "feedback_down": 1},
                     inner={"optimizer": "adamw", "lr": 1e-3, "warmup_steps": 0, "schedule": "constant"},
                     sync=sync | sections.pop("sync", {}),
                     checkpoint={"every_rounds": 2, "keep": 2}, **sections)


class CheckpointTest(EndToEndTest):
    def start_worker(self, run, site):
        return run.start_worker(site, f"--checkpoint_dir={run.folder / ('checkpoints-' + site)}")

    def start(self, config):
        run = self.new_run(config)
        run.start_coordinator()
        for site in SITES:
            self.start_worker(run, site)
        return run

    def merged_twice(self, run):
        return run.journal("SELECT fragment, site, base, count(*) FROM contributions "
                           "GROUP BY fragment, site, base HAVING count(*) > 1")

    def kill_beyond_its_checkpoint(self, run, site):
        """When something was merged that the site sent after its newest checkpoint: looks while the site stands still."""
        worker = run.workers[site]
        merged = f"SELECT max(base) FROM contributions WHERE site = '{site}' AND merged_version > 0"

        def beyond():
            worker.send(signal.SIGSTOP)
            saved = sorted((run.folder / f"checkpoints-{site}").glob("[0-9]*[0-9]/sync.json"))
            newest = run.journal(merged)[0][0]
            if saved and newest is not None and SYNC_EVERY * (newest + 1) > json.loads(saved[-1].read_text())["step"]:
                return True
            worker.send(signal.SIGCONT)
            return False
        eventually(beyond, f"a contribution of {site} that is younger than its checkpoint is merged")
        worker.kill()

    def assert_agreement(self, run):
        """All sites report the coordinator's digests of versions that were made from now on."""
        DigestBook().await_agreement(run, SITES, beyond=run.newest())

    def test_a_killed_worker_goes_on_with_its_session_to_the_bits_of_an_undisturbed_run(self):
        config = config_of(run={"steps": 200})
        undisturbed, disturbed = self.start(config), self.start(config)
        for rounds in (3, 8):
            disturbed.await_rounds(rounds)
            disturbed.workers["eu"].kill()
            self.start_worker(disturbed, "eu")
        for run in (undisturbed, disturbed):
            run.await_done()
        self.assertIn("goes on from the checkpoint after step", disturbed.workers["eu"].log())
        self.assert_same_bits(undisturbed.export(), disturbed.export(), "export")
        for site in SITES:
            self.assert_same_bits(undisturbed.local(site), disturbed.local(site), site)
        for run in (undisturbed, disturbed):
            run.stop_coordinator()
        self.assert_same_bits(undisturbed.snapshots(), disturbed.snapshots(), "W, v and the residual")
        self.assertEqual(self.merged_twice(disturbed), [])

    def test_a_worker_whose_session_is_over_starts_from_the_anchors_where_it_has_been_merged_since(self):
        run = self.start(config_of(membership={"min_sites": 3, "lease_ms": 500}))
        self.kill_beyond_its_checkpoint(run, "eu")
        eventually(lambda: run.site("eu").get("state") == "gone", "eu's lease ends")
        run.await_rounds(run.rounds() + 2)
        worker = self.start_worker(run, "eu")
        eventually(lambda: run.site("eu").get("state") == "training", "eu trains again")
        self.assertIn("was merged; starts from the anchor", worker.log())
        self.assert_agreement(run)
        for worker in run.workers.values():
            self.assertEqual(worker.terminate(), DONE)
        self.assertEqual(self.merged_twice(run), [])

    def test_a_worker_that_left_with_nothing_merged_since_keeps_what_it_trained(self):
        run = self.start(config_of(membership={"min_sites": 3}))
        run.await_rounds(2)
        self.assertEqual(run.workers["eu"].terminate(), DONE)  # drains and saves
        self.assertIn("checkpoint after step", run.workers["eu"].log())
        run.await_rounds(run.rounds() + 2)
        worker = self.start_worker(run, "eu")
        eventually(lambda: run.site("eu").get("state") == "training", "eu trains again")
        self.assertNotIn("starts from the anchor", worker.log())
        self.assert_agreement(run)
        self.assertEqual(self.merged_twice(run), [])

    def test_in_quorum_mode_a_killed_worker_is_back_at_once(self):
        run = self.start(config_of(sync={"mode": "quorum"}, membership={"min_sites": 3, "min_quorum": 2}))
        for _ in range(3):
            run.await_rounds(run.rounds() + 2)
            run.workers["eu"].kill()
            self.start_worker(run, "eu")
            eventually(lambda: run.site("eu").get("state") == "training", "eu trains again", seconds=5)
        self.assert_agreement(run)
        self.assertEqual(self.merged_twice(run), [])

    def test_a_worker_that_is_killed_on_a_full_disk_starts_on_it_and_says_that_it_saves_nothing(self):
        run = self.new_run(config_of(run={"steps": 0}))
        disk = run.folder / "checkpoints-eu"
        disk.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], capture_output=True).returncode:
            self.skipTest("a disk of its own takes root")
        self.addCleanup(subprocess.run, ["umount", "-l", disk])
        run.start_coordinator()
        for site in SITES:
            self.start_worker(run, site)
        eventually(lambda: list(disk.glob("[0-9]*[0-9]/sync.json")), "a checkpoint")
        with self.assertRaises(OSError), open(disk / "other", "wb", buffering=0) as other:
            while True:
                other.write(bytes(4096))
        run.workers["eu"].kill()
        self.start_worker(run, "eu")
        eventually(lambda: "goes on without a checkpoint" in run.workers["eu"].log(), "it says so")
        run.await_rounds(run.rounds() + 3)
        eventually(lambda: ("no_checkpoint", "eu") in [(one["name"], one.get("site")) for one in run.status()["alarms"]],
                   "the alarm")
        (disk / "other").unlink()
        eventually(lambda: "no_checkpoint" not in [one["name"] for one in run.status()["alarms"]], "its end")

    def test_a_batch_systems_warning_saves_and_leaves(self):
        for warning in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU):
            run = self.new_run(synthetic({"a": 0.5}, [[10]], run={"steps": 0}, model={"step_ms": 5}))
            run.start_coordinator()
            checkpoints = self.folder / warning.name
            worker = run.start_worker("a", f"--checkpoint_dir={checkpoints}")
            run.await_rounds(2)
            worker.send(warning)
            self.assertEqual(worker.wait(), DONE, worker.log())
            self.assertTrue(list(checkpoints.glob("[0-9]*/sync.json")), worker.log())
            run.coordinator.send(warning)
            self.assertEqual(run.coordinator.wait(), DONE, run.coordinator.log())

    def test_a_directory_of_another_site_is_refused(self):
        run = self.start(config_of(membership={"min_sites": 3}))
        run.await_rounds(3)
        self.assertEqual(run.workers["eu"].terminate(), DONE)
        other = run.program("worker-other", "causeway-worker", f"--coordinator={run.grpc}", "--site=other",
                            f"--checkpoint_dir={run.folder / 'checkpoints-eu'}")
        self.assertEqual(other.wait(), BAD_INPUT)
        self.assertIn("holds checkpoints of site eu in run e2e; this is site other", other.log())


if __name__ == "__main__":
    unittest.main()
