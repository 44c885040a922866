"""A program with a limit: its last line, or why there is none."""

import pathlib
import sys
import tempfile
import time
import unittest

from limited_process import last_row, rows_of


class LastRowTest(unittest.TestCase):
    def row(self, program, limit_s=60):
        return last_row([sys.executable, "-c", program], limit_s)

    def test_the_last_line_is_the_row(self):
        self.assertEqual({"a": 1}, self.row("print('noise'); print('{\"a\": 1}')"))

    def test_a_failure_is_a_row_with_the_last_words(self):
        self.assertRegex(self.row("raise SystemExit('no card')")["error"], "^exit code 1 after .* s: no card$")

    def test_rows_before_a_failure_are_kept(self):
        rows = list(rows_of([sys.executable, "-c", "print('{\"a\": 1}'); print('{\"a\": 2}'); raise SystemExit('full')"], 60))
        self.assertEqual([{"a": 1}, {"a": 2}], rows[:2])
        self.assertRegex(rows[2]["error"], "^exit code 1 after .* s: full$")

    def test_so_is_a_program_that_says_nothing(self):
        self.assertRegex(self.row("print('done')")["error"], "^exit code 0 after .* s: done$")

    def test_what_takes_longer_than_its_limit_ends(self):
        self.assertEqual({"error": "expected an end within 0.2 s, got none"}, self.row("import time; time.sleep(600)", 0.2))

    def test_so_does_what_it_started_in_a_group_of_its_own(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "pid"
            self.row("import os, pathlib, subprocess, sys, time\n"
                     "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], preexec_fn=os.setpgrp)\n"
                     f"pathlib.Path({str(path)!r}).write_text(str(child.pid))\ntime.sleep(600)", 2)
            status = pathlib.Path(f"/proc/{path.read_text()}/status")
            self.assertTrue(self.ends(status))

    def ends(self, status):
        """A process that was killed is gone when the kernel gets to it, on a busy machine some moments later."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                if "State:\tZ" in status.read_text():
                    return True
            except (FileNotFoundError, ProcessLookupError):
                return True
        return False


if __name__ == "__main__":
    unittest.main()
