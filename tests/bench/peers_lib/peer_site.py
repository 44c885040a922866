"""A site of a peer, or torchft's lighthouse, in the Python that has torch; prints "begun", then a line of JSON.

    peer_site.py '{"kind": "torchft" | "gloo" | "lighthouse", "rank": …, "world": …, "address": …, …}'

Each fragment of the model is sent once in `sync_every` steps, a step is `step_s` of sleep, and what was sent is awaited
`delay` steps later. The parameters change only when they are sent, as those of causeway's synthetic model do, so that
the machine's cores are free for the communication. After `first` fragments, `fragments_timed` of them are measured.

    torchft   Streaming DiLoCo: pseudogradients averaged by Gloo, outer SGD with Nesterov momentum, a vote on each round
    gloo      torch.distributed's all-reduce of as many values and nothing else: no outer step, no state, no recovery
"""

import json
import os
import socket
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

TIMEOUT = timedelta(seconds=120)


class Fragment(nn.Module):
    def __init__(self, tensors, values):
        super().__init__()
        self.tensors = nn.ParameterList([nn.Parameter(torch.zeros(values)) for _ in range(tensors)])


class Gloo:
    """Sums a fragment's tensors over the sites, in place or by way of another type."""

    def __init__(self, settings, fragments):
        store = dist.FileStore(settings["store"], settings["world"])
        dist.init_process_group("gloo", store=store, rank=settings["rank"], world_size=settings["world"],
                                timeout=TIMEOUT)
        self.dtype = getattr(torch, settings["dtype"])
        self.fragments, self.steps = fragments, settings["sync_every"] // len(fragments)
        self.send_at, self.step_number, self.pending, self.done = self.steps - settings["delay"], 0, [], 0

    def step(self):
        self.step_number += 1
        within = (self.step_number - 1) % self.steps + 1
        if within == self.send_at:
            fragment = self.fragments[self.done % len(self.fragments)]
            sent = [(tensor.data, tensor.data.to(self.dtype)) for tensor in fragment.parameters()]
            self.pending = [(tensor, copy, dist.all_reduce(copy, async_op=True)) for tensor, copy in sent]
        if within == self.steps:
            for tensor, copy, work in self.pending:
                work.wait()
                if copy is not tensor:
                    tensor.copy_(copy)
            self.done += 1


class TorchFt:
    """The inner optimizer has no gradients but at the step that sends."""

    def __init__(self, settings, fragments):
        from torchft.local_sgd import DiLoCo
        from torchft.manager import Manager
        from torchft.process_group import ProcessGroupGloo

        self.fragments, self.steps = fragments, settings["sync_every"] // len(fragments)
        self.send_at, self.step_number, self.done = self.steps - settings["delay"], 0, 0
        address = settings["address"]
        self.store = dist.TCPStore(address, 0, is_master=True)
        self.manager = Manager(
            pg=ProcessGroupGloo(timeout=TIMEOUT), min_replica_size=settings["world"], use_async_quorum=False,
            load_state_dict=lambda state: None, state_dict=dict, timeout=TIMEOUT, quorum_timeout=TIMEOUT, rank=0,
            world_size=1, store_addr=address, store_port=self.store.port, lighthouse_addr=settings["lighthouse"],
            replica_id=f"site{settings['rank']}", init_sync=False, hostname=address)
        self.gradient = torch.full_like(next(fragments[0].parameters()), 0.1 * (1 + settings["rank"]))
        model = nn.ModuleList(fragments)
        self.inner = torch.optim.SGD(model.parameters(), lr=0.01)
        outer = [torch.optim.SGD(fragment.parameters(), lr=0.7, momentum=0.9, nesterov=True) for fragment in fragments]
        self.diloco = DiLoCo(self.manager, fragments, self.inner, outer, sync_every=settings["sync_every"],
                             pin_memory=False, fragment_sync_delay=settings["delay"]).__enter__()

    def step(self):
        self.step_number += 1
        within = (self.step_number - 1) % self.steps + 1
        sends = self.fragments[self.manager.current_step() % len(self.fragments)] if within == self.send_at else None
        if sends is not None:
            for parameter in sends.parameters():
                parameter.grad = self.gradient
        self.inner.step()
        if sends is not None and within != self.steps:
            for parameter in sends.parameters():
                parameter.grad = None
        self.done = self.manager.current_step()  # rounds that all agreed on


def measure(peer, settings):
    """Seconds of each fragment that is timed, and of those the seconds of computing."""
    rounds, computing = [], 0.0
    for fragment in range(settings["first"] + settings["fragments_timed"]):
        if fragment == settings["first"]:
            print("begun", flush=True)
        begin, computing_here = time.perf_counter(), 0.0
        for _ in range(peer.steps):
            step = time.perf_counter()
            if settings["step_s"] > 0:
                time.sleep(settings["step_s"])
            computing_here += time.perf_counter() - step
            peer.step()
        if fragment >= settings["first"]:
            rounds.append(time.perf_counter() - begin)
            computing += computing_here
    expected = settings["first"] + settings["fragments_timed"]
    if peer.done != expected:
        raise SystemExit(f"error: expected {expected} rounds, {peer.done} were agreed on")
    return {"rounds_s": rounds, "compute_s": computing, "wall_s": sum(rounds)}


def serve_lighthouse(settings):
    from torchft._torchft import LighthouseServer

    server = LighthouseServer(bind=f"{settings['address']}:0", min_replicas=settings["world"], join_timeout_ms=1000,
                              quorum_tick_ms=10)
    print(f"http://{settings['address']}:{server.address().rpartition(':')[2]}", flush=True)
    while True:
        time.sleep(60)


def main():
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    socket.gethostname = lambda: settings["address"]  # torchft's rendezvous: namespaces share the machine's name
    if settings["kind"] == "lighthouse":
        serve_lighthouse(settings)
    count = settings["fragments"]
    fragments = [Fragment(settings["tensors"] // count, settings["values"]) for _ in range(count)]
    peer = {"torchft": TorchFt, "gloo": Gloo}[settings["kind"]](settings, fragments)
    print(json.dumps(measure(peer, settings)), flush=True)
    time.sleep(1)  # the others may still read
    os._exit(0)  # threads of torchft do not end


if __name__ == "__main__":
    main()
