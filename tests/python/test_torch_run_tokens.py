"""With run.tokens PyTorch sites of different speed end together, and a script can follow the run's tokens."""

import sys
import unittest

from harness import DONE, EndToEndTest
from test_mixed import needs_library
from test_torch_external import external_config

TOKENS = 6000
SCRIPT = """
import sys, time, torch
import causeway.torch as causeway
torch.manual_seed(3)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
with causeway.DiLoCo(model, optimizer, coordinator=sys.argv[1], site=sys.argv[2]) as diloco:
    while not diloco.over:
        batch = torch.randn(4, 8, generator=torch.Generator().manual_seed(diloco.step))
        optimizer.zero_grad()
        (model(batch) - batch).square().mean().backward()
        diloco.report(tokens=32)
        optimizer.step()
        time.sleep(float(sys.argv[3]))
    progress = diloco.progress()
    print("ended at", diloco.step, progress["run_tokens"], diloco.config["run"]["tokens"])
"""


@needs_library
class RunTokensTest(EndToEndTest):
    def test_sites_end_once_the_runs_tokens_are_done(self):
        script = self.folder / "site.py"
        script.write_text(SCRIPT)
        run = self.new_run(external_config(run={"steps": 0, "tokens": TOKENS}, membership={"min_sites": 2},
                                           sync={"mode": "quorum", "sync_every": 6, "num_fragments": 1}))
        run.start_coordinator()
        for site, pause_s in (("fast", "0.02"), ("slow", "0.04")):
            run.workers[site] = run.program(f"worker-{site}", sys.executable, script, run.grpc, site, pause_s)
        steps = {}
        for site, worker in run.workers.items():
            self.assertEqual(DONE, worker.wait(90), worker.log()[-2000:])
            words = worker.output().split()
            steps[site] = int(words[2])
            self.assertGreaterEqual(int(words[3]), TOKENS)
            self.assertEqual(TOKENS, int(words[4]))
        self.assertLess(steps["slow"], 0.8 * steps["fast"])
        self.assertLess(32 * sum(steps.values()), 1.5 * TOKENS)
        run.stop_coordinator()


if __name__ == "__main__":
    unittest.main()
