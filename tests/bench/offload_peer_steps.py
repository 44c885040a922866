"""Steps of one Llama (llama_peer.py) whose optimizer's state lies on the host, or on the device, by one of several optimizers.

    offload_peer_steps.py --peer=PEER --device=cuda|cpu --data=TOKENS.bin --shape='{"hidden": …, "rows": …}' [--steps=4] [--clip=1.0]

tests/bench/offload_peers starts it, says which peers there are, and has one row of each. Prints a line of JSON. All step
the same parameters on the same tokens, and recompute each block in backward. --clip: the norm of all gradients, which not all
of them can. `update_ms` is clipping and the optimizer's step between two waits for the device.
"""

import argparse
import contextlib
import importlib
import json
import os
import pathlib
import resource
import statistics
import sys
import time

import torch
from gpu_models import parameters, read_tokens
from llama_peer import Llama

FIRST = 2  # steps that are not timed
ADAMW = {"lr": 1e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
RATIO = 0.5  # of DeepSpeed's state on the host, where the peer is deepspeed:ratio


def package(name):
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise SystemExit(f"expected the package {name.partition('.')[0]} beside PyTorch, got: {error}") from None


class Peer:
    """A network and its optimizer. `note` says what is not as in the other peers."""

    dtype, note = torch.bfloat16, ""

    def __init__(self, network, device):
        self.network, self.device = network, device
        self.optimizer = self.made()

    def loss(self, tokens):
        return self.network(tokens)

    def backward(self, loss):
        loss.backward()

    def clipped(self):
        if self.clip:
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.clip)

    def step(self):
        self.optimizer.step()

    def end(self):
        self.optimizer.zero_grad(set_to_none=True)

    def more(self):
        """Further fields of its row."""
        return {}


class Torch(Peer):
    """Masters and gradients in pinned float32, moved by copies that the host waits for."""

    version = torch.__version__

    def made(self):
        self.parameters = list(self.network.parameters())
        self.masters = [self.hosted(parameter.detach().float()) for parameter in self.parameters]
        for master in self.masters:
            master.grad = self.hosted(torch.zeros_like(master))
        return torch.optim.AdamW(self.masters, fused=True, **ADAMW)

    def hosted(self, values):
        return values.cpu().pin_memory() if self.device.type == "cuda" else values.cpu()

    @torch.no_grad()
    def step(self):
        for parameter, master in zip(self.parameters, self.masters):
            master.grad.copy_(parameter.grad.float())
        self.optimizer.step()
        for parameter, master in zip(self.parameters, self.masters):
            parameter.copy_(master.to(self.device))

    def end(self):
        self.network.zero_grad(set_to_none=True)


class Resident(Torch):
    """The ceiling: masters, gradients and moments in float32 on the device, nothing is moved."""

    note = "all of the state on the device"

    def hosted(self, values):
        return values.clone()


class Causeway(Peer):
    def made(self):
        causeway = package("causeway")
        self.version = causeway.__version__
        k, fraction, overlap = (self.setting.split(":") + ["", ""])[:3]
        k = k if k in ("cpu", "auto") else int(k)
        fraction = fraction if fraction == "auto" else float(fraction or 0)
        return package("causeway.torch").OffloadedAdamW(self.network.parameters(), k=k, fraction=fraction,
                                                       **({"overlap": self.network} if overlap else {}), **ADAMW)

    def more(self):
        return {"k": [interleaved.k for interleaved in self.optimizer._interleaved.values()]}


class TorchAo(Peer):
    note = "state in bfloat16, 6 bytes a parameter, no masters"

    def made(self):
        if self.clip:
            raise SystemExit("expected no --clip with torchao's CPUOffloadOptimizer, which has copied the gradients by then")
        self.version = package("torchao").__version__
        return package("torchao.optim").CPUOffloadOptimizer(self.network.parameters(), torch.optim.AdamW, **ADAMW)


class TorchAoFloat32(TorchAo):
    dtype, note = torch.float32, "parameters and gradients on the device in float32, rounded by autocast"

    def loss(self, tokens):
        with torch.autocast(self.device.type, torch.bfloat16):
            return self.network(tokens)


class DeepSpeed(Peer):
    def made(self):
        deepspeed = package("deepspeed")
        self.version = deepspeed.__version__
        ratio = None if not self.setting else RATIO if self.setting == "ratio" else float(self.setting)
        offload = {"device": "cpu", "pin_memory": self.device.type == "cuda"} | ({} if ratio is None else {"ratio": ratio})
        self.note = "ZeRO stage 2" if ratio is None else f"ZeRO stage 3, ratio {ratio}"
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        backend = "nccl" if self.device.type == "cuda" else "gloo"
        torch.distributed.init_process_group(backend, store=torch.distributed.HashStore(), rank=0, world_size=1)
        self.engine = deepspeed.initialize(model=self.network, model_parameters=self.network.parameters(), config={
            "train_micro_batch_size_per_gpu": self.rows, "gradient_accumulation_steps": 1, "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {**ADAMW, "betas": list(ADAMW["betas"])}}, "steps_per_print": 1 << 30, "gradient_clipping": self.clip,
            "zero_optimization": {"stage": 2 if ratio is None else 3, "offload_optimizer": offload, "overlap_comm": True,
                                  "contiguous_gradients": True, "sub_group_size": 100_000_000}})[0]

    def loss(self, tokens):
        return self.engine(tokens)

    def backward(self, loss):
        self.engine.backward(loss)

    def clipped(self):
        pass  # within its step

    def step(self):
        self.engine.step()

    def end(self):
        pass  # step has cleared the gradients


PEERS = {"resident": Resident, "torch": Torch, "causeway": Causeway, "torchao": TorchAo, "torchao:float32": TorchAoFloat32, "deepspeed": DeepSpeed}


def made(name, shape, device, clip):
    kind, _, setting = name.partition(":")
    peer = PEERS.get(name) or PEERS[kind]
    peer.setting, peer.rows, peer.clip = setting, shape["rows"], clip
    torch.manual_seed(1)
    with torch.device("meta"):
        network = Llama(shape, recompute=True).to(peer.dtype)
    return peer(network.to_empty(device=device).start(), device)


def measure(name, shape, device, data, steps, clip):
    peer = made(name, shape, device, clip)
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    kept = read_tokens(data)
    tokens = torch.frombuffer(kept, dtype=torch.uint16 if kept.itemsize == 2 else torch.uint32).to(torch.int64)
    values = shape["rows"] * shape["sequence"]
    updates, iterations, losses = [], [], []
    for step in range(FIRST + steps):
        first = step * values % (len(tokens) - values)
        batch = tokens[first:first + values].view(shape["rows"], -1).to(device)
        wait()
        begin = time.perf_counter()
        loss = peer.loss(batch)
        peer.backward(loss)
        wait()
        backward_done = time.perf_counter()
        peer.clipped()
        peer.step()
        wait()
        end = time.perf_counter()
        peer.end()
        updates.append(end - backward_done)
        iterations.append(time.perf_counter() - begin)
        losses.append(loss.item())
    iteration = statistics.median(iterations[FIRST:])
    row = {"parameters": parameters(shape), "update_ms": 1000 * statistics.median(updates[FIRST:]),
           "iteration_ms": 1000 * iteration, "tokens_per_s": values / iteration, "losses": losses, "version": peer.version,
           "note": peer.note, "torch": torch.__version__, "threads": torch.get_num_threads(),
           "host_peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
           "device_peak_mb": torch.cuda.max_memory_allocated() / 1e6 if device.type == "cuda" else 0.0}
    return row | peer.more()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--device", type=torch.device, required=True)
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--shape", type=json.loads)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--clip", type=float, default=0.0)
    options = parser.parse_args()
    with contextlib.redirect_stdout(sys.stderr):  # DeepSpeed's log
        if options.peer == "build":
            begin = time.monotonic()
            package("deepspeed.ops.op_builder").CPUAdamBuilder().load()
            row = {"deepspeed_build_s": time.monotonic() - begin}
        else:
            row = measure(options.peer, options.shape, options.device, options.data, options.steps, options.clip)
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
