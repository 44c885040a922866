"""A program with a limit: its last line, or why there is none."""

import sys
import unittest

from limited_process import last_row


class LastRowTest(unittest.TestCase):
    def row(self, program, limit_s=60):
        return last_row([sys.executable, "-c", program], limit_s)

    def test_the_last_line_is_the_row(self):
        self.assertEqual({"a": 1}, self.row("print('noise'); print('{\"a\": 1}')"))

    def test_a_failure_is_a_row_with_the_last_words(self):
        self.assertRegex(self.row("raise SystemExit('no card')")["error"], "^exit code 1 after .* s: no card$")

    def test_so_is_a_program_that_says_nothing(self):
        self.assertRegex(self.row("print('done')")["error"], "^exit code 0 after .* s: done$")

    def test_what_takes_longer_than_its_limit_ends(self):
        self.assertEqual({"error": "expected an end within 0.2 s, got none"}, self.row("import time; time.sleep(600)", 0.2))


if __name__ == "__main__":
    unittest.main()
