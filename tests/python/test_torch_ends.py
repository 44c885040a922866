"""Ends and beginnings of scripts: signals, forks, launchers, cells that run twice, epochs, reports, exports."""

import importlib.util
import multiprocessing
import os
import pathlib
import signal
import tempfile
import unittest
import unittest.mock

import torch
from torch import nn

import causeway.torch as causeway
from causeway.errors import ConfigError, FailedError
from causeway.torch import _anchor, _world
from causeway.torch._framework import FrameworkSite
from replay import ReplayTest
from scripts import Net, sgd, train
from torch_site import TOKENS, FakeSiteTest, Tiny


class EndTest(FakeSiteTest):
    def test_a_handler_of_sigterm_that_the_script_sets_inside_with_stays(self):
        self.addCleanup(signal.signal, signal.SIGTERM, signal.getsignal(signal.SIGTERM))
        with self.diloco(optimizer=self.sgd()):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.assertEqual(signal.SIG_IGN, signal.getsignal(signal.SIGTERM))
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with self.diloco(optimizer=self.sgd()) as diloco:
            os.kill(os.getpid(), signal.SIGTERM)
            self.assertIn("site_stop", self.fake.calls)
        self.assertEqual(signal.SIG_DFL, signal.getsignal(signal.SIGTERM))
        del diloco

    def test_leaving_inside_with_is_no_error_at_its_end(self):
        with self.diloco(optimizer=self.sgd()) as diloco:
            diloco.leave()
        with self.diloco(optimizer=self.sgd()) as diloco:
            diloco.close()

    def test_a_second_report_of_a_step_drops_nothing_of_the_first(self):
        optimizer = self.sgd()
        with self.diloco(optimizer=optimizer) as diloco:
            self.model.loss(TOKENS).backward()
            optimizer.step()
            diloco.report(loss=2.5)
            diloco.report(tokens=6)
        self.assertEqual((2.5, 6), (self.fake.report.loss, self.fake.report.tokens))

    def test_each_epoch_of_the_loop_has_an_order_of_its_own(self):
        data = list(range(32))
        sampler = torch.utils.data.DistributedSampler(data, 2, 0, shuffle=True)
        loader = torch.utils.data.DataLoader(data, batch_size=4, sampler=sampler)
        self.fake.config = self.fake.config | {"run": {"steps": 8}}
        optimizer, drawn = self.sgd(), []
        with self.diloco(optimizer=optimizer) as diloco:
            for batch in diloco.loop(loader):
                drawn.append(batch.tolist())
                self.model.loss(TOKENS).backward()
                optimizer.step()
        self.assertEqual(8, len(drawn))
        self.assertNotEqual(drawn[:4], drawn[4:])

    def test_a_model_with_a_named_parameters_of_its_own_takes_part(self):
        class Own(Tiny):
            def named_parameters(self, prefix="", recurse=True):
                return super().named_parameters(prefix, recurse)

            def parameters(self, recurse=True):
                return (parameter for _, parameter in self.named_parameters())
        model = Own()
        with self.diloco(model, torch.optim.SGD(model.parameters(), lr=0.1)):
            self.assertIn("head.weight", self.listed())

    def test_a_cell_that_runs_twice_is_told_to_close_the_one_before(self):
        first = self.diloco(optimizer=self.sgd())
        first.join()
        with self.assertRaisesRegex(FailedError, "close the one before"):
            self.diloco(optimizer=self.sgd()).join()
        first.close()
        self.diloco(optimizer=self.sgd()).join()

    def test_one_of_several_processes_without_a_group_is_told_of_it(self):
        for names, said in (({"SLURM_NTASKS": "2"}, 1), ({"WORLD_SIZE": "4", "SLURM_NTASKS": "1"}, 1), ({"WORLD_SIZE": "1"}, 0)):
            with unittest.mock.patch.dict(os.environ, names), self.assertLogs("causeway", "WARNING") as logged:
                _world.LOGGER.warning("begins")
                _world.warn_of_processes()
            self.assertEqual(said, sum("init_process_group before DiLoCo" in line for line in logged.output))

    def test_an_export_without_any_tensors_is_an_error(self):
        class Empty(nn.Module):
            def save_pretrained(self, folder):
                pathlib.Path(folder, "adapter_model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
        ranks = unittest.mock.Mock(world=1, leads=True)
        with tempfile.TemporaryDirectory() as folder, self.assertRaisesRegex(ConfigError, "export: expected tensors of the model"):
            _anchor.export(Empty(), folder, None, ranks, None)

    def test_a_framework_that_ends_before_the_run_does_says_so(self):
        self.fake.config = self.fake.config | {"run": {"steps": 12}}
        optimizer, site = self.sgd(), FrameworkSite("hub:1", "eu", {})
        site.begin(self.model, optimizer, (), None)
        for _ in range(10):
            self.model.loss(TOKENS).backward()
            optimizer.step()
        with self.assertLogs("causeway", "WARNING") as logged:
            site.end()
        self.assertIn("the trainer has ended after step 10, the run has 12: this site leaves early", "\n".join(logged.output))


def _joins(coordinator, results):
    try:
        causeway.DiLoCo(nn.Linear(4, 3), None, coordinator=coordinator, site="child", connect_timeout_s=5)
        results.put("opened")
    except Exception as error:
        results.put(f"{type(error).__name__}: {error}")


class ForkTest(ReplayTest):
    def test_a_fork_of_a_process_that_has_talked_to_a_coordinator_is_refused_and_a_spawned_one_takes_part(self):
        self.run = self.new_run(self.config(sites=1))
        self.run.start_coordinator()
        model = Net()
        causeway.DiLoCo(model, sgd(model.parameters()), coordinator=self.run.grpc, site="parent").close()
        for method, expected in (("fork", r"FailedError: expected a process of its own .*spawn"), ("spawn", "opened|RefusedError|ConfigError")):
            context = multiprocessing.get_context(method)
            results = context.Queue()
            child = context.Process(target=_joins, args=(self.run.grpc, results))
            child.start()
            self.assertRegex(results.get(timeout=60), expected)
            child.join(60)

    def test_post_local_sgd_is_a_wrapper(self):
        from torch.distributed.algorithms.model_averaging.averagers import ModelAverager
        from torch.distributed.optim import PostLocalSGDOptimizer

        class Nothing(ModelAverager):
            def __init__(self):
                self.step = 0

            def average_parameters(self, params):
                self.step += 1

        def script(site):
            model = site.model(Net)
            train(site, model, PostLocalSGDOptimizer(sgd(model.parameters()), Nothing()))
        self.check(script)


@unittest.skipUnless(importlib.util.find_spec("lightning"), "lightning is not installed")
class EpochTest(FakeSiteTest):
    """Lightning's schedulers go by epochs unless a script says otherwise."""

    def rate(self, entry, interval, frequency, batches):
        import lightning

        from causeway.lightning import CausewayCallback
        rates = []

        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.tiny = Tiny()

            def configure_optimizers(self):
                optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
                scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
                return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": interval, "frequency": frequency}}

            def training_step(self, batch):
                rates.append(self.optimizers().param_groups[0]["lr"])
                return self.tiny.loss(TOKENS)
        self.fake.config = self.fake.config | {"run": {"steps": entry + 1}}
        self.fake.next_step = entry
        callback = CausewayCallback("hub:1", site="eu")
        callback.on_train_batch_start, begins = lambda *_: None, callback.on_train_batch_start

        def once(*arguments):
            self.fake.next_step = None
            begins(*arguments)
        callback.on_train_batch_start = once
        trainer = lightning.Trainer(max_epochs=-1, accelerator="cpu", callbacks=[callback], logger=False, enable_checkpointing=False,
                                    enable_progress_bar=False, enable_model_summary=False)
        trainer.fit(Module(), batches)
        return rates[0]

    def test_a_late_site_has_the_rate_of_its_peers(self):
        self.assertEqual(0.5**3, self.rate(12, "epoch", 1, [0] * 4))
        self.assertEqual(0.5**1, self.rate(12, "epoch", 2, [0] * 4))
        self.assertEqual(0.5**4, self.rate(12, "step", 3, [0] * 4))

    def test_epochs_of_unknown_length_are_said(self):
        class Endless(torch.utils.data.IterableDataset):
            def __iter__(self):
                while True:
                    yield 0
        with self.assertLogs("causeway", "WARNING") as logged:
            self.assertEqual(1.0, self.rate(12, "epoch", 1, torch.utils.data.DataLoader(Endless())))
        self.assertIn("goes by epochs of unknown length", "\n".join(logged.output))


if __name__ == "__main__":
    unittest.main()
