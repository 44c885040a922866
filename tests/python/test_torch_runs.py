"""PyTorch sites in real runs: beside native workers from the same model, in bfloat16, killed and restored."""

import json
import pathlib
import random
import signal
import sys
import unittest

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from harness import DONE, DigestBook, EndToEndTest, eventually
from test_mixed import needs_library

HERE = pathlib.Path(__file__).parent
WORDS = ["the", "causeway", "joins", "two", "islands", "at", "low", "tide", "and", "no", "ship", "waits\n"]
SITES = ("a", "b")


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
        torch.manual_seed(3)
        model = llama_config("float32")["model"]
        self.base = self.folder / "base"
        LlamaForCausalLM(LlamaConfig(rope_theta=10000.0, rms_norm_eps=1e-5, tie_word_embeddings=True, **{
            key: value for key, value in model.items() if key != "kind"})).save_pretrained(self.base)

    def start_run(self, config):
        config["model"] = config["model"] | {"init_from": str(self.base)}
        run = self.new_run(config)
        run.config = config
        run.start_coordinator()
        return run

    def start_torch(self, run, site, *flags):
        inner = json.dumps(run.config["inner"])
        run.workers[site] = self.program(run.folder, f"torch-{site}", sys.executable, HERE / "llama_site.py", run.grpc,
                                         site, self.text, f"--model={self.base}", f"--inner={inner}", *flags)
        return run.workers[site]

    def finish(self, run):
        """Waits for the run's end, and returns the loss of its model on held-out text."""
        book = DigestBook()

        def over():
            book.note_run(run)
            return all(not worker.running() for worker in run.workers.values())
        eventually(over, "all sites are done", 240)
        for worker in run.workers.values():
            self.assertEqual(worker.wait(), DONE, worker.log()[-3000:])
        run.export()
        run.stop_coordinator()
        evaluator = run.program("evaluate", "causeway-worker", f"--evaluate={run.folder / 'export'}",
                                f"--data={self.text}", "--sample_bytes=0")
        self.assertEqual(evaluator.wait(), DONE, evaluator.log())
        return json.loads(evaluator.output())["eval_loss"]

    def losses(self, run, site):
        return [json.loads(line)["loss"] for line in run.workers[site].output().splitlines()]

    def whole_run(self, config, *torch_sites, flags=()):
        run = self.start_run(config)
        for site in SITES:
            if site in torch_sites:
                self.start_torch(run, site, *flags)
            else:
                run.start_worker(site, f"--data={self.text}")
        return run, self.finish(run)

    def test_torch_native_and_mixed_runs_train_alike(self):
        for codec, tolerance in (("float32", 1e-4), ("int4", 1e-3)):
            _, native = self.whole_run(llama_config(codec))
            self.assertLess(native, 4.0, "the model has learnt something: log(256) is 5.5")
            for torch_sites in (SITES, ("a",)):
                _, loss = self.whole_run(llama_config(codec), *torch_sites)
                print(f"{codec}: native {native:.6f}, torch sites {torch_sites} {loss:.6f}, "
                      f"{loss / native - 1:+.2e}", file=sys.stderr)
                self.assertAlmostEqual(loss / native, 1, delta=tolerance, msg=f"{codec}, torch sites {torch_sites}")

    def test_bfloat16_without_training_moves_no_bit_of_the_anchor(self):
        for codec in ("int4", "float32"):
            config = llama_config(codec, run={"steps": 510})
            config["inner"] |= {"batch_size": 1}
            run, _ = self.whole_run(config, *SITES, flags=("--dtype=bfloat16", "--untrained"))
            base = LlamaForCausalLM.from_pretrained(self.base, dtype=torch.bfloat16).state_dict()
            exported = LlamaForCausalLM.from_pretrained(run.folder / "export", dtype=torch.float32).state_dict()
            for name, values in base.items():
                self.assertTrue(torch.equal(values.float(), exported[name]), f"{codec}: {name}")

    def test_bfloat16_with_masters_trains_as_float32_does(self):
        _, expected = self.whole_run(llama_config("int4"), *SITES)
        _, loss = self.whole_run(llama_config("int4"), *SITES, flags=("--dtype=bfloat16", "--masters"))
        print(f"bfloat16 with masters {loss:.6f}, float32 {expected:.6f}, {loss / expected - 1:+.2e}", file=sys.stderr)
        self.assertLess(loss / expected, 1.003)

    def restored(self, kill):
        config = llama_config("int4", run={"steps": 80})
        config["membership"] |= {"lease_ms": 60000}
        run = self.start_run(config)
        checkpoint = run.folder / "checkpoint"
        flags = (f"--checkpoint={checkpoint}", "--save_at=33")
        for site in SITES:
            self.start_torch(run, site, *(flags if site == "a" else ()), f"--dump={run.folder / site}.pt")
        if kill:
            eventually(lambda: checkpoint.exists() and run.site("a").get("step", 0) >= 36, "a is beyond its checkpoint")
            run.workers["a"].kill()
            run.coordinator.send(signal.SIGKILL)
            run.coordinator.process.wait()
            run.start_coordinator()
            self.start_torch(run, "a", *flags, f"--dump={run.folder / 'a'}.pt")
        self.finish(run)
        return {site: torch.load(f"{run.folder / site}.pt") for site in SITES}

    def test_killed_with_the_coordinator_and_restored_a_run_ends_with_the_same_bits(self):
        undisturbed, killed = self.restored(kill=False), self.restored(kill=True)
        for site in SITES:
            for name, values in undisturbed[site].items():
                self.assertTrue(torch.equal(values, killed[site][name]), f"site {site}: {name}")


if __name__ == "__main__":
    unittest.main()
