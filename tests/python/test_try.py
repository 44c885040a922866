"""python -m causeway.try: a script as several sites of one run, in one terminal."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "e2e"))

from harness import BAD_INPUT, BIN_DIR, DONE, EndToEndTest, eventually, read_safetensors  # noqa: E402

SCRIPT = """
import pathlib, sys, time
import numpy
import causeway
parameters = {"weight": numpy.zeros((10, 4), numpy.float32)}
with causeway.Site(parameters) as site:
    while not site.over:
        time.sleep(float(sys.argv[2]))
        parameters["weight"] += 0.01
        print("stepping", end="\\r")
        site.after_step(tokens=512, loss=2.5)
pathlib.Path(sys.argv[1]).write_text("trained")
print("has ended", end="")
"""


class TryTest(EndToEndTest):
    def start(self, *arguments, script=SCRIPT):
        path = self.folder / "script.py"
        path.write_text(script)
        arguments = [each.replace("SCRIPT", str(path)) for each in arguments]
        return self.program(self.folder, "try", sys.executable, "-m", "causeway.try", *arguments)

    def test_two_sites_train_to_the_end_and_their_model_is_written(self):
        tried = self.start("--steps=40", f"--out={self.folder}/out", "--", "SCRIPT", f"{self.folder}/{{site}}.txt", "0.005")
        self.assertEqual(tried.wait(), DONE, tried.log())
        said = tried.log() + tried.output()
        self.assertRegex(said, r"page: http://127\.0\.0\.1:\d+/")
        for site in ("eu", "us"):
            self.assertIn(f"         {site} │ causeway: joins run try as {site}; page http://127.0.0.1:", said)
            self.assertIn(f"         {site} │ has ended", said)
            self.assertEqual((self.folder / f"{site}.txt").read_text(), "trained")
        self.assertRegex(said, r"causeway: the run waits: [01] of 2 sites are ready")
        self.assertNotRegex(said, r"Z info ")
        self.assertTrue(read_safetensors(self.folder / "out" / "model" / "model.safetensors")["weight"].any())

    def test_a_site_that_fails_ends_the_others_with_its_code(self):
        script = SCRIPT.replace("parameters = ", "if 'us.txt' in sys.argv[1]: sys.exit(7)\nparameters = ")
        tried = self.start("--", "SCRIPT", f"{self.folder}/{{site}}.txt", "0.01", script=script)
        self.assertEqual(tried.wait(), 7, tried.log())
        self.assertIn("site us has ended with 7: the others are ended, too", tried.log() + tried.output())

    def test_a_script_that_names_a_coordinator_and_a_site_is_tried_here_all_the_same(self):
        script = SCRIPT.replace("causeway.Site(parameters)", "causeway.Site(parameters, coordinator='hub:7077', site='eu', "
                                "tls_ca='ca.pem', token_file='token', insecure=False)")
        tried = self.start("--steps=20", "--", "SCRIPT", f"{self.folder}/{{site}}.txt", "0", script=script)
        self.assertEqual(tried.wait(), DONE, tried.log() + tried.output())
        said = tried.log() + tried.output()
        for site in ("eu", "us"):
            self.assertRegex(said, rf"{site} │ causeway: tried: coordinator and site are 127.0.0.1:\d+ and {site}, not the script's")

    def test_a_script_that_joins_no_run_gets_words_of_what_was_expected(self):
        tried = self.start("--sites=1", "--", "SCRIPT", script="print('no causeway here')")
        self.assertNotEqual(tried.wait(), DONE)
        self.assertIn("no model: expected a script that enters causeway.DiLoCo", tried.log() + tried.output())

    def test_a_module_and_a_program_are_scripts_too(self):
        (self.folder / "package").mkdir()
        (self.folder / "package" / "train.py").write_text(SCRIPT)
        shell = self.folder / "train"
        shell.write_text(f"#!/bin/sh\nexec {sys.executable} {self.folder}/script.py \"$@\"\n")
        shell.chmod(0o755)
        for script in (["-m", "package.train"], [str(shell)], ["env", sys.executable, "SCRIPT"]):
            with mock.patch.dict(os.environ, PYTHONPATH=f"{self.folder}:{os.environ.get('PYTHONPATH', '')}"):
                tried = self.start("--sites=1", "--steps=20", "--", *script, f"{self.folder}/{{site}}.txt", "0")
            self.assertEqual(tried.wait(), DONE, tried.log() + tried.output())
            self.assertEqual((self.folder / "eu.txt").read_text(), "trained")
            (self.folder / "eu.txt").unlink()

    def test_sigterm_ends_everything_also_what_a_script_has_started_and_left(self):
        script = SCRIPT.replace("with causeway", "import subprocess\nleft = subprocess.Popen(['sleep', '1000'])\n"
                                "pathlib.Path(sys.argv[1]).write_text(str(left.pid))\nwith causeway")
        tried = self.start("--sites=1", "--steps=100000", "--", "SCRIPT", f"{self.folder}/pid", "0.01", script=script)
        eventually(lambda: "enters after step 0" in tried.log() + tried.output(), "it trains")
        tried.send(signal.SIGTERM)
        self.assertEqual(tried.wait(), 130, tried.log())
        pid = (self.folder / "pid").read_text()
        eventually(lambda: not os.path.exists(f"/proc/{pid}") or "Z" in pathlib.Path(f"/proc/{pid}/stat").read_text(), "it ends")

    def test_a_terminal_of_ascii_and_one_that_is_gone_stop_no_site(self):
        script = SCRIPT.replace('print("stepping", end="\\r")', 'sys.stdout.buffer.write("schritt für schritt\\n".encode() * 50)')
        path = self.folder / "script.py"
        path.write_text(script)
        for behind in ("cat", "head -n 3"):
            done = subprocess.run(
                ["bash", "-o", "pipefail", "-c", f"{sys.executable} -m causeway.try --sites=1 --steps=100 -- {path} "
                 f"{self.folder}/{{site}}.txt 0.001 | {behind}"], capture_output=True, text=True, timeout=60,
                env={**os.environ, "PYTHONIOENCODING": "ascii", "CAUSEWAY_BIN_DIR": str(BIN_DIR)})
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual((self.folder / "eu.txt").read_text(), "trained")
            (self.folder / "eu.txt").unlink()

    def test_ctrl_c_ends_everything(self):
        tried = self.start("--steps=100000", f"--out={self.folder}/out", "--", "SCRIPT", "x", "0.01")
        eventually(lambda: "enters after step 0" in tried.log() + tried.output(), "both train")
        tried.send(signal.SIGINT)
        self.assertEqual(tried.wait(), 130, tried.log())
        named = re.compile(rb"script\.py|causeway-coordinator")
        left = [pid for pid in os.listdir("/proc") if pid.isdigit() and self.command(pid).find(str(self.folder).encode()) >= 0
                and named.search(self.command(pid))]
        self.assertEqual(left, [])

    @staticmethod
    def command(pid):
        try:
            return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return b""

    def test_bad_arguments_are_refused_before_anything_starts(self):
        (self.folder / "state").mkdir()
        for arguments, words in (((), "-- script.py"), (("--", "nowhere.py"), "nowhere.py, which does not exist"),
                                 (("--sites=9", "--", "SCRIPT"), "expected 1 to 8, got 9"),
                                 (("--steps=0", "--", "SCRIPT"), "expected 1 or more"),
                                 ((f"--out={self.folder}", "--", "SCRIPT"), "which has one")):
            tried = self.start(*arguments)
            self.assertEqual(tried.wait(), BAD_INPUT, tried.log())
            self.assertIn(words, tried.log() + tried.output())


if __name__ == "__main__":
    unittest.main()
