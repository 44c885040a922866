"""300 MB of parameters with default settings: nothing is too large for a message, a file or a buffer."""

import pathlib
import unittest

from harness import EndToEndTest, synthetic

VALUES_PER_TENSOR = 18_750_000  # four of them: 300 MB of float32
MEMORY_NEEDED = 8 << 30  # a coordinator and two sites, with room


def free_memory():
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


class LargeTest(EndToEndTest):
    def test_300_mb_of_parameters_pass_with_default_settings(self):
        if free_memory() < MEMORY_NEEDED:
            self.skipTest(f"needs {MEMORY_NEEDED >> 30} GiB of free memory, there are {free_memory() >> 30}")
        config = synthetic({"a": 0.5, "b": -0.25}, [[VALUES_PER_TENSOR]] * 4, run={"steps": 40},
                           model={"gradient": {"apply": "on_send"}})
        for section in ("sync", "checkpoint"):
            del config[section]
        run = self.new_run(config)
        run.start_coordinator()
        run.start_workers("a", "b")
        run.await_done(seconds=200)
        status = run.status()
        self.assertEqual(status["parameters"], 4 * VALUES_PER_TENSOR)
        self.assertEqual([fragment["version"] for fragment in status["fragments"]], [1, 1, 1, 2])
        for site in status["sites"]:
            self.assertEqual(site["contributions_merged"], 5)
            for fragment in status["fragments"]:
                self.assertEqual(site["digests"][str(fragment["id"])]["digest"], fragment["digest"])
        run.stop_coordinator()


if __name__ == "__main__":
    unittest.main()
