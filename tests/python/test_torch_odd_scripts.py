"""Scripts that do unusual things to their optimizer, parameters and modules: W beside a replay, or refused by name."""

import copy
import threading
import unittest

import torch
from torch import nn

import causeway.torch as causeway
from harness import eventually
from replay import RealSite, ReplayTest
from scripts import RATE, Net, backward, sgd, train


class StepTest(ReplayTest):
    def test_a_subclass_that_calls_the_step_of_its_base_takes_one(self):
        class Mine(torch.optim.SGD):
            def step(self, closure=None):
                return super().step(closure)

        def script(site):
            model = site.model(Net)
            sgd(model.parameters())  # has PyTorch call the hooks in the base's step, too
            train(site, model, Mine(model.parameters(), lr=RATE))
        self.check(script, delay=1, alpha=0.5)

    def test_a_step_that_fails_and_is_taken_again_is_one(self):
        class Fails(torch.optim.SGD):
            failed = False

            def step(self, closure=None):
                if not self.failed:
                    self.failed = True
                    raise RuntimeError("out of memory")
                return super().step(closure)

        def script(site):
            model = site.model(Net)
            optimizer = Fails(model.parameters(), lr=RATE)
            with site.diloco(model, optimizer) as diloco:
                for batch in diloco.loop(site.batches):
                    backward(model, batch)
                    try:
                        optimizer.step()
                    except RuntimeError:
                        optimizer.step()
                    site.done()
                    optimizer.zero_grad()
        self.check(script)

    def test_a_step_that_the_script_has_replaced_is_counted_whole(self):
        def script(site):
            model = site.model(Net)
            optimizer = sgd(model.parameters())
            own = optimizer.step

            def step(*arguments):
                own(*arguments)
                for p in model.parameters():
                    p.data.mul_(0.9)
            optimizer.step = step
            train(site, model, optimizer)
        self.check(script)

    def test_hooks_that_the_script_registers_later_come_before_the_sync(self):
        def script(site):
            model = site.model(Net)
            optimizer = sgd(model.parameters())

            def decay(*_):
                for p in model.parameters():
                    p.data.mul_(0.9)

            def before(step):
                if step == 1:
                    optimizer.register_step_post_hook(decay)
            train(site, model, optimizer, before=before)
        self.check(script)

    def test_a_copy_of_a_wrapper_steps_the_copy(self):
        class Wrapper:
            def __init__(self, inner):
                self.optimizer = inner

            def step(self):
                self.optimizer.step()

            def zero_grad(self):
                self.optimizer.zero_grad()

        def script(site):
            model = site.model(Net)
            wrapper = Wrapper(sgd(model.parameters()))
            copies = []

            def between(step):
                if step == 2:
                    copies.extend(copy.deepcopy((model, wrapper)))
                if copies:
                    backward(copies[0], site.batches[0])
                    copies[1].step()
            train(site, model, wrapper, between=between)
        self.check(script)


class TensorTest(ReplayTest):
    def refused(self, change, sentence, make=Net, optimizer=lambda model: sgd(model.parameters())):
        """`change` of the model after step 5."""
        def script(site):
            model = site.model(make)
            chosen = optimizer(model)
            with site.diloco(model, chosen) as diloco:
                trained = chosen or sgd(model.parameters())
                for batch in diloco.loop(site.batches):
                    backward(model, batch)
                    trained.step()
                    if chosen is None:
                        diloco.after_step()
                    trained.zero_grad()
                    if diloco.step == 5:
                        change(model, trained)
        self.check_refused(script, causeway.ConfigError, sentence)

    def test_a_tensor_of_another_shape_or_type_in_the_same_parameter(self):
        def grown(model, _):
            model.head.weight.data = torch.cat([model.head.weight.data, torch.zeros(1, 20)])
            model.head.bias.data = torch.zeros(4)
            model.head.weight.grad = model.head.bias.grad = None
        self.refused(grown, r"parameter head\.weight: expected torch.float32 of shape \[3, 20\].* got .*\[4, 20\]")

        def doubled(model, _):
            model.double()
        self.check_refused(self.doubled, causeway.ConfigError,
                           "parameter body.weight: expected torch.float32 .* got torch.float64")

    @staticmethod
    def doubled(site):
        model = site.model(Net)
        optimizer = sgd(model.parameters())
        with site.diloco(model, optimizer) as diloco:
            for batch in diloco.loop(site.batches):
                backward(model, batch.to(next(model.parameters()).dtype))
                optimizer.step()
                optimizer.zero_grad()
                if diloco.step == 3:
                    model.double()

    def test_a_parameter_that_was_in_no_optimizer_and_is_added(self):
        self.refused(lambda model, optimizer: optimizer.add_param_group({"params": list(model.body.parameters())}),
                     r"parameter body\.weight: expected frozen.*trained from now on",
                     optimizer=lambda model: sgd(model.head.parameters()))

    def test_a_module_that_is_added_where_no_optimizer_was_passed(self):
        def added(model, _):
            model.extra = nn.Linear(3, 3)
        self.refused(added, r"model: expected the parameters that DiLoCo has listed, got extra\.weight", optimizer=lambda _: None)

    def test_ties_that_are_made_or_end_later(self):
        def two():
            model = nn.ModuleDict({"a": nn.Linear(6, 6), "b": nn.Linear(6, 6)})
            model.forward = lambda x: model["b"](model["a"](x))
            return model

        def tied():
            model = two()
            model["b"].weight.data = model["a"].weight.data
            return model

        def ties(model, _):
            model["b"].weight.data = model["a"].weight.data

        def unties(model, _):
            model["b"].weight.data = model["b"].weight.data.clone()
        self.refused(ties, r"parameter b\.weight: expected values of its own.* got those of a\.weight", two)
        self.refused(unties, r"parameter b\.weight: expected the values of a\.weight.* got values of its own", tied)

    def test_any_name_of_a_tie_counts(self):
        def tied():
            model = nn.ModuleDict({"a": nn.Linear(6, 6), "b": nn.Linear(6, 6)})
            model["b"].weight = model["a"].weight
            model.forward = lambda x: model["b"](model["a"](x))
            return model

        def script(site):
            model = site.model(tied)
            model.requires_grad_(False)
            model["b"].bias.requires_grad_(True)

            def between(step):
                if step == 4:
                    model["b"].weight.requires_grad_(True)
            train(site, model, sgd(model.parameters()), between=between, trained_later=["b"],
                  replayed=("a.weight", "b.bias"))
        self.check(script, delay=1, alpha=0.5)

    def test_a_trained_parameter_with_the_storage_of_a_frozen_one_crosses(self):
        def tied():
            model = nn.ModuleDict({"a": nn.Linear(6, 6), "b": nn.Linear(6, 6)})
            model["a"].requires_grad_(False)
            model["b"].weight = nn.Parameter(model["a"].weight.data)
            model.forward = lambda x: model["b"](model["a"](x))
            return model

        def script(site):
            model = site.model(tied)
            train(site, model, sgd(model["b"].parameters()), replayed=("a.weight", "b.bias"))
        self.check(script, alpha=0.5)

    def test_channels_last_is_the_same_model(self):
        def convolution():
            return nn.Sequential(nn.Conv2d(3, 40, 2), nn.Flatten(), nn.LazyLinear(3))

        def script(site):
            def make():
                model = convolution()
                model(torch.zeros(1, 3, 4, 4))
                return model
            model = site.model(make)
            optimizer = sgd(model.parameters())
            with site.diloco(model, optimizer) as diloco:
                for batch in diloco.loop(site.batches):
                    if diloco.step == 3:
                        model.to(memory_format=torch.channels_last)
                    backward(model, batch.repeat(1, 8).view(8, 3, 4, 4))
                    optimizer.step()
                    site.done()
                    optimizer.zero_grad()
        self.check(script, delay=1, alpha=0.5)


class MastersTest(ReplayTest):
    def test_a_projection_by_the_script_is_no_sign_of_masters(self):
        def script(site):
            model = site.model(lambda: nn.Sequential(nn.Linear(6, 60), nn.Tanh(), nn.Linear(60, 3)))
            optimizer = torch.optim.RMSprop(model.parameters(), lr=0.005)
            with site.diloco(model, optimizer) as diloco:
                for batch in diloco.loop([batch * (1 + site.index) for batch in site.batches]):
                    backward(model, batch)
                    optimizer.step()
                    optimizer.zero_grad()
                    with torch.no_grad():
                        for p in model.parameters():
                            p.clamp_(-0.02, 0.02)
        config = self.config(steps=60, every=4) | {"outer": {"optimizer": "nesterov", "lr": 0.7, "momentum": 0.9},
                                                   "values": {"gate": 0}}
        with self.assertNoLogs("causeway", "WARNING"):
            self.assertEqual([None, None], [site.error for site in self.real(script, config=config)])

    def test_masters_beside_a_script_without_an_optimizer_are_warned_of(self):
        def script(site):
            model = site.model(lambda: nn.Sequential(nn.Linear(6, 60), nn.Tanh(), nn.Linear(60, 3)))
            masters = [p.detach().clone() for p in model.parameters()]
            with site.diloco(model, None) as diloco:
                for batch in diloco.loop([batch * (1 + site.index) for batch in site.batches]):
                    backward(model, batch)
                    with torch.no_grad():
                        for p, w in zip(model.parameters(), masters):
                            w -= RATE * p.grad
                            p.copy_(w)
                            p.grad = None
                    diloco.after_step()
        with self.assertLogs("causeway", "WARNING") as logged:
            self.assertEqual([None, None], [site.error for site in self.real(script, steps=80, every=10, alpha=0.5)])
        self.assertRegex("\n".join(logged.output), "as one with masters of its own does")


class GateTest(ReplayTest):
    @staticmethod
    def script(site):
        """The learning rate rises a hundredfold after the first round."""
        model = site.model(Net)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001)

        def before(step):
            if step == 5:
                optimizer.param_groups[0]["lr"] = 0.1
        train(site, model, optimizer, before=before)

    def test_a_learning_rate_that_rises_a_hundredfold_stops_no_site_by_default(self):
        self.assertEqual([None, None], [site.error for site in self.real(self.script, config=self.config())])

    def test_a_site_whose_contributions_are_refused_says_why_and_that_it_waits_in_quarantine(self):
        script = self.script
        self.run = self.new_run(self.config() | {"values": {"clip": False}})
        self.run.start_coordinator()
        sites = [RealSite(index, self.run.grpc) for index in range(2)]
        with self.assertLogs("causeway", "WARNING") as logged:
            threads = [threading.Thread(target=site.run, args=(script,), daemon=True) for site in sites]
            for thread in threads:
                thread.start()
            eventually(lambda: any("still waiting: all active sites are in quarantine (causewayctl release --all)" in line
                                   for line in logged.output), "the sites say that they wait")
            self.run.control("stop", "--yes")
            for thread in threads:
                thread.join()
        self.assertRegex("\n".join(logged.output), r"the contribution to fragment 0 of version 1 is refused: norm .* times the "
                         r"usual .*; at most 8 are taken \(values.gate\)")


class UseTest(ReplayTest):
    def said(self, act, **options):
        """The error of each site's script that acts inside `with`."""
        def script(site):
            model = site.model(Net)
            optimizer = sgd(model.parameters())
            with site.diloco(model, optimizer) as diloco:
                try:
                    act(site, model, optimizer, diloco)
                except causeway.Error as error:
                    site.said = error
        return [site.said for site in self.real(script, **options)]

    def test_a_loop_of_the_scripts_own_that_reports_is_ended_too(self):
        def act(site, model, optimizer, diloco):
            optimizer = sgd(model.parameters())
            while not diloco.over:
                backward(model, site.batches[0])
                optimizer.step()
                diloco.report(tokens=8)
        for error in self.said(act):
            self.assertRegex(str(error), "expected a step of the optimizer given to DiLoCo, got none since batch 0")

    def test_a_second_with_leaves_the_site_where_it_is(self):
        def act(site, model, optimizer, diloco):
            try:
                with diloco:
                    pass
            except causeway.FailedError as error:
                second = error
            for batch in diloco.loop(site.batches):
                backward(model, batch)
                optimizer.step()
            self.assertEqual(12, diloco.step)
            raise second
        for error in self.said(act):
            self.assertIn("expected one `with` of a site", str(error))

    def test_inside_the_anchor_no_step_is_taken_and_no_state_saved(self):
        def act(site, model, optimizer, diloco):
            with diloco.anchor_parameters():
                with diloco.anchor_parameters():
                    pass
                try:
                    diloco.state_dict()
                except causeway.FailedError as error:
                    site.state = str(error)
                backward(model, site.batches[0])
                optimizer.step()
        for error in self.said(act):
            self.assertIn("expected no optimizer step inside anchor_parameters()", str(error))

    def test_a_loop_before_joining_is_refused_at_once(self):
        def script(site):
            model = site.model(Net)
            diloco = site.diloco(model, sgd(model.parameters()))
            try:
                next(iter(diloco.loop(site.batches)))
            finally:
                diloco.close()
        self.check_refused(script, causeway.FailedError, "write `with diloco:` around the loop")


if __name__ == "__main__":
    unittest.main()
