import contextlib
import io
import pathlib
import tempfile
import unittest

from peers_lib import cases, table, wan
from round_lib import run
from wan_lib import figures


class MeasureTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.rows = table.PeerRows(pathlib.Path(folder.name) / "peers.jsonl", resume=False)
        self.calls = []

    def entry(self, name, *figures_given):
        given = iter(figures_given)

        def measure():
            self.calls.append(name)
            figure = next(given)
            if isinstance(figure, str):
                raise table.Unavailable(figure)
            return figure
        return cases.Entry(name, measure)

    def measure(self, turns, *entries):
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            cases.measure(cases.Case("part", "case", "s", list(entries), turns), self.rows)
        return {row["name"]: (row["value"], row["reason"]) for row in self.rows.rows}

    def test_programs_take_turns_and_medians_count(self):
        result = self.measure(3, self.entry("a", 1, 9, 2), self.entry("b", 5, 4, 3))
        self.assertEqual(self.calls, ["a", "b"] * 3)
        self.assertEqual(result, {"a": (2, ""), "b": (4, "")})

    def test_a_program_that_fails_has_a_reason_and_takes_no_more_turns(self):
        result = self.measure(3, self.entry("a", 1, "no network"), self.entry("b", 5, 4, 3))
        self.assertEqual(self.calls, ["a", "b", "a", "b", "b"])
        self.assertEqual(result, {"a": (None, "no network"), "b": (4, "")})

    def test_a_case_of_one_turn_measures_only_what_is_missing(self):
        self.measure(1, self.entry("a", 1))
        self.measure(1, self.entry("a", 2), self.entry("b", 3))
        self.assertEqual(self.calls, ["a", "b"])

    def test_a_case_in_turns_is_measured_as_a_whole(self):
        self.measure(2, self.entry("a", 1, 1))
        result = self.measure(2, self.entry("a", 2, 2), self.entry("b", 3, 3))
        self.assertEqual(result, {"a": (2, ""), "b": (3, "")})


class SettingsTest(unittest.TestCase):
    def test_a_peer_measures_whole_rounds_after_the_first_or_the_fragments_that_fit(self):
        self.assertEqual(wan.peer_window(200, "float32", 165)[:2], (8, 40))
        self.assertEqual(wan.peer_window(50, "float32", 20)[:2], (1, 5))

    def test_a_ring_of_half_the_bytes_takes_half_the_time(self):
        self.assertAlmostEqual(wan.peer_window(50, "float32", 165)[2], 2 * wan.peer_window(50, "bfloat16", 165)[2])

    def test_every_step_of_the_round_part_is_a_round_of_all_parameters(self):
        config = run.config("int4", 10, "strict")
        self.assertEqual((config["sync"]["sync_every"], config["sync"]["num_fragments"], config["model"]["step_ms"]),
                         (1, 1, 0))
        self.assertEqual(len(config["model"]["tensors"]), figures.TENSORS)


if __name__ == "__main__":
    unittest.main()
