"""With run.tokens sites of different speed are at the same learning rate at the same time, and the run ends by tokens."""

import bisect
import json
import math
import pathlib
import sys
import unittest

from harness import BAD_INPUT, EndToEndTest, eventually, synthetic

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "chaos"))

from storm_lib.cluster import slowed  # noqa: E402

SITES = {"fast": 0.5, "slow": 0.25}
BATCH, SYNC_EVERY, WARMUP, LR = 8, 10, 40, 0.01
TOKENS_OF_A_STEP = BATCH * len(SITES)  # of all sites
ROUND = SYNC_EVERY * TOKENS_OF_A_STEP  # with both sites at full speed
TOKENS = 36 * ROUND


def config_of(**sections):
    return synthetic(SITES, [[300], [3, 1500], [5000], [257]],
                     model={"step_ms": 10, "init": "seeded", "gradient": {"kind": "noise"}},
                     inner={"optimizer": "adamw", "lr": LR, "warmup_steps": WARMUP, "schedule": "cosine",
                            "batch_size": BATCH},
                     sync={"mode": "quorum", "sync_every": SYNC_EVERY, "num_fragments": 2, "fragment_sync_delay": 2},
                     membership={"min_quorum": 1, "grace_ms": 10}, checkpoint={"every_rounds": 2}, **sections)


def rate(tokens, of=TOKENS):
    """As worker/optimizer/rate_schedule.h says."""
    place, end = tokens / TOKENS_OF_A_STEP, of / TOKENS_OF_A_STEP
    if place <= WARMUP:
        return LR * place / WARMUP
    return LR * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min(1, (place - WARMUP) / (end - WARMUP)))))


class RunTokensTest(EndToEndTest):
    def steps(self, run, site):
        """The steps in its metrics file, a dictionary each."""
        lines = [json.loads(line) for line in (run.folder / f"metrics-{site}").read_text().splitlines()]
        return [line for line in lines if line["kind"] == "step"]

    def start_worker(self, run, site):
        return run.start_worker(site, f"--metrics_file={run.folder}/metrics-{site}", "--metrics_every_s=0",
                                f"--checkpoint_dir={run.folder}/checkpoint-{site}")

    def test_a_site_of_half_the_speed_is_at_the_same_learning_rate_and_a_killed_coordinator_changes_nothing(self):
        run = self.new_run(config_of(run={"tokens": TOKENS}))
        run.start_coordinator()
        for site in SITES:
            self.start_worker(run, site)
        with slowed(run.workers["slow"], run_s=0.03, stop_s=0.03):
            eventually(lambda: run.rounds() >= 12, "a third of the run")
            run.coordinator.kill()
            run.start_coordinator()
            run.await_done()
        fast, slow = (self.steps(run, site) for site in SITES)
        self.assertLess(slow[-1]["step"], 0.75 * fast[-1]["step"], "it was slow")
        most = max(abs(rate(at + ROUND) - rate(at)) for at in range(0, TOKENS, ROUND // 10))
        times = [line["unix_ms"] for line in fast]
        apart = 0
        for line in slow:
            last = bisect.bisect_right(times, line["unix_ms"]) - 1
            if last >= 0:
                apart = max(apart, abs(fast[last]["lr"] - line["lr"]))
        print(f"learning rates at most {apart:.3g} apart; a round changes it by up to {most:.3g}; "
              f"steps {fast[-1]['step']} and {slow[-1]['step']}")
        self.assertLessEqual(apart, most)
        ends = [lines[-1]["step"] * TOKENS_OF_A_STEP for lines in (fast, slow)]
        by_steps = abs(rate(ends[0], ends[0]) - rate(ends[1], ends[0]))
        self.assertGreater(by_steps, most, "by steps they would have been further apart")
        for lines in (fast, slow):
            self.assertLess(lines[-1]["lr"], rate(TOKENS - 2 * ROUND))
        merged = max(tokens for tokens, in run.journal("SELECT run_tokens FROM rounds"))
        trained = sum(lines[-1]["tokens"] for lines in (fast, slow))
        self.assertLessEqual(abs(merged - TOKENS), ROUND)
        self.assertLessEqual(abs(trained - TOKENS), 2 * ROUND)

    def test_a_longer_run_is_set_and_a_site_goes_on_where_the_run_stands(self):
        run = self.new_run(config_of(run={"tokens": 12 * ROUND}))
        run.start_coordinator()
        for site in SITES:
            self.start_worker(run, site)
        eventually(lambda: run.rounds() >= 4, "a third of the run")
        run.control("set", f"run.tokens={16 * ROUND}")
        run.workers["slow"].kill()
        self.start_worker(run, "slow")
        run.await_done()
        merged = max(tokens for tokens, in run.journal("SELECT run_tokens FROM rounds"))
        self.assertLessEqual(abs(merged - 16 * ROUND), ROUND)
        run.stop_coordinator()

    def test_it_is_refused_where_sites_are_in_step(self):
        config = config_of(run={"tokens": TOKENS})
        config["sync"] = {"sync_every": SYNC_EVERY, "num_fragments": 2}
        run = self.new_run(config)
        checked = run.program("check", "causewayctl", "config-check", str(run.config_path))
        self.assertEqual(checked.wait(), BAD_INPUT, checked.log())
        self.assertIn("run.tokens: expected sync.mode: quorum with it", checked.log())


if __name__ == "__main__":
    unittest.main()
