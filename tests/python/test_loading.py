"""How libcauseway.so is loaded into a process that has libraries of other packages, or an allocator of its own."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ASK = "import os; from causeway import _library; print(_library._mode() == os.RTLD_LOCAL | os.RTLD_DEEPBIND)"
ALLOCATOR = "unsigned long malloc_usable_size(void* block) { return block != 0; }"


class LoadingTest(unittest.TestCase):
    def deep(self, preload=""):
        """Whether the library binds to its own dependencies before what is global."""
        asked = subprocess.run([sys.executable, "-c", ASK], env=os.environ | {"LD_PRELOAD": preload},
                               capture_output=True, text=True, check=True)
        return asked.stdout.strip() == "True"

    def test_its_own_dependencies_come_before_what_other_packages_made_global(self):
        self.assertTrue(self.deep())

    def test_a_preloaded_allocator_stays_the_only_one(self):
        with tempfile.TemporaryDirectory() as folder:
            allocator = pathlib.Path(folder) / "allocator.so"
            subprocess.run(["c++", "-xc", "-shared", "-fPIC", "-o", allocator, "-"], input=ALLOCATOR, text=True, check=True)
            self.assertFalse(self.deep(str(allocator)))


if __name__ == "__main__":
    unittest.main()
