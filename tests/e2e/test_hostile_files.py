"""Files and texts that bite: each program names what is wrong and ends with 2; nothing that a peer says obeys a terminal."""

import hashlib
import json
import os
import unittest

from bad_input import BadInputTest, config_of
from harness import BAD_INPUT, DONE, check_all, eventually
from hostile_messages import SITE, Messages

DEEP = "[" * 100_000
TOO_DEEP = "got more than 64 lists and objects in each other"
COSTS = {"layers": 4, "layer_bytes": 10, "message_bytes": 5,
         **{part: {"forward_us": 10, "input_us": 10, "weight_us": 10} for part in ("layer", "embedding", "head")}}
IDLE = """causeway-schedule 1
devices 2 micro_batches 1 stages 1 replicas 1
place 0:0
device 0: 0F0 0I0 0W0
device 1:
"""
MODEL = {"kind": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
         "num_key_value_heads": 1, "vocab_size": 256, "max_position_embeddings": 16}
BYTES = {"run_id": "e2e", "model": MODEL, "inner": {"batch_size": 2}, "sync": {"sync_every": 3, "num_fragments": 1},
         "checkpoint": {"every_rounds": 0}}


class FilesTest(BadInputTest):
    def write(self, name, contents):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents if isinstance(contents, bytes) else contents.encode())
        return path

    def assert_refused(self, program, *words):
        self.assert_ends(program, BAD_INPUT, *words)

    def plan(self, *arguments):
        return self.run_program("causewayctl", "plan", *arguments)

    def test_deep_json_is_refused_wherever_json_is_read(self):
        config = self.write("model/config.json", f'{{"model_type": "llama", "x": {DEEP}')
        run = json.dumps({"run_id": "e2e", "model": {"kind": "llama", "init_from": str(config.parent)}})
        self.assert_refused(self.coordinator(text=run), f"{config}: expected JSON, line 1, column ", TOO_DEEP)
        costs = self.write("costs.json", DEEP)
        self.assert_refused(self.plan("pipeline", f"--costs={costs}", "--devices=2", "--micro_batches=2"), str(costs), TOO_DEEP)
        trace = self.write("trace.json", f"[\n{DEEP}\n")
        self.assert_refused(self.plan("what-if", f"--trace={trace}"), "line 2, column 65", TOO_DEEP)
        good_costs, schedule = self.write("good.json", json.dumps(COSTS)), self.write("idle.txt", IDLE)
        self.assert_refused(self.plan("pipeline", f"--check={schedule}", f"--costs={good_costs}", f"--trace={trace}"), TOO_DEEP)

    def test_a_file_of_a_flag_is_a_regular_file(self):
        """A folder (Docker makes one of a missing bind mount), a pipe without a writer, a device without an end."""
        folder, pipe, text = self.folder / "folder", self.folder / "pipe", self.write("text", "x\n")
        folder.mkdir()
        os.mkfifo(pipe)
        tls = {flag: text for flag in ("tls_ca", "tls_cert", "tls_key")}
        lead = {"shard": "1/2", "membership": "127.0.0.1:9"}
        coordinator = {"config": self.write("run.yaml", "run_id: e2e\n"), "state_dir": self.folder / "state",
                       "listen": "127.0.0.1:0", "http": "127.0.0.1:0"}
        ranks = {"nproc": 2, "rendezvous": "127.0.0.1:0", "data": text}
        table = [("causeway-coordinator", coordinator, ("config", "site_tokens")),
                 ("causeway-coordinator", {**coordinator, **tls}, (*tls,)),
                 ("causeway-coordinator", {**coordinator, **lead}, ("membership_token_file",)),
                 ("causeway-worker", {"site": "a", **tls}, (*tls,)),
                 ("causeway-worker", {"site": "a"}, ("token_file",)),
                 ("causeway-worker", {"site": "a", **ranks}, ("rendezvous_key_file",)),
                 ("causewayctl status", tls, (*tls,)), ("causewayctl status", {}, ("token_file",)),
                 ("causewayctl plan pipeline", {"devices": 2, "micro_batches": 2}, ("costs",)),
                 ("causewayctl plan pipeline", {}, ("check",)),
                 ("causewayctl plan what-if", {}, ("trace",)), ("causewayctl plan", {}, ("config",))]
        cases = [(program.split(), {**flags, flag: path}, path, got) for program, flags, named in table for flag in named
                 for path, got in ((folder, "folder"), (pipe, "pipe or device"), ("/dev/zero", "pipe or device"))]
        check_all(lambda program, flags, path, got: self.assert_refused(
            self.run_program(*program, *(f"--{name}={value}" for name, value in flags.items())),
            f"{path}: expected a regular file, got a {got}"), cases, 2)

    def test_a_credentials_file_that_becomes_a_folder_while_the_run_goes_on_has_an_alarm_and_changes_nothing(self):
        tokens = self.write("tokens", f"a {hashlib.sha256(b'secret').hexdigest()}\n")
        run = self.new_run(config_of(run={"steps": 0}))
        run.start_coordinator(f"--site_tokens={tokens}")
        token = self.write("token", "secret\n")
        run.start_worker("a", f"--token_file={token}")
        run.await_rounds(1)
        kept = tokens.rename(self.folder / "kept")
        tokens.mkdir()
        alarms = lambda: {alarm["name"]: alarm["text"] for alarm in run.status()["alarms"]}
        eventually(lambda: f"--site_tokens={tokens}: expected a regular file, got a folder" in alarms().get("file_refused", ""),
                   "the alarm")
        run.await_rounds(1)
        tokens.rmdir()
        kept.rename(tokens)
        eventually(lambda: "file_refused" not in alarms(), "the end of the alarm")
        self.assertTrue(run.workers["a"].running())

    def test_a_deep_header_and_a_deep_index_of_a_model_are_refused(self):
        model = self.write("model/config.json", json.dumps({"model_type": "llama", **{k: v for k, v in MODEL.items() if k != "kind"}})).parent
        text = self.write("text", "some text, " * 1000)
        evaluate = ("causeway-worker", f"--evaluate={model}", f"--data={text}")
        (model / "model.safetensors").write_bytes(len(DEEP).to_bytes(8, "little") + DEEP.encode())
        self.assert_refused(self.run_program(*evaluate), "model.safetensors: header: expected JSON, line 1, column 65", TOO_DEEP)
        (model / "model.safetensors").unlink()
        (model / "model.safetensors.index.json").write_text(f'{{"weight_map": {DEEP}')
        self.assert_refused(self.run_program(*evaluate), "index.json: expected JSON, line 1, column ", TOO_DEEP)

    def test_a_device_without_work_is_played_beside_its_trace_and_costs_that_overflow_are_refused(self):
        costs, schedule = self.write("costs.json", json.dumps(COSTS)), self.write("idle.txt", IDLE)
        events = [{"name": name, "ph": "X", "ts": 100 * step + 20 * i, "dur": 20, "pid": 0, "tid": 0, "args": {"step": step}}
                  for step in (1, 2) for i, name in enumerate(("0F0", "0I0", "0W0"))]
        trace = self.write("trace.json", "[\n" + "".join(json.dumps(event) + ",\n" for event in events))
        played = self.plan("pipeline", f"--check={schedule}", f"--costs={costs}", f"--trace={trace}")
        self.assert_ends(played, DONE)
        self.assertIn("0.060 ms, the median of its steps; predicted", played.output())
        layer = {"forward_us": 1e15, "input_us": 1e15, "weight_us": 1e15}
        costs.write_text(json.dumps(COSTS | {"layer": layer}))
        self.assert_refused(self.plan("pipeline", f"--check={schedule}", f"--costs={costs}"),
                            "layer.forward_us: expected a number from 0 to 1e+09, got 1e+15")

    def test_a_run_yaml_that_begins_with_a_comma_is_refused(self):
        self.assert_refused(self.coordinator(text=", run_id: e2e\n"), "expected one YAML document, got several")

    def test_data_that_is_cut_while_a_worker_trains_on_it_ends_that_worker_with_a_word(self):
        run = self.new_run(BYTES)
        run.start_coordinator()
        data = self.write("text", "some text, again and again\n" * 100_000)
        run.start_worker("eu", f"--data={data}")
        run.await_rounds(2)
        with data.open("r+") as file:
            file.truncate(1000)
        self.assertEqual(run.workers["eu"].wait(), BAD_INPUT, run.workers["eu"].log())
        self.assertIn(f"causeway-worker: error: {data}: changed while it is used: expected the 2700000 bytes",
                      run.workers["eu"].log())
        run.stop_coordinator()


class TextsTest(BadInputTest):
    def test_what_a_site_says_rewrites_no_terminal_forges_no_line_and_is_no_nul_in_a_report(self):
        run = self.live_run(config_of(model={"step_ms": 5}))
        run.start_worker("a")
        run.await_rounds(3)
        messages = Messages(run.folder, "e2e", [("t0", [10]), ("t1", [20])])
        reason = r"bye\033[2J\000\n[2026-01-01 00:00:00.000] [error] forged\342\200\256"
        leave = messages.site("leave", f'leave {{ reason: "{reason}" }}')
        flood = self.program(run.folder, "flood", "tests/e2e/grpc_flood", run.grpc, "Control", "--seconds=20", "--early=true",
                             "--reads=true", f"--first={messages.join()}", f"--message={leave}")
        self.assertEqual(flood.wait(), DONE, flood.log())
        shown = r"bye\x1b[2J\x00\n[2026-01-01 00:00:00.000] [error] forged\u202e"
        eventually(lambda: shown in run.coordinator.log(), "the coordinator's log has its reason")
        report = run.folder / "report.html"
        self.ctl(run, "report", f"--out={report}")
        texts = {"log": run.coordinator.log(), "report": report.read_text(),
                 "status": self.ctl(run, "status"), "history": self.ctl(run, "history")}
        for name, text in texts.items():
            self.assertFalse({"\x1b", "\0", "\u202e"} & set(text), name)
            self.assertNotIn("\n[2026-01-01 00:00:00.000]", text, name)
        self.assertIn(SITE, texts["history"])
        self.assertIn(shown, texts["history"])
        run.stop_all()

    def ctl(self, run, *arguments):
        program = self.run_program("causewayctl", *arguments, f"--coordinator={run.grpc}")
        self.assert_ends(program, DONE)
        return program.output()


if __name__ == "__main__":
    unittest.main()
