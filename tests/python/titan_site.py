"""llama_site.py with what torchtitan's trainer is made of: its optimizers, schedulers and checkpoints, in its loop.

    titan_site.py COORDINATOR SITE TEXT --model=DIR --inner=JSON --checkpoints=DIR [--die_at=STEP]

The trainer itself wants an accelerator. Writes a checkpoint after each tenth step, and resumes from the latest in DIR.
Kills itself before step --die_at. Prints a JSON line with the loss, the learning rate and the figures of each step.
"""

import json
import os
import signal
import sys
import tempfile
import types

import numpy
import torch
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from transformers import LlamaForCausalLM

from causeway.torchtitan import Site
from llama_site import Batches, options


class Metrics:
    """The part of torchtitan's MetricsProcessor that the trainer calls; its memory figures need a device."""

    def __init__(self, lines):
        self.lines = lines

    def log(self, step, global_avg_loss, global_max_loss, grad_norm, extra_metrics=None):
        print(json.dumps({"step": step, "loss": global_avg_loss} | extra_metrics), file=self.lines, flush=True)


class Loader:
    """The part of torchtitan's dataloaders that checkpoints need: batches are chosen by the step."""

    def state_dict(self):
        return {}

    def load_state_dict(self, state_dict):
        pass


class Trainer:
    """torchtitan.trainer.Trainer on a CPU: same attributes, and the same calls in the same order."""

    def __init__(self, model, site, text, flags, lines):
        self.config = types.SimpleNamespace(training=types.SimpleNamespace(steps=int(flags.get("steps", 80))))
        self.model_parts = [model]
        self.site, self.text, self.inner = site, text, json.loads(flags["inner"])
        self.die_at = int(flags.get("die_at", -1))
        optimizer = default_adamw(lr=self.inner["lr"])
        optimizer.implementation = "for-loop"
        self.optimizers = optimizer.build(model_parts=self.model_parts)
        self.lr_schedulers = LRSchedulersContainer.Config(warmup_steps=20).build(
            optimizers=self.optimizers, training_steps=self.config.training.steps)
        self.metrics_processor = Metrics(lines)
        self.step = 0
        checkpoint = CheckpointManager.Config(enable="checkpoints" in flags, interval=10)
        self.checkpointer = checkpoint.build(
            dataloader=Loader(), model_parts=self.model_parts, optimizers=self.optimizers,
            lr_schedulers=self.lr_schedulers, states={"train_state": self}, sd_adapter=None,
            base_folder=flags.get("checkpoints", ""))

    def train(self):
        self.checkpointer.load(step=-1)
        while self.should_continue_training():
            self.step += 1
            if self.step == self.die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            self.train_step()
            self.checkpointer.save(self.step, last_step=(self.step == self.config.training.steps))

    def should_continue_training(self):
        return self.step < self.config.training.steps

    def train_step(self):
        self.optimizers.zero_grad()
        rates = self.lr_schedulers.get_metrics()
        config = self.taking_part.diloco.config | {"inner": self.inner}
        rows = Batches(config, self.site, self.text).at(self.step, ["a", "b"])
        logits = self.model_parts[0](input_ids=rows[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model_parts[0].parameters(), self.inner["clip"])
        self.checkpointer.maybe_wait_for_staging()
        self.optimizers.step()
        self.lr_schedulers.step()
        self.metrics_processor.log(self.step, loss.item(), loss.item(), float(norm), extra_metrics=rates)

    def state_dict(self):
        return {"step": self.step}

    def load_state_dict(self, state_dict):
        self.step = state_dict["step"]


def main(coordinator, site, text, *flags):
    flags = options(flags)
    numpy.seterr(over="ignore")
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    lines, sys.stdout = sys.stdout, sys.stderr  # torchtitan logs, too
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    model = LlamaForCausalLM.from_pretrained(flags["model"], attn_implementation="eager")
    with open(text, "rb") as file:
        trainer = Trainer(model, site, file.read(), flags, lines)
    with Site(trainer, coordinator, site=site) as trainer.taking_part:
        trainer.train()
    trainer.checkpointer.close()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
