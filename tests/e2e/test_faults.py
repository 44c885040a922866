"""The coordinator kills itself at every instant at which what is on disk lies between two states, and is started again:
the run ends with the bits of an undisturbed one, and no worker is restarted.

causeway-coordinator-faults is the coordinator with fault points that do something (tests/chaos/fault_point.cc).
"""

import signal
import unittest

from harness import EndToEndTest, check_all, eventually, synthetic

FAULTY = "causeway-coordinator-faults"
SITES = {"asia": 0.25, "eu": 1.0, "us": 0.5}
SHAPES = [[300]] * 3 + [[3, 1500]] * 3 + [[5000]] * 3  # three chunks a fragment, of one unit or two
FRAGMENTS, SYNC_EVERY, STEPS = 3, 10, 60
AT_ONCE = 2

# Where, and at the which-th time. The first mid_snapshot and after_prune are of the seed.
FAULTS = [
    ("after_chunk", 2), ("after_chunk", 83),
    ("after_segment_sync", 5), ("after_segment_sync", 20),
    ("after_row", 1), ("after_row", 13),
    ("after_decision", 1), ("after_decision", 11),
    ("mid_merge", 2), ("mid_merge", 12),
    ("mid_broadcast", 5), ("mid_broadcast", 70),
    ("before_digest_record", 3), ("before_digest_record", 9),
    ("mid_snapshot", 2), ("mid_snapshot", 7),
    ("after_prune", 1), ("after_prune", 6),
]
# Counted anew in each life. The one after after_decision comes while what was decided is merged again.
ONE_AFTER_ANOTHER = [("after_row", 2), ("mid_merge", 3), ("mid_snapshot", 2), ("after_decision", 2), ("mid_merge", 1),
                     ("mid_broadcast", 9), ("before_digest_record", 2)]

CONFIG = synthetic(SITES, SHAPES, run={"steps": STEPS},
                   model={"step_ms": 4, "init": "seeded", "gradient": {"kind": "noise"}},
                   sync={"sync_every": SYNC_EVERY, "num_fragments": FRAGMENTS, "fragment_sync_delay": 2,
                         "fragment_update_alpha": 0.5},
                   codec={"up": "int4", "down": "int4", "feedback_up": 1, "feedback_down": 1},
                   checkpoint={"every_rounds": 2})

CONTRIBUTIONS = ("SELECT fragment, site, base, tokens, steps, merged_version, weight FROM contributions "
                 "ORDER BY fragment, site, base")
ROUNDS = "SELECT fragment, version, lr, momentum, sites, digest FROM rounds ORDER BY fragment, version"
ROUND_EVENTS = "SELECT fragment, text FROM events WHERE kind = 'round' ORDER BY fragment, id"


def label(point, count):
    return f"{point}:{count}"


def finish(run):
    """Leaves a run to its end: its arrays and rows."""
    run.await_done()
    arrays = {"export": run.export()} | {site: run.local(site) for site in SITES}
    run.stop_coordinator()
    arrays["snapshots"] = run.snapshots()
    rows = {query: run.journal(query) for query in (CONTRIBUTIONS, ROUNDS, ROUND_EVENTS)}
    return arrays, rows


def check_same(test, expected, run, what):
    """The run, left to its end, comes to what `finish` gave of another one."""
    arrays, rows = finish(run)
    for part, tensors in expected[0].items():
        test.assert_same_bits(tensors, arrays[part], f"{what}: {part}")
    for query, table in expected[1].items():
        test.assertEqual(table, rows[query], f"{what}: {query}")


class FaultsTest(EndToEndTest):
    def undisturbed(self):
        run = self.new_run(CONFIG)
        run.start_coordinator()
        run.start_workers(*SITES)
        return finish(run)

    def start_faulty(self, run, point, count):
        try:
            run.start_coordinator(program=FAULTY, environment={"CAUSEWAY_FAULT": label(point, count)})
        except AssertionError:  # it has ended already
            self.assertEqual(run.coordinator.wait(), -signal.SIGKILL, run.coordinator.log()[-2000:])

    def await_kill(self, run, fault):
        def over():
            return not run.coordinator.running() or not any(worker.running() for worker in run.workers.values())

        eventually(over, f"{fault}: the coordinator is killed, or the run over")
        self.assertFalse(run.coordinator.running(), f"{fault} was never reached")
        self.assertEqual(run.coordinator.wait(), -signal.SIGKILL, f"{fault}: {run.coordinator.log()[-2000:]}")
        for worker in run.workers.values():
            self.assertTrue(worker.running(), f"{fault}: {worker.label} ended: {worker.log()[-2000:]}")

    def check(self, point, count, expected):
        run = self.new_run(CONFIG)
        self.start_faulty(run, point, count)
        run.start_workers(*SITES)
        self.await_kill(run, label(point, count))
        run.start_coordinator()
        check_same(self, expected, run, label(point, count))

    def test_a_run_whose_coordinator_is_killed_anywhere_has_the_bits_and_the_rows_of_an_undisturbed_one(self):
        expected = self.undisturbed()
        self.assert_merged_once(expected[1])
        self.assertEqual(len(expected[0]["snapshots"]), 3 * FRAGMENTS, "anchor, momentum and residual of each")
        check_all(self.check, [(*fault, expected) for fault in FAULTS], AT_ONCE)

    def assert_merged_once(self, rows):
        """Each step of a site is in one contribution to each fragment, and that is in one round. Without it the rows
        could not be compared with those of the undisturbed run."""
        sends = {p: (p + 1) * SYNC_EVERY // FRAGMENTS % SYNC_EVERY for p in range(FRAGMENTS)}
        expected = []
        for p, offset in sends.items():
            bases = range((STEPS - offset) // SYNC_EVERY)
            expected += [(p, site, base, SYNC_EVERY if base else SYNC_EVERY + offset, base + 1)
                         for site in SITES for base in bases]
        self.assertEqual([(p, site, base, steps, merged)
                          for p, site, base, _, steps, merged, _ in rows[CONTRIBUTIONS]], expected)
        self.assertEqual(len(rows[ROUND_EVENTS]), len(rows[ROUNDS]))
        self.assertTrue(all(digest for *_, digest in rows[ROUNDS]))

    def test_contributions_that_wait_for_a_slower_site_survive_too(self):
        expected = self.undisturbed()
        # With slower steps, which give the same bits: there is time to stop one before all is over.
        run = self.new_run(CONFIG | {"model": CONFIG["model"] | {"step_ms": 40}})
        run.start_coordinator()
        run.start_workers(*SITES)
        run.await_rounds(1)
        run.workers["us"].send(signal.SIGSTOP)

        waiting = ("SELECT fragment FROM contributions WHERE merged_version IS NULL GROUP BY fragment "
                   "HAVING min(site) = 'asia' AND max(site) = 'eu'")
        fragment = eventually(lambda: run.journal(waiting), "asia and eu wait for us")[0][0]
        run.coordinator.kill()
        run.start_coordinator()
        self.assertEqual(run.status()["fragments"][fragment]["contributors"], ["asia", "eu"])
        run.workers["us"].send(signal.SIGCONT)
        check_same(self, expected, run, "killed while two of three had contributed")

    def test_a_coordinator_that_is_killed_again_and_again_too(self):
        expected = self.undisturbed()
        run = self.new_run(CONFIG)
        for point, count in ONE_AFTER_ANOTHER:
            self.start_faulty(run, point, count)
            if not run.workers:
                run.start_workers(*SITES)
            self.await_kill(run, label(point, count))
        run.start_coordinator()
        self.assertEqual(run.status()["epoch"], len(ONE_AFTER_ANOTHER) + 1)
        check_same(self, expected, run, "killed again and again")


if __name__ == "__main__":
    unittest.main()
