"""OffloadedAdamW(overlap=model): the bits of overlap=None in whatever scripts do, and its guards."""

import contextlib
import copy
import gc
import io
import logging
import os
import signal
import threading
import time
import unittest
import weakref

import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

import causeway.torch as causeway
from causeway.errors import ConfigError, FailedError
from test_torch_offload import OnStandIn

STEPS = 50


class Block(nn.Module):
    def __init__(self, width=32, recompute=False, attention=True):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True) if attention else None
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.recompute = recompute

    def inner(self, x):
        y = self.norm(x)
        if self.attention is not None:
            x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.down(torch.tanh(self.up(y)))

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False) if self.recompute else self.inner(x)


class Decoder(nn.Module):
    def __init__(self, tied=False, **settings):
        super().__init__()
        self.embed = nn.Embedding(31, 32)
        self.layers = nn.ModuleList(Block(**settings) for _ in range(3))
        self.head = nn.Linear(32, 31, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def encoder():
    """Its layers have a path of their own in evaluation."""
    model = Decoder()
    model.layers = nn.ModuleList(nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True) for _ in range(2))
    return model


def new(make=Decoder, dtype=torch.float32, **settings):
    torch.manual_seed(3)
    return make(**settings).to(dtype)


def batch(step):
    tokens = torch.randint(0, 31, (4, 8), generator=torch.Generator().manual_seed(step))
    return tokens, (tokens * 7 + 3) % 31


def loss_of(model, step):
    tokens, targets = batch(step)
    return nn.functional.cross_entropy(model(tokens).float().flatten(0, 1), targets.flatten())


def optimizer_of(model, overlap, parameters=None, **settings):
    settings = {"lr": 1e-2, "k": "cpu", "subgroup": 5000, **settings}
    return OnStandIn(list(parameters or model.parameters()), overlap=model if overlap else None, **settings)


def plain(model, optimizer, steps=STEPS, first=1, each=lambda step: None):
    losses = []
    for step in range(first, first + steps):
        loss = loss_of(model, step)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        each(step)
        losses.append(loss.item())
    return losses


class OverlapTest(unittest.TestCase):
    def both(self, script, hides=True, **settings):
        """`script(model, optimizer_of)`: trains, and returns what else is to be equal."""
        results, models, made = [], [], []
        for overlap in (False, True):
            model = new(**settings)

            def optimizer(*arguments, **chosen):
                made.append(optimizer_of(model, overlap, *arguments, **chosen))
                return made[-1]

            results.append(script(model, optimizer))
            for each in made:
                each.wait()
            models.append(model)
        for (name, a), b in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
            self.assertTrue(torch.equal(a, b), name)
        self.assertEqual(*results)
        self.assertEqual(hides, made[-1].handed > 0)
        return made[-1]

    def test_plain_steps(self):
        for settings in ({}, {"dtype": torch.bfloat16}, {"tied": True}, {"recompute": True}, {"attention": False}):
            self.both(lambda model, optimizer: plain(model, optimizer()), **settings)

    def test_narrow_moments_and_any_fraction(self):
        for fraction, moments in ((0.0, "bfloat16"), (0.3, "float32"), (0.7, "bfloat16")):
            def script(model, optimizer):
                in_order = [*model.embed.parameters(), *model.head.parameters(), *model.layers.parameters()]
                made = optimizer(in_order, fraction=fraction, moments=moments)
                losses = plain(model, made)
                made.wait()
                return losses, [state["exp_avg"].sum().item() for state in made.state.values()]
            self.both(script, dtype=torch.bfloat16)

    def test_clipping_accumulation_and_a_schedule_that_cycles_betas(self):
        def script(model, optimizer):
            made = optimizer(lr=1e-3)
            schedule = torch.optim.lr_scheduler.OneCycleLR(made, max_lr=1e-2, total_steps=STEPS, cycle_momentum=True)
            norms = []
            for step in range(1, STEPS + 1):
                for part in (0, 1):
                    (loss_of(model, 2 * step + part) / 2).backward()
                norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
                made.step()
                schedule.step()
                model.zero_grad()
            return norms
        self.both(script)

    def test_a_scaler_that_skips_steps_and_a_learning_rate_that_is_a_tensor(self):
        def script(model, optimizer):
            made = optimizer(lr=torch.tensor(1e-2))
            scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 14, growth_interval=4)
            scales = []
            for step in range(1, STEPS + 1):
                scaler.scale(loss_of(model, step) * (1e36 if step % 7 == 3 else 1)).backward()
                scaler.unscale_(made)
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                scaler.step(made)
                scaler.update()
                made.param_groups[0]["lr"].fill_(1e-2 / step)
                made.zero_grad(set_to_none=step % 2 == 0)
                scales.append(scaler.get_scale())
            self.assertGreater(max(scales), min(scales))
            return scales
        self.both(script)

    def test_lora_and_a_model_that_is_frozen_in_part(self):
        import peft

        def script(model, optimizer):
            lora = peft.LoraConfig(r=4, target_modules=["up", "down"], init_lora_weights=True)
            trained = peft.get_peft_model(model, lora)
            return plain(trained, optimizer([each for each in trained.parameters() if each.requires_grad]))
        self.both(script)

        def partly(model, optimizer):
            made = optimizer()
            model.layers[1].requires_grad_(False)
            first = plain(model, made, 20)
            model.layers[1].requires_grad_(True)
            return first + plain(model, made, 30, 21)
        self.both(partly)

    def test_the_encoders_own_path_in_evaluation(self):
        def script(model, optimizer):
            losses = []

            def evaluate(step):
                model.eval()
                with torch.no_grad():
                    losses.append(loss_of(model, 1000 + step).item())
                model.train()
            return plain(model, optimizer(), each=evaluate), losses
        self.both(script, make=encoder)

    def test_a_save_in_mid_step_and_a_run_that_goes_on_from_it(self):
        def script(model, optimizer):
            made, saved = optimizer(), {}

            def save(step):
                if step == 20:
                    saved.update(model=copy.deepcopy(model.state_dict()), optimizer=copy.deepcopy(made.state_dict()))
            plain(model, made, 25, each=save)
            model.load_state_dict(saved["model"])
            made.load_state_dict(saved["optimizer"])
            again = optimizer()
            again.load_state_dict(saved["optimizer"])
            return plain(model, again, 30, 21), again.state_dict()["state"][3]["exp_avg"].sum().item()
        self.both(script)

    def test_averages_clamps_copies_and_norms_between_steps(self):
        def script(model, optimizer):
            made, seen = optimizer(), []
            average = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)

            def between(step):
                if step % 4 == 0:
                    average.update_parameters(model)
                    seen.append(sum(each.abs().sum() for each in average.parameters()).item())
                if step % 5 == 0:
                    for each in made.param_groups[0]["params"]:
                        each.data.clamp_(-0.1, 0.1)
                if step % 6 == 0:
                    seen.append(copy.deepcopy(model).layers[1].up.weight.sum().item())
                if step % 9 == 0:
                    seen.append(model.layers[2].down.weight.norm().item())
                    torch.save(model, io.BytesIO())
            return plain(model, made, each=between), seen
        self.both(script)

    def test_two_optimizers_of_one_model(self):
        def script(model, optimizer):
            matrices = [each for each in model.parameters() if each.dim() == 2]
            pair = optimizer(matrices), optimizer([each for each in model.parameters() if each.dim() != 2])
            losses = []
            for step in range(1, STEPS + 1):
                loss = loss_of(model, step)
                loss.backward()
                for each in pair:
                    each.step()
                    each.zero_grad()
                losses.append(loss.item())
            return losses
        self.both(script)

    def test_layers_that_are_skipped_at_random(self):
        def script(model, optimizer):
            made, losses = optimizer(), []
            for step in range(1, STEPS + 1):
                tokens, targets = batch(step)
                x = model.embed(tokens)
                for number, layer in enumerate(model.layers):
                    x = layer(x) if (step * 7 + number * 3) % 5 else x
                loss = nn.functional.cross_entropy(model.head(x).flatten(0, 1), targets.flatten())
                loss.backward()
                made.step()
                made.zero_grad(set_to_none=step % 3 != 0)
                losses.append(loss.item())
            return losses
        self.both(script)

    def test_a_compiled_model_is_not_hidden(self):
        def script(model, optimizer):
            return plain(torch.compile(model, backend="aot_eager"), optimizer(), 6)
        with self.assertLogs("causeway", "WARNING") as logs:
            self.both(script, hides=False, attention=False)
        self.assertIn("in a compiled region or a CUDA graph", logs.output[0])

    def test_kept_references_are_seen_in_the_first_iteration(self):
        class Kept(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.eye(32))
                self.kept = [self.weight]

            def forward(self, x):
                return x @ self.kept[0]

        class Keeping(Decoder):
            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList([nn.Sequential(Kept(), Block()), nn.LSTM(32, 32, batch_first=True)])

            def forward(self, tokens):
                return self.head(self.layers[1](self.layers[0](self.embed(tokens)))[0])

        with self.assertLogs("causeway", "WARNING") as logs:
            self.both(lambda model, optimizer: plain(model, optimizer()), make=Keeping)
        self.assertIn("overlap: layers.0.0, which has a gradient and was not read through its module", logs.output[0])
        self.assertEqual(1, len(logs.output))


    def test_parameters_that_get_another_owner_in_mid_run(self):
        class Other(nn.Module):
            def __init__(self, linear):
                super().__init__()
                self.weight, self.bias = linear.weight, linear.bias

            def forward(self, x):
                return nn.functional.linear(x, self.weight, self.bias)

        class Doubled(nn.Module):
            def forward(self, x):
                return 2 * x

        def tied(model):
            model.layers[0].up.weight = model.layers[2].up.weight

        def replaced(model):
            model.layers[1].up = Other(model.layers[1].up)

        for change in (tied, replaced, lambda model: parametrize.register_parametrization(model.layers[0].up, "weight", Doubled())):
            def script(model, optimizer):
                made = optimizer()
                first = plain(model, made, 4)
                change(model)
                return first + plain(model, made, 30, 5)
            self.both(script)

    def test_an_optimizer_made_anew_and_one_beside_it_on_the_same_parameters(self):
        def script(model, optimizer):
            first = optimizer()
            losses = plain(model, first, 6)
            second = optimizer()
            losses += plain(model, second, 6, 7)
            for step in range(13, 25):
                loss_of(model, step).backward()
                first.step()
                second.step()
                model.zero_grad()
            return losses
        self.both(script)

    def test_an_interrupt_while_it_waits_forgets_nothing(self):
        def script(model, optimizer):
            made = optimizer()
            losses = plain(model, made, 6)
            late = made.of_device.step_late
            made.of_device.step_late = lambda *arguments: time.sleep(0.05) or late(*arguments)
            loss_of(model, 7).backward()
            made.step()
            made.zero_grad()
            threading.Timer(0.02, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            with contextlib.suppress(KeyboardInterrupt):
                model.layers[0].up.weight.sum()
                time.sleep(1)
            saved = sum(value.double().sum().item() for value in model.state_dict().values())
            return losses + plain(model, made, 10, 8), saved
        self.both(script)


class GuardTest(unittest.TestCase):
    def trained(self, steps=4):
        model = new()
        optimizer = optimizer_of(model, True)
        plain(model, optimizer, steps)
        return model, optimizer

    def stepped(self):
        """And an event until which late updates wait."""
        model, optimizer = self.trained()
        go, late = threading.Event(), optimizer.of_device.step_late
        optimizer.of_device.step_late = lambda *arguments: go.wait(60) and late(*arguments)
        loss_of(model, 9).backward()
        optimizer.step()
        return model, optimizer, go

    def test_step_returns_before_the_updates_and_a_read_waits_for_its_own_layer(self):
        model, _, go = self.stepped()
        weight = model.layers[1].up._parameters.real["weight"]
        before = weight.detach().clone()
        reader = threading.Thread(target=lambda: model.layers[1].up.weight)
        reader.start()
        reader.join(0.05)
        self.assertTrue(reader.is_alive())
        self.assertTrue(torch.equal(before, weight))
        go.set()
        reader.join()
        self.assertFalse(torch.equal(before, weight))

    def test_clearing_gradients_waits_for_nothing(self):
        model, optimizer, go = self.stepped()
        optimizer.zero_grad()
        model.zero_grad()
        model.train()
        self.assertTrue(all(place.unit.late for _, place, _ in optimizer._overlap._holders.values()))
        go.set()

    def test_a_gradient_that_was_made_without_a_wait_is_an_error_before_anything_is_updated(self):
        model, optimizer, go = self.stepped()
        weight, other = model.layers[2].up._parameters.real["weight"], model.head.weight
        optimizer.zero_grad()
        threading.Timer(0.2, go.set).start()
        (weight.sum() + other.sum()).backward()
        steps, before = optimizer.state[other]["step"].item(), other.detach().clone()
        with self.assertRaisesRegex(FailedError, r"got a gradient of layers\.2\.up\.weight, which was read otherwise"):
            optimizer.step()
        self.assertTrue(torch.equal(before, other))
        self.assertEqual(steps, optimizer.state[other]["step"].item())
        optimizer.zero_grad()
        plain(model, optimizer, 2)

    def test_a_write_before_the_update_is_an_error_that_names_the_parameter(self):
        model, optimizer, go = self.stepped()
        weight = model.layers[0].up._parameters.real["weight"]
        number = list(map(id, dict.get(optimizer.param_groups[0], "params"))).index(id(weight))
        with torch.no_grad():
            weight.clamp_(-0.01, 0.01)
        go.set()
        with self.assertRaisesRegex(FailedError, rf"params\[{number}\]: expected no write before its update"):
            optimizer.wait()
        plain(model, optimizer, 2)

    def test_values_that_were_read_too_early_are_refused_by_backward(self):
        model, optimizer, go = self.stepped()
        kept = [model.layers[1].up._parameters.real["weight"], model.layers[1].down._parameters.real["weight"]]
        optimizer.zero_grad()
        early = sum(weight.pow(2).sum() for weight in kept)
        go.set()
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            (loss_of(model, 10) + early).backward()

    def test_one_parameter_of_a_module_that_is_kept_is_seen_beside_one_that_is_not(self):
        class Cached(nn.Linear):
            def forward(self, x):
                vars(self).setdefault("kept", self.weight)
                return nn.functional.linear(x, vars(self)["kept"], self.bias)

        losses = []
        for overlap in (False, True):
            model = new()
            model.layers[1].up = Cached(32, 64)
            torch.manual_seed(5)
            nn.init.normal_(model.layers[1].up.weight, std=0.1)
            optimizer = optimizer_of(model, overlap)
            losses.append(plain(model, optimizer, 20))
        self.assertEqual(*losses)

    def test_a_dropped_optimizer_and_its_model_are_freed(self):
        model, optimizer = self.trained()
        optimizer.wait()
        there = weakref.ref(model.layers[0].up.weight), weakref.ref(optimizer._overlap)
        del model, optimizer
        gc.collect()
        self.assertEqual([None, None], [each() for each in there])

    def test_backward_of_an_old_graph_is_refused_as_ever(self):
        model, optimizer = self.trained()
        old = loss_of(model, 9)
        old.backward(retain_graph=True)
        optimizer.step()
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            old.backward()
        optimizer.wait()

    def test_the_check_shows_early_reads_as_nan(self):
        os.environ["CAUSEWAY_CHECK_OVERLAP"] = "1"
        try:
            model, _, go = self.stepped()
        finally:
            del os.environ["CAUSEWAY_CHECK_OVERLAP"]
        kept = [model.layers[1].up._parameters.real["weight"], model.head.weight]
        self.assertEqual([True, False], [each.isnan().any().item() for each in kept])
        go.set()
        self.assertFalse(any(each.isnan().any() for each in model.parameters()))

    def test_a_fork_waits_and_its_child_steps_with_a_helper_of_its_own(self):
        model, optimizer = self.trained()
        loss_of(model, 9).backward()
        optimizer.step()
        if (child := os.fork()) == 0:
            code = 1
            try:
                loss_of(model, 10).backward()
                optimizer.step()
                optimizer.wait()
                code = 0
            finally:
                os._exit(code)
        self.assertEqual(0, os.waitpid(child, 0)[1])
        optimizer.zero_grad()
        plain(model, optimizer, 2)
        model, optimizer, go = self.stepped()
        model.layers[0].up._parameters.real["weight"].data = torch.zeros(64, 32)
        go.set()
        if (child := os.fork()) == 0:
            os._exit(0)
        os.waitpid(child, 0)
        with self.assertRaisesRegex(FailedError, "expected no write before its update"):  # a fork forgets no error
            optimizer.wait()

    def test_arguments_that_it_does_not_take_are_named(self):
        model = new()
        for settings, words in (({"overlap": True}, "overlap: expected the model whose parameters are updated, or None, got True"),
                                ({"overlap": model, "k": 2}, 'k: expected "auto" or "cpu" with overlap'),
                                ({"overlap": model.parameters()}, "got <generator")):
            with self.assertRaisesRegex(ConfigError, words):
                OnStandIn(model.parameters(), **settings)

    def test_a_copy_of_the_optimizer_and_of_the_model_works_alone(self):
        model, optimizer = self.trained()
        loss_of(model, 9).backward()
        optimizer.step()
        other, alone = copy.deepcopy((model, optimizer))
        self.assertIs(dict, type(other.layers[0].up._parameters))
        plain(other, alone, 2)
        plain(model, optimizer, 2)

    def test_groups_that_a_script_holds_stay_the_optimizers(self):
        model, optimizer = self.trained()
        held = optimizer.param_groups[0]
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})
        self.assertIs(held, optimizer.param_groups[0])

    def test_it_says_where_the_state_lies(self):
        model = new()
        optimizer = optimizer_of(model, True)
        with self.assertLogs("causeway", logging.INFO) as logs:
            plain(model, optimizer, 1)
        self.assertRegex(logs.output[0], r"state of 0\.0 M values: 0\.00 GB on the host, where \d+\.\d GB are free; of at most")
        self.assertIn("OffloadedAdamW: state of", repr(optimizer))


@unittest.skipUnless(torch.cuda.is_available(), "no GPU that PyTorch sees")
class GpuTest(unittest.TestCase):
    """Streams, events and pinned arrays, which the stand-in does not have."""

    def test_bits_are_those_without_it(self):
        torch.use_deterministic_algorithms(True, warn_only=True)
        self.addCleanup(torch.use_deterministic_algorithms, False)
        for dtype, settings in ((torch.float32, {}), (torch.bfloat16, {}), (torch.bfloat16, {"moments": "bfloat16", "subgroup": 3000})):
            models = []
            for overlap in (False, True):
                model = new(attention=False, dtype=dtype).cuda()
                optimizer = causeway.OffloadedAdamW(model.parameters(), lr=1e-2, k="cpu", overlap=model if overlap else None,
                                                    **settings)
                for step in range(1, STEPS + 1):
                    tokens, targets = (values.cuda() for values in batch(step))
                    nn.functional.cross_entropy(model(tokens).float().flatten(0, 1), targets.flatten()).backward()
                    if step % 3 == 0:
                        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=step % 2 == 0)
                models.append(model)
            for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
                self.assertTrue(torch.equal(a, b), (dtype, settings))


if __name__ == "__main__":
    unittest.main()
