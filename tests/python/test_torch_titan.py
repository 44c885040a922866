"""torchtitan's trainer as a site: its parts in its loop in a run, and that it is still the trainer it was made for."""

import importlib.util
import inspect
import pathlib
import re
import sys
import types
import unittest

import torch

import causeway.torch as causeway
from harness import EndToEndTest
from llama_runs import LlamaTest, llama_config
from test_mixed import needs_library
from test_torch_external import external_config
from torch_site import TOKENS, FakeSiteTest, Tiny

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
needs_torchtitan = unittest.skipUnless(importlib.util.find_spec("torchtitan"), "torchtitan is not installed")


@needs_torchtitan
class RunTest(LlamaTest):
    def start_titan(self, run, life, *flags):
        return self.start_torch(run, "a", f"--checkpoints={run.folder / 'checkpoints'}", *flags, script="titan_site.py",
                                label=f"titan-{life}")

    def test_two_sites_train_to_the_end_and_a_killed_one_goes_on_from_its_checkpoint_with_the_same_bits(self):
        config = llama_config("int4", run={"steps": 60})
        config["membership"] |= {"lease_ms": 120000}
        run = self.start_run(config)
        self.start_torch(run, "b")
        before = self.steps_of_killed(self.start_titan(run, 1, "--die_at=36"))
        site = self.start_titan(run, 2)
        self.finish(run)
        after = self.steps_of(site)
        self.assertEqual((min(before), max(after)), (1, 60))
        kept = "step", "loss", "lr/AdamW"
        self.check_repeated(*({step: [line[name] for name in kept] for step, line in steps.items()}
                              for steps in (before, after)), 31, 35)
        self.assertEqual((after[60]["causeway/merged_weight"], after[60]["causeway/delay"]), (0.5, 2))
        self.assertGreater(after[60]["causeway/up_bytes"], 0)


@needs_torchtitan
class TrainerTest(unittest.TestCase):
    """torchtitan's own trainer, read."""

    @classmethod
    def setUpClass(cls):
        from torchtitan.trainer import Trainer
        cls.trainer = Trainer

    def assert_in_order(self, function, *calls):
        source, at = inspect.getsource(function), 0
        for call in calls:
            found = source.find(call, at)
            self.assertGreaterEqual(found, 0, f"{call} in {function.__qualname__}, behind what comes before it")
            at = found + len(call)

    def test_it_has_what_the_site_is_made_of(self):
        from causeway.torchtitan import _NEEDED
        assigned = set(re.findall(r"self\.(\w+)\b[^=\n]*=[^=]", inspect.getsource(self.trainer.__init__)))
        for name in _NEEDED:
            self.assertTrue(name in assigned or callable(getattr(self.trainer, name, None)), name)

    def test_its_checkpoint_is_loaded_before_its_first_step_and_saved_after_each(self):
        self.assert_in_order(self.trainer.train, "self.checkpointer.load(", "= self.step",
                             "while self.should_continue_training():", "self.step += 1", "self.train_step(",
                             "self.checkpointer.save(")

    def test_a_step_steps_optimizers_then_schedulers_then_logs(self):
        from torchtitan.components.metrics import MetricsProcessor
        self.assert_in_order(self.trainer.train_step, "self.optimizers.step()", "self.lr_schedulers.step()",
                             "self.metrics_processor.log(", "self.step,", "global_avg_loss,", "extra_metrics=")
        self.assertEqual(list(inspect.signature(MetricsProcessor.log).parameters)[:3],
                         ["self", "step", "global_avg_loss"])

    def test_its_checkpoints_hold_what_is_in_states_and_without_checkpoints_there_is_none(self):
        from torchtitan.components.checkpointer import CheckpointManager
        self.assert_in_order(CheckpointManager.__init__, "self.states = states")
        disabled = CheckpointManager.Config(enable=False).build(
            dataloader=None, model_parts=[], optimizers=None, lr_schedulers=None, states={}, sd_adapter=None)
        self.assertFalse(hasattr(disabled, "states"))
        self.assertFalse(disabled.load(step=-1))


@needs_library
@needs_torchtitan
class OwnTrainerTest(EndToEndTest):
    """examples/titan_site.py: torchtitan's own trainer takes twenty steps as a site."""

    def check(self, *launched, **environment):
        run = self.new_run(external_config(run={"steps": 20}))
        run.start_coordinator()
        environment |= {"CAUSEWAY_COORDINATOR": run.grpc, "CAUSEWAY_SITE": "a"}
        run.workers["a"] = run.program(
            "titan", sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=1", *launched,
            ROOT / "examples" / "titan_site.py", ROOT / "docs" / "operating.md", environment=environment)
        run.await_done(240)
        self.assertIn("site a: is out of the run: all steps are done", run.coordinator.log())

    @unittest.skipUnless(torch.cuda.is_available(), "no GPU that PyTorch sees")
    def test_on_a_gpu(self):
        self.check()

    @unittest.skipIf(torch.cuda.is_available(), "there is a GPU")
    def test_on_a_cpu_with_what_it_asks_a_gpu_for_made_up(self):
        self.check(HERE / "titan_on_cpu.py", TORCHDYNAMO_DISABLE="1")


class Stand:
    """The least that a trainer is, without torchtitan."""

    def __init__(self, steps):
        self.model_parts = [Tiny()]
        optimizer = torch.optim.SGD(self.model_parts[0].parameters(), lr=0.1)
        self.config = types.SimpleNamespace(training=types.SimpleNamespace(steps=steps))
        self.optimizers = types.SimpleNamespace(optimizers=[optimizer])
        self.lr_schedulers = types.SimpleNamespace(
            schedulers=[torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 / (1 + t))])
        self.checkpointer = Disabled()
        self.metrics_processor = Logged()
        self.step = 0

    def train(self):
        self.checkpointer.load(step=-1)
        while self.should_continue_training():
            self.step += 1
            self.train_step()

    def should_continue_training(self):
        return self.step < self.config.training.steps

    def train_step(self):
        self.optimizers.optimizers[0].zero_grad()
        loss = self.model_parts[0].loss(TOKENS)
        if self.step == 9:
            raise ValueError("no such token")
        loss.backward()
        self.optimizers.optimizers[0].step()
        self.lr_schedulers.schedulers[0].step()
        self.metrics_processor.log(self.step, loss.item(), loss.item(), 1.0, extra_metrics={"own": 1})


class Disabled:
    def load(self, step):
        return False


class Logged:
    def __init__(self):
        self.lines = []

    def log(self, step, global_avg_loss, global_max_loss, grad_norm, extra_metrics=None):
        self.lines.append((step, extra_metrics))


class HooksTest(FakeSiteTest):
    def site(self, trainer):
        from causeway.torchtitan import Site
        return Site(trainer, "hub:1", site="eu")

    def test_it_begins_at_the_runs_step_and_ends_with_the_run_and_leaves_the_trainer_as_it_was(self):
        self.fake.config = self.fake.config | {"run": {"steps": 20}}
        self.fake.next_step = 17
        trainer = Stand(steps=1000)

        def go_on(name):
            self.fake.next_step = None if name == "site_after_step" else self.fake.next_step
        self.fake.on_call = go_on
        with self.site(trainer):
            trainer.train()
        self.assertEqual([step for step, _ in trainer.metrics_processor.lines], [18, 19, 20])
        self.assertEqual(trainer.metrics_processor.lines[0][1]["own"], 1)
        self.assertIn("causeway/stall_s", trainer.metrics_processor.lines[0][1])
        self.assertEqual((trainer.step, trainer.lr_schedulers.schedulers[0].last_epoch), (20, 20))
        self.assertEqual(self.fake.left, (True, "all steps are done"))
        for owner in (trainer, trainer.checkpointer, trainer.metrics_processor):
            self.assertFalse({"load", "train_step", "should_continue_training", "log"} & vars(owner).keys())

    def test_an_error_of_the_trainer_is_the_reason_to_leave(self):
        with self.assertRaisesRegex(ValueError, "no such token"), self.site(trainer := Stand(steps=1000)):
            trainer.train()
        self.assertEqual(self.fake.left, (False, "ValueError: no such token"))

    def test_a_trainer_that_ends_before_the_run_is_warned(self):
        self.fake.config = self.fake.config | {"run": {"steps": 20}}
        with self.assertLogs("causeway", "WARNING") as logged, self.site(trainer := Stand(steps=5)):
            trainer.train()
        self.assertIn("the trainer ends after 5 steps, the run has 20", logged.output[0])

    def test_anything_else_is_refused_by_what_it_lacks(self):
        pipelined = Stand(steps=5)
        pipelined.model_parts = [Tiny(), Tiny()]
        for trainer, said in ((object(), "expected torchtitan's, with config, model_parts"),
                              (pipelined, "expected one model part, got 2")):
            with self.assertRaisesRegex(causeway.ConfigError, said):
                self.site(trainer)


if __name__ == "__main__":
    unittest.main()
