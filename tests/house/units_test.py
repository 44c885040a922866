#!/usr/bin/python3
"""Counts the units of each folder of the product (a header with its source), and the share of its lines that are includes,
guards and namespaces. Beyond the limits they may only fall: tests/golden/units.txt.

    units_test.py              fails where a folder has outgrown its row
    units_test.py --record     lowers rows to what is there

A unit with one user in its own folder lives in that user's file, until both together pass 500 lines or it has a test of its
own that could not be the user's.
"""

import collections
import re
import sys
import unittest

from includes_test import ROOT, SOURCE_SUFFIXES, tracked_files

RECORD = ROOT / "tests" / "golden" / "units.txt"
MOST_UNITS, MOST_PERCENT = 20, 8
FRAME = re.compile(r"#\s*(?:include|ifndef|define \w+_H_$|endif)|namespace\b|\}  // namespace")


def counts_of(sources):
    """{folder: (units, percent of frame lines, rounded up)} of sources {name: text}."""
    units, frame, lines = collections.defaultdict(set), collections.Counter(), collections.Counter()
    for name, text in sources.items():
        folder = name.rpartition("/")[0]
        units[folder].add(name.rpartition(".")[0])
        lines[folder] += text.count("\n")
        frame[folder] += sum(bool(FRAME.match(line)) for line in text.split("\n"))
    return {folder: (len(units[folder]), -(-100 * frame[folder] // lines[folder])) for folder in units}


def counts_of_tree():
    names = [name for name in tracked_files() if name.endswith(tuple(SOURCE_SUFFIXES)) and (ROOT / name).is_file()
             and not name.startswith(("tests/", "examples/"))]
    return counts_of({name: (ROOT / name).read_text() for name in names})


def recorded():
    rows = (line.split() for line in RECORD.read_text().splitlines() if not line.startswith("#"))
    return {folder: (int(units), int(percent)) for folder, units, percent in rows}


def faults_of(counts, record):
    faults = []
    for folder, (units, percent) in sorted(counts.items()):
        most_units, most_percent = (max(*pair) for pair in zip((MOST_UNITS, MOST_PERCENT), record.get(folder, (0, 0))))
        if units > most_units:
            faults.append(f"{folder}: {units} units, at most {most_units}: let one that has one user live in its file")
        if percent > most_percent:
            faults.append(f"{folder}: {percent} % of its lines are includes and namespaces, at most {most_percent}")
    return faults


class Units(unittest.TestCase):
    def test_a_header_and_its_source_are_one_unit(self):
        sources = {"x/a.h": "#include <map>\nint a;\n", "x/a.cc": "namespace x {\nint a;\n}\n", "x/b.cc": "int b;\n"}
        self.assertEqual({"x": (2, 34)}, counts_of(sources))

    def test_a_folder_beyond_a_limit_and_its_row_is_named(self):
        self.assertEqual([], faults_of({"x": (20, 8), "y": (30, 12)}, {"y": (30, 12)}))
        self.assertEqual(2, len(faults_of({"x": (21, 9)}, {})))
        self.assertIn("y: 31 units, at most 30", faults_of({"y": (31, 12)}, {"y": (30, 12)})[0])

    def test_no_folder_has_outgrown_its_row(self):
        self.assertEqual("", "\n".join(faults_of(counts_of_tree(), recorded())))


def main(arguments):
    if arguments != ["--record"]:
        return unittest.main()
    record = recorded() if RECORD.exists() else {}
    rows = [(folder, *(min(got, most) for got, most in zip(count, record.get(folder, count))))
            for folder, count in sorted(counts_of_tree().items()) if count[0] > MOST_UNITS or count[1] > MOST_PERCENT]
    RECORD.write_text("# Folders beyond a limit: units, percent of includes and namespaces, which may only fall. "
                      "See tests/house/units_test.py.\n" + "".join(f"{' '.join(map(str, row))}\n" for row in rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
