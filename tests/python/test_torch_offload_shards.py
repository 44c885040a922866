"""causeway.OffloadedAdamW under fully_shard: the bits of the whole model, and checkpoints for any number of ranks."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch
from torch import nn

import causeway.torch as causeway
from causeway.errors import ConfigError

RANK = pathlib.Path(__file__).parent / "offload_ranks.py"
TIMEOUT_S = 240


class ShardsTest(unittest.TestCase):
    def ranks(self, world, folder, *arguments):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        started = [subprocess.Popen([sys.executable, RANK, str(rank), str(world), folder, *arguments], env=environment,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(world)]
        for rank, process in enumerate(started):
            out, errors = process.communicate(timeout=TIMEOUT_S)
            self.assertEqual(0, process.returncode, errors)
            self.assertEqual("equal", out.strip(), f"rank {rank} of {world}, {arguments}")

    def test_uneven_shards_have_the_bits_of_the_whole_model_and_any_world_goes_on_from_anothers_checkpoint(self):
        for saves, loads in ((3, 2), (2, 3)):
            with self.subTest(f"{saves} to {loads}"), tempfile.TemporaryDirectory() as folder:
                self.ranks(saves, folder, "save")
                self.ranks(loads, folder, "load")

    def test_a_whole_tensor_of_another_world_is_refused_by_name(self):
        model, narrow = nn.Linear(4, 4), nn.Linear(4, 2)
        optimizer, other = (causeway.OffloadedAdamW(network.parameters()) for network in (model, narrow))
        for network, of in ((model, optimizer), (narrow, other)):
            network(torch.ones(1, 4)).sum().backward()
            of.step()
        with self.assertRaisesRegex(ConfigError, r"state_dict: exp_avg: expected \(4, 4\) on this rank, got \(2, 4\): "
                                    "load another world's state by torch.distributed.checkpoint"):
            optimizer.load_state_dict(other.state_dict())


if __name__ == "__main__":
    unittest.main()
