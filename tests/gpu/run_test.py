"""tests/gpu/run: limits, failures, rows that are there, and the order of what is missing."""

import json
import pathlib
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "bench")]

from gpu_lib import rows  # noqa: E402
from gpu_lib.runner import Command, Part, Runner  # noqa: E402

TAGS = {"gpu": "card", "commit": "new"}


def python(text):
    return Command([sys.executable, "-c", text])


def part(name, *commands, limit_s=60):
    return Part(name, name, limit_s, lambda folder: list(commands))


class RunnerTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = pathlib.Path(folder.name)
        self.kept = rows.Rows(self.out / "gpu.jsonl", TAGS)

    def run_parts(self, *parts, seconds=None, **more):
        return Runner(self.out, self.kept, say=lambda text: None, **more).run(parts, seconds)

    def ends(self):
        return {row["part"]: row for row in rows.read(self.kept.path) if "result" in row}

    def test_what_a_program_prints_is_a_row_at_once_with_card_and_commit(self):
        kept = self.out / "gpu.jsonl"
        looks = f"print('{{\"ms\": 3}}', flush=True); import time\nwhile open('{kept}').read().count('ms') < 1: time.sleep(0.01)"
        kept.touch()
        self.assertEqual(self.run_parts(part("one", python(looks))), {"one": "done"})
        row = rows.read(kept)[0]
        self.assertEqual((row["ms"], row["part"], row["gpu"], row["commit"]), (3, "one", "card", "new"))

    def test_its_command_is_kept_as_one_types_it_in_a_checkout(self):
        self.run_parts(part("one", python("print('{}')"), Command([HERE / "run", f"--out={self.out}/one", "--minutes=x"])))
        row, end = rows.read(self.kept.path)
        self.assertEqual(row["command"], "python3 -c 'print('\"'\"'{}'\"'\"')'")
        self.assertEqual(end["why"], ["exit status 2: tests/gpu/run --out=build/gpu/one --minutes=x"])

    def test_a_part_that_fails_stops_nothing_and_says_why(self):
        results = self.run_parts(part("bad", python("raise SystemExit(3)"), python("print('{\"after\": 1}')")),
                                 part("missing", Command(["/no/such/program"])), part("good", python("")))
        self.assertEqual(results, {"bad": "failed", "missing": "failed", "good": "done"})
        self.assertIn("exit status 3", self.ends()["bad"]["why"][0])
        self.assertIn("after", rows.read(self.kept.path)[0])

    def test_a_part_that_cannot_be_run_here_says_what_was_expected(self):
        def refuse(folder):
            raise ValueError("expected a NCCL, found none")

        self.assertEqual(self.run_parts(Part("ranks", "", 60, refuse)), {"ranks": "failed"})
        self.assertEqual(self.ends()["ranks"]["why"], ["expected a NCCL, found none"])

    def test_a_part_is_cut_at_its_limit_with_all_that_it_started_and_keeps_its_rows(self):
        child = self.out / "child"
        hangs = (f"import subprocess, sys, time; p = subprocess.Popen(['sleep', '1000'], start_new_session=False)\n"
                 f"open('{child}', 'w').write(str(p.pid)); print('{{\"first\": 1}}', flush=True); time.sleep(1000)")
        results = self.run_parts(part("slow", python(hangs), python(""), limit_s=2), part("next", python("")))
        self.assertEqual(results, {"slow": "cut", "next": "done"})
        self.assertEqual(len(self.ends()["slow"]["why"]), 2)
        self.assertEqual(rows.read(self.kept.path)[0]["first"], 1)
        state = pathlib.Path(f"/proc/{child.read_text()}/stat")
        self.assertTrue(not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z")

    def test_nothing_is_begun_when_the_time_is_over(self):
        clock = iter(range(0, 1000, 25))
        parts = [part(name, python("")) for name in "abc"]
        self.assertEqual(set(self.run_parts(*parts, seconds=90, now=lambda: next(clock))), {"a"})


class NextTest(unittest.TestCase):
    def order(self, *ended):
        known = [{"part": name, "gpu": gpu, "commit": commit, "result": result} for name, gpu, commit, result in ended]
        return [chosen.name for chosen in rows.next_parts([part(name) for name in "abcd"], known, "card", "new")]

    def test_those_that_this_card_never_did_come_first_then_the_oldest(self):
        self.assertEqual(self.order(), list("abcd"))
        self.assertEqual(self.order(("a", "card", "new", "done"), ("b", "other card", "new", "done")), list("bcd"))
        self.assertEqual(self.order(("b", "card", "old", "done"), ("a", "card", "old", "done")), list("cdba"))

    def test_those_that_failed_at_this_commit_come_after_what_was_not_tried(self):
        self.assertEqual(self.order(("a", "card", "new", "failed"), ("b", "card", "new", "cut")), list("cdab"))
        self.assertEqual(self.order(("a", "card", "old", "failed")), list("abcd"))


if __name__ == "__main__":
    unittest.main()
