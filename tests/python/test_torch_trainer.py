"""Hugging Face's Trainer, and accelerate, as sites of real runs."""

import importlib.util
import json
import math
import os
import signal
import tempfile
import unittest
from unittest import mock

import charts
from harness import eventually
from llama_runs import LlamaTest, llama_config
from torch_site import TOKENS, FakeSiteTest, torch

FIGURES = ("stall_s", "slack_s", "up_bytes", "down_bytes", "merged_weight", "delay", "codec_up", "codec_down")
MISSING = [name for name in ("accelerate", "tensorboard") if importlib.util.find_spec(name) is None]
needs_trainer = unittest.skipIf(MISSING, "not installed: " + ", ".join(MISSING))


def rate(step, steps):
    """A step's learning rate, by the Trainer's cosine with 20 steps of warm-up."""
    done = step - 1
    if done < 20:
        return 1e-3 * done / 20
    return 1e-3 * 0.5 * (1 + math.cos(math.pi * (done - 20) / (steps - 20)))


@needs_trainer
class TrainerTest(LlamaTest):
    def start_trainer(self, run, site, *flags):
        out = run.folder / f"trainer-{site}"
        steps = run.config["run"]["steps"]
        return self.start_torch(run, site, f"--out={out}", f"--steps={steps}", *flags, script="trainer_site.py")

    def lines(self, run, site):
        return run.workers[site].lines()

    def check_rates(self, run, site):
        steps = run.config["run"]["steps"]
        for line in self.lines(run, site):  # of the step to come
            self.assertAlmostEqual(line["lr"], rate(line["step"] + 1, steps), msg=f"site {site}: {line}")

    def test_it_trains_beside_a_plain_script_and_its_charts_hold_the_runs_figures(self):
        run = self.start_run(llama_config("int4", run={"steps": 60}))
        reports = ["tensorboard"] + ["wandb"] * (importlib.util.find_spec("wandb") is not None)
        with mock.patch.dict(os.environ, {"WANDB_MODE": "offline", "WANDB_DIR": str(run.folder), "WANDB_SILENT": "true"}):
            self.start_trainer(run, "a", "--eval_every=15", "--save_every=40", f"--report_to={','.join(reports)}")
        self.start_torch(run, "b")
        self.finish(run)  # fails where digests of two sites differ
        self.assertEqual([line["step"] for line in self.lines(run, "a")], list(range(1, 61)))
        self.check_rates(run, "a")
        out = run.folder / "trainer-a"
        logged = [entry for entry in json.loads((out / "log_history.json").read_text()) if "loss" in entry]
        self.assertEqual([entry["step"] for entry in logged], list(range(5, 61, 5)))
        last = logged[-1]
        self.assertEqual((last["causeway/codec_up"], last["causeway/merged_weight"]), ("int4", 0.5))
        self.assertGreater(last["causeway/up_bytes"], 10_000)

        drawn = charts.of_tensorboard(out)
        for name in FIGURES:
            self.assertIn(f"train/causeway/{name}", drawn)
        self.assertEqual([step for step, _ in drawn["train/causeway/stall_s"]], list(range(5, 61, 5)))
        if "wandb" in reports:
            drawn = charts.of_wandb(run.folder)
            for name in FIGURES:
                self.assertEqual([step for step, _ in drawn[f"train/causeway/{name}"]], list(range(5, 61, 5)), name)

    def test_killed_it_goes_on_from_its_checkpoint_and_killed_while_saving_it_joins_anew(self):
        config = llama_config("int4", run={"steps": 700})  # b must not be through when a's name is free
        config["membership"] |= {"lease_ms": 25000}
        run = self.start_run(config)
        killed = self.start_trainer(run, "a", "--save_every=20", "--kill_at=27")
        self.start_torch(run, "b")
        self.assertEqual(killed.wait(240), -signal.SIGKILL)
        before = self.lines(run, "a")
        self.assertEqual([line["step"] for line in before], list(range(1, 28)))

        killed = self.start_trainer(run, "a", "--save_every=20", "--kill_in_save=60", "--resume")
        self.assertEqual(killed.wait(240), -signal.SIGKILL)
        again = self.lines(run, "a")
        self.assertEqual([line["step"] for line in again], list(range(21, 61)))
        self.assertEqual(again[:7], before[20:], "on the same rows, with the same rate, from the same parameters")
        self.check_rates(run, "a")
        folder = run.folder / "trainer-a" / "checkpoint-60"
        self.assertTrue((folder / "model.safetensors").exists())
        self.assertFalse((folder / "causeway.pt").exists())

        self.start_trainer(run, "a", "--save_every=20", "--resume")
        self.finish(run)
        self.assertIn("no causeway.pt in", run.workers["a"].log())
        steps = [line["step"] for line in self.lines(run, "a")]
        self.assertEqual(steps, list(range(steps[0], 701)))
        self.check_rates(run, "a")

    def test_a_step_that_scaling_skips_is_none_and_a_late_site_begins_at_the_runs_step(self):
        config = llama_config("float32", run={"steps": 400})
        config["membership"] |= {"min_sites": 1, "lease_ms": 300000}
        run = self.start_run(config)
        first = self.start_trainer(run, "a", "--poison=12")
        eventually(lambda: run.site("a").get("step", 0) >= 15, "a has trained alone", 240)
        first.send(signal.SIGSTOP)  # or it might be done before the other one has begun
        self.start_trainer(run, "b")
        eventually(lambda: run.site("b"), "b asks to join", 240)
        first.send(signal.SIGCONT)
        self.finish(run)
        steps = [line["step"] for line in self.lines(run, "a")]
        self.assertEqual(steps, sorted([*range(1, 401), 11]), "the twelfth batch gave no step")
        late = [line["step"] for line in self.lines(run, "b")]
        self.assertGreater(late[0], 10)
        self.assertEqual(late, list(range(late[0], 401)))
        self.check_rates(run, "b")

    def test_an_error_in_a_batch_is_what_the_coordinator_hears(self):
        run = self.start_run(llama_config("float32", run={"steps": 60}))
        failed = self.start_trainer(run, "a", "--fail=8")
        self.start_trainer(run, "b", "--max_steps=30")
        eventually(lambda: not failed.running(), "a has failed", 240)
        self.assertEqual(failed.wait(), 1)
        eventually(lambda: "RuntimeError: this batch cannot be read" in run.coordinator.log(), "the reason is said")
        self.assertEqual([line["step"] for line in self.lines(run, "a")], list(range(1, 8)))
        eventually(lambda: not run.workers["b"].running(), "b has done its own 30 steps", 240)
        self.assertEqual(run.workers["b"].wait(), 0)
        self.assertIn("max_steps=60 takes part to the end", run.workers["b"].log())
        run.stop_coordinator()


@needs_trainer
class EntryTest(FakeSiteTest):
    def test_a_site_that_enters_before_its_checkpoint_has_the_rate_of_that_step(self):
        import transformers
        from causeway.transformers import CausewayCallback

        def scheduled(steps):
            optimizer = self.sgd()
            scheduler = transformers.get_cosine_schedule_with_warmup(optimizer, 20, 80)
            for _ in range(steps):
                optimizer.step()
                scheduler.step()
            return optimizer, scheduler
        optimizer, scheduler = scheduled(60)  # as the Trainer has loaded them
        self.fake.next_step = 41
        callback = CausewayCallback("hub:1", site="eu")
        self.addCleanup(callback.leave)
        state = transformers.TrainerState(global_step=60, max_steps=80)
        with tempfile.TemporaryDirectory() as folder:
            callback.on_train_begin(transformers.TrainingArguments(folder), state, transformers.TrainerControl(),
                                    model=self.model, optimizer=optimizer, lr_scheduler=scheduler)
        self.assertEqual(state.global_step, 41)
        self.assertEqual((scheduler.last_epoch, optimizer.param_groups[0]["lr"]),
                         (41, scheduled(41)[1].get_last_lr()[0]))


@needs_trainer
class AccelerateTest(FakeSiteTest):
    def test_what_accelerate_prepared_is_a_site_and_its_checkpoints_hold_the_state(self):
        import accelerate

        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        optimizer = self.sgd()
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        model, optimizer, scheduler = accelerator.prepare(self.model, optimizer, scheduler)
        diloco = self.diloco(model, optimizer, schedulers=[scheduler])
        accelerator.register_for_checkpointing(diloco)
        self.fake.next_step = 4
        with diloco:
            self.fake.next_step = None
            self.assertEqual(scheduler.scheduler.last_epoch, 4)
            for _ in range(4):
                with accelerator.accumulate(model):
                    accelerator.backward(self.model.loss(TOKENS))
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
            self.assertEqual(diloco.step, 6)
            self.assertEqual(scheduler.scheduler.last_epoch, 6)
            with tempfile.TemporaryDirectory() as folder:
                accelerator.save_state(folder)
                again = accelerate.Accelerator(cpu=True)
                loaded = self.diloco(*again.prepare(self.model, self.sgd()))
                again.register_for_checkpointing(loaded)
                again.load_state(folder)
        self.assertEqual(self.fake.restored, self.fake.parts)


if __name__ == "__main__":
    unittest.main()
