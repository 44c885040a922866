"""The settings of a run of PyTorch sites change while it runs, and its scripts see the new end."""

import sys
import unittest

from harness import DONE, EndToEndTest, eventually
from test_mixed import needs_library
from test_torch_external import external_config

AT_STEP = 60
SCRIPT = """
import sys, time, torch
import causeway.torch as causeway
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
with causeway.DiLoCo(model, optimizer, coordinator=sys.argv[1], site=sys.argv[2]) as diloco:
    while not diloco.over:
        batch = torch.randn(4, 8, generator=torch.Generator().manual_seed(1000 * len(sys.argv[2]) + diloco.step))
        optimizer.zero_grad()
        (model(batch) - batch).square().mean().backward()
        optimizer.step()
        time.sleep(0.02)
    print("ended at", diloco.step)
"""


@needs_library
class SettingsTest(EndToEndTest):
    def started(self, script):
        run = self.new_run(external_config(run={"steps": 90}, membership={"min_sites": 2}, sync={"sync_every": 6, "num_fragments": 1}))
        run.start_coordinator()
        for site in ("a", "bb"):
            run.workers[site] = run.program(f"worker-{site}", sys.executable, script, run.grpc, site)
        eventually(lambda: run.rounds() >= 1, "a round", seconds=90)
        run.control("set", f"--at_step={AT_STEP}", "outer.lr=0.3", "codec.up=int8", "codec.down=bfloat16",
                    "codec.feedback_up=0.5", "run.steps=110")
        return run

    def test_anchors_are_those_of_an_undisturbed_run_and_the_scripts_go_on_to_the_new_end(self):
        script = self.folder / "site.py"
        script.write_text(SCRIPT)
        results = []
        for disturbed in (False, True):
            run = self.started(script)
            if disturbed:
                for step in (AT_STEP - 8, AT_STEP + 10):
                    eventually(lambda step=step: 6 * run.rounds() >= step - 6, f"step {step}")
                    run.coordinator.kill()
                    run.start_coordinator()
            for worker in run.workers.values():
                self.assertEqual(DONE, worker.wait(90), worker.log()[-2000:])
                self.assertIn("ended at 110", worker.output())
            eventually(lambda: run.status()["state"] == "done", "the run is done")
            results.append(run.export())
            run.stop_coordinator()
        self.assert_same_bits(*results, "anchors")


if __name__ == "__main__":
    unittest.main()
