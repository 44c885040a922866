"""Mistakes in run.yaml and in other files of settings, each with the message and the exit code that people see."""

import json
import re
import unittest

from bad_input import BadInputTest, config_of
from harness import BAD_INPUT, DONE, eventually, synthetic


class ConfigTest(BadInputTest):
    def test_a_run_yaml_that_is_wrong_is_refused_with_line_and_key(self):
        cases = [("run_id: [a", "run.yaml", "1"),
                 ("run_id: e2e\nsync: {sync_every: 10, fragment_sync_delay: 10}\n", ":2: sync.fragment_sync_delay",
                  "less than sync_every", "got 10"),
                 ("run_id: e2e\n\ncodec: {up: int3}\n", ":3: codec.up", "int4", "got int3"),
                 ("run_id: e2e\nsync:\n  sync_evry: 10\n", ":3: ", "sync_evry"),
                 ("run_id: e2e\nrun: {steps: many}\n", ":2: run.steps", "many"),
                 ("run: {steps: 1}\n", "run_id", "got none")]
        for text, *messages in cases:
            checked = self.folder / "run.yaml"
            checked.write_text(text)
            self.assert_ends(self.run_program("causewayctl", "config-check", str(checked)), BAD_INPUT, *messages)
            coordinator_messages = [message for message in messages if message != "run.yaml"]
            self.assert_ends(self.coordinator(text=text), BAD_INPUT, *coordinator_messages)

    def test_all_mistakes_of_a_run_yaml_come_at_once_in_the_order_of_its_lines(self):
        checked = self.folder / "run.yaml"
        checked.write_text("run_id: e2e\nmodel: {model_type: qwen2, dtype: bfloat16}\nsync:\n  sync_every: 10\n"
                           "  fragment_sync_delay: 10\ncodec: {up: int3}\nrun: {steps: many, stepps: 3}\n")
        program = self.run_program("causewayctl", "config-check", str(checked))
        self.assert_ends(program, BAD_INPUT, "model.model_type: expected kind (llama; ", "use the Python package",
                         "model.dtype: expected no such key (parameters are float32", "got int3", "expected steps")
        places = re.findall(r"run\.yaml:(\d+): ([\w.]+)", program.log())
        self.assertEqual([("2", "model.model_type"), ("2", "model.dtype"), ("5", "sync.fragment_sync_delay"),
                          ("6", "codec.up"), ("7", "run.steps"), ("7", "run.stepps")], places)

    def test_a_key_in_a_wrong_column_is_named_with_its_neighbour(self):
        checked = self.folder / "run.yaml"
        for text, line, words in (("sync:\n  sync_every: 10\n    num_fragments: 2\n", 3,
                                   "column 5: this key stands 2 columns deeper than the one in line 2"),
                                  ("sync:\n  sync_every: 10\n num_fragments: 2\n", 3,
                                   "column 2: this key stands 1 column less deep than the one in line 2")):
            checked.write_text(text)
            program = self.run_program("causewayctl", "config-check", str(checked))
            self.assert_ends(program, BAD_INPUT, f"run.yaml:{line}: expected YAML", words)

    def test_a_run_yaml_that_is_right_is_called_fine_with_the_run_in_one_line(self):
        checked = self.folder / "run.yaml"
        checked.write_text("run_id: e2e\nsync: {num_fragments: 1}\n")
        program = self.run_program("causewayctl", "config-check", str(checked))
        self.assertEqual("", program.output())
        program = self.run_program("causewayctl", "config-check", str(checked), "--json")
        self.assert_ends(program, DONE, "fine: ", " M parameters, 1 fragment, constant lr because run.steps is 0")
        self.assertEqual("e2e", json.loads(program.output())["run_id"])

    def test_a_variance_that_is_frozen_before_the_warmup_ends_is_refused(self):
        checked = self.folder / "run.yaml"
        for freeze_at, words in ((1, "expected warmup_steps, 2, or more, or auto, got 1"),
                                 (-1, "expected auto, or an integer of 0 or more, got -1")):
            checked.write_text(f"run_id: e2e\ninner: {{optimizer: onebit_adam, warmup_steps: 2, freeze_at: {freeze_at}}}\n")
            self.assert_ends(self.run_program("causewayctl", "config-check", str(checked)), BAD_INPUT,
                             f"run.yaml:2: inner.freeze_at: {words}")

    def test_a_run_that_ends_before_its_first_send_is_refused_and_steps_behind_its_last_are_counted(self):
        checked = self.folder / "run.yaml"
        sent_late = config_of(run={"steps": 10}, sync={"sync_every": 20, "num_fragments": 1})
        checked.write_text(json.dumps(sent_late))
        messages = ("run.steps: expected at least 20, when fragment 0 is sent for the first time", "got 10")
        self.assert_ends(self.run_program("causewayctl", "config-check", str(checked)), BAD_INPUT, *messages)
        self.assert_ends(self.coordinator(config=sent_late), BAD_INPUT, *messages)
        cut = config_of(run={"steps": 10}, sync={"sync_every": 4, "num_fragments": 1})
        checked.write_text(json.dumps(cut))
        lost = "run.steps is 10: the last 2 steps come after the last send, at step 8, and are in no update"
        self.assert_ends(self.run_program("causewayctl", "config-check", str(checked)), DONE, f"note: {lost}")
        self.assertIn(lost, self.live_run(cut).coordinator.log())

    def test_an_export_names_the_fragments_that_no_round_has_changed(self):
        run = self.live_run(synthetic({"a": 0.5}, [[100], [100]], run={"steps": 20}, membership={"min_sites": 1},
                                      sync={"sync_every": 20, "num_fragments": 2, "first_send": "offset"}))
        run.control("pause")
        run.start_worker("a")
        eventually(lambda: run.newest() == 0, "the site has brought the initial parameters")
        program = self.run_program("causewayctl", "export", f"--coordinator={run.grpc}", f"--out={self.folder / 'early'}")
        self.assert_ends(program, DONE, "note: fragment 0 (t0 and others, 1 tensors) is in no round yet", "note: fragment 1 ")
        run.control("resume")
        run.await_done()
        program = self.run_program("causewayctl", "export", f"--coordinator={run.grpc}", f"--out={self.folder / 'late'}")
        self.assertNotIn("in no round", program.log())

    def test_text_files_of_windows_are_read_and_those_in_utf16_are_named(self):
        checked, schedule = self.folder / "run.yaml", self.folder / "a.schedule"
        text = "run_id: e2e\r\nsync: {num_fragments: 1}\r\n"
        checked.write_bytes(b"\xef\xbb\xbf" + text.encode())
        self.assert_ends(self.run_program("causewayctl", "config-check", str(checked)), DONE, "fine: ")
        checked.write_bytes(text.encode("utf-16"))
        self.assert_ends(self.run_program("causewayctl", "config-check", str(checked)), BAD_INPUT,
                         "run.yaml: expected text, got text in UTF-16: write it as UTF-8")
        made = self.run_program("causewayctl", "plan", "pipeline", "--schedule=gpipe", "--devices=2", "--micro_batches=2",
                                f"--out={schedule}")
        self.assert_ends(made, DONE)
        schedule.write_bytes(b"\xef\xbb\xbf" + schedule.read_bytes())
        self.assert_ends(self.run_program("causewayctl", "plan", "pipeline", f"--check={schedule}"), DONE)

    def test_a_file_of_costs_that_is_no_json_is_refused_with_line_column_and_cause(self):
        costs = self.folder / "costs.json"
        for text, words in (('{"layers": 4,\n "layer_bytes": NaN}', "line 2, column 17: got NaN"),
                            ('{"layers": 4, // of the model\n "heads": 8}', "line 1, column 15: got a comment"),
                            ('{"layers": 4,\n "heads": 8,\n}', "line 3, column 1: got a comma before }"),
                            ("{'layers': 4}", "line 1, column 2: got a single quote"),
                            ('{"layers": 4', "line 1, column 13: got the end of the text")):
            costs.write_text(text)
            plan = self.run_program("causewayctl", "plan", "pipeline", f"--costs={costs}", "--devices=2",
                                    "--micro_batches=4")
            self.assert_ends(plan, BAD_INPUT, f"costs.json: expected JSON, {words}")

    def test_a_config_that_is_not_there(self):
        state = self.folder / "state"
        program = self.run_program("causeway-coordinator", "--config=/no/such/run.yaml", f"--state_dir={state}")
        self.assert_ends(program, BAD_INPUT, "/no/such/run.yaml")
        self.assertFalse(state.exists(), "nothing was started")


if __name__ == "__main__":
    unittest.main()
