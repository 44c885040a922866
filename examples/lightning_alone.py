"""Trains a small Qwen2 on the bytes of a text file, on one machine: Lightning and transformers as they are.

    python3 examples/lightning_alone.py TEXT
"""

import sys

import lightning
import torch

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
                            enable_checkpointing=False)
trainer.fit(Module(), loader)
