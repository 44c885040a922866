"""Training frameworks with several ranks a site: a killed site goes on with as many ranks, and with another number."""

import importlib.util
import json
import math
import sys
import unittest

from harness import DONE, DigestBook
from llama_runs import HERE
from test_torch_ranks import RankedTest, ranked_config

STEPS = 60


@unittest.skipUnless(importlib.util.find_spec("accelerate"), "accelerate is not installed")
class FrameworksTest(RankedTest):
    def launch(self, run, script, world, label, *flags):
        """Site a by torchrun."""
        inner = json.dumps(run.config["inner"])
        launcher = [] if world == 1 else ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
        run.workers["a"] = self.program(run.folder, label, sys.executable, *launcher, HERE / script, run.grpc, "a", self.text,
                                        f"--model={self.base}", f"--inner={inner}", *flags)
        run.torch_sites.add("a")
        return run.workers["a"]

    def check(self, script, flags, first, second, third, steps_of_b=STEPS):
        """Killed after step 27 with a checkpoint of 20, it goes on with as many ranks, and, killed at 47, with one."""
        config = ranked_config("int4", run={"steps": STEPS}, membership={"min_sites": 2, "lease_ms": 120000})
        run = self.start_ranked_run(config)
        killed = self.launch(run, script, 2, "first", *flags, *first)
        self.start_ranked(run, "b", "single", 1)
        self.assertNotEqual(killed.wait(240), DONE, killed.log()[-3000:])
        before = self.steps_of(killed)
        self.assertEqual(sorted(before), list(range(1, 28)), killed.log()[-3000:])

        killed = self.launch(run, script, 2, "second", *flags, *second)
        self.assertNotEqual(killed.wait(240), DONE, killed.log()[-3000:])
        again = self.steps_of(killed)
        self.assertEqual(sorted(again), list(range(21, 48)), killed.log()[-3000:])
        for step in range(21, 28):
            self.assertEqual(before[step]["lr"], again[step]["lr"], step)
            self.assertAlmostEqual(before[step]["loss"], again[step]["loss"], 5)

        last = self.launch(run, script, 1, "third", *flags, *third)
        run.book = DigestBook()
        self.finish_ranked(run)
        alone = self.steps_of(last)
        self.assertEqual(sorted(alone), list(range(41, STEPS + 1)), last.log()[-3000:])
        for step in range(41, 48):
            self.assertEqual(again[step]["lr"], alone[step]["lr"], step)
        losses = [sum(steps[step]["loss"] for step in range(41, 48)) / 7 for steps in (again, alone)]
        self.assertTrue(all(map(math.isfinite, losses)))
        self.assertLess(abs(losses[0] - losses[1]), 0.2 * losses[0])
        print(f"{script}: mean loss of steps 41 to 47: {losses[0]:.4f} with two ranks, {losses[1]:.4f} with one",
              file=sys.stderr)

    def test_the_trainer_with_ddp(self):
        out = f"--out={self.folder / 'trainer'}"
        common = [out, f"--steps={STEPS}", "--save_every=20"]
        self.check("trainer_site.py", common, ["--kill_at=27"], ["--kill_at=47", "--resume"], ["--resume"])

    @unittest.skipUnless(importlib.util.find_spec("lightning"), "lightning is not installed")
    def test_lightning_with_ddp(self):
        self.check("lightning_site.py", [f"--checkpoints={self.folder / 'lightning'}"], ["--die_at=28"], ["--die_at=48"], [])

    def test_accelerate_with_fsdp(self):
        out = f"--out={self.folder / 'accelerate'}"
        self.check("accelerate_site.py", [out], ["--save_at=20", "--kill_at=27"],
                   ["--resume", "--save_at=40", "--kill_at=47"], ["--resume"])


if __name__ == "__main__":
    unittest.main()
