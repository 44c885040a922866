"""`cmake --install`: what it installs runs from where it lies, and its list names all of it."""

import os
import pathlib
import subprocess
import tempfile
import unittest

BINARIES = pathlib.Path(os.environ["CAUSEWAY_BIN_DIR"])
PROGRAMS = ("causeway-coordinator", "causeway-worker", "causewayctl")


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.prefix = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory())) / "prefix"
        subprocess.run(["cmake", "--install", BINARIES, "--prefix", cls.prefix, "--strip"], check=True, capture_output=True)

    def test_programs_run_from_there(self):
        for name in PROGRAMS:
            done = subprocess.run([self.prefix / "bin" / name, "--version"], capture_output=True, text=True, check=True)
            self.assertRegex(done.stdout, r"^causeway \d+\.\d+\.\d+\n$")
        done = subprocess.run([self.prefix / "bin" / "causeway-certs", "--help"], capture_output=True, text=True, check=True)
        self.assertIn("--out DIR", done.stdout)

    def test_everything_that_people_use_is_there_and_the_list_has_it_so_that_it_can_be_removed(self):
        installed = {str(path.relative_to(self.prefix)) for path in self.prefix.rglob("*") if not path.is_dir()}
        for name in ("include/causeway.h", "lib/systemd/system/causeway-coordinator.service",
                     "lib/systemd/system/causeway-worker@.service", "share/doc/causeway/copyright",
                     "share/doc/causeway/examples/run.yaml",
                     *(f"share/bash-completion/completions/{program}" for program in PROGRAMS)):
            self.assertIn(name, installed)
        self.assertTrue(any(name.endswith("CausewayConfig.cmake") for name in installed))
        self.assertEqual([], [name for name in installed if name.startswith("causeway/")], "this is for pip alone")
        listed = (BINARIES / "install_manifest.txt").read_text().splitlines()
        self.assertEqual(installed, {str(pathlib.Path(path).relative_to(self.prefix)) for path in listed})

    def test_units_name_programs_not_their_places(self):
        for unit in (self.prefix / "lib" / "systemd" / "system").iterdir():
            command = next(line for line in unit.read_text().splitlines() if line.startswith("ExecStart="))
            self.assertIn(command.removeprefix("ExecStart=").split()[0], PROGRAMS)


if __name__ == "__main__":
    unittest.main()
