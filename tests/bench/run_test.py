"""The runner of tests/bench/run and tests/chaos/run: cases that are there already, that break off, that fail, and a time that is over."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import types
import unittest

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path += [str(TESTS / "e2e"), str(TESTS / "chaos"), str(TESTS.parent / "deploy")]

from bench_lib import runner  # noqa: E402


class RunnerTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out, self.measured = pathlib.Path(folder.name), []

    def rows(self, *numbers, given=(), fails=()):
        """{number: value} in the file, and the runner's word whether that is all."""
        def measure(case, bench):
            self.measured.append(case["number"])
            yield {"value": 1}
            if case["number"] in fails:
                raise RuntimeError("no luck")
            yield {"value": 2}

        module = types.SimpleNamespace(FILE="rows", QUICK={"pairs": 1}, OPTIONS={"pairs": (5, "of a case"), "names": (["a"], "some")},
                                       cases=lambda options: [{"number": number} for number in numbers], measure=measure)
        options = runner.parse_arguments(module, "tests/bench/run name", [f"--out={self.out}", f"--scratch={self.out}", *given])
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            bench = runner.Bench(module, "name", options)
            self.addCleanup(bench.log.close)
            whole = runner.measure(module, bench)
        self.options = options
        return [json.loads(line)["number"] for line in (self.out / "rows.jsonl").read_text().splitlines()], whole

    def test_rows_that_are_there_are_measured_again_only_without_resume(self):
        self.assertEqual(self.rows(1, 2), ([1, 1, 2, 2], True))
        self.assertEqual(self.rows(1, 2, 3, given=["--resume"]), ([1, 1, 2, 2, 3, 3], True))
        self.assertEqual(self.measured, [1, 2, 3])
        self.assertEqual(self.rows(1), ([1, 1], True))

    def test_a_case_that_fails_leaves_no_half_of_its_rows_and_stops_no_other(self):
        self.assertEqual(self.rows(1, 2, fails=[1]), ([2, 2], False))
        self.assertEqual(self.rows(1, 2, given=["--resume"]), ([2, 2, 1, 1], True))

    def test_nothing_is_begun_when_the_time_is_over(self):
        self.assertEqual(self.rows(1, given=["--minutes=-1"]), ([], False))

    def test_values_have_the_type_of_their_default_and_quick_changes_defaults_alone(self):
        self.rows(given=["--names=b,c", "--quick"])
        self.assertEqual((self.options.names, self.options.pairs), (["b", "c"], 1))
        self.rows(given=["--pairs=3", "--quick"])
        self.assertEqual(self.options.pairs, 3)


class ListTest(unittest.TestCase):
    def test_every_module_is_listed_and_has_what_the_runner_reads(self):
        for folder, command in (("bench/benchmarks", "tests/bench/run"), ("chaos/scenarios", "tests/chaos/run")):
            modules = runner.Modules(TESTS / folder, command)
            self.assertEqual([line.split()[0] for line in modules.listed()], modules.names)
            for name in modules.names:
                module = modules.load(name)
                self.assertLessEqual(set(module.QUICK), set(module.OPTIONS), name)
                for needed in ("FILE", "cases", "measure", "report"):
                    self.assertTrue(hasattr(module, needed), f"{name}: {needed}")


if __name__ == "__main__":
    unittest.main()
