"""Wrong flags of the GPU benchmarks are refused with what was expected."""

import pathlib
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent


class FlagsTest(unittest.TestCase):
    def assert_refused(self, program, flag, words):
        done = subprocess.run([sys.executable, HERE / program, flag], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn(words, done.stderr)

    def test_of_a_profile(self):
        self.assert_refused("gpu_profile", "--model=7b", "expected a model of tiny, ")
        self.assert_refused("gpu_profile", "--micro_batches=3", "--micro_batches: expected a divisor of 64 rows, got 3")
        self.assert_refused("gpu_profile", "--limit=0", "--limit: expected more than 0 seconds, got 0")

    def test_of_a_site_that_goes_on(self):
        self.assert_refused("gpu_resume", "--steps=10", "--steps: expected at least 30, for a checkpoint in mid-run, got 10")

    def test_of_two_ranks(self):
        self.assert_refused("gpu_ranks", "--steps=1", "--steps: expected at least ")
        self.assert_refused("gpu_ranks", "--rank_timeout_s=0", "--rank_timeout_s: expected more than 0 seconds, got 0")


if __name__ == "__main__":
    unittest.main()
