#!/usr/bin/python3
"""Each planted fault (plants.py) still finds the text that it changes: one that does not is never tried."""

import importlib.util
import pathlib
import sys
import unittest

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]


def plants_of(path):
    spec = importlib.util.spec_from_file_location("plants", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.PLANTS


def faults_of(plants, read):
    """The edits whose text does not stand once in its file."""
    faults = []
    for name, edits in plants.items():
        for file, old, _ in edits:
            count = read(file).count(old)
            if count != 1:
                faults.append(f"{name}: {file}: expected its text once, found it {count} times: {old.strip()[:80]}")
    return faults


class PlantsTest(unittest.TestCase):
    def test_each_finds_its_text_once(self):
        lists = sorted(ROOT.glob("tests/**/plants.py"))
        self.assertGreaterEqual(len(lists), 4)
        for path in lists:
            self.assertEqual([], faults_of(plants_of(path), lambda file: (ROOT / file).read_text()), path)

    def test_one_that_has_gone_or_stands_twice_is_named(self):
        self.assertEqual(["a: f: expected its text once, found it 0 times: x = 1",
                          "b: f: expected its text once, found it 2 times: y"],
                         faults_of({"a": [("f", "x = 1", "")], "b": [("f", "y", ""), ("f", "z", "")]}, lambda _: "y y z"))


if __name__ == "__main__":
    unittest.main()
