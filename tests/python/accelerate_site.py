"""llama_site.py under accelerate with fully_shard (FSDP2), on the ranks of torchrun.

    accelerate_site.py COORDINATOR SITE TEXT --model=DIR --inner=JSON --out=DIR [--save_at=STEP] [--kill_at=STEP] [--resume]

Rank 0 prints a JSON line with step, loss and learning rate. --save_at saves the state in DIR after that step, --kill_at
kills the process after it, and --resume goes on from DIR.
"""

import json
import os
import signal
import sys

import numpy
import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from transformers import LlamaForCausalLM

import causeway.torch as causeway
from llama_site import Batches, learning_rate, make_optimizer, options

STEPS = 60


def main(coordinator, site, text, *flags):
    numpy.seterr(over="ignore")
    flags = options(flags)
    inner = json.loads(flags["inner"])
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="transformer_based_wrap",
                                            transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
                                            state_dict_type="SHARDED_STATE_DICT")
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    rank, world = accelerator.process_index, accelerator.num_processes
    model = LlamaForCausalLM.from_pretrained(flags["model"])
    optimizer = make_optimizer(model.parameters(), inner)
    model, optimizer = accelerator.prepare(model, optimizer)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer.optimizer, lambda t: learning_rate(inner, STEPS, t + 1) / inner["lr"])
    diloco = causeway.DiLoCo(model, optimizer, coordinator=coordinator, site=site, schedulers=[scheduler])
    accelerator.register_for_checkpointing(diloco)
    if "resume" in flags:
        accelerator.load_state(flags["out"])
    with open(text, "rb") as file:
        text = file.read()
    with diloco:
        batches = Batches(diloco.config | {"inner": inner}, site, text)
        while not diloco.over:
            rows = batches.at(diloco.step + 1, ["a", "b"])[rank::world]
            logits = model(input_ids=rows[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
            accelerator.backward(loss)
            rate = optimizer.param_groups[0]["lr"]
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            diloco.report(loss=loss, tokens=rows[:, 1:].numel())
            if rank == 0:
                print(json.dumps({"step": diloco.step, "loss": loss.item(), "lr": rate}), flush=True)
            if diloco.step == int(flags.get("save_at", 0)):
                accelerator.save_state(flags["out"])
            if diloco.step == int(flags.get("kill_at", 0)) and rank == 0:
                os.kill(os.getpid(), signal.SIGKILL)
    accelerator.end_training()


if __name__ == "__main__":
    main(*sys.argv[1:])
