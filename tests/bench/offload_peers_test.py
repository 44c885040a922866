"""tests/bench/offload_peers with an interpreter that is played: a row for each peer, whatever becomes of it."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
PYTHON = """#!/usr/bin/env python3
import json, os, sys, time
flags = dict(argument[2:].split("=", 1) for argument in sys.argv[2:])
peer = flags["peer"]
if peer == "torchao" and "MENDED" not in os.environ:
    sys.exit("expected the package torchao beside PyTorch, got: No module named 'torchao'")
if peer == "deepspeed":
    time.sleep(600)
ms = {"torch": 40.0, "causeway:auto": 10.0}.get(peer, 20.0)
print("noise")
print(json.dumps({"update_ms": ms, "iteration_ms": 3 * ms, "tokens_per_s": 1.0, "losses": [6.0, 5.0], "note": "", "host_peak_mb": 1.0,
                  "device_peak_mb": 2.0}))
"""


class OffloadPeersTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.python = self.folder / "python"
        self.python.write_text(PYTHON)
        self.python.chmod(0o755)

    def run_it(self, *flags, **variables):
        return subprocess.run([sys.executable, HERE / "offload_peers", "--model=tiny", "--device=cpu", f"--python={self.python}",
                               f"--out={self.folder}/rows.jsonl", "--limit=2", *flags], env={**os.environ, **variables},
                              capture_output=True, text=True)

    def rows(self):
        return {row["peer"]: row for row in map(json.loads, (self.folder / "rows.jsonl").read_text().splitlines())}

    def test_each_peer_has_a_row_also_one_that_is_missing_or_late(self):
        done = self.run_it("--peers=torchao,deepspeed,torch,deepspeed:0.5,causeway:auto")
        self.assertEqual(0, done.returncode, done.stderr)
        rows = self.rows()
        self.assertEqual(["torchao", "deepspeed", "torch", "deepspeed:0.5", "causeway:auto"], list(rows))
        self.assertRegex(rows["torchao"]["error"], "expected the package torchao beside PyTorch")
        self.assertEqual("expected an end within 2 s, got none", rows["deepspeed"]["error"])
        self.assertEqual(40, rows["torch"]["update_ms"])
        self.assertIn("causeway:auto takes 0.50 of the update's time of deepspeed:0.5, the best other", done.stdout)

    def test_resume_tries_again_what_failed_and_keeps_the_others(self):
        self.run_it("--peers=torch,torchao")
        done = self.run_it("--peers=torch,torchao", "--resume", MENDED="1")
        self.assertNotIn("torch ", done.stdout)
        self.assertEqual(20, self.rows()["torchao"]["update_ms"])

    def test_peers_and_models_that_are_none_are_refused(self):
        for peer in ("zero", "causeway", "causeway:0", "deepspeed:2", "torch:1"):
            self.assertRegex(self.run_it(f"--peers={peer}").stderr, f"expected some of resident,.*, got '{peer}'")
        self.assertRegex(self.run_it("--model=7b").stderr, "expected a model of tiny, .*, got '7b'")

    def test_a_folder_without_wheels_is_refused(self):
        self.assertRegex(self.run_it(f"--wheels={self.folder}").stderr, "--wheels: expected a folder with wheels, got ")


if __name__ == "__main__":
    unittest.main()
