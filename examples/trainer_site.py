"""Fine-tunes a small Qwen2 with LoRA by Hugging Face's Trainer, as one site: trainer_alone.py, two lines changed.

    CAUSEWAY_COORDINATOR=127.0.0.1:7077 CAUSEWAY_SITE=eu python3 examples/trainer_site.py TEXT
"""

import sys

from peft import LoraConfig, get_peft_model
from transformers import Trainer, TrainingArguments, set_seed

from causeway.transformers import CausewayCallback
from small_qwen import new_model, rows

set_seed(0)  # each site has the same base model
model = get_peft_model(new_model(), LoraConfig(r=8, target_modules="all-linear"))
data = [{"input_ids": row, "labels": row} for row in rows(sys.argv[1])]
arguments = TrainingArguments("trainer", max_steps=200, per_device_train_batch_size=8, learning_rate=3e-3,
                              logging_steps=20, save_strategy="no", report_to="none")

trainer = Trainer(model, arguments, train_dataset=data, callbacks=[CausewayCallback()])
trainer.train()
