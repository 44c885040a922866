"""causeway.torch beside what else a training process has: several ranks, checkpoints, DataLoader workers, other
libraries. And the examples, as printed."""

import html
import importlib.util
import itertools
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
import warnings

import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import causeway.torch as causeway
from harness import DONE, EndToEndTest, eventually, synthetic
from test_mixed import needs_library
from test_torch_external import external_config
from torch_site import READ, TOKENS, WRITE, FakeSiteTest

ROOT = pathlib.Path(__file__).parents[2]
VERSION = tuple(map(int, torch.__version__.split(".")[:2]))

RANK = """
import sys, torch
import causeway.torch as causeway
coordinator = sys.argv[1]
torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
with causeway.DiLoCo(model, torch.optim.SGD(model.parameters(), lr=0.1), coordinator=coordinator, site="eu") as diloco:
    print("joined at", diloco.step)
torch.distributed.destroy_process_group()
"""


TWO_SITES = """
import sys, torch
import causeway.torch as causeway
distributed = torch.distributed
distributed.init_process_group("gloo")
groups = {"b": distributed.new_group([0]), "a": distributed.new_group([1, 2])}
site = "b" if distributed.get_rank() == 0 else "a"
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with causeway.DiLoCo(model, optimizer, coordinator=sys.argv[1], site=site, process_group=groups[site]) as diloco:
    while not diloco.over:
        model(torch.ones(2)).sum().backward()
        for parameter in model.parameters():
            distributed.all_reduce(parameter.grad, group=groups[site])
        optimizer.step()
        optimizer.zero_grad()
print(site, diloco.step)
distributed.destroy_process_group()
"""


@needs_library
class LaunchedTest(EndToEndTest):
    """Ranks that torchrun starts."""

    def test_the_ranks_of_torchrun_join_as_one_site(self):
        script = self.folder / "rank.py"
        script.write_text(RANK)
        for ranks in (1, 2):
            run = self.new_run(external_config(run_id=f"ranks-{ranks}"))
            run.start_coordinator()
            ended = run.program("ranks", sys.executable, "-m", "torch.distributed.run", "--standalone",
                                f"--nproc-per-node={ranks}", script, run.grpc)
            self.assertEqual(ended.wait(120), DONE, ended.log()[-3000:])
            self.assertEqual(ended.output().splitlines(), ranks * ["joined at 0"])
            run.stop_coordinator()
            self.assertEqual(len(re.findall("site eu: .*join", run.coordinator.log())), 1, run.coordinator.log())


    def test_one_launcher_starts_two_sites_by_their_process_groups(self):
        script = self.folder / "rank.py"
        script.write_text(TWO_SITES)
        run = self.new_run(external_config(membership={"min_sites": 2}))
        run.start_coordinator()
        ended = run.program("ranks", sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3",
                            script, run.grpc)
        self.assertEqual(ended.wait(120), DONE, ended.log()[-3000:])
        self.assertEqual(sorted(ended.output().splitlines()), ["a 30", "a 30", "b 30"])
        run.await_done()


class DistributedCheckpointTest(FakeSiteTest):
    def test_a_site_is_saved_and_loaded_beside_its_model(self):
        optimizer = self.sgd()
        with tempfile.TemporaryDirectory() as folder:
            with self.diloco(optimizer=optimizer) as diloco:
                self.model.loss(TOKENS).backward()
                optimizer.step()
                dcp.save({"model": self.model, "causeway": diloco}, checkpoint_id=folder)
            saved = [p.detach().clone() for p in self.model.parameters()]
            for parameter in self.model.parameters():
                nn.init.zeros_(parameter)
            fresh = self.diloco(optimizer=optimizer)
            dcp.load({"model": self.model, "causeway": fresh}, checkpoint_id=folder)
        self.assertEqual(self.fake.restored, self.fake.parts)
        for expected, parameter in zip(saved, self.model.parameters()):
            self.assertTrue(torch.equal(expected, parameter))


class ShardedTest(FakeSiteTest):
    """A model that fully_shard has sharded on one rank."""

    def setUp(self):
        super().setUp()
        folder = self.enterContext(tempfile.TemporaryDirectory())
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        self.addCleanup(torch.distributed.destroy_process_group)
        self.names = [name for name, _ in self.model.named_parameters()]
        self.fully_shard(self.model, mesh=torch.distributed.device_mesh.init_device_mesh("cpu", (1,)))

    def fully_shard(self, *arguments, **settings):
        try:
            from torch.distributed.fsdp import fully_shard
        except ImportError:  # before 2.6
            from torch.distributed._composable.fsdp import fully_shard
        fully_shard(*arguments, **settings)

    @unittest.skipIf(VERSION < (2, 6), "refused")
    def test_it_is_synced_by_its_names(self):
        optimizer = self.sgd()
        with self.diloco(optimizer=optimizer) as diloco:
            self.assertEqual([name for name in self.listed() if name != "head.weight"], self.names)
            if VERSION > (2, 6):  # whose fully_shard computes on GPUs alone
                nn.functional.cross_entropy(self.model(TOKENS).flatten(0, 1), TOKENS.flatten()).backward()
            self.after_step_gives((WRITE, "norm.bias", [1.0, 2, 3, 4]), (READ, "norm.bias", 4))
            optimizer.step()
            self.assertEqual(diloco.step, 1)
        self.assertEqual(self.model.norm.bias.to_local().tolist(), [1, 2, 3, 4])
        self.assertEqual(self.fake.done[1][3], [1, 2, 3, 4])

    def test_a_pytorch_that_is_too_old_for_it_is_refused(self):
        version = torch.__version__ if VERSION < (2, 6) else "2.5.1+cpu"
        with unittest.mock.patch.object(torch, "__version__", version), self.assertRaisesRegex(
                causeway.ConfigError, "torch, for sharded parameters: expected 2.6 or newer, got 2.[45]"):
            self.diloco(optimizer=self.sgd())


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 50

    def __getitem__(self, index):
        return torch.full((10,), float(index % 5)), os.getpid()


@needs_library
class LoaderTest(EndToEndTest):
    def test_workers_of_a_loader_may_be_forked_before_and_after_joining(self):
        run = self.new_run(synthetic({"a": 0}, [[10, 10], [10]], run={"steps": 500}))
        run.start_coordinator()
        model = nn.ParameterDict({"t0": nn.Parameter(torch.eye(10)), "t1": nn.Parameter(torch.zeros(10))})
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        before = iter(torch.utils.data.DataLoader(Rows(), 2, num_workers=4, persistent_workers=True))
        next(before)
        after = torch.utils.data.DataLoader(Rows(), 2, num_workers=4, multiprocessing_context="fork")
        pids = set()
        with causeway.DiLoCo(model, optimizer, coordinator=run.grpc, site="a") as diloco:
            for rows, workers in itertools.chain(before, diloco.loop(after)):
                (rows @ model["t0"] + model["t1"]).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                pids.update(workers.tolist())
        self.assertEqual(diloco.step, 500)
        self.assertGreaterEqual(len(pids), 8)
        eventually(lambda: run.status()["state"] == "done", "the run is done")


@needs_library
class NeighboursTest(EndToEndTest):
    def test_other_libraries_may_be_imported_before_and_after(self):
        run = self.new_run(synthetic({"a": 0}, [[4]], run={"steps": 30}))
        run.start_coordinator()
        neighbours = [name for name in ("grpc", "google.protobuf.message", "transformers")
                      if importlib.util.find_spec(name.split(".")[0])]
        use = ("import numpy; s = causeway.Site({'t0': numpy.ones(4, 'f4')}, coordinator=sys.argv[1], site='a');"
               "s.join(); s.after_step(); s.leave()")
        grpc = "; g = __import__('grpc').insecure_channel(sys.argv[1]); g.close()" if "grpc" in neighbours else ""
        for first in range(len(neighbours) + 1):
            order = [*neighbours[:first], "causeway.torch", *neighbours[first:]]
            script = f"import sys, {', '.join(order)}{grpc}; {use}{grpc}"
            done = subprocess.run([sys.executable, "-c", script, run.grpc], capture_output=True, text=True, timeout=120)
            self.assertEqual(done.returncode, DONE, f"{order}: {done.stderr[-2000:]}")


TWINS = {  # alone: (as a site, lines that differ at most)
    "plain_alone.py": ("plain.py", 8),
    "trainer_alone.py": ("trainer_site.py", 3),
    "lightning_alone.py": ("lightning_site.py", 3),
    "ddp_alone.py": ("ddp_site.py", 7),
    "fsdp2_alone.py": ("fsdp2_site.py", 4),
    "titan_alone.py": ("titan_site.py", 5),
}


MINE = """
import sys
from transformers import Trainer, TrainingArguments
from small_qwen import new_model, rows, tokenizer
data = [{"input_ids": row, "labels": row} for row in rows(sys.argv[1])]
arguments = TrainingArguments(sys.argv[2], max_steps=60, per_device_train_batch_size=8, learning_rate=3e-3, logging_steps=20,
                              save_strategy="no", report_to="none")
trainer = Trainer(new_model(), arguments, train_dataset=data, processing_class=tokenizer())
trainer.train()
"""


class ExamplesTest(EndToEndTest):
    @needs_library
    @unittest.skipUnless(importlib.util.find_spec("accelerate"), "accelerate is not installed")
    def test_a_trainer_script_becomes_a_site_by_two_lines_and_its_model_is_exported_after_training(self):
        own = MINE.replace("import sys\n", "import sys\nfrom causeway.transformers import CausewayCallback\n").replace(
            "tokenizer())", "tokenizer(), callbacks=[callback := CausewayCallback()])")
        script = self.folder / "mine.py"
        script.write_text(own + "callback.export(sys.argv[2])\n")
        environment = {"PYTHONPATH": f"{ROOT / 'python'}:{ROOT / 'examples'}"}
        tried = self.program(self.folder, "try", sys.executable, "-m", "causeway.try", "--steps=60", f"--out={self.folder}/out", "--",
                             str(script), str(ROOT / "docs" / "architecture.md"), f"{self.folder}/{{site}}", environment=environment)
        self.assertEqual(tried.wait(120), DONE, tried.log())
        for site in ("eu", "us"):
            self.assertEqual(len(re.findall(rf" {site} │ .*'loss'.*causeway/rounds", tried.output() + tried.log())), 3)
        self.assertNotIn("causeway/up_bytes", tried.output() + tried.log())
        import transformers
        models = [transformers.AutoModelForCausalLM.from_pretrained(self.folder / each) for each in ("eu", "us", "out/model")]
        for (name, first), *others in zip(models[0].state_dict().items(), *(model.state_dict().values() for model in models[1:])):
            for other in others:
                self.assertTrue(torch.equal(first, other), name)
        for folder in ("eu", "out/model"):
            self.assertEqual(transformers.AutoTokenizer.from_pretrained(self.folder / folder)("Ab\n")["input_ids"], [65, 98, 10])

    def test_at_most_a_few_lines_differ_beside_indentation(self):
        def code(name):
            text = (ROOT / "examples" / name).read_text()
            return [line.strip() for line in text.split('"""', 2)[2].splitlines() if line.strip()]
        for name, (twin, most) in TWINS.items():
            with self.subTest(twin):
                alone, site = code(name), code(twin)
                added = [line for line in site if line not in alone]
                removed = [line for line in alone if line not in site]
                self.assertLessEqual(len(added), most, added)
                self.assertLessEqual(len(removed), 2, removed)
                self.assertEqual([line for line in site if line in alone], [line for line in alone if line in site])

    def check_example(self, *command):
        """As printed in examples/README.md, where `python3` and `torchrun` are of this environment."""
        run = self.new_run({})
        run.config_path.write_text((ROOT / "examples" / "run.yaml").read_text())
        checked = run.program("check", "causewayctl", "config-check", str(run.config_path))
        if checked.wait() != DONE and "external" in checked.log():
            self.skipTest("these programs know no model.kind external yet")
        run.start_coordinator()
        for site, text in (("eu", "architecture.md"), ("us", "operating.md")):
            run.workers[site] = run.program(f"example-{site}", sys.executable, *command, ROOT / "docs" / text,
                                            environment={"CAUSEWAY_COORDINATOR": run.grpc, "CAUSEWAY_SITE": site})
        run.await_done(240)
        for worker in run.workers.values():
            losses = [float(loss) for loss in re.findall(r"\bloss(?:':)? '?([\d.]+)", worker.output())]
            self.assertEqual(len(losses), 10)
            self.assertLess(min(losses[5:]), losses[0])
        return run

    def exported(self, run):
        """The folder of causewayctl export, and its report's snippets, which load it."""
        run.export()
        report = run.folder / "report.html"
        run.control("report", f"--out={report}", f"--model={run.folder / 'export'}")
        return run.folder / "export", [html.unescape(each) for each in re.findall("<pre>(from .*?)</pre>", report.read_text(), re.S)]

    @needs_library
    @unittest.skipUnless(importlib.util.find_spec("transformers"), "transformers is not installed")
    def test_the_plain_example_runs_and_its_export_loads(self):
        run = self.check_example(ROOT / "examples" / "plain.py")
        folder, (into_own, by_transformers) = self.exported(run)
        sys.path.insert(0, str(ROOT / "examples"))
        self.addCleanup(sys.path.remove, str(ROOT / "examples"))
        from small_qwen import new_model
        own, loaded = {"model": new_model()}, {}
        exec(into_own, own)
        exec(by_transformers, loaded)
        self.assertEqual(type(loaded["model"]).__name__, "Qwen2ForCausalLM")
        for (name, first), second in zip(own["model"].state_dict().items(), loaded["model"].state_dict().values()):
            self.assertTrue(torch.equal(first, second), name)
        import transformers
        write = transformers.pipeline("text-generation", model=str(folder))
        written = write("The coordinator ", max_new_tokens=20)[0]["generated_text"]
        self.assertTrue(written.startswith("The coordinator ") and len(written) > len("The coordinator "), written)

    @needs_library
    @unittest.skipUnless(importlib.util.find_spec("accelerate"), "accelerate is not installed")
    @unittest.skipUnless(importlib.util.find_spec("peft"), "peft is not installed")
    def test_the_trainer_example_runs_and_peft_loads_its_adapters(self):
        run = self.check_example(ROOT / "examples" / "trainer_site.py")
        out = run.folder / "export"
        exporter = run.program("export", "causewayctl", "export", f"--coordinator={run.grpc}", f"--out={out}")
        self.assertEqual(exporter.wait(), DONE, exporter.log())
        sys.path.insert(0, str(ROOT / "examples"))
        self.addCleanup(sys.path.remove, str(ROOT / "examples"))
        import peft
        from small_qwen import new_model
        with warnings.catch_warnings(record=True) as warned:
            model = peft.PeftModel.from_pretrained(new_model(), out)
        self.assertEqual([str(each.message) for each in warned if "keys" in str(each.message)], [])
        trained = [tensor for name, tensor in model.state_dict().items() if "lora_B" in name]
        self.assertTrue(trained and all(tensor.abs().sum() > 0 for tensor in trained))

    @needs_library
    @unittest.skipUnless(importlib.util.find_spec("lightning"), "lightning is not installed")
    @unittest.skipUnless(importlib.util.find_spec("transformers"), "transformers is not installed")
    def test_the_lightning_example_runs(self):
        self.check_example(ROOT / "examples" / "lightning_site.py")

    @needs_library
    @unittest.skipUnless(VERSION > (2, 6), "fully_shard computes on GPUs alone")
    @unittest.skipUnless(importlib.util.find_spec("transformers"), "transformers is not installed")
    def test_the_examples_of_two_ranks_run(self):
        for name in ("ddp_site.py", "fsdp2_site.py"):
            self.check_example("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2",
                               ROOT / "examples" / name)


if __name__ == "__main__":
    unittest.main()
