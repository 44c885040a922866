"""Runs of a small Llama for tests: sites that train it with PyTorch (llama_site.py), native ones, and both in one run."""

import json
import math
import pathlib
import random
import signal
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from harness import DONE, DigestBook, EndToEndTest, eventually, read_safetensors
from test_mixed import needs_library

HERE = pathlib.Path(__file__).parent
WORDS = ["the", "causeway", "joins", "two", "islands", "at", "low", "tide", "and", "no", "ship", "waits\n"]
SITES = ("a", "b")
UNIT = 4096  # values, of docs/wire_format.md


def llama_config(codec, **sections):
    config = {
        "run_id": "torch",
        "run": {"steps": 200},
        "model": {"kind": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
                  "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 256, "max_position_embeddings": 32},
        "inner": {"optimizer": "adamw", "lr": 1e-3, "warmup_steps": 20, "schedule": "cosine", "weight_decay": 0.1,
                  "beta1": 0.9, "beta2": 0.99, "clip": 1.0, "batch_size": 4},
        "sync": {"sync_every": 10, "num_fragments": 3, "fragment_sync_delay": 2, "fragment_update_alpha": 0.5},
        "codec": {"up": codec, "down": codec},
        "membership": {"min_sites": 2},
        "data": {"mode": "shared"},
        "eval": {"every_rounds": 0},
        "checkpoint": {"every_rounds": 0},
    }
    return config | sections


@needs_library
class LlamaTest(EndToEndTest):
    def setUp(self):
        self.text = self.folder / "text"
        self.text.write_text(" ".join(random.Random(1).choices(WORDS, k=6000)))
        self.base = self.folder / "base"
        self.make_base(3)

    def make_base(self, seed, model=None):
        """The model that runs start from; `model`: another config's section."""
        torch.manual_seed(seed)
        model = {"tie_word_embeddings": True} | (model or llama_config("float32")["model"])
        LlamaForCausalLM(LlamaConfig(rope_theta=10000.0, rms_norm_eps=1e-5, **{
            key: value for key, value in model.items() if key != "kind"})).save_pretrained(self.base)

    # ---- Running ----

    def start_run(self, config):
        config["model"] = config["model"] | {"init_from": str(self.base)}
        run = self.new_run(config)
        run.config = config
        run.torch_sites = set()
        run.training = {}  # {(site, step): loss}: of native sites where a status showed it
        run.start_coordinator()
        return run

    def start_torch(self, run, site, *flags, script="llama_site.py", label=None, **options):
        """`script`: takes the arguments of llama_site.py."""
        inner = json.dumps(run.config["inner"])
        run.workers[site] = self.program(run.folder, label or f"torch-{site}", sys.executable, HERE / script, run.grpc,
                                         site, self.text, f"--model={self.base}", f"--inner={inner}", *flags, **options)
        run.torch_sites.add(site)
        return run.workers[site]

    def steps_of(self, worker):
        """{step: what the script has printed of it}"""
        return {line["step"]: line for line in worker.lines() if "step" in line}

    def steps_of_killed(self, worker):
        """As steps_of, of a script that kills itself."""
        self.assertEqual(worker.wait(120), -signal.SIGKILL, worker.log()[-3000:])
        return self.steps_of(worker)

    def check_repeated(self, before, after, first, last):
        """Steps from `first` to `last` were taken twice, with the same loss, learning rate, …"""
        self.assertEqual(sorted(before.keys() & after.keys()), list(range(first, last + 1)))
        for step in range(first, last + 1):
            self.assertEqual(before[step], after[step], f"step {step}")

    def whole_run(self, config, *torch_sites, flags=()):
        """A run from its start to its end, and the loss of its model on held-out text."""
        run = self.start_run(config)
        for site in SITES:
            if site in torch_sites:
                self.start_torch(run, site, *flags)
            else:
                run.start_worker(site, f"--data={self.text}")
        self.finish(run)
        return run, self.evaluate(run, run.folder / "export")

    def evaluate(self, run, folder):
        """The loss of the model in the folder on held-out text."""
        evaluator = run.program("evaluate", "causeway-worker", f"--evaluate={folder}", f"--data={self.text}",
                                "--sample_bytes=0")
        self.assertEqual(evaluator.wait(), DONE, evaluator.log())
        return json.loads(evaluator.output())["eval_loss"]

    def finish(self, run):
        """Waits for the run's end and exports its model."""
        run.book = book = DigestBook()
        native = run.workers.keys() - run.torch_sites

        def note():
            for site in book.note_run(run)["sites"]:
                if site["name"] in native and site["loss"] is not None:
                    run.training[site["name"], site["step"]] = site["loss"]

        def over():
            note()
            return all(not worker.running() for worker in run.workers.values())
        eventually(over, "all sites are done", 240)
        for site, worker in run.workers.items():
            self.assertEqual(worker.wait(), DONE, worker.log()[-3000:])
            if site in run.torch_sites:
                run.training |= {(site, step): line["loss"] for step, line in self.steps_of(worker).items()}

        def said():
            note()
            return all((site, run.config["run"]["steps"]) in run.training for site in native)
        eventually(said, "the status has the last losses")
        run.exported = run.export()
        run.stop_coordinator()

    # ---- Results ----

    def held_out_losses(self, run):
        """{"start" or (fragment, version): loss} of W on all held-out text, after each round, from the
        coordinator's snapshots: checkpoint.every_rounds is 1, and checkpoint.keep enough for all."""
        model = LlamaForCausalLM.from_pretrained(self.base).double()
        text = self.text.read_bytes()
        tokens = torch.tensor(bytearray(text[len(text) - len(text) // 20:]), dtype=torch.long)
        sequence = run.config["model"]["max_position_embeddings"]
        rows = tokens.unfold(0, sequence + 1, sequence)
        losses = {}
        for point, anchor in self.anchors(run, list(dict(model.named_parameters()))):
            model.load_state_dict({name: torch.tensor(values) for name, values in anchor.items()}, strict=False)
            with torch.no_grad():
                logits = model(input_ids=rows[:, :-1]).logits
            losses[point] = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).item()
        return losses

    def anchors(self, run, names):
        """("start" or (fragment, version), W) after each round; W is {name: values}, `names` are in the model's order."""
        last = run.config["sync"]["num_fragments"] - 1
        fragment_of = {name: int(name.split(".")[2]) if ".layers." in name else last for name in names}
        anchor = {}
        for fragment, version, file in run.journal("SELECT fragment, version, file FROM snapshots "
                                                   "ORDER BY version, fragment"):
            values, begin = read_safetensors(run.state_dir / "snapshots" / file)["anchor"], 0
            for name in (name for name in names if fragment_of[name] == fragment):
                shape = run.exported[name].shape
                anchor[name] = values[begin:begin + math.prod(shape)].reshape(shape)
                begin += -(-math.prod(shape) // UNIT) * UNIT
            if version > 0:
                yield (fragment, version), anchor
            elif fragment == last:
                yield "start", anchor
        self.assert_same_bits(run.exported, anchor, "W after the last round")
