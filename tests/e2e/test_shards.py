"""A run with two coordinators has the bits of the same run with one, whatever happens to them."""

import pathlib
import signal
import unittest

from harness import (BAD_INPUT, DONE, REFUSED, DigestBook, EndToEndTest, Run, eventually, merged, read_safetensors,
                     synthetic, yaml_text)

SITES = {"asia": 0.25, "eu": 1.0, "us": 0.5}
SHAPES = [[100], [257], [3, 1500], [5000], [9000]]
STEPS = 150
DATA = pathlib.Path(__file__).parents[2] / "README.md"  # any text


def config_of(steps=STEPS, **sections):
    config = synthetic(SITES, SHAPES, run={"steps": steps},
                       model={"step_ms": 8, "init": "seeded", "gradient": {"kind": "noise"}},
                       sync={"sync_every": 10, "num_fragments": 5, "fragment_sync_delay": 1,
                             "fragment_update_alpha": 0.5},
                       codec={"up": "int4", "down": "int4", "feedback_up": 1, "feedback_down": 1})
    return merged(config, sections)


class Shard(Run):
    """One coordinator of a run."""

    def __init__(self, test, folder, config, index, count):
        super().__init__(test, folder, config)
        self.index, self.count = index, count

    def start(self, *flags, **options):
        self.start_coordinator(f"--shard={self.index}/{self.count}", *flags, **options)


class ShardedRun:
    """One run with several coordinators; sites are as those of Run."""

    def __init__(self, test, folder, config, count=2):
        folder.mkdir()
        self.test, self.folder, self.workers = test, folder, {}
        self.shards = [Shard(test, folder / f"shard-{i}", config, i, count) for i in range(count)]

    def start(self, index, *flags, **options):
        shard = self.shards[index]
        shard.start(*([f"--membership={self.shards[0].grpc}"] if index else []), *flags, **options)

    def start_coordinators(self):
        for index in range(len(self.shards)):
            self.start(index)

    def addresses(self):
        return ",".join(shard.grpc for shard in self.shards)

    def start_worker(self, site, *flags):
        self.workers[site] = self.test.program(
            self.folder, f"worker-{site}", "causeway-worker", f"--coordinator={self.addresses()}", f"--site={site}",
            f"--dump_local={self.folder / site}.safetensors", *flags)

    def start_workers(self, *sites, flags=()):
        for site in sites:
            self.start_worker(site, *flags)

    def versions(self):
        return {fragment["id"]: fragment["version"]
                for shard in self.shards for fragment in (shard.status() or {"fragments": []})["fragments"]}

    def await_rounds(self, rounds, fragments=5):
        eventually(lambda: len(v := self.versions()) == fragments and min(v.values()) >= rounds, f"{rounds} rounds")

    def results(self):
        """The export and each site's parameters, of a run whose sites end."""
        for worker in self.workers.values():
            self.test.assertEqual(worker.wait(120), DONE, worker.log()[-3000:])
        for shard in self.shards:
            eventually(lambda: (shard.status() or {}).get("state") == "done", 'state "done"')
        out = self.folder / "export"
        exporter = self.test.program(self.folder, "export", "causewayctl", "export",
                                     f"--coordinator={self.addresses()}", f"--out={out}")
        self.test.assertEqual(exporter.wait(), DONE, exporter.log())
        result = {"export": read_safetensors(out / "model.safetensors")}
        result |= {site: read_safetensors(self.folder / f"{site}.safetensors") for site in self.workers}
        for shard in self.shards:
            shard.stop_coordinator()
        return result


class ShardedTest(EndToEndTest):
    def sharded(self, config, count=2):
        return ShardedRun(self, self.folder / f"shards-{next(self.run_numbers)}", config, count)

    def undisturbed(self, config, flags=()):
        """The results of the run with one coordinator."""
        run = self.new_run(config)
        run.start_coordinator()
        for site in SITES:
            run.start_worker(site, *flags)
        run.await_done(120)
        result = {"export": run.export()} | {site: run.local(site) for site in SITES}
        run.stop_coordinator()
        return result

    def assert_same(self, expected, got):
        for part, tensors in expected.items():
            self.assert_same_bits(tensors, got[part], part)


class ShardsTest(ShardedTest):
    def test_two_and_three_shards_have_the_bits_of_one_coordinator(self):
        expected = self.undisturbed(config_of())
        for count in (2, 3):
            run = self.sharded(config_of(), count)
            run.start_coordinators()
            run.start_workers(*SITES)
            self.assert_same(expected, run.results())

    def test_shards_at_the_sites_have_the_bits_of_one_coordinator_with_the_same_parts(self):
        sync = {"num_fragments": 2, "fragment_assignment": "balanced"}
        expected = self.undisturbed(config_of(sync=sync | {"parts": 3}))
        run = self.sharded(config_of(sync=sync, placement="sites"), 3)
        run.start_coordinators()
        run.start_workers(*SITES)
        run.await_rounds(4, fragments=6)
        self.check_report(run)
        sizes = [fragment["parameters"] for fragment in run.shards[0].status()["fragments"]]  # of all shards
        self.assertEqual(len(sizes), 6)
        for parts in (sizes[:3], sizes[3:]):
            self.assertLessEqual(max(parts) - min(parts), 4096)
        run.shards[2].coordinator.send(signal.SIGKILL)  # its parts wait, and nothing is lost
        run.shards[2].coordinator.wait()
        run.start(2)
        self.assert_same(expected, run.results())

    def check_report(self, run):
        report = run.folder / "report.html"
        writer = self.program(run.folder, "report", "causewayctl", "report", f"--coordinator={run.addresses()}",
                              f"--out={report}")
        self.assertEqual(writer.wait(), DONE, writer.log())
        page = report.read_text()
        self.assertIn("parameters in 6 fragments", page)
        for start in (">epoch 1<", ">shard 1: epoch 1<", ">shard 2: epoch 1<"):
            self.assertIn(start, page)
        swapped = self.program(run.folder, "swapped", "causewayctl", "report", f"--out={report}",
                               f"--coordinator={','.join(reversed(run.addresses().split(',')))}")
        self.assertEqual(swapped.wait(), BAD_INPUT)
        self.assertIn("expected shard 0 of 3, got shard 2 of 3", swapped.log())

    def test_sparse_updates_of_two_shards_have_the_bits_of_one_coordinator(self):
        config = config_of(steps=60, outer={"optimizer": "sgd", "lr": 1},
                           codec={"up": "topk32", "down": "sparse", "feedback_up": 0.95, "feedback_down": 1, "exempt": ["norm"]})
        expected = self.undisturbed(config)
        run = self.sharded(config)
        run.start_coordinators()
        run.start_workers(*SITES)
        self.assert_same(expected, run.results())

    def test_a_relaxed_journal_that_is_killed_changes_no_bit(self):
        expected = self.undisturbed(config_of())
        run = self.sharded(config_of(durability={"journal": "relaxed"}))
        run.start_coordinators()
        run.start_workers(*SITES)
        for rounds, index in ((2, 1), (5, 0)):
            run.await_rounds(rounds)
            run.shards[index].coordinator.send(signal.SIGKILL)
            run.shards[index].coordinator.wait()
            run.start(index)
        self.assert_same(expected, run.results())

    def test_a_language_model_on_two_shards_has_the_bits_of_one_coordinator(self):
        config = {"run_id": "e2e", "run": {"steps": 24},
                  "model": {"kind": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3,
                            "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 256,
                            "max_position_embeddings": 32},
                  "inner": {"batch_size": 2},
                  "data": {"mode": "shared"},
                  "sync": {"sync_every": 6, "num_fragments": 4, "fragment_sync_delay": 1,
                           "fragment_update_alpha": 0.5},
                  "codec": {"up": "rotated_lm2", "down": "int4", "feedback_up": 1, "feedback_down": 1},
                  "membership": {"min_sites": 3}, "eval": {"every_rounds": 2}, "checkpoint": {"every_rounds": 0}}
        flags = [f"--data={DATA}"]
        expected = self.undisturbed(config, flags)
        run = self.sharded(config)
        run.start_coordinators()
        run.start_workers(*SITES, flags=flags)
        self.assert_same(expected, run.results())

    def test_shards_that_are_killed_and_started_again_change_no_bit_and_no_site_is_started_again(self):
        expected = self.undisturbed(config_of(steps=300))
        run = self.sharded(config_of(steps=300))
        run.start_coordinators()
        run.start_workers(*SITES)
        for rounds, index in ((2, 1), (5, 0), (8, 1)):
            run.await_rounds(rounds)
            run.shards[index].coordinator.send(signal.SIGKILL)
            run.shards[index].coordinator.wait()
            run.start(index)
        self.assertTrue(all(worker.running() for worker in run.workers.values()), "killed after the end")
        self.assert_same(expected, run.results())

    def test_shards_are_killed_while_the_sites_join(self):
        expected = self.undisturbed(config_of(steps=60))
        run = self.sharded(config_of(steps=60))
        run.start_coordinators()
        run.start_workers(*SITES)
        for index in (0, 1, 0):
            run.shards[index].coordinator.send(signal.SIGKILL)
            run.shards[index].coordinator.wait()
            run.start(index)
        self.assert_same(expected, run.results())

    def test_the_others_go_on_while_shard_zero_is_away(self):
        run = self.sharded(config_of())
        run.start_coordinators()
        run.start_workers(*SITES)
        run.await_rounds(2)
        run.shards[0].coordinator.kill()
        before = run.shards[1].newest()
        eventually(lambda: "goes on with the membership" in run.shards[1].coordinator.log(), "shard 1 says so")
        self.assertEqual(run.shards[1].status()["state"], "training")
        self.assertGreaterEqual(run.shards[1].newest(), before)
        run.start(0)
        run.results()

    def test_a_site_that_is_killed_is_dropped_at_both_shards_and_comes_back(self):
        run = self.sharded(config_of(steps=0, membership={"min_sites": 3, "lease_ms": 500}))
        run.start_coordinators()
        run.start_workers(*SITES)
        run.await_rounds(2)
        run.workers["eu"].kill()
        for shard in run.shards:
            gone = eventually(lambda: shard.site("eu")["state"] == "gone" and shard.site("eu"), "eu is dropped")
            self.assertIn("500 ms (lease_ms)", gone["reason"])
        at = max(run.versions().values())
        run.await_rounds(at + 2)
        run.start_worker("eu")
        for shard in run.shards:
            eventually(lambda: shard.site("eu")["state"] == "training", "eu trains again")
        books = [DigestBook() for _ in run.shards]

        def agreed():
            for book, shard in zip(books, run.shards):
                book.note_run(shard)
            return all(books[p % 2].agreed(site, p) > at + 2 for site in SITES for p in range(5))

        eventually(agreed, "all sites hold the anchors of both shards")
        for worker in run.workers.values():
            worker.send(signal.SIGTERM)
        for worker in run.workers.values():
            self.assertEqual(worker.wait(), DONE, worker.log()[-2000:])

    def test_a_worker_that_goes_on_from_its_checkpoint_changes_no_bit(self):
        expected = self.undisturbed(config_of())
        run = self.sharded(config_of(checkpoint={"every_rounds": 2}))
        run.start_coordinators()
        flags = {site: [f"--checkpoint_dir={run.folder / site}"] for site in SITES}
        for site in SITES:
            run.start_worker(site, *flags[site])
        run.await_rounds(5)
        run.workers["eu"].kill()
        run.start_worker("eu", *flags["eu"])
        self.assert_same(expected, run.results())

    def test_quorum_mode_goes_on_with_two_shards(self):
        run = self.sharded(config_of(steps=400, sync={"mode": "quorum"}, membership={"min_sites": 3, "min_quorum": 2}))
        run.start_coordinators()
        run.start_workers(*SITES)
        got = run.results()
        self.assertEqual(sorted(got["export"]), [f"t{i}" for i in range(len(SHAPES))])
        self.assertGreater(min(shard.journal("SELECT max(version) FROM rounds")[0][0] for shard in run.shards), 3)

    def test_a_site_in_quarantine_at_each_shard_is_released_at_shard_zero(self):
        gradients = SITES | {"mallory": 1e20}  # which it keeps: after its release it is in quarantine again
        config = config_of(steps=1_000_000, values={"gate": 8}, membership={"min_sites": 3, "min_quorum": 2},
                           model={"gradient": {"by_site": gradients}}, inner={"lr": 0.01}, sync={"mode": "quorum"})
        run = self.sharded(config)
        run.start_coordinators()
        run.start_workers(*SITES)
        run.await_rounds(4)
        run.start_worker("mallory")
        for times in (1, 2):
            for shard in run.shards:
                eventually(lambda: shard.journal("SELECT count(*) FROM events WHERE kind = 'quarantine' AND "
                                                 "site = 'mallory'")[0][0] == times,
                           f"shard {shard.index}: mallory is in quarantine for the {times}. time")
                eventually(lambda: shard.site("mallory").get("quarantined"), "the status says so")
            if times == 1:
                run.shards[0].control("release", "--site=mallory")
        refused = run.shards[1].program("ctl-release", "causewayctl", "release", f"--coordinator={run.shards[1].grpc}",
                                        "--site=mallory")
        self.assertEqual(refused.wait(), REFUSED)
        self.assertIn("shard 0", refused.log())
        run.await_rounds(max(run.versions().values()) + 2)
        for shard in run.shards:
            merged = shard.journal("SELECT count(*) FROM contributions WHERE site = 'mallory' AND merged_version NOT NULL")
            self.assertEqual(merged[0][0], 0)


class ShardFlagsTest(ShardedTest):
    def test_what_does_not_fit_together_is_refused_with_words(self):
        folder = self.folder
        (folder / "run.yaml").write_text(yaml_text(config_of()))
        common = [f"--config={folder / 'run.yaml'}", f"--state_dir={folder / 'state'}", "--listen=127.0.0.1:0",
                  "--http=127.0.0.1:0"]
        for number, (flags, words) in enumerate((
                (["--shard=2/2"], "--shard: expected i/n"), (["--shard=x"], "--shard: expected i/n"),
                (["--shard=1/2"], "--membership: expected HOST:PORT of shard 0"),
                (["--membership=127.0.0.1:1"], "--membership: shard 0 follows no other shard"))):
            program = self.program(folder, f"bad-{number}", "causeway-coordinator", *common, *flags)
            self.assertEqual(program.wait(), BAD_INPUT)
            self.assertIn(words, program.log())

    def test_a_shard_with_another_config_or_place_is_refused(self):
        run = self.sharded(config_of())
        run.start(0)
        for name, config, shard, words in (
                ("config", merged(config_of(), {"outer": {"lr": 0.3}}), "1/2", "outer.lr: expected 0.7, got 0.3"),
                ("place", config_of(), "1/3", "expected a shard that follows shard 0, got shard 1 of 3; this is shard 0 of 2")):
            path = self.folder / f"{name}.yaml"
            path.write_text(yaml_text(config))
            other = self.program(self.folder, name, "causeway-coordinator", f"--config={path}",
                                 f"--state_dir={self.folder / name}", "--listen=127.0.0.1:0", "--http=127.0.0.1:0",
                                 f"--shard={shard}", f"--membership={run.shards[0].grpc}")
            self.assertEqual(other.wait(), REFUSED, other.log())
            self.assertIn(words, other.log())

    def test_a_list_of_the_wrong_order_or_length_is_refused(self):
        run = self.sharded(config_of())
        run.start_coordinators()
        first, second = (shard.grpc for shard in run.shards)
        for number, (addresses, words) in enumerate((
                (f"{second},{first}", f"expected shard 0 of 2 at {second}, this is shard 1 of 2"),
                (first, f"expected shard 0 of 1 at {first}, this is shard 0 of 2"))):
            worker = self.program(self.folder, f"lost-{number}", "causeway-worker", f"--coordinator={addresses}",
                                  "--site=eu")
            self.assertEqual(worker.wait(), REFUSED, worker.log())
            self.assertIn(words, worker.log())

    def test_operators_are_sent_to_shard_zero(self):
        run = self.sharded(config_of())
        run.start_coordinators()
        asked = self.program(self.folder, "pause", "causewayctl", "pause", f"--coordinator={run.shards[1].grpc}")
        self.assertEqual(asked.wait(), REFUSED)
        self.assertIn(f"ask shard 0, at {run.shards[0].grpc}", asked.log())


if __name__ == "__main__":
    unittest.main()
