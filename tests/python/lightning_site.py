"""llama_site.py with Lightning's Trainer.

    lightning_site.py COORDINATOR SITE TEXT --model=DIR --inner=JSON --checkpoints=DIR
                      [--die_at=STEP | --die_in_save_of=STEP] [--charts=DIR]

Writes a checkpoint after each tenth step, and resumes from the newest in DIR. Validates between steps. Kills itself
before step --die_at, or halfway through writing the checkpoint of a step. With --charts, TensorBoard's and Weights &
Biases's files are below DIR. Prints a JSON line with the loss and the learning rate of each step.
"""

import json
import os
import pathlib
import signal
import sys
import warnings

import fsspec.implementations.local
import lightning
import numpy
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from transformers import LlamaForCausalLM

from causeway.lightning import CausewayCallback
from llama_site import Batches, learning_rate, make_optimizer, options


class Module(lightning.LightningModule):
    def __init__(self, flags, site, text):
        super().__init__()
        self.llama = LlamaForCausalLM.from_pretrained(flags["model"], attn_implementation="eager")
        self.inner = json.loads(flags["inner"])
        self.die_at = int(flags.get("die_at", -1))
        self.site, self.text = site, text

    def configure_optimizers(self):
        optimizer = make_optimizer(self.llama.parameters(), self.inner)
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda t: learning_rate(self.inner, 80, t + 1) / self.inner["lr"])
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_train_start(self):
        diloco = self.trainer.callbacks[0].diloco
        self.batches = Batches(diloco.config | {"inner": self.inner}, self.site, self.text)

    def loss(self, rows):
        rows = rows[self.global_rank::self.trainer.world_size] if len(rows) > 1 else rows
        logits = self.llama(input_ids=rows[:, :-1]).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())

    def training_step(self, batch):
        if self.global_step + 1 == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.rate = self.optimizers().param_groups[0]["lr"]
        return self.loss(self.batches.at(self.global_step + 1, ["a", "b"]))

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if self.global_rank == 0:
            print(json.dumps({"step": self.global_step, "loss": outputs["loss"].item(), "lr": self.rate}), flush=True)

    def validation_step(self, batch):
        self.log("held_out", self.loss(torch.tensor([bytearray(self.text[-32:])])), batch_size=1)


def die_in_save_of(step):
    opener = fsspec.implementations.local.LocalFileOpener
    write = opener.write

    def write_half(self, data):
        if f"step={step}.ckpt" not in self.path:
            return write(self, data)
        write(self, data[:len(data) // 2])
        self.f.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    opener.write = write_half


def main(coordinator, site, text, *flags):
    flags = options(flags)
    numpy.seterr(over="ignore")
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    with open(text, "rb") as file:
        module = Module(flags, site, file.read())
    if "die_in_save_of" in flags:
        die_in_save_of(flags["die_in_save_of"])
    charts, world = flags.get("charts"), int(os.environ.get("WORLD_SIZE", 1))
    checkpoints = ModelCheckpoint(flags["checkpoints"], every_n_train_steps=10, save_top_k=-1, filename="{step}")
    trainer = lightning.Trainer(
        max_epochs=-1, accelerator="cpu", devices=world, strategy="ddp" if world > 1 else "auto",
        callbacks=[CausewayCallback(coordinator, site=site, model="llama"), checkpoints],
        gradient_clip_val=module.inner["clip"] or None, val_check_interval=7, check_val_every_n_epoch=None,
        limit_val_batches=1, log_every_n_steps=5, enable_progress_bar=False, enable_model_summary=False,
        logger=[TensorBoardLogger(charts), WandbLogger(save_dir=charts, offline=True)] if charts else False)
    whole = sorted(pathlib.Path(flags["checkpoints"]).glob("*.ckpt"), key=lambda path: int(path.stem.split("=")[1]))
    if whole:
        print("resumes from", whole[-1].name, file=sys.stderr, flush=True)
    trainer.fit(module, [0] * 1000, [0], ckpt_path=whole[-1] if whole else None)
    print("global_step", trainer.global_step, file=sys.stderr, flush=True)


if __name__ == "__main__":
    warnings.filterwarnings("ignore", module="lightning")
    main(*sys.argv[1:])
