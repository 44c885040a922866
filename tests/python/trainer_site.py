"""Trains a run's Llama with Hugging Face's Trainer, as one of its sites.

    trainer_site.py COORDINATOR SITE TEXT --model=DIR --out=DIR --steps=N
                    [--save_every=N] [--resume] [--eval_every=N] [--report_to=NAME,…] [--poison=CALL] [--fail=CALL]
                    [--kill_at=STEP] [--kill_in_save=STEP] [--max_steps=N]

Prints (rank 0, of torchrun's) a JSON line with step, loss and learning rate after each of the Trainer's steps; what it logged is in
DIR/log_history.json at the end. --poison makes the loss of that call infinite under gradient scaling, --fail raises in it; --kill_at kills the process
after a step, and --kill_in_save when the site's state of that step has been written and has not got its name.
"""

import json
import os
import signal
import sys

import torch
import transformers

import causeway.transformers
from llama_site import options

LENGTH = 32


class Rows(torch.utils.data.Dataset):
    def __init__(self, text):
        self.tokens = torch.tensor(bytearray(text), dtype=torch.long)

    def __len__(self):
        return (len(self.tokens) - 1) // LENGTH

    def __getitem__(self, index):
        row = self.tokens[index * LENGTH:(index + 1) * LENGTH]
        return {"input_ids": row, "labels": row}


class Trainer(transformers.Trainer):
    """Its calls can go wrong; under gradient scaling if one of them is poisoned."""

    def __init__(self, *args, poison=0, fail=0, **kwargs):
        self.calls, self.poison, self.fail = 0, poison, fail
        super().__init__(*args, **kwargs)

    def create_accelerator_and_postprocess(self):
        super().create_accelerator_and_postprocess()
        if self.poison:
            self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    def compute_loss(self, *args, **kwargs):
        loss = super().compute_loss(*args, **kwargs)
        if not self.model.training:
            return loss
        self.calls += 1
        if self.calls == self.fail:
            raise RuntimeError("this batch cannot be read")
        self.last_loss = loss.item()
        return loss * float("inf") if self.calls == self.poison else loss


class Lines(transformers.TrainerCallback):
    def __init__(self, trainer, kill_at):
        self.trainer, self.kill_at = trainer, kill_at

    def on_step_end(self, args, state, control, lr_scheduler=None, **_):
        if args.process_index == 0:
            print(json.dumps({"step": state.global_step, "loss": self.trainer.last_loss,
                              "lr": lr_scheduler.get_last_lr()[0]}), flush=True)
        if state.global_step == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def kill_in_save(step):
    replace = os.replace

    def replace_or_die(source, target):
        if str(target).endswith(f"checkpoint-{step}/{causeway.transformers.STATE_FILE}"):
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target)
    os.replace = replace_or_die


def main(coordinator, site, text, *flags):
    flags = options(flags)
    torch.manual_seed(0)
    with open(text, "rb") as file:
        rows = Rows(file.read())
    model = transformers.LlamaForCausalLM.from_pretrained(flags["model"], attn_implementation="eager")
    save, evaluate = int(flags.get("save_every", 0)), int(flags.get("eval_every", 0))
    arguments = transformers.TrainingArguments(
        output_dir=flags["out"], max_steps=int(flags.get("max_steps", flags["steps"])), per_device_train_batch_size=4,
        optim="adamw_torch", learning_rate=1e-3, lr_scheduler_type="cosine", warmup_steps=20, logging_steps=5,
        use_cpu=True, disable_tqdm=True, ddp_backend="gloo" if "WORLD_SIZE" in os.environ else None,
        save_strategy="steps" if save else "no", save_steps=save or 1, eval_strategy="steps" if evaluate else "no",
        eval_steps=evaluate or None, report_to=flags["report_to"].split(",") if "report_to" in flags else "none")
    rank = int(os.environ.get("RANK", 0))
    if "kill_in_save" in flags and rank == 0:
        kill_in_save(int(flags["kill_in_save"]))
    causeway_callback = causeway.transformers.CausewayCallback(coordinator, site=site)
    trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=torch.utils.data.Subset(rows, range(16)),
                      callbacks=[causeway_callback], poison=int(flags.get("poison", 0)), fail=int(flags.get("fail", 0)))
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.add_callback(Lines(trainer, int(flags.get("kill_at", 0))))
    trainer.train(resume_from_checkpoint="resume" in flags or None)
    if rank == 0:
        with open(os.path.join(flags["out"], "log_history.json"), "w") as file:
            json.dump(trainer.state.log_history, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
