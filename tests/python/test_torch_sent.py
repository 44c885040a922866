"""A site sends values that it has trained with, once for each step of all of its optimizers, as a replay has them."""

import contextlib
import copy
import unittest
import warnings

import torch
from torch import nn

from replay import ReplayTest
from scripts import Net, backward, sgd, train


def masked(model, site):
    """Half of the body's weights are 0, another half at each site."""
    with torch.no_grad():
        model.body.weight[:, site.index::2] = 0


def clamped(model, _):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.clamp_(-0.1, 0.1)


def rows_back(model, _):
    model.head.weight.data[:2] = 0.25


def normalised(model, _):
    with torch.no_grad():
        model.body.weight /= model.body.weight.norm(dim=1, keepdim=True)


class AfterStepTest(ReplayTest):
    """The script's own work on θ behind optimizer.step() is a part of the step."""

    def script(self, act, loop):
        def script(site):
            model = site.model(Net)
            optimizer = sgd(model.parameters())
            with site.diloco(model, optimizer) as diloco:
                for batch in loop(diloco, site):
                    backward(model, batch)
                    optimizer.step()
                    optimizer.zero_grad()
                    act(model, site)
                    site.done()
        return script

    def test_what_is_due_is_sent_before_an_evaluation_and_no_averaged_weights_in_its_place(self):
        def script(site):
            model = site.model(Net)
            optimizer, pending = sgd(model.parameters()), []
            averaged = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
            with site.diloco(model, optimizer) as diloco:
                for batch in diloco.loop(site.batches):
                    backward(model, batch)
                    optimizer.step()
                    optimizer.zero_grad()
                    own = copy.deepcopy(model.state_dict())
                    if diloco.step % 2:
                        model.load_state_dict(averaged)
                    with diloco.busy("evaluation") if hasattr(diloco, "busy") else contextlib.nullcontext():
                        pending.append(getattr(getattr(diloco, "_deferred", None), "pending", None))
                    if diloco.step % 2:
                        model.load_state_dict(own)
                    site.done()
            if pending[0] is not None:
                self.assertEqual([True, False], pending[4:6])
        self.check(script)

    def test_masks_clamps_rows_and_norms_are_in_what_is_sent(self):
        for act in (masked, clamped, rows_back, normalised):
            for options in ({}, {"delay": 1, "alpha": 0.5}):
                with self.subTest(act.__name__, **options):
                    self.check(self.script(act, lambda diloco, site: diloco.loop(site.batches)), **options)

    def test_in_a_loop_of_the_scripts_own_too(self):
        def own(diloco, site):
            for step in range(12):
                yield site.batches[step % 5]
        for act in (masked, normalised):
            self.check(self.script(act, own), delay=1, alpha=0.5)

    def test_batches_that_are_drawn_ahead_end_no_step(self):
        def ahead(diloco, site):
            batches = iter(diloco.loop(site.batches))
            held = next(batches, None)
            while held is not None:
                batch, held = held, next(batches, None)
                yield batch
        self.check(self.script(masked, ahead), steps=11)

    def test_a_module_that_the_script_calls_within_the_model_begins_a_step_too(self):
        def script(site):
            model = site.model(Net)
            optimizer = sgd(model.parameters())
            with site.diloco(model, optimizer) as diloco:
                for step in range(12):
                    model.head(model.body(site.batches[step % 5]).tanh()).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    clamped(model, site)
                    site.done()
        self.check(script, delay=1, alpha=0.5)

    def test_a_step_without_any_modules_forward_ends_at_the_next_one_once_and_then_at_once(self):
        def script(site):
            model = site.model(Net)
            optimizer = sgd(model.parameters())
            ends = []
            with site.diloco(model, optimizer) as diloco:
                for step in range(12):
                    x = (site.batches[step % 5] @ model.body.weight.t() + model.body.bias).tanh()
                    (x @ model.head.weight.t() + model.head.bias).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    ends.append(diloco._deferred.pending)
            self.assertEqual([True, False], ends[:1] + ends[2:3])
            self.assertEqual(12, diloco.step)
        for site in self.real(script):
            self.assertIsNone(site.error)

    def test_a_copy_of_the_model_behind_a_step_is_a_plain_one(self):
        def script(site):
            model = site.model(Net)
            optimizer = sgd(model.parameters())
            copies = []
            train(site, model, optimizer, between=lambda step: copies.append(copy.deepcopy(model)))
            for each in copies:
                self.assertFalse(each._forward_pre_hooks)
                backward(each, site.batches[0])
        self.check(script)

    def test_compiled_models_and_steps_are_compiled_once(self):
        for how in ("wrapped", "in place", "step"):
            def script(site, how=how):
                torch._dynamo.reset()
                torch._dynamo.utils.counters.clear()
                model = site.model(Net)
                optimizer = sgd(model.parameters())
                called = model
                if how == "wrapped":
                    called = torch.compile(model, backend="eager")
                elif how == "in place":
                    model.compile(backend="eager")

                def forward(batch):
                    return called(batch).square().mean()
                step = torch.compile(forward, backend="eager") if how == "step" else forward
                with site.diloco(model, optimizer):
                    for number in range(12):
                        step(site.batches[number % 5]).backward()
                        optimizer.step()
                        optimizer.zero_grad()
                        site.done()
                self.assertEqual(1, torch._dynamo.utils.counters["stats"]["unique_graphs"], how)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                self.check(script, sites=1)


class Lookahead(torch.optim.Optimizer):
    """As libraries have it: without PyTorch's __init__, the other's groups, hooks that it fills in itself."""

    def __init__(self, base):
        self._base_optimizer = base
        self.param_groups, self.defaults, self.state = base.param_groups, base.defaults, base.state
        self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = {}, {}
        self._slow = [p.detach().clone() for group in base.param_groups for p in group["params"]]
        self._steps = 0

    @torch.no_grad()
    def step(self, closure=None):
        self._base_optimizer.step(closure)
        self._steps += 1
        if self._steps % 3 == 0:
            for slow, fast in zip(self._slow, [p for group in self.param_groups for p in group["params"]]):
                slow.lerp_(fast, 0.5)
                fast.copy_(slow)

    def zero_grad(self, set_to_none=True):
        self._base_optimizer.zero_grad(set_to_none)


class CountingTest(ReplayTest):
    def several(self, order, **options):
        """`order` of steps of two optimizers, in each inner step."""
        def script(site):
            model = site.model(Net)
            optimizers = [sgd(model.body.parameters()), torch.optim.AdamW(model.head.parameters(), lr=1e-2)]
            with site.diloco(model, optimizers) as diloco:
                for batch in diloco.loop(site.batches):
                    backward(model, batch)
                    for at in order:
                        optimizers[at].step()
                    for optimizer in optimizers:
                        optimizer.zero_grad()
                    site.done()
        self.check(script, **options)

    def test_of_several_optimizers_each_steps_in_an_inner_step_in_whatever_order(self):
        for order in ((0, 1), (1, 0)):
            self.several(order)
            self.several(order, delay=1, alpha=0.5)

    def test_a_critic_that_steps_five_times_makes_one_inner_step(self):
        def script(site):
            model = site.model(Net)
            generator, critic = sgd(model.body.parameters()), sgd(model.head.parameters())
            with site.diloco(model, [critic, generator]) as diloco:
                for batch in diloco.loop(site.batches):
                    for _ in range(5):
                        backward(model, batch)
                        critic.step()
                        model.zero_grad()
                    backward(model, batch)
                    generator.step()
                    model.zero_grad()
                    site.done()
        self.check(script)
        self.check(script, delay=1, alpha=0.5)

    def test_one_that_begins_late_is_not_waited_for_and_counts_when_it_has_begun(self):
        def script(site):
            model = site.model(Net)
            first, late = sgd(model.body.parameters()), sgd(model.head.parameters())
            steps = 0
            with site.diloco(model, [first, late]) as diloco:
                for batch in diloco.loop(site.batches):
                    steps += 1
                    backward(model, batch)
                    first.step()
                    if steps > 12:
                        late.step()
                    model.zero_grad()
                    if steps > 7:  # without a sign of the other
                        site.done()
        with self.assertLogs("causeway", "WARNING") as logged:
            self.check(script)
        self.assertIn("optimizer 2 of 2 has not stepped in 8 steps of optimizer 1", "\n".join(logged.output))

    def test_an_optimizer_without_pytorchs_init_is_a_wrapper(self):
        def script(site):
            model = site.model(Net)
            train(site, model, Lookahead(sgd(model.parameters())))
        self.check(script)

    @unittest.skipUnless(__import__("importlib").util.find_spec("timm"), "timm is not installed")
    def test_timms_lookahead_counts_each_step(self):
        from timm.optim import Lookahead as Timms

        def script(site):
            model = site.model(Net)
            train(site, model, Timms(sgd(model.parameters()), k=3))
        self.check(script)


class ListedTest(ReplayTest):
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(6, 20)
            self.heads = nn.ModuleList(nn.Linear(20, 3) for _ in range(2))
            self.head = self.heads[0]

        def forward(self, x):
            return self.head(self.body(x).tanh())

    def test_a_head_that_is_another_of_the_models_own_is_no_replacement(self):
        def script(site):
            model = site.model(self.Heads)

            def choose(step):
                model.head = model.heads[step % 2]
            train(site, model, sgd(model.parameters()), before=choose,
                  replayed=("body.weight", "body.bias", "heads.0.weight", "heads.0.bias", "heads.1.weight", "heads.1.bias"))
        for site in self.real(script):
            if site.error is not None:
                raise site.error

    def test_scripted_and_traced_models_train(self):
        def part(net):
            net.body = torch.jit.script(net.body)
            return net
        for make in (torch.jit.script, lambda net: torch.jit.trace(net, torch.zeros(8, 6)), part):
            def script(site, make=make):
                model = site.model(lambda: make(Net()))
                train(site, model, sgd(model.parameters()))
            self.check(script)


class Target(Net):
    """With an average of itself behind it, as BYOL has."""

    def __init__(self):
        super().__init__()
        self.target = nn.Linear(6, 20).requires_grad_(False)
        self.register_buffer("seen", torch.zeros(6))

    @torch.no_grad()
    def follow(self):
        for mean, value in zip(self.target.parameters(), self.body.parameters()):
            mean.data.lerp_(value, 0.1)
        self.seen += 1


class OwnValuesTest(ReplayTest):
    SYNCED = ("body.weight", "body.bias", "head.weight", "head.bias")

    def script(self, **settings):
        def script(site):
            model = site.model(Target)
            train(site, model, sgd(model.parameters()), between=lambda _: model.follow(), replayed=self.SYNCED, **settings)
        return script

    def test_frozen_tensors_and_buffers_that_the_script_changes_are_named_at_the_first_step(self):
        with self.assertLogs("causeway", "WARNING") as logged:
            self.real(self.script())
        said = "\n".join(logged.output)
        self.assertRegex(said, "frozen parameters of the model are changed by the script .* 2 of them, the first target.weight: .*local=")
        self.assertRegex(said, "buffers of the model are changed by the script .* 1 of them, the first seen: its values are this site's own")

    def test_local_ones_are_neither_synced_nor_compared(self):
        def script(site):
            model = site.model(Target)
            nn.init.constant_(model.target.weight, site.index)  # as at a site that resumes
            train(site, model, sgd(model.parameters()), between=lambda _: model.follow(), replayed=self.SYNCED, local=["target"])
        self.check(script)

    def test_a_head_of_each_sites_own_is_trained_there(self):
        def script(site):
            model = site.model(Net)
            train(site, model, sgd(model.parameters()), replayed=("body.weight", "body.bias"), local=["head"])
        self.check(script)


class Observed(Net):
    """With a batch norm, a mean that is written in place, and one that is made anew in each forward."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(20)
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("scale", torch.ones(3, 6))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(x.mean(0), 0.1)
                self.scale = self.scale * 0.9 + x[:3].abs() * 0.1
                self.steps += 1
        return self.head(self.norm(self.body(x - self.mean)).tanh() * self.scale.mean())


class BufferTest(ReplayTest):
    def script(self, **settings):
        def script(site):
            model = site.model(Observed)
            train(site, model, sgd(model.parameters()), buffers="mean", **settings)
            site.left = {name: value.clone() for name, value in model.named_buffers()}
        return script

    def test_each_sync_makes_the_mean_of_the_sites_buffers(self):
        self.check(self.script())
        self.check(self.script(), delay=1, alpha=0.5)

    def test_they_are_a_mean_whatever_the_outer_optimizer_and_a_late_site_gets_it(self):
        seen = {}

        def script(site):
            model = site.model(Observed)
            optimizer = sgd(model.parameters())
            with site.diloco(model, optimizer, buffers="mean") as diloco:
                for batch in diloco.loop(site.batches):
                    backward(model, batch)
                    optimizer.step()
                    optimizer.zero_grad()
                    seen[site.index] = {name: value.clone() for name, value in model.named_buffers() if value.is_floating_point()}
            site.left = {name: value.clone() for name, value in model.named_buffers()}
        config = self.config(outer={"optimizer": "nesterov", "lr": 0.7, "momentum": 0.9})
        for site in self.real(script, config=config):
            if site.error is not None:
                raise site.error
        anchor = self.run.export()
        for name, value in seen[0].items():
            mean = (value + seen[1][name]) / 2
            self.assertLess(float((torch.from_numpy(anchor[name]) - mean).abs().max()), 1e-6, name)
        self.assertNotIn("steps", anchor)

    def test_others_than_local_and_mean_are_refused(self):
        for site in self.real(lambda site: site.diloco(site.model(Net), None, buffers="sum"), sites=1):
            self.assertRegex(str(site.error), 'buffers: expected "local" or "mean", got .sum.')


if __name__ == "__main__":
    unittest.main()
