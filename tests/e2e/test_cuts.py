"""Bulk connections that are cut in the middle of a fragment: transfers go on at the missing chunks, to the same bits.

docs/data/measurements.md says what a hundred of them cost.
"""

import pathlib
import sys
import unittest

from harness import BIN_DIR, DigestBook, EndToEndTest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "chaos"))

from cuts_lib import run as cut_runs  # noqa: E402

CUTS = 4


class CutTest(EndToEndTest):
    def test_a_cut_connection_costs_some_chunks_and_no_bit(self):
        scale = cut_runs.Scale(cuts=CUTS)
        book = DigestBook()
        plain = cut_runs.run(BIN_DIR, self.folder / "plain", cut_runs.fast(scale), cut=False)
        outcome = cut_runs.run(BIN_DIR, self.folder / "cut", scale, cut=True, note=book.note_run)
        self.assertEqual(cut_runs.broken_promises(scale, outcome, plain), [])
        self.assertEqual({cut["direction"] for cut in outcome.cuts}, {"up", "down"})
        self.assertTrue(cut_runs.costs(outcome.rows), "no cut fell into a round")
        self.assertTrue(book.reported, "no digest was compared")


if __name__ == "__main__":
    unittest.main()
