"""Which calls are a step of a PyTorch script, and what happens around it, over the stand-in for the library."""

import logging
import os
import signal
import tempfile
import warnings

from causeway._library import ADD, ANCHOR, BEFORE_CHANGE, MIX
from causeway.torch._framework import FrameworkSite
from torch_site import AGAIN, CONFIG, OK, READ, TOKENS, WORK, WRITE, FakeSiteTest, Tiny, causeway, nn, torch, unittest

causeway_log = logging.getLogger("causeway")


class StepTest(FakeSiteTest):
    def train(self, optimizer, steps):
        for _ in range(steps):
            self.model.loss(TOKENS).backward()
            optimizer.step()
            optimizer.zero_grad()

    def test_each_step_of_the_optimizer_counts(self):
        optimizer = self.sgd()
        with self.diloco(optimizer=optimizer) as diloco:
            self.train(optimizer, 3)
            self.assertEqual((diloco.step, self.steps()), (3, 2))  # what the script does to θ now is part of the third
        self.assertEqual(self.steps(), 3)
        self.train(optimizer, 1)
        self.assertEqual(self.steps(), 3)

    def test_accumulated_gradients_are_one_step(self):
        optimizer = self.sgd()
        with self.diloco(optimizer=optimizer) as diloco:
            for micro in range(12):
                self.model.loss(TOKENS).backward()
                if micro % 4 == 3:
                    optimizer.step()
                    optimizer.zero_grad()
            self.assertEqual(diloco.step, 3)

    def test_of_several_optimizers_the_last_ones_step_counts(self):
        first = torch.optim.SGD(self.model.layers.parameters(), lr=0.1)
        last = torch.optim.AdamW([self.model.embed.weight, *self.model.norm.parameters()])
        with self.diloco(optimizer=[first, last]) as diloco:
            for _ in range(3):
                self.model.loss(TOKENS).backward()
                first.step()
                last.step()
            self.assertEqual(diloco.step, 3)

    def test_a_skipped_amp_step_is_no_step(self):
        optimizer, scaler = self.sgd(), torch.amp.GradScaler("cpu", init_scale=4.0)
        with self.diloco(optimizer=optimizer) as diloco:
            for spoilt in (False, True, False):
                scaler.scale(self.model.loss(TOKENS)).backward()
                if spoilt:
                    self.model.norm.bias.grad.fill_(float("inf"))
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            self.assertEqual(diloco.step, 2)

    def test_a_fused_optimizer_skips_inside_and_counts(self):
        optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        with self.diloco(optimizer=optimizer) as diloco:
            scaler.scale(self.model.loss(TOKENS)).backward()
            self.model.norm.bias.grad.fill_(float("inf"))
            before = self.model.norm.bias.detach().clone()
            scaler.step(optimizer)
            self.assertTrue(torch.equal(before, self.model.norm.bias))
            self.assertEqual(diloco.step, 1)

    def test_compiled_and_recomputed_models_count_alike(self):
        wrap = torch.distributed.algorithms._checkpoint.checkpoint_wrapper.checkpoint_wrapper
        self.model.layers[1] = wrap(self.model.layers[1])
        compiled = torch.compile(self.model, backend="eager")
        optimizer = self.sgd()
        with self.diloco(compiled, optimizer) as diloco:
            for _ in range(3):
                nn.functional.cross_entropy(compiled(TOKENS).flatten(0, 1), TOKENS.flatten()).backward()
                optimizer.step()
            self.assertEqual(diloco.step, 3)

    def test_an_optimizer_in_the_backward_pass_counts_when_the_script_says_so(self):
        optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in self.model.parameters()}

        def step(parameter):
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()
        for parameter in optimizers:
            parameter.register_post_accumulate_grad_hook(step)
        with self.diloco() as diloco:
            for _ in range(3):
                self.model.loss(TOKENS).backward()
                diloco.after_step()
            self.assertEqual(diloco.step, 3)

    def test_an_evaluation_between_steps_counts_nothing(self):
        optimizer = self.sgd()
        with self.diloco(optimizer=optimizer) as diloco:
            self.train(optimizer, 1)
            with torch.no_grad(), diloco.busy("evaluation"):
                self.model.loss(TOKENS)
            self.train(optimizer, 1)
            self.assertEqual(diloco.step, 2)
            self.assertGreaterEqual(self.fake.report.step_s, 0)

    def test_wrapped_optimizers_are_unwrapped(self):
        inner = self.sgd()
        accelerated = type("AcceleratedOptimizer", (), {"optimizer": inner, "step": lambda self: inner.step()})()
        container = type("OptimizersContainer", (), {"optimizers": [inner], "step": lambda self: inner.step()})()
        for wrapped in (accelerated, container):
            self.fake.calls.clear()
            with self.diloco(optimizer=wrapped):
                self.train(wrapped.optimizers[0] if wrapped is container else wrapped.optimizer, 2)
            self.assertEqual(self.steps(), 2)


class MoveTest(FakeSiteTest):
    train = StepTest.train

    def test_joining_writes_the_runs_values(self):
        diloco = self.diloco(optimizer=self.sgd())
        self.fake.give(WRITE, tensor=self.indices()["norm.bias"], count=4, values=[1, 2, 3, 4])
        self.fake.answers["site_join"] = [WORK, OK]
        with diloco:
            self.assertEqual(self.model.norm.bias.tolist(), [1, 2, 3, 4])

    def test_a_late_copy_is_of_the_step_that_asked_for_it(self):
        optimizer = self.sgd()
        with self.diloco(optimizer=optimizer):
            self.after_step_gives((READ, "norm.bias", 4), flags=BEFORE_CHANGE)
            self.model.loss(TOKENS).backward()
            optimizer.step()
            after = self.model.norm.bias.tolist()
            optimizer.step()
            self.assertNotEqual(self.model.norm.bias.tolist(), after)
        self.assertEqual(self.fake.done[0][3], after)

    def test_without_an_optimizer_copies_are_made_at_once(self):
        with self.diloco() as diloco:
            self.after_step_gives((READ, "norm.bias", 4), flags=BEFORE_CHANGE)
            diloco.after_step()
            self.assertEqual(len(self.fake.done), 1)

    def test_low_precision_is_read_and_written_as_float32(self):
        model = Tiny(torch.bfloat16)
        with self.diloco(model) as diloco:
            self.after_step_gives((WRITE, "norm.bias", [1.5, 2, 3, 4]), (READ, "norm.bias", 4))
            diloco.after_step()
        self.assertEqual(self.fake.done[1][3], [1.5, 2, 3, 4])
        self.assertEqual(model.norm.bias.dtype, torch.bfloat16)

    def test_mixes_are_computed_in_float32(self):
        model = Tiny(torch.bfloat16)
        with torch.no_grad():
            model.norm.bias.fill_(1.0)
            model.norm.weight.fill_(1.0)
        with self.diloco(model) as diloco:
            self.fake.give(MIX, tensor=self.indices()["norm.bias"], count=4, factor=0.5, values=[3] * 4)
            self.fake.give(ADD, tensor=self.indices()["norm.weight"], count=4, factor=0.25, values=[2] * 4)
            self.fake.answers["site_after_step"] = [WORK, OK]
            diloco.after_step()
        self.assertEqual(model.norm.bias.tolist(), [2] * 4)
        self.assertEqual(model.norm.weight.tolist(), [0.5] * 4)

    def test_a_tensor_that_is_not_contiguous_is_row_major_to_the_run(self):
        model = nn.ParameterDict({"w": nn.Parameter(torch.arange(6.).reshape(3, 2).T)})
        with self.diloco(model) as diloco:
            self.fake.give(READ, tensor=0, first=1, count=3)
            self.fake.give(WRITE, tensor=0, first=4, count=2, values=[8, 9])
            self.fake.answers["site_after_step"] = [WORK, OK]
            diloco.after_step()
        self.assertEqual(self.fake.done[0][3], [2, 4, 1])
        self.assertEqual(model["w"].tolist(), [[0, 2, 4], [1, 8, 9]])

    def test_masters_are_rounded_into_the_model(self):
        model = Tiny(torch.bfloat16)
        masters = {name: p.detach().float() for name, p in model.named_parameters()}
        with self.diloco(model, torch.optim.SGD(masters.values()), params=masters) as diloco:
            self.after_step_gives((WRITE, "norm.bias", [1.001, 2, 3, 4]))
            diloco.after_step()
        self.assertEqual(masters["norm.bias"][0].item(), torch.tensor(1.001).item())
        self.assertEqual(model.norm.bias.tolist(), [1, 2, 3, 4])

    def test_after_apply_is_called_when_the_run_has_changed_the_parameters(self):
        calls = []
        with self.diloco(after_apply=lambda: calls.append(1)) as diloco:
            calls.clear()
            diloco.after_step()
            self.assertEqual(calls, [])
            self.after_step_gives((WRITE, "norm.bias", [1, 2, 3, 4]))
            diloco.after_step()
            self.assertEqual(calls, [1])

    def test_an_optimizer_that_trains_copies_of_its_own_is_named_where_the_model_is_too_small_for_an_error(self):
        masters = {p: p.detach().clone() for p in self.model.parameters()}

        class Hidden(torch.optim.SGD):
            def step(self, closure=None):
                with torch.no_grad():
                    for parameter, master in masters.items():
                        master.sub_(parameter.grad, alpha=1e-3)
                        parameter.copy_(master)
        for optimizer, hidden in ((Hidden(self.model.parameters()), True), (self.sgd(lr=1e-3), False)):
            with self.assertLogs("causeway") as logged, self.diloco(optimizer=optimizer) as diloco:
                causeway_log.info("begins")
                for value in range(1, 5):
                    self.train(optimizer, 3)
                    self.after_step_gives((WRITE, "embed.weight", [value % 3] * 28))
                    self.train(optimizer, 1)
                signs = [line for line in logged.output if "masters of its own does" in line]
                self.assertEqual([1, 4] if hidden else [0, 0], [len(signs), diloco._hidden_masters.signs])
                self.assertEqual(not hidden, diloco._hidden_masters.settled)

    def test_the_anchor_stands_in_for_the_parameters_and_they_come_back(self):
        optimizer = self.sgd()
        with self.diloco(optimizer=optimizer) as diloco:
            before = [p.detach().clone() for p in self.model.parameters()]
            for name, index in self.indices().items():
                if name != "head.weight":
                    count = self.model.get_parameter(name).numel()
                    self.fake.give(WRITE, tensor=index, count=count, flags=ANCHOR, values=[float(index)] * count)
            self.fake.answers["site_read_anchor"] = [WORK, OK]
            with diloco.anchor_parameters():
                self.assertEqual(self.model.norm.bias.tolist(), [6] * 4)
                self.assertEqual(self.model.head.weight[0, 0].item(), 0)
                with self.assertRaisesRegex(causeway.FailedError, "expected no optimizer step"):
                    diloco.after_step()
            for expected, parameter in zip(before, self.model.parameters()):
                self.assertTrue(torch.equal(expected, parameter))
            diloco.report_eval(1.5)


class EntryTest(FakeSiteTest):
    def test_schedulers_are_at_the_step_at_which_the_site_enters(self):
        for make in (lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 100),
                     lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda t: 1 / (1 + t)),
                     lambda o: torch.optim.lr_scheduler.SequentialLR(
                         o, [torch.optim.lr_scheduler.LinearLR(o, 0.1, total_iters=5),
                             torch.optim.lr_scheduler.ExponentialLR(o, 0.9)], [5])):
            expected, optimizer = self.sgd(), self.sgd()
            one, other = make(expected), make(optimizer)
            for _ in range(17):
                expected.step()
                one.step()
            self.fake.next_step = 17
            with self.diloco(optimizer=optimizer, schedulers=[other]) as diloco:
                self.assertEqual((diloco.step, other.last_epoch), (17, 17))
                self.assertEqual(optimizer.param_groups[0]["lr"], expected.param_groups[0]["lr"])
            self.fake.next_step = None

    def test_a_rejoin_moves_step_and_schedulers_and_is_told(self):
        steps, optimizer = [], self.sgd()
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 / (1 + t))
        with self.diloco(optimizer=optimizer, schedulers=[scheduler], on_rejoin=steps.append) as diloco:
            for entry in (9, 5):
                self.fake.next_step, self.fake.progress["stays"] = entry, diloco.stays + 1
                self.model.loss(TOKENS).backward()
                optimizer.step()
                scheduler.step()
                self.model.loss(TOKENS)
                self.assertEqual((diloco.step, scheduler.last_epoch), (entry, entry))
                self.assertEqual(optimizer.param_groups[0]["lr"], 0.1 * (1 / (1 + entry)))
        self.assertEqual(steps, [9, 5])


class FrameworkTest(FakeSiteTest):
    """A framework that trains in place of the script."""

    def ended(self, steps):
        """The lines of a site of a run of 3 steps in a framework that would take this many, which asks after each step."""
        self.fake.config = CONFIG | {"run": {"steps": 3}}
        optimizer = self.sgd()
        site = FrameworkSite("hub:1", "eu", {})
        with self.assertLogs("causeway", "DEBUG") as logged:
            site.begin(self.model, optimizer, [], None)
            while not site.is_over(steps):
                self.model.loss(TOKENS).backward()
                optimizer.step()
            site.is_over(steps)
            site.end()
        return [line for line in logged.output if "training ends here" in line]

    def test_it_says_once_why_training_ends_before_the_frameworks_own_end(self):
        self.assertEqual(["WARNING:causeway:training ends here: the run's 3 steps are done"], self.ended(10))
        self.assertEqual(["INFO:causeway:training ends here: the run's 3 steps are done"], self.ended(-1))
        self.assertEqual([], self.ended(3))


class LoopTest(FakeSiteTest):
    def setUp(self):
        super().setUp()
        self.fake.config = CONFIG | {"run": {"steps": 5}}

    def test_the_loop_ends_after_the_runs_steps_and_restarts_its_loader(self):
        seen = []
        with self.diloco() as diloco:
            for batch in diloco.loop([1, 2, 3]):
                seen.append(batch)
                diloco.after_step()
        self.assertEqual(seen, [1, 2, 3, 1, 2])
        self.assertEqual(self.fake.left, (True, "all steps are done"))

    def test_a_loader_that_gives_nothing_is_refused(self):
        with self.assertRaisesRegex(causeway.ConfigError, "loader: expected batches.*an iterator gives them only once"):
            with self.diloco() as diloco:
                for _ in diloco.loop(iter([1, 2])):
                    diloco.after_step()

    def test_a_site_that_enters_at_the_end_takes_no_step(self):
        self.fake.next_step = 5
        with self.diloco() as diloco:
            self.assertEqual(list(diloco.loop([1])), [])

    def test_sigterm_ends_the_loop_unless_the_script_handles_it(self):
        with self.diloco() as diloco:
            for _ in diloco.loop([1]):
                os.kill(os.getpid(), signal.SIGTERM)
                diloco.after_step()
            self.assertEqual((diloco.step, diloco.should_stop), (1, True))
        self.assertEqual(signal.getsignal(signal.SIGTERM), signal.SIG_DFL)
        handled = []
        self.addCleanup(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, lambda *_: handled.append(1)))
        with self.diloco() as diloco:
            os.kill(os.getpid(), signal.SIGTERM)
            self.assertEqual((handled, diloco.should_stop), ([1], False))

    def test_figures_that_are_none_are_refused_where_they_are_reported(self):
        with self.diloco() as diloco:
            for loss in (torch.tensor(1 + 2j), torch.empty((), device="meta"), torch.zeros(2), 10**400, [1.0], "x"):
                with self.assertRaisesRegex(causeway.ConfigError, "report: loss: expected a number"):
                    diloco.report(loss=loss)
            for tokens in (-5, None, float("nan"), 10**17, torch.zeros(2), "x"):
                with self.assertRaisesRegex(causeway.ConfigError, "report: tokens: expected a number from 0"):
                    diloco.report(tokens=tokens)
            with self.assertRaisesRegex(causeway.ConfigError, "report_eval: loss: expected a number"):
                diloco.report_eval(None)
            running = torch.tensor(3.0)
            diloco.report(loss=running, tokens=True)
            running.zero_()
            diloco.after_step()
        self.assertEqual(3.0, self.fake.report.loss)

    def test_losses_are_read_at_most_once_a_second(self):
        class Counted(torch.Tensor):
            read = 0

            def __float__(self):
                Counted.read += 1
                return 2.5
        with self.diloco() as diloco:
            for _ in diloco.loop([1]):
                diloco.report(loss=torch.zeros(()).as_subclass(Counted), tokens=6)
                diloco.after_step()
        self.assertEqual(Counted.read, 1)
        self.assertEqual((self.fake.report.loss, self.fake.report.tokens), (2.5, 6))


class StateTest(FakeSiteTest):
    def saved(self):
        with self.diloco() as diloco:
            diloco.after_step()
            return diloco.state_dict()

    def test_a_state_goes_through_torch_save(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "state")
        torch.save(self.saved(), path)
        with self.diloco() as diloco:
            pass
        fresh = self.diloco()
        fresh.load_state_dict(torch.load(path))
        self.assertEqual(self.fake.restored, self.fake.parts)
        self.assertEqual(fresh.state_dict()["state"].step, 1)

    def test_a_state_after_joining_or_without_content_is_refused(self):
        state = self.saved()
        with self.diloco() as diloco:
            with self.assertRaisesRegex(causeway.RestoreError, "before the site has joined"):
                diloco.load_state_dict(state)
        for empty, got in ((self.diloco().state_dict(), "an empty one"), ({}, "NoneType")):
            with self.assertRaisesRegex(causeway.RestoreError, got):
                self.diloco().load_state_dict(empty)


if __name__ == "__main__":
    warnings.simplefilter("error")
    unittest.main()
