"""Native sites whose ranks divide weights, gradients and optimizer state over link levels: real processes over Gloo."""

import itertools
import json
import os
import signal
import subprocess
import sys

from harness import BAD_INPUT, BIN_DIR, DONE, DigestBook, eventually, merged
from test_ranks import RanksTest, llama, rank_process

LEVELS = {"pair": 2, "node": 2}
THREE = {"weights": "pair", "gradients": "node", "optimizer": "site"}
FRAGMENTS = 2


class PartitionsTest(RanksTest):
    def levels(self, sizes):
        path = self.folder / f"levels-{'-'.join(map(str, sizes.values()))}.yaml"
        path.write_text(json.dumps({"levels": [{"name": name, "of": of, "gbyte_per_s": 1, "latency_us": 1}
                                               for name, of in sizes.items()]}))
        return f"--levels={path}"

    def config(self, partition, sites, **sections):
        return merged(llama(inner={"partition": partition, "micro_batches": 2}, membership={"min_sites": sites},
                            model={"num_hidden_layers": 3}), sections)

    def data(self):
        return f"--data={self.text()}"


class BesideOthersTest(PartitionsTest):
    def test_a_divided_site_holds_the_coordinators_anchors_and_its_levels_carry_what_was_predicted(self):
        for partition in (THREE, dict.fromkeys(THREE, "site")):
            with self.subTest(partition["weights"]):
                run = self.new_run(self.config(partition, 2))
                run.start_coordinator()
                trace = self.folder / f"trace-{partition['weights']}.json"
                divided = run.start_worker("a", self.data(), "--nproc=4", self.levels(LEVELS), f"--trace={trace}")
                run.start_worker("b", self.data())
                book = DigestBook()
                status = book.until_done(run)
                for site, fragment in itertools.product("ab", range(FRAGMENTS)):
                    self.assertGreaterEqual(book.agreed(site, fragment), 4)
                self.assertIn(f"partition: weights over {partition['weights'].replace('site', 'node')}", divided.log())
                sites = {site["name"]: site for site in status["sites"]}
                self.assertLess(abs(sites["a"]["loss"] - sites["b"]["loss"]), 1)
                for level in sites["a"]["ranks"]["levels"]:
                    print(f"{partition['weights']}, {level}", file=sys.stderr)
                    self.assertGreater(level["measured_bytes"], 0)
                    self.assertAlmostEqual(level["predicted_bytes"] / level["measured_bytes"], 1, delta=0.01)
                self.assertGreater(len(run.local("a")), 0)
                self.assert_what_if(trace)

    def assert_what_if(self, trace):
        """The trace gives its own time, and a faster link is no slower."""
        said = subprocess.run([BIN_DIR / "causewayctl", "plan", "what-if", f"--trace={trace}", "--faster=link pair=10", "--json"],
                              check=True, capture_output=True, text=True).stdout
        answer = json.loads(said)
        self.assertAlmostEqual(answer["simulated_s"] / answer["measured_s"], 1, delta=0.01)
        self.assertAlmostEqual(sum(answer["shares"].values()), 1)
        self.assertGreaterEqual(answer["raised"][0]["speedup"], 1)
        print(f"what-if: {said}", file=sys.stderr)

    def test_a_rank_is_killed_and_the_site_comes_back_undivided(self):
        run = self.new_run(self.config(THREE, 1, run={"steps": 0}, checkpoint={"every_rounds": 1},
                                       membership={"lease_ms": 2000},
                                       inner={"lr": 1e-5}))  # it goes on and on, and its model does not diverge
        run.start_coordinator()
        shared = (self.data(), f"--checkpoint_dir={self.folder / 'checkpoints'}", "--rank_timeout_s=2")
        first = run.start_worker("a", *shared, "--nproc=4", self.levels(LEVELS))
        run.start_worker("b", self.data())
        eventually(lambda: "checkpoint after" in first.log(), "a has a checkpoint")
        os.kill(rank_process(first, 1), signal.SIGKILL)
        self.assertNotEqual(first.wait(), DONE)
        run.start_worker("a", *shared)
        eventually(lambda: run.site("a").get("ranks", {}).get("ranks") == 1, "a is back")
        DigestBook().await_agreement(run, "ab", beyond=run.newest())
        run.stop_all()


class RefusalsTest(PartitionsTest):
    def test_levels_and_devices_that_do_not_fit_end_the_site_with_a_sentence(self):
        run = self.new_run(self.config(THREE, 1))
        run.start_coordinator()
        cases = {"ranks": (("--nproc=2", self.levels(LEVELS)), "expected levels of the site's 2 ranks, got 4"),
                 "device": (("--nproc=2", "--device=fake"), "inner.partition: expected a site with --device=cpu"),
                 "file": (("--nproc=2", "--levels=/absent"), "/absent: No such file")}
        for label, (flags, sentence) in cases.items():
            with self.subTest(label):
                worker = run.program(label, "causeway-worker", f"--coordinator={run.grpc}", "--site=a", self.data(), *flags)
                self.assertEqual(worker.wait(), BAD_INPUT, worker.log())
                self.assertIn(sentence, worker.log())

    def test_onebit_adam_with_a_partition_is_refused_with_both_keys(self):
        run = self.new_run(self.config(THREE, 1, inner={"optimizer": "onebit_adam"}))
        coordinator = run.program("coordinator", "causeway-coordinator", f"--config={run.folder / 'run.yaml'}",
                                  "--listen=127.0.0.1:0", "--http=127.0.0.1:0", f"--state_dir={run.folder / 'other'}")
        self.assertEqual(coordinator.wait(), BAD_INPUT, coordinator.log())
        self.assertIn("inner.partition: expected none with inner.optimizer: onebit_adam", coordinator.log())
