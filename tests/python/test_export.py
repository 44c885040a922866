"""An export in Hugging Face's transformers: its tokenizer, its pipeline, and the loss that causeway-worker computes.

Needs torch and transformers; without them it is skipped. Programs are found as in tests/e2e/harness.py.
"""

import json
import pathlib
import random
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "e2e"))

from harness import DONE, EndToEndTest  # noqa: E402

try:
    import tokenizers
    import torch
    import transformers
    MISSING = ""
except ImportError as error:
    MISSING = str(error)

SEQUENCE = 64
HELD_OUT, WINDOWS = 0.05, 64  # as causeway-worker --evaluate has them
# float32 sums in another order; the sum over a window is of 64 terms of about 5 nats.
RELATIVE = 2e-6

BYTES = {
    "run_id": "export",
    "run": {"steps": 30},
    "model": {"kind": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
              "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256,
              "max_position_embeddings": SEQUENCE, "tie_word_embeddings": False},
    "inner": {"lr": 0.01, "warmup_steps": 0, "batch_size": 4},
    "sync": {"sync_every": 10, "num_fragments": 2},
    "checkpoint": {"every_rounds": 0},
}


def text_of(seed):
    words = ["déjà", "vu", "the", "harbour", "of", "Ålesund", "lies", "north", "🙂", "and\n"]
    return " ".join(random.Random(seed).choices(words, k=8000))


@unittest.skipIf(MISSING, f"needs torch and transformers: {MISSING}")
class ExportTest(EndToEndTest):
    def run_and_export(self, config):
        """Trains one site on the text to the end; the run, and what exports it under a name."""
        run = self.new_run(config)
        run.start_coordinator()
        self.data = run.folder / "text.txt"
        self.data.write_text(text_of(1))
        run.start_worker("eu", f"--data={self.data}")
        run.await_done()
        return run, lambda name, *flags: self.export(run, name, *flags)

    def export(self, run, name, *flags):
        out = run.folder / name
        exporter = run.program(name, "causewayctl", "export", f"--coordinator={run.grpc}", f"--out={out}", *flags)
        self.assertEqual(exporter.wait(), DONE, exporter.log())
        return out

    def evaluate(self, folder):
        """The loss by causeway-worker --evaluate."""
        worker = self.program(self.folder, f"evaluate-{folder.name}", "causeway-worker", f"--evaluate={folder}",
                              f"--data={self.data}")
        self.assertEqual(worker.wait(), DONE, worker.log())
        return json.loads(worker.output())

    def loss(self, folder):
        """The loss by transformers on the same windows: values as they are in the file, arithmetic in float32."""
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        tokens = torch.frombuffer(bytearray(self.data.read_bytes()), dtype=torch.uint8).long()
        begin = len(tokens) - int(len(tokens) * HELD_OUT)
        last = len(tokens) - begin - (SEQUENCE + 1)
        starts = [begin + i * last // (WINDOWS - 1) for i in range(WINDOWS)]
        with torch.no_grad():
            logits = model(torch.stack([tokens[i:i + SEQUENCE] for i in starts])).logits
        targets = torch.stack([tokens[i + 1:i + SEQUENCE + 1] for i in starts])
        return torch.nn.functional.cross_entropy(logits.double().flatten(0, 1), targets.flatten()).item()

    def assert_same_loss(self, folder):
        expected, got = self.evaluate(folder)["eval_loss"], self.loss(folder)
        print(f"{folder.name}: causeway-worker --evaluate {expected:.8f}, transformers {got:.8f}", file=sys.stderr)
        self.assertAlmostEqual(got / expected, 1, delta=RELATIVE)

    def assert_pipeline_writes(self, folder):
        pipeline = transformers.pipeline("text-generation", str(folder))
        written = pipeline("the harbour", max_new_tokens=20, do_sample=False)[0]["generated_text"]
        self.assertTrue(written.startswith("the harbour"), written)
        self.assertGreater(len(written), len("the harbour"))

    def test_an_export_of_bytes_has_a_tokenizer_and_the_loss_of_evaluate(self):
        run, export = self.run_and_export(BYTES)
        plain, rounded = export("plain"), export("rounded", "--dtype=bfloat16")
        for folder, dtype in ((plain, torch.float32), (rounded, torch.bfloat16)):
            self.assertEqual(transformers.AutoConfig.from_pretrained(folder).dtype, dtype)
            self.assert_same_loss(folder)
            self.assert_pipeline_writes(folder)
        wide = transformers.AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32).state_dict()
        for name, values in transformers.AutoModelForCausalLM.from_pretrained(rounded).state_dict().items():
            self.assertTrue(torch.equal(values, wide[name].to(torch.bfloat16)), name)
        run.stop_coordinator()

    def test_the_byte_tokenizer_brings_back_any_text_and_decodes_any_bytes(self):
        run, export = self.run_and_export(BYTES)
        tokenizer = transformers.AutoTokenizer.from_pretrained(export("plain"))
        for text in ("", " a  b .\n\n", "don't , <s></s>", "é 你好 🙂 \x00\x7f\u0085", text_of(2)):
            ids = tokenizer(text)["input_ids"]
            self.assertEqual(ids, list(text.encode()))
            self.assertEqual(tokenizer.decode(ids), text)
        draw = random.Random(3)
        for size in range(1, 200):
            data = draw.randbytes(size)
            self.assertEqual(tokenizer.decode(list(data)), data.decode("utf-8", "replace"))
        run.stop_coordinator()

    def test_a_run_starts_from_a_hugging_face_folder_and_gives_one_back(self):
        """With Llama 3's RoPE, a tokenizer with special tokens, bfloat16 weights in shards and a tied head."""
        start = self.folder / "start"
        torch.manual_seed(1)
        config = transformers.LlamaConfig(
            hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
            vocab_size=300, max_position_embeddings=SEQUENCE, tie_word_embeddings=True, bos_token_id=298,
            eos_token_id=299, rope_parameters={"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0,
                                               "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                               "original_max_position_embeddings": 32})
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
        model.save_pretrained(start, max_shard_size="60KB")
        self.assertTrue((start / "model.safetensors.index.json").exists())
        self.train_tokenizer().save_pretrained(start)
        run, export = self.run_and_export(BYTES | {"model": {"kind": "llama", "init_from": str(start)},
                                                   "inner": {"lr": 0.01, "warmup_steps": 0, "batch_size": 4}})
        folder = export("again", f"--assets={start}")
        self.assert_same_loss(folder)
        self.assert_pipeline_writes(folder)
        expected = transformers.AutoConfig.from_pretrained(start)
        got = transformers.AutoConfig.from_pretrained(folder)
        for key in ("rope_parameters", "bos_token_id", "eos_token_id", "tie_word_embeddings", "rms_norm_eps"):
            self.assertEqual(getattr(got, key), getattr(expected, key), key)
        before, after = (transformers.AutoTokenizer.from_pretrained(path) for path in (start, folder))
        self.assertEqual(before(text_of(4))["input_ids"], after(text_of(4))["input_ids"])
        self.assertEqual(after.eos_token, "<end>")
        run.stop_coordinator()

    def train_tokenizer(self):
        tokenizer = tokenizers.ByteLevelBPETokenizer()
        tokenizer.train_from_iterator([text_of(5)], vocab_size=298)
        wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer)
        wrapped.add_special_tokens({"bos_token": "<begin>", "eos_token": "<end>"})
        return wrapped


if __name__ == "__main__":
    unittest.main()
