"""A coordinator's answers reach a site with other fields, bits and lengths than they were sent with, as the seed has it.

The site goes on, tries again, or ends and says why; it never crashes, takes bounded memory, and what it then holds of a
version is what the coordinator holds of it. The other site and the coordinator notice nothing. $SPOIL_SECONDS=600 tries
more seeds, from $SPOIL_SEED on.
"""

import os
import pathlib
import re
import subprocess
import time
import unittest

from harness import BIN_DIR, DEADLINE_S, DONE, MEMORY_IS_OURS, UNREACHABLE, EndToEndTest, eventually, synthetic

SECONDS, FIRST_SEED = float(os.environ.get("SPOIL_SECONDS", 0)), int(os.environ.get("SPOIL_SEED", 1))
CASES = 4  # without SPOIL_SECONDS
CASE_S = 3
ONE_IN = (5, 30, 150)  # answers, by turns: few get far, and many are met by none
MOST_MB = 400  # a message may have some 8 MB, and several are under way


class SpoiledAnswersTest(EndToEndTest):
    def config(self):
        return synthetic({"a": 0.5, "b": -0.25}, [[2000], [300], [10, 10]],
                         model={"step_ms": 3, "gradient": {"kind": "noise"}, "init": "seeded"},
                         inner={"lr": 0.01},
                         sync={"mode": "quorum", "sync_every": 6, "num_fragments": 2, "fragment_sync_delay": 1},
                         codec={"up": "int4", "down": "int4", "feedback_up": 1, "feedback_down": 1},
                         membership={"min_sites": 1, "min_quorum": 1, "grace_ms": 20, "lease_ms": 2000})

    def memory_mb(self, process):
        try:
            text = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            return 0
        found = re.search(r"VmHWM:\s+(\d+) kB", text)  # not of one that has ended
        return int(found[1]) / 1024 if found else 0

    def agree(self, run, beyond):
        """Whether both sites have reported the coordinator's digest of a version beyond that, of every fragment. Before,
        the spoiled one may have reported another, and taken the anchor."""
        committed = {(fragment, version): digest for fragment, version, digest in
                     run.journal("SELECT fragment, version, digest FROM rounds WHERE digest IS NOT NULL")}
        anchors = [(int(fragment), anchor) for site in run.status()["sites"] for fragment, anchor in site["digests"].items()]
        return len(anchors) == 4 and all(anchor["version"] > beyond and
                                         committed.get((fragment, anchor["version"])) == anchor["digest"]
                                         for fragment, anchor in anchors)

    def spoil(self, seed):
        run = self.new_run(self.config())
        run.start_coordinator()
        run.start_worker("b")
        run.await_rounds(3)
        started = time.monotonic()
        with subprocess.Popen([BIN_DIR / "tests/fuzz/spoiled_answers", run.grpc, f"--seed={seed}",
                               f"--one_in={ONE_IN[seed % len(ONE_IN)]}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              text=True) as spoiler:
            honest, run.grpc = run.grpc, spoiler.stdout.readline().strip()
            worker = run.start_worker("a")
            run.grpc = honest
            while worker.running() and time.monotonic() < started + CASE_S:
                if MEMORY_IS_OURS:
                    self.assertLess(self.memory_mb(worker.process), MOST_MB, f"seed {seed}")
                time.sleep(0.05)
            ended = not worker.running()
            code = worker.wait() if ended else worker.terminate()
            changed, _ = spoiler.communicate(timeout=DEADLINE_S)
        self.assertIn(code, range(UNREACHABLE + 1), f"seed {seed}: {worker.log()[-3000:]}")
        entered = worker.log().count("enters after")
        anew = run.start_worker("a")
        eventually(lambda: anew.log().count("enters after") > entered, f"seed {seed}: it takes part again")
        rounds = run.newest()
        eventually(lambda: self.agree(run, rounds), f"seed {seed}: digests agree")
        self.assertTrue(run.coordinator.running() and run.workers["b"].running(), f"seed {seed}")
        run.stop_all()
        words = [line.split(" error ", 1)[1] for line in worker.log().splitlines() if " error " in line]
        return (code, words[-1] if words else "") if ended else None, changed

    def test_a_site_goes_on_or_says_why_it_ends_and_never_crashes(self):
        started, outcomes = time.monotonic(), {}
        seed = FIRST_SEED
        while time.monotonic() < started + SECONDS if SECONDS else seed < FIRST_SEED + CASES:
            end, changed = self.spoil(seed)
            self.assertTrue(changed or end is None, f"seed {seed}: no answer was changed, and it ended")
            self.assertTrue(end is None or end[0] == DONE or end[1], f"seed {seed}: it says why it ends")
            outcomes[end] = outcomes.get(end, 0) + 1
            seed += 1
        for end, count in sorted(outcomes.items(), key=str):
            print(f"{count:4} {'went on' if end is None else f'exit {end[0]}: {end[1]}'}"[:300])


if __name__ == "__main__":
    unittest.main()
