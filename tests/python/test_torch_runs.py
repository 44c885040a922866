"""PyTorch sites in real runs: losses beside those of native workers from the same model, killed and restored."""

import importlib.util
import itertools
import signal
import sys
import unittest

import torch

from harness import eventually
from llama_runs import SITES, LlamaTest, llama_config

ROUNDS = 20 + 19 + 19  # of the fragments, each 10 steps from the last, the first at steps 10, 13 and 16


class CurvesTest(LlamaTest):
    """Losses of runs that differ in nothing but who trains: held out after each round, and of steps on the same rows."""

    def curves(self, codec, *torch_sites):
        run, _ = self.whole_run(llama_config(codec, checkpoint={"every_rounds": 1, "keep": 1000}), *torch_sites)
        held_out = self.held_out_losses(run)
        self.assertEqual(len(held_out), ROUNDS + 1, "one of the start, and one of each round")
        self.assertLess(list(held_out.values())[-1], 3.0, "the model has learnt something: log(256) is 5.5")
        return {"round": held_out, "step": run.training}

    def check_alike(self, expected, got, tolerance, what):
        for kind in ("round", "step"):
            both = [point for point in expected[kind] if point in got[kind]]
            self.assertTrue(both, f"{what}: {kind}s of both")
            ratios = {point: got[kind][point] / expected[kind][point] - 1 for point in both}
            worst = max(ratios, key=lambda point: abs(ratios[point]))
            print(f"{what}: {len(both)} {kind}s, largest deviation {ratios[worst]:+.2e} at {worst}", file=sys.stderr)
            for point, ratio in ratios.items():
                self.assertLess(abs(ratio), tolerance, f"{what}: {kind} {point}")

    def check_codec(self, codec, tolerance):
        native, torch_alone, mixed = (self.curves(codec, *torch_sites) for torch_sites in ((), SITES, ("a",)))
        self.check_alike(native, torch_alone, tolerance, f"{codec}, torch against native")
        self.check_alike(native, mixed, tolerance, f"{codec}, mixed against native")
        self.check_alike(torch_alone, mixed, tolerance, f"{codec}, mixed against torch")

    def test_torch_native_and_mixed_runs_have_the_same_losses_with_float32(self):
        self.check_codec("float32", 1e-4)

    def test_torch_native_and_mixed_runs_have_the_same_losses_with_int4(self):
        self.check_codec("int4", 1e-3)


class RestoredTest(LlamaTest):
    def restored(self, kill):
        config = llama_config("int4", run={"steps": 80})
        config["membership"] |= {"lease_ms": 60000}
        run = self.start_run(config)
        checkpoint = run.folder / "checkpoint"
        flags = (f"--checkpoint={checkpoint}", "--save_at=33")
        for site in SITES:
            own = (*flags, *(("--die_at=36",) if kill else ())) if site == "a" else ()
            self.start_torch(run, site, *own, f"--dump={run.folder / site}.pt")
        if kill:
            eventually(lambda: not run.workers["a"].running(), "a has died beyond its checkpoint", 240)
            run.coordinator.send(signal.SIGKILL)
            run.coordinator.process.wait()
            run.start_coordinator()
            self.start_torch(run, "a", *flags, f"--dump={run.folder / 'a'}.pt")
        self.finish(run)
        return {site: torch.load(f"{run.folder / site}.pt") for site in SITES}

    def test_killed_with_the_coordinator_and_restored_a_run_ends_with_the_same_bits(self):
        undisturbed, killed = self.restored(kill=False), self.restored(kill=True)
        for site in SITES:
            for name, values in undisturbed[site].items():
                self.assertTrue(torch.equal(values, killed[site][name]), f"site {site}: {name}")


class EveryKindOfSiteTest(LlamaTest):
    @unittest.skipUnless(all(map(importlib.util.find_spec, ("accelerate", "lightning"))),
                         "accelerate or lightning is not installed")
    def test_a_native_worker_a_plain_script_a_trainer_and_lightning_hold_the_same_anchor_at_every_version(self):
        config = llama_config("int4", run={"steps": 80})
        config["membership"] |= {"min_sites": 4}
        run = self.start_run(config)
        run.start_worker("native", f"--data={self.text}")
        self.start_torch(run, "plain")
        self.start_torch(run, "trainer", f"--out={run.folder / 'trainer'}", "--steps=80", script="trainer_site.py")
        self.start_torch(run, "lightning", f"--checkpoints={run.folder / 'checkpoints'}", script="lightning_site.py")
        self.finish(run)  # fails where a digest of a site is not the coordinator's
        for site, fragment in itertools.product(run.workers, range(config["sync"]["num_fragments"])):
            self.assertGreater(run.book.agreed(site, fragment), 3, f"site {site}, fragment {fragment}")


if __name__ == "__main__":
    unittest.main()
