"""A run that starts from a Hugging Face folder, which lies whole at one site and as config.json at the coordinator."""

import json
import shutil
import struct
import unittest

from harness import BAD_INPUT, DONE, FAILED, EndToEndTest, eventually, merged, read_safetensors

STEPS = 6
MODEL = {"kind": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 16, "tie_word_embeddings": False,
         "rope_scaling": {"rope_type": "llama3", "factor": 4, "low_freq_factor": 1, "high_freq_factor": 4,
                          "original_max_position_embeddings": 8}}
RUN = {
    "run_id": "e2e",
    "run": {"steps": STEPS},
    "model": MODEL,
    "data": {"mode": "shared"},
    "inner": {"lr": 0.01, "warmup_steps": 0, "batch_size": 2},
    "sync": {"sync_every": 3, "num_fragments": 1, "fragment_sync_delay": 0, "fragment_update_alpha": 0},
    "outer": {"optimizer": "sgd", "lr": 1},
    "codec": {"up": "float32", "down": "float32"},
    "checkpoint": {"every_rounds": 0},
}

LFS_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


def write_safetensors(path, tensors):
    header, values = {}, b""
    for name, array in tensors.items():
        offsets = [len(values), len(values) + array.nbytes]
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": offsets}
        values += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + values)


class InitFromTest(EndToEndTest):
    def setUp(self):
        self.data = self.folder / "text"
        self.data.write_text("the same line, again and again\n" * 400)
        run = self.new_run(RUN)
        run.start_coordinator()
        run.start_worker("eu", f"--data={self.data}")
        run.await_done()
        run.export()
        run.stop_coordinator()
        self.whole = run.folder / "export"

    def test_the_first_site_brings_the_weights_and_the_coordinator_config_json(self):
        model = self.folder / "model"
        model.mkdir()
        shutil.copy(self.whole / "config.json", model)
        config = merged(RUN, {"membership": {"min_sites": 2}, "inner": {"lr": 0}})  # what comes out is what went in
        config["model"] = {"kind": "llama", "init_from": str(model)}
        run = self.new_run(config)
        run.start_coordinator()
        self.assertEqual(run.status()["config"]["model"]["hidden_size"], 32)
        self.assertEqual(run.status()["config"]["model"]["rope_scaling"]["factor"], 4)

        early = run.start_worker("us", f"--data={self.data}")
        self.assertEqual(early.wait(), FAILED)
        self.assertIn(f"model.init_from: expected model.safetensors or model.safetensors.index.json in {model} on the "
                      "site that brings the initial parameters, got none on us", early.log())

        shutil.copy(self.whole / "model.safetensors", model)  # as if the next worker were on another machine
        run.start_worker("eu", f"--data={self.data}")
        eventually(lambda: "supplies the initial parameters" in run.workers["eu"].log(), "eu supplies the parameters")
        eventually(lambda: run.site("eu").get("digests"), "eu has the anchors")
        (model / "model.safetensors").unlink()
        run.start_worker("us", f"--data={self.data}")
        run.await_done()
        self.assertIn("takes the run's parameters: model.init_from", run.workers["us"].log())
        over = run.program("over", "causewayctl", "export", f"--coordinator={run.grpc}", f"--out={model}")
        self.assertEqual(over.wait(), BAD_INPUT)
        self.assertIn(f"--out: expected another folder than the run's model.init_from, got {model}; --overwrite replaces it",
                      over.log())
        self.assertEqual(sorted(path.name for path in model.iterdir()), ["config.json"])
        self.assert_same_bits(read_safetensors(self.whole / "model.safetensors"), run.export(), "export")
        run.stop_coordinator()

    def tied_model(self, **changes):
        """A folder of a tied model, whose file has its head, too."""
        model = self.folder / "tied"
        model.mkdir(exist_ok=True)
        config = json.loads((self.whole / "config.json").read_text()) | {"tie_word_embeddings": True}
        (model / "config.json").write_text(json.dumps(config))
        tensors = read_safetensors(self.whole / "model.safetensors")
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
        write_safetensors(model / "model.safetensors", tensors | changes)
        return model

    def worker_from(self, model):
        config = merged(RUN, {"inner": {"lr": 0}})
        config["model"] = {"kind": "llama", "init_from": str(model)}
        run = self.new_run(config)
        run.start_coordinator()
        return run, run.start_worker("eu", f"--data={self.data}")

    def test_a_tied_model_may_have_its_head_in_the_file_where_it_equals_the_embedding(self):
        run, _ = self.worker_from(self.tied_model())
        run.await_done()
        expected = read_safetensors(self.whole / "model.safetensors")
        expected.pop("lm_head.weight")
        self.assert_same_bits(expected, run.export(), "export")
        run.stop_coordinator()
        head = read_safetensors(self.whole / "model.safetensors")["lm_head.weight"]
        _, worker = self.worker_from(self.tied_model(**{"lm_head.weight": head}))
        self.assertEqual(worker.wait(), BAD_INPUT, worker.log())
        self.assertIn("tensor lm_head.weight: expected the values of model.embed_tokens.weight", worker.log())
        self.assertIn("the model is untied: tie_word_embeddings: false in its config.json", worker.log())

    def test_ranks_of_a_pipeline_take_their_parts_of_a_folder(self):
        for model in (self.whole, self.tied_model()):
            schedule = self.folder / "gpipe.schedule"
            config = merged(RUN, {"inner": {"lr": 0, "micro_batches": 2}})
            config["model"] = {"kind": "llama", "init_from": str(model)}
            run = self.new_run(config)
            plan = run.program("plan", "causewayctl", "plan", "pipeline", "--schedule=gpipe", "--devices=2",
                               "--micro_batches=2", f"--out={schedule}")
            self.assertEqual(plan.wait(), DONE, plan.log())
            run.start_coordinator()
            run.start_worker("eu", f"--data={self.data}", f"--pipeline={schedule}", "--nproc=2")
            run.await_done()
            expected = read_safetensors(model / "model.safetensors")
            if model != self.whole:
                expected.pop("lm_head.weight")
            self.assert_same_bits(expected, run.export(), "export")
            run.stop_coordinator()

    def test_a_file_that_stands_for_the_model_is_named(self):
        model = self.tied_model()
        (model / "model.safetensors").write_text(LFS_POINTER)
        _, worker = self.worker_from(model)
        self.assertEqual(worker.wait(), BAD_INPUT, worker.log())
        self.assertIn("model.safetensors: expected a safetensors file, got a pointer of Git LFS, which stands for the "
                      "file: git lfs pull brings the file itself", worker.log())
        (model / "config.json").write_text("<!doctype html>\n<html></html>")
        run = self.new_run(RUN | {"model": {"init_from": str(model)}})
        check = run.program("check", "causewayctl", "config-check", str(run.config_path))
        self.assertEqual(check.wait(), BAD_INPUT, check.log())
        self.assertIn("config.json: expected text, got a web page (HTML): it came instead of the file", check.log())

    def test_what_does_not_fit_the_folder_is_refused(self):
        model = self.folder / "model"
        model.mkdir()
        for keys, config_json, expected in (
                ({}, None, "a copy of it alone will do"),
                ({"hidden_size": 64}, {}, f"model.hidden_size: expected 32 as in {model}/config.json, got 64"),
                ({}, {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}, "use the Python package")):
            if config_json is not None:
                config = json.loads((self.whole / "config.json").read_text()) | config_json
                (model / "config.json").write_text(json.dumps(config))
            run = self.new_run(RUN | {"model": {"init_from": str(model)} | keys})
            check = run.program("check", "causewayctl", "config-check", str(run.config_path))
            self.assertEqual(check.wait(), BAD_INPUT, check.log())
            self.assertIn(expected, check.log())


if __name__ == "__main__":
    unittest.main()
