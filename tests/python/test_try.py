"""python -m causeway.try: a script as several sites of one run, in one terminal."""

import os
import pathlib
import re
import signal
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "e2e"))

from harness import BAD_INPUT, DONE, EndToEndTest, eventually, read_safetensors  # noqa: E402

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
