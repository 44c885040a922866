"""The files that a worker writes beside its checkpoints: JSON lines of its training, and exports on a schedule."""

import json
import pathlib
import unittest

from harness import BAD_INPUT, DONE, FAILED, EndToEndTest, read_safetensors, synthetic

STEPS, SYNC_EVERY, EXPORT_EVERY, KEEP = 160, 10, 4, 2


def config_of():
    return synthetic({"eu": 0.25, "us": 1.0}, [[300], [5000]], run={"steps": STEPS},
                     model={"step_ms": 10, "init": "seeded"},
                     sync={"sync_every": SYNC_EVERY, "num_fragments": 2, "fragment_sync_delay": 2})


BYTES = {
    "run_id": "e2e",
    "run": {"steps": 6},
    "model": {"kind": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
              "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 256, "max_position_embeddings": 16},
    "inner": {"batch_size": 2},
    "sync": {"sync_every": 3, "num_fragments": 1},
    "checkpoint": {"every_rounds": 0},
}


class WorkerFilesTest(EndToEndTest):
    def test_training_is_written_down_and_the_last_export_is_the_runs(self):
        run = self.new_run(config_of())
        run.start_coordinator()
        metrics, exports = run.folder / "eu.jsonl", run.folder / "exports"
        run.start_worker("eu", f"--metrics_file={metrics}", "--metrics_every_s=0", f"--export_dir={exports}",
                         f"--export_every_rounds={EXPORT_EVERY}", f"--export_keep={KEEP}")
        run.start_worker("us")
        run.await_done()
        self.assertEqual(run.workers["eu"].wait(), DONE, run.workers["eu"].log())
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        steps = [line for line in lines if line["kind"] == "step"]
        self.assertEqual(len(steps), STEPS)
        self.assertEqual({line["site"] for line in lines}, {"eu"})
        self.assertEqual([line["step"] for line in steps], sorted({line["step"] for line in steps}))
        self.assertTrue(all("utilization" in line for line in steps), steps)
        written = [line for line in lines if line["kind"] == "export"]
        self.assertGreaterEqual(len(written), 2)
        self.assertEqual(sorted(path.name for path in exports.iterdir()),
                         sorted(pathlib.Path(line["path"]).name for line in written[-KEEP:]))
        self.assert_same_bits(run.export(),
                              read_safetensors(pathlib.Path(written[-1]["path"]) / "model.safetensors"), "last export")
        run.stop_all()

    def test_an_export_has_config_tokenizer_and_the_asked_dtype(self):
        run = self.new_run(BYTES)
        run.start_coordinator()
        data = run.folder / "text"
        data.write_text("nothing much, again and again\n" * 400)
        exports = run.folder / "exports"
        run.start_worker("eu", f"--data={data}", f"--export_dir={exports}", "--export_dtype=bfloat16")
        run.await_done()
        (by_worker,) = exports.iterdir()
        plain = run.export()

        def export(out, *flags):
            return run.program(out, "causewayctl", "export", f"--coordinator={run.grpc}",
                               f"--out={run.folder / out}", *flags)

        rounded = export("rounded", "--dtype=bfloat16", f"--assets={run.folder / 'export'}")
        self.assertEqual(rounded.wait(), DONE, rounded.log())
        names = ["SHA256SUMS", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
                 "tokenizer_config.json"]
        self.assertEqual(sorted(path.name for path in by_worker.iterdir()), names)
        for name in names:
            self.assertEqual((run.folder / "rounded" / name).read_bytes(), (by_worker / name).read_bytes(), name)
        self.assertEqual(json.loads((by_worker / "config.json").read_text())["torch_dtype"], "bfloat16")
        self.assertEqual((by_worker / "model.safetensors").stat().st_size // 100,
                         ((run.folder / "export" / "model.safetensors").stat().st_size
                          - sum(values.nbytes // 2 for values in plain.values())) // 100)
        evaluation = run.program("evaluate", "causeway-worker", f"--evaluate={by_worker}", f"--data={data}")
        self.assertEqual(evaluation.wait(), DONE, evaluation.log())
        self.assertGreater(json.loads(evaluation.output())["eval_loss"], 0)

        config = run.folder / "export" / "config.json"
        config.write_text(config.read_text().replace('"num_key_value_heads": 1', '"num_key_value_heads": 2'))
        for flags, expected in ((["--assets=/no/such"], "/no/such/config.json"), (["--dtype=int8"], "got int8"),
                                ([f"--assets={config.parent}"], "num_key_value_heads: expected 1, got 2")):
            refused = export("refused", *flags)
            self.assertIn(refused.wait(), (FAILED, BAD_INPUT))
            self.assertIn(expected, refused.log())
            self.assertFalse((run.folder / "refused").exists())
        run.stop_all()

    def test_flags_that_cannot_be_meant_are_refused(self):
        folder = self.new_run(config_of()).folder
        for flags, expected in (
                (["--export_every_rounds=2"], "--export_dir"),
                (["--export_assets=x"], "--export_dir"),
                (["--export_dtype=bfloat16"], "--export_dir"),
                (["--export_dir=/proc/none"], "/proc/none"),
                ([f"--export_dir={folder}", "--export_keep=0"], "expected 1 or more, got 0"),
                ([f"--export_dir={folder}", "--export_every_rounds=-1"], "got -1")):
            worker = self.program(folder, "bad", "causeway-worker", "--coordinator=127.0.0.1:1", "--site=eu", *flags)
            self.assertEqual(worker.wait(), BAD_INPUT, worker.log())
            self.assertIn(expected, worker.log())


if __name__ == "__main__":
    unittest.main()
