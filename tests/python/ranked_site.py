"""One rank of a site that trains a run's Llama with several: the rows of a batch are dealt to data parallel ranks.

    ranked_site.py COORDINATOR SITE TEXT --model=DIR --inner=JSON --kind=single|plain|ddp|fsdp|hsdp|tp|pp
                   [--rendezvous=FILE --rank=I --world=N] [--check] [--dtype=bfloat16] [--rank_timeout_s=S]
                   [--group_timeout_s=S] [--step_ms=MS] [--skip=RANK:STEP] [--wrong=shape|name] [--absent=RANK]
                   [--busy=STEP:SECONDS] [--compile=SECONDS] [--term=RANK:STEP] [--variant=lora|frozen|masters]
                   [--device=cuda|cuda:INDEX] [--checkpoint=DIR [--save_at=STEP]] [--ledger=FILE] [--export=DIR]

Without --rendezvous torchrun says which rank it is. With --check the leader compares, after each move of θ, the values
that all ranks hold with those that one process moves by causeway_move. Prints a JSON line for each step, and at the end
{"moves": …, "differ": …} of --check. --group_timeout_s is of the script's own collectives. --skip: a rank takes no step
that once; --wrong: rank 1's model differs; --absent: a rank makes no DiLoCo; --busy: an evaluation after that step; and
--compile: the first step takes longer. --term: a rank gets SIGTERM after that step. --checkpoint: goes on from DIR if it
is there, by torch.distributed.checkpoint; with --save_at it is written after that step, and all ranks kill themselves.
--ledger: the leader adds up its outer gradients, W − θ, with what FILE has of an earlier process. --export writes W.
"""

import ctypes
import datetime
import json
import math
import os
import signal
import sys
import time

import numpy
import torch
import torch.distributed.checkpoint as dcp
from torch import distributed, nn
from torch.nn import functional
from transformers import LlamaForCausalLM

import causeway.torch as causeway
from causeway import _library
from causeway.names import plain
from causeway.torch._carrier import Carrier
from llama_site import Batches, learning_rate, options


BACKENDS = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"


def begin(flags):
    """(rank, world) after the rendezvous."""
    timeout = datetime.timedelta(seconds=float(flags.get("group_timeout_s", 60)))
    if flags["kind"] == "single":
        return 0, 1
    device, _, index = flags.get("device", "cpu").partition(":")
    if device == "cuda":  # without an index each rank has one of its own
        torch.cuda.set_device(int(index or flags.get("rank", os.environ.get("LOCAL_RANK", 0))))
    if "rendezvous" in flags:
        distributed.init_process_group(BACKENDS, init_method=f"file://{flags['rendezvous']}", rank=int(flags["rank"]),
                                       world_size=int(flags["world"]), timeout=timeout)
    else:
        distributed.init_process_group(BACKENDS, timeout=timeout)
    return distributed.get_rank(), distributed.get_world_size()


def wrap(model, kind, rank, world, device):
    """The model as its ranks train it."""
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if kind in ("fsdp", "hsdp"):
        from torch.distributed.fsdp import fully_shard
        shape, names = ((2, world // 2), ("replicate", "shard")) if kind == "hsdp" else ((world,), ("shard",))
        mesh = distributed.device_mesh.init_device_mesh(device, shape, mesh_dim_names=names)
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif kind == "tp":
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
        mesh = distributed.device_mesh.init_device_mesh(device, (world,), mesh_dim_names=("tp",))
        for layer in model.model.layers:
            parallelize_module(layer, mesh, {
                "self_attn.q_proj": ColwiseParallel(), "self_attn.k_proj": ColwiseParallel(),
                "self_attn.v_proj": ColwiseParallel(), "self_attn.o_proj": RowwiseParallel(),
                "mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel(), "mlp.down_proj": RowwiseParallel()})
    elif kind == "pp":  # two stages: each rank has the parameters of its own alone
        half = len(model.model.layers) // 2
        for number in range(len(model.model.layers)):
            if (number < half) != (rank == 0):
                model.model.layers[number] = nn.Identity()
        if rank == 0:
            model.model.norm = model.lm_head = nn.Identity()
        else:
            model.model.embed_tokens = nn.Identity()
    return model


class Stages:
    """Forward and backward of one batch through two stages."""

    def __init__(self, model, rank):
        self.model, self.rank = model, rank

    def layers(self, x):
        body = self.model.model
        places = torch.arange(x.shape[1], device=x.device)[None]
        for layer in body.layers:
            if not isinstance(layer, nn.Identity):
                x = layer(x, position_embeddings=body.rotary_emb(x, places), position_ids=places)
                x = x[0] if isinstance(x, tuple) else x
        return x

    def train(self, rows):
        """The loss on the last stage, NaN on the first."""
        width = self.model.config.hidden_size
        if self.rank == 0:
            x = self.layers(self.model.model.embed_tokens(rows[:, :-1]))
            distributed.send(x.detach(), 1)
            gradient = torch.empty_like(x)
            distributed.recv(gradient, 1)
            x.backward(gradient)
            return torch.tensor(math.nan)
        x = torch.empty(rows.shape[0], rows.shape[1] - 1, width, device=rows.device)
        distributed.recv(x, 0)
        x.requires_grad_()
        logits = self.model.lm_head(self.model.model.norm(self.layers(x)))
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())
        loss.backward()
        distributed.send(x.grad, 0)
        return loss


def train_rank(model, rows, rank, world, kind):
    """Forward and backward; the loss of this rank's rows."""
    if kind == "pp":
        return Stages(model, rank).train(rows)
    dealt = rows[rank::world] if kind in ("plain", "ddp", "fsdp", "hsdp") else rows
    logits = model(input_ids=dealt[:, :-1]).logits
    loss = functional.cross_entropy(logits.flatten(0, 1).float(), dealt[:, 1:].flatten())
    loss.backward()
    if kind == "plain":
        for parameter in model.parameters():
            distributed.all_reduce(parameter.grad)
            parameter.grad /= world
    return loss


class Checked(Carrier):
    """Compares each move with that of one process on the gathered tensors."""

    moves = differ = 0

    def _move(self, plan):
        moves = [move for move in plan if not move.flags & _library.ANCHOR]
        before = {id(move): self.whole_tensor(move) for move in moves}
        super()._move(plan)
        for move in moves:
            after = self.whole_tensor(move)
            if self.ranks.leads and after is not None:
                expected = before[id(move)].reshape(-1)
                part = expected[move.first:move.first + move.count]
                work = _library.Work(kind=move.kind, factor=move.factor, count=move.count,
                                     values=move.values.contiguous().data_ptr())
                library = _library.load()
                dtype = ("float32", "bfloat16", "float16").index(str(part.dtype).removeprefix("torch."))
                library.check(library.move(ctypes.byref(work), dtype, part.data_ptr()))
                Checked.moves += 1
                Checked.differ += int((expected != after.reshape(-1)).sum())

    def whole_tensor(self, move):
        tensor = self.store._tensors.get(move.tensor)
        if tensor is None:
            return None  # of another stage
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        return whole.detach().clone().contiguous()


class Ledger(Checked):
    """The leader's: the sum of W − θ over all sends, by the tensor's number."""

    anchor, sums = {}, {}

    def _read(self, plan, done):
        theta = {move.tensor: self.whole_tensor(move) for move in plan}
        super()._read(plan, done)
        for move in plan if self.ranks.leads and plan[0].flags & _library.BEFORE_CHANGE else []:
            values = theta[move.tensor].flatten().double().numpy()
            Ledger.anchor.setdefault(move.tensor, values)  # of the site that gives the run its first values
            Ledger.sums.setdefault(move.tensor, numpy.zeros(move.count))
            Ledger.sums[move.tensor] += Ledger.anchor[move.tensor] - values

    def _move(self, plan):
        super()._move(plan)
        for move in plan if self.ranks.leads else []:
            Ledger.anchor[move.tensor] = move.values.numpy().astype(numpy.float64)

    @classmethod
    def save(cls, path):
        with open(path, "wb") as file:
            numpy.savez(file, **{f"{name}.{tensor}": values for name in ("anchor", "sums")
                                 for tensor, values in getattr(cls, name).items()})

    @classmethod
    def load(cls, path):
        for key, values in numpy.load(path).items():
            name, _, tensor = key.partition(".")
            getattr(cls, name)[int(tensor)] = values


def checkpoint_state(model, optimizer, diloco):
    from torch.distributed.checkpoint.state_dict import get_state_dict
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state, "causeway": diloco}


def load_checkpoint(folder, model, optimizer, diloco):
    from torch.distributed.checkpoint.state_dict import set_state_dict
    state = checkpoint_state(model, optimizer, diloco)
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


class Lora(nn.Module):
    """An adapter beside a frozen matrix."""

    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        generator = torch.Generator().manual_seed(1)
        self.a = nn.Parameter(torch.randn(3, base.in_features, generator=generator) / 10)
        self.b = nn.Parameter(torch.zeros(base.out_features, 3))

    def forward(self, x):
        return self.base(x) + x @ self.a.T @ self.b.T


def varied(model, variant):
    """The model before it is wrapped."""
    if variant == "frozen":
        model.model.embed_tokens.weight.requires_grad_(False)
        model.model.layers[0].mlp.requires_grad_(False)
    if variant == "lora":
        model.requires_grad_(False)
        for layer in model.model.layers:
            layer.mlp.up_proj = Lora(layer.mlp.up_proj)
            layer.self_attn.q_proj = Lora(layer.self_attn.q_proj)
    return model


def main(coordinator, site, text, *flags):
    numpy.seterr(over="ignore")
    flags = options(flags)
    kind = flags["kind"]
    rank, world = begin(flags)
    if "check" in flags or "ledger" in flags:
        causeway._sites.Carrier = Ledger if "ledger" in flags else Checked
    torch.manual_seed(0)
    model = LlamaForCausalLM.from_pretrained(flags["model"], dtype=getattr(torch, flags.get("dtype", "float32")))
    if "wrong" in flags and rank == 1:
        if flags["wrong"] == "shape":
            model.model.norm.weight = nn.Parameter(torch.ones(7))
        else:
            model.model.other_norm, model.model.norm = model.model.norm, nn.Identity()
    device = flags.get("device", "cpu")
    model = model.to(device)
    length = model.config.max_position_embeddings
    model = wrap(varied(model, flags.get("variant")), kind, rank, world, model.device.type)
    inner = json.loads(flags["inner"])
    masters = {}
    if flags.get("variant") == "masters":
        masters = {plain(name): p.detach().float().requires_grad_() for name, p in model.named_parameters()}
    trained = list(masters.values()) or [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=inner["lr"], betas=(inner["beta1"], inner["beta2"]))
    with open(text, "rb") as file:
        text = file.read()
    if flags.get("absent") == str(rank):
        time.sleep(30)
        sys.exit(1)
    skip_rank, skip_step = map(int, flags.get("skip", "-1:0").split(":"))
    busy_step, busy_s = map(int, flags.get("busy", "0:0").split(":"))
    diloco = causeway.DiLoCo(model, optimizer, coordinator=coordinator, site=site, params=masters,
                             on_rejoin=lambda step: print(json.dumps({"rejoined": step}), flush=True),
                             rank_timeout_s=float(flags.get("rank_timeout_s", 60)))
    ledger = flags.get("ledger")
    if ledger and os.path.exists(ledger):
        Ledger.load(ledger)
    folder, save_at = flags.get("checkpoint"), int(flags.get("save_at", 0))
    if folder and os.path.isdir(folder):
        load_checkpoint(folder, model, optimizer, diloco)
    term_rank, term_step = map(int, flags.get("term", "-1:0").split(":"))
    with diloco:
        print(json.dumps({"entered": diloco.step}), flush=True)
        batches = Batches(diloco.config | {"inner": inner, "model": {"max_position_embeddings": length}}, site, text)
        sites = diloco.progress()["sites"]
        while not diloco.over:
            step = diloco.step + 1
            rows = batches.at(step, sites).to(device)
            loss = train_rank(model, rows, rank, world, kind)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(inner, diloco.config["run"]["steps"], step)
            diloco.report(loss=loss, tokens=rows.shape[0] * (rows.shape[1] - 1) // (world if kind in (
                "plain", "ddp", "fsdp", "hsdp") else 1))
            if step == 1:
                time.sleep(float(flags.get("compile", 0)))
            if (rank, step) == (skip_rank, skip_step):
                optimizer.zero_grad()
                continue
            for name, parameter in model.named_parameters() if masters else ():
                masters[plain(name)].grad = parameter.grad.float()
                parameter.grad = None
            optimizer.step()
            optimizer.zero_grad()
            for name, parameter in model.named_parameters() if masters else ():
                parameter.data.copy_(masters[plain(name)].data)
            time.sleep(float(flags.get("step_ms", 0)) / 1000)
            if diloco.step == busy_step:
                with diloco.busy("evaluation"):
                    time.sleep(busy_s)
            progress = diloco.progress()
            sites = progress["sites"]
            print(json.dumps({"step": diloco.step, "loss": loss.item(), "digests": progress["digests"],
                              "at": time.time()}), flush=True)
            if save_at and diloco.step == save_at:
                dcp.save(checkpoint_state(model, optimizer, diloco), checkpoint_id=folder)
                if ledger and rank == 0:
                    Ledger.save(ledger)
                if world > 1:
                    distributed.barrier()
                os.kill(os.getpid(), signal.SIGKILL)
            if (rank, diloco.step) == (term_rank, term_step):
                os.kill(os.getpid(), signal.SIGTERM)
        if "export" in flags:
            diloco.complete()  # or W may lack a round that is open
            diloco.export(flags["export"])
        if ledger:
            state = diloco.state_dict().get("state")
            if rank == 0:
                Ledger.save(ledger)
                torch.save(state.parts, ledger + ".parts")
    if "check" in flags:
        print(json.dumps({"moves": Checked.moves, "differ": Checked.differ}), flush=True)
    if world > 1:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
