"""Optimizers of users that have masters of their own, or whose steps are not those that DiLoCo was given."""

import copy
import unittest

import torch
from torch import nn

import causeway.torch as causeway
from replay import ReplayTest
from scripts import RATE, Net, backward, sgd, train


class SAM(torch.optim.Optimizer):
    """Foret et al., as commonly written: two half steps, and `step` is not called."""

    def __init__(self, parameters, base):
        super().__init__(parameters, {"rho": 0.05})
        self.base_optimizer = base(self.param_groups)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old"] = p.clone()
                p.add_(p.grad, alpha=0.05)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.copy_(self.state[p]["old"])
        self.base_optimizer.step()
        self.zero_grad()

    def step(self, closure=None):
        raise NotImplementedError


class OwnMasters(torch.optim.SGD):
    """float32 masters in its state, written over p at each step."""

    def step(self, closure=None):
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    master = self.state[p].setdefault("fp32", p.detach().clone())
                    master.sub_(p.grad, alpha=group["lr"])
                    p.copy_(master)


class MastersTest(ReplayTest):
    def test_an_optimizer_with_masters_of_its_own_is_found_at_any_alpha(self):
        for alpha, delay in ((0.5, 0), (0.0, 1), (0.9, 2)):
            def script(site):
                model = site.model(lambda: nn.Sequential(nn.Linear(6, 50), nn.Tanh(), nn.Linear(50, 3)))
                site.batches = [batch * (1 + site.index) for batch in site.batches]
                train(site, model, OwnMasters(model.parameters(), lr=RATE))
            sites = self.real(script, steps=80, every=10, alpha=alpha, delay=delay)
            errors = [site.error for site in sites if site.error is not None]  # the other one may be alone from then on
            self.assertTrue(errors)
            for error in errors:
                self.assertIsInstance(error, causeway.ConfigError)
                self.assertRegex(str(error), r"expected the optimizer to go on.*3 times.*pass params=")

    def test_plain_optimizers_are_never_taken_for_such(self):
        def alone(make, net, batches):
            def script(site):
                model = site.model(net)
                site.batches = site.batches[:batches]
                train(site, model, make(model.parameters()))
            return script
        wide = lambda: nn.Sequential(nn.Linear(6, 50), nn.Tanh(), nn.Linear(50, 3))
        narrow = lambda: nn.Sequential(nn.Linear(6, 1), nn.Linear(1, 3))  # a first tensor of few values
        for make in (lambda p: torch.optim.AdamW(p, lr=1e-3), lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9)):
            for net, batches in ((wide, 5), (wide, 1), (wide, 2), (narrow, 5)):
                self.check(alone(make, net, batches), sites=1, steps=24, delay=1)

    def test_nor_where_two_sites_have_the_same_data(self):
        def script(site):
            model = site.model(lambda: nn.Sequential(nn.Linear(6, 50), nn.Tanh(), nn.Linear(50, 3)))
            site.batches = [torch.ones(8, 6)]
            train(site, model, torch.optim.AdamW(model.parameters(), lr=1e-3))
        self.check(script, steps=24, delay=2)


class MissingStepsTest(ReplayTest):
    def test_a_script_that_trains_with_another_optimizer_is_ended_by_name(self):
        def sam(site):
            model = site.model(Net)
            optimizer = SAM(model.parameters(), lambda groups: torch.optim.SGD(groups, lr=RATE))
            with site.diloco(model, optimizer) as diloco:
                for batch in diloco.loop(site.batches):
                    backward(model, batch)
                    optimizer.first_step()
                    backward(model, batch)
                    optimizer.second_step()

        def made_anew(site):
            model = site.model(Net)
            optimizer = sgd(model.parameters())
            with site.diloco(model, optimizer) as diloco:
                for batch in diloco.loop(site.batches):
                    backward(model, batch)
                    optimizer.step()
                    if diloco.step == 4:
                        optimizer = sgd(model.parameters())
        for script, since in ((sam, 0), (made_anew, 4)):
            with self.assertLogs("causeway", "WARNING") as logged:
                self.check_refused(script, causeway.ConfigError,
                                   f"expected a step of the optimizer given to DiLoCo, got none since batch {since}, in 1000")
            self.assertRegex("\n".join(logged.output), f"no step of the optimizer given to DiLoCo since batch {since}, .*have changed")

    def test_sams_base_optimizer_counts(self):
        def script(site):
            model = site.model(Net)
            optimizer = SAM(model.parameters(), lambda groups: torch.optim.SGD(groups, lr=RATE))
            with site.diloco(model, optimizer.base_optimizer) as diloco:
                for batch in diloco.loop(site.batches):
                    backward(model, batch)
                    optimizer.first_step()
                    backward(model, batch)
                    optimizer.second_step()
                    site.done()
        self.check(script, delay=1, alpha=0.5)

    def test_a_long_accumulation_goes_on(self):
        def script(site):
            model = site.model(Net)
            optimizer, batches = sgd(model.parameters()), 0
            with site.diloco(model, optimizer) as diloco:
                for batch in diloco.loop(site.batches):
                    batches += 1
                    if batches % 600 == 1:
                        backward(model, batch)
                    if batches % 1200 == 0:
                        optimizer.step()
                        site.done()
                        optimizer.zero_grad()
                        model.load_state_dict(copy.deepcopy(model.state_dict()))  # as after an evaluation of others
        self.check(script, steps=4, every=2)


if __name__ == "__main__":
    unittest.main()
