"""A script that trains alone, or with a coordinator as a run's only site: both have to end with the same bits.

    alone_site.py TEXT OUT [--coordinator=HOST:PORT] [--kind=single|ddp|fsdp --rendezvous=FILE --rank=I --world=N]
                  [--dtype=bfloat16] [--masters] [--save=FILE [--kill_at=STEP]]

OUT gets θ and W after 100 steps. With --save the whole site is saved after each step; --kill_at ends it behind one.
"""

import os
import signal
import sys

import torch
import torch.distributed.checkpoint as dcp
from torch import distributed, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import causeway.torch as causeway
from llama_site import options

SETTINGS = {"sync_every": 10, "outer_lr": 0.7, "outer_momentum": 0.5, "steps": 100}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(256, 24)
        self.body = nn.Sequential(nn.Linear(24, 32), nn.GELU(), nn.Linear(32, 24))
        self.norm = nn.LayerNorm(24)
        self.head = nn.Linear(24, 256, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        x = self.embed(x)
        return self.head(self.norm(x + self.body(x)))


def whole(model):
    return {name: (value.full_tensor() if hasattr(value, "full_tensor") else value).detach().clone()
            for name, value in model.state_dict().items()}


def main(text, out, *flags):
    flags = options(flags)
    kind, rank, world = flags.get("kind", "single"), int(flags.get("rank", 0)), int(flags.get("world", 1))
    if kind != "single":
        distributed.init_process_group("gloo", init_method=f"file://{flags['rendezvous']}", rank=rank, world_size=world)
    torch.manual_seed(5)
    model = Net().to(getattr(torch, flags.get("dtype", "float32")))
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    if kind == "fsdp":
        fully_shard(model.body)
        fully_shard(model)
    optimizer = (causeway.OffloadedAdamW if "masters" in flags else torch.optim.AdamW)(model.parameters(), lr=5e-3)
    with open(text, "rb") as file:
        values = torch.tensor(list(file.read()))
    place = {"coordinator": flags["coordinator"], "site": "only", "insecure": True} if "coordinator" in flags else {"alone": True}
    diloco = causeway.DiLoCo(model, optimizer, **place, **SETTINGS)
    folder = flags.get("save")

    def state():
        model_state, optimizer_state = get_state_dict(model, optimizer)
        return {"model": model_state, "optimizer": optimizer_state, "causeway": diloco}
    if folder and os.path.isdir(folder):
        loaded = state()
        dcp.load(loaded, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
    with diloco:
        while not diloco.over:
            generator = torch.Generator().manual_seed(diloco.step + 1)
            starts = torch.randint(len(values) - 33, (8,), generator=generator)[rank::world]
            rows = torch.stack([values[start:start + 33] for start in starts])
            loss = nn.functional.cross_entropy(model(rows[:, :-1]).float().flatten(0, 1), rows[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            diloco.report(loss=loss, tokens=rows.numel())
            if "kill_at" in flags and diloco.step == int(flags["kill_at"]):
                dcp.save(state(), checkpoint_id=folder)
                if world > 1:
                    distributed.barrier()
                os.kill(os.getpid(), signal.SIGKILL)
        diloco.complete()
        theta = whole(model)
        with diloco.anchor_parameters():
            w = whole(model)
    if rank == 0:
        torch.save({"theta": theta, "w": w, "loss": loss.item()}, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
