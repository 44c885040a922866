"""Schedules of `causewayctl plan pipeline` in PyTorch's own pipeline runtime: the gradients of the serial model."""

import pathlib
import subprocess
import tempfile
import unittest

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.pipelining.schedules import ScheduleInterleaved1F1B, _PipelineScheduleRuntime

from harness import BIN_DIR

RANKS, MICRO_BATCHES, WIDTH, ROWS = 2, 4, 8, 8


def layers(stages):
    torch.manual_seed(1)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(stages)]


def data():
    generator = torch.Generator().manual_seed(2)
    return torch.randn(ROWS, WIDTH, generator=generator), torch.randn(ROWS, WIDTH, generator=generator)


def loss_of(output, target):
    return nn.functional.mse_loss(output, target)


def serial_gradients(stages):
    model = nn.Sequential(*layers(stages))
    inputs, targets = data()
    for rows, expected in zip(inputs.chunk(MICRO_BATCHES), targets.chunk(MICRO_BATCHES)):
        (loss_of(model(rows), expected) / MICRO_BATCHES).backward()
    return [[p.grad for p in stage.parameters()] for stage in model]


def train(rank, folder, name, csv, stage_ranks):
    """One rank: its stages' gradients, by the schedule of the file or, without one, by PyTorch's own."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous-{name}", rank=rank, world_size=RANKS)
    everything = layers(len(stage_ranks))
    mine = [stage for stage, owner in enumerate(stage_ranks) if owner == rank]
    stages = [PipelineStage(everything[stage], stage, len(stage_ranks), torch.device("cpu")) for stage in mine]
    if csv:
        schedule = _PipelineScheduleRuntime(stages, MICRO_BATCHES, loss_fn=loss_of)
        schedule._load_csv(csv)
    elif len(mine) == 1:
        schedule = ScheduleGPipe(stages[0], MICRO_BATCHES, loss_fn=loss_of)
    else:
        schedule = ScheduleInterleaved1F1B(stages, MICRO_BATCHES, loss_fn=loss_of)
    inputs, targets = data()
    last = stage_ranks[-1] == rank
    schedule.step(*([inputs] if stage_ranks[0] == rank else []), **({"target": targets} if last else {}))
    torch.save({stage: [p.grad for p in everything[stage].parameters()] for stage in mine}, f"{folder}/{name}-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


class PipelineTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def export(self, name, *flags, devices=RANKS):
        path = self.folder / f"{name}.csv"
        done = subprocess.run([f"{BIN_DIR}/causewayctl", "plan", "pipeline", f"--schedule={name}", f"--devices={devices}",
                               f"--micro_batches={MICRO_BATCHES}", f"--torch_csv={path}", *flags],
                              capture_output=True, text=True)
        return path, done

    def gradients(self, name, csv, stage_ranks):
        multiprocessing.start_processes(train, (str(self.folder), name, csv and str(csv), stage_ranks), nprocs=RANKS)
        found = {}
        for rank in range(RANKS):
            found |= torch.load(self.folder / f"{name}-{rank}.pt")
        return [found[stage] for stage in range(len(stage_ranks))]

    def assertAlike(self, got, expected, name):
        for ours, theirs in zip(got, expected, strict=True):
            for a, b in zip(ours, theirs, strict=True):
                torch.testing.assert_close(a, b, msg=lambda text: f"{name}: {text}")

    def test_every_schedule_of_one_copy_gives_the_gradients_of_the_serial_model_and_of_pytorchs_own(self):
        for name, stage_ranks in (("gpipe", [0, 1]), ("1f1b", [0, 1]), ("zb_h1", [0, 1]), ("interleaved", [0, 1, 0, 1]),
                                  ("zb_v", [0, 1, 1, 0])):
            with self.subTest(name):
                csv, done = self.export(name)
                self.assertEqual(0, done.returncode, done.stderr)
                got = self.gradients(name, csv, stage_ranks)
                self.assertAlike(got, serial_gradients(len(stage_ranks)), name)
                if name != "zb_v":  # PyTorch's own lays stages in a line
                    self.assertAlike(got, self.gradients(f"own-{name}", None, stage_ranks), name)

    def test_two_copies_are_refused(self):
        _, done = self.export("bitpipe")
        self.assertEqual(2, done.returncode)
        self.assertIn("expected one copy of the weights", done.stderr)


if __name__ == "__main__":
    unittest.main()
