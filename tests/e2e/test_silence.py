"""Connections that die without a word, as when a firewall forgets a flow: rounds go on within seconds, at any lease.

docs/data/measurements.md has the pauses of every kind of connection, direction and lease.
"""

import collections
import pathlib
import sys
import time
import unittest

from harness import check_all, eventually
from test_shards import ShardedTest, config_of

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "chaos"))

from proxy import DOWN, UP, Proxy  # noqa: E402

MOST_PAUSE_S = 15  # on a machine that is idle 4 to 8
WATCHED_S = 20  # after the connections have died
BOTH = (UP, DOWN)

# `bulk`: how many of the site's bulk connections to that shard die; None: all of its connections.
Case = collections.namedtuple("Case", "lease_s shards shard bulk directions")


class SilenceTest(ShardedTest):
    def pause_of(self, case):
        """The longest time without a new version anywhere, in seconds, after some connections of site "us" died."""
        run = self.sharded(config_of(steps=0, membership={"min_sites": 3, "lease_ms": 1000 * case.lease_s}),
                           case.shards)
        run.start_coordinators()
        proxies = [Proxy(shard.grpc) for shard in run.shards]
        try:
            run.start_workers("asia", "eu")
            run.workers["us"] = self.program(
                run.folder, "worker-us", "causeway-worker", "--site=us",
                "--coordinator=" + ",".join(proxy.address() for proxy in proxies))
            run.await_rounds(3)
            self.assertGreater(proxies[case.shard].forget(case.bulk, case.directions), 0)
            return self.watch(run)
        finally:
            for proxy in proxies:
                proxy.close()
            for program in [*run.workers.values(), *(shard.coordinator for shard in run.shards)]:
                program.kill()

    def watch(self, run):
        begun = changed = time.monotonic()
        versions, longest = run.versions(), 0
        while time.monotonic() - begun < WATCHED_S:
            time.sleep(0.05)
            now = run.versions()
            longest = max(longest, time.monotonic() - changed)
            if min(now.values()) > min(versions.values()):
                versions, changed = now, time.monotonic()
        self.sites = {site["name"]: site for site in run.shards[0].status()["sites"]}
        return longest

    def check(self, case):
        self.assertLess(self.pause_of(case), MOST_PAUSE_S, case)

    def test_rounds_go_on_soon_after_connections_died_without_a_word(self):
        check_all(self.check, [(Case(60, 1, 0, None, BOTH),), (Case(10, 1, 0, 1, (UP,)),),
                               (Case(5, 2, 1, 2, (DOWN,)),)], at_once=3)


if __name__ == "__main__":
    unittest.main()
