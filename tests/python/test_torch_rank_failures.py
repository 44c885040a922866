"""Failures in a site of several ranks: each rank says which one it was, and other sites' rounds go on."""

import itertools
import re
import signal
import sys
import unittest

from harness import DONE, EndToEndTest, check_all, eventually
from llama_runs import HERE
from test_mixed import needs_library
from test_torch_external import external_config
from test_torch_ranks import RankedTest, ranked_config
from wrong_ranks import CASES

TIMEOUT_S, GROUP_TIMEOUT_S, LEASE_S = 3, 12, 3


class FailureTest(RankedTest):
    """Site a of two ranks in which something happens after step 20, beside site b of one."""

    def start(self, kind, *flags, of_rank=None, steps=400, step_ms=10):
        config = ranked_config("int4", run={"steps": steps})
        config["membership"] = {"min_sites": 2, "lease_ms": 1000 * LEASE_S}
        run = self.start_ranked_run(config)
        common = (f"--rank_timeout_s={TIMEOUT_S}", f"--group_timeout_s={GROUP_TIMEOUT_S}", f"--step_ms={step_ms}")
        run.failing = self.start_ranked(run, "a", kind, 2, *common, *flags)
        self.start_ranked(run, "b", "single", 1, f"--step_ms={step_ms}")
        return run

    def await_step(self, run, step):
        eventually(lambda: any(line.get("step", 0) >= step for line in run.workers["a"].lines()), f"a is at step {step}",
                   120)

    def check_others_go_on(self, run):
        """b trains to the end, and its longest step is at most the timeout and one lease. Returns its seconds."""
        b = run.workers["b"]
        self.assertEqual(b.wait(120), DONE, b.log()[-3000:])
        at = [line["at"] for line in b.lines() if "at" in line]
        self.assertEqual(len(at), run.config["run"]["steps"])
        longest = max(after - before for before, after in itertools.pairwise(at))
        self.assertLess(longest, TIMEOUT_S + LEASE_S + 1)
        return longest

    def said(self, rank, seconds=GROUP_TIMEOUT_S + 15):
        """The log of a rank that has ended with a failure."""
        self.assertNotEqual(rank.wait(seconds), DONE, rank.log()[-3000:])
        return rank.log()

    def fail_after(self, run, number, which):
        self.await_step(run, 20)
        run.failing[number].send(which)

    def report(self, what, run, waited):
        """A row of docs/ranks.md's table, as measured."""
        reasons = re.findall("site a: is out of the run: (.*)", run.coordinator.log())
        said = [([line for line in rank.log().splitlines() if re.search("rank \\d of 2", line)] or ["-"])[-1]
                for rank in run.failing]
        print(f"{what}: b's longest step {waited:.1f} s; coordinator: {reasons[:1]}; ranks: {said}", file=sys.stderr)

    def check_kill(self, kind, number):
        run = self.start(kind)
        self.fail_after(run, number, signal.SIGKILL)
        log = self.said(run.failing[1 - number])
        self.assertIn(f"rank {number} of 2 (", log)
        self.assertRegex(log, rf"RankError: rank {number} of 2 \(.*\) ended|rank {number} of 2 \(.*\) ended")
        waited = self.check_others_go_on(run)
        if number == 1:
            self.assertRegex(run.coordinator.log(), r"site a: is out of the run: .*rank 1 of 2 \(.*\) ended")
        self.report(f"{kind}: SIGKILL of rank {number}", run, waited)

    def test_a_follower_is_killed(self):
        self.check_kill("fsdp", 1)

    def test_the_leader_is_killed(self):
        self.check_kill("ddp", 0)

    def check_stop(self, kind, number):
        run = self.start(kind)
        self.fail_after(run, number, signal.SIGSTOP)
        log = self.said(run.failing[1 - number])
        self.assertRegex(log, rf"rank {number} of 2 \(.*\) has said nothing for \d")
        waited = self.check_others_go_on(run)
        if number == 1:
            self.assertRegex(run.coordinator.log(), r"site a: is out of the run: .*rank 1 of 2 \(.*\) has said nothing")
        run.failing[number].send(signal.SIGKILL)
        self.report(f"{kind}: SIGSTOP of rank {number}", run, waited)

    def test_a_follower_is_stopped(self):
        self.check_stop("ddp", 1)

    def test_the_leader_is_stopped(self):
        self.check_stop("fsdp", 0)

    def test_a_rank_skips_a_step(self):
        run = self.start("plain", "--skip=1:30")
        for rank in run.failing:
            self.assertRegex(self.said(rank, 120), r"rank 1 of 2 \(.*\) is in training|rank 1 of 2 \(.*\) is in after_step")
        waited = self.check_others_go_on(run)
        self.report("plain: rank 1 skips a step", run, waited)

    def test_another_model_on_one_rank(self):
        for wrong, sentence in (("shape", r"model: .*: shape: expected \[.*\] as on rank 0, got \[.*\] on rank 1"),
                                ("name", r"model: .*: expected on rank 1 as on rank 0, or no tensor in common")):
            run = self.start("plain", f"--wrong={wrong}")
            for rank in run.failing:
                self.assertRegex(self.said(rank, 120), "ConfigError: " + sentence)
            self.assertNotIn("site a: joins", run.coordinator.log())
            run.workers["b"].process.kill()
            print(wrong, [line for line in run.failing[0].log().splitlines() if "ConfigError" in line][-1:])

    def test_a_rank_that_does_not_come(self):
        run = self.start("plain", "--absent=1")
        log = self.said(run.failing[0], 120)
        self.assertRegex(log, "ConfigError: ranks: expected all 2 ranks of the site to make their DiLoCo within 3 s")
        self.assertNotIn("site a: joins", run.coordinator.log())
        run.workers["b"].process.kill()
        print("absent", [line for line in log.splitlines() if "ConfigError" in line][-1:])

    def test_known_waits_cost_no_lease(self):
        run = self.start("ddp", "--busy=20:6", "--compile=6", steps=60)
        for site in ("a", "b"):
            self.assertEqual(run.workers[site].wait(120), DONE, run.workers[site].log()[-3000:])
        self.assertNotIn("stands still", run.coordinator.log())
        self.assertNotIn("not heard of", run.coordinator.log())


@needs_library
class WrongUsesTest(EndToEndTest):
    """Each wrong use ends with a sentence on both ranks, within the timeout."""

    def test_each_ends_with_a_sentence_on_both_ranks(self):
        run = self.new_run(external_config(run={"steps": 0}, membership={"min_sites": 1}))
        run.start_coordinator()
        check_all(lambda case: self.check(run, case), [(case,) for case in CASES], at_once=2)
        print(f"{len(CASES)} wrong uses, each with a sentence on both ranks", file=sys.stderr)

    def check(self, run, case):
        ranks = [run.program(f"{case}-{rank}", sys.executable, HERE / "wrong_ranks.py", case, run.grpc,
                             run.folder / f"{case}.store", str(rank)) for rank in range(2)]
        sentence = re.escape(CASES[case]).replace("HOST", ".*")
        for number, rank in enumerate(ranks):
            self.assertNotEqual(rank.wait(60), DONE, f"{case} {number}: {rank.output()} {rank.log()[-1000:]}")
            if case != "ends_in_silence" or number == 0:  # whose other rank says nothing any more
                self.assertRegex(rank.output(), sentence, f"{case} {number}: {rank.log()[-2000:]}")


if __name__ == "__main__":
    unittest.main()
