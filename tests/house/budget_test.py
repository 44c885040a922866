#!/usr/bin/python3
"""Counts the lines of each top folder against its row in tests/golden/budget.txt: C++ of the product, Python of
python/, code and scripts of tests/.

    budget_test.py              fails where a folder has more lines than its row
    budget_test.py --record     lowers rows to the lines that are there, rounded up to hundreds; reasons go

A row only falls. A change that needs more room raises it first, in a commit of its own, with the reason beside it.
"""

import collections
import sys
import unittest

from includes_test import ROOT, SOURCE_SUFFIXES, tracked_files

BUDGET = ROOT / "tests" / "golden" / "budget.txt"
TEST_SUFFIXES = SOURCE_SUFFIXES | {".py", ".js"}


def row_of(name, begins):
    """The row that a file counts for, or None. `begins`: its first two bytes, without a suffix."""
    folder, _, base = name.partition("/")
    suffix = name[name.rindex("."):] if "." in base.rpartition("/")[2] else ""
    if folder == "tests":
        return folder if suffix in TEST_SUFFIXES or (not suffix and begins() == b"#!") else None
    if folder == "python" and suffix == ".py":
        return folder
    return folder if suffix in SOURCE_SUFFIXES and folder != "examples" else None


def lines_of_folders():
    lines = collections.Counter()
    for name in filter(lambda name: (ROOT / name).is_file(), tracked_files()):
        row = row_of(name, lambda: (ROOT / name).read_bytes()[:2])
        if row:
            lines[row] += (ROOT / name).read_bytes().count(b"\n")
    return lines


def recorded():
    """{folder: (most lines, reason)}"""
    rows = (line.split(maxsplit=2) for line in BUDGET.read_text().splitlines() if not line.startswith("#"))
    return {folder: (int(most), *reason) for folder, most, *reason in rows}


def faults_of(lines, budget):
    return [f"{folder}: {got} lines, at most {budget.get(folder, (0,))[0]}: take something away, or raise its row in "
            "tests/golden/budget.txt first, with the reason"
            for folder, got in sorted(lines.items()) if got > budget.get(folder, (0,))[0]]


class Budget(unittest.TestCase):
    def test_code_and_scripts_count_and_data_does_not(self):
        shell, data = (lambda: b"#!"), (lambda: b"\0\0")
        counted = {"core/ids.h": "core", "worker/device/cuda/a.cu": "worker", "tests/sim/run": "tests",
                   "tests/house/a_test.py": "tests", "python/causeway/__init__.py": "python"}
        for name, row in counted.items():
            self.assertEqual(row, row_of(name, shell), name)
        for name in ("tests/golden/budget.txt", "examples/a.cc", "docs/a.md", "deploy/a.py", "tests/fuzz/corpus/a"):
            self.assertIsNone(row_of(name, data), name)

    def test_a_folder_beyond_its_row_or_without_one_is_named(self):
        self.assertEqual([], faults_of({"core": 100}, {"core": (100,)}))
        self.assertIn("core: 101 lines, at most 100", faults_of({"core": 101}, {"core": (100,)})[0])
        self.assertIn("hall: 1 lines, at most 0", faults_of({"hall": 1}, {})[0])

    def test_no_folder_is_beyond_its_row(self):
        self.assertEqual("", "\n".join(faults_of(lines_of_folders(), recorded())))


def main(arguments):
    if arguments != ["--record"]:
        return unittest.main()
    lines, budget = lines_of_folders(), recorded()
    head = [line for line in BUDGET.read_text().splitlines() if line.startswith("#")]
    rows = [(folder, min(budget.get(folder, (got,))[0], -(-got // 100) * 100)) for folder, got in sorted(lines.items())]
    BUDGET.write_text("\n".join([*head, *(f"{folder:10}{most:6}" for folder, most in rows)]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
