"""Bulk connections that are cut in the middle of a fragment: transfers go on at the missing chunks, to the same bits.

Two sites in synchronous mode, one of them behind a link whose connections are reset now and then, each time at a byte that
a seed decides; docs/data/measurements.md says what a hundred of them cost.

    commit n ──► update n down ──► step ──► contribution n+1 up ──► commit n+1        an interval
                   a cut here      or        here
"""

import pathlib
import random
import statistics
import sys
import time
import unittest

from harness import DigestBook, EndToEndTest, merged, synthetic

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "chaos"))

from proxy import DOWN, UP, Proxy  # noqa: E402

NEAR, FAR = "near", "far"  # sites; FAR is behind the link
CUTS, FRAGMENTS, VALUES = 4, 2, 2_000_000  # 8 chunks of float32 a fragment
MEGABYTES_PER_S, ROUND_TRIP_S = 40, 0.1
MOST_AGAIN_BYTES = 5 << 20  # of the 8 chunks of a fragment: what a stream's window holds, and one written chunk
WARM_UP_ROUNDS = 4  # until rate and round trip are known, and the number of connections follows them
# A fragment's round in each step; a cut in every second one, and the first and last rounds have none.
CONFIG = synthetic({NEAR: 0.5, FAR: 0.25}, [[VALUES]] * FRAGMENTS, run={"steps": 2 * CUTS + 2 * WARM_UP_ROUNDS},
                   model={"init": "seeded", "gradient": {"kind": "noise"}}, membership={"lease_ms": 10_000},
                   sync={"sync_every": FRAGMENTS, "num_fragments": FRAGMENTS, "fragment_sync_delay": 0},
                   codec={"up": "float32", "down": "float32", "feedback_up": 0, "feedback_down": 0})


class Link:
    """The bytes of the link at each commit; and cuts, armed when a commit is seen, for some bytes later."""

    def __init__(self, run, cuts, *link):
        self.run, self.left = run, cuts
        self.proxy = Proxy(run.grpc, *link)
        self.random, self.seen = random.Random(1), []

    def look(self):
        [(commits,)] = self.run.journal("SELECT count(*) FROM rounds")
        while commits > len(self.seen):
            self.seen.append(self.proxy.total_bytes())
            number = len(self.seen)
            if number >= WARM_UP_ROUNDS and number % 2 == 0 and self.left:
                self.left -= 1
                self.proxy.cut_after((UP, DOWN)[self.left % 2], int(self.random.uniform(0.1, 0.8) * 4 * VALUES))

    def again(self):
        """(direction, bytes that an interval with one cut carried beyond the median of those without)"""
        decided = [at / 1e3 for (at,) in self.run.journal("SELECT decided_unix_ms FROM rounds ORDER BY id")]
        rows = [([cut["direction"] for cut in self.proxy.cuts if decided[i] <= cut["unix_s"] < decided[i + 1]],
                 {way: self.seen[i + 1][way] - self.seen[i][way] for way in (UP, DOWN)})
                for i in range(WARM_UP_ROUNDS - 1, len(decided) - 1)]
        usual = {way: statistics.median(carried[way] for cuts, carried in rows if not cuts) for way in (UP, DOWN)}
        return [(cuts[0], carried[cuts[0]] - usual[cuts[0]]) for cuts, carried in rows if len(cuts) == 1]


class CutTest(EndToEndTest):
    def play(self, cuts, step_ms, *link):
        """(run, link, status at the end)"""
        run, book = self.new_run(merged(CONFIG, {"model": {"step_ms": step_ms}})), DigestBook()
        run.start_coordinator()
        link = Link(run, cuts, *link)
        self.addCleanup(link.proxy.close)
        run.start_worker(NEAR)
        run.grpc, direct = link.proxy.address(), run.grpc
        run.start_worker(FAR)
        run.grpc = direct
        while any(worker.running() for worker in run.workers.values()):
            link.look()
            if run.status():
                book.note_run(run)
            time.sleep(0.005)
        run.await_done()
        link.look()
        self.assertTrue(book.reported, "no digest was compared")
        return run, link, run.status()

    def test_a_cut_connection_costs_some_chunks_and_no_bit(self):
        # The bits without cuts are those of any link, so that one costs nothing.
        plain, _, plain_end = self.play(0, 0, 1000, 0)
        run, link, end = self.play(CUTS, 20, MEGABYTES_PER_S, ROUND_TRIP_S)
        self.assertEqual(sorted(cut["direction"] for cut in link.proxy.cuts), [DOWN] * (CUTS // 2) + [UP] * (CUTS // 2))
        self.assertEqual(dict(run.journal("SELECT site, count(*) FROM events WHERE kind = 'join' GROUP BY site")), {NEAR: 1, FAR: 1})
        for site in (NEAR, FAR):
            self.assert_same_bits(plain.local(site), run.local(site), site)
        contributions = "SELECT fragment, site, base, merged_version FROM contributions ORDER BY 1, 2, 3, 4"
        self.assertEqual(plain.journal(contributions), run.journal(contributions))
        for way in (UP, DOWN):  # of both sites: either may have supplied the initial parameters
            metered = [sum(site[f"{way}_bytes"] for site in status["sites"]) for status in (end, plain_end)]
            self.assertLessEqual(metered[0] - metered[1], CUTS // 2 * MOST_AGAIN_BYTES, way)
        self.assertTrue(link.again(), "no cut fell into a round")
        for way, again in (one for one in link.again() if one[0] == UP):  # an update goes down as it is committed
            self.assertLessEqual(again, MOST_AGAIN_BYTES, way)


if __name__ == "__main__":
    unittest.main()
