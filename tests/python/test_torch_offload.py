"""causeway.OffloadedAdamW beside torch.optim.AdamW: the same losses, each other's state, any subgroups."""

import copy
import sys
import unittest

import torch
from torch import nn

import causeway.torch as causeway
from causeway import _library
from causeway.errors import ConfigError
from causeway.torch.offload import Interleaved, measured_k
from llama_runs import SITES, LlamaTest, llama_config

STEPS = 60


def new_model(seed=1):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Embedding(31, 48), nn.Linear(48, 64), nn.Tanh(), nn.LayerNorm(64), nn.Linear(64, 31))


def batch(step):
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, 31, (64,), generator=generator)
    return tokens, (tokens * 7 + 3) % 31


def train(model, optimizer, first=1, last=STEPS, clip=None):
    losses = []
    for step in range(first, last + 1):
        tokens, targets = batch(step)
        loss = nn.functional.cross_entropy(model(tokens).float(), targets)
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def groups(model):
    """Weight decay for matrices alone."""
    return [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
            {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0.0, "lr": 2e-3}]


class HostTest(unittest.TestCase):
    def assertAlike(self, ours, theirs):
        for step, (a, b) in enumerate(zip(ours, theirs, strict=True), 1):
            self.assertAlmostEqual(a, b, delta=1e-4 * b, msg=f"step {step}")

    def test_losses_are_those_of_torch(self):
        ours, theirs = new_model(), new_model()
        losses = train(ours, causeway.OffloadedAdamW(groups(ours), lr=1e-2, betas=(0.9, 0.95)))
        expected = train(theirs, torch.optim.AdamW(groups(theirs), lr=1e-2, betas=(0.9, 0.95)))
        self.assertAlike(losses, expected)
        self.assertLess(losses[-1], losses[0] / 4)

    def test_either_goes_on_from_the_state_of_the_other(self):
        whole = new_model()
        expected = train(whole, torch.optim.AdamW(groups(whole), lr=1e-2))
        for saver, loader in ((causeway.OffloadedAdamW, torch.optim.AdamW), (torch.optim.AdamW, causeway.OffloadedAdamW)):
            model = new_model()
            before = saver(groups(model), lr=1e-2)
            train(model, before, 1, 30)
            after = loader(groups(model), lr=0.5)  # lr comes with the state
            after.load_state_dict(copy.deepcopy(before.state_dict()))
            self.assertAlike(train(model, after, 31), expected[30:])

    def test_parameters_of_bfloat16_are_trained_by_masters(self):
        model, single = new_model().bfloat16(), new_model()
        for name, parameter in single.named_parameters():
            parameter.data.copy_(model.get_parameter(name))
        optimizer = causeway.OffloadedAdamW(model.parameters(), lr=1e-2)
        loss, expected = train(model, optimizer)[-1], train(single, torch.optim.AdamW(single.parameters(), lr=1e-2))[-1]
        self.assertAlmostEqual(loss, expected, delta=0.2 * expected)
        for parameter in model.parameters():
            master = optimizer.state[parameter]["master_param"]
            self.assertEqual(torch.float32, master.dtype)
            self.assertTrue(torch.equal(master.bfloat16(), parameter.detach()))

    def test_a_gradient_that_is_none_leaves_its_parameter_alone(self):
        model = new_model()
        model[1].weight.requires_grad_(False)
        before = model[1].weight.clone()
        optimizer = causeway.OffloadedAdamW(model.parameters(), lr=1e-2)
        train(model, optimizer, 1, 2)
        self.assertTrue(torch.equal(before, model[1].weight))
        self.assertNotIn(model[1].weight, optimizer.state)

    def test_parameters_and_settings_that_it_does_not_take_are_named(self):
        for parameters, words in (([torch.zeros(3, dtype=torch.float16)], "expected float32 or bfloat16, got torch.float16"),
                                  ([torch.zeros(3, 4).t()], "expected contiguous tensors")):
            with self.assertRaisesRegex(ConfigError, words):
                causeway.OffloadedAdamW(parameters)
        for settings, words in (({"k": 0}, r'k: expected "auto", "cpu" or an integer from 1 on, got 0'),
                                ({"k": "gpu"}, "got 'gpu'"), ({"subgroup": 0}, "subgroup: expected 1 or more values, got 0")):
            with self.assertRaisesRegex(ConfigError, words):
                causeway.OffloadedAdamW([torch.zeros(3)], **settings)


class InterleavedTest(HostTest):
    """The part of a GPU, with the CPU in its place: nothing runs beside anything, and the order is the same."""

    def interleaved(self, model, k, subgroup=2000, **settings):
        optimizer = causeway.OffloadedAdamW(groups(model), **settings)
        device = Interleaved(_library.load(), torch.device("cpu"), k, subgroup)
        for parameter in model.parameters():
            device.watch(parameter)

        def step():
            works = []
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    state = optimizer.state[parameter]
                    if not state:
                        state.update({"step": torch.tensor(0.0), "exp_avg": torch.zeros_like(parameter),
                                      "exp_avg_sq": torch.zeros_like(parameter),
                                      "master_param": parameter.detach().clone()})
                    state["step"] += 1
                    works.append((parameter, state, group))
            with torch.no_grad():
                device.step(works)

        optimizer.step = step
        return optimizer

    def test_any_share_of_the_device_gives_the_losses_of_torch_with_gradients_clipped_after_backward(self):
        theirs = new_model()
        expected = train(theirs, torch.optim.AdamW(groups(theirs), lr=1e-2), clip=0.5)
        for k in (1, 2, 3, "cpu"):
            ours = new_model()
            self.assertAlike(train(ours, self.interleaved(ours, k, lr=1e-2), clip=0.5), expected)

    def test_auto_chooses_by_measured_rates(self):
        self.assertIn(measured_k(_library.load(), torch.device("cpu")), range(1, 9))


class SiteTest(LlamaTest):
    def test_a_site_trains_with_it_as_with_torchs(self):
        _, expected = self.whole_run(llama_config("int4"), *SITES)
        _, loss = self.whole_run(llama_config("int4"), *SITES, flags=("--optimizer=offloaded",))
        self.assertLess(abs(loss / expected - 1), 1e-3)
        _, narrow = self.whole_run(llama_config("int4"), *SITES, flags=("--optimizer=offloaded", "--dtype=bfloat16"))
        print(f"bfloat16 {narrow:.6f}, float32 {loss:.6f}, torch's AdamW {expected:.6f}", file=sys.stderr)
        self.assertLess(narrow / expected, 1.003)


if __name__ == "__main__":
    unittest.main()
