"""Trains a run's Llama with PyTorch and Hugging Face's model, on the batches and with the optimizer of causeway-worker.

    llama_site.py COORDINATOR SITE TEXT --model=DIR --inner=JSON
                  [--dtype=bfloat16 [--masters | --rounding=HOW [--forget]]] [--untrained]
                  [--device=cuda] [--checkpoint=FILE --save_at=STEP] [--die_at=STEP] [--dump=FILE]

Starts from the model in DIR, with run.yaml's section `inner` in JSON. Prints a JSON line with the loss of each step.
With --masters the optimizer trains float32 copies of the model's parameters; with --rounding it is bfloat16_adamw.py's,
and --forget makes it lose what it keeps whenever the run changes θ. With --checkpoint it goes on from FILE if there is
one, and writes it after step --save_at. --dump writes the model at the end.
"""

import functools
import json
import math
import os
import signal
import sys

import numpy
import torch
from transformers import LlamaForCausalLM

import bfloat16_adamw
import causeway.torch as causeway
from synthetic_site import U64, hash_combine, splitmix64

SEGMENTS, WINDOWS = 1024, 4  # worker/data/corpus.h


class Batches:
    """worker/data/site_batches.h: rows of the site's own segments of the text."""

    def __init__(self, config, site, text):
        self.tokens = torch.tensor(bytearray(text), dtype=torch.long)
        self.seed, self.site = U64(config["seed"]), site
        self.length, self.rows = config["model"]["max_position_embeddings"], config["inner"]["batch_size"]
        self.end = len(text) - int(len(text) * numpy.float64(config["eval"]["held_out"]))
        self.segments = min(SEGMENTS, self.end // (WINDOWS * (self.length + 1)))
        self.own_data = config.get("data", {}).get("mode", "shared") == "own"

    def owned(self, sites):
        if self.own_data:
            return list(range(self.segments))
        segments = numpy.arange(self.segments, dtype=U64)
        names = sorted({*sites, self.site})
        scores = [hash_combine(hash_combine(self.seed, name), segments) for name in names]
        return numpy.flatnonzero(numpy.argmax(scores, 0) == names.index(self.site)).tolist()

    def at(self, step, sites):
        owned = self.owned(sites)
        rows = []
        for row in range(self.rows):
            draw = hash_combine(hash_combine(hash_combine(self.seed, self.site), U64(step)), U64(row))
            segment = owned[int(draw % U64(len(owned)))]
            begin, end = (i * self.end // self.segments for i in (segment, segment + 1))
            first = begin + int(splitmix64(draw) % U64(end - begin - self.length))
            rows.append(self.tokens[first:first + self.length + 1])
        return torch.stack(rows)


def learning_rate(inner, steps, t):
    if t <= inner["warmup_steps"]:
        return inner["lr"] * t / inner["warmup_steps"]
    if inner["schedule"] == "constant" or steps <= inner["warmup_steps"]:
        return inner["lr"]
    progress = (t - inner["warmup_steps"]) / (steps - inner["warmup_steps"])
    return inner["lr"] * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0))))


def make_optimizer(parameters, inner, rounding=None, offloaded=False):
    parameters = list(parameters)
    decaying = [p for p in parameters if p.dim() >= 2]
    others = [p for p in parameters if p.dim() < 2]
    groups = [{"params": decaying, "weight_decay": inner["weight_decay"]}, {"params": others, "weight_decay": 0.0}]
    if inner["optimizer"] == "sgd":
        return torch.optim.SGD(groups, lr=inner["lr"])
    make = functools.partial(bfloat16_adamw.AdamW, rounding=rounding) if rounding else \
        causeway.OffloadedAdamW if offloaded else torch.optim.AdamW
    return make(groups, lr=inner["lr"], betas=(inner["beta1"], inner["beta2"]), eps=1e-8)


def options(arguments):
    return dict(argument.removeprefix("--").partition("=")[::2] for argument in arguments)


def main(coordinator, site, text, *flags):
    numpy.seterr(over="ignore")
    flags = options(flags)
    torch.manual_seed(0)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS is refused as not deterministic
    torch.use_deterministic_algorithms(True)
    model = LlamaForCausalLM.from_pretrained(flags["model"], dtype=getattr(torch, flags.get("dtype", "float32")),
                                             attn_implementation="eager").to(flags.get("device", "cpu"))
    with open(text, "rb") as file:
        text = file.read()
    inner = json.loads(flags["inner"])
    masters = {name: p.detach().float() for name, p in model.named_parameters()} if "masters" in flags else {}
    optimizer = make_optimizer(masters.values() if masters else model.parameters(), inner, flags.get("rounding"),
                               flags.get("optimizer") == "offloaded")
    trained = masters
    if isinstance(optimizer, causeway.OffloadedAdamW) and model.dtype == torch.bfloat16:
        trained = optimizer.masters(model.named_parameters())
    diloco = causeway.DiLoCo(model, optimizer, coordinator=coordinator, site=site, params=trained,
                             after_apply=optimizer.forget if "forget" in flags else None)
    checkpoint = flags.get("checkpoint")
    if checkpoint and os.path.exists(checkpoint):
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        diloco.load_state_dict(saved["causeway"])
    with diloco:
        batches = Batches(diloco.config | {"inner": inner}, site, text)
        steps = diloco.config["run"]["steps"]
        sites = diloco.progress()["sites"]
        while not diloco.over:
            step = diloco.step + 1
            rows = batches.at(step, sites).to(model.device)
            logits = model(input_ids=rows[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())
            loss.backward()
            if inner["clip"]:
                torch.nn.utils.clip_grad_norm_(model.parameters(), inner["clip"])
            for name, master in masters.items():
                master.grad = model.get_parameter(name).grad.float()
            for group in optimizer.param_groups:
                group["lr"] = 0.0 if "untrained" in flags else learning_rate(inner, steps, step)
            if "untrained" in flags:
                model.zero_grad()  # a step that changes nothing
            optimizer.step()
            for name, master in masters.items():
                model.get_parameter(name).data.copy_(master)
            model.zero_grad()
            diloco.report(loss=loss, tokens=rows.shape[0] * (rows.shape[1] - 1))
            sites = diloco.progress()["sites"]
            print(json.dumps({"step": diloco.step, "loss": loss.item()}), flush=True)
            if checkpoint and diloco.step == int(flags["save_at"]):
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                         "causeway": diloco.state_dict()}
                torch.save(state, checkpoint + ".new")
                os.replace(checkpoint + ".new", checkpoint)
            if diloco.step == int(flags.get("die_at", 0)):
                os.kill(os.getpid(), signal.SIGKILL)
    if "dump" in flags:
        torch.save(model.state_dict(), flags["dump"])


if __name__ == "__main__":
    main(*sys.argv[1:])
