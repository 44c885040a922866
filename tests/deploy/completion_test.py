"""Bash completes what the programs know: their commands and flags."""

import os
import pathlib
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARIES = pathlib.Path(os.environ["CAUSEWAY_BIN_DIR"])
SCRIPT = ROOT / "deploy" / "completion" / "causeway.bash"


def complete(*words):
    """The words that bash offers for the last of the words, split as bash splits a line."""
    line = " ".join(f'"{word}"' for word in words)
    script = (f'source {SCRIPT}; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _causeway; '
              'printf "%s\\n" "${COMPREPLY[@]}"')
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.split())


class CompletionTest(unittest.TestCase):
    def setUp(self):
        self.control = str(BINARIES / "causewayctl")

    def test_the_first_word_of_causewayctl_is_one_of_its_commands(self):
        self.assertEqual(complete(self.control, ""),
                         {"status", "set", "settings", "export", "drain", "pause", "resume", "stop", "release", "rollback", "promote", "standby", "history", "report", "config-check",
                          "init", "plan"})
        self.assertEqual(complete(self.control, "st"), {"standby", "status", "stop"})
        self.assertIn("inner.lr=", complete(self.control, "set", "inner."))

    def test_flags_are_those_of_the_programs_own_help(self):
        for program in ("causewayctl", "causeway-worker", "causeway-coordinator"):
            offered = complete(str(BINARIES / program), "x", "--c")
            text = subprocess.run([BINARIES / program, "--helpfull"], capture_output=True, text=True, check=False).stdout
            known = {line.split()[0] + "=" for line in text.splitlines() if line.startswith("  --c")}
            self.assertTrue(known, program)
            self.assertEqual(offered, known, program)

    def test_values_are_files_folders_or_the_choices_there_are(self):
        worker = str(BINARIES / "causeway-worker")
        self.assertIn("README.md", complete(worker, "--data", "=", "READ"))
        self.assertEqual(complete(worker, "--log_format", "=", "j"), {"json"})
        self.assertIn("deploy", complete(worker, "--checkpoint_dir", "=", "dep"))
        self.assertNotIn("README.md", complete(worker, "--checkpoint_dir", "=", "READ"))
        self.assertEqual(complete(worker, "--site", "=", ""), set())


if __name__ == "__main__":
    unittest.main()
