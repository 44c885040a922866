"""Scripts with causeway.OffloadedAdamW in real runs: W is what plain PyTorch ends with, with the same optimizer."""

import unittest

import torch

import causeway.torch as causeway
from replay import ReplayTest
from scripts import Net, backward, train


class OffloadedTest(ReplayTest):
    def test_a_plain_script_ends_with_the_mean_of_what_the_optimizer_has_trained(self):
        for moments in ("float32", "bfloat16"):
            def script(site):
                model = site.model(Net)
                optimizer = causeway.OffloadedAdamW(model.parameters(), lr=1e-2, moments=moments)
                train(site, model, optimizer, params=optimizer.masters(model.named_parameters()))

            self.check(script)
            self.check(script, delay=1, alpha=0.5)

    def test_accumulation_clipping_and_a_scheduler_are_the_scripts_own(self):
        def script(site):
            model = site.model(Net)
            optimizer = causeway.OffloadedAdamW(model.parameters(), lr=1e-2)
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
            with site.diloco(model, optimizer, schedulers=[]) as diloco:
                for batch in diloco.loop(site.batches):
                    backward(model, batch.flip(0) / 2)
                    backward(model, batch)
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                    optimizer.step()
                    site.done()
                    scheduler.step()
                    optimizer.zero_grad()

        self.check(script)


if __name__ == "__main__":
    unittest.main()
