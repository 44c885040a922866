import json
import pathlib
import tempfile
import unittest

from peers_lib import table


def row(name, value, unit="s", **more):
    return {"part": "round", "case": "a round", "name": name, "ours": False, "baseline": False, "value": value,
            "unit": unit, "note": "", "reason": "", "processor": "P"} | more


class MarkdownTest(unittest.TestCase):
    def lines(self, *rows):
        return table.markdown(list(rows)).splitlines()[4:]

    def test_figures_are_divided_by_the_baseline_which_comes_first(self):
        lines = self.lines(row("Causeway int4", 0.4, ours=True), row("torchft", 0.8, baseline=True))
        self.assertEqual(lines, ["| a round | torchft | 0.8 s | 1.00 |  |",
                                 "| a round | **Causeway int4** | 0.4 s | 0.50 | win |"])

    def test_less_time_wins_and_less_of_anything_else_loses(self):
        for unit, result in (("s", "win"), ("tokens/s", "loss"), ("of the time", "loss"), ("GB/s", "loss")):
            lines = self.lines(row("peer", 2, unit, baseline=True), row("ours", 1, unit, ours=True))
            self.assertTrue(lines[1].endswith(f"| 0.50 | {result} |"), lines[1])

    def test_a_difference_of_two_percent_is_even(self):
        lines = self.lines(row("peer", 1, baseline=True), row("ours", 1.015, ours=True))
        self.assertTrue(lines[1].endswith("| even |"))

    def test_a_missing_peer_leaves_its_row_with_the_reason(self):
        lines = self.lines(row("torchft", None, reason="no\nnetwork | none", baseline=True),
                           row("ours", 1, ours=True))
        self.assertEqual(lines, ["| a round | torchft | – | – | not measured: no network / none |",
                                 "| a round | **ours** | 1 s | – |  |"])

    def test_the_head_names_the_processor(self):
        self.assertEqual(table.markdown([row("peer", 1)]).splitlines()[0], "Processor: P.")


class PeerRowsTest(unittest.TestCase):
    def test_resuming_keeps_measured_rows_and_measures_the_others_again(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "peers.jsonl"
            path.write_text("".join(json.dumps(each) + "\n" for each in (row("a", 1), row("b", None))))
            rows = table.PeerRows(path, resume=True)
            self.assertTrue(rows.have("round", "a round", "a"))
            self.assertFalse(rows.have("round", "a round", "b"))
            self.assertEqual(table.PeerRows(path, resume=False).rows, [])


if __name__ == "__main__":
    unittest.main()
