"""Scripts of users in real runs, W beside a replay in plain PyTorch; and those that a site ends by name."""

import copy
import threading
import unittest

import torch
from torch import nn

import causeway.torch as causeway
from harness import eventually
from replay import RealSite, ReplayTest
from scripts import Net, backward, sgd, train


class Lookahead(torch.optim.Optimizer):
    """As in the PyPI packages: without the base's constructor, its own work behind the step of `optimizer`."""

    def __init__(self, optimizer, k=5, alpha=0.5):
        self.optimizer, self.k, self.alpha = optimizer, k, alpha
        self.param_groups = optimizer.param_groups
        self.slow = [[p.detach().clone() for p in group["params"]] for group in self.param_groups]
        self.counter = 0

    def step(self, closure=None):
        loss = self.optimizer.step(closure)
        self.counter += 1
        if self.counter % self.k == 0:
            for group, slow in zip(self.param_groups, self.slow):
                for fast, kept in zip(group["params"], slow):
                    kept.add_(fast.data - kept, alpha=self.alpha)
                    fast.data.copy_(kept)
        return loss

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)


class PlainTest(ReplayTest):
    def test_a_plain_script_ends_with_the_mean(self):
        def script(site):
            model = site.model(Net)
            train(site, model, sgd(model.parameters()))
        self.check(script)
        self.check(script, delay=1, alpha=0.5)


class UnfrozenTest(ReplayTest):
    def unfreezes(self, in_optimizer, **settings):
        """The body is frozen, and trained from step 5 on."""
        def script(site):
            model = site.model(Net)
            model.body.requires_grad_(False)
            optimizer = sgd(model.parameters() if in_optimizer else model.head.parameters())

            def between(step):
                if step == 4:
                    model.body.requires_grad_(True)
                    if not in_optimizer:
                        optimizer.add_param_group({"params": list(model.body.parameters())})
            train(site, model, optimizer, between=between, **settings)
        return script

    def test_a_body_that_is_trained_later_is_in_the_mean_where_the_script_says_so(self):
        for in_optimizer in (False, True):
            self.check(self.unfreezes(in_optimizer, trained_later=["body"]))

    def test_a_body_that_is_unfrozen_without_a_word_is_refused_at_the_step_by_name(self):
        for in_optimizer in (False, True):
            sites = self.real(self.unfreezes(in_optimizer))
            for site in sites:
                self.assertIsInstance(site.error, causeway.ConfigError)
                self.assertRegex(str(site.error), r"parameter body\.weight: expected frozen.*trained from now on.*trained_later")
                self.assertEqual("body.weight", site.error.tensor)

    def test_frozen_values_that_have_changed_are_named_when_the_site_leaves(self):
        def script(site):
            model = site.model(Net)
            model.body.requires_grad_(False)

            def between(step):
                model.body.weight.data.add_(0.5)
            train(site, model, sgd(model.head.parameters()), between=between)
        with self.assertLogs("causeway", "WARNING") as logged:
            self.real(script)
        self.assertRegex("\n".join(logged.output), "1 frozen parameters have other values.*the first body.weight")


class BetweenStepsTest(ReplayTest):
    """An evaluation of other values in θ's place, between two steps, changes nothing in what is sent."""

    class Wide(nn.Module):
        """A table that takes a while to copy, and behind it a head that does not."""

        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(300_000, 6), nn.Linear(6, 3)

        def forward(self, x):
            return self.head(self.table((x[:, 0].abs() * 1e5).long() % 300_000) + x)

    def swaps(self, put):
        def script(site):
            model = site.model(self.Wide)
            parameters = list(model.parameters())[::-1]
            averaged = [p.detach().clone() for p in parameters]

            def between(step):
                own = []
                for mean, p in zip(averaged, parameters):
                    own.append(p.detach().clone())
                    put(p, mean.clone())
                with torch.no_grad():
                    model(site.batches[0])
                for value, mean, p in zip(own, averaged, parameters):
                    put(p, value)
                    mean.lerp_(value, 0.1)
            train(site, model, sgd(model.parameters()), between=between)
        return script

    def test_averaged_weights_are_never_sent(self):
        def in_place(p, value):
            with torch.no_grad():
                p.copy_(value)

        def pointer(p, value):
            p.data = value
        for put in (lambda p, value: p.data.copy_(value), in_place, pointer):
            self.check(self.swaps(put), delay=1, alpha=0.5)

    def test_nor_where_the_best_weights_are_loaded_by_load_state_dict(self):
        def script(site):
            model = site.model(self.Wide)
            best = copy.deepcopy(model.state_dict())

            def between(step):
                own = copy.deepcopy(model.state_dict())
                model.load_state_dict(best)
                with torch.no_grad():
                    model(site.batches[0])
                model.load_state_dict(own)
            train(site, model, sgd(model.parameters()), between=between)
        self.check(script, delay=2, alpha=0.5)


class ReplacedTest(ReplayTest):
    def replaces(self, replace):
        def script(site):
            model = site.model(Net)
            train(site, model, sgd(model.parameters()), between=lambda step: replace(site, model) if step == 5 else None)
        return script

    def test_a_tensor_that_is_replaced_is_refused_by_name(self):
        def head(site, model):
            model.head = nn.Linear(20, 5)

        def assigned(site, model):
            model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)

        def resized(site, model):  # as resize_token_embeddings does
            model.head.weight = nn.Parameter(torch.cat([model.head.weight.detach(), torch.zeros(1, 20)]))
            model.head.bias = nn.Parameter(torch.zeros(4))
        for replace, name in ((head, "head.weight"), (assigned, "body.weight"), (resized, "head.weight")):
            self.check_refused(self.replaces(replace), causeway.ConfigError,
                               f"parameter {name}: expected the tensor that the model had.*got another of shape")

    def test_new_tensors_of_the_optimizer_are_refused_by_name(self):
        def script(site):
            model = site.model(Net)
            optimizer = sgd(model.parameters())

            def between(step):
                if step == 3:
                    model.extra = nn.Linear(3, 3)
                    optimizer.add_param_group({"params": list(model.extra.parameters())})
            train(site, model, optimizer, between=between)
        self.check_refused(script, causeway.ConfigError, r"optimizer: expected the parameters that DiLoCo has listed, got extra\.weight")

    def test_what_keeps_the_tensors_goes_on(self):
        class Wrapped(nn.Module):
            def __init__(self, inner):
                super().__init__()
                self.inner = inner

            def forward(self, x):
                return self.inner(x)

        def script(site):
            model = site.model(Net)

            def between(step):
                if step == 3:  # as activation checkpointing and profilers do
                    model.body = Wrapped(model.body)
            train(site, model, sgd(model.parameters()), between=between)
        self.check(script)


class WrapperTest(ReplayTest):
    def test_what_a_wrapper_does_behind_the_step_is_a_part_of_it(self):
        def script(site):
            model = site.model(Net)
            train(site, model, Lookahead(sgd(model.parameters()), k=2))
        self.check(script)
        self.check(script, delay=1, alpha=0.5)

    def test_a_wrapper_that_is_no_optimizer_of_pytorch_is_noticed_too(self):
        class Decayed:  # decays θ after the step
            def __init__(self, inner):
                self.optimizer = inner

            def step(self):
                self.optimizer.step()
                with torch.no_grad():
                    for p in self.optimizer.param_groups[0]["params"]:
                        p.mul_(0.9)

            def zero_grad(self):
                self.optimizer.zero_grad()

        def script(site):
            model = site.model(Net)
            train(site, model, Decayed(sgd(model.parameters())))
        self.check(script)

    def test_one_whose_step_cannot_be_noticed_is_refused_by_name(self):
        class Closed:
            __slots__ = ("optimizer",)

            def step(self):
                self.optimizer.step()

        def script(site):
            model = site.model(Net)
            closed = Closed()
            closed.optimizer = sgd(model.parameters())
            train(site, model, closed)
        self.check_refused(script, causeway.ConfigError, "optimizer: expected one whose step can be noticed, got Closed")


class WordsTest(ReplayTest):
    """Lines for a script that sets up no logging, whose terminal shows warnings alone."""

    @staticmethod
    def plain():
        def script(site):
            model = site.model(Net)
            train(site, model, sgd(model.parameters()))
        return script

    def test_a_site_that_waits_for_others_says_so_after_five_seconds(self):
        self.run = self.new_run(self.config())
        self.run.start_coordinator()
        first, second = (RealSite(index, self.run.grpc) for index in range(2))
        with self.assertLogs("causeway", "WARNING") as logged:
            waiting = threading.Thread(target=first.run, args=(self.plain(),), daemon=True)
            waiting.start()
            eventually(lambda: logged.output, "the site says why it waits")
            second.run(self.plain())
            waiting.join()
        self.assertRegex(logged.output[0], "still waiting: 1 of 2 sites are ready")
        self.assertEqual([None, None], [first.error, second.error])

    def test_a_loop_that_goes_on_beyond_the_run_is_told_once(self):
        def script(site):
            model = site.model(Net)
            optimizer = sgd(model.parameters())
            with site.diloco(model, optimizer):
                for step in range(15):
                    backward(model, site.batches[step % 5])
                    optimizer.step()
        with self.assertLogs("causeway", "WARNING") as logged:
            self.assertEqual([None, None], [site.error for site in self.real(script)])
        self.assertEqual(2, sum("the run's 12 steps are done: step 13" in line for line in logged.output), logged.output)

    def test_the_last_figures_are_there_after_leaving(self):
        def script(site):
            model = site.model(Net)
            optimizer = sgd(model.parameters())
            with site.diloco(model, optimizer) as diloco:
                for batch in diloco.loop(site.batches):
                    backward(model, batch)
                    optimizer.step()
            site.rounds = diloco.progress()["rounds"]
        self.assertEqual([3, 3], [site.rounds for site in self.real(script)])

    def test_a_loss_that_is_no_number_is_refused_where_it_is_reported(self):
        for loss, got in ((torch.zeros(16), r"a tensor of shape \[16\]"), ([2.5], r"\[2\.5\]"), ("x", "'x'")):
            def script(site):
                model = site.model(Net)
                with site.diloco(model, sgd(model.parameters())) as diloco:
                    try:
                        diloco.report(loss=loss)
                    except causeway.ConfigError as error:
                        site.said = str(error)
            sites = self.real(script)
            for site in sites:
                self.assertRegex(site.said, f"report: loss: expected a number, or a tensor of one value, got {got}")


class TiedTest(ReplayTest):
    def test_parameters_that_share_their_storage_are_moved_once(self):
        def tied():
            model = nn.ModuleDict({"a": nn.Linear(6, 6), "b": nn.Linear(6, 6)})
            model["b"].weight.data = model["a"].weight.data
            model.forward = lambda x: model["b"](model["a"](x))
            return model

        def script(site):
            model = site.model(tied)
            train(site, model, sgd(model.parameters()), replayed=("a.weight", "a.bias", "b.bias"))
        self.check(script, delay=1, alpha=0.5)


class DefaultDeviceTest(ReplayTest):
    def test_host_memory_is_meant_where_the_default_device_is_another(self):
        def script(site):
            model = site.model(Net)
            optimizer = sgd(model.parameters())
            with site.diloco(model, optimizer) as diloco, torch.device("meta"):
                for batch in diloco.loop(site.batches):
                    with torch.device("cpu"):
                        backward(model, batch)
                        optimizer.step()
                    site.done()
                    optimizer.zero_grad()
                if hasattr(diloco, "anchor_parameters"):
                    with diloco.anchor_parameters():
                        pass
                    diloco.state_dict()
        self.check(script, alpha=0.5, delay=1)


if __name__ == "__main__":
    unittest.main()
