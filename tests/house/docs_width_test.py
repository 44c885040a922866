"""Holds lines of prose in README, docs, CHANGELOG and CONTRIBUTING to 100 columns.

    docs_width_test.py            checks this tree, and first that the checker sees a planted line

Rows of tables, code and lines that one long link or `word` fills cannot be broken.
"""

import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
COLUMNS = 100
FENCE = re.compile(r"^\s*```")
UNBROKEN = re.compile(r"^\s*(?:[-*] )?(?:`[^`]*`|\[[^\]]*\]\([^)]*\))[,.;:)]?$")


def wide_lines(text):
    """(number, line) of those that are too wide."""
    wide, code = [], False
    for number, line in enumerate(text.splitlines(), 1):
        code ^= bool(FENCE.match(line))
        prose = not (code or line.startswith(("|", "    ")) or UNBROKEN.match(line))
        if prose and len(line) > COLUMNS:
            wide.append((number, line))
    return wide


class WidthTest(unittest.TestCase):
    def test_a_wide_line_of_prose_is_seen_and_nothing_else(self):
        word = "word " * 21
        self.assertEqual([(2, word)], wide_lines(f"# Head\n{word}\n| {word} |\n    {word}\n```\n{word}\n```\n`{word}`\n"))

    def test_this_tree(self):
        listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
        wide = [f"{name}:{number}: {len(line)} columns, at most {COLUMNS}" for name in listed.stdout.splitlines()
                for number, line in wide_lines((ROOT / name).read_text())]
        self.assertEqual("", "\n".join(wide))


if __name__ == "__main__":
    unittest.main()
