"""Lightning's Trainer as a site: beside a plain one, killed and resumed, late, with skipped steps, with errors."""

import importlib.util
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

import torch

import causeway.torch as causeway
import charts
from harness import DONE, EndToEndTest, eventually
from llama_runs import LlamaTest, llama_config
from test_mixed import needs_library
from test_torch_external import external_config
from torch_site import TOKENS, FakeSiteTest, Tiny

HERE = pathlib.Path(__file__).parent
needs_lightning = unittest.skipUnless(importlib.util.find_spec("lightning"), "lightning is not installed")
if importlib.util.find_spec("lightning"):
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.plugins import MixedPrecision

    from causeway.lightning import CausewayCallback

    class Module(lightning.LightningModule):
        """Trains Tiny; subclasses and tests look in with the hooks of Lightning."""

        def __init__(self):
            super().__init__()
            self.tiny = Tiny()
            self.rates = []

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 / (1 + t))
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

        def training_step(self, batch):
            self.rates.append((self.global_step, self.optimizers().param_groups[0]["lr"]))
            return self.tiny.loss(TOKENS)

        def validation_step(self, batch):
            return None


def fit(module, callback, *callbacks, batches=1000, ckpt_path=None, **settings):
    trainer = lightning.Trainer(max_epochs=-1, accelerator="cpu", callbacks=[callback, *callbacks], logger=False,
                                enable_progress_bar=False, enable_model_summary=False,
                                **{"enable_checkpointing": bool(callbacks)} | settings)
    trainer.fit(module, [0] * batches, [0], ckpt_path=ckpt_path)
    return trainer


@needs_lightning
class KilledTest(LlamaTest):
    def start_lightning(self, run, life, *flags):
        return self.start_torch(run, "a", f"--checkpoints={run.folder / 'checkpoints'}", *flags,
                                script="lightning_site.py", label=f"lightning-{life}",
                                environment={"TMPDIR": str(run.folder), "WANDB_SILENT": "true"})

    def test_killed_in_a_save_and_in_a_step_it_goes_on_from_its_checkpoints_with_the_same_bits(self):
        config = llama_config("int4", run={"steps": 80})
        config["membership"] |= {"lease_ms": 120000}
        run = self.start_run(config)
        self.start_torch(run, "b")
        first = self.steps_of_killed(self.start_lightning(run, 1, "--die_in_save_of=40"))
        second = self.steps_of_killed(self.start_lightning(run, 2, "--die_at=56"))
        loggers = all(map(importlib.util.find_spec, ("tensorboard", "wandb")))
        third = self.start_lightning(run, 3, *([f"--charts={run.folder}"] if loggers else []))
        self.finish(run)
        self.assertIn("global_step 80\n", third.log())
        self.assertEqual([min(first), max(first), max(second), max(self.steps_of(third))], [1, 39, 55, 80])
        self.check_repeated(first, second, 31, 39)
        self.check_repeated(second, self.steps_of(third), 51, 55)
        if not loggers:
            self.skipTest("tensorboard or wandb is not installed: all but the charts was checked")
        self.check_charts(run.folder)

    def check_charts(self, folder):
        for kind, logged in (("TensorBoard", charts.of_tensorboard(folder)), ("W&B", charts.of_wandb(folder))):
            with self.subTest(kind):
                for name in ("stall_s", "slack_s", "up_bytes", "down_bytes", "merged_weight", "delay"):
                    self.assertEqual([step for step, _ in logged[f"causeway/{name}"]], [54, 59, 64, 69, 74, 79], name)
                self.assertGreater(logged["causeway/up_bytes"][-1][1], 0)
                self.assertEqual(logged["causeway/merged_weight"][-1][1], 0.5)
                self.assertEqual(logged["causeway/delay"][-1][1], 2)
                for name in ("codec_up", "codec_down"):
                    self.assertEqual(logged[f"causeway/{name}"], [(54, "int4")])


@needs_library
@needs_lightning
class LateTest(EndToEndTest):
    def start_run(self, **sections):
        run = self.new_run(external_config(**sections))
        run.start_coordinator()
        return run

    def test_an_error_is_the_reason_to_leave_and_who_comes_late_begins_at_the_runs_step_and_counts_no_skipped_one(self):
        class Failing(Module):
            def training_step(self, batch):
                if self.global_step == 25:
                    raise ValueError("no such token")
                return super().training_step(batch)

        class Spoilt(Module):
            batches = 0

            def training_step(self, batch):
                self.batches += 1
                return super().training_step(batch) * (math.inf if self.batches == 4 else 1)

        run = self.start_run(run={"steps": 60})
        with self.assertRaisesRegex(ValueError, "no such token"):
            fit(Failing(), CausewayCallback(run.grpc, site="a"))
        eventually(lambda: "site a: is out of the run: ValueError: no such token" in run.coordinator.log(),
                   "the coordinator knows why")

        module, scaler = Spoilt(), torch.amp.GradScaler("cpu", init_scale=4.0)
        trainer = fit(module, CausewayCallback(run.grpc, site="b"), accumulate_grad_batches=1,
                      plugins=MixedPrecision("16-mixed", "cpu", scaler))
        entry = module.rates[0][0]
        self.assertGreaterEqual(entry, 20, "two rounds were merged")
        self.assertEqual([step for step, _ in module.rates[:6]],
                         [entry, entry + 1, entry + 2, entry + 3, entry + 3, entry + 4])
        self.assertEqual(module.rates[0][1], 0.1 / (1 + entry))
        self.assertEqual(module.batches, 60 - entry + 1)
        self.assertEqual(trainer.global_step, 60)
        eventually(lambda: run.status()["state"] == "done", "the run is done")

    def test_a_site_that_is_asked_to_stop_writes_its_checkpoint_and_goes_on_from_it(self):
        run = self.start_run()
        callback = CausewayCallback(run.grpc, site="a")

        class Stopped(Module):
            def training_step(self, batch):
                if self.global_step == 10:
                    callback.diloco.stop()
                return super().training_step(batch)
        saved = ModelCheckpoint(run.folder, every_n_train_steps=1, filename="saved")
        trainer = fit(Stopped(), callback, saved)
        self.assertEqual(trainer.global_step, 11)
        module = Module()
        trainer = fit(module, CausewayCallback(run.grpc, site="a"), ckpt_path=saved.best_model_path)
        first, rate = module.rates[0]
        self.assertEqual((rate, trainer.global_step), (0.1 / (1 + first), 30))

    def test_masters_of_an_optimizer_that_lightning_makes_are_found(self):
        class Narrow(Module):
            def __init__(self):
                super().__init__()
                self.tiny = Tiny().bfloat16()

            def configure_optimizers(self):
                return causeway.OffloadedAdamW(self.parameters(), lr=1e-2)

        run = self.start_run(run={"steps": 12}, outer={"optimizer": "sgd", "lr": 1.0}, sync={
            "sync_every": 4, "num_fragments": 1, "fragment_sync_delay": 0, "fragment_update_alpha": 0.0})
        module = Narrow()
        fit(module, CausewayCallback(run.grpc, site="eu"))
        anchor = run.export()
        for name, parameter in module.named_parameters():
            self.assertTrue(torch.equal(torch.from_numpy(anchor[name]).bfloat16(), parameter), name)


@needs_lightning
class FakeTest(FakeSiteTest):
    def setUp(self):
        super().setUp()
        self.fake.config = self.fake.config | {"run": {"steps": 20}}
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def test_validation_and_checkpoints_are_no_part_of_a_step(self):
        now, jumped, step_s = time.monotonic, [0], {}

        def jump(*_):
            jumped[0] += 1000

        class Validated(Module):
            validation_step = on_save_checkpoint = jump

            def on_train_batch_start(module, *_):
                if module.global_step > 0:
                    step_s[module.global_step] = self.fake.report.step_s
        with unittest.mock.patch.object(time, "monotonic", lambda: now() + jumped[0]):
            fit(Validated(), CausewayCallback("hub:1", site="eu"), ModelCheckpoint(self.folder, every_n_train_steps=3),
                val_check_interval=4, check_val_every_n_epoch=None)
        told = {step: seconds for step, seconds in step_s.items() if not math.isnan(seconds)}
        # A checkpoint counts for its own step. Steps end ahead of a validation, but for the first: it counts for the next one.
        self.assertEqual(sorted(told), [3, 4, 6, 8 + 1, 12 + 1, 15, 16 + 1, 18])
        self.assertLess(max(told.values()), 500)

    def test_a_checkpoint_that_was_cut_off_is_refused_before_the_site_joins(self):
        callback, saved = CausewayCallback("hub:1", site="eu"), ModelCheckpoint(self.folder, every_n_train_steps=5)
        fit(Module(), callback, saved)
        path = pathlib.Path(saved.best_model_path)
        self.fake.calls.clear()
        for kept in (path.stat().st_size - 200, path.stat().st_size // 2, 0):
            os.truncate(path, kept)
            with self.assertRaises((OSError, RuntimeError, EOFError)):
                fit(Module(), callback, ckpt_path=path)
        self.assertNotIn("site_join", self.fake.calls)

    def test_without_a_state_a_checkpoint_is_written_and_resumed_from_with_a_warning(self):
        callback, saved = CausewayCallback("hub:1", site="eu"), ModelCheckpoint(self.folder, every_n_train_steps=20)
        self.fake.fail("site_capture", 1, "got one without a place")
        with self.assertLogs("causeway", "WARNING") as logged:
            fit(Module(), callback, saved)
            fit(Module(), callback, ckpt_path=saved.best_model_path)
        self.assertIn("a checkpoint without the site's state, from which it joins anew: got one without a place",
                      logged.output[0])
        self.assertIn("no site's state in", logged.output[1])

    def test_its_checkpoints_are_of_plain_types(self):
        saved = ModelCheckpoint(self.folder, every_n_train_steps=20)
        fit(Module(), CausewayCallback("hub:1", site="eu"), saved)
        done = subprocess.run([sys.executable, "-c", "import sys, torch; torch.load(sys.argv[1], weights_only=True)",
                               saved.best_model_path], capture_output=True, text=True)
        self.assertEqual(done.returncode, DONE, done.stderr)


if __name__ == "__main__":
    unittest.main()
