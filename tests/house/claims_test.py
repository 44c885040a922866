"""docs/security.md: each test that its last table names is there."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADING = "## Claims and their tests"


def named(page):
    """{test: claim} of the table's rows, and the claims that have none."""
    tests, without = {}, []
    for line in page.partition(HEADING)[2].splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|") or cells[0] == "claim" or set(cells[0]) == {"-"}:
            continue
        found = re.findall(r"`([\w.]+)`", cells[-1])
        tests |= dict.fromkeys(found, cells[0])
        if not found:
            without.append(cells[0])
    return tests, without


def existing():
    """The names of all tests: of C++ without their suite, of Python without their class, of programs as ctest has them, and
    of scripts as FOLDER.FILE."""
    names = {f"{path.parts[-3]}.{path.stem}" for path in (ROOT / "tests").rglob("testdata/*.txt")}
    for path in (ROOT / "tests").rglob("CMakeLists.txt"):
        names |= set(re.findall(r"add_test\(NAME ([\w.]+) ", path.read_text()))
    for path in (ROOT / "tests").rglob("*_test.cc"):
        names |= set(re.findall(r"^TEST(?:_[FP])?\(\w+,\s*(\w+)\)", path.read_text(), re.MULTILINE))
    for path in (ROOT / "tests").rglob("*.py"):
        names |= set(re.findall(r"^ +def (test_\w+)\(", path.read_text(), re.MULTILINE))
    return names


class ClaimsTest(unittest.TestCase):
    def test_each_claim_of_the_page_has_a_test_that_exists(self):
        tests, without = named((ROOT / "docs" / "security.md").read_text())
        self.assertGreater(len(tests), 20)
        self.assertEqual([], without, "claims without a test")
        self.assertEqual({}, {test: claim for test, claim in tests.items() if test not in existing()})

    def test_a_claim_without_a_test_is_seen(self):
        self.assertEqual(({"A": "x"}, ["y"]), named(f"{HEADING}\n\n| claim | test |\n|---|---|\n| x | `A` |\n| y | none |\n"))


if __name__ == "__main__":
    unittest.main()
