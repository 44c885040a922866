"""One rank of a site of two that is used wrongly.

    wrong_ranks.py CASE COORDINATOR RENDEZVOUS RANK

Ranks train without a collective of their own, so that what they wait for is each other's calls of the library alone.
Prints the error's type and sentence, or "no error".
"""

import os
import sys

import torch
from torch import distributed, nn

import causeway.torch as causeway

TIMEOUT_S = 3
# Case: the first part of the sentence that both ranks say.
CASES = {
    "no_process_group": "ranks of the site: expected a process group of the 2 ranks that WORLD_SIZE says, got none",
    "world_of_one": "ranks of the site: expected a process group of the 2 ranks that WORLD_SIZE says, got 1",
    "another_group": "process_group: expected one that this process is a rank of, got another's",
    "another_site": "site: expected eu-0 as on rank 0, got eu-1 on rank 1",
    "another_dtype": "model: weight: dtype: expected float32 as on rank 0, got bfloat16 on rank 1",
    "frozen_on_one": "model: weight: frozen: expected None as on rank 0, got True on rank 1",
    "state_on_rank_0": "rank 1 of 2 (HOST) is in after_step of step 3, while rank 0 of 2 (HOST) is in state_dict",
    "anchor_on_rank_0": "rank 1 of 2 (HOST) is in after_step of step 3, while rank 0 of 2 (HOST) is in anchor_parameters",
    "export_on_rank_1": "rank 1 of 2 (HOST) is in anchor_parameters, while rank 0 of 2 (HOST) is in after_step of step 3",
    "another_order": "rank 1 of 2 (HOST) is in anchor_parameters, while rank 0 of 2 (HOST) is in state_dict",
    "fewer_steps": "rank 1 of 2 (HOST) is in drain, while rank 0 of 2 (HOST) is in after_step of step 3",
    "error_on_rank_1": "ValueError: this batch cannot be read",
    "ends_in_silence": "rank 1 of 2 (HOST) ended",
    "sleeps_on_rank_1": "rank 1 of 2 (HOST) is in training for",
}


def group_of(case, rendezvous, rank):
    if case == "no_process_group":
        return None
    world = 1 if case == "world_of_one" else 2
    distributed.init_process_group("gloo", init_method=f"file://{rendezvous}{rank if world == 1 else ''}",
                                   rank=rank if world == 2 else 0, world_size=world)
    if case == "another_group":
        groups = [distributed.new_group([0]), distributed.new_group([1])]
        return groups[1 - rank]
    return None


def at_step_3(case, rank, diloco):
    if case == "state_on_rank_0" and rank == 0:
        diloco.state_dict()
    elif case == "anchor_on_rank_0" and rank == 0:
        with diloco.anchor_parameters():
            pass
    elif case == "export_on_rank_1" and rank == 1:
        diloco.export("/nowhere")
    elif case == "another_order":
        for call in (diloco.state_dict, diloco._site.read_anchor)[::1 - 2 * rank]:
            call()
    elif case == "error_on_rank_1" and rank == 1:
        raise ValueError("this batch cannot be read")
    elif case == "ends_in_silence" and rank == 1:
        os._exit(1)  # as a program does that catches what it should not
    elif case == "sleeps_on_rank_1" and rank == 1:
        import time
        time.sleep(3 * TIMEOUT_S)


def main(case, coordinator, rendezvous, rank):
    os.environ["WORLD_SIZE"] = "2"
    rank = int(rank)
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    if case == "another_dtype" and rank == 1:
        model = model.bfloat16()
    if case == "frozen_on_one" and rank == 1:
        model.weight.requires_grad_(False)
    site = f"eu-{rank}" if case == "another_site" else case
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    with causeway.DiLoCo(model, optimizer, coordinator=coordinator, site=site, rank_timeout_s=TIMEOUT_S,
                         process_group=group_of(case, rendezvous, rank)) as diloco:
        while diloco.step < 6:
            if diloco.step == 2:
                at_step_3(case, rank, diloco)
                if case == "fewer_steps" and rank == 1:
                    break
            model(torch.ones(2, 4, dtype=model.weight.dtype)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
        print("no error")
    except Exception as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(getattr(error, "code", 1))
