"""tests/bench/gpu_train with programs that are played: rows are kept as they come, and a failure ends nothing."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
TRAINER = """#!/usr/bin/env python3
import json, os, sys
flags = dict(argument[2:].split("=") for argument in sys.argv[1:])
for placement in flags["placements"].split(","):
    if placement == os.environ.get("FAILS"):
        sys.exit("no memory")
    print(json.dumps({"placement": placement, "k": placement, "step_ms": 2.0, "tokens_per_s": 1000 * int(flags["micro_batches"]),
                      "update_ms": 0.0 if placement == "resident" else 3.0,
                      "predicted_update_ms": 0.0 if placement == "resident" else 2.0,
                      "theta": placement if placement == os.environ.get("DIFFERS") else "f00d"}), flush=True)
"""
PEER = """#!/usr/bin/env python3
import json
for variant, speed in (("masters/flash/default", 500), ("masters/cudnn/default", 800)):
    print(json.dumps({"variant": variant, "tokens_per_s": speed, "step_ms": 1.0}), flush=True)
print(json.dumps({"variant": "masters/flash/max-autotune", "error": "late"}))
print(json.dumps({"best": "masters/cudnn/default", "tokens_per_s": 800}))
"""


class GpuTrainTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        for path, text in (("tests/bench/train_run/train_run", TRAINER), ("python", PEER)):
            program = self.folder / path
            program.parent.mkdir(parents=True, exist_ok=True)
            program.write_text(text)
            program.chmod(0o755)

    def run_it(self, *flags, **variables):
        return subprocess.run([sys.executable, HERE / "gpu_train", f"--build={self.folder}", f"--out={self.folder}", "--models=tiny",
                               "--device=fake", *flags], env={**os.environ, **variables}, capture_output=True, text=True)

    def rows(self):
        return [json.loads(line) for line in (self.folder / "gpu_train.jsonl").read_text().splitlines()]

    def test_each_placement_and_number_of_micro_batches_has_a_row(self):
        done = self.run_it("--placements=resident,cpu:late,2:0.25", "--micro_batches=1,2")
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertEqual([(parts, placement) for parts in (1, 2) for placement in ("resident", "cpu:late", "2:0.25")],
                         [(row["micro_batches"], row["placement"]) for row in self.rows()])
        resident, late = self.rows()[:2]
        self.assertIn("predicted_tokens_per_s", resident)
        self.assertNotIn("predicted_tokens_per_s", late)
        self.assertEqual(1.5, late["of_predicted_update"])

    def test_the_best_of_both_are_compared(self):
        self.run_it("--placements=resident", "--micro_batches=1,2", f"--python={self.folder}/python")
        last = self.rows()[-1]
        self.assertEqual(("both", "masters/cudnn/default", 2, 2.5),
                         (last["by"], last["torch_variant"], last["micro_batches"], last["of_torch"]))
        self.assertEqual(3, sum(row["by"] == "torch" for row in self.rows()))

    def test_rows_before_a_failure_stay_and_resume_takes_what_is_missing(self):
        done = self.run_it("--placements=resident,cpu,1", FAILS="cpu")
        self.assertEqual(0, done.returncode)
        self.assertEqual(["resident", "resident,cpu,1"], [row["placement"] for row in self.rows()])
        self.assertRegex(self.rows()[1]["error"], "^exit code 1 after .* s: no memory$")
        self.run_it("--placements=resident,cpu,1", "--resume")
        self.assertEqual(["cpu", "1"], [row["placement"] for row in self.rows()[2:]])

    def test_placements_that_change_a_bit_are_an_error(self):
        self.assertIn("θ of resident, cpu, 1 has equal bits", self.run_it("--placements=resident,cpu,1").stdout)
        done = self.run_it("--placements=resident,cpu,1", DIFFERS="cpu")
        self.assertEqual(1, done.returncode)
        self.assertIn("θ of resident, cpu, 1 DIFFERS", done.stdout)

    def test_where_nothing_ran_it_fails(self):
        self.assertEqual(1, self.run_it("--placements=cpu", FAILS="cpu").returncode)

    def test_micro_batches_that_divide_no_rows_are_refused(self):
        self.assertRegex(self.run_it("--micro_batches=3").stderr, "expected divisors of the 4 rows of tiny, got 3")


if __name__ == "__main__":
    unittest.main()
