"""DiLoCo with alone=True: the bits of a run of one site, through a kill and a resume, with ranks; and what it refuses."""

import logging
import os
import random
import sys
import tempfile
import unittest
from unittest import mock

import numpy
import torch
from torch import nn

import causeway.torch as causeway
import llama_runs
from causeway.errors import ConfigError, NonFiniteError, RestoreError
from harness import EndToEndTest
from test_mixed import needs_library


@needs_library
class RunTest(EndToEndTest):
    def setUp(self):
        self.text = self.folder / "text"
        self.text.write_text(" ".join(random.Random(1).choices(llama_runs.WORDS, k=2000)))
        self.made = 0

    def train(self, *flags, world=1, killed=False):
        """The values that the script has left; `killed`: none."""
        self.made += 1
        out, ranks = self.folder / f"out{self.made}", [f"--rendezvous={self.folder / f'meet{self.made}'}", f"--world={world}"]
        programs = [self.program(self.folder, f"script{self.made}.{rank}", sys.executable, llama_runs.HERE / "alone_site.py", self.text,
                                 out, *flags, *ranks, f"--rank={rank}") for rank in range(world)]
        codes = [program.wait(120) for program in programs]
        self.assertEqual([-9 if killed else 0] * world, codes)
        return None if killed else torch.load(out)

    def in_a_run(self, *flags, world=1):
        run = self.new_run({
            "run_id": "one", "run": {"steps": 100}, "model": {"kind": "external"},
            "sync": {"sync_every": 10, "num_fragments": 1, "fragment_sync_delay": 0, "fragment_update_alpha": 0},
            "outer": {"lr": 0.7, "momentum": 0.5}, "codec": {"up": "float32", "down": "float32"},
            "membership": {"min_sites": 1}})
        run.start_coordinator()
        try:
            return self.train(f"--coordinator={run.grpc}", *flags, world=world)
        finally:
            run.stop_coordinator()

    def check_same(self, expected, got):
        for part in ("theta", "w"):
            for name, value in expected[part].items():
                self.assertTrue(torch.equal(value, got[part][name]), f"{part}: {name}: other bits than in a run")
        self.assertEqual(expected["loss"], got["loss"])

    def test_a_hundred_steps_end_with_the_bits_of_a_run_of_one_site_and_so_do_a_kill_and_a_resume(self):
        expected = self.in_a_run()
        self.check_same(expected, self.train())
        for step in (57, 60):  # between two outer steps, and behind one
            with self.subTest(killed_at=step):
                save = f"--save={self.folder / f'saved{step}'}"
                self.train(save, f"--kill_at={step}", killed=True)
                self.check_same(expected, self.train(save))

    def test_low_precision_and_masters_have_a_runs_bits(self):
        for flags in (["--dtype=bfloat16"], ["--dtype=bfloat16", "--masters"]):
            with self.subTest(flags):
                self.check_same(self.in_a_run(*flags), self.train(*flags))

    def test_replicas_and_shards_have_a_runs_bits_and_resume(self):
        for kind in ("ddp", "fsdp"):
            with self.subTest(kind):
                expected = self.in_a_run(f"--kind={kind}", world=2)
                save = f"--save={self.folder / kind}"
                self.train(f"--kind={kind}", save, "--kill_at=57", world=2, killed=True)
                self.check_same(expected, self.train(f"--kind={kind}", save, world=2))


@needs_library
class ScriptTest(unittest.TestCase):
    """In this process."""

    def setUp(self):
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.batches = list(torch.randn(10, 8, 6))

    def diloco(self, **settings):
        return causeway.DiLoCo(self.model, self.optimizer, alone=True, **settings)

    def train(self, diloco, batches):
        for batch in batches:
            self.model(batch).pow(2).sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            diloco.report(tokens=len(batch))

    def theta(self):
        return torch.cat([parameter.detach().flatten() for parameter in self.model.parameters()])

    def test_without_steps_a_loop_ends_with_its_loader_and_with_steps_it_begins_again(self):
        with self.diloco(sync_every=4) as diloco:
            for epoch in range(3):
                self.train(diloco, diloco.loop(self.batches))
                self.assertEqual(10 * (epoch + 1), diloco.step)
                self.assertFalse(diloco.over)
            self.assertEqual(7, diloco.progress()["rounds"])
        with self.diloco(steps=25, sync_every=5) as diloco:
            self.train(diloco, diloco.loop(self.batches))
        self.assertEqual((25, 5), (diloco.step, diloco.progress()["rounds"]))

    def test_nobody_has_to_listen_whatever_the_environment_says(self):
        with mock.patch.dict(os.environ, {"CAUSEWAY_COORDINATOR": "127.0.0.1:1", "CAUSEWAY_SITE": "eu"}), \
                self.assertLogs("causeway", logging.INFO) as log, self.diloco(steps=3) as diloco:
            self.train(diloco, diloco.loop(self.batches))
        self.assertRegex("\n".join(log.output), "trains alone.*every 30 steps, outer_lr 0.7, outer_momentum 0.5")

    def test_the_anchor_is_in_an_export_and_the_end_is_its_own(self):
        with tempfile.TemporaryDirectory() as folder, self.diloco(sync_every=3) as diloco:
            self.train(diloco, self.batches[:4])
            own = self.theta()
            diloco.export(folder)
            self.assertTrue(torch.equal(own, self.theta()))
            self.assertFalse(torch.equal(own[:30], torch.load(f"{folder}/model.pt")["0.weight"].flatten()))

    def test_settings_of_a_run_are_refused_by_name(self):
        for settings, sentence in (({"coordinator": "hub:7077"}, "alone=True: coordinator: expected none.*hub:7077"),
                                   ({"tls_ca": "ca.pem"}, "alone=True: tls_ca"),
                                   ({"num_fragments": 4}, "alone=True: num_fragments: expected 1, got 4"),
                                   ({"fragment_update_alpha": 0.5}, "fragment_update_alpha: expected 0.0, got 0.5"),
                                   ({"sync_every": 0}, "sync_every: expected a whole number from 1 on, got 0"),
                                   ({"sync_every": 2.5}, "sync_every: expected a whole number"),
                                   ({"outer_momentum": 1.0}, "outer_momentum: expected a number from 0 on below 1, got 1.0"),
                                   ({"outer_lr": float("nan")}, "outer_lr: expected a number from 0 on, got nan"),
                                   ({"outer_learning_rate": 1}, "outer_learning_rate")):
            with self.subTest(**settings), self.assertRaisesRegex(ConfigError, sentence):
                self.diloco(**settings)
        with mock.patch.dict(os.environ, {"CAUSEWAY_TRY": "1"}), self.assertRaisesRegex(ConfigError, "causeway.try"):
            self.diloco()

    def test_a_value_that_is_not_finite_ends_it_and_nothing_has_moved(self):
        with self.assertRaisesRegex(NonFiniteError, r"0.weight: expected finite values, got nan at 7, after step 2") as caught:
            with self.diloco(sync_every=2) as diloco:
                self.train(diloco, self.batches[:2])  # what the script does behind its step is a part of it
                self.model[0].weight.data.view(-1)[7] = float("nan")
                diloco.next_batch()
        self.assertEqual(("0.weight", 7), (caught.exception.tensor, caught.exception.index))

    def test_a_state_belongs_to_its_model_and_its_parameters(self):
        with self.diloco(sync_every=2) as diloco:
            self.train(diloco, self.batches[:5])
            state = diloco.state_dict()
            own = self.theta()
            with self.assertRaises(RestoreError):
                diloco.load_state_dict(state)
        other = self.diloco()
        other.load_state_dict(state)
        self.model[2].bias.data[0] += 1
        with self.assertRaisesRegex(RestoreError, "expected θ of that step, got other values"):
            other.join()
        nn.utils.vector_to_parameters(own, self.model.parameters())
        again = self.diloco(sync_every=7, outer_lr=0.5)  # what a script says counts
        again.load_state_dict(state)
        with again:
            self.assertEqual(5, again.step)
        bigger = nn.Sequential(nn.Linear(6, 7), nn.Linear(7, 3))
        wrong = causeway.DiLoCo(bigger, torch.optim.SGD(bigger.parameters()), alone=True)
        with self.assertRaisesRegex(RestoreError, "of 4 tensors as the model's, got 0.weight of 30 values"):
            wrong.load_state_dict(state)
        wrong.close()

    def test_no_word_falls_about_sites_that_are_not_there(self):
        self.model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
        self.model[0].bias.requires_grad_(False)
        self.optimizer = torch.optim.SGD([p for p in self.model.parameters() if p.requires_grad], lr=1e-3)
        with self.assertNoLogs("causeway", logging.WARNING), self.diloco(sync_every=numpy.int64(2)) as diloco:
            for batch in self.batches:
                self.train(diloco, [batch])
                self.model[0].bias.add_(1)
        self.assertEqual(5, diloco.progress()["rounds"])
