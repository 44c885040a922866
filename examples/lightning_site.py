"""Trains a small Qwen2 on the bytes of a text file, as one site of a run: lightning_alone.py with two lines
changed.

    CAUSEWAY_COORDINATOR=127.0.0.1:7077 CAUSEWAY_SITE=eu python3 examples/lightning_site.py TEXT
"""

import sys

import lightning
import torch

from causeway.lightning import CausewayCallback
from small_qwen import new_model, rows


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = new_model()

    def training_step(self, batch):
        loss = self.model(input_ids=batch, labels=batch).loss
        if self.global_step % 20 == 19:
            print(f"step {self.global_step + 1}: loss {loss.item():.3f}", flush=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


loader = torch.utils.data.DataLoader(rows(sys.argv[1]), batch_size=8, shuffle=True)
trainer = lightning.Trainer(max_steps=200, accelerator="cpu", logger=False, enable_progress_bar=False,
                            enable_checkpointing=False, callbacks=[CausewayCallback(model="model")])
trainer.fit(Module(), loader)
