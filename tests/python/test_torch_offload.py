"""causeway.OffloadedAdamW beside torch.optim.AdamW: the same losses, each other's state, any subgroups."""

import copy
import sys
import unittest

import torch
from torch import nn

import causeway.torch as causeway
from causeway import _library
from causeway.errors import ConfigError
from causeway.torch._interleaved import measured_k
from causeway.torch._rounding import round_stochastically, rounding_bits, seed_of
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
                                  (nn.LazyLinear(3).parameters(), "expected tensors with values, got those of a lazy module"),
                                  ([torch.zeros(3, device="meta")], "got one on the device meta")):
            with self.assertRaisesRegex(ConfigError, words):
                causeway.OffloadedAdamW(parameters)
        for settings, words in (({"k": 0}, r'k: expected "auto", "cpu" or an integer from 1 on, got 0'),
                                ({"k": "gpu"}, "got 'gpu'"), ({"subgroup": 0}, "subgroup: expected 1 or more values, got 0"),
                                ({"fraction": 1.5}, r'fraction: expected "auto" or a number from 0 to 1, got 1.5'),
                                ({"fraction": 0.5}, "fraction: expected 0 or auto with parameters on the CPU"),
                                ({"moments": "float16"}, 'moments: expected "float32" or "bfloat16", got \'float16\''),
                                ({"lr": -1.0}, "lr: expected a number of 0 or more, got -1.0"),
                                ({"lr": float("nan")}, "got nan"), ({"eps": "small"}, "eps: expected a number"),
                                ({"weight_decay": -0.1}, "weight_decay: expected a number of 0 or more"),
                                ({"betas": (0.9, 1.0)}, "betas: expected two numbers from 0 to below 1"),
                                ({"betas": 0.9}, "betas: expected two numbers")):
            with self.assertRaisesRegex(ConfigError, words):
                causeway.OffloadedAdamW([torch.zeros(3)], **settings)
        optimizer = causeway.OffloadedAdamW(new_model().parameters())
        other = torch.optim.SGD(new_model().parameters(), lr=1, momentum=0.9)
        train(new_model(), other, 1, 1)
        with self.assertRaisesRegex(ConfigError, "expected float32 or bfloat16, got torch.float64"):
            optimizer.add_param_group({"params": [torch.zeros(3, dtype=torch.float64)]})
        state = {"state": {0: {"momentum_buffer": torch.zeros(31, 48), "step": 1}},
                 "param_groups": optimizer.state_dict()["param_groups"]}
        with self.assertRaisesRegex(ConfigError, "state_dict: expected exp_avg of each parameter with state, got only momentum_buffer"):
            optimizer.load_state_dict(state)

    def test_a_run_of_bfloat16_goes_on_with_the_bits_of_one_that_was_not_interrupted(self):
        for moments in ("float32", "bfloat16"):
            def new():
                model = new_model().bfloat16()
                return model, causeway.OffloadedAdamW(groups(model), lr=1e-2, moments=moments)

            whole, through = new()
            train(whole, through)
            model, before = new()
            train(model, before, 1, 30)
            saved = copy.deepcopy((model.state_dict(), before.state_dict()))
            again, after = new()
            again.load_state_dict(saved[0])
            after.load_state_dict(saved[1])
            train(again, after, 31)
            for a, b in zip(whole.parameters(), again.parameters(), strict=True):
                self.assertTrue(torch.equal(a, b))
                for name in ("master_param", "exp_avg", "exp_avg_sq"):
                    self.assertTrue(torch.equal(through.state[a][name], after.state[b][name]), name)

    def test_moments_of_bfloat16_train_as_those_of_float32(self):
        ours, theirs = new_model(), new_model()
        optimizer = causeway.OffloadedAdamW(groups(ours), lr=1e-2, moments="bfloat16")
        losses = train(ours, optimizer)
        expected = train(theirs, torch.optim.AdamW(groups(theirs), lr=1e-2))
        self.assertLess(abs(losses[-1] / expected[-1] - 1), 0.02)
        state = optimizer.state[ours[1].weight]
        self.assertEqual({torch.bfloat16}, {state["exp_avg"].dtype, state["exp_avg_sq"].dtype})
        self.assertNotIn("master_param", state)

    def test_rounding_of_tensors_is_that_of_the_native_step(self):
        values = torch.randn(4097)
        native = causeway.OffloadedAdamW([values], lr=0, betas=(0, 0), weight_decay=0, moments="bfloat16")
        values.grad = torch.randn(4097)
        native.step()
        bits = rounding_bits(seed_of(1, 0), 4097, values.device)
        self.assertTrue(torch.equal(round_stochastically(values.grad, bits & 0xFFFF), native.state[values]["exp_avg"]))
        self.assertTrue(torch.equal(round_stochastically(values.grad ** 2, bits >> 16 & 0xFFFF), native.state[values]["exp_avg_sq"]))
        self.assertTrue(round_stochastically(torch.tensor([float("nan")]), bits[:1]).isnan())


class OnStandIn(causeway.OffloadedAdamW):
    """The part of a GPU, with the CPU in its place: nothing runs beside anything, and the order is the same."""

    def _lies_on_host(self, parameter):
        return False

    handed = 0  # values whose updates were late

    def add_param_group(self, param_group):
        super().add_param_group(param_group)
        self.of_device = of_device = next(iter(self._interleaved.values()))
        hand_over = type(of_device).hand_over

        def counted(works, with_nan):
            self.handed += sum(work.values for work in works)
            return hand_over(of_device, works, with_nan)
        of_device.hand_over = counted


class InterleavedTest(HostTest):
    def test_any_share_of_the_device_gives_the_losses_of_torch_with_gradients_clipped_after_backward(self):
        theirs = new_model()
        expected = train(theirs, torch.optim.AdamW(groups(theirs), lr=1e-2), clip=0.5)
        for k, fraction in ((1, 0), (2, 0), (3, 0), ("cpu", 0), ("cpu", 0.5), (2, 0.3), (1, 1.0)):
            ours = new_model()
            optimizer = OnStandIn(groups(ours), lr=1e-2, k=k, fraction=fraction, subgroup=2000)
            self.assertAlike(train(ours, optimizer, clip=0.5), expected)

    def test_the_share_of_the_values_from_the_front_is_resident(self):
        model = new_model()
        values = sum(parameter.numel() for parameter in model.parameters())
        for fraction in (0.0, 0.3, 0.6, 1.0):
            optimizer = OnStandIn(list(model.parameters()), fraction=fraction, k="cpu")
            train(model, optimizer, 1, 1)
            resident = [parameter for parameter in model.parameters() if "master_param" not in optimizer.state[parameter]]
            self.assertEqual([id(p) for p in resident], [id(p) for p in list(model.parameters())[:len(resident)]])
            share = sum(parameter.numel() for parameter in resident) / values
            self.assertLessEqual(share, fraction)
            self.assertGreater(share, fraction - 0.6)  # whole tensors

    def test_auto_keeps_what_fits_beside_the_first_backward_and_nothing_before_it(self):
        for fits, before, expected in ((1.0, False, 1.0), (0.4, False, 0.4), (1.0, True, 0.0)):
            model = new_model()
            optimizer = OnStandIn(model.parameters(), fraction="auto", k="cpu")
            optimizer.of_device._that_fits = lambda: fits
            if before:
                optimizer.masters(model.named_parameters())
            train(model, optimizer, 1, 2)
            self.assertEqual(expected, optimizer.of_device.fraction)

    def test_masters_of_bfloat16_on_any_side_go_on_with_the_same_bits(self):
        for moments in ("float32", "bfloat16"):
            settings = {"lr": 1e-2, "k": 2, "fraction": 0.4, "subgroup": 2000, "moments": moments}
            whole, model, again = (new_model().bfloat16() for _ in range(3))
            through = OnStandIn(groups(whole), **settings)
            train(whole, through)
            before = OnStandIn(groups(model), **settings)
            masters = before.masters(model.named_parameters())
            train(model, before, 1, 30)
            again.load_state_dict(model.state_dict())
            after = OnStandIn(groups(again), **settings)
            after.load_state_dict(copy.deepcopy(before.state_dict()))
            before.load_state_dict(copy.deepcopy(before.state_dict()))
            self.assertIs(masters["1.weight"], before.state[model[1].weight]["master_param"])
            for network, optimizer in ((model, before), (again, after)):
                train(network, optimizer, 31)
                for a, b in zip(whole.parameters(), network.parameters(), strict=True):
                    self.assertTrue(torch.equal(a, b))

    def test_a_gradient_of_the_step_before_is_not_taken_for_this_ones(self):
        model = nn.Linear(8, 8, bias=False)
        optimizer = OnStandIn(model.parameters(), lr=1e-2, betas=(0.0, 0.0), k="cpu")
        for scale in (1.0, 3.0, 5.0):  # gradients that no hook has seen, as those of fully_shard
            model.weight.grad = torch.full((8, 8), scale)
            optimizer.step()
            self.assertTrue(torch.equal(torch.full((8, 8), scale), optimizer.state[model.weight]["exp_avg"]))

    def test_bytes_of_a_parameter_are_those_of_the_docs(self):
        for dtype, moments, fraction, on_host, resident in (
                (torch.float32, "float32", 0.0, 16, 0), (torch.bfloat16, "float32", 0.0, 14, 0),
                (torch.bfloat16, "bfloat16", 0.0, 10, 0), (torch.float32, "float32", 1.0, 0, 8),
                (torch.bfloat16, "float32", 1.0, 0, 12), (torch.bfloat16, "bfloat16", 1.0, 0, 8),
                (torch.float32, "bfloat16", 1.0, 0, 4)):
            model = new_model().to(dtype)
            optimizer = OnStandIn(model.parameters(), k="cpu", moments=moments, fraction=fraction)
            train(model, optimizer, 1, 2)
            values = sum(parameter.numel() for parameter in model.parameters())
            state = sum(tensor.nbytes for each in optimizer.state.values() for name, tensor in each.items() if name != "step")
            gradients = sum(place.nbytes for place in optimizer.of_device._gradients._places.values())
            self.assertEqual((on_host or resident) * values, state + gradients, (dtype, moments, fraction))
            self.assertEqual(resident > 0, gradients == 0)

    def test_auto_chooses_by_measured_rates(self):
        self.assertIn(measured_k(_library.load(), torch.device("cpu"), 1 << 16), range(1, 9))


@unittest.skipUnless(torch.cuda.is_available(), "no GPU that PyTorch sees")
class GpuTest(unittest.TestCase):
    """The streams, rooms and pinned arrays themselves, which the stand-in does not have."""

    def train(self, model, optimizer):
        losses = []
        for step in range(1, STEPS + 1):
            tokens, targets = (values.cuda() for values in batch(step))
            loss = nn.functional.cross_entropy(model(tokens).float(), targets)
            loss.backward()
            if step % 3 == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    def test_any_place_of_the_state_gives_the_losses_of_torch(self):
        theirs = new_model().cuda()
        expected = self.train(theirs, torch.optim.AdamW(groups(theirs), lr=1e-2))
        for k, fraction in ((1, 0), (2, 0), ("cpu", 0), ("auto", 0.4), (1, 1.0), ("auto", "auto")):
            ours = new_model().cuda()
            optimizer = causeway.OffloadedAdamW(groups(ours), lr=1e-2, k=k, fraction=fraction, subgroup=2000)
            for a, b in zip(self.train(ours, optimizer), expected, strict=True):
                self.assertAlmostEqual(a, b, delta=1e-3 * b, msg=f"{k}, {fraction}")
            hosted = [state["exp_avg"] for state in optimizer.state.values() if state["exp_avg"].device.type == "cpu"]
            self.assertTrue(all(values.is_pinned() for values in hosted))
            self.assertEqual(fraction in (1.0, "auto"), not hosted)


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
