"""A rank of a model that fully_shard has divided, trained by OffloadedAdamW beside the whole one with the same gradients.

    offload_ranks.py RANK WORLD FOLDER save|load [MOMENTS]

save: five steps, then the checkpoint FOLDER/dcp. load: from there, which any number of ranks may have written. Then five more
steps, and every rank says "equal" if all parameters and states have the whole one's bits.
"""

import pathlib
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor

import causeway.torch as causeway

STEPS = 5


def new_model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Embedding(31, 7), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 2))  # uneven, and less than ranks


def optimizer_of(model, moments):
    return causeway.OffloadedAdamW(model.parameters(), lr=1e-2, weight_decay=0.1, moments=moments)


def step(model, whole, optimizer, beside, t):
    generator = torch.Generator().manual_seed(t)
    for sharded, plain in zip(model.parameters(), whole.parameters(), strict=True):
        plain.grad = torch.randn(plain.shape, generator=generator)
        sharded.grad = distribute_tensor(plain.grad.clone(), sharded.device_mesh, sharded.placements)
    optimizer.step()
    beside.step()


def main(rank, world, folder, what, moments="float32"):
    folder = pathlib.Path(folder)
    store = dist.FileStore(str(folder / f"store_{what}_{world}_{moments}"), int(world))
    dist.init_process_group("gloo", store=store, rank=int(rank), world_size=int(world))
    mesh = init_device_mesh("cpu", (int(world),))
    model, whole = new_model(), new_model()
    for layer in (model[1], model[3]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer, beside = optimizer_of(model, moments), optimizer_of(whole, moments)
    for t in range(1, STEPS + 1):
        step(model, whole, optimizer, beside, t)
    if what == "save":
        parts = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
        dcp.save(parts, checkpoint_id=folder / "dcp")
    else:  # from a state of its own, which must be forgotten
        step(model, new_model(), optimizer, optimizer_of(new_model(), moments), 99)
        parts = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
        dcp.load(parts, checkpoint_id=folder / "dcp")
        set_state_dict(model, optimizer, model_state_dict=parts["model"], optim_state_dict=parts["optimizer"])
    for t in range(STEPS + 1, 2 * STEPS + 1):
        step(model, whole, optimizer, beside, t)
    equal = True
    for sharded, plain in zip(model.parameters(), whole.parameters(), strict=True):
        equal &= torch.equal(sharded.full_tensor(), plain)
        for name in ("exp_avg", "exp_avg_sq"):
            equal &= torch.equal(optimizer.state[sharded][name].full_tensor(), beside.state[plain][name])
        equal &= int(optimizer.state[sharded]["step"]) == 2 * STEPS
    print("equal" if equal else "different", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
