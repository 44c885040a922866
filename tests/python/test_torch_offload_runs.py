"""Scripts with causeway.OffloadedAdamW in real runs: W is what plain PyTorch ends with, with the same optimizer."""

import unittest

import torch

import causeway.torch as causeway
from replay import RealSite, ReplayTest
from scripts import Net, backward, train
from test_torch_offload import OnStandIn


class OffloadedTest(ReplayTest):
    def test_a_plain_script_ends_with_the_mean_of_what_the_optimizer_has_trained(self):
        for moments in ("float32", "bfloat16"):
            def script(site):
                model = site.model(Net)
                optimizer = causeway.OffloadedAdamW(model.parameters(), lr=1e-2, moments=moments)
                train(site, model, optimizer)

            self.check(script)
            self.check(script, delay=1, alpha=0.5)

    def narrow(self, act, **settings):
        """A script in bfloat16; `act` at each site with model and optimizer, ahead of each step."""
        def script(site):
            model = site.model(lambda: Net().bfloat16())
            optimizer = causeway.OffloadedAdamW(model.parameters(), lr=1e-2)
            site.batches = [batch.bfloat16() for batch in site.batches]
            train(site, model, optimizer, before=lambda step: act(step, model, optimizer), **settings)

        self.check(script)
        self.check(script, delay=1, alpha=0.5)

    def test_updates_that_go_on_behind_the_step_are_awaited_where_theta_is_synced(self):
        class Deep(Net):
            def __init__(self):
                super().__init__()
                self.body = torch.nn.Sequential(torch.nn.Linear(6, 20), torch.nn.Tanh(), torch.nn.Linear(20, 20))

        late = []
        for dtype in (torch.float32, torch.bfloat16):
            def script(site):
                model = site.model(lambda: Deep().to(dtype))
                real = isinstance(site, RealSite)
                optimizer = OnStandIn(model.parameters(), lr=1e-2, k="cpu", overlap=model if real else None)
                late.extend([optimizer] if real else [])
                site.batches = [batch.to(dtype) for batch in site.batches]
                train(site, model, optimizer, params=optimizer.masters(model.named_parameters()))

            self.check(script)
            self.check(script, delay=1, alpha=0.5)
        self.assertTrue(all(optimizer.handed > 0 for optimizer in late))

    def test_masters_are_synced_though_the_script_does_not_pass_them(self):
        self.narrow(lambda *_: None)

    def test_what_is_trained_later_has_a_master_from_the_start(self):
        self.narrow(lambda step, model, _: model.body.requires_grad_(step > 4), trained_later=["body"])

    def test_the_run_goes_on_where_the_script_clears_the_state_in_mid_run(self):
        self.narrow(lambda step, _, optimizer: step == 6 and optimizer.state.clear())

    def test_what_the_script_loads_in_mid_run_is_what_is_trained_on(self):
        first = {}

        def act(step, model, _):
            if step == 1:
                first.update({name: value.clone() for name, value in model.state_dict().items()})
            if step == 7:
                model.load_state_dict(first)
        self.narrow(act)

    def test_names_of_wrapped_models_are_those_of_the_plain_one(self):
        def script(site):
            model = site.model(lambda: Net().bfloat16())
            compiled = torch.compile(model, backend="eager")
            optimizer = causeway.OffloadedAdamW(model.parameters(), lr=1e-2)
            site.batches = [batch.bfloat16() for batch in site.batches]
            train(site, compiled, optimizer, params=optimizer.masters(compiled.named_parameters()),
                  kinds={"_orig_mod.body.weight": "matrix"}, trained_later=["_orig_mod.head"])

        self.check(script)

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
