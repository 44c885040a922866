"""1-bit Adam in native sites of several ranks: against numpy, killed and restored, and beside other sites."""

import json
import os
import re
import signal
import sys

import numpy

from harness import DONE, DigestBook, EndToEndTest, eventually, read_safetensors, synthetic
from onebit_reference import OnebitAdam
from splitmix import U64, hash_combine, noise
from test_ranks import rank_process

SHAPES = [[100, 51], [40], [7, 300]]
SIZES = [5100, 40, 2100]
AMPLITUDE = 0.5


def config_of(sites, steps, freeze_at, step_ms=0, clip=1, **sections):
    return synthetic(dict.fromkeys(sites, AMPLITUDE), SHAPES, run={"steps": steps},
                     model={"gradient": {"kind": "noise"}, "step_ms": step_ms},
                     inner={"optimizer": "onebit_adam", "freeze_at": freeze_at, "lr": 1e-3, "clip": clip},
                     sync={"sync_every": 10, "num_fragments": 2}, checkpoint={"every_rounds": 1}, **sections)


def newest(checkpoints):
    """The folder, and the step after which it was made."""
    path = max(checkpoints.glob("[0-9]*[0-9]/sync.json"))
    return path.parent, json.loads(path.read_text())["step"]


def gradients(world, site, step):
    """One of each rank (worker/parallel/synthetic.h), before they are averaged."""
    of_site = hash_combine(U64(1), site)
    result = []
    for rank in range(world):
        stream = hash_combine(of_site, U64(rank)) if rank else of_site
        tensors = [noise(hash_combine(hash_combine(stream, U64(i)), U64(step)), size) for i, size in enumerate(SIZES)]
        result.append(numpy.float32(AMPLITUDE) * numpy.concatenate(tensors))
    return result


class OnebitAdamTest(EndToEndTest):
    def start(self, config, sites):
        run = self.new_run(config)
        run.start_coordinator()
        for site, ranks in sites.items():
            self.start_site(run, site, ranks)
        return run

    def start_site(self, run, site, ranks):
        return run.start_worker(site, f"--nproc={ranks}", f"--checkpoint_dir={self.checkpoints(run, site)}")

    def checkpoints(self, run, site):
        return run.folder / f"checkpoints-{site}"

    def state(self, run, site):
        """m, v, δ of each rank and δ̄ in the site's newest checkpoint, and its step."""
        folder, step = newest(self.checkpoints(run, site))
        file = read_safetensors(folder / "trainer.safetensors")
        def flat(prefix):
            return numpy.concatenate([file[f"{prefix}.t{i}"].reshape(-1) for i in range(len(SIZES))])
        residuals = [file[f"onebit.residual.{rank}"] for rank in range(8) if f"onebit.residual.{rank}" in file]
        return flat("first_moment"), flat("second_moment"), residuals, file.get("onebit.owned_residual"), step


class ReferenceTest(OnebitAdamTest):
    def test_worlds_of_one_two_and_four_hold_the_moments_and_residuals_of_the_papers_algorithm(self):
        freeze_at = 25
        for world, clip in ((1, 1), (2, 1), (4, 1), (2, 0)):  # without clipping momenta cross beside backward
            with self.subTest(world=world, clip=clip), numpy.errstate(over="ignore"):
                run = self.start(config_of("a", 50, freeze_at, clip=clip), {"a": world})
                run.await_done()
                self.assertIn("1-bit Adam: variance frozen after step 25", run.workers["a"].log())
                m, v, residuals, owned, steps = self.state(run, "a")
                self.assertGreaterEqual(steps, 40)
                reference = OnebitAdam(world, SIZES, freeze_at, clip=clip)
                for step in range(1, steps + 1):
                    reference.step(step, gradients(world, "a", step))
                expected = {"m": (reference.m, m), "v": (reference.v, v)}
                self.assertEqual(len(residuals), world if world > 1 else 0)
                for rank, residual in enumerate(residuals):
                    expected[f"δ of rank {rank}"] = reference.residual[rank], residual
                if world > 1:
                    expected["δ̄"] = reference.owned, owned
                for name, (ours, theirs) in expected.items():
                    different = int(numpy.count_nonzero(ours != theirs))
                    print(f"world {world}: {name}: {different} of {len(ours)} values differ in any bit", file=sys.stderr)
                    self.assertGreater(numpy.abs(theirs).max(), 0)
                    numpy.testing.assert_allclose(theirs, ours, rtol=1e-6, atol=1e-7, err_msg=name)


class RestoreTest(OnebitAdamTest):
    def killed(self, freeze_at, step, ranks_after=2):
        """Runs of a site that is undisturbed, and of one that is killed beyond that step and started again."""
        config = config_of("a", 120, freeze_at, step_ms=20, membership={"min_sites": 1, "lease_ms": 30_000})
        undisturbed, disturbed = self.start(config, {"a": 2}), self.start(config, {"a": 2})

        def saved():
            checkpoints = self.checkpoints(disturbed, "a")
            return any(checkpoints.glob("[0-9]*[0-9]/sync.json")) and newest(checkpoints)[1] >= step
        eventually(saved, f"a checkpoint after step {step}")
        os.kill(rank_process(disturbed.workers["a"], 0), signal.SIGKILL)
        self.assertNotEqual(disturbed.workers["a"].wait(), DONE)
        self.start_site(disturbed, "a", ranks_after)
        for run in (undisturbed, disturbed):
            run.await_done()
        self.assertIn("goes on from the checkpoint after step", disturbed.workers["a"].log())
        return undisturbed, disturbed

    def test_killed_in_warmup_and_after_the_freeze_it_goes_on_with_the_same_bits(self):
        for freeze_at, step in ((80, 20), (30, 60)):
            with self.subTest(freeze_at=freeze_at, killed_after=step):
                undisturbed, disturbed = self.killed(freeze_at, step)
                self.assert_same_bits(undisturbed.export(), disturbed.export(), "export")
                for ours, theirs in zip(self.state(undisturbed, "a"), self.state(disturbed, "a")):
                    numpy.testing.assert_array_equal(ours, theirs)

    def test_restored_with_more_ranks_it_goes_on(self):
        _, disturbed = self.killed(freeze_at=30, step=60, ranks_after=4)
        self.assertEqual(len(self.state(disturbed, "a")[2]), 4)
        self.assertEqual(disturbed.workers["a"].log().count("variance frozen"), 1)  # before it was killed
        self.assertIn("1-bit Adam: goes on with the variance of step 30", disturbed.workers["a"].log())


class BesideOthersTest(OnebitAdamTest):
    def test_a_site_of_four_ranks_and_one_of_one_hold_the_same_anchors(self):
        run = self.start(config_of("ab", 200, 40, step_ms=5), {"a": 4, "b": 1})
        book = DigestBook()
        status = book.until_done(run)
        for site in "ab":
            for fragment in range(2):
                self.assertGreaterEqual(book.agreed(site, fragment), 15)
        last = {site["name"]: site["ranks"] for site in status["sites"]}
        self.assertEqual(last["a"]["onebit_adam"]["phase"], "frozen")
        self.assertEqual(last["a"]["onebit_adam"]["frozen_at"], 40)
        self.assertGreater(last["a"]["onebit_adam"]["compression"], 20)  # small tensors: their scales count
        self.assertNotIn("compression", {key for key, value in last["b"]["onebit_adam"].items() if value})
        self.assertRegex(run.workers["b"].log(), r"one rank: it is Adam with a frozen variance, and nothing is saved")
        print(f"{len(book.reported)} digests equal, compression {last['a']['onebit_adam']['compression']:.1f}", file=sys.stderr)
